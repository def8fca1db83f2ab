//! Events about proxy caches.

use fairlead_api::reef::ProxyCache;
use kube::{Resource, ResourceExt};

use crate::controller::events::{About, Notice};

/// What was to be removed from Harbor stays there.
pub(super) fn left_behind(object: &ProxyCache, left: &str) -> Notice {
    left_behind_by(&object.name_any(), &object.uid().unwrap_or_default(), left)
}

/// The same of an object that cannot be read.
pub(super) fn left_behind_by(name: &str, uid: &str, left: &str) -> Notice {
    let about = about(name.to_owned(), uid.to_owned());
    Notice { about, warning: true, reason: "LeftInHarbor", message: left.to_owned(), key: left.to_owned() }
}

/// Harbor was changed, at this moment.
pub(super) fn done(object: &ProxyCache, what: &str, at: jiff::Timestamp) -> Notice {
    notice(object, false, "HarborChanged", what.to_owned(), format!("{what} {at}"))
}

/// Harbor does not take what the object asks for.
pub(super) fn refused(object: &ProxyCache, why: &str, since: jiff::Timestamp) -> Notice {
    notice(object, true, "UpdateRefused", why.to_owned(), format!("{why} {since}"))
}

fn notice(object: &ProxyCache, warning: bool, reason: &'static str, message: String, key: String) -> Notice {
    let about = about(object.name_any(), object.uid().unwrap_or_default());
    Notice { about, warning, reason, message, key }
}

fn about(name: String, uid: String) -> About {
    About {
        api_version: ProxyCache::api_version(&()).into_owned(),
        kind: ProxyCache::kind(&()).into_owned(),
        namespace: None,
        name,
        uid,
    }
}
