//! Ledgers at a real API server: how they are written, what every replica knows of them, and how what a probe found
//! reaches the lease holder.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fairlead_api::fairlead::{CopyState, ImageLedger};
use fairlead_api::kuik::ClusterImageSetMirror;
use fairlead_api::names::fairlead::LOOK_AGAIN;
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::VerdictKind;
use fairlead_operator::cluster::ledgers::{Claims, Findings, LedgerStore, Missed, WriteError};
use fairlead_operator::platform::config::Config;
use fairlead_operator::registries::verdicts::{self, VerdictSettings, Verdicts};
use fairlead_plan::ledger::{Copy, Draft, Entry, Ledger, Owner, OwnerKind};
use fairlead_plan::routing::Index;
use fairlead_testkit::fake_registry::FakeRegistry;
use fairlead_testkit::{Cluster, eventually, images};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::candidate::Candidate;
use crate::definitions::cluster_with_definitions;
use crate::leading::SOON;

/// A cluster of its own: ledgers of all namespaces are listed.
struct Bench {
    cluster: Cluster,
    client: Client,
    namespace: String,
    store: LedgerStore,
}

impl Bench {
    async fn new() -> Result<Self> {
        let (cluster, client) = cluster_with_definitions(Cluster::builder()).await?;
        let namespace = cluster.namespace("operator").await?;
        let store = LedgerStore::new(client.clone(), &namespace);
        eventually(SOON, || async {
            store.list(|_, _| None::<()>).await.map_err(anyhow::Error::msg).map(drop)
        })
        .await?;
        Ok(Self { cluster, client, namespace, store })
    }

    /// A mirror object, without which the garbage collector would take its ledgers away.
    async fn owner(&self, name: &str) -> Result<Owner> {
        let mirror = serde_json::from_value(json!({
            "metadata": {"name": name}, "spec": {"mirrors": [{"registry": "mirror.example.com"}]},
        }))?;
        let mirrors: Api<ClusterImageSetMirror> = Api::all(self.client.clone());
        let mirror =
            eventually(SOON, || async { Ok(mirrors.create(&PostParams::default(), &mirror).await?) }).await?;
        Ok(Owner {
            kind: OwnerKind::ClusterImageSetMirror,
            namespace: None,
            name: name.into(),
            uid: mirror.metadata.uid.context("an identity")?.into(),
        })
    }

    fn ledgers(&self) -> Api<ImageLedger> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Writes everything that is not stored yet.
    async fn store(&self, ledger: &mut Ledger) -> Result<()> {
        for shard in ledger.dirty() {
            let draft = ledger.draft(shard);
            let stored = self.store.write(ledger.owner(), &draft).await?;
            ledger.written(shard, draft.ticket(), stored.version);
        }
        Ok(())
    }
}

fn reference(text: &str) -> Reference {
    Reference::parse(text).expect("a reference")
}

fn mirrored(destination: &Reference, digest: Digest) -> Entry {
    let since = "2026-02-03T04:05:06Z".parse().expect("a time");
    Entry {
        source_digest: Some(digest),
        copies: vec![Copy {
            digest: Some(digest),
            state: CopyState::Mirrored,
            ..Copy::pending(destination.clone(), since)
        }],
        ..Entry::default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ledgers_are_written_over_the_version_that_is_known() -> Result<()> {
    let bench = Bench::new().await?;
    let owner = bench.owner("hub").await?;
    let mut ledger = Ledger::new(owner.clone());
    for number in 0..20 {
        let copy = reference(&format!("mirror.example.com/app:{number}"));
        ledger.insert(
            reference(&format!("docker.io/team/app:{number}")),
            mirrored(&copy, Digest::sha256(&[number])),
        );
    }
    let shard = ledger.dirty()[0];
    let first = ledger.draft(shard);
    bench.store(&mut ledger).await?;
    let stored = bench.ledgers().get(first.name()).await?;
    ensure!(stored.spec.entries.len() == 20 && stored.spec.owner == owner.named(), "{stored:?}");
    let status = stored.status.context("one write carries the status")?;
    ensure!((status.image_count, status.mirrored_count) == (Some(20), Some(20)), "{status:?}");
    let references = stored.metadata.owner_references.unwrap_or_default();
    ensure!(references.len() == 1 && references[0].uid == *owner.uid, "{references:?}");
    ensure!(stored.metadata.labels == Some(owner.labels()));

    // Created by another writer first: the conflict names the version that is stored.
    let version = match bench.store.write(&owner, &first).await {
        Err(WriteError::Conflict { version }) => version,
        other => bail!("{other:?}"),
    };
    ensure!(version == stored.metadata.resource_version, "{version:?}");

    // Changed by another writer since.
    let annotation = json!({"metadata": {"annotations": {"note": "x"}}});
    let changed =
        bench.ledgers().patch(first.name(), &PatchParams::default(), &Patch::Merge(annotation)).await?;
    ledger.edit(&reference("docker.io/team/app:7"), |entry| entry.copies[0].state = CopyState::Deleting);
    match bench.store.write(&owner, &ledger.draft(shard)).await {
        Err(WriteError::Conflict { version }) if version == changed.metadata.resource_version => {
            ledger.lost(shard, version);
        }
        other => bail!("{other:?}"),
    }
    bench.store(&mut ledger).await?;
    let stored = bench.ledgers().get(first.name()).await?;
    ensure!(stored.status.is_some_and(|status| status.mirrored_count == Some(19)));
    ensure!(stored.metadata.annotations.is_none(), "what others put there goes with the next write");

    // Deleted by another writer.
    bench.ledgers().delete(first.name(), &DeleteParams::default()).await?;
    ledger.edit(&reference("docker.io/team/app:8"), |entry| entry.copies[0].state = CopyState::Deleting);
    match bench.store.write(&owner, &ledger.draft(shard)).await {
        Err(WriteError::Gone) => ledger.lost(shard, None),
        other => bail!("{other:?}"),
    }
    bench.store(&mut ledger).await?;

    // Emptied: the object goes, however often that is tried.
    let sources: Vec<_> = ledger.iter().map(|(source, _)| source.clone()).collect();
    for source in &sources {
        ledger.remove(source);
    }
    let last = ledger.draft(shard);
    ensure!(matches!(last, Draft::Delete { .. }), "{last:?}");
    for _ in 0..2 {
        let stored = bench.store.write(&owner, &last).await?;
        ensure!(stored.version.is_none());
    }
    ensure!(bench.store.list(|owner, _| Some(owner)).await.map_err(anyhow::Error::msg)?.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_ledgers_are_listed_however_many_there_are() -> Result<()> {
    let bench = Bench::new().await?;
    for number in 0..40 {
        let mut ledger = Ledger::new(bench.owner(&format!("mirror-{number}")).await?);
        let copy = reference(&format!("mirror.example.com/app:{number}"));
        ledger.insert(reference("docker.io/team/app:1"), mirrored(&copy, Digest::sha256(b"")));
        bench.store(&mut ledger).await?;
    }
    let listed = bench.store.list(|owner, _| Some(owner)).await.map_err(anyhow::Error::msg)?;
    ensure!(listed.len() == 40, "{}", listed.len());

    let replica = Replica::start(&bench, "follower").await?;
    eventually(SOON, || async {
        ensure!(
            replica.claims.listed() && replica.claims.objects().len() == 40,
            "{:?}",
            replica.claims.objects()
        );
        Ok(())
    })
    .await?;
    let copy = reference("mirror.example.com/app:7");
    // No policy is compiled here; ledgers of cluster-scoped objects count all the same.
    let policies = Index::default();
    ensure!(replica.claims.refuses(&reference("quay.io/team/app:1"), &copy, &policies));
    ensure!(!replica.claims.refuses(&reference("docker.io/team/app:1"), &copy, &policies));
    Ok(())
}

/// The parts of a replica that concern findings.
struct Replica {
    claims: Claims,
    verdicts: Verdicts,
    missed: mpsc::Receiver<Missed>,
    candidate: Candidate,
}

impl Replica {
    async fn start(bench: &Bench, identity: &str) -> Result<Self> {
        let client = bench.cluster.client().await?;
        let mut candidate = Candidate::start(&client, &bench.namespace, identity);
        let config = Config::default();
        let claims = candidate.resources.claims.clone();
        let findings = Findings::new(claims.clone(), &config.routing.active_check.stale_mirror_cleanup);
        let registries = verdicts::client(&config);
        let metrics = verdicts::Metrics::register(&mut Registry::default(), &registries);
        let verdicts =
            Verdicts::new(registries, VerdictSettings::from(&config), metrics).heard_by(findings.clone());
        let (to_controller, missed) = mpsc::channel(16);
        candidate.spawn(findings.run(client, candidate.leader.clone(), to_controller, candidate.stopping()));
        Ok(Self { claims, verdicts, missed, candidate })
    }

    async fn lead(&self, leads: bool) -> Result<()> {
        eventually(SOON, || async {
            ensure!(self.candidate.leader.term().is_some() == leads, "leads: {}", !leads);
            Ok(())
        })
        .await
    }

    async fn knows(&self, ledgers: usize) -> Result<()> {
        eventually(SOON, || async {
            ensure!(self.claims.objects().len() == ledgers, "{:?}", self.claims.objects());
            Ok(())
        })
        .await
    }

    /// Its watch has brought what is stored, such as its own latest write.
    async fn has_seen(&self, stored: &ImageLedger) -> Result<()> {
        let version = stored.metadata.resource_version.as_deref();
        eventually(SOON, || async {
            let known = self.claims.objects();
            ensure!(known.iter().any(|object| Some(&*object.version) == version), "{known:?}");
            Ok(())
        })
        .await
    }

    async fn probe(&self, image: &Reference, finds: VerdictKind) -> Result<()> {
        let verdict = self.verdicts.ask(image, &[], "team", Instant::now() + Duration::from_secs(5)).await;
        ensure!(verdict.kind() == finds, "{image}: {verdict:?}");
        Ok(())
    }

    async fn hears(&mut self) -> Result<Reference> {
        let missed = tokio::time::timeout(SOON, self.missed.recv()).await.context("nothing was heard")?;
        Ok(missed.context("the channel is open")?.reference)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_is_gone_is_told_to_the_lease_holder_by_whoever_finds_out() -> Result<()> {
    let bench = Bench::new().await?;
    let registry = FakeRegistry::start().await?;
    let copy = |name: &str| reference(&format!("{}/{name}:1", registry.host()));
    let (present, moved) = (images::empty()?, Digest::sha256(b"something else"));
    registry.hold("present", "1", &present);
    registry.hold("moved", "1", &present);

    let mut ledger = Ledger::new(bench.owner("hub").await?);
    let digest: Digest = present.digest().parse()?;
    for (name, digest) in [("present", digest), ("moved", moved), ("gone", digest), ("lost", digest)] {
        ledger.insert(reference(&format!("docker.io/team/{name}:1")), mirrored(&copy(name), digest));
    }
    bench.store(&mut ledger).await?;
    let shard = ledger.shards().next().context("a shard")?;
    let name = ledger.draft(shard).name().to_owned();

    let mut holder = Replica::start(&bench, "holder").await?;
    holder.lead(true).await?;
    let mut other = Replica::start(&bench, "other").await?;
    for replica in [&holder, &other] {
        replica.knows(1).await?;
    }

    // The lease holder finds out by itself, and nothing is written for it.
    holder.probe(&copy("present"), VerdictKind::Available).await?;
    holder.probe(&copy("gone"), VerdictKind::NotFound).await?;
    ensure!(holder.hears().await? == copy("gone"), "what is in place is no news");
    ensure!(bench.ledgers().get(&name).await?.metadata.annotations.is_none());

    // Another replica writes it down, each once.
    other.probe(&copy("lost"), VerdictKind::NotFound).await?;
    ensure!(holder.hears().await? == copy("lost"));
    other.has_seen(&bench.ledgers().get(&name).await?).await?;
    other.probe(&copy("moved"), VerdictKind::Available).await?;
    let heard = [holder.hears().await?, holder.hears().await?];
    ensure!(heard == [copy("moved"), copy("lost")], "{heard:?}");
    let stored = bench.ledgers().get(&name).await?;
    let asked = stored.metadata.annotations.unwrap_or_default().remove(LOOK_AGAIN);
    let both = json!([copy("moved").as_str(), copy("lost").as_str()]).to_string();
    ensure!(asked.as_deref() == Some(both.as_str()), "{asked:?}");
    ensure!(other.missed.try_recv().is_err(), "it does not act itself");

    // The next write takes the annotation away.
    ledger.lost(shard, stored.metadata.resource_version);
    bench.store(&mut ledger).await?;
    ensure!(bench.ledgers().get(&name).await?.metadata.annotations.is_none());

    // What is written down while no replica leads is found by the next lease holder.
    drop(holder);
    other.probe(&copy("gone"), VerdictKind::NotFound).await?;
    other.lead(true).await?;
    ensure!(other.hears().await? == copy("gone"));
    Ok(())
}
