//! What all requests share.

use std::sync::Arc;

use fairlead_plan::exclusions::Exclusions;
use tokio::sync::Semaphore;

use super::decide::Decide;
use super::limits::Limits;
use super::metrics::Metrics;
use super::shares::Shares;
use crate::controller::events::Errors;
use crate::platform::certificates::Paths;

/// The admission webhook, apart from its connections.
pub struct AdmissionState {
    pub(super) own_namespace: String,
    /// Where API servers call.
    pub(super) paths: Arc<Paths>,
    pub(super) exclusions: Exclusions,
    pub(super) decide: Arc<dyn Decide>,
    pub(super) limits: Limits,
    pub(super) metrics: Metrics,
    /// Takes internal errors, for the event on the operator's Deployment.
    pub(super) errors: Errors,
    pub(super) deciding: Semaphore,
    pub(super) shares: Shares,
    /// In KiB.
    pub(super) bodies: Semaphore,
}

impl AdmissionState {
    /// `own_namespace` is the operator's, whose Pods are never touched; nor are those that `exclusions` names. Requests
    /// to other paths than `paths` are not read.
    pub fn new(
        own_namespace: &str,
        paths: Arc<Paths>,
        exclusions: Exclusions,
        decide: Arc<dyn Decide>,
        limits: Limits,
        metrics: Metrics,
        errors: Errors,
    ) -> Arc<Self> {
        Arc::new(Self {
            own_namespace: own_namespace.to_owned(),
            paths,
            exclusions,
            decide,
            deciding: Semaphore::new(limits.deciding),
            shares: Shares::default(),
            bodies: Semaphore::new(limits.bodies / 1024),
            limits,
            metrics,
            errors,
        })
    }
}

impl std::fmt::Debug for AdmissionState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdmissionState")
            .field("own_namespace", &self.own_namespace)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
