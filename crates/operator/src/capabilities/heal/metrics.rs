//! What the metrics page says about healing, by the names that harbor-reef-operator's users know.
//!
//! Each repaired Pod has series of its own. They are bounded in number, and expire: what lasts is in the events and in
//! the log.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use fairlead_plan::heal::Repair;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::cluster::state::PodEntry;
use crate::controller::metrics::{labels, metrics};

/// Series with labels of their own; the others share one for each namespace.
const MOST: usize = 1000;
/// How long such a series is shown.
const SHOWN: SignedDuration = SignedDuration::from_hours(1);
const OTHER: &str = "other";
/// Namespaces with labels of their own in the histogram.
const MOST_NAMESPACES: usize = 200;

labels! {
    Patched {
        patched_kube_namespace: Arc<str>, patched_pod_name: Arc<str>, patched_container_name: Arc<str>,
        patched_image: Arc<str>
    }
    Failed { patched_kube_namespace: Arc<str>, patched_pod_name: Arc<str>, error_type }
    Took { patched_kube_namespace: Arc<str>, result }
}

metrics! {
    struct Families {
        patched: Family<Patched, Counter> =
            "pods_upstream_patched", "Containers of Pods that were given another image";
        errors: Family<Failed, Counter> =
            "reconcile_errors", "Pods that could not be patched";
    }
}

/// What the page says about healing.
#[derive(Debug, Clone)]
pub struct Metrics {
    families: Families,
    durations: Family<Took, Histogram, fn() -> Histogram>,
    shown: Arc<Mutex<Shown>>,
}

/// Series that are shown, the oldest first.
#[derive(Debug, Default)]
struct Shown {
    patched: VecDeque<(Timestamp, Patched)>,
    failed: VecDeque<(Timestamp, Failed)>,
    namespaces: std::collections::HashSet<Arc<str>>,
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let durations: Family<Took, Histogram, fn() -> Histogram> = Family::new_with_constructor(|| {
            Histogram::new([0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0])
        });
        registry.register(
            "reconcile_duration_seconds",
            "Time from the decision to heal a Pod to its patch",
            durations.clone(),
        );
        Self { families: Families::register_all(registry), durations, shown: Arc::default() }
    }

    pub(super) fn patched(&self, pod: &PodEntry, repair: &Repair, now: Timestamp) {
        for one in &repair.moves {
            let mut labels = Patched {
                patched_kube_namespace: pod.key.namespace.clone(),
                patched_pod_name: pod.key.name.clone(),
                patched_container_name: one.container.as_str().into(),
                patched_image: one.to.as_str().into(),
            };
            let patched = &mut self.shown.lock().patched;
            if !patched.iter().any(|(_, known)| *known == labels) {
                if patched.len() < MOST {
                    patched.push_back((now, labels.clone()));
                } else {
                    labels.patched_pod_name = OTHER.into();
                    labels.patched_container_name = OTHER.into();
                    labels.patched_image = OTHER.into();
                }
            }
            self.families.patched.get_or_create(&labels).inc();
        }
    }

    pub(super) fn failed(&self, pod: &PodEntry, now: Timestamp) {
        let mut labels = Failed {
            patched_kube_namespace: pod.key.namespace.clone(),
            patched_pod_name: pod.key.name.clone(),
            error_type: "patch_error",
        };
        let failed = &mut self.shown.lock().failed;
        if !failed.iter().any(|(_, known)| *known == labels) {
            if failed.len() < MOST {
                failed.push_back((now, labels.clone()));
            } else {
                labels.patched_pod_name = OTHER.into();
            }
        }
        self.families.errors.get_or_create(&labels).inc();
    }

    pub(super) fn took(&self, namespace: &Arc<str>, time: Duration) {
        let mut shown = self.shown.lock();
        let known = shown.namespaces.contains(namespace);
        let room = shown.namespaces.len() < MOST_NAMESPACES;
        let namespace = if known || room { namespace.clone() } else { OTHER.into() };
        shown.namespaces.insert(namespace.clone());
        drop(shown);
        let labels = Took { patched_kube_namespace: namespace, result: "completed" };
        self.durations.get_or_create(&labels).observe(time.as_secs_f64());
    }

    /// Another replica may heal from now on: what was shown of Pods goes.
    pub(super) fn rest(&self) {
        let Shown { patched, failed, .. } = &mut *self.shown.lock();
        patched.clear();
        failed.clear();
        self.families.patched.clear();
        self.families.errors.clear();
    }

    /// Takes series away that were shown for long enough.
    pub(super) fn expire(&self, now: Timestamp) {
        let Shown { patched, failed, .. } = &mut *self.shown.lock();
        let is_old = |since: Timestamp| now.duration_since(since) >= SHOWN;
        while let Some((_, labels)) = patched.pop_front_if(|(since, _)| is_old(*since)) {
            self.families.patched.remove(&labels);
        }
        while let Some((_, labels)) = failed.pop_front_if(|(since, _)| is_old(*since)) {
            self.families.errors.remove(&labels);
        }
    }
}

#[cfg(test)]
mod tests {
    use fairlead_plan::heal::Move;
    use serde_json::json;

    use super::*;
    use crate::cluster::state::{Key, PodListing, Pods};

    fn pod(namespace: &str, name: &str) -> Arc<PodEntry> {
        let pods = Pods::default();
        let pod = json!({"metadata": {"namespace": namespace, "name": name}});
        PodListing::new(pods.clone()).applied(&serde_json::from_value(pod).expect("a Pod"));
        pods.get(&Key { namespace: namespace.into(), name: name.into() }).expect("it is known")
    }

    fn repair() -> Repair {
        let (container, from, to) = ("app".to_owned(), "a.io/app".to_owned(), "b.io/app".to_owned());
        let moves = vec![Move { container, from, to, why: String::new() }];
        Repair { operations: Vec::new(), moves, at: String::new() }
    }

    fn lines(registry: &Registry, family: &str) -> Vec<String> {
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, registry).expect("a page");
        page.lines().filter(|line| line.starts_with(&format!("{family}{{"))).map(str::to_owned).collect()
    }

    #[test]
    fn series_of_pods_are_bounded_and_expire() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        let at = |seconds: i64| Timestamp::from_second(1_800_000_000 + seconds).expect("a time");
        for number in 0..MOST + 7 {
            let pod = pod("shop", &format!("web-{number}"));
            metrics.patched(&pod, &repair(), at(0));
            metrics.failed(&pod, at(0));
        }
        metrics.patched(&pod("shop", "web-1"), &repair(), at(1));
        let (patched, failed) = ("pods_upstream_patched_total", "reconcile_errors_total");
        assert_eq!((lines(&registry, patched).len(), lines(&registry, failed).len()), (MOST + 1, MOST + 1));
        let others = format!(
            "{patched}{{patched_kube_namespace=\"shop\",patched_pod_name=\"other\",patched_container_name=\"other\",\
             patched_image=\"other\"}} 7"
        );
        let own = format!(
            "{patched}{{patched_kube_namespace=\"shop\",patched_pod_name=\"web-1\",patched_container_name=\"app\",\
             patched_image=\"b.io/app\"}} 2"
        );
        for wanted in [others, own] {
            assert!(lines(&registry, patched).contains(&wanted), "{wanted}");
        }
        metrics.expire(at(3599));
        assert_eq!(lines(&registry, patched).len(), MOST + 1);
        metrics.expire(at(3600));
        assert_eq!(
            (lines(&registry, patched).len(), lines(&registry, failed).len()),
            (1, 1),
            "those of others"
        );
        metrics.patched(&pod("shop", "late"), &repair(), at(3601));
        assert_eq!(lines(&registry, patched).len(), 2, "there is room again");
        metrics.rest();
        assert_eq!((lines(&registry, patched).len(), lines(&registry, failed).len()), (0, 0));
    }

    #[test]
    fn times_are_told_by_namespace_and_result_and_namespaces_are_bounded() {
        let mut registry = Registry::default();
        let metrics = Metrics::register(&mut registry);
        for number in 0..MOST_NAMESPACES + 3 {
            metrics.took(&format!("n-{number}").into(), Duration::from_millis(20));
        }
        let counts = lines(&registry, "reconcile_duration_seconds_count");
        assert_eq!(counts.len(), MOST_NAMESPACES + 1);
        let others =
            "reconcile_duration_seconds_count{patched_kube_namespace=\"other\",result=\"completed\"} 3";
        assert!(counts.contains(&others.to_owned()), "{counts:?}");
    }
}
