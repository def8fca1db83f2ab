//! Manifests as text in which every value knows where it stands, so that a digest can be put behind a tag and every
//! other byte stays as it is: comments, order, quotes, indentation.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::rc::Rc;

use anyhow::{Result, anyhow};
use serde_json::{Map, Value};
use serde_saphyr::granit_parser::{self, Event, Parser, ScalarStyle, Span};

/// Depth at which a file is something else than a manifest.
const DEEPEST: usize = 128;

/// Places that aliases put values at, in one document. A few lines can name more of them than there is memory for.
const MOST_ALIASED: usize = 1_000_000;

#[derive(Debug)]
pub(super) struct Node {
    pub(super) line: usize,
    content: NodeContent,
}

#[derive(Debug)]
enum NodeContent {
    Scalar {
        text: String,
        quoted: bool,
        /// Byte at which the value can be continued; none where it spans lines.
        end: Option<usize>,
    },
    List(Vec<Rc<Node>>),
    Map(Vec<(String, Rc<Node>)>),
}

impl Node {
    /// The value of a key, which may come from a map that is merged in with `<<`.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let NodeContent::Map(entries) = &self.content else { return None };
        let own = entries.iter().rev().find(|(found, _)| found == key).map(|(_, value)| &**value);
        own.or_else(|| {
            let merged = entries.iter().filter(|(found, _)| found == "<<").map(|(_, value)| &**value);
            merged.flat_map(|value| std::iter::once(value).chain(value.items())).find_map(|map| map.get(key))
        })
    }

    pub(super) fn at(&self, path: &[&str]) -> Option<&Self> {
        path.iter().try_fold(self, |node, key| node.get(key))
    }

    pub(super) fn items(&self) -> impl Iterator<Item = &Self> {
        let items = if let NodeContent::List(items) = &self.content { items.as_slice() } else { &[] };
        items.iter().map(|item| &**item)
    }

    /// The text of a value that is one; empty counts as none.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.content {
            NodeContent::Scalar { text, quoted, .. } if *quoted || !is_null(text) => {
                Some(text).filter(|text| !text.is_empty()).map(String::as_str)
            }
            _ => None,
        }
    }

    /// Where the value can be continued.
    pub(super) fn end(&self) -> Option<usize> {
        if let NodeContent::Scalar { end, .. } = &self.content { *end } else { None }
    }

    /// Every place in the document at which one of these values stands, by where it ends: written out, by an alias, or
    /// by a map that is merged in. None: aliases put values at more places than are gone through.
    pub(super) fn places_of(&self, ends: &HashSet<usize>) -> Option<Vec<(usize, String)>> {
        let mut walk = Walk { ends, path: Vec::new(), aliased: 0, found: Vec::new() };
        walk.through(self, false)?;
        Some(walk.found)
    }

    /// The value with all texts as texts, which is enough for names and labels.
    pub(super) fn value(&self) -> Value {
        match &self.content {
            NodeContent::Scalar { text, quoted: false, .. } if is_null(text) => Value::Null,
            NodeContent::Scalar { text, .. } => Value::String(text.clone()),
            NodeContent::List(items) => items.iter().map(|item| item.value()).collect(),
            NodeContent::Map(entries) => {
                let entries = entries.iter().map(|(key, value)| (key.clone(), value.value()));
                Value::Object(entries.collect::<Map<_, _>>())
            }
        }
    }
}

/// A walk through all places of a document.
struct Walk<'n> {
    ends: &'n HashSet<usize>,
    path: Vec<Step<'n>>,
    /// Values that were come by behind an alias, or an anchor that has one.
    aliased: usize,
    found: Vec<(usize, String)>,
}

enum Step<'n> {
    Key(&'n str),
    Index(usize),
    /// What a map merges in is as its own.
    Merged,
}

impl<'n> Walk<'n> {
    fn through(&mut self, node: &'n Node, shared: bool) -> Option<()> {
        self.aliased += usize::from(shared);
        if self.aliased > MOST_ALIASED || self.path.len() > 2 * DEEPEST {
            return None;
        }
        match &node.content {
            NodeContent::Scalar { end, .. } => {
                if let Some(end) = end.filter(|end| self.ends.contains(end)) {
                    self.found.push((end, self.told()));
                }
            }
            NodeContent::List(items) => {
                let merges = matches!(self.path.last(), Some(Step::Merged));
                for (index, item) in items.iter().enumerate() {
                    self.step(if merges { Step::Merged } else { Step::Index(index) }, item, shared)?;
                }
            }
            NodeContent::Map(entries) => {
                for (key, value) in entries {
                    self.step(if key == "<<" { Step::Merged } else { Step::Key(key) }, value, shared)?;
                }
            }
        }
        Some(())
    }

    fn step(&mut self, step: Step<'n>, node: &'n Rc<Node>, shared: bool) -> Option<()> {
        self.path.push(step);
        self.through(node, shared || Rc::strong_count(node) > 1)?;
        self.path.pop();
        Some(())
    }

    fn told(&self) -> String {
        let mut told = String::new();
        for step in &self.path {
            match step {
                Step::Key(key) if told.is_empty() => told.push_str(key),
                Step::Key(key) => told.extend([".", key]),
                Step::Index(index) => _ = write!(told, "[{index}]"),
                Step::Merged => {}
            }
        }
        told
    }
}

fn is_null(text: &str) -> bool {
    matches!(text, "" | "~" | "null" | "Null" | "NULL")
}

/// The documents of a text, those without content left out. The error begins with the line.
pub(super) fn parse(text: &str) -> Result<Vec<Rc<Node>>> {
    let mut builder = Builder { text, open: Vec::new(), anchors: HashMap::new(), documents: Vec::new() };
    // Only some dozens of comments in a row are taken where they are read. They stay in the text all the same.
    let options = granit_parser::options! { emit_comments: false };
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event
            .map_err(|error| anyhow!("line {}: this is not YAML: {}", error.marker().line(), error.info()))?;
        builder.take(event, span)?;
    }
    Ok(builder.documents)
}

struct Builder<'t> {
    text: &'t str,
    open: Vec<Open>,
    anchors: HashMap<usize, Rc<Node>>,
    documents: Vec<Rc<Node>>,
}

/// A list or map whose end has not been read yet.
struct Open {
    line: usize,
    anchor: usize,
    is_map: bool,
    nodes: Vec<Rc<Node>>,
}

impl Builder<'_> {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<()> {
        let line = span.start.line();
        match event {
            Event::DocumentStart(..) => self.anchors.clear(),
            Event::Scalar(text, style, anchor, _) => {
                let end = self.end(&text, style, span);
                let quoted = !matches!(style, ScalarStyle::Plain);
                let content = NodeContent::Scalar { text: text.into_owned(), quoted, end };
                self.close(Node { line, content }, anchor);
            }
            Event::SequenceStart(_, anchor, _) => self.begin(line, anchor, false)?,
            Event::MappingStart(_, anchor, _) => self.begin(line, anchor, true)?,
            Event::SequenceEnd | Event::MappingEnd => {
                let Some(open) = self.open.pop() else { return Ok(()) };
                let content = if open.is_map {
                    let mut nodes = open.nodes.into_iter();
                    let mut entries = Vec::new();
                    while let (Some(key), Some(value)) = (nodes.next(), nodes.next()) {
                        let NodeContent::Scalar { text, .. } = &key.content else { continue };
                        entries.push((text.clone(), value));
                    }
                    NodeContent::Map(entries)
                } else {
                    NodeContent::List(open.nodes)
                };
                self.close(Node { line: open.line, content }, open.anchor);
            }
            Event::Alias(anchor) => {
                let known = self.anchors.get(&anchor).cloned();
                self.place(
                    known.ok_or_else(|| anyhow!("line {line}: this alias refers to what it stands in"))?,
                );
            }
            _ => {}
        }
        Ok(())
    }

    fn begin(&mut self, line: usize, anchor: usize, is_map: bool) -> Result<()> {
        anyhow::ensure!(
            self.open.len() < DEEPEST,
            "line {line}: it is nested more than {DEEPEST} levels deep"
        );
        self.open.push(Open { line, anchor, is_map, nodes: Vec::new() });
        Ok(())
    }

    fn close(&mut self, node: Node, anchor: usize) {
        let node = Rc::new(node);
        if anchor > 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        self.place(node);
    }

    fn place(&mut self, node: Rc<Node>) {
        match self.open.last_mut() {
            Some(open) => open.nodes.push(node),
            None if matches!(&node.content, NodeContent::Map(_) | NodeContent::List(_)) => {
                self.documents.push(node);
            }
            None => {}
        }
    }

    /// Behind the last letter of a value that stands on one line, before its closing quote.
    fn end(&self, value: &str, style: ScalarStyle, span: Span) -> Option<usize> {
        let start = span.start.byte_offset()?;
        match style {
            ScalarStyle::Plain => {
                let end = start.checked_add(value.len())?;
                (self.text.get(start..end)? == value).then_some(end)
            }
            ScalarStyle::SingleQuoted | ScalarStyle::DoubleQuoted => {
                let quote = if matches!(style, ScalarStyle::SingleQuoted) { '\'' } else { '"' };
                let written = self.text.get(start..span.end.byte_offset()?)?.trim_end();
                let inside = written.strip_prefix(quote)?.strip_suffix(quote)?;
                (!inside.contains('\n')).then(|| start + 1 + inside.len())
            }
            _ => None,
        }
    }
}

/// Puts texts behind values, each at its place.
pub(super) fn insert(text: &str, insertions: &[(usize, String)]) -> String {
    let mut insertions: Vec<_> = insertions.iter().collect();
    insertions.sort();
    insertions.dedup();
    let (mut result, mut from) = (String::with_capacity(text.len() + insertions.len() * 80), 0);
    for (at, added) in insertions {
        result.push_str(text.get(from..*at).unwrap_or_default());
        result.push_str(added);
        from = *at;
    }
    result.push_str(text.get(from..).unwrap_or_default());
    result
}
