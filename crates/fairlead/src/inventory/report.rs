//! What is known of images in use, as a value: for tables, JSON and bills of materials.

use std::sync::Arc;

use anyhow::{Context, Result};
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;
use fairlead_operator::capabilities::account::observe::{Platforms, is_running, view};
use fairlead_operator::cluster::state::PodEntry;
use fairlead_plan::inventory::{
    Contents, Current, Drift, DriftFindings, Drifts, FindingKind, Knowledge, Places, PodRows, PodView,
    Reported, Resolved, Role, Row, SeenDigest, Source, State, Suspects, rows,
};
use serde::Serialize;

use super::By;
use super::groups::{Group, groups};
use super::registries::{Answers, Questions};

/// The version of the JSON. It changes when something is taken away or gets another meaning.
const VERSION: u32 = 1;

#[derive(Debug, Default)]
pub(super) struct Filter<'a> {
    pub(super) text: Option<&'a str>,
    pub(super) namespace: Option<&'a str>,
    pub(super) pod: Option<&'a str>,
    pub(super) node: Option<&'a str>,
    pub(super) digest: Option<&'a Digest>,
}

/// What is wanted to be known beside what states take.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Depth {
    /// What is behind every digest.
    pub(super) details: bool,
    /// What has drifted, and with it which digests tags name now.
    pub(super) drift: bool,
    pub(super) tags: bool,
}

impl Filter<'_> {
    fn wants_pod(&self, pod: &PodView<'_>) -> bool {
        self.namespace.is_none_or(|namespace| namespace == pod.namespace)
            && self.pod.is_none_or(|name| name == pod.name)
            && self.node.is_none_or(|node| pod.node == Some(node))
    }

    /// An image is named as its author wrote it, and in full.
    fn wants(&self, row: &Row<'_>) -> bool {
        let named = |text: &str| {
            let reported = row.reported.as_ref().map_or("", |(text, _)| text);
            let expected = row.expected.as_ref().map(|expected| expected.digest.to_string());
            let written = [&row.requested, row.routed, reported, expected.as_deref().unwrap_or_default()];
            let in_full = |image: &&str| {
                Reference::parse(image)
                    .is_ok_and(|image| image.forms().iter().any(|form| form.contains(text)))
            };
            written.iter().any(|found| found.contains(text)) || written.iter().take(2).any(in_full)
        };
        self.text.is_none_or(named)
    }

    fn wants_digest(&self, pod: &PodView<'_>, row: &Row<'_>, contents: &Contents) -> bool {
        self.digest.is_none_or(|digest| row.has(digest, pod.platform, contents))
    }
}

/// All that was found.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    version: u32,
    pub(super) images: Vec<ImageReport>,
    pub(super) findings: Vec<FindingReport>,
    pub(super) drift: Vec<Drift>,
    /// What is not known, and why.
    pub(super) warnings: Vec<String>,
}

/// One image of one Pod; of an image volume one mount.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ImageReport {
    pub(super) namespace: String,
    pub(super) pod: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) node: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) platform: Option<String>,
    pub(super) workload: Workload,
    pub(super) role: Role,
    /// Of the container, or of the volume.
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) mount: Option<Mount>,
    pub(super) requested: String,
    pub(super) routed: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) expected: Option<ExpectedReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reported: Option<ReportedReport>,
    pub(super) state: State,
    pub(super) reason: String,
    /// Where the digest is known from.
    pub(super) source: Source,
    /// Of the manifest or index that runs: as reported, else as expected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) digest: Option<Digest>,
    /// The image in the form of an `imageID`: as reported, else as expected.
    #[serde(rename = "imageID", skip_serializing_if = "Option::is_none")]
    pub(super) image_id: Option<String>,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct Workload {
    pub(super) kind: String,
    pub(super) name: String,
}

#[derive(Debug, Serialize)]
pub(super) struct Mount {
    pub(super) container: String,
    pub(super) path: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ExpectedReport {
    pub(super) digest: Digest,
    /// When it was resolved.
    pub(super) resolved: Resolved,
    /// `index` or `image`: what it is of, where that was read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<&'static str>,
    /// Of the image that the index has for the node's platform.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) on_platform: Option<Digest>,
}

#[derive(Debug, Serialize)]
pub(super) struct ReportedReport {
    /// As the kubelet has it.
    pub(super) text: String,
    /// `manifest`, `id` or `unreadable`: what kind of digest it is.
    pub(super) class: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) digest: Option<Digest>,
}

#[derive(Debug, Serialize)]
pub(super) struct FindingReport {
    pub(super) namespace: String,
    pub(super) pod: String,
    pub(super) kind: FindingKind,
    pub(super) message: String,
}

impl Report {
    /// What is known by now, and what registries have to be asked in order to know more.
    pub(super) fn of(
        pods: &[Arc<PodEntry>],
        platforms: &Platforms,
        filter: &Filter<'_>,
        depth: Depth,
        answers: &Answers,
    ) -> (Self, Questions) {
        let contents = &answers.contents;
        let given_up = |digest: &Digest| answers.given_up(digest);
        let now = |_: &PodView<'_>, image: &str| answers.now(image);
        let known = Knowledge { now: &now, ..Knowledge::of_pods(contents, &given_up) };
        let mut questions = Questions::default();
        let mut report = Self {
            version: VERSION,
            images: Vec::new(),
            findings: Vec::new(),
            drift: Vec::new(),
            warnings: answers.problems(),
        };
        let mut shown: Vec<(PodView<'_>, PodRows<'_>)> = Vec::new();
        for pod in pods.iter().filter(|pod| !pod.has_ended()) {
            // One look cannot tell whether a container was started again since something was reported.
            let view = view(pod, platforms, |_| false);
            if !filter.wants_pod(&view) {
                continue;
            }
            // As in the operator: a Pod that goes, and one that only pulls, are no replicas.
            let depth = if is_running(pod) { depth } else { Depth { drift: false, tags: false, ..depth } };
            let mut found = rows(&view, &known);
            found.rows.retain(|row| filter.wants(row));
            for row in &found.rows {
                ask_about(&mut questions, &view, row, contents, filter.digest.is_some(), depth);
            }
            found.rows.retain(|row| filter.wants_digest(&view, row, contents));
            // Of a Pod with none of the images that are asked for nothing is said.
            let findings = std::mem::take(&mut found.findings);
            if !found.rows.is_empty() {
                report.findings.extend(findings.into_iter().map(|finding| FindingReport {
                    namespace: pod.key.namespace.to_string(),
                    pod: pod.key.name.to_string(),
                    kind: finding.kind,
                    message: finding.text,
                }));
            }
            report.images.extend(found.rows.iter().map(|row| ImageReport::of(&view, row, contents)));
            if depth.drift {
                shown.push((view, found));
            }
        }
        report.add_drift(&shown, answers, &mut questions);
        (report, questions)
    }

    fn add_drift(
        &mut self,
        shown: &[(PodView<'_>, PodRows<'_>)],
        answers: &Answers,
        questions: &mut Questions,
    ) {
        let given_up = |digest: &Digest| answers.given_up(digest);
        // They were asked after the Pods were read.
        let seen = |digest| SeenDigest { digest, at: i64::MAX };
        let now = |_: &str, image: &str| answers.now(image).map(seen);
        let contents = &answers.contents;
        let mut all = Places::default();
        for (view, found) in shown {
            found.rows.iter().for_each(|row| all.add(view, row));
        }
        let compared = all.compare(|image| answers.now(image), contents);
        let places = |namespace: &str, image: &str| compared.of(namespace, image);
        let current = Current { contents, given_up: &given_up, now: &now, places: &places };
        let (mut suspects, mut drifts) = (Suspects::default(), Drifts::default());
        for (view, found) in shown {
            found.rows.iter().for_each(|row| suspects.add(view, row, &current));
        }
        for (view, found) in shown {
            found.rows.iter().for_each(|row| drifts.add(view, row, &suspects));
        }
        let DriftFindings { drifts, reads, mut undecided } = drifts.finish(&current);
        self.drift = drifts;
        for read in reads {
            questions.digest(read.digest, &read.image);
        }
        for (digest, place) in &compared.reads {
            questions.digest(*digest, place.as_str());
        }
        undecided.extend(compared.undecided.iter().cloned());
        if let Some(first) = undecided.first() {
            let more = match undecided.len() - 1 {
                0 => String::new(),
                more => format!(", and {more} more"),
            };
            self.warnings.push(format!("not known: {first}{more}"));
        }
    }

    /// Whether something is not what is expected.
    pub(super) fn is_troubled(&self) -> bool {
        self.images.iter().any(|image| image.state == State::Differing)
    }

    /// With `only_drift` without the images; else with what they have in common, unless that is the Pod.
    pub(super) fn json(&self, only_drift: bool, by: By) -> Result<String> {
        #[derive(Serialize)]
        struct DriftReport<'a> {
            version: u32,
            drift: &'a [Drift],
            warnings: &'a [String],
        }
        #[derive(Serialize)]
        struct Grouped<'a> {
            #[serde(flatten)]
            report: &'a Report,
            groups: Vec<Group>,
        }
        let drift = DriftReport { version: self.version, drift: &self.drift, warnings: &self.warnings };
        let text = if only_drift {
            serde_json::to_string_pretty(&drift)
        } else if by == By::Pod {
            serde_json::to_string_pretty(self)
        } else {
            serde_json::to_string_pretty(&Grouped { report: self, groups: groups(&self.images, by) })
        };
        Ok(text.context("cannot write the report")? + "\n")
    }
}

/// What registries would have to say about an image.
fn ask_about(
    questions: &mut Questions,
    pod: &PodView<'_>,
    row: &Row<'_>,
    contents: &Contents,
    by_digest: bool,
    depth: Depth,
) {
    let mut unread = row.reads.clone();
    if depth.details || by_digest {
        unread.extend(row.unread(pod.platform, contents, by_digest));
    }
    let reported = match &row.reported {
        Some((_, Reported::Manifest { repository, digest })) => {
            repository.as_ref().map(|repository| (repository, *digest))
        }
        _ => None,
    };
    for digest in unread {
        questions.digest(digest, row.routed);
        // What runs may be from elsewhere.
        if let Some((repository, of)) = reported
            && of == digest
        {
            questions.digest(digest, repository.as_str());
        }
    }
    if row.asks_tag {
        questions.tag(row.routed);
    }
    if depth.tags {
        questions.tag(&row.requested);
        row.places().iter().for_each(|place| questions.tag(place.as_str()));
        for place in &row.differs {
            questions.tag(&place.image);
            questions.tag(row.routed);
        }
    }
}

impl ImageReport {
    fn of(view: &PodView<'_>, row: &Row<'_>, contents: &Contents) -> Self {
        let (kind, name) = view.workload();
        Self {
            namespace: view.namespace.to_owned(),
            pod: view.name.to_owned(),
            node: view.node.map(str::to_owned),
            platform: view.platform.map(ToString::to_string),
            workload: Workload { kind: kind.to_owned(), name: name.to_owned() },
            role: row.role,
            name: row.name.to_owned(),
            mount: row
                .mount
                .map(|mount| Mount { container: mount.container.to_owned(), path: mount.path.to_owned() }),
            requested: row.requested.clone().into_owned(),
            routed: row.routed.to_owned(),
            expected: row.expected.as_ref().map(|expected| ExpectedReport {
                digest: expected.digest,
                resolved: expected.resolved,
                kind: row.expected_kind(contents),
                on_platform: row.expected_on_platform(view.platform, contents),
            }),
            reported: row.reported.as_ref().map(|(text, reported)| ReportedReport {
                text: (*text).to_owned(),
                class: match reported {
                    Reported::Manifest { .. } => "manifest",
                    Reported::Id(_) => "id",
                    Reported::Unreadable => "unreadable",
                },
                digest: reported.digest(),
            }),
            state: row.state,
            reason: row.reason.clone().into_owned(),
            source: row.source,
            digest: row.digest(),
            image_id: row.image_id().map(std::borrow::Cow::into_owned),
        }
    }

    /// The digest to go by, or the runtime's own name of what runs.
    pub(super) fn content(&self) -> Option<String> {
        let reported = self.reported.as_ref().and_then(|reported| reported.digest);
        let digest = self.digest.map(|digest| digest.to_string());
        digest.or_else(|| reported.map(|id| format!("image ID {id}")))
    }

    /// The container, or the volume with where it is mounted.
    pub(super) fn used_as(&self) -> String {
        match &self.mount {
            Some(Mount { container, path }) => format!("volume {} ({container}:{path})", self.name),
            None => format!("{} {}", self.role.as_str(), self.name),
        }
    }
}
