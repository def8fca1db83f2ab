//! The explanation as a value: what the table shows and what programs read. Its JSON is documented and stays as it is.

use fairlead_plan::pod_record::{Difference, Route};
use serde::Serialize;

use super::subject::{Role, Subject};

/// Everything that was found out.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Explanation {
    pub(crate) images: Vec<ImageReport>,
    /// Policies and other manifests that could not be used.
    pub(crate) broken: Vec<Broken>,
    /// Whatever else may make the explanation differ from what the operator does.
    pub(crate) warnings: Vec<String>,
}

/// One image of one Pod.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ImageReport {
    pub(crate) pod: PodName,
    pub(crate) role: Role,
    /// Of the container or volume.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) name: String,
    /// As the Pod names it now.
    pub(crate) image: String,
    /// What alternatives are looked for: the image, or what the Pod asked for before it was rewritten.
    pub(crate) asked: String,
    /// The same, normalised.
    #[serde(skip)]
    pub(crate) original: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pull_policy: Option<&'static str>,
    /// Why no alternatives are looked for at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) not_routed: Option<String>,
    pub(crate) alternatives: Vec<AlternativeReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) choice: Option<Choice>,
    /// The digest that the tag is held to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pinned: Option<PinReport>,
    /// Places that hold another digest than the one that is used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) differs: Vec<Difference>,
    /// Policies that are not about this image, and why.
    pub(crate) passed_over: Vec<PassedOver>,
    /// What else was left out of the list, and why.
    pub(crate) notes: Vec<String>,
    /// How many places come after those that are tried.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) dropped: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) record: Option<RecordReport>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct PodName {
    /// What it was taken from: a Pod, a workload, or nothing for a bare image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kind: Option<String>,
    pub(crate) namespace: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// File and line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) place: Option<String>,
    #[serde(skip)]
    pub(crate) title: String,
}

impl From<&Subject> for PodName {
    fn from(subject: &Subject) -> Self {
        Self {
            kind: subject.kind.clone(),
            namespace: subject.namespace.clone(),
            name: subject.name.clone(),
            place: subject.place.clone(),
            title: subject.to_string(),
        }
    }
}

/// One place to take the image from.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct AlternativeReport {
    pub(crate) image: String,
    pub(crate) from: Source,
    /// Others that offer the same place, later in the order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) also_from: Vec<Source>,
    pub(crate) availability: Availability,
    pub(crate) chosen: bool,
}

/// Who offers a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", tag = "kind")]
pub(crate) enum Source {
    Original,
    Mirror { policy: String, entry: String, copy_of: String },
    Upstream { policy: String, entry: String },
}

/// What asking the registry gave.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Availability {
    /// As `fairlead probe` names them, or `not-asked`.
    pub(crate) verdict: &'static str,
    /// What the verdict counts as where that is something else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) counts_as: Option<&'static str>,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) reason: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) milliseconds: Option<u64>,
    /// Who was asked as.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) credentials: Option<String>,
    /// The operator may get another answer, because it has Secrets that this command could not read.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) may_differ: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) caveats: Vec<String>,
}

impl Availability {
    pub(crate) fn not_asked() -> Self {
        Self {
            verdict: "not-asked",
            counts_as: None,
            reason: String::new(),
            digest: None,
            milliseconds: None,
            credentials: None,
            may_differ: false,
            caveats: Vec::new(),
        }
    }
}

impl Source {
    pub(crate) fn is_same_entry(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

/// The policy and its entry.
impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Original => f.write_str("original"),
            Self::Mirror { policy, entry, .. } | Self::Upstream { policy, entry } => {
                write!(f, "{policy}, {entry}")
            }
        }
    }
}

/// What would be done with the image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Choice {
    pub(crate) image: String,
    /// Whether that is another image than the one asked for.
    pub(crate) rewritten: bool,
    pub(crate) why: String,
    /// Whether something was available; none where nothing was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) available: Option<bool>,
}

/// What a tag is pinned to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct PinReport {
    pub(crate) digest: String,
    /// What says so.
    pub(crate) by: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct PassedOver {
    pub(crate) policy: String,
    pub(crate) why: String,
    /// The reason is the Pod, so it holds for all of its images.
    #[serde(skip)]
    pub(crate) for_pod: bool,
}

/// What the annotations of a Pod say about an image.
#[derive(Debug, Serialize)]
pub(crate) struct RecordReport {
    /// The annotation that says so.
    pub(crate) annotation: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) entry: Option<Route>,
    pub(crate) believable: bool,
    /// What follows from it, in words.
    pub(crate) meaning: String,
}

/// An object that was left out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Broken {
    /// File and line; none for objects of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) place: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) object: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) field: Option<String>,
    pub(crate) message: String,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for part in [&self.place, &self.object, &self.field].into_iter().flatten() {
            write!(f, "{part}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl Explanation {
    /// Whether some image can be had from nowhere, as far as registries were asked.
    pub(crate) fn has_unavailable(&self) -> bool {
        self.images
            .iter()
            .any(|image| image.choice.as_ref().is_some_and(|choice| choice.available == Some(false)))
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes the field by reference")]
fn is_zero(count: &usize) -> bool {
    *count == 0
}
