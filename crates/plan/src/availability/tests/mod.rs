mod looks;
mod news;
mod question;
mod report;
mod track;

use std::sync::Arc;
use std::time::Duration;

use fairlead_api::kuik::{Availability, ClusterImageSetAvailability};
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use jiff::Timestamp;

use super::*;
use crate::ledger::{Entry, Ledger, Watch};
use crate::usage::Used;

const NGINX: &str = "docker.io/library/nginx:1.29";
const REDIS: &str = "docker.io/library/redis:8";
const QUAY: &str = "quay.io/org/app:1";

fn reference(text: &str) -> Reference {
    Reference::parse(text).unwrap()
}

/// Seconds after a certain noon.
fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_750_000_000 + seconds).unwrap()
}

fn object(spec: &str) -> ClusterImageSetAvailability {
    let yaml = format!(
        "apiVersion: kuik.enix.io/v1alpha1\nkind: ClusterImageSetAvailability\n\
         metadata: {{name: all, uid: 11112222-3333}}\nspec: {spec}\n"
    );
    serde_saphyr::from_str(&yaml).unwrap()
}

fn watched(spec: &str) -> Watched {
    Watched::compile(&object(spec)).unwrap()
}

fn everything(expiry: &str) -> Watched {
    watched(&format!("{{unusedImageExpiry: {expiry}, imageFilter: {{include: ['.*']}}}}"))
}

fn used(images: &[(&str, bool)]) -> Vec<Used> {
    let mut used: Vec<Used> = images
        .iter()
        .map(|(image, original)| Used {
            image: reference(image),
            original: *original,
            holders: Arc::default(),
            running: None,
            ran: Arc::default(),
        })
        .collect();
    used.sort_by(|one, other| one.image.cmp(&other.image));
    used
}

fn ledger() -> Ledger {
    Ledger::new(everything("0s").owner().clone())
}

/// A ledger with images in these states, last looked at at noon, and unused since then where it is said so.
fn ledger_with(images: &[(&str, Availability, Option<Timestamp>)]) -> Ledger {
    let mut ledger = ledger();
    for (image, status, unused_since) in images {
        let looked = *status != Availability::Scheduled;
        let failed = looked && *status != Availability::Available;
        let watch = Watch {
            status: *status,
            last_monitor: looked.then(|| at(0)),
            last_error: failed.then(|| "as the registry says".into()),
            original: true,
        };
        let entry = Entry { unused_since: *unused_since, watch: Some(watch.into()), ..Entry::default() };
        assert!(ledger.insert(reference(image), entry));
    }
    store(&mut ledger);
    ledger
}

fn store(ledger: &mut Ledger) {
    for shard in ledger.dirty() {
        let ticket = ledger.draft(shard).ticket();
        ledger.written(shard, ticket, Some("1".to_owned()));
    }
    assert!(ledger.dirty().is_empty());
}

fn images(ledger: &Ledger) -> Vec<&str> {
    ledger.iter().map(|(image, _)| image.as_str()).collect()
}

fn watch<'a>(ledger: &'a Ledger, image: &str) -> &'a Watch {
    ledger.get(&reference(image)).unwrap().watch.as_ref().unwrap()
}

/// Notes what a look found and applies what follows.
fn enter_note(
    ledger: &mut Ledger,
    image: &Reference,
    verdict: &Verdict,
    secret_problem: Option<&str>,
    now: Timestamp,
) -> Option<News> {
    let Noted { change, news } = note(ledger, image, verdict, secret_problem, now)?;
    ledger.apply([change]);
    news
}

/// Applies what follows from what is in use; tells when the next image is to be dropped.
fn enter_used(ledger: &mut Ledger, watched: &Watched, used: &[Used], now: Timestamp) -> Option<Timestamp> {
    let Tracked { changes, next_expiry } = track(ledger, watched, used, now);
    ledger.apply(changes);
    next_expiry
}
