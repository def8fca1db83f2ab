//! Which digest of a tag the Pods of a workload run.

use std::collections::BTreeMap;

use fairlead_domain::{
    digest::Digest,
    reference::{AnyReference, Reference},
};
use thiserror::Error;

use super::pin_key;
use crate::inventory::Contents;

/// One image of one Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningImage {
    pub pod: String,
    /// What was asked for, as the Pod's record says, or else its specification.
    pub asked: String,
    /// What the specification names now.
    pub image: String,
    /// What the kubelet says that it runs or mounts.
    pub reported: Option<String>,
    /// The digest that was recorded when the Pod was admitted.
    pub expected: Option<String>,
    /// Why that does not count.
    pub doubt: Option<String>,
}

/// Why it cannot be told which digest runs.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotRunning {
    #[error("no Pod of it runs")]
    NoPod,
    #[error("its Pods were asked to run {0} instead")]
    Other(String),
    #[error("its Pods run different digests: {0}")]
    Differs(String),
    #[error("Pod {0} does not say which manifest it runs; use --from registry")]
    Untold(String),
    #[error("only the annotations of Pod {0} say which manifest it runs, and {1}; use --from registry")]
    Doubtful(String, String),
}

impl RunningImage {
    fn in_specification(&self) -> Option<Digest> {
        Reference::parse(&self.image).ok().and_then(|image| image.digest())
    }

    /// A digest alone is the one of a configuration, which no registry knows an image by.
    fn reported(&self) -> Option<Digest> {
        let text = self.reported.as_deref()?;
        let text = text.split_once("://").map_or(text, |(_, rest)| rest);
        match AnyReference::parse(text).ok()? {
            AnyReference::Named(reference) => reference.digest(),
            AnyReference::Digest(_) => None,
        }
    }

    fn expected(&self) -> Option<Digest> {
        self.expected.as_deref()?.parse().ok()
    }

    /// The digest whose content tells whether the kubelet reports the image of its platform where an index was
    /// recorded. CRI-O may do so, and what is held to that image does not run on other platforms.
    pub fn to_read(&self) -> Option<Digest> {
        let expected = self.expected().filter(|_| self.in_specification().is_none())?;
        self.reported().filter(|reported| *reported != expected).map(|_| expected)
    }

    /// The digest that only annotations name, which anybody could have written who may edit the Pod.
    pub fn unproven(&self) -> Option<Digest> {
        self.expected().filter(|_| self.in_specification().is_none() && self.reported().is_none())
    }

    fn digest(&self, contents: &Contents) -> Option<Digest> {
        let reported = self.reported();
        let holds = |index: &Digest| {
            contents.get(index).zip(reported).is_some_and(|(index, reported)| index.holds(&reported))
        };
        let index = self.to_read().filter(holds);
        let noted = || self.expected().filter(|_| self.doubt.is_none());
        self.in_specification().or(index).or(reported).or_else(noted)
    }
}

/// The one digest that all Pods run which were asked to run the tag. `contents` is what was read of
/// [`RunningImage::to_read`].
pub fn running(tag: &Reference, images: &[RunningImage], contents: &Contents) -> Result<Digest, NotRunning> {
    let is_same = |image: &&RunningImage| {
        Reference::parse(&image.asked).is_ok_and(|asked| pin_key(&asked).is_same_image(&pin_key(tag)))
    };
    let of_tag: Vec<_> = images.iter().filter(is_same).collect();
    let Some(first) = of_tag.first() else {
        return Err(images.first().map_or(NotRunning::NoPod, |other| NotRunning::Other(other.asked.clone())));
    };
    let mut digests: BTreeMap<String, (Digest, &str)> = BTreeMap::new();
    for image in &of_tag {
        if let Some(digest) = image.digest(contents) {
            digests.entry(digest.to_string()).or_insert((digest, &image.pod));
        }
    }
    let mut found = digests.values();
    match (found.next(), found.next()) {
        (Some((digest, _)), None) => Ok(*digest),
        (None, _) => {
            let doubt = of_tag.iter().find_map(|image| Some((image.pod.clone(), image.doubt.clone()?)));
            Err(doubt.map_or_else(
                || NotRunning::Untold(first.pod.clone()),
                |(pod, why)| NotRunning::Doubtful(pod, why),
            ))
        }
        _ => {
            let told = digests.iter().map(|(digest, (_, pod))| format!("{digest} in Pod {pod}"));
            Err(NotRunning::Differs(told.collect::<Vec<_>>().join(", ")))
        }
    }
}
