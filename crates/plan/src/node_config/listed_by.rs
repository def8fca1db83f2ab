//! Which objects list which mirror of a source. Several objects may name a source, each with mirrors of its own, and
//! for one kind of pull only.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::PolicyId;

/// For the mirrors of one source and one kind of pull. There may be thousands of objects, so they are told by numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListedBy {
    /// The objects that name the source.
    policies: Arc<BTreeSet<PolicyId>>,
    /// Places of a mirror and of an object that lists it, in order, each once.
    pairs: Arc<[(usize, usize)]>,
}

impl ListedBy {
    pub(super) fn new(policies: &Arc<BTreeSet<PolicyId>>, mut pairs: Vec<(usize, usize)>) -> Self {
        pairs.sort_unstable();
        pairs.dedup();
        Self { policies: Arc::clone(policies), pairs: pairs.into() }
    }

    /// The objects that list the mirror at this place.
    pub fn mirror(&self, place: usize) -> BTreeSet<&PolicyId> {
        let from = self.pairs.partition_point(|(mirror, _)| *mirror < place);
        let mut listed = self.pairs.iter().skip(from).take_while(|(mirror, _)| *mirror == place).peekable();
        let is_listed =
            |(number, _): &(usize, &PolicyId)| listed.next_if(|(_, policy)| policy == number).is_some();
        self.policies.iter().enumerate().filter(is_listed).map(|(_, policy)| policy).collect()
    }
}
