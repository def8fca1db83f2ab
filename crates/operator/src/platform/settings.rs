//! What concerns the process and not its behaviour: who it is, where it listens, where its certificates come from.

use std::net::IpAddr;
use std::path::PathBuf;

use crate::platform::certificates;

/// Name of the Lease that replicas elect a leader by.
pub const LEASE: &str = "fairlead-operator";

/// Settings of one operator process. The binary makes them from flags and environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Tells this replica from the others; must be unique among them.
    pub identity: String,
    /// Where the operator's own objects live: Lease, Secret, ledgers.
    pub namespace: String,
    /// `None` listens on all addresses.
    pub listen: Option<IpAddr>,
    pub webhook_port: u16,
    pub metrics_port: u16,
    pub health_port: u16,
    pub certificates: CertificateSource,
    /// Only clients with a certificate of an authority in this file may connect to the webhook.
    pub webhook_client_ca: Option<PathBuf>,
}

/// Who makes the webhook's certificates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateSource {
    /// The operator itself.
    Own(certificates::Settings),
    /// cert-manager, or a person, who keeps `tls.crt` and `tls.key` in this directory. The operator keeps the path.
    Files(PathBuf, certificates::Settings),
}

impl CertificateSource {
    /// The name of the webhook configuration.
    pub fn configuration(&self) -> &str {
        match self {
            Self::Own(settings) | Self::Files(_, settings) => &settings.configuration,
        }
    }
}
