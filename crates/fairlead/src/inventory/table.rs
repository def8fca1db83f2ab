//! The inventory for people.

use std::collections::BTreeSet;

use fairlead_plan::inventory::State;

use super::By;
use super::groups::groups;
use super::report::{ImageReport, Report};
use crate::output::{columns, line};

/// Characters of a digest that tell it apart for people; JSON has all of them.
const DIGEST: usize = 19;

/// Nodes of a group that are named.
const MOST_NODES: usize = 5;

pub(super) fn rows(report: &Report, by: By) -> String {
    if report.images.is_empty() {
        return "no image is in use that is asked for\n".to_owned();
    }
    let mut text = String::new();
    match by {
        By::Pod => by_pod(report, &mut text),
        By::Node => by_node(report, &mut text),
        By::Image | By::Digest => grouped(report, &mut text, by),
    }
    for finding in &report.findings {
        line(&mut text, 0, &format!("{}/{}: {}", finding.namespace, finding.pod, finding.message));
    }
    text
}

fn short(digest: Option<impl ToString>) -> String {
    digest.map_or_else(|| "-".to_owned(), |digest| digest.to_string().chars().take(DIGEST).collect())
}

fn cells(image: &ImageReport) -> [String; 6] {
    let routed = if image.routed == image.requested { "-".to_owned() } else { image.routed.clone() };
    let expected = image.expected.as_ref().map(|expected| expected.digest);
    let reported = image.reported.as_ref().map(|reported| match reported.digest {
        Some(digest) => digest.to_string(),
        None => reported.text.clone(),
    });
    let state = match image.state {
        State::Matching => image.state.as_str().to_owned(),
        State::Differing | State::Unknown => format!("{}: {}", image.state.as_str(), image.reason),
    };
    [image.used_as(), image.requested.clone(), routed, short(expected), short(reported), state]
}

fn by_pod(report: &Report, text: &mut String) {
    let mut rows = vec![
        ["NAMESPACE", "POD", "NODE", "USED AS", "REQUESTED", "ROUTED", "EXPECTED", "REPORTED", "STATE"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(report.images.iter().map(|image| {
        let node = image.node.clone().unwrap_or_else(|| "-".to_owned());
        let mut row = vec![image.namespace.clone(), image.pod.clone(), node];
        row.extend(cells(image));
        row
    }));
    columns(text, 0, &rows);
}

fn by_node(report: &Report, text: &mut String) {
    let mut rows = vec![
        ["NODE", "POD", "USED AS", "REQUESTED", "ROUTED", "EXPECTED", "REPORTED", "STATE"]
            .map(str::to_owned)
            .to_vec(),
    ];
    let mut images: Vec<_> = report.images.iter().collect();
    images.sort_by(|one, other| one.node.cmp(&other.node));
    rows.extend(images.into_iter().map(|image| {
        let node = image.node.clone().unwrap_or_else(|| "(none yet)".to_owned());
        let mut row = vec![node, format!("{}/{}", image.namespace, image.pod)];
        row.extend(cells(image));
        row
    }));
    columns(text, 0, &rows);
}

fn grouped(report: &Report, text: &mut String, by: By) {
    let (title, other) = if by == By::Image { ("IMAGE", "DIGESTS") } else { ("DIGEST", "IMAGES") };
    let mut rows = vec![[title, other, "PODS", "NODES", "STATE", "WORKLOADS"].map(str::to_owned).to_vec()];
    rows.extend(groups(&report.images, by).into_iter().map(|group| {
        let states: Vec<_> =
            group.states.iter().map(|(state, count)| format!("{count} {}", state.as_str())).collect();
        let joined = |texts: BTreeSet<String>| texts.into_iter().collect::<Vec<_>>().join(", ");
        let others = if by == By::Image {
            let digests: BTreeSet<_> = group.digests.iter().map(|digest| short(Some(digest))).collect();
            if digests.is_empty() { "-".to_owned() } else { joined(digests) }
        } else {
            joined(group.images)
        };
        let more = group.nodes.len().saturating_sub(MOST_NODES);
        let nodes = joined(group.nodes.into_iter().take(MOST_NODES).collect());
        let nodes = if more > 0 { format!("{nodes} and {more} more") } else { nodes };
        vec![
            group.name,
            others,
            group.pods.len().to_string(),
            nodes,
            states.join(", "),
            joined(group.workloads),
        ]
    }));
    columns(text, 0, &rows);
}

pub(super) fn drift(report: &Report) -> String {
    if report.drift.is_empty() {
        return "no image has drifted, as far as is known\n".to_owned();
    }
    let mut text = String::new();
    let mut rows = vec![["DRIFT", "NAMESPACE", "WORKLOAD", "IMAGE OF", "IMAGE", "WHAT"].map(str::to_owned)];
    rows.extend(report.drift.iter().map(|drift| {
        [
            drift.kind.as_str().to_owned(),
            drift.namespace.clone(),
            format!("{}/{}", drift.workload_kind, drift.workload),
            drift.image_of.clone(),
            drift.image.clone(),
            drift.message.clone(),
        ]
    }));
    columns(&mut text, 0, &rows);
    text
}
