//! Whether a cache is offered to Pods that name its upstream, and why not.

use fairlead_api::conditions::{Finding, reasons};
use fairlead_api::reef::{OFFERED, ProxyCache, ProxyCachePhase, ProxyCacheStatus};

use super::report::{NOT_CONFIGURED, shortened};
use crate::routing::{Policy, is_serving};

/// What it depends on.
#[derive(Debug, Clone, Copy)]
pub struct Offer<'a> {
    /// What [`routing_error`] says of the object.
    pub error: Option<&'a str>,
    /// What is wrong with the Secret for Pods.
    pub secrets: &'a [String],
    /// What was found for the object as it is now.
    pub status: &'a ProxyCacheStatus,
}

/// Why routing does not take an object that asks for it, whatever Harbor says. `pull_host` is what Pods know Harbor by.
pub fn routing_error(object: &ProxyCache, pull_host: Option<&str>) -> Option<String> {
    object.spec.routing.as_ref()?;
    Policy::proxy_cache(object, pull_host).err().map(|error| error.to_string())
}

/// Whether Pods that name the upstream are offered the cache.
pub fn offered(offer: &Offer<'_>) -> Finding {
    let Offer { error, secrets, status } = offer;
    let not = |reason: &str, message: &str| Finding::new(OFFERED, false, reason, shortened(message));
    if status.phase == Some(ProxyCachePhase::Pending) {
        return not(NOT_CONFIGURED, status.message.as_deref().unwrap_or_default());
    }
    if let Some(error) = error {
        return not(reasons::INVALID_SPEC, error);
    }
    if !secrets.is_empty() {
        let message = format!("Pods cannot pull from the project: {}", secrets.join("; "));
        return not(reasons::SECRET_UNAVAILABLE, &message);
    }
    if status.phase != Some(ProxyCachePhase::Ready) {
        return not("NotReady", "the cache is not ready");
    }
    if !is_serving(status) {
        return not("NotHealthy", "Harbor does not say that the upstream is healthy");
    }
    Finding::new(OFFERED, true, "Offered", "")
}
