//! When mirroring has to wait because not everything is known.
//!
//! What is not listed must not be taken for what is gone: an object that the API server does not serve just now would
//! lose its rows, and its copies would count as unused.

/// What is known of the objects of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownKind<'a> {
    pub kind: &'a str,
    pub standing: KindStanding,
    /// Objects that were there when the kind was last listed, or that stored ledgers name as their owner.
    pub objects: usize,
    /// Nothing can be done without it, whether there are objects or not.
    pub needed: bool,
}

/// Whether the API server serves a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KindStanding {
    /// It does, and all objects were listed.
    Listed,
    /// It does, or that is not known yet, and the list is not complete.
    Listing,
    /// It does not.
    Absent,
}

/// Why mirroring has to wait, if it has to. A kind without objects that the cluster does not serve is one that is not
/// installed, and is not waited for.
pub fn waits_for<'a>(kinds: impl IntoIterator<Item = KnownKind<'a>>) -> Option<String> {
    kinds.into_iter().find_map(|KnownKind { kind, standing, objects, needed }| match standing {
        KindStanding::Listed => None,
        KindStanding::Listing => Some(format!("objects of kind {kind} are not listed yet")),
        KindStanding::Absent if objects > 0 => {
            Some(format!("the cluster does not serve the kind {kind}, of which {objects} objects are known"))
        }
        KindStanding::Absent => needed.then(|| format!("the cluster does not serve the kind {kind}")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_kind_that_was_never_there_is_not_waited_for() {
        let waits = |standing, objects, needed| {
            waits_for([KnownKind { kind: "ImageSetMirror", standing, objects, needed }]).is_some()
        };
        for (standing, objects, needed, expected) in [
            (KindStanding::Listed, 0, true, false),
            (KindStanding::Listed, 7, false, false),
            (KindStanding::Listing, 0, false, true),
            (KindStanding::Absent, 0, false, false),
            (KindStanding::Absent, 0, true, true),
            (KindStanding::Absent, 1, false, true),
        ] {
            assert_eq!(waits(standing, objects, needed), expected, "{standing:?} {objects} {needed}");
        }
        assert_eq!(waits_for([]), None);
    }
}
