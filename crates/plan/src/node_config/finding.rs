//! What is to be said about an object: what of it does not take effect as written, and why.

use std::fmt;

use super::{Location, PolicyId, Scope, ScopeError};

/// Something about one source of one object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    pub policy: PolicyId,
    /// The source as written.
    pub source: String,
    pub problem: Problem,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Problem {
    /// The source or a mirror is not written as one; the set is not used.
    Unreadable { message: String, closed: bool },
    /// With `NeverContactSource` a mirror lies in its own source; the set is not used.
    MirrorInSource { mirror: Location },
    /// Another object forbids to contact the source, in which this mirror lies.
    MirrorInClosedSource { mirror: Location, by: PolicyId },
    /// The mirror lies in a scope that must not be contacted, other than its source.
    MirrorInClosedScope { mirror: Location, scope: Scope },
    /// Objects disagree about whether the source may be contacted.
    Contradicted { by: PolicyId, is_closing: bool },
    /// No mirror but the source itself is listed.
    NoMirror,
    /// No image has the name of the source: runtimes take it for another.
    NoImage { name: String },
}

impl Problem {
    pub(super) fn unreadable(error: &ScopeError, closed: bool) -> Self {
        Self::Unreadable { message: error.to_string(), closed }
    }

    /// The reason to give in a condition.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } | Self::MirrorInSource { .. } | Self::MirrorInClosedSource { .. } => {
                "Failed"
            }
            Self::MirrorInClosedScope { .. } | Self::Contradicted { .. } => "Conflict",
            Self::NoMirror | Self::NoImage { .. } => "NoEffect",
        }
    }

    /// Whether something that was written is not used because it is wrong.
    pub fn is_failure(&self) -> bool {
        self.reason() == "Failed"
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: source {:?}: {}", self.policy, self.source, self.problem)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        const STAYS_CLOSED: &str = "; its mirrors are not used, and the source stays closed";
        match self {
            Self::Unreadable { message, closed: false } => {
                write!(formatter, "{message}; its mirrors are not used")
            }
            Self::Unreadable { message, closed: true } => write!(formatter, "{message}{STAYS_CLOSED}"),
            Self::MirrorInSource { mirror } => write!(
                formatter,
                "the mirror {mirror} lies inside the source, which NeverContactSource forbids to contact{STAYS_CLOSED}"
            ),
            Self::MirrorInClosedSource { mirror, by } => write!(
                formatter,
                "the mirror {mirror} lies inside the source, which {by} forbids to contact; the mirror is not used"
            ),
            Self::MirrorInClosedScope { mirror, scope } => write!(
                formatter,
                "the mirror {mirror} is not asked, because it lies in {scope}, which must not be contacted"
            ),
            Self::Contradicted { by, is_closing: true } => write!(
                formatter,
                "{by} allows to contact the source; NeverContactSource wins, and the mirrors are merged"
            ),
            Self::Contradicted { by, is_closing: false } => write!(
                formatter,
                "{by} forbids to contact the source; NeverContactSource wins, and the mirrors are merged"
            ),
            Self::NoMirror => formatter.write_str("no mirror is listed, so this has no effect"),
            Self::NoImage { name } => write!(
                formatter,
                "runtimes take it for {name} in the names of images, so none is pulled from it: write {name}, or the \
                 registry with a dot or a port"
            ),
        }
    }
}
