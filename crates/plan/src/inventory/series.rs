//! Which images have a series of their own on the metrics page: bounded, whatever the cluster is like.
//!
//! Namespaces share the room evenly: one with many workloads does not push out those of others. Which of a namespace's
//! are shown follows from their labels alone, so series stay, whatever order Pods come in.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use super::{PodView, Row, Source};

/// Series in all.
pub const MOST_SERIES: usize = 5000;

/// Bytes of a label. References have a few hundred at most; what a Pod names as its image need not be one, and name and
/// kind of its owner may have any length.
const LONGEST_LABEL: usize = 512;

/// The labels of a series.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Info<'a> {
    namespace: &'a str,
    /// Kind and name of the workload; empty where metrics are by namespace.
    workload_kind: &'a str,
    workload: &'a str,
    /// What was asked for.
    image: Cow<'a, str>,
    /// In the form of an `imageID`; empty where no digest is known.
    image_id: Cow<'a, str>,
    /// Where the digest is known from.
    source: Source,
}

impl<'a> Info<'a> {
    fn new(pod: &PodView<'a>, row: &Row<'a>, by_workload: bool) -> Self {
        let (kind, workload) = if by_workload { pod.workload() } else { ("", "") };
        Self {
            namespace: pod.namespace,
            workload_kind: shortened(kind),
            workload: shortened(workload),
            image: short(row.requested.clone()),
            image_id: short(row.image_id().unwrap_or_default()),
            source: row.source,
        }
    }

    fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        Hash::hash(self, &mut hasher);
        hasher.finish()
    }
}

/// A series as it is kept between two passes, its labels in one text: there are thousands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShownSeries {
    text: Box<str>,
    /// Where each label but the last ends.
    ends: [u16; 4],
    pub source: Source,
    pub pods: u32,
}

impl ShownSeries {
    fn new(info: &Info<'_>, pods: u32) -> Self {
        let labels = [info.namespace, info.workload_kind, info.workload, &info.image, &info.image_id];
        let mut end = 0;
        let ends = [0, 1, 2, 3].map(|number: usize| {
            end += labels.get(number).map_or(0, |label| label.len());
            u16::try_from(end).unwrap_or(u16::MAX)
        });
        Self { text: labels.concat().into(), ends, source: info.source, pods }
    }

    /// Namespace, kind and name of the workload (empty where metrics are by namespace), what was asked for, and what
    /// runs in the form of an `imageID` (empty where no digest is known).
    pub fn labels(&self) -> [&str; 5] {
        let [namespace, kind, workload, image] = self.ends.map(usize::from);
        let part = |from, to| self.text.get(from..to).unwrap_or_default();
        [
            part(0, namespace),
            part(namespace, kind),
            part(kind, workload),
            part(workload, image),
            part(image, self.text.len()),
        ]
    }
}

fn short(text: Cow<'_, str>) -> Cow<'_, str> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(shortened(text)),
        Cow::Owned(mut text) => {
            text.truncate(shortened(&text).len());
            Cow::Owned(text)
        }
    }
}

fn shortened(text: &str) -> &str {
    text.get(..text.floor_char_boundary(LONGEST_LABEL)).unwrap_or_default()
}

/// The first series of a namespace, with the number of Pods of each, and hashes of the others.
#[derive(Debug, Clone, Default)]
struct OfNamespace<'a> {
    pods: BTreeMap<Info<'a>, u32>,
    others: HashSet<u64>,
}

impl<'a> OfNamespace<'a> {
    fn add(&mut self, info: Info<'a>) {
        if let Some(pods) = self.pods.get_mut(&info) {
            *pods = pods.saturating_add(1);
        } else if self.pods.len() < MOST_SERIES {
            self.pods.insert(info, 1);
        } else if self.pods.last_key_value().is_some_and(|(last, _)| info < *last) {
            self.pods.insert(info, 1);
            if let Some((last, _)) = self.pods.pop_last() {
                self.others.insert(last.hash());
            }
        } else {
            self.others.insert(info.hash());
        }
    }

    fn len(&self) -> usize {
        self.pods.len() + self.others.len()
    }
}

/// What there is to show, counted.
#[derive(Debug, Clone, Default)]
pub struct Series<'a>(BTreeMap<&'a str, OfNamespace<'a>>);

impl<'a> Series<'a> {
    /// Counts a Pod for each of its images, once.
    pub fn add(&mut self, pod: &PodView<'a>, rows: &[Row<'a>], by_workload: bool) {
        let mut infos: Vec<_> = rows.iter().map(|row| Info::new(pod, row, by_workload)).collect();
        infos.sort_unstable();
        infos.dedup();
        let namespace = self.0.entry(pod.namespace).or_default();
        for info in infos {
            namespace.add(info);
        }
    }

    /// The series to show, each with its number of Pods, and how many are left out. Each namespace has the same share
    /// of the room; what one does not need goes to the others.
    pub fn shown(self, most: usize) -> (Vec<ShownSeries>, usize) {
        let all: usize = self.0.values().map(OfNamespace::len).sum();
        let mut by_size: Vec<_> = self.0.into_iter().collect();
        by_size.sort_by(|(one, of), (other, others)| (of.len(), one).cmp(&(others.len(), other)));
        let (mut room, mut namespaces) = (most, by_size.len());
        let mut shown = Vec::with_capacity(all.min(most));
        for (_, of) in by_size {
            let share = of.pods.len().min(room / namespaces.max(1));
            room -= share;
            namespaces -= 1;
            shown.extend(of.pods.iter().take(share).map(|(info, pods)| ShownSeries::new(info, *pods)));
        }
        let omitted = all - shown.len();
        (shown, omitted)
    }
}
