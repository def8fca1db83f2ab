//! What an object's status says of its copies.

use fairlead_api::conditions::{self, reasons, types};
use fairlead_api::fairlead::CopyState;
use fairlead_api::kuik::{MatchingImage, MirroredImage};
use fairlead_domain::reference::Reference;

use crate::ledger::{Copy, Entry, Ledger};
use crate::policy_status::{Compilation, judge};
use crate::routing::Policy;

/// Images that a status lists; all of them are in the ledger.
const LISTED: usize = 100;

/// The fields of a mirror object's status that follow from its ledger.
#[derive(Debug, Clone, PartialEq)]
pub struct MirrorReport {
    pub image_count: u32,
    pub mirrored_count: u32,
    pub failed_count: u32,
    pub matching_images: Vec<MatchingImage>,
    pub ready: conditions::Finding,
}

/// Sums a ledger up. `secrets` and `problems` are what else keeps images from being copied: Secrets that cannot be
/// used, and what [`reconcile`](super::reconcile) could not place.
pub fn report(ledger: &Ledger, policy: &Policy, secrets: &[String], problems: &[String]) -> MirrorReport {
    let mut counts = Counts::default();
    let mut failing = Vec::new();
    let mut others = Vec::new();
    for (source, entry) in ledger.iter() {
        let list = if counts.add(source, entry) { &mut failing } else { &mut others };
        if list.len() < LISTED {
            list.push((source, entry));
        }
    }
    let listed = failing.into_iter().chain(others).take(LISTED);
    MirrorReport {
        image_count: number(ledger.len()),
        mirrored_count: number(counts.in_place),
        failed_count: number(counts.failed + counts.refused),
        matching_images: listed.map(|(source, entry)| listing(source, entry)).collect(),
        ready: ready(&counts, ledger.len(), policy, secrets, problems),
    }
}

type ReportRow<'l> = (&'l Reference, &'l Copy);

#[derive(Default)]
struct Counts<'l> {
    in_place: usize,
    /// Copies of images in use.
    wanted: usize,
    waiting: usize,
    failed: usize,
    refused: usize,
    undeleted: usize,
    first_failed: Option<ReportRow<'l>>,
    first_refused: Option<ReportRow<'l>>,
    first_undeleted: Option<ReportRow<'l>>,
}

impl<'l> Counts<'l> {
    /// Returns whether something about the image fails.
    fn add(&mut self, source: &'l Reference, entry: &'l Entry) -> bool {
        let in_use = entry.unused_since.is_none();
        let mut fails = false;
        for copy in &entry.copies {
            let row = (source, copy);
            match copy.state {
                CopyState::Mirrored => self.in_place += 1,
                CopyState::Deleting if copy.last_error.is_some() => {
                    self.undeleted += 1;
                    self.first_undeleted.get_or_insert(row);
                    fails = true;
                }
                CopyState::Pending if in_use => self.waiting += 1,
                CopyState::Failed if in_use => {
                    self.failed += 1;
                    self.first_failed.get_or_insert(row);
                    fails = true;
                }
                CopyState::Refused if in_use => {
                    self.refused += 1;
                    self.first_refused.get_or_insert(row);
                    fails = true;
                }
                CopyState::Pending | CopyState::Failed | CopyState::Refused | CopyState::Deleting => {}
            }
            self.wanted += usize::from(in_use && copy.state != CopyState::Deleting);
        }
        fails
    }
}

fn ready(
    counts: &Counts<'_>,
    images: usize,
    policy: &Policy,
    secrets: &[String],
    problems: &[String],
) -> conditions::Finding {
    let finding =
        |holds, reason: &str, message: String| conditions::Finding::new(types::READY, holds, reason, message);
    let judgement = judge(policy.id().kind, &Compilation::Compiled { policy, secrets });
    if !judgement.holds {
        return finding(false, judgement.reason, judgement.message);
    }
    let wanted = counts.wanted;
    let trouble = problems.first().map(|first| match problems.len() {
        1 => format!("not every image can be copied: {first}"),
        count => format!("not every image can be copied: {first} (and {} more)", count - 1),
    });
    if let Some((source, copy)) = counts.first_failed {
        let mut message = format!(
            "{} of {wanted} copies failed, and are tried again; the first: {source} to {}: {}",
            counts.failed,
            copy.destination,
            copy.last_error.as_deref().unwrap_or_default()
        );
        if let Some(trouble) = trouble {
            message = format!("{message}; {trouble}");
        }
        return finding(false, reasons::DEGRADED, message);
    }
    if let Some(trouble) = trouble {
        return finding(false, reasons::DEGRADED, trouble);
    }
    if let Some((source, copy)) = counts.first_refused {
        let message = format!(
            "{} of {wanted} copies are refused; the first: {source} to {}, which {}",
            counts.refused,
            copy.destination,
            copy.last_error.as_deref().unwrap_or_default()
        );
        return finding(false, reasons::CONFLICT, message);
    }
    if counts.waiting > 0 {
        let done = wanted - counts.waiting;
        return finding(false, reasons::PROGRESSING, format!("{done} of {wanted} copies are in place"));
    }
    let mut message = format!("{} in place of {}", copies(counts.in_place), image_count(images));
    if let Some((_, copy)) = counts.first_undeleted {
        message = format!(
            "{message}; {} cannot be deleted, the first {}: {}",
            copies(counts.undeleted),
            copy.destination,
            copy.last_error.as_deref().unwrap_or_default()
        );
    }
    finding(true, reasons::READY, message)
}

pub(super) fn copies(count: usize) -> String {
    format!("{count} {}", if count == 1 { "copy" } else { "copies" })
}

fn image_count(count: usize) -> String {
    format!("{count} {}", if count == 1 { "image" } else { "images" })
}

fn listing(source: &Reference, entry: &Entry) -> MatchingImage {
    let copy = |copy: &Copy| {
        let in_place = copy.state == CopyState::Mirrored;
        // What a copy in place has to say is no error.
        let error = copy.last_error.as_deref().filter(|_| !in_place);
        MirroredImage {
            image: copy.destination.to_string(),
            mirrored_at: in_place.then(|| copy.since.into()),
            last_error: error.unwrap_or_default().to_owned(),
        }
    };
    MatchingImage {
        image: source.to_string(),
        unused_since: entry.unused_since.map(Into::into),
        mirrors: entry.copies.iter().map(copy).collect(),
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}
