//! Events on controllers whose Pods are not rewritten for a while.

use std::collections::BTreeSet;

use fairlead_plan::owners::{Controller, OwnerKey, PAUSE_SECONDS, Pause, paused_message};

use super::queue::{About, EventQueue, Notice};
use crate::cluster::state::Owners;

const REASON: &str = "RewritingPaused";

/// Emits an event for every pause that is not in `told`. Pauses that are in force when this replica begins to lead are
/// reported, too: an event that exists is not created again.
pub(super) fn look(owners: &Owners, events: &EventQueue, told: &mut BTreeSet<OwnerKey>) {
    let paused = owners.paused();
    told.retain(|owner| paused.iter().any(|(known, _)| known == owner));
    for (owner, pause) in paused {
        if !told.contains(&owner) {
            events.tell(notice(&owner, &pause));
            told.insert(owner);
        }
    }
}

fn notice(owner: &OwnerKey, pause: &Pause) -> Notice {
    let controller =
        Controller { api_version: &pause.api_version, kind: &pause.kind, name: &pause.name, uid: &owner.uid };
    Notice {
        about: About {
            api_version: pause.api_version.to_string(),
            kind: pause.kind.to_string(),
            namespace: Some(owner.namespace.to_string()),
            name: pause.name.to_string(),
            uid: owner.uid.to_string(),
        },
        warning: true,
        reason: REASON,
        message: paused_message(&controller, pause.until),
        // Replicas find a loop at about the same time, and not to the second.
        key: (pause.until.as_second() / PAUSE_SECONDS).to_string(),
    }
}
