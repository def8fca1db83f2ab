//! What a policy applies to: anchored regular expressions, label selectors, and the filters made of them.
//!
//! Everything is compiled once, when a policy changes, and matched many times, when Pods arrive.

pub mod bits;
pub mod filter;
pub mod label;
pub mod pattern;
pub mod pods;
pub mod set;

pub use self::bits::Bits;
pub use self::filter::{FilterError, FilterItem, ImageFilter, ItemError, PodFacts, PodMatcher, Rules, Scope};
pub use self::label::{Labels, Selector, SelectorError};
pub use self::pattern::{Pattern, PatternError, PatternProblem, Search};
pub use self::pods::PodMatcherSet;
pub use self::set::{FilterSet, Matched, PatternId, PatternSet};
