//! Kubernetes label selectors, written as text, for labels and annotations alike.
//!
//! The grammar and the meaning are apimachinery's, including what is easy to forget: `!=` and `notin` also match an
//! object without the key, `in ()` means the empty value, and `>` and `<` compare integers.

mod parse;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    str::FromStr,
};

pub use self::parse::{Expected, SelectorError};

/// Anything that holds labels or annotations.
pub trait Labels {
    fn value(&self, key: &str) -> Option<&str>;
}

impl Labels for BTreeMap<String, String> {
    fn value(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

impl<S: std::hash::BuildHasher> Labels for HashMap<String, String, S> {
    fn value(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

impl<L: Labels> Labels for Option<L> {
    fn value(&self, key: &str) -> Option<&str> {
        self.as_ref().and_then(|labels| labels.value(key))
    }
}

impl<L: Labels + ?Sized> Labels for &L {
    fn value(&self, key: &str) -> Option<&str> {
        (**self).value(key)
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
}

impl Requirement {
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
