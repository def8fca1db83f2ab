//! The YAML document as a tree in which every key and value knows its line.
//!
//! Values are kept as the text that was written, with its quoting, and get a meaning only where the key that holds them
//! is known. So nothing is guessed: `no` is a text wherever a text is wanted, and never a boolean.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_saphyr::granit_parser::{self, Event, Parser, ScalarStyle, Span};

use super::problem::{ConfigProblem, Problems};

#[derive(Debug)]
pub(super) struct YamlNode {
    pub(super) line: usize,
    pub(super) content: NodeContent,
}

#[derive(Debug)]
pub(super) enum NodeContent {
    Scalar { text: String, quoted: bool },
    List(Vec<Rc<YamlNode>>),
    Map(Vec<MapEntry>),
}

#[derive(Debug, Clone)]
pub(super) struct MapEntry {
    pub(super) key: String,
    pub(super) line: usize,
    pub(super) value: Rc<YamlNode>,
}

impl YamlNode {
    /// A key without a value, which means the same as leaving the key out.
    pub(super) fn is_null(&self) -> bool {
        matches!(&self.content, NodeContent::Scalar { text, quoted: false } if matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL"))
    }

    /// What the value is, in the words of a message.
    pub(super) fn what(&self) -> String {
        match &self.content {
            NodeContent::Scalar { text, .. } => format!("`{text}`"),
            NodeContent::List(_) => "a list".to_owned(),
            NodeContent::Map(_) => "a map of keys".to_owned(),
        }
    }
}

/// Reads one document; none if the text holds nothing but comments, or cannot be read to its end.
pub(super) fn parse(text: &str, problems: &mut Problems) -> Option<Rc<YamlNode>> {
    let mut builder = Builder::default();
    // Only some dozens of comments in a row are taken where they are read.
    let options = granit_parser::options! { emit_comments: false };
    let read = Parser::new_from_str_with_options(text, options).try_for_each(|event| match event {
        Ok((event, span)) => builder.take(event, span),
        Err(error) => {
            Err(ConfigProblem::at(error.marker().line(), "", format!("this is not YAML: {}", error.info())))
        }
    });
    problems.append(&mut builder.duplicates);
    match read {
        Ok(()) => builder.root,
        Err(problem) => {
            problems.push(problem);
            None
        }
    }
}

#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    anchors: BTreeMap<usize, Rc<YamlNode>>,
    root: Option<Rc<YamlNode>>,
    duplicates: Problems,
}

/// A list or map whose end has not been read yet.
struct Open {
    line: usize,
    anchor: usize,
    kind: OpenKind,
}

enum OpenKind {
    List(Vec<Rc<YamlNode>>),
    Map { entries: Vec<MapEntry>, key: Option<(String, usize)>, merged: Vec<Rc<YamlNode>> },
}

impl Builder {
    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), ConfigProblem> {
        let line = span.start.line();
        match event {
            Event::DocumentStart(..) if self.root.is_some() => Err(ConfigProblem::at(
                line,
                "",
                "a second document begins here: put everything into one document, without `---`",
            )),
            Event::Scalar(text, style, anchor, tag) => {
                let tagged_text = tag.as_ref().is_some_and(|tag| tag.is_yaml_core_schema_tag("str"));
                if tag.is_some() && !tagged_text {
                    return Err(ConfigProblem::at(
                        line,
                        "",
                        "YAML tags (`!…`) are not understood here: write the plain value",
                    ));
                }
                let quoted = tagged_text || !matches!(style, ScalarStyle::Plain);
                self.add(line, anchor, NodeContent::Scalar { text: text.into_owned(), quoted })
            }
            Event::SequenceStart(_, anchor, _) => {
                self.open.push(Open { line, anchor, kind: OpenKind::List(Vec::new()) });
                Ok(())
            }
            Event::MappingStart(_, anchor, _) => {
                let kind = OpenKind::Map { entries: Vec::new(), key: None, merged: Vec::new() };
                self.open.push(Open { line, anchor, kind });
                Ok(())
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            Event::Alias(anchor) => match self.anchors.get(&anchor).cloned() {
                Some(node) => self.place(node, line),
                None => Err(ConfigProblem::at(line, "", "this alias refers to the list or map it stands in")),
            },
            _ => Ok(()),
        }
    }

    fn add(&mut self, line: usize, anchor: usize, content: NodeContent) -> Result<(), ConfigProblem> {
        let node = Rc::new(YamlNode { line, content });
        if anchor != 0 {
            self.anchors.insert(anchor, Rc::clone(&node));
        }
        self.place(node, line)
    }

    fn close(&mut self) -> Result<(), ConfigProblem> {
        let Some(Open { line, anchor, kind }) = self.open.pop() else {
            return Ok(());
        };
        let content = match kind {
            OpenKind::List(items) => NodeContent::List(items),
            OpenKind::Map { mut entries, merged, .. } => {
                for entry in merged.iter().flat_map(|map| map.entries()) {
                    if !entries.iter().any(|own| own.key == entry.key) {
                        entries.push(entry.clone());
                    }
                }
                NodeContent::Map(entries)
            }
        };
        self.add(line, anchor, content)
    }

    /// Puts a finished node where it belongs: into the list or map that is open, or at the root.
    fn place(&mut self, node: Rc<YamlNode>, line: usize) -> Result<(), ConfigProblem> {
        match self.open.last_mut().map(|open| &mut open.kind) {
            None => self.root = Some(node),
            Some(OpenKind::List(items)) => items.push(node),
            Some(OpenKind::Map { entries, key, merged }) => match (key.take(), &node.content) {
                (None, NodeContent::Scalar { text, .. }) => *key = Some((text.clone(), line)),
                (None, _) => {
                    return Err(ConfigProblem::at(
                        line,
                        "",
                        "a key must be a plain word, not a list or a map",
                    ));
                }
                (Some((name, _)), _) if name == "<<" => merged.extend(maps_to_merge(&node, line)?),
                (Some((name, line)), _) => {
                    if let Some(first) = entries.iter().find(|entry| entry.key == name) {
                        let message =
                            format!("this key is there twice, first on line {}: keep one", first.line);
                        self.duplicates.push(ConfigProblem::at(line, name, message));
                    } else {
                        entries.push(MapEntry { key: name, line, value: node });
                    }
                }
            },
        }
        Ok(())
    }
}

/// The maps that a merge key (`<<: *defaults`) brings in.
fn maps_to_merge(node: &Rc<YamlNode>, line: usize) -> Result<Vec<Rc<YamlNode>>, ConfigProblem> {
    match &node.content {
        NodeContent::Map(_) => Ok(vec![Rc::clone(node)]),
        NodeContent::List(maps) if maps.iter().all(|map| matches!(map.content, NodeContent::Map(_))) => {
            Ok(maps.clone())
        }
        _ => Err(ConfigProblem::at(line, "<<", "only a map, or a list of maps, can be merged in")),
    }
}

impl YamlNode {
    pub(super) fn entries(&self) -> &[MapEntry] {
        match &self.content {
            NodeContent::Map(entries) => entries,
            NodeContent::Scalar { .. } | NodeContent::List(_) => &[],
        }
    }
}
