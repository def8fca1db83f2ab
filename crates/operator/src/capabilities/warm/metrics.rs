//! What the metrics page says about warming, by the names that Drop's dashboard knows.

use std::collections::HashSet;
use std::sync::Arc;

use fairlead_plan::warm::{Event, EventKind, Figures, Warming};
use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::controller::metrics::{labels, metrics};

/// Images, and nodes, that have labels of their own; the others share one.
const MOST_IMAGES: usize = 100;
const MOST_NODES: usize = 50;
const OTHER: &str = "other";

labels! {
    OnNode { image: Arc<str>, node: Arc<str> }
    OfImage { image: Arc<str> }
    OfObject { cachedimage: Arc<str> }
    OfObjectImage { cachedimage: Arc<str>, image: Arc<str> }
    Reconciled { controller, result }
}

metrics! {
    struct Families {
        cached: Family<OnNode, Counter> =
            "drop_images_cached", "Pulls that succeeded";
        errors: Family<OnNode, Counter> =
            "drop_pull_errors", "Pulls that failed";
        active: Gauge =
            "drop_active_pulls", "Pull Pods that are at work";
        targeted: Family<OfObject, Gauge> =
            "drop_nodes_targeted", "Nodes that should hold an image";
        holding: Family<OfObject, Gauge> =
            "drop_nodes_cached", "Nodes that should hold an image and do";
        failures: Family<OfObjectImage, Gauge> =
            "drop_consecutive_failures", "The most failures in a row of an image on one node";
        reconciled: Family<Reconciled, Counter> =
            "drop_reconcile", "Rounds of the controllers of warming";
    }
}

/// What the page says about warming.
#[derive(Debug, Clone)]
pub struct Metrics {
    families: Families,
    durations: Family<OfImage, Histogram, fn() -> Histogram>,
    named: Arc<Mutex<Named>>,
}

/// Values of labels that are in use.
#[derive(Debug, Default)]
struct Named {
    images: HashSet<Arc<str>>,
    nodes: HashSet<Arc<str>>,
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let durations: Family<OfImage, Histogram, fn() -> Histogram> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(1.0, 2.0, 12)));
        registry.register(
            "drop_pull_duration_seconds",
            "Time from the creation of a pull Pod to the end of its pull",
            durations.clone(),
        );
        Self { families: Families::register_all(registry), durations, named: Arc::default() }
    }

    /// Counts a pull that ended. `image` is without tag.
    pub(super) fn count(&self, event: &Event, image: Option<&str>) {
        let (image, node) = {
            let Named { images, nodes } = &mut *self.named.lock();
            (label(images, image.unwrap_or(OTHER), MOST_IMAGES), label(nodes, &event.node, MOST_NODES))
        };
        match event.kind {
            EventKind::Started => {}
            EventKind::Succeeded { took } => {
                let labels = OfImage { image: image.clone() };
                self.durations.get_or_create(&labels).observe(took.as_secs_f64());
                self.families.cached.get_or_create(&OnNode { image, node }).inc();
            }
            EventKind::Failed(_) => _ = self.families.errors.get_or_create(&OnNode { image, node }).inc(),
        }
    }

    /// Shows how all images stand.
    pub(super) fn show(&self, warming: &Warming) {
        self.families.active.set(number(warming.active_pulls(Timestamp::now())));
        self.show_figures(warming.figures());
    }

    /// The first objects have values of their own. The others share one: sums, and the most failures of any.
    fn show_figures<'a>(&self, mut figures: impl Iterator<Item = Figures<'a>>) {
        let Families { targeted, holding, failures, .. } = &self.families;
        targeted.clear();
        holding.clear();
        failures.clear();
        let show = |cachedimage: &Arc<str>, image: Arc<str>, figures: &Figures<'_>| {
            let cachedimage = cachedimage.clone();
            let labels = OfObject { cachedimage: cachedimage.clone() };
            // An object may have the name that stands for the others.
            targeted.get_or_create(&labels).inc_by(number(figures.targeted));
            holding.get_or_create(&labels).inc_by(number(figures.ready));
            failures.get_or_create(&OfObjectImage { cachedimage, image }).set(i64::from(figures.failures));
        };
        for one in figures.by_ref().take(MOST_IMAGES) {
            show(one.name, one.image.into(), &one);
        }
        let others = figures.reduce(|sum, one| Figures {
            targeted: sum.targeted + one.targeted,
            ready: sum.ready + one.ready,
            failures: sum.failures.max(one.failures),
            ..sum
        });
        if let Some(others) = others {
            show(&OTHER.into(), OTHER.into(), &others);
        }
    }

    /// Counts a round of a controller.
    pub(super) fn reconciled(&self, controller: &'static str, succeeded: bool) {
        let result = if succeeded { "success" } else { "error" };
        self.families.reconciled.get_or_create(&Reconciled { controller, result }).inc();
    }

    /// This replica does not lead any more.
    pub(super) fn rest(&self) {
        let Families { active, targeted, holding, failures, .. } = &self.families;
        active.set(0);
        targeted.clear();
        holding.clear();
        failures.clear();
    }
}

/// A value of a label: itself while there is room for it.
fn label(known: &mut HashSet<Arc<str>>, value: &str, most: usize) -> Arc<str> {
    if let Some(known) = known.get(value) {
        return known.clone();
    }
    if known.len() >= most {
        return OTHER.into();
    }
    let value: Arc<str> = value.into();
    known.insert(value.clone());
    value
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_beyond_the_limit_share_one_value() {
        let mut known = HashSet::new();
        let values: Vec<_> = ["a", "b", "c", "a"].map(|value| label(&mut known, value, 2)).into();
        assert_eq!(values.iter().map(|value| &**value).collect::<Vec<_>>(), ["a", "b", OTHER, "a"]);
    }

    #[test]
    fn objects_beyond_the_limit_share_one_series() {
        let mut page = Registry::default();
        let metrics = Metrics::register(&mut page);
        let names: Vec<Arc<str>> = (0..MOST_IMAGES + 2).map(|number| format!("i{number}").into()).collect();
        let figures = || {
            names.iter().zip(0..).map(|(name, failures)| Figures {
                name,
                image: "r.io/a",
                targeted: 3,
                ready: 2,
                failures,
            })
        };
        let shown = |most: usize| {
            metrics.show_figures(figures().take(most));
            let mut text = String::new();
            prometheus_client::encoding::text::encode(&mut text, &page).unwrap();
            text
        };
        for line in [
            "drop_nodes_targeted{cachedimage=\"i99\"} 3\n",
            "drop_nodes_targeted{cachedimage=\"other\"} 6\n",
            "drop_nodes_cached{cachedimage=\"other\"} 4\n",
            "drop_consecutive_failures{cachedimage=\"i99\",image=\"r.io/a\"} 99\n",
            "drop_consecutive_failures{cachedimage=\"other\",image=\"other\"} 101\n",
        ] {
            let text = shown(names.len());
            assert!(text.contains(line), "{line} is not in {text}");
        }
        assert!(!shown(MOST_IMAGES).contains(OTHER), "they are gone");
    }
}
