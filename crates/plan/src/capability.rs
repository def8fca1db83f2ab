//! Which capabilities a cluster lets Fairlead have, by the kinds that its API server serves.
//!
//! A cluster carries the definitions of some API groups and lacks others, and that changes while Fairlead runs.
//! A capability without its kinds is off, which is a state to be reported, never an error.

use std::fmt;

/// A part of the product that a user would name, switched as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Capability {
    Route,
    Mirror,
    Watch,
    Warm,
    Heal,
    Cache,
    SteerNodes,
    Account,
}

/// Whether a capability can work, and what it waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    On,
    /// These kinds cannot be read: one of them would do where `any` is set, all are needed otherwise.
    Off {
        missing: Vec<&'static str>,
        any: bool,
    },
}

struct Needs {
    all: &'static [&'static str],
    any: &'static [&'static str],
}

impl Capability {
    pub const ALL: [Self; 8] = [
        Self::Route,
        Self::Mirror,
        Self::Watch,
        Self::Warm,
        Self::Heal,
        Self::Cache,
        Self::SteerNodes,
        Self::Account,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Route => "route",
            Self::Mirror => "mirror",
            Self::Watch => "watch",
            Self::Warm => "warm",
            Self::Heal => "heal",
            Self::Cache => "cache",
            Self::SteerNodes => "steer-nodes",
            Self::Account => "account",
        }
    }

    /// Kinds are known by name alone: no two groups that Fairlead speaks share one. Healing and accounting read Pods
    /// only and need no kind of their own.
    fn needs(self) -> Needs {
        match self {
            Self::Route => Needs {
                all: &[],
                any: &[
                    "ClusterImageSetMirror",
                    "ImageSetMirror",
                    "ClusterReplicatedImageSet",
                    "ReplicatedImageSet",
                ],
            },
            // Ownership and retention of copies must outlive the process, hence the ledger.
            Self::Mirror => {
                Needs { all: &["ImageLedger"], any: &["ClusterImageSetMirror", "ImageSetMirror"] }
            }
            Self::Watch => Needs { all: &["ClusterImageSetAvailability"], any: &[] },
            // Sets and discovery work by making CachedImages. What was pulled must outlive the process, hence the
            // ledger.
            Self::Warm => Needs { all: &["CachedImage", "PullPolicy", "WarmLedger"], any: &[] },
            Self::Cache => Needs { all: &["ProxyCache"], any: &[] },
            Self::SteerNodes => Needs {
                all: &[],
                any: &[
                    "ImageSourceDigestPolicy",
                    "ImageSourceTagPolicy",
                    "ImageDigestMirrorSet",
                    "ImageTagMirrorSet",
                    "ImageContentSourcePolicy",
                ],
            },
            Self::Heal | Self::Account => Needs { all: &[], any: &[] },
        }
    }

    /// Every kind that this capability looks for.
    pub fn kinds(self) -> impl Iterator<Item = &'static str> {
        let Needs { all, any } = self.needs();
        all.iter().chain(any).copied()
    }

    /// Judges by which kinds can be read.
    pub fn standing(self, readable: impl Fn(&str) -> bool) -> Standing {
        let Needs { all, any } = self.needs();
        let missing: Vec<_> = all.iter().copied().filter(|kind| !readable(kind)).collect();
        if !missing.is_empty() {
            return Standing::Off { missing, any: false };
        }
        if !any.is_empty() && !any.iter().any(|kind| readable(kind)) {
            return Standing::Off { missing: any.to_vec(), any: true };
        }
        Standing::On
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::On => f.write_str("on"),
            Self::Off { missing, any: true } => {
                write!(f, "off: waits for one of {}", missing.join(", "))
            }
            Self::Off { missing, any: false } => {
                write!(f, "off: waits for {}", missing.join(", "))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on(served: &[&str]) -> Vec<&'static str> {
        Capability::ALL
            .into_iter()
            .filter(|capability| capability.standing(|kind| served.contains(&kind)) == Standing::On)
            .map(Capability::name)
            .collect()
    }

    #[test]
    fn what_needs_pods_alone_is_on_in_a_bare_cluster() {
        assert_eq!(on(&[]), ["heal", "account"]);
    }

    #[test]
    fn one_kind_of_many_is_enough_for_routing() {
        assert_eq!(on(&["ReplicatedImageSet"]), ["route", "heal", "account"]);
        assert_eq!(on(&["ClusterImageSetAvailability"]), ["watch", "heal", "account"]);
    }

    #[test]
    fn mirroring_needs_its_ledger() {
        assert_eq!(on(&["ImageSetMirror"]), ["route", "heal", "account"]);
        assert_eq!(on(&["ImageSetMirror", "ImageLedger"]), ["route", "mirror", "heal", "account"]);
        assert_eq!(on(&["ImageLedger"]), ["heal", "account"]);
    }

    #[test]
    fn what_is_missing_is_named() {
        assert_eq!(
            Capability::Watch.standing(|_| false).to_string(),
            "off: waits for ClusterImageSetAvailability"
        );
        assert_eq!(
            Capability::Mirror.standing(|kind| kind == "ImageLedger").to_string(),
            "off: waits for one of ClusterImageSetMirror, ImageSetMirror"
        );
    }
}
