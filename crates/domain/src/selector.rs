//! What a policy applies to: anchored regular expressions, label selectors, and the filters made of them.
//!
//! Everything is compiled once, when a policy changes, and matched many times, when Pods arrive.

pub mod bits;
pub mod filter;
pub mod label;
pub mod pattern;
pub mod pods;
pub mod set;

pub use self::{
    bits::Bits,
    filter::{FilterError, FilterItem, ImageFilter, ItemError, PodFacts, PodMatcher, Rules, Scope},
    label::{Labels, Selector, SelectorError},
    pattern::{Pattern, PatternError, PatternProblem, Search},
    pods::PodMatcherSet,
    set::{FilterSet, Matched, PatternId, PatternSet},
};
