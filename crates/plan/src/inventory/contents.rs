//! What is behind a digest: an index with an image for each platform, or one image with its configuration.
//!
//! The content of a digest never changes, so a process reads it once. What is kept is bounded: indexes and manifests
//! that no Pod is compared with any more give way.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, LazyLock};

use fairlead_domain::digest::Digest;
use fairlead_domain::platform::Platform;

/// Digests whose content is kept.
const MOST: usize = 8192;
/// Manifests that are kept of one index; indexes have a dozen.
const MOST_MANIFESTS: usize = 64;

/// The configuration of artifacts that have none: two braces. All of them share its digest.
static EMPTY_CONFIG: LazyLock<Digest> = LazyLock::new(|| Digest::sha256(b"{}"));

/// Whether a configuration's digest says nothing about what it belongs to.
pub fn is_empty_config(digest: &Digest) -> bool {
    *digest == *EMPTY_CONFIG
}

/// What is behind a digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Content {
    Index {
        images: Box<[PlatformManifest]>,
        /// It has more images than are kept.
        cut: bool,
    },
    /// None: an artifact without a configuration of its own.
    Image { config: Option<Digest> },
}

/// An image of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlatformManifest {
    pub platform: Platform,
    pub digest: Digest,
}

impl Content {
    /// Attestations, whose platform is unknown, run nowhere.
    pub fn index(manifests: impl IntoIterator<Item = PlatformManifest>) -> Self {
        let runs = |one: &PlatformManifest| one.platform.architecture != "unknown";
        let mut manifests = manifests.into_iter().filter(runs);
        let images = manifests.by_ref().take(MOST_MANIFESTS).collect();
        Self::Index { images, cut: manifests.next().is_some() }
    }

    /// Whether it is an index with images that are not known here.
    pub fn is_cut(&self) -> bool {
        matches!(self, Self::Index { cut: true, .. })
    }

    pub fn image(config: Digest) -> Self {
        Self::Image { config: Some(config).filter(|config| !is_empty_config(config)) }
    }

    /// The images of an index that a node of this platform may run. Nodes do not tell their variant, and an index of
    /// artifacts names no platforms; of a node that is not known all may run.
    pub fn on<'a>(&'a self, platform: Option<&'a Platform>) -> impl Iterator<Item = &'a PlatformManifest> {
        let manifests: &[PlatformManifest] = match self {
            Self::Index { images, .. } => images,
            Self::Image { .. } => &[],
        };
        let same = |wanted: &str, found: &str| wanted.is_empty() || found.is_empty() || wanted == found;
        manifests.iter().filter(move |one| {
            platform.is_none_or(|node| {
                same(&node.os, &one.platform.os)
                    && same(&node.architecture, &one.platform.architecture)
                    && same(&node.variant, &one.platform.variant)
            })
        })
    }

    /// Whether it is an index that holds the manifest.
    pub fn holds(&self, digest: &Digest) -> bool {
        self.on(None).any(|one| one.digest == *digest)
    }
}

/// What was read so far, and what could not be.
#[derive(Debug, Clone, Default)]
pub struct Contents {
    known: HashMap<Digest, Arc<Content>>,
    absent: HashSet<Digest>,
}

impl Contents {
    pub fn get(&self, digest: &Digest) -> Option<&Content> {
        self.known.get(digest).map(|content| &**content)
    }

    pub fn len(&self) -> usize {
        self.known.len()
    }

    pub fn is_empty(&self) -> bool {
        self.known.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Digest, &Content)> {
        self.known.iter().map(|(digest, content)| (digest, &**content))
    }

    /// How many more can be kept.
    pub fn room(&self) -> usize {
        MOST.saturating_sub(self.known.len())
    }

    /// Whether one more can be kept.
    pub fn has_room(&self) -> bool {
        self.room() > 0
    }

    /// Keeps what is behind a digest, and tells whether there was room for it.
    pub fn learn(&mut self, digest: Digest, content: Content) -> bool {
        let has_room = self.has_room();
        if has_room {
            self.absent.remove(&digest);
            self.known.insert(digest, Arc::new(content));
        }
        has_room
    }

    /// No registry has the digest, of those that a Pod may have it from.
    pub fn miss(&mut self, digest: Digest) {
        self.absent.insert(digest);
    }

    pub fn is_absent(&self, digest: &Digest) -> bool {
        self.absent.contains(digest)
    }

    /// Forgets which digests no registry has, but for those that are still wanted.
    pub fn keep_absent(&mut self, wanted: impl Fn(&Digest) -> bool) {
        self.absent.retain(wanted);
    }

    /// Forgets what is in no use, if there is no room for more. `in_use` are the digests that are compared, known or
    /// not.
    pub fn make_room(&mut self, in_use: &HashSet<Digest>) {
        if self.has_room() {
            return;
        }
        let held: HashSet<Digest> = in_use
            .iter()
            .filter_map(|digest| self.get(digest))
            .flat_map(|content| content.on(None).map(|one| one.digest))
            .collect();
        self.known.retain(|digest, _| in_use.contains(digest) || held.contains(digest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_kept_of_a_large_index_is_not_taken_for_something_that_it_lacks() {
        let digest = |of: usize| Digest::sha256(of.to_string().as_bytes());
        let index = |images: usize| {
            let manifest =
                |number| PlatformManifest { platform: Platform::default(), digest: digest(number) };
            Content::index((0..images).map(manifest))
        };
        assert!(!index(MOST_MANIFESTS).is_cut() && index(MOST_MANIFESTS + 1).is_cut());
        assert!(!index(MOST_MANIFESTS + 1).holds(&digest(MOST_MANIFESTS)));
    }

    #[test]
    fn what_is_compared_stays_when_there_is_no_more_room() {
        let mut contents = Contents::default();
        let digest = |of: &str| Digest::sha256(of.as_bytes());
        let manifest = PlatformManifest { platform: Platform::default(), digest: digest("index's manifest") };
        contents.learn(digest("index"), Content::index([manifest]));
        contents.learn(digest("index's manifest"), Content::image(digest("config")));
        for number in 0..MOST {
            contents.learn(digest(&number.to_string()), Content::image(digest("another")));
        }
        assert!(
            !contents.has_room() && !contents.learn(digest("one more"), Content::image(digest("config")))
        );
        contents.make_room(&HashSet::from([digest("index"), digest("7"), digest("unread")]));
        let kept = ["index", "index's manifest", "7"].map(digest);
        assert!(contents.len() == 3 && kept.iter().all(|digest| contents.get(digest).is_some()));
        contents.make_room(&HashSet::new());
        assert_eq!(contents.len(), 3, "there is room, so nothing is forgotten");
    }
}
