//! Shows Pods to the planner of the inventory: to the operator's and to that of `fairlead inventory`.

use std::collections::HashMap;
use std::sync::Arc;

use fairlead_api::names;
use fairlead_domain::platform::Platform;
use fairlead_plan::inventory::{Content, Misplaced, MountView, PlatformManifest, PodView, UseView};
use fairlead_registry::manifest;

use crate::cluster::state::{Mount, Phase, PodEntry, Role};

/// The platforms of Nodes, by name.
pub type Platforms = HashMap<Arc<str>, Platform>;

/// Whether the images of a Pod are compared with those of others: it is there to stay, and more than a pull.
pub fn is_running(pod: &PodEntry) -> bool {
    !pod.deleting && pod.pulls.is_none() && !matches!(pod.phase, Phase::Succeeded | Phase::Failed)
}

/// A Pod as the inventory sees it. `unconfirmed` tells whether what is reported of a mount may be about an earlier
/// container.
pub fn view<'p>(
    pod: &'p PodEntry,
    platforms: &'p Platforms,
    unconfirmed: impl Fn(&Mount) -> bool,
) -> PodView<'p> {
    let text = |key: &str| pod.annotation(key).map(|text| &**text);
    let label = |wanted: &str| pod.labels.iter().find(|(key, _)| &**key == wanted).map(|(_, value)| &**value);
    let images = pod.containers.iter().map(|container| UseView {
        place: container.place(),
        sidecar: container.sidecar,
        image: &container.image,
        image_id: container.image_id.as_deref(),
        created: container.created,
        ended: container.terminated.is_some(),
        mounts_images: !container.image_volumes.is_empty(),
        mounts: match container.role {
            Role::Volume => {
                pod.mounts_of(&container.name).map(|mount| mount_view(mount, &unconfirmed)).collect()
            }
            Role::Init | Role::Container | Role::Ephemeral => Vec::new(),
        },
    });
    let misplaced = |mount: &&Mount| !mount.specified || pod.volume(&mount.volume).is_none();
    let misplaced = pod.mounts.iter().filter(misplaced);
    PodView {
        namespace: &pod.key.namespace,
        name: &pod.key.name,
        uid: &pod.uid,
        node: pod.node.as_deref(),
        platform: pod.node.as_ref().and_then(|node| platforms.get(node)),
        controller: pod.owner.as_ref().map(|owner| owner.controller()),
        template_hash: label(names::kubernetes::POD_TEMPLATE_HASH),
        revision_hash: label(names::kubernetes::CONTROLLER_REVISION_HASH),
        created: pod.created,
        routes: text(names::fairlead::ROUTES),
        volume_digests: text(names::fairlead::VOLUME_DIGESTS),
        annotation_bytes: pod.annotation_bytes,
        images: images.collect(),
        misplaced: misplaced
            .map(|mount| Misplaced {
                container: &mount.container,
                volume: &mount.volume,
                specified: mount.specified,
            })
            .collect(),
    }
}

fn mount_view<'p>(mount: &'p Mount, unconfirmed: &impl Fn(&Mount) -> bool) -> MountView<'p> {
    MountView {
        container: &mount.container,
        path: &mount.path,
        reported: mount.reported.as_deref(),
        unconfirmed: unconfirmed(mount),
    }
}

/// What is behind a digest, as a registry serves it.
pub fn content(read: manifest::Content) -> Content {
    match read {
        manifest::Content::Image(image) => Content::image(image.config.digest),
        manifest::Content::Index(index) => {
            let image = |one: manifest::Descriptor| PlatformManifest {
                platform: one.platform.unwrap_or_default(),
                digest: one.digest,
            };
            Content::index(index.manifests.into_iter().map(image))
        }
    }
}
