//! On whose account a registry is contacted.

/// Who chose the host that a connection goes to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Cause {
    /// An administrator: by a cluster-scoped policy, by the configuration, or at the command line.
    #[default]
    Administrator,
    /// A user of one namespace: by a Pod's image or a namespaced policy. The operator's own machine and link-local
    /// addresses, where metadata services answer, are off limits then.
    Tenant,
}
