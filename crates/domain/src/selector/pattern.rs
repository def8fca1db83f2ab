//! Regular expressions that must match a whole text: RE2's syntax, as filters for images and namespaces use it.
//!
//! The user's text is read alone and anchored afterwards, so `a)|(b` is an error and not a half-anchored surprise.
//! Matching is linear in the text, and the common shapes (a fixed text, a prefix with anything after it) need no
//! automaton at all.
//!
//! Texts are ASCII: image references, namespaces and tags are, by their own grammars. Any other text is matched by
//! nothing but the characters it shares with them.

mod ascii;
mod classes;
mod node;
mod search;
mod syntax;
#[cfg(test)]
mod tests;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;
use std::sync::Arc;

use regex::{Regex, RegexBuilder};
use thiserror::Error;

use self::ascii::AsciiSet;
use self::node::{Look, Needles, Node};
pub use self::search::Search;

/// Longest pattern, in bytes. Custom resources allow 128 characters.
pub const PATTERN_LIMIT: usize = 1024;
/// Largest compiled automaton, in bytes: any pattern of 128 characters that a person would write fits many times.
const PROGRAM_LIMIT: usize = 256 << 10;
/// Memory that one pattern may use to speed up matching. There can be thousands of patterns.
const CACHE_LIMIT: usize = 256 << 10;

/// Why a text is not a usable pattern.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("regular expression {pattern:?}: character {position}: {problem}")]
pub struct PatternError {
    pattern: String,
    position: usize,
    problem: PatternProblem,
}

impl PatternError {
    /// Which character, counted from 1.
    pub fn position(&self) -> usize {
        self.position
    }

    pub fn problem(&self) -> PatternProblem {
        self.problem
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PatternProblem {
    #[error("this ')' closes nothing; write '\\)' for the character")]
    UnexpectedParenthesis,
    #[error("this '(' is never closed; write '\\(' for the character")]
    MissingParenthesis,
    #[error("this '[' is never closed; write '\\[' for the character")]
    MissingBracket,
    #[error("there is nothing before this to repeat; escape it with '\\' for the character")]
    NothingToRepeat,
    #[error("a repetition cannot be repeated directly; put the first one in parentheses")]
    DoubleRepeat,
    #[error(
        "repetitions are limited to 1000, nested ones multiplied, and the first number must not be the larger"
    )]
    RepeatCount,
    #[error("a group's name is written as (?P<name>…) or (?<name>…), with letters, digits and '_'")]
    GroupName,
    #[error(
        "unknown group; RE2 has (?:…), (?flags) and (?flags:…) with the flags i, m, s and U, and no look-around"
    )]
    GroupSyntax,
    #[error("unknown character class")]
    ClassName,
    #[error("this range of characters is empty: its end comes before its start")]
    ClassRange,
    #[error("unknown escape; RE2 has no back-references")]
    Escape,
    #[error("nothing follows the last '\\'; write '\\\\' for the character")]
    TrailingBackslash,
    #[error("groups are nested too deeply")]
    TooDeep,
    #[error("the pattern has more than 1024 bytes")]
    TooLong,
    #[error("the pattern is too large once its repetitions are written out")]
    TooLarge,
}

/// A compiled pattern. Clones share the automaton; patterns with the same text are equal.
#[derive(Clone)]
pub struct Pattern(Arc<Compiled>);

struct Compiled {
    text: Box<str>,
    matcher: Matcher,
    needles: Vec<Vec<Vec<u8>>>,
}

enum Matcher {
    /// Exactly this text.
    Fixed(Box<str>),
    /// This text and then at least so many characters of a set: `docker\.io/library/.+`.
    Prefix {
        prefix: Box<str>,
        then: AsciiSet,
        least: usize,
    },
    /// One character of each set, and then at least so many of one more: `docker.io/library/.+`, the usual unescaped
    /// form.
    Classes {
        each: Box<[AsciiSet]>,
        then: Option<(AsciiSet, usize)>,
    },
    Automaton(Regex),
}

impl Pattern {
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let node = read(text)?;
        let needles = Needles::choices(&node);
        let matcher = match simple(&node) {
            Some(matcher) => matcher,
            None => Matcher::Automaton(automaton(text, &format!(r"\A(?:{node})\z"))?),
        };
        Ok(Self(Arc::new(Compiled { text: text.into(), matcher, needles })))
    }

    /// The text it was compiled from.
    pub fn as_str(&self) -> &str {
        &self.0.text
    }

    pub fn matches(&self, text: &str) -> bool {
        match &self.0.matcher {
            Matcher::Fixed(fixed) => **fixed == *text,
            Matcher::Prefix { prefix, then, least } => text
                .strip_prefix(&**prefix)
                .is_some_and(|rest| rest.len() >= *least && rest.bytes().all(|byte| then.contains(byte))),
            Matcher::Classes { each, then } => {
                let Some((start, rest)) = text.as_bytes().split_at_checked(each.len()) else {
                    return false;
                };
                each.iter().zip(start).all(|(set, byte)| set.contains(*byte))
                    && match then {
                        Some((set, least)) => {
                            rest.len() >= *least && rest.iter().all(|byte| set.contains(*byte))
                        }
                        None => rest.is_empty(),
                    }
            }
            Matcher::Automaton(regex) => regex.is_match(text),
        }
    }

    /// The one text that it matches, where there is only one.
    pub(super) fn fixed(&self) -> Option<&str> {
        match &self.0.matcher {
            Matcher::Fixed(fixed) => Some(fixed),
            _ => None,
        }
    }

    /// Several lists of texts, the most selective first. Of each list at least one text occurs, but for case, in every
    /// match. Empty when no text has to occur.
    pub(super) fn needles(&self) -> &[Vec<Vec<u8>>] {
        &self.0.needles
    }
}

/// Recognises the shapes that need no automaton.
fn simple(node: &Node) -> Option<Matcher> {
    let nodes = match node {
        Node::Concat(nodes) => nodes.as_slice(),
        one => std::slice::from_ref(one),
    };
    // The whole text is matched anyway, so the anchors people write at its ends say nothing new.
    let mut nodes = nodes;
    while let [Node::Look(Look::TextStart), rest @ ..] = nodes {
        nodes = rest;
    }
    while let [rest @ .., Node::Look(Look::TextEnd)] = nodes {
        nodes = rest;
    }
    let classes = nodes.iter().map_while(|node| match node {
        Node::Class(set) => Some(*set),
        _ => None,
    });
    let each: Box<[AsciiSet]> = classes.collect();
    let then = match nodes.get(each.len()..)? {
        [] => None,
        [Node::Repeat { node, least, most: None }] => match **node {
            Node::Class(then) => Some((then, usize::try_from(*least).ok()?)),
            _ => return None,
        },
        _ => return None,
    };
    let prefix: Option<String> = each.iter().map(|set| set.single().map(char::from)).collect();
    Some(match (prefix, then) {
        (Some(fixed), None) => Matcher::Fixed(fixed.into()),
        (Some(prefix), Some((then, least))) => Matcher::Prefix { prefix: prefix.into(), then, least },
        (None, then) => Matcher::Classes { each, then },
    })
}

fn read(text: &str) -> Result<Node, PatternError> {
    if text.len() > PATTERN_LIMIT {
        return Err(refusal(text, 0, PatternProblem::TooLong));
    }
    syntax::Reader::read(text).map_err(|(offset, problem)| refusal(text, offset, problem))
}

fn refusal(text: &str, offset: usize, problem: PatternProblem) -> PatternError {
    let position = text.get(..offset).unwrap_or_default().chars().count() + 1;
    PatternError { pattern: text.chars().take(PATTERN_LIMIT).collect(), position, problem }
}

/// Compiles what was read from `text`.
fn automaton(text: &str, program: &str) -> Result<Regex, PatternError> {
    let built = RegexBuilder::new(program)
        .size_limit(PROGRAM_LIMIT)
        .dfa_size_limit(CACHE_LIMIT)
        // Our own reader limits nesting; groups that it writes must not count against a second limit.
        .nest_limit(2000)
        .build();
    built.map_err(|_| refusal(text, 0, PatternProblem::TooLarge))
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.text == other.0.text
    }
}

impl Eq for Pattern {}

impl Hash for Pattern {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.text.hash(state);
    }
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        Self::parse(text)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0.text)
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({:?})", &*self.0.text)
    }
}
