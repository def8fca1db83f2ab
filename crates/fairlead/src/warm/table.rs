//! The state of warming for people. One line for each thing, as long as it has to be.

use std::collections::BTreeSet;

use jiff::Timestamp;

use super::report::{ImageReport, NodeReport, WarmReport};
use crate::output::{age, columns, fact, line, list, short};
use crate::readiness::{self, Readiness};

/// Characters of a digest that tell it from others.
const DIGEST: usize = 19;

/// A line for each object.
pub(super) fn overview(report: &WarmReport, now: Timestamp) -> String {
    let mut text = String::new();
    if report.images.is_empty() && report.sets.is_empty() {
        line(&mut text, 0, "There is no CachedImage and no CachedImageSet.");
        return text;
    }
    if !report.images.is_empty() {
        let header =
            ["NAME", "IMAGE", "POLICY", "READY", "PULLING", "FAILING", "LAST PULL", "REASON", "MESSAGE"];
        let mut rows = vec![header.map(str::to_owned)];
        rows.extend(report.images.iter().map(|image| {
            let [reason, message] = said(image.ready.as_ref(), image.observed, &image.problems);
            [
                image.name.clone(),
                or_dash(Some(image.image.clone()).filter(|image| !image.is_empty())),
                or_dash(image.policy.clone()),
                format!("{}/{}", image.holding, image.targeted),
                image.pulling.to_string(),
                or_dash(image.failing.map(|failing| failing.to_string())),
                or_dash(image.last_pulled_at.map(|at| age(now, at))),
                reason,
                message,
            ]
        }));
        columns(&mut text, 0, &rows);
    }
    if !report.sets.is_empty() {
        if !text.is_empty() {
            text.push('\n');
        }
        let mut rows = vec![["SET", "READY", "REASON", "MESSAGE"].map(str::to_owned)];
        rows.extend(report.sets.iter().map(|set| {
            let [reason, message] = said(set.ready.as_ref(), set.observed, &set.problems);
            [set.name.clone(), format!("{}/{}", set.images_ready, set.images), reason, message]
        }));
        columns(&mut text, 0, &rows);
    }
    text
}

/// One image and the first of its nodes.
pub(super) fn one_image(image: &ImageReport, most: usize, now: Timestamp) -> String {
    let mut text = String::new();
    let state = readiness::words(image.ready.as_ref(), image.observed, image.deleting_since, now);
    line(&mut text, 0, &format!("CachedImage/{}: {state}", image.name));
    for problem in &image.problems {
        fact(&mut text, "problem", problem);
    }
    let nodes = image.nodes.as_deref().unwrap_or_default();
    let references: BTreeSet<&str> = nodes.iter().map(|node| &*node.reference).collect();
    let mut references = references.into_iter();
    let only = references.next().filter(|_| references.next().is_none());
    let pulled_as = only.filter(|reference| *reference != image.image);
    let pulled_as = pulled_as.map_or_else(String::new, |reference| format!(", pulled as {reference}"));
    fact(&mut text, "image", &format!("{}{pulled_as}", image.image));
    fact(&mut text, "policy", image.policy.as_deref().unwrap_or("none: the defaults of a PullPolicy hold"));
    let failing = image.failing.map_or_else(String::new, |failing| format!(", {failing} failing"));
    let ImageReport { holding, targeted, pulling, .. } = image;
    fact(&mut text, "nodes", &format!("{holding} of {targeted} hold it, {pulling} pulling{failing}"));
    if let Some(progress) = &image.progress {
        let Readiness { reason, message, since, .. } = progress;
        fact(&mut text, "progress", &format!("{reason} for {}: {message}", age(now, *since)));
    }
    if let Some(at) = image.last_pulled_at {
        let digest = image.digest.as_ref().map_or_else(String::new, |digest| format!(": {digest}"));
        fact(&mut text, "pulled", &format!("last {} ago{digest}", age(now, at)));
    }
    let mut header = vec!["NODE", "PULLED", "DIGEST", "FAILURES", "AGAIN", "REASON", "MESSAGE"];
    let differ = nodes.len() > 1 && only.is_none();
    if differ {
        header.push("REFERENCE");
    }
    list(&mut text, "nodes", nodes, most, &header, |node| {
        let mut row = one_node(node, now);
        row.extend(differ.then(|| node.reference.clone()));
        row
    });
    text
}

fn one_node(node: &NodeReport, now: Timestamp) -> Vec<String> {
    let again = node.again_at.map(|at| {
        // What is due waits for a slot.
        if at <= now { "due".to_owned() } else { format!("in {}", short(at.duration_since(now))) }
    });
    let digest = node.digest.as_ref().map(|digest| digest.chars().take(DIGEST).collect());
    vec![
        node.node.clone(),
        or_dash(node.pulled_at.map(|at| age(now, at))),
        or_dash(digest),
        node.failures.to_string(),
        or_dash(again),
        or_dash(node.reason.clone()),
        or_dash(node.message.clone()),
    ]
}

/// Reason and message of a condition, and what stands for them where it says nothing of the object as it is.
fn said(ready: Option<&Readiness>, observed: bool, problems: &[String]) -> [String; 2] {
    if let Some(problem) = problems.first() {
        return ["Unreadable".to_owned(), problem.clone()];
    }
    match ready {
        None => ["-".to_owned(), "no operator has looked at it yet".to_owned()],
        Some(ready) if observed => [ready.reason.clone(), ready.message.clone()],
        Some(ready) => {
            [ready.reason.clone(), format!("{}; not looked at since its last edit", ready.message)]
        }
    }
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}
