//! What a capability costs on the frame: a small controller, complete, that reports on every `ImagePin`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use fairlead_api::conditions::{Finding, find, merge, reasons, types};
use fairlead_api::fairlead::ImagePin;
use fairlead_operator::cluster::state::Changes;
use fairlead_operator::context::Context;
use fairlead_operator::controller::status::{Draft, Manner, ObjectId, StatusWriter};
use fairlead_operator::controller::{Broken, Controller, Rounds};
use fairlead_operator::platform::config::Config;
use fairlead_operator::platform::leader::Term;
use fairlead_testkit::{Cluster, eventually};
use jiff::Timestamp;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::candidate::Candidate;
use crate::definitions::cluster_with_definitions;

const SOON: Duration = Duration::from_secs(30);

/// The plan, a pure function: what the status should say.
fn plan(pin: &ImagePin) -> Finding {
    let images = pin.spec.images.len();
    Finding::new(types::READY, true, reasons::READY, format!("{images} images are pinned"))
}

struct PinReports {
    setup: Arc<PinSetup>,
    statuses: StatusWriter,
}

struct PinSetup {
    context: Context,
    /// The next round panics.
    breaks: AtomicBool,
}

impl Controller for PinReports {
    const NAME: &'static str = "pin reports";
    type Setup = PinSetup;

    fn waits_for(setup: &PinSetup) -> Option<String> {
        setup.context.board.awaits_served(&["ImagePin"])
    }

    fn changes(setup: &PinSetup) -> Vec<Changes> {
        vec![setup.context.resources.image_pins.changes()]
    }

    async fn begin(setup: &Arc<PinSetup>, _term: &Term) -> Result<Self, Broken> {
        let statuses = StatusWriter::new(setup.context.client.clone(), "fairlead-pins");
        Ok(Self { setup: setup.clone(), statuses })
    }

    async fn round(&mut self, term: &Term) -> Result<Instant, Broken> {
        let begun = Instant::now();
        assert!(!self.setup.breaks.swap(false, Ordering::SeqCst), "a bug");
        let pins = self.setup.context.resources.image_pins.snapshot();
        let drafts = pins.objects.values().filter_map(|pin| {
            let stored = pin.status.as_ref().map(|status| &*status.conditions).unwrap_or_default();
            let generation = pin.metadata.generation;
            let conditions = merge(stored, &[plan(pin)], generation, Timestamp::now());
            let status = json!({"observedGeneration": generation, "imageCount": pin.spec.images.len()});
            Draft::new(ObjectId::of(&**pin), Manner::Apply, status, &conditions, &[])
                .unless_stored(&pin.status)
        });
        let drafts: Vec<_> = drafts.collect();
        self.statuses.write_all(drafts, term, begun).await;
        Ok(self.statuses.next_due(begun, begun + Duration::from_mins(1)))
    }
}

fn images(count: usize) -> Value {
    let image = |number: usize| {
        json!({
            "asked": format!("docker.io/library/app:{number}"), "digest": format!("sha256:{}", "0".repeat(64)),
            "resolvedAt": "2026-01-01T00:00:00Z",
        })
    };
    (0..count).map(image).collect()
}

async fn counts(pins: &Api<ImagePin>, count: u32) -> Result<()> {
    eventually(SOON, || async {
        let status = pins.get("web").await?.status.unwrap_or_default();
        ensure!(status.image_count == Some(count), "{status:?}");
        let ready = find(&status.conditions, types::READY).map(|ready| ready.message.clone());
        ensure!(ready == Some(format!("{count} images are pinned")), "{status:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_controller_follows_objects_and_survives_its_own_panic() -> Result<()> {
    let (cluster, client) = cluster_with_definitions(Cluster::builder()).await?;
    let (own, team) = (cluster.namespace("operator").await?, cluster.namespace("team").await?);
    let mut replica = Candidate::start(&client, &own, "one");
    let mut registry = Registry::default();
    replica.rounds = Rounds::register(&mut registry);
    let (context, _) = replica.context(Config::default(), &mut Registry::default());
    let setup = Arc::new(PinSetup { context, breaks: AtomicBool::new(true) });
    replica.control::<PinReports>(setup.clone());

    let pins: Api<ImagePin> = Api::namespaced(client, &team);
    let workload = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u"});
    let pin = json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "ImagePin", "metadata": {"name": "web"},
        "spec": {"workload": workload, "revision": "1", "images": images(1)},
    });
    pins.create(&PostParams::default(), &serde_json::from_value(pin)?).await?;
    counts(&pins, 1).await?;
    ensure!(!setup.breaks.load(Ordering::SeqCst), "it has panicked once, and restarted");

    let more = Patch::Merge(json!({"spec": {"images": images(2)}}));
    pins.patch("web", &PatchParams::default(), &more).await?;
    counts(&pins, 2).await?;
    setup.breaks.store(true, Ordering::SeqCst);
    let more = Patch::Merge(json!({"spec": {"images": images(3)}}));
    pins.patch("web", &PatchParams::default(), &more).await?;
    counts(&pins, 3).await?;
    let mut page = String::new();
    encode(&mut page, &registry)?;
    let rounds = |result| {
        format!("fairlead_controller_rounds_total{{controller=\"pin reports\",result=\"{result}\"}}")
    };
    ensure!(page.contains(&format!("{} 2\n", rounds("panic"))), "{page}");
    ensure!(!page.contains(&format!("{} 0\n", rounds("success"))), "{page}");
    replica.stop().await
}
