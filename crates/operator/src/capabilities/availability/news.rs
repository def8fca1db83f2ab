//! Tells about images that disappeared or came back: on the object that watches them, and in the namespaces that use
//! them.

use std::collections::BTreeMap;
use std::sync::Arc;

use fairlead_api::kuik::ClusterImageSetAvailability;
use fairlead_domain::reference::Reference;
use fairlead_plan::availability::{News, Watched};
use fairlead_plan::exclusions::Exclusions;
use fairlead_plan::ledger::Owner;
use fairlead_plan::usage::Selection;
use jiff::Timestamp;
use kube::Resource;

use crate::cluster::state::{Key, PodEntry, Pods};
use crate::cluster::usage;
use crate::controller::events::{About, EventQueue, Notice};

/// Namespaces in which one Pod gets an event; for an image that the whole cluster uses that is enough.
const MOST_NAMESPACES: usize = 20;

const DISAPPEARED: &str = "ImageDisappeared";
const RETURNED: &str = "ImageReturned";

/// News about one image, ready to be told.
#[derive(Debug)]
pub(super) struct ImageNews {
    pub(super) owner: Owner,
    pub(super) image: Reference,
    pub(super) news: News,
    /// When it was looked at before that.
    pub(super) before: Option<Timestamp>,
    /// What the registry said.
    pub(super) reason: String,
}

impl ImageNews {
    /// On the object that watches the image.
    pub(super) fn tell_on_object(&self, events: &EventQueue) {
        let about = About {
            api_version: ClusterImageSetAvailability::api_version(&()).into_owned(),
            kind: ClusterImageSetAvailability::kind(&()).into_owned(),
            namespace: None,
            name: self.owner.name.to_string(),
            uid: self.owner.uid.to_string(),
        };
        let message = match self.news {
            News::Disappeared { .. } => format!(
                "{} is not in its registry any more ({}); nodes that have not pulled it cannot start Pods that use it",
                self.image, self.reason
            ),
            News::Returned => format!("{} is in its registry again", self.image),
        };
        events.tell(self.notice(about, message));
    }

    /// On one Pod in each namespace that uses the image. Goes through all Pods, and so is for a thread that may be
    /// busy.
    pub(super) fn tell_in_namespaces(
        &self,
        events: &EventQueue,
        pods: &Pods,
        watched: &Watched,
        exclusions: &Exclusions,
    ) {
        let mut namespaces: BTreeMap<Arc<str>, Vec<Arc<PodEntry>>> = BTreeMap::new();
        for pod in pods.all() {
            namespaces.entry(pod.key.namespace.clone()).or_default().push(pod);
        }
        let users = namespaces.into_values().filter_map(|pods| self.user(&pods, watched, exclusions));
        for pod in users.take(MOST_NAMESPACES) {
            let message = match self.news {
                News::Disappeared { .. } => format!(
                    "{}, which this Pod uses, is not in its registry any more ({}); it cannot be pulled again (found by \
                     ClusterImageSetAvailability {})",
                    self.image, self.reason, self.owner.name
                ),
                News::Returned => format!(
                    "{}, which this Pod uses, is in its registry again (found by ClusterImageSetAvailability {})",
                    self.image, self.owner.name
                ),
            };
            events.tell(self.notice(About::pod(&pod), message));
        }
    }

    /// The first of these Pods, all of one namespace, that uses the image.
    fn user(
        &self,
        pods: &[Arc<PodEntry>],
        watched: &Watched,
        exclusions: &Exclusions,
    ) -> Option<Arc<PodEntry>> {
        let selection: Selection<'_> = watched.selection();
        let used = usage::gather(pods, exclusions, &[selection]).pop()?;
        let used = used.into_iter().find(|used| used.image == self.image)?;
        let holder = used.holders.first()?;
        let key = Key { namespace: holder.namespace.clone(), name: holder.pod.clone() };
        pods.iter().find(|pod| pod.key == key).cloned()
    }

    /// The same news until the image is looked at again with another result: what was known before the look is part of
    /// what makes it the same, and a restart that forgot the look knows that, too.
    fn notice(&self, about: About, message: String) -> Notice {
        let (warning, reason) = match self.news {
            News::Disappeared { .. } => (true, DISAPPEARED),
            News::Returned => (false, RETURNED),
        };
        let before = self.before.map_or(0, Timestamp::as_second);
        let key = format!("{} {} {before}", self.owner.uid, self.image);
        Notice { about, warning, reason, message, key }
    }
}
