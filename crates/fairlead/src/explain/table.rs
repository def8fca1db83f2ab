//! The explanation for people. One line for each thing, as long as it has to be: lines can then be searched and cut by
//! programs, and no terminal's width decides what is said.

use std::fmt::Write;

use fairlead_plan::pod_record::Difference;

use super::report::{AlternativeReport, Explanation, ImageReport, PassedOver, Source};
use crate::output::{columns, line};

/// Of policies that have no part in it people read a few; JSON has them all.
const MOST_PASSED_OVER: usize = 20;

const HEADER: [&str; 6] = ["", "IMAGE", "AVAILABLE", "TIME", "FROM", "DETAILS"];

pub(crate) fn table(report: &Explanation) -> String {
    let mut text = String::new();
    for images in report.images.chunk_by(|one, other| one.pod == other.pod) {
        pod(&mut text, images);
    }
    if !report.broken.is_empty() {
        line(&mut text, 0, "Left out, because they are broken:");
        for broken in &report.broken {
            line(&mut text, 1, &broken.to_string());
        }
    }
    text
}

fn pod(text: &mut String, images: &[ImageReport]) {
    let Some(first) = images.first() else { return };
    line(text, 0, &first.pod.title);
    text.push('\n');
    for image in images {
        one_image(text, image);
        text.push('\n');
    }
    // The same for every image that is routed at all.
    let for_pod =
        images.iter().map(|image| image.passed_over.iter().filter(|one| one.for_pod).collect::<Vec<_>>());
    let for_pod = for_pod.max_by_key(Vec::len).unwrap_or_default();
    if !for_pod.is_empty() {
        passed_over(text, 1, "passed over for this Pod:", &for_pod);
        text.push('\n');
    }
}

fn one_image(text: &mut String, image: &ImageReport) {
    line(text, 1, &title(image));
    let facts = |text: &mut String, label: &str, fact: &str| line(text, 2, &format!("{label:8}{fact}"));
    if let Some(record) = &image.record {
        let doubt = if record.believable || record.entry.is_none() { "" } else { "not believed: " };
        facts(text, "record", &format!("{doubt}{} ({})", record.meaning, record.annotation));
    }
    if let Some(why) = &image.not_routed {
        facts(text, "choice", &format!("{}, not routed", image.image));
        facts(text, "why", why);
        return;
    }
    text.push('\n');
    rows(text, image);
    text.push('\n');
    if let Some(choice) = &image.choice {
        let rewritten = if choice.rewritten { "" } else { ", as it was asked for" };
        facts(text, "choice", &format!("{}{rewritten}", choice.image));
        facts(text, "why", &choice.why);
    }
    if let Some(pinned) = &image.pinned {
        facts(text, "pinned", &format!("to {}, by {}", pinned.digest, pinned.by));
    }
    for other in &image.differs {
        facts(text, "differs", &difference(image, other));
    }
    if image.alternatives.iter().any(|one| one.availability.may_differ) {
        let caution = "the operator may choose otherwise, with Secrets that could not be read here";
        facts(text, "caution", caution);
    }
    for note in &image.notes {
        facts(text, "note", note);
    }
    let for_image: Vec<_> = image.passed_over.iter().filter(|one| !one.for_pod).collect();
    passed_over(text, 2, "passed over for this image:", &for_image);
}

/// `b.io/app:1 is sha256:…, a.io/app:1 is sha256:…; …`
fn difference(image: &ImageReport, other: &Difference) -> String {
    let mut chosen = image.alternatives.iter().filter(|one| one.chosen);
    let used = chosen.next().map_or(String::new(), |used| {
        format!(", {} is {}", used.image, used.availability.digest.as_deref().unwrap_or("unknown"))
    });
    format!(
        "{} is {}{used}: which one a Pod runs depends on which place is available; push the same image to both, or \
         refer to it by digest",
        other.image, other.digest
    )
}

fn title(image: &ImageReport) -> String {
    let name =
        if image.name.is_empty() { image.role.to_string() } else { format!("{} {}", image.role, image.name) };
    let mut title = if image.asked == image.image {
        format!("{name}: {}", image.image)
    } else {
        format!("{name}: {}, asked for as {}", image.image, image.asked)
    };
    if let Some(pull) = image.pull_policy {
        // Writing to a string cannot fail.
        let _ = write!(title, " (pull policy {pull})");
    }
    title
}

fn rows(text: &mut String, image: &ImageReport) {
    let mut rows = vec![HEADER.map(str::to_owned)];
    rows.extend(
        image.alternatives.iter().zip(1..).map(|(alternative, place)| row(alternative, place, image)),
    );
    columns(text, 2, &rows);
}

fn row(alternative: &AlternativeReport, place: usize, image: &ImageReport) -> [String; HEADER.len()] {
    let availability = &alternative.availability;
    let mut details = Vec::new();
    if !availability.reason.is_empty() {
        details.push(availability.reason.clone());
    }
    if let Some(whose) = availability.credentials.as_ref().filter(|whose| *whose != "anonymous") {
        details.push(format!("asked with {whose}"));
    }
    details.extend(copies(alternative, &image.original));
    details.extend(others(alternative));
    details.extend(availability.caveats.iter().cloned());
    let mark = if alternative.chosen { '*' } else { ' ' };
    [
        format!("{mark} {place}"),
        alternative.image.clone(),
        availability.counts_as.unwrap_or(availability.verdict).to_owned(),
        availability.milliseconds.map_or_else(|| "-".to_owned(), |time| format!("{time}ms")),
        alternative.from.to_string(),
        details.join("; "),
    ]
}

/// Of what it is a copy, unless that goes without saying. Two replicas may well be copied to one place.
fn copies(alternative: &AlternativeReport, original: &str) -> Option<String> {
    let of: Vec<_> = std::iter::once(&alternative.from)
        .chain(&alternative.also_from)
        .filter(|source| source.is_same_entry(&alternative.from))
        .filter_map(|source| match source {
            Source::Mirror { copy_of, .. } => Some(copy_of.as_str()),
            Source::Original | Source::Upstream { .. } => None,
        })
        .collect();
    (!of.is_empty() && of != [original]).then(|| format!("copy of {}", of.join(" or ")))
}

/// Who else leads to the same place.
fn others(alternative: &AlternativeReport) -> Option<String> {
    let others = alternative.also_from.iter().filter(|source| !source.is_same_entry(&alternative.from));
    let others: Vec<_> = others.map(Source::to_string).collect();
    (!others.is_empty()).then(|| format!("also offered by {}", others.join(" and ")))
}

fn passed_over(text: &mut String, indent: usize, title: &str, policies: &[&PassedOver]) {
    if policies.is_empty() {
        return;
    }
    line(text, indent, title);
    for PassedOver { policy, why, .. } in policies.iter().take(MOST_PASSED_OVER) {
        line(text, indent + 1, &format!("{policy}: {why}"));
    }
    let more = policies.len().saturating_sub(MOST_PASSED_OVER);
    if more > 0 {
        line(text, indent + 1, &format!("and {more} more, which -o json lists"));
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::{Availability, Choice, PodName};
    use super::super::subject::Role;
    use super::*;

    fn alternative(from: Source, also_from: Vec<Source>) -> AlternativeReport {
        let availability = Availability { reason: "gone\nfor ever".to_owned(), ..Availability::not_asked() };
        AlternativeReport { image: "m.io/a:1".to_owned(), from, also_from, availability, chosen: true }
    }

    fn mirror(policy: &str, copy_of: &str) -> Source {
        let (policy, entry, copy_of) = (policy.to_owned(), "mirrors[0]".to_owned(), copy_of.to_owned());
        Source::Mirror { policy, entry, copy_of }
    }

    fn report(alternatives: Vec<AlternativeReport>, passed_over: Vec<PassedOver>) -> String {
        let pod = PodName {
            kind: None,
            namespace: "n".to_owned(),
            name: None,
            place: None,
            title: "Pod".to_owned(),
        };
        let image = ImageReport {
            pod,
            role: Role::Container,
            name: "c".to_owned(),
            image: "a:1".to_owned(),
            asked: "a:1".to_owned(),
            original: "docker.io/library/a:1".to_owned(),
            pull_policy: Some("IfNotPresent"),
            not_routed: None,
            alternatives,
            pinned: None,
            choice: Some(Choice {
                image: "m.io/a:1".to_owned(),
                rewritten: true,
                why: "so".to_owned(),
                available: None,
            }),
            differs: Vec::new(),
            passed_over,
            notes: Vec::new(),
            dropped: 0,
            record: None,
        };
        table(&Explanation { images: vec![image], ..Explanation::default() })
    }

    #[test]
    fn details_say_what_is_not_plain_to_see() {
        let original = "docker.io/library/a:1";
        for (from, also, expected) in [
            (mirror("M/m", original), vec![], "gone for ever"),
            (mirror("M/m", "quay.io/a:1"), vec![], "gone for ever; copy of quay.io/a:1"),
            (
                mirror("M/m", original),
                vec![mirror("M/m", "quay.io/a:1")],
                "gone for ever; copy of docker.io/library/a:1 or quay.io/a:1",
            ),
            (
                Source::Original,
                vec![mirror("M/m", "quay.io/a:1"), mirror("M/o", original)],
                "gone for ever; also offered by M/m, mirrors[0] and M/o, mirrors[0]",
            ),
        ] {
            let text = report(vec![alternative(from, also)], Vec::new());
            let row = text.lines().find(|line| line.contains("* 1")).unwrap();
            assert!(row.ends_with(expected), "{row}");
        }
    }

    #[test]
    fn a_crowd_of_policies_does_not_bury_the_answer() {
        let one = |number: usize| PassedOver {
            policy: format!("M/{number}"),
            why: "it serves others".to_owned(),
            for_pod: true,
        };
        let text = report(Vec::new(), (0..25).map(one).collect());
        assert!(text.contains("M/19: it serves others\n") && !text.contains("M/20:"), "{text}");
        assert!(text.contains("and 5 more, which -o json lists\n"), "{text}");
    }
}
