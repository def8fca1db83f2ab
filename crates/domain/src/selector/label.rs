//! Kubernetes label selectors, written as text, for labels and annotations alike.
//!
//! The grammar and the meaning are apimachinery's, including what is easy to forget: `!=` and `notin` also match an
//! object without the key, `in ()` means the empty value, and `>` and `<` compare integers.

mod parse;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;

pub use self::parse::{Expected, SelectorError};

/// Anything that holds labels or annotations.
pub trait Labels {
    fn value(&self, key: &str) -> Option<&str>;

    /// Shows every pair. Pairs that `value` does not find may be among them.
    fn each(&self, visit: &mut dyn FnMut(&str, &str));
}

/// No labels at all.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoLabels;

impl Labels for NoLabels {
    fn value(&self, _: &str) -> Option<&str> {
        None
    }

    fn each(&self, _: &mut dyn FnMut(&str, &str)) {}
}

impl Labels for BTreeMap<String, String> {
    fn value(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }

    fn each(&self, visit: &mut dyn FnMut(&str, &str)) {
        for (key, value) in self {
            visit(key, value);
        }
    }
}

impl<S: std::hash::BuildHasher> Labels for HashMap<String, String, S> {
    fn value(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }

    fn each(&self, visit: &mut dyn FnMut(&str, &str)) {
        for (key, value) in self {
            visit(key, value);
        }
    }
}

impl<L: Labels> Labels for Option<L> {
    fn value(&self, key: &str) -> Option<&str> {
        self.as_ref().and_then(|labels| labels.value(key))
    }

    fn each(&self, visit: &mut dyn FnMut(&str, &str)) {
        if let Some(labels) = self {
            labels.each(visit);
        }
    }
}

impl<L: Labels + ?Sized> Labels for &L {
    fn value(&self, key: &str) -> Option<&str> {
        (**self).value(key)
    }

    fn each(&self, visit: &mut dyn FnMut(&str, &str)) {
        (**self).each(visit);
    }
}

/// A conjunction of requirements. The empty one matches everything.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selector {
    requirements: Vec<Requirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Requirement {
    key: Box<str>,
    test: Test,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Test {
    Exists,
    Absent,
    In(Vec<Box<str>>),
    NotIn(Vec<Box<str>>),
    Above(i64),
    Below(i64),
}

impl Selector {
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        parse::parse(text).map(|requirements| Self { requirements })
    }

    pub fn matches(&self, labels: &(impl Labels + ?Sized)) -> bool {
        self.requirements.iter().all(|requirement| requirement.matches(labels.value(&requirement.key)))
    }

    /// Whether it asks for nothing and so matches everything.
    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Sets of labels without which it judges an object like one that has no labels. One of the sets is enough to watch
    /// for: if it has nothing in common with the object's labels, the result is that of an object without any.
    pub(super) fn signs(&self) -> Vec<Vec<Sign<'_>>> {
        // A requirement that nothing fulfils keeps the whole from matching until it is met itself, so any one such
        // requirement will do. Where there is none, the whole matches, until any of them is broken.
        let (met, unmet): (Vec<_>, Vec<_>) = self.requirements.iter().partition(|one| one.matches(None));
        if unmet.is_empty() {
            return vec![met.into_iter().flat_map(Requirement::signs).collect()];
        }
        unmet.into_iter().map(|one| one.signs().collect()).collect()
    }
}

/// A label that changes what a selector says: this key, with this value or with any.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Sign<'s> {
    pub(super) key: &'s str,
    pub(super) value: Option<&'s str>,
}

impl Requirement {
    fn signs(&self) -> impl Iterator<Item = Sign<'_>> {
        let (values, any): (&[Box<str>], bool) = match &self.test {
            Test::In(values) | Test::NotIn(values) => (values, false),
            Test::Exists | Test::Absent | Test::Above(_) | Test::Below(_) => (&[], true),
        };
        let sign = |value| Sign { key: &self.key, value };
        values.iter().map(|value| Some(&**value)).chain(any.then_some(None)).map(sign)
    }

    fn matches(&self, value: Option<&str>) -> bool {
        // A value that is no integer is neither above nor below one.
        let number = || value.and_then(|value| value.parse::<i64>().ok());
        let listed =
            |values: &[Box<str>]| value.is_some_and(|value| values.iter().any(|one| **one == *value));
        match &self.test {
            Test::Exists => value.is_some(),
            Test::Absent => value.is_none(),
            Test::In(values) => listed(values),
            Test::NotIn(values) => !listed(values),
            Test::Above(bound) => number().is_some_and(|number| number > *bound),
            Test::Below(bound) => number().is_some_and(|number| number < *bound),
        }
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        Self::parse(text)
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Requirement { key, test }) in self.requirements.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            match test {
                Test::Exists => f.write_str(key)?,
                Test::Absent => write!(f, "!{key}")?,
                Test::In(values) => write!(f, "{key} in ({})", values.join(","))?,
                Test::NotIn(values) => write!(f, "{key} notin ({})", values.join(","))?,
                Test::Above(bound) => write!(f, "{key}>{bound}")?,
                Test::Below(bound) => write!(f, "{key}<{bound}")?,
            }
        }
        Ok(())
    }
}
