//! Images in use by what they have in common: "where does this digest run?"

use std::collections::{BTreeMap, BTreeSet};

use fairlead_plan::inventory::State;
use serde::Serialize;

use super::By;
use super::report::ImageReport;

/// What is known of one image, digest, node or Pod.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Group {
    /// What the images have in common.
    pub(super) name: String,
    /// As they were asked for.
    pub(super) images: BTreeSet<String>,
    /// Of what runs, as far as it is known.
    pub(super) digests: BTreeSet<String>,
    /// With their namespaces.
    pub(super) pods: BTreeSet<String>,
    pub(super) nodes: BTreeSet<String>,
    pub(super) workloads: BTreeSet<String>,
    pub(super) states: BTreeMap<State, usize>,
}

pub(super) fn groups(images: &[ImageReport], by: By) -> Vec<Group> {
    let mut groups: BTreeMap<String, Group> = BTreeMap::new();
    for image in images {
        let pod = format!("{}/{}", image.namespace, image.pod);
        let name = match by {
            By::Pod => pod.clone(),
            By::Image => image.requested.clone(),
            By::Node => image.node.clone().unwrap_or_default(),
            By::Digest => image.content().unwrap_or_else(|| "unknown".to_owned()),
        };
        let group = groups.entry(name).or_default();
        group.images.insert(image.requested.clone());
        group.digests.extend(image.content());
        group.pods.insert(pod);
        group.nodes.extend(image.node.clone());
        let workload = &image.workload;
        group.workloads.insert(format!("{}/{}/{}", image.namespace, workload.kind, workload.name));
        *group.states.entry(image.state).or_default() += 1;
    }
    groups.into_iter().map(|(name, group)| Group { name, ..group }).collect()
}
