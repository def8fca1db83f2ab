//! What a policy applies to: anchored regular expressions, label selectors, and the filters made of them.
//!
//! Everything is compiled once, when a policy changes, and matched many times, when Pods arrive.

pub mod filter;
pub mod label;
pub mod pattern;
pub mod set;

pub use self::{
    filter::{FilterError, FilterItem, ImageFilter, PodFacts, PodMatcher, Rules, Scope},
    label::{Labels, Selector, SelectorError},
    pattern::{Pattern, PatternError, PatternProblem},
    set::{FilterSet, Matched, PatternId, PatternSet},
};
