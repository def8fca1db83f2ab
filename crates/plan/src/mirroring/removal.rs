//! Whether a copy may be deleted now, and if not, why.
//!
//! Planning asks before a deletion is ordered. The executor asks [`confirm`] once more with what the registry has under
//! the name at that moment, and where the registry deletes manifests only, [`confirm_manifest`] and [`confirm_tags`].

use std::fmt;

use fairlead_domain::digest::Digest;
use jiff::Timestamp;

use crate::ledger::Copy;
use crate::usage_list::Withheld;

/// Who wrote what is at a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provenance {
    Ours,
    /// kube-image-keeper, and its digest was not looked at yet.
    NotIdentified,
    Foreign,
}

impl Provenance {
    pub fn of(copy: &Copy) -> Self {
        match copy.written.is_empty() {
            true if copy.adopted => Self::NotIdentified,
            true => Self::Foreign,
            false => Self::Ours,
        }
    }
}

/// What is known of a copy that nothing uses any more.
#[derive(Debug, Clone, Copy)]
pub struct Candidate<'a> {
    pub provenance: Provenance,
    /// When the clean-up of its mirror lets it go. `None`: its mirror is not cleaned up.
    pub due: Option<Timestamp>,
    /// A Pod that names the copy itself.
    pub named_by: Option<&'a str>,
    /// Another object or image wants what is there.
    pub wanted_elsewhere: bool,
    /// What the usage lists of other clusters say about it.
    pub other_clusters: &'a Result<(), Withheld>,
    pub now: Timestamp,
}

/// Why a copy is not deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Veto {
    CleanupOff,
    /// The retention is not over.
    Retained {
        until: Timestamp,
    },
    Named {
        pod: Box<str>,
    },
    WantedElsewhere,
    /// Another cluster uses it, or it is not known whether one does.
    OtherCluster(Withheld),
    /// kube-image-keeper wrote it, and its digest was not looked at yet.
    NotIdentified,
    NotWritten,
    /// The name has a digest that we did not write.
    Changed {
        found: Digest,
    },
    /// The registry deletes a manifest with all its tags only, and another copy has the same one.
    DigestNeeded,
    /// The same, and this tag names it.
    Tagged {
        tag: Box<str>,
    },
    /// The same, and there are too many tags to tell.
    TagsUnknown,
}

/// Tags beside that of a copy that name the same manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherTags<'a> {
    None,
    Found(&'a str),
    /// There are too many tags to tell.
    Unknown,
}

/// May this copy be deleted now? Every rule about that is here. Pods and retention come first: they say what a person
/// would want to know.
pub fn may_delete(candidate: &Candidate<'_>) -> Result<(), Veto> {
    let Candidate { provenance, due, named_by, wanted_elsewhere, other_clusters, now } = *candidate;
    let due = due.ok_or(Veto::CleanupOff)?;
    if let Some(pod) = named_by {
        return Err(Veto::Named { pod: pod.into() });
    }
    if due > now {
        return Err(Veto::Retained { until: due });
    }
    if wanted_elsewhere {
        return Err(Veto::WantedElsewhere);
    }
    match provenance {
        Provenance::NotIdentified => Err(Veto::NotIdentified),
        Provenance::Foreign => Err(Veto::NotWritten),
        Provenance::Ours => other_clusters.clone().map_err(Veto::OtherCluster),
    }
}

/// Whether a name still has what we wrote there, to be asked immediately before it is deleted.
pub fn confirm(written: &[Digest], found: Digest) -> Result<(), Veto> {
    match written {
        [] => Err(Veto::NotWritten),
        known if known.contains(&found) => Ok(()),
        _ => Err(Veto::Changed { found }),
    }
}

/// Whether a manifest may be deleted together with its tags, as far as ledgers tell. `needed`: what other copies in the
/// repository have.
pub fn confirm_manifest(needed: &[Digest], found: Digest) -> Result<(), Veto> {
    if needed.contains(&found) { Err(Veto::DigestNeeded) } else { Ok(()) }
}

/// Whether a manifest may be deleted together with its tags, as far as these tell.
pub fn confirm_tags(others: OtherTags<'_>) -> Result<(), Veto> {
    match others {
        OtherTags::None => Ok(()),
        OtherTags::Found(tag) => Err(Veto::Tagged { tag: tag.into() }),
        OtherTags::Unknown => Err(Veto::TagsUnknown),
    }
}

impl fmt::Display for Veto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const NOT_ALONE: &str = "the registry cannot delete a tag alone, and";
        match self {
            Self::CleanupOff => f.write_str("clean-up is off"),
            Self::Retained { until } => write!(f, "its retention ends at {until}"),
            Self::Named { pod } => write!(f, "Pod {pod} names it"),
            Self::WantedElsewhere => f.write_str("another object or image wants it"),
            Self::OtherCluster(withheld) => withheld.fmt(f),
            Self::NotIdentified => f.write_str("its digest is not known yet"),
            Self::NotWritten => f.write_str("Fairlead did not write it"),
            Self::Changed { found } => {
                write!(f, "its name was given {found} by others since Fairlead wrote it")
            }
            Self::DigestNeeded => write!(f, "{NOT_ALONE} another copy that is in use has the same digest"),
            Self::Tagged { tag } => write!(f, "{NOT_ALONE} the tag {tag} names the same image"),
            Self::TagsUnknown => write!(
                f,
                "{NOT_ALONE} the repository has too many tags to tell whether another one names the same image"
            ),
        }
    }
}
