//! Where the parts of a cluster listen. A control plane alone listens on loopback. A cluster with a node has a
//! network namespace of its own, in which kube-proxy and the network plugin do as they please, and which one link
//! connects with the machine.

use std::net::{Ipv4Addr, UdpSocket};

use anyhow::{Result, bail};

use crate::names::random;

/// Addresses of Services.
pub(super) const SERVICES: &str = "10.96.0.0/16";
/// Where Pods find the API server: the first address of [`SERVICES`].
pub(super) const API_SERVICE: &str = "10.96.0.1";
/// Addresses of Pods. The same in every cluster: none of them sees another one's.
pub(super) const PODS: &str = "10.244.0.0/24";

/// The range for measuring network devices (RFC 2544), which no real network uses. Each link takes four addresses of
/// it.
const LINKS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
const LINK_COUNT: u32 = 1 << 15;
const ATTEMPTS: usize = 20;

/// Both ends of the way between a cluster and the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    /// The machine, as the cluster sees it.
    pub host: Ipv4Addr,
    /// The cluster, as the machine and the Pods see it.
    pub cluster: Ipv4Addr,
}

impl Network {
    pub(crate) const LOOPBACK: Self = Self { host: Ipv4Addr::LOCALHOST, cluster: Ipv4Addr::LOCALHOST };

    /// A link that no other cluster of this machine has.
    pub(crate) fn link() -> Result<Self> {
        for _ in 0..ATTEMPTS {
            let number = u32::try_from(random() % u64::from(LINK_COUNT))?;
            let first = LINKS.to_bits() + 4 * number;
            let link = Self { host: (first + 1).into(), cluster: (first + 2).into() };
            // Only an address of this machine can be bound.
            if UdpSocket::bind((link.host, 0)).is_err() {
                return Ok(link);
            }
        }
        bail!("no free link from {LINKS} on after {ATTEMPTS} attempts")
    }

    /// As the supervisor takes it.
    pub(crate) fn argument(self) -> String {
        format!("{},{},{SERVICES}", self.host, self.cluster)
    }
}
