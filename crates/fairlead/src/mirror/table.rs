//! The state of mirrors for people. One line for each thing, as long as it has to be; a terminal's width decides only
//! what the live view cuts off.

use std::fmt::Write;

use fairlead_api::fairlead::CopyState;
use fairlead_api::kuik::AwaitedRegistry;
use jiff::{SignedDuration, Timestamp};

use super::report::{CopyReport, Counts, KnownFrom, ObjectReport, Pace, Report, UnusedCopy, UnusedReport};
use crate::output::{age, columns, fact, line, list, short};
use crate::readiness;

const BAR: u32 = 30;

/// How much of it is shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TableStyle {
    /// Rows of each list; the rest is counted.
    pub(crate) most: usize,
    /// With a bar for the copies, on a terminal that is kept up to date.
    pub(crate) bars: bool,
    pub(crate) now: Timestamp,
}

pub(crate) fn table(report: &Report, look: TableStyle) -> String {
    let mut text = String::new();
    for (number, object) in report.objects.iter().enumerate() {
        if number > 0 {
            text.push('\n');
        }
        one_object(&mut text, object, look);
    }
    text
}

fn one_object(text: &mut String, object: &ObjectReport, look: TableStyle) {
    let ready = object.ready.as_ref();
    let state = readiness::words(ready, object.observed, object.deleting_since, look.now);
    line(text, 0, &format!("{}: {state}", object.title));
    for problem in &object.problems {
        fact(text, "problem", problem);
    }
    let unused =
        if object.images.unused > 0 { format!(", {} unused", object.images.unused) } else { String::new() };
    fact(text, "images", &format!("{} in use{unused}", object.images.in_use));
    if look.bars && object.copies.total > 0 {
        fact(text, "", &bar(object.copies));
    }
    fact(text, "copies", &copies(object, look.now));
    for AwaitedRegistry { registry, reason, tasks } in &object.waiting_for {
        fact(text, "waiting", &format!("{tasks} for {registry}: {reason}"));
    }
    if object.known_from == KnownFrom::Status && object.images.in_use + object.images.unused > 0 {
        fact(text, "note", "there is no ImageLedger to read: this is what the object's own status says");
    }
    if object.mirrors.len() > 1 || object.mirrors.iter().any(|place| !place.in_spec) {
        mirrors(text, object);
    }
    list(text, "failing", &object.failing, look.most, &["STATE", "COPY", "FOR", "WHY"], |copy| {
        failing(copy, look.now)
    });
    list(text, "unused", &object.unused, look.most, &["IMAGE", "FOR", "COPIES"], |image| {
        unused_image(image, look.now)
    });
    list(text, "not cleaned up", &object.kept, look.most, &["COPY", "WHY"], |copy| {
        vec![copy.destination.clone(), copy.why.clone()]
    });
}

fn copies(object: &ObjectReport, now: Timestamp) -> String {
    let Counts { total, mirrored, pending, failed, refused, deleting } = object.copies;
    let mut words = format!("{mirrored} of {total} in place");
    for (count, what) in
        [(pending, "waiting"), (failed, "failed"), (refused, "refused"), (deleting, "being removed")]
    {
        if count > 0 {
            // Writing to a string cannot fail.
            let _ = write!(words, ", {count} {what}");
        }
    }
    if pending > 0
        && let Some(oldest) = object.oldest_waiting
    {
        let _ = write!(words, "; the oldest has waited for {}", age(now, oldest));
    }
    let Pace { pending, recent } = object.pace;
    if recent > 0 && pending > 0 {
        let left = SignedDuration::from_secs(i64::from(pending) * 60 / i64::from(recent));
        let _ = write!(words, "; {recent} made in the last minute, at that pace {} more", short(left));
    }
    words
}

fn bar(counts: Counts) -> String {
    let filled = |count: u32| u64::from(count) * u64::from(BAR) / u64::from(counts.total.max(1));
    let (done, bad) = (filled(counts.mirrored), filled(counts.failed + counts.refused));
    let mut bar = String::from("[");
    for place in 0..u64::from(BAR) {
        bar.push(match place {
            place if place < done => '=',
            place if place >= u64::from(BAR) - bad => '!',
            _ => ' ',
        });
    }
    let _ = write!(bar, "] {} %", u64::from(counts.mirrored) * 100 / u64::from(counts.total.max(1)));
    bar
}

fn mirrors(text: &mut String, object: &ObjectReport) {
    let header = ["MIRROR", "IN PLACE", "WAITING", "FAILED", "REFUSED", "REMOVING"].map(str::to_owned);
    let mut rows = vec![header.to_vec()];
    for place in &object.mirrors {
        let Counts { mirrored, pending, failed, refused, deleting, .. } = place.copies;
        let name =
            if place.in_spec { place.place.clone() } else { format!("{}, no longer a mirror", place.place) };
        let numbers = [mirrored, pending, failed, refused, deleting].map(|number| number.to_string());
        rows.push(std::iter::once(name).chain(numbers).collect());
    }
    text.push('\n');
    columns(text, 1, &rows);
}

fn failing(copy: &CopyReport, now: Timestamp) -> Vec<String> {
    let state = match copy.state {
        CopyState::Refused => "refused",
        CopyState::Deleting => "not removed",
        CopyState::Failed | CopyState::Pending | CopyState::Mirrored => "failed",
    };
    let since = copy.since.map_or_else(|| "-".to_owned(), |since| age(now, since));
    vec![state.to_owned(), copy.destination.clone(), since, copy.error.clone()]
}

fn unused_image(image: &UnusedReport, now: Timestamp) -> Vec<String> {
    let since = age(now, image.since);
    let fate = |copy: &UnusedCopy| match copy.goes_at {
        None => copy.kept.as_ref().map_or_else(|| "kept".to_owned(), |why| format!("kept ({why})")),
        Some(time) if time <= now => "go now".to_owned(),
        Some(time) => format!("go in {}", short(time.duration_since(now))),
    };
    let mut fates: Vec<(String, Vec<&str>)> = Vec::new();
    for copy in &image.copies {
        let fate = fate(copy);
        match fates.iter_mut().find(|(known, _)| *known == fate) {
            Some((_, destinations)) => destinations.push(&copy.destination),
            None => fates.push((fate, vec![&copy.destination])),
        }
    }
    let words = match fates.as_slice() {
        [] => "none".to_owned(),
        [(fate, _)] => fate.clone(),
        several => {
            let one = |(fate, at): &(String, Vec<&str>)| format!("{fate}: {}", at.join(", "));
            several.iter().map(one).collect::<Vec<_>>().join("; ")
        }
    };
    vec![image.image.clone(), since, words]
}
