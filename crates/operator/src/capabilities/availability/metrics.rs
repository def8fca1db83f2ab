//! What the metrics page says about the watch, by the names that kube-image-keeper's dashboards know and by ours.
//!
//! The lease holder alone shows images, so that two replicas do not count them twice. Ages are those at the scrape.
//! Registries are named up to a bound, since their names come from Pods; images never are.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::kuik::Availability;
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::VerdictKind;
use fairlead_plan::ledger::Ledger;
use jiff::Timestamp;
use parking_lot::{Mutex, MutexGuard};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, EncodeMetric, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::controller::metrics::{labels, metrics};
use crate::platform::config::Config;
use crate::platform::telemetry::RegistryLabels;

labels! {
    OfLook { registry: Arc<str>, verdict }
    OfImages { name: Arc<str>, registry: Arc<str>, status, used, original }
    OfAge { name: Arc<str>, registry: Arc<str> }
    OfObject { name: Arc<str> }
    OfRegistry { registry: Arc<str> }
}

/// The images of one object, counted.
#[derive(Debug, Default)]
struct Counted {
    images: BTreeMap<OfImages, i64>,
    /// When each was last looked at, in seconds since 1970, by registry.
    looked: BTreeMap<Arc<str>, Vec<i64>>,
    /// Images in use that are not there.
    disappeared: i64,
}

/// What is shown of images.
#[derive(Debug, Default)]
struct Shown {
    objects: BTreeMap<Arc<str>, Counted>,
    laps: BTreeMap<Arc<str>, Duration>,
    registries: RegistryLabels,
}

metrics! {
    struct Counters {
        looks: Family<OfLook, Counter> = "fairlead_watch_looks",
            "Looks at images in their registries, by what they found";
    }
}

/// Clones share everything.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    counters: Counters,
    shown: Arc<Mutex<Shown>>,
}

impl Metrics {
    pub fn register(registry: &mut Registry, config: &Config) -> Self {
        let metrics = Self { counters: Counters::register_all(registry), shown: Arc::default() };
        let bounds = config.metrics.image_last_monitor_age_minutes.buckets.bounds();
        registry.register_collector(Box::new(ImageCounts { shown: metrics.shown.clone(), bounds }));
        metrics
    }

    /// `namespace` is one whose Pods use the image.
    pub(super) fn looked(&self, host: &str, namespace: &str, found: VerdictKind) {
        let registry = self.lock().registries.of(host, namespace);
        self.counters.looks.get_or_create(&OfLook { registry, verdict: found.name() }).inc();
    }

    /// Counts the images of an object anew. `namespace` tells one whose Pods use an image.
    pub(super) fn show<'a>(
        &self,
        name: &Arc<str>,
        ledger: &Ledger,
        namespace: impl Fn(&Reference) -> &'a str,
    ) {
        let mut shown = self.lock();
        let mut counted = Counted::default();
        for (image, entry) in ledger.iter() {
            let Some(watch) = &entry.watch else { continue };
            let registry = shown.registries.of(image.host().as_str(), namespace(image));
            let used = entry.unused_since.is_none();
            if used && watch.status == Availability::NotFound {
                counted.disappeared += 1;
            }
            if let Some(at) = watch.last_monitor {
                counted.looked.entry(registry.clone()).or_default().push(at.as_second());
            }
            let labels = OfImages {
                name: name.clone(),
                registry,
                status: status(watch.status),
                used: yes_or_no(used),
                original: yes_or_no(watch.original),
            };
            *counted.images.entry(labels).or_default() += 1;
        }
        shown.objects.insert(name.clone(), counted);
    }

    /// Shows the objects that `is_there` knows, and no others.
    pub(super) fn keep(&self, is_there: impl Fn(&str) -> bool) {
        self.lock().objects.retain(|name, _| is_there(name));
    }

    /// How long it takes until every image of a registry was looked at once.
    pub(super) fn laps(&self, laps: impl IntoIterator<Item = (Arc<str>, Duration)>) {
        let mut shown = self.lock();
        shown.laps.clear();
        for (host, lap) in laps {
            let registry = shown.registries.get(&host);
            let longest = shown.laps.entry(registry).or_default();
            *longest = lap.max(*longest);
        }
    }

    /// This replica does not lead any more.
    pub(super) fn rest(&self) {
        let mut shown = self.lock();
        shown.objects.clear();
        shown.laps.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock()
    }
}

fn yes_or_no(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

/// As the API has it.
fn status(status: Availability) -> &'static str {
    match status {
        Availability::Scheduled => "Scheduled",
        Availability::Available => "Available",
        Availability::NotFound => "NotFound",
        Availability::Unreachable => "Unreachable",
        Availability::InvalidAuth => "InvalidAuth",
        Availability::UnavailableSecret => "UnavailableSecret",
        Availability::QuotaExceeded => "QuotaExceeded",
    }
}

/// Reads what is shown at each scrape.
#[derive(Debug)]
struct ImageCounts {
    shown: Arc<Mutex<Shown>>,
    bounds: Vec<f64>,
}

impl Collector for ImageCounts {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let shown = self.shown.lock();
        if shown.objects.is_empty() {
            return Ok(());
        }
        let objects = shown.objects.values().flat_map(|object| &object.images);
        let help = "Watched images, by what the last look found";
        let images = objects.map(|(labels, count)| (labels.clone(), *count));
        encode_gauge(&mut encoder, "kube_image_keeper_monitoring_images", help, images)?;
        let help = "Images in use that their registry does not have";
        let object =
            |(name, object): (&Arc<str>, &Counted)| (OfObject { name: name.clone() }, object.disappeared);
        let disappeared = shown.objects.iter().map(object);
        encode_gauge(&mut encoder, "fairlead_watch_disappeared_images", help, disappeared)?;
        self.encode_ages(&shown, &mut encoder, Timestamp::now().as_second())?;
        let help = "Time in which every watched image of a registry is looked at once";
        let lap = |(registry, lap): (&Arc<str>, &Duration)| {
            (OfRegistry { registry: registry.clone() }, lap.as_secs_f64())
        };
        encode_gauge(&mut encoder, "fairlead_watch_lap_seconds", help, shown.laps.iter().map(lap))
    }
}

/// One metric with all its series.
fn encode_gauge<L: EncodeLabelSet, N: EncodeGaugeValue>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    series: impl Iterator<Item = (L, N)>,
) -> Result<(), fmt::Error> {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in series {
        ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

impl ImageCounts {
    fn encode_ages(
        &self,
        shown: &Shown,
        encoder: &mut DescriptorEncoder<'_>,
        now: i64,
    ) -> Result<(), fmt::Error> {
        let mut metric = encoder.encode_descriptor(
            "kube_image_keeper_monitoring_image_last_monitor_age_minutes",
            "Minutes since each watched image was last looked at; images that never were are left out",
            None,
            MetricType::Histogram,
        )?;
        for (name, object) in &shown.objects {
            for (registry, looked) in &object.looked {
                let labels = OfAge { name: name.clone(), registry: registry.clone() };
                let (sum, buckets) = self.histogram(looked, now);
                let count = u64::try_from(looked.len()).unwrap_or(u64::MAX);
                let exemplars: Option<&HashMap<usize, Exemplar<NoLabelSet, f64>>> = None;
                metric.encode_family(&labels)?.encode_histogram(sum, count, &buckets, exemplars)?;
            }
        }
        Ok(())
    }

    /// The sum of the ages in minutes, and how many are within each bound and above the one before it.
    fn histogram(&self, looked: &[i64], now: i64) -> (f64, Vec<(f64, u64)>) {
        let mut sum = 0.0;
        let mut buckets: Vec<_> = self.bounds.iter().map(|bound| (*bound, 0)).collect();
        buckets.push((f64::INFINITY, 0));
        for at in looked {
            let seconds = u64::try_from(now.saturating_sub(*at)).unwrap_or_default();
            let minutes = Duration::from_secs(seconds).as_secs_f64() / 60.0;
            sum += minutes;
            let place = buckets.partition_point(|(bound, _)| *bound < minutes);
            if let Some((_, count)) = buckets.get_mut(place) {
                *count += 1;
            }
        }
        (sum, buckets)
    }
}

#[cfg(test)]
mod tests {
    use fairlead_domain::reference::Reference;
    use fairlead_plan::ledger::{Entry, Owner, OwnerKind, Watch};

    use super::*;
    use crate::platform::telemetry::MOST_OF_A_NAMESPACE;

    fn page(registry: &Registry) -> String {
        crate::platform::telemetry::page::text(registry).unwrap()
    }

    fn ledger(hosts: usize) -> Ledger {
        let owner = Owner {
            kind: OwnerKind::ClusterImageSetAvailability,
            namespace: None,
            name: "all".into(),
            uid: "u".into(),
        };
        let mut ledger = Ledger::new(owner);
        let now = Timestamp::now();
        for number in 0..hosts {
            let looked = [Some(now - Duration::from_mins(4)), Some(now - Duration::from_hours(48)), None];
            for (place, last_monitor) in looked.into_iter().enumerate() {
                let image = Reference::parse(&format!("R{number}.example/app:{place}")).unwrap();
                let status = if place == 1 { Availability::NotFound } else { Availability::Available };
                let watch = Watch { status, last_monitor, last_error: None, original: place != 2 };
                let unused_since = (place == 2).then_some(now);
                let entry = Entry { unused_since, watch: Some(watch.into()), ..Entry::default() };
                ledger.insert(image, entry);
            }
        }
        ledger
    }

    #[test]
    fn the_page_has_kuiks_names_while_this_replica_leads() {
        let mut registry = Registry::default();
        let config =
            "metrics: {imageLastMonitorAgeMinutes: {legacy: {bucketType: custom, custom: [1, 5, 60]}}}";
        let metrics = Metrics::register(&mut registry, &Config::parse(config).unwrap().config);
        assert!(!page(&registry).contains("kube_image_keeper"), "nothing is known yet");
        metrics.show(&"all".into(), &ledger(1), |_| "team");
        metrics.laps([("r0.example".into(), Duration::from_secs(90))]);
        metrics.looked("R0.example", "team", VerdictKind::NotFound);
        let text = page(&registry);
        let labels = |status, used, original| {
            format!(
                "kube_image_keeper_monitoring_images{{name=\"all\",registry=\"r0.example\",status=\"{status}\",used=\"{used}\",original=\"{original}\"}} 1\n"
            )
        };
        let age =
            |rest: &str| format!("kube_image_keeper_monitoring_image_last_monitor_age_minutes_{rest}\n");
        let of = "name=\"all\",registry=\"r0.example\"";
        for line in [
            labels("Available", "true", "true"),
            labels("NotFound", "true", "true"),
            labels("Available", "false", "false"),
            age(&format!("count{{{of}}} 2")),
            age(&format!("bucket{{le=\"1.0\",{of}}} 0")),
            age(&format!("bucket{{le=\"5.0\",{of}}} 1")),
            age(&format!("bucket{{le=\"60.0\",{of}}} 1")),
            age(&format!("bucket{{le=\"+Inf\",{of}}} 2")),
            "fairlead_watch_disappeared_images{name=\"all\"} 1\n".to_owned(),
            "fairlead_watch_lap_seconds{registry=\"r0.example\"} 90.0\n".to_owned(),
            "fairlead_watch_looks_total{registry=\"r0.example\",verdict=\"not-found\"} 1\n".to_owned(),
        ] {
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
        metrics.keep(|_| false);
        assert!(!page(&registry).contains("kube_image_keeper"), "the object is gone");
        metrics.show(&"all".into(), &ledger(1), |_| "team");
        metrics.rest();
        assert!(!page(&registry).contains("kube_image_keeper"), "another replica leads");
    }

    #[test]
    fn no_number_of_registries_makes_the_page_grow_without_bound() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry, &Config::default());
        metrics.show(&"all".into(), &ledger(MOST_OF_A_NAMESPACE + 50), |_| "team");
        let text = page(&registry);
        let lines = text.lines().filter(|line| line.starts_with("kube_image_keeper_monitoring_images{"));
        assert_eq!(lines.count(), (MOST_OF_A_NAMESPACE + 1) * 3);
        assert!(text.contains("registry=\"other\""));
    }
}
