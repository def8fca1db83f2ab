//! Filters of policies: which images and which Pods a policy is about.
//!
//! Two shapes exist. The unified filter groups its items by what they look at; groups are AND-ed, items of a group
//! OR-ed, and a group without an include lets everything pass. The older image filter lists patterns; with both of its
//! lists empty it lets *nothing* pass. Which of the two applies is decided here, once.

use std::sync::Arc;

use thiserror::Error;

use super::label::{Labels, Selector, SelectorError};
use super::pattern::{Pattern, PatternError};

/// One item of a unified filter, as written. An empty text belongs to no group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FilterItem<'a> {
    Image(&'a str),
    Label(&'a str),
    Annotation(&'a str),
    Namespace(&'a str),
}

impl<'a> FilterItem<'a> {
    /// The item's key as manifests spell it, and its text.
    fn parts(self) -> (&'static str, &'a str) {
        match self {
            Self::Image(text) => ("image", text),
            Self::Label(text) => ("label", text),
            Self::Annotation(text) => ("annotation", text),
            Self::Namespace(text) => ("namespace", text),
        }
    }
}

/// A unified filter, as written.
#[derive(Debug, Clone, Copy, Default)]
pub struct Rules<'a> {
    pub include: &'a [FilterItem<'a>],
    pub exclude: &'a [FilterItem<'a>],
}

impl Rules<'_> {
    /// Whether it has no item at all; an item with an empty text is one.
    pub fn is_empty(&self) -> bool {
        self.include.is_empty() && self.exclude.is_empty()
    }
}

/// An item that does not compile, with the path of its field below the policy's spec.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{field}: {source}")]
pub struct FilterError {
    field: String,
    source: ItemError,
}

impl FilterError {
    pub fn field(&self) -> &str {
        &self.field
    }

    /// What is wrong, without the field.
    pub fn problem(&self) -> &ItemError {
        &self.source
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ItemError {
    #[error(transparent)]
    Pattern(#[from] PatternError),
    #[error(transparent)]
    Selector(#[from] SelectorError),
}

/// Includes and excludes of one kind.
#[derive(Debug, Clone)]
pub(super) struct IncludeExclude<T> {
    pub(super) include: Vec<T>,
    pub(super) exclude: Vec<T>,
}

impl<T> IncludeExclude<T> {
    fn compile<E: Into<ItemError>>(
        rules: Rules<'_>,
        key: &str,
        parse: impl Fn(&str) -> Result<T, E>,
    ) -> Result<Self, FilterError> {
        let list = |name: &str, items: &[FilterItem<'_>]| {
            let mut compiled = Vec::new();
            for (index, item) in items.iter().enumerate() {
                let (item_key, text) = item.parts();
                if item_key == key && !text.is_empty() {
                    let one = parse(text).map_err(|source| FilterError {
                        field: format!("filter.{name}[{index}].{key}"),
                        source: source.into(),
                    })?;
                    compiled.push(one);
                }
            }
            Ok(compiled)
        };
        Ok(Self { include: list("include", rules.include)?, exclude: list("exclude", rules.exclude)? })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.include.is_empty() && self.exclude.is_empty()
    }

    /// A group without an include lets everything pass that it does not exclude.
    pub(super) fn passes(&self, matches: impl Fn(&T) -> bool) -> bool {
        (self.include.is_empty() || self.include.iter().any(&matches)) && !self.exclude.iter().any(&matches)
    }
}

/// Which images pass.
#[derive(Debug, Clone)]
pub struct ImageFilter {
    patterns: IncludeExclude<Pattern>,
    /// Without an include, everything passes that is not excluded; otherwise nothing does.
    open: bool,
}

impl ImageFilter {
    /// Lets no image pass.
    pub fn nothing() -> Self {
        Self { patterns: IncludeExclude { include: Vec::new(), exclude: Vec::new() }, open: false }
    }

    /// The image items of a unified filter.
    pub fn unified(rules: Rules<'_>) -> Result<Self, FilterError> {
        let patterns = IncludeExclude::compile(rules, "image", Pattern::parse)?;
        let open = patterns.include.is_empty();
        Ok(Self { patterns, open })
    }

    /// An `imageFilter`: only excludes means everything else, nothing at all means nothing.
    pub fn legacy(include: &[impl AsRef<str>], exclude: &[impl AsRef<str>]) -> Result<Self, FilterError> {
        fn list(name: &str, texts: &[impl AsRef<str>]) -> Result<Vec<Pattern>, FilterError> {
            let compile = |(index, text): (usize, &_)| {
                Pattern::parse(AsRef::<str>::as_ref(text)).map_err(|error| FilterError {
                    field: format!("imageFilter.{name}[{index}]"),
                    source: error.into(),
                })
            };
            texts.iter().enumerate().map(compile).collect()
        }
        let patterns =
            IncludeExclude { include: list("include", include)?, exclude: list("exclude", exclude)? };
        let open = patterns.include.is_empty() && !patterns.exclude.is_empty();
        Ok(Self { patterns, open })
    }

    pub fn include(&self) -> &[Pattern] {
        &self.patterns.include
    }

    pub fn exclude(&self) -> &[Pattern] {
        &self.patterns.exclude
    }

    /// Whether everything passes that is not excluded.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// Whether an image passes, given its forms: one form that is included suffices, one that is excluded too.
    pub fn matches<'t>(&self, forms: impl IntoIterator<Item = &'t str, IntoIter: Clone>) -> bool {
        let forms = forms.into_iter();
        let any = |pattern: &Pattern| forms.clone().any(|text| pattern.matches(text));
        (self.open || self.patterns.include.iter().any(any)) && !self.patterns.exclude.iter().any(any)
    }
}

/// What a filter sees of a Pod.
#[derive(Clone, Copy)]
pub struct PodFacts<'a> {
    pub namespace: &'a str,
    pub labels: &'a dyn Labels,
    pub annotations: &'a dyn Labels,
}

impl std::fmt::Debug for PodFacts<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PodFacts").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

/// Which Pods pass: by labels, annotations and namespace, each judged by itself. Clones share what was compiled.
#[derive(Debug, Clone)]
pub struct PodMatcher(Arc<PodGroups>);

#[derive(Debug)]
pub(super) struct PodGroups {
    pub(super) labels: IncludeExclude<Selector>,
    pub(super) annotations: IncludeExclude<Selector>,
    pub(super) namespaces: IncludeExclude<Pattern>,
}

impl PodMatcher {
    /// Every item of a unified filter that is not about images.
    pub fn compile(rules: Rules<'_>) -> Result<Self, FilterError> {
        Ok(Self(Arc::new(PodGroups {
            labels: IncludeExclude::compile(rules, "label", Selector::parse)?,
            annotations: IncludeExclude::compile(rules, "annotation", Selector::parse)?,
            namespaces: IncludeExclude::compile(rules, "namespace", Pattern::parse)?,
        })))
    }

    pub fn matches(&self, pod: &PodFacts<'_>) -> bool {
        self.refused_for(pod).is_none()
    }

    /// What keeps a Pod from passing: its namespace, labels or annotations; `None` if it passes.
    pub fn refused_for(&self, pod: &PodFacts<'_>) -> Option<&'static str> {
        if !self.0.namespaces.passes(|pattern| pattern.matches(pod.namespace)) {
            return Some("namespace");
        }
        if !self.0.labels.passes(|selector| selector.matches(pod.labels)) {
            return Some("labels");
        }
        (!self.0.annotations.passes(|selector| selector.matches(pod.annotations))).then_some("annotations")
    }

    pub(super) fn matches_labels(&self, labels: &dyn Labels, annotations: &dyn Labels) -> bool {
        self.0.labels.passes(|selector| selector.matches(labels))
            && self.0.annotations.passes(|selector| selector.matches(annotations))
    }

    pub(super) fn groups(&self) -> &PodGroups {
        &self.0
    }
}

/// What a policy that selects images itself is about.
#[derive(Debug, Clone)]
pub struct Scope {
    pub images: ImageFilter,
    pub pods: PodMatcher,
}

impl Scope {
    /// Decides which filter applies: the unified one as soon as it has any item, else the image filter; with neither,
    /// no image passes. Where both are set, in spite of validation, the unified one wins.
    pub fn decide(
        unified: Rules<'_>,
        legacy_include: &[impl AsRef<str>],
        legacy_exclude: &[impl AsRef<str>],
    ) -> Result<Self, FilterError> {
        let images = if unified.is_empty() {
            ImageFilter::legacy(legacy_include, legacy_exclude)?
        } else {
            ImageFilter::unified(unified)?
        };
        Ok(Self { images, pods: PodMatcher::compile(unified)? })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const NGINX: &str = "docker.io/library/nginx:1.29";
    const NONE: [&str; 0] = [];

    fn pods(
        rules: Rules<'_>,
        namespace: &str,
        labels: &[(&str, &str)],
        annotations: &[(&str, &str)],
    ) -> bool {
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let (labels, annotations) = (map(labels), map(annotations));
        let facts = PodFacts { namespace, labels: &labels, annotations: &annotations };
        PodMatcher::compile(rules).unwrap().matches(&facts)
    }

    #[test]
    fn legacy_filter() {
        let passes = |include: &[&str], exclude: &[&str]| {
            ImageFilter::legacy(include, exclude).unwrap().matches([NGINX])
        };
        assert!(!passes(&[], &[]));
        assert!(passes(&[".*"], &[]));
        assert!(passes(&[], &["quay.*"]));
        assert!(!passes(&[], &["docker.*"]));
        assert!(!passes(&[".*"], &["docker.*"]));
        assert!(!passes(&["nginx"], &[]));
        assert!(!passes(&[""], &[]));
        assert!(!ImageFilter::nothing().matches([NGINX]));
    }

    #[test]
    fn the_decision_table() {
        use FilterItem::{Image, Label};
        let images = |unified: Rules<'_>, include: &[&str]| {
            Scope::decide(unified, include, &NONE).unwrap().images.matches([NGINX])
        };
        let none = Rules::default();
        let quay = [Image("quay.*")];
        let quay = Rules { include: &quay, exclude: &[] };
        let label = [Label("app")];
        let label = Rules { include: &label, exclude: &[] };
        let empty = [Image("")];
        let empty = Rules { include: &empty, exclude: &[] };
        let exclude = [Image("docker.*")];
        let exclude = Rules { include: &[], exclude: &exclude };
        assert!(!images(none, &[]), "neither: no image");
        assert!(images(none, &[".*"]), "only imageFilter");
        assert!(!images(quay, &[]), "image items");
        assert!(images(label, &[]), "a filter without image items is about every image");
        assert!(images(empty, &[]), "an empty item is in no group but is an item");
        assert!(!images(exclude, &[]));
        assert!(!images(quay, &[".*"]), "filter wins over imageFilter");
        assert!(images(label, &["quay.*"]), "and imageFilter is then ignored");
        let all_pods = Scope::decide(none, &[".*"], &NONE).unwrap().pods;
        let nothing = BTreeMap::new();
        let facts = PodFacts { namespace: "any", labels: &nothing, annotations: &nothing };
        assert!(all_pods.matches(&facts));
    }

    #[test]
    fn groups_are_and_ed_and_their_items_or_ed() {
        use FilterItem::{Annotation, Label, Namespace};
        let include = [Label("app=a"), Label("app=b"), Namespace("prod"), Annotation("owner")];
        let exclude = [Label("skip"), Namespace("kube-.*")];
        let rules = Rules { include: &include, exclude: &exclude };
        let owner = [("owner", "me")];
        assert!(pods(rules, "prod", &[("app", "a")], &owner));
        assert!(pods(rules, "prod", &[("app", "b")], &owner));
        assert!(!pods(rules, "prod", &[("app", "c")], &owner));
        assert!(!pods(rules, "prod-1", &[("app", "a")], &owner));
        assert!(!pods(rules, "prod", &[("app", "a")], &[]));
        assert!(!pods(rules, "prod", &[("app", "a"), ("skip", "")], &owner));
        let only_exclude = Rules { include: &[], exclude: &exclude };
        assert!(pods(only_exclude, "prod", &[], &[]));
        assert!(!pods(only_exclude, "kube-system", &[], &[]));
    }

    #[test]
    fn any_form_counts_for_include_and_exclude() {
        let forms = ["a:1@sha256:0", "a:1", "a@sha256:0"];
        let passes = |include: &str, exclude: &[&str]| {
            ImageFilter::legacy(&[include], exclude).unwrap().matches(forms)
        };
        assert!(passes("a:1", &[]));
        assert!(passes("a@.*", &[]));
        assert!(!passes(".*", &["a:1"]));
        assert!(!passes(".*", &["a@.*"]));
    }

    #[test]
    fn errors_name_the_field() {
        let include = [FilterItem::Image("ok"), FilterItem::Image("(")];
        let error = ImageFilter::unified(Rules { include: &include, exclude: &[] }).unwrap_err();
        assert_eq!(error.field(), "filter.include[1].image");
        assert!(
            error.to_string().starts_with("filter.include[1].image: regular expression \"(\": character 1: ")
        );
        let exclude = [FilterItem::Label("a==="), FilterItem::Namespace("*")];
        let error = PodMatcher::compile(Rules { include: &[], exclude: &exclude }).unwrap_err();
        assert_eq!(error.field(), "filter.exclude[0].label");
        let error = ImageFilter::legacy(&["a"], &["b", "[c"]).unwrap_err();
        assert_eq!(error.field(), "imageFilter.exclude[1]");
    }
}
