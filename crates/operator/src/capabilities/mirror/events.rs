//! Events about mirrors.

use fairlead_api::kuik::{ClusterImageSetMirror, ImageSetMirror};
use fairlead_plan::ledger::{Owner, OwnerKind};
use fairlead_plan::mirroring::{RefusedCopy, Task, Work};
use kube::Resource;

use crate::controller::events::{About, Notice};

/// A task that fails again and again.
pub(super) fn failing(owner: &Owner, task: &Task, error: &str) -> Notice {
    let Task { source, destination, work } = task;
    let (reason, message) = match work {
        Work::Copy => ("CopyFailed", format!("cannot copy {source} to {destination}: {error}")),
        Work::Compare => ("CompareFailed", format!("cannot compare {source} with {destination}: {error}")),
        Work::Identify => ("IdentifyFailed", format!("cannot find out what {destination} is: {error}")),
        Work::Delete => ("RemovalFailed", format!("cannot remove {destination}: {error}")),
    };
    Notice { about: about(owner), warning: true, reason, message, key: destination.to_string() }
}

/// Two sources want to be copied to one place.
pub(super) fn refused(owner: &Owner, refusal: &RefusedCopy) -> Notice {
    let RefusedCopy { source, destination, why } = refusal;
    Notice {
        about: about(owner),
        warning: true,
        reason: "DestinationTaken",
        message: format!("{source} is not copied to {destination}, which {why}"),
        key: format!("{source} {destination} {why}"),
    }
}

/// A copy that nothing uses is not removed.
pub(super) fn kept(owner: &Owner, task: &Task, why: &str) -> Notice {
    Notice {
        about: about(owner),
        warning: false,
        reason: "CopyKept",
        message: why.to_owned(),
        key: task.destination.to_string(),
    }
}

/// An object goes, and copies stay that were to go with it.
pub(super) fn left_behind(owner: &Owner, left: &str) -> Notice {
    Notice {
        about: about(owner),
        warning: true,
        reason: "CopiesLeftBehind",
        message: left.to_owned(),
        key: owner.uid.to_string(),
    }
}

/// An object goes that cannot be read, so that its copies stay.
pub(super) fn unreadable(owner: &Owner, error: &str) -> Notice {
    Notice {
        about: about(owner),
        warning: true,
        reason: "CopiesLeftBehind",
        message: format!("the object cannot be read, so its copies stay where they are: {error}"),
        key: owner.uid.to_string(),
    }
}

fn about(owner: &Owner) -> About {
    let api_version = match owner.kind {
        OwnerKind::ImageSetMirror => ImageSetMirror::api_version(&()),
        OwnerKind::ClusterImageSetMirror | OwnerKind::ClusterImageSetAvailability => {
            ClusterImageSetMirror::api_version(&())
        }
    };
    About {
        api_version: api_version.into_owned(),
        kind: owner.kind.name().to_owned(),
        namespace: owner.namespace.as_deref().map(str::to_owned),
        name: owner.name.to_string(),
        uid: owner.uid.to_string(),
    }
}
