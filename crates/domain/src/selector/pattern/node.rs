//! The meaning of a pattern as a tree: what it matches, without how it was written.

use std::fmt;

use super::ascii::AsciiSet;

/// A piece of pattern. Groups are gone, since nothing is captured; so is greediness, since only *whether* is asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    Class(AsciiSet),
    Look(Look),
    /// Of none is the empty text.
    Concat(Vec<Node>),
    Alternate(Vec<Node>),
    Repeat {
        node: Box<Node>,
        least: u32,
        most: Option<u32>,
    },
}

/// Assertions that consume nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    TextStart,
    TextEnd,
    LineStart,
    LineEnd,
    WordEdge,
    NoWordEdge,
}

/// Written in the syntax of the engine that runs it, using nothing in which that differs from RE2.
impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Class(set) => write_class(*set, f),
            Self::Look(look) => f.write_str(match look {
                Look::TextStart => r"\A",
                Look::TextEnd => r"\z",
                Look::LineStart => "(?m:^)",
                Look::LineEnd => "(?m:$)",
                Look::WordEdge => r"(?-u:\b)",
                Look::NoWordEdge => r"(?-u:\B)",
            }),
            Self::Concat(nodes) => nodes.iter().try_for_each(|node| write!(f, "{}", Grouped(node))),
            Self::Alternate(nodes) => nodes.iter().enumerate().try_for_each(|(index, node)| {
                let bar = if index > 0 { "|" } else { "" };
                write!(f, "{bar}{node}")
            }),
            Self::Repeat { node, least, most } => {
                write!(f, "{}", Grouped(node))?;
                match (least, most) {
                    (0, None) => f.write_str("*"),
                    (1, None) => f.write_str("+"),
                    (0, Some(1)) => f.write_str("?"),
                    (least, None) => write!(f, "{{{least},}}"),
                    (least, Some(most)) => write!(f, "{{{least},{most}}}"),
                }
            }
        }
    }
}

/// A node that stays one thing whatever is written around it.
struct Grouped<'n>(&'n Node);

impl fmt::Display for Grouped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Node::Class(set) => write_class(*set, f),
            node => write!(f, "(?:{node})"),
        }
    }
}

fn write_class(set: AsciiSet, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if set == AsciiSet::EMPTY {
        // A character beyond ASCII, of which our texts have none.
        return f.write_str(r"[^\x00-\x{10FFFF}]");
    }
    if let Some(byte) = set.single().filter(u8::is_ascii_alphanumeric) {
        return write!(f, "{}", char::from(byte));
    }
    f.write_str("[")?;
    set.ranges().into_iter().try_for_each(|(low, high)| write!(f, r"\x{low:02x}-\x{high:02x}"))?;
    f.write_str("]")
}

/// Several texts of which at least one occurs in everything that a pattern matches, but for case: so patterns that
/// ignore case have them too. They are in lower case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Needles(Vec<Vec<u8>>);

/// More alternatives than this make looking for them no cheaper than matching.
const NEEDLE_LIMIT: usize = 16;

impl Needles {
    /// All that a pattern has to choose from, the longest texts first.
    pub(super) fn choices(node: &Node) -> Vec<Vec<Vec<u8>>> {
        let mut all = match node {
            Node::Concat(nodes) => Self::of_parts(nodes),
            node => Self::of(node).into_iter().collect(),
        };
        all.sort_by_key(|needles| std::cmp::Reverse(needles.worth()));
        all.into_iter().map(|needles| needles.0).collect()
    }

    /// Longer needles occur by chance less often; that is all that makes one choice better than another.
    fn worth(&self) -> usize {
        self.0.iter().map(Vec::len).min().unwrap_or(0)
    }

    fn better(one: Self, other: Self) -> Self {
        if other.worth() > one.worth() { other } else { one }
    }

    /// The best needles of a pattern, `None` when nothing in particular has to occur.
    pub(super) fn of(node: &Node) -> Option<Self> {
        match node {
            Node::Class(set) => set.letter().map(|byte| Self(vec![vec![byte]])),
            Node::Look(_) => None,
            Node::Concat(nodes) => Self::of_parts(nodes).into_iter().reduce(Self::better),
            Node::Alternate(nodes) => {
                let all: Option<Vec<_>> = nodes.iter().map(Self::of).collect();
                let texts: Vec<_> = all?.into_iter().flat_map(|needles| needles.0).collect();
                (texts.len() <= NEEDLE_LIMIT).then_some(Self(texts))
            }
            Node::Repeat { node, least, .. } => {
                if *least > 0 {
                    Self::of(node)
                } else {
                    None
                }
            }
        }
    }

    /// What has to occur in a sequence, one after the other.
    fn of_parts(nodes: &[Node]) -> Vec<Self> {
        let mut parts = Vec::new();
        let mut run = Vec::new();
        for node in nodes {
            if let Node::Class(set) = node
                && let Some(byte) = set.letter()
            {
                run.push(byte);
                continue;
            }
            // An assertion stands between two characters without separating them.
            if matches!(node, Node::Look(_)) {
                continue;
            }
            parts.extend(Self::of_run(&mut run));
            parts.extend(Self::of(node));
        }
        parts.extend(Self::of_run(&mut run));
        parts
    }

    fn of_run(run: &mut Vec<u8>) -> Option<Self> {
        (!run.is_empty()).then(|| Self(vec![std::mem::take(run)]))
    }
}
