//! What the metrics page says about images in use. The number of series is bounded, whatever the cluster is like.

use std::fmt;
use std::sync::Arc;

use fairlead_plan::inventory::{DriftKind, FindingKind, ShownSeries, Source, State};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

use super::inventory::Tally;
use crate::controller::metrics::{labels, metrics};

labels! {
    OfState { state }
    OfSource { source }
    OfDrift { kind }
    OfFinding { finding }
    OfOutcome { outcome }
}

metrics! {
    struct Families {
        images: Family<OfState, Gauge> = "fairlead_inventory_images",
            "Images of containers and mounts of image volumes, by whether what is reported is what is expected";
        volumes: Family<OfSource, Gauge> = "fairlead_image_volumes",
            "Mounts of image volumes, by where their digest is known from";
        drift: Family<OfDrift, Gauge> = "fairlead_image_drift",
            "Images of workloads that are not what their references suggest";
        findings: Family<OfFinding, Gauge> = "fairlead_image_volume_findings",
            "Odd reports of kubelets: images of volumes that are no image volumes, and containers that mount different \
             content of one volume";
        waiting: Gauge = "fairlead_image_volume_pods_not_started",
            "Pods with a container that mounts an image volume and was not made within five minutes";
        looks_omitted: Gauge = "fairlead_inventory_looks_omitted",
            "Images whose tags are not looked at because too many others are";
        omitted: Gauge = "fairlead_image_info_omitted", "Series of fairlead_image_info that are left out";
        annotations: Family<OfOutcome, Counter> = "fairlead_volume_digest_writes",
            "Writes of the annotation fairlead.dev/volume-digests after admission";
        reads: Family<OfOutcome, Counter> = "fairlead_inventory_reads",
            "Indexes and manifests that were read in order to compare digests";
    }
}

/// What the page says about images in use.
#[derive(Debug, Clone)]
pub struct Metrics {
    families: Families,
    shown: Shown,
}

#[derive(Debug, Clone, Default)]
struct Shown(Arc<Mutex<Vec<ShownSeries>>>);

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self { families: Families::register_all(registry), shown: Shown::default() };
        registry.register_collector(Box::new(metrics.shown.clone()));
        metrics
    }

    pub(super) fn show(&self, tally: &mut Tally) {
        let Families { images, volumes, drift, findings, waiting, looks_omitted, omitted, .. } =
            &self.families;
        let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
        for state in [State::Matching, State::Differing, State::Unknown] {
            let found = tally.states.get(&state).copied().unwrap_or_default();
            images.get_or_create(&OfState { state: state.as_str() }).set(count(found));
        }
        for source in Source::ALL {
            let found = tally.sources.get(&source).copied().unwrap_or_default();
            volumes.get_or_create(&OfSource { source: source.as_str() }).set(count(found));
        }
        for kind in DriftKind::ALL {
            let found = tally.drifts.iter().filter(|drift| drift.kind == kind).count();
            drift.get_or_create(&OfDrift { kind: kind.as_str() }).set(count(found));
        }
        for (kind, finding) in
            [(FindingKind::Divergence, "divergence"), (FindingKind::Misplaced, "misplaced")]
        {
            let found = tally.findings.get(&kind).copied().unwrap_or_default();
            findings.get_or_create(&OfFinding { finding }).set(count(found));
        }
        waiting.set(count(tally.not_started));
        looks_omitted.set(count(tally.looks_omitted));
        omitted.set(count(tally.omitted));
        *self.shown.0.lock() = std::mem::take(&mut tally.series);
    }

    pub(super) fn wrote(&self, outcome: &'static str) {
        self.families.annotations.get_or_create(&OfOutcome { outcome }).inc();
    }

    pub(super) fn read(&self, outcome: &'static str) {
        self.families.reads.get_or_create(&OfOutcome { outcome }).inc();
    }

    /// This replica does not lead any more.
    pub(super) fn rest(&self) {
        let Families { images, volumes, drift, findings, waiting, looks_omitted, omitted, .. } =
            &self.families;
        images.clear();
        volumes.clear();
        drift.clear();
        findings.clear();
        waiting.set(0);
        looks_omitted.set(0);
        omitted.set(0);
        self.shown.0.lock().clear();
    }
}

impl Collector for Shown {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let shown = self.0.lock();
        if shown.is_empty() {
            return Ok(());
        }
        let help = "Pods of a workload that use an image, with the digest that runs or is expected";
        let mut metric = encoder.encode_descriptor("fairlead_image_info", help, None, MetricType::Gauge)?;
        for series in &*shown {
            let [namespace, workload_kind, workload, image, image_id] = series.labels();
            let labels = [
                ("namespace", namespace),
                ("workload_kind", workload_kind),
                ("workload", workload),
                ("image", image),
                ("image_id", image_id),
                ("source", series.source.as_str()),
            ];
            ConstGauge::new(i64::from(series.pods)).encode(metric.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use fairlead_plan::inventory::{Contents, Knowledge, PodView, Series, UseView, rows};
    use fairlead_plan::pod_record::Place;

    use super::*;
    use crate::platform::telemetry::page;

    #[test]
    fn what_a_pod_names_as_its_image_does_not_break_the_page() {
        let images = ["a\"b", "x\nfairlead_leader 0", "c\\"];
        let uses = images.map(|image| UseView {
            place: Place::Container("web"),
            sidecar: false,
            image,
            image_id: None,
            created: false,
            ended: false,
            mounts_images: false,
            mounts: Vec::new(),
        });
        let view = PodView {
            namespace: "shop",
            name: "a",
            uid: "a",
            node: None,
            platform: None,
            controller: None,
            template_hash: None,
            revision_hash: None,
            created: 0,
            routes: None,
            volume_digests: None,
            annotation_bytes: 0,
            images: uses.into(),
            misplaced: Vec::new(),
        };
        let contents = Contents::default();
        let found = rows(&view, &Knowledge::of_pods(&contents, &|_| false));
        let mut series = Series::default();
        series.add(&view, &found.rows, true);
        let mut registry = Registry::default();
        *Metrics::register(&mut registry).shown.0.lock() = series.shown(10).0;
        let page = page::text(&registry).expect("a page");
        let shown: Vec<_> = page.lines().filter(|line| line.starts_with("fairlead_image_info{")).collect();
        assert_eq!(shown.len(), images.len(), "{page}");
        for escaped in [r#"image="a\"b","#, r#"image="x\nfairlead_leader 0","#, r#"image="c\\","#] {
            assert!(shown.iter().any(|line| line.contains(escaped)), "{escaped}: {page}");
        }
        assert!(!page.lines().any(|line| line.starts_with("fairlead_leader")), "{page}");
    }
}
