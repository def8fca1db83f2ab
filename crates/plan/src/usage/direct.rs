//! Images as Pods name them, whatever was asked for: what nodes will pull again when a Pod restarts.

use std::collections::HashMap;
use std::sync::Arc;

use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;

use crate::mirroring::{Slot, slot};

/// The images that specifications of Pods name, each with the first Pod that does.
#[derive(Debug, Clone, Default)]
pub struct DirectUses {
    /// Images of one Pod share its name.
    by_slot: HashMap<Slot, Arc<str>>,
}

impl DirectUses {
    /// From the images of all Pods, in any order: namespace and name of the Pod, and the image. Filters and labels make
    /// no difference to what a node pulls.
    pub fn of<'a>(images: impl IntoIterator<Item = (&'a str, &'a str, &'a str)>) -> Self {
        let mut first: HashMap<&str, (&str, &str)> = HashMap::new();
        for (namespace, name, image) in images {
            let pod = first.entry(image).or_insert((namespace, name));
            *pod = (*pod).min((namespace, name));
        }
        let mut by_slot: HashMap<Slot, Arc<str>> = HashMap::with_capacity(first.len());
        let mut pods: HashMap<(&str, &str), Arc<str>> = HashMap::new();
        for (image, (namespace, name)) in first {
            let Ok(image) = Reference::parse(image) else { continue };
            let pod = pods.entry((namespace, name)).or_insert_with(|| format!("{namespace}/{name}").into());
            let known = by_slot.entry(slot(&image)).or_insert_with(|| Arc::clone(pod));
            if *pod < *known {
                *known = Arc::clone(pod);
            }
        }
        Self { by_slot }
    }

    /// The images, each once.
    pub fn images(&self) -> impl Iterator<Item = &Reference> {
        self.by_slot.keys().map(Slot::reference)
    }

    /// A Pod that names this image, or one of these digests of its repository: registries may drop a manifest with the
    /// last tag that names it.
    pub fn by(&self, image: &Reference, digests: impl IntoIterator<Item = Digest>) -> Option<&str> {
        if self.by_slot.is_empty() {
            return None;
        }
        let pinned = digests.into_iter().map(|digest| slot(&image.without_tag().with_digest(&digest)));
        std::iter::once(slot(image)).chain(pinned).find_map(|slot| self.by_slot.get(&slot).map(|pod| &**pod))
    }
}
