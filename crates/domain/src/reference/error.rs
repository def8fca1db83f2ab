//! What is wrong with a reference, said so that a person finds the character.

use std::fmt;

use thiserror::Error;

/// The part of a reference that a problem lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    Reference,
    Host,
    Port,
    Repository,
    Tag,
    Digest,
    /// A registry host with a path below it, as mirrors and upstreams name their places.
    Location,
}

impl Part {
    fn name(self) -> &'static str {
        match self {
            Self::Reference => "image reference",
            Self::Host => "registry host",
            Self::Port => "registry port",
            Self::Repository => "repository name",
            Self::Tag => "tag",
            Self::Digest => "digest",
            Self::Location => "registry location",
        }
    }

    fn allowed(self) -> &'static str {
        match self {
            Self::Reference => "it is written as [host[:port]/]repository[:tag][@digest]",
            Self::Host => {
                "a host has letters, digits and '-' between dots, each piece starting and ending with a letter or \
                 digit, or an IPv6 address in brackets; no scheme and no user"
            }
            Self::Port => "a port has digits only",
            Self::Repository => {
                "a repository name has lower-case letters and digits, separated inside by one '.', one or two '_' or \
                 any number of '-', in segments between '/'"
            }
            Self::Tag => {
                "a tag has letters, digits, '_', '.' and '-', starting with a letter, a digit or '_'"
            }
            Self::Digest => "a digest is sha256:, sha384: or sha512: and lower-case hexadecimal digits",
            Self::Location => "it is written as host[:port][/path]",
        }
    }
}

/// What is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReferenceProblem {
    /// The part is there but empty.
    Empty,
    /// This character never occurs in this part.
    NotAllowed(char),
    /// This character occurs in this part, but not at this place: at the start or end, or beside another separator.
    Misplaced(char),
    TooLong {
        length: usize,
        limit: usize,
    },
    /// A URL instead of a host.
    Scheme,
    /// A bare image identifier, which registries cannot resolve.
    Identifier,
    UnknownAlgorithm,
    DigestLength {
        expected: usize,
        found: usize,
    },
    /// `..` in a path leads out of the registry.
    AboveRegistry,
}

/// Refusal of a text as an image reference or as a part of one.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub struct ReferenceError {
    text: String,
    read_as: Part,
    part: Part,
    position: usize,
    problem: ReferenceProblem,
}

/// Longer texts are cut in messages, so that a hostile Pod cannot flood logs and conditions.
const EXCERPT: usize = 120;

impl ReferenceError {
    pub(super) fn new(text: &str, read_as: Part, fault: Fault) -> Self {
        let before = text.get(..fault.offset).unwrap_or(text);
        let mut excerpt = String::new();
        let mut rest = text;
        if let Some((scheme, after)) = user(text) {
            excerpt = format!("{scheme}…");
            rest = after;
        }
        excerpt.extend(rest.chars().take(EXCERPT));
        if rest.chars().nth(EXCERPT).is_some() {
            excerpt.push('…');
        }
        let position = before.chars().count() + 1;
        Self { text: excerpt, read_as, part: fault.part, position, problem: fault.problem }
    }

    pub fn part(&self) -> Part {
        self.part
    }

    /// Which character of the whole text, counted from 1.
    pub fn position(&self) -> usize {
        self.position
    }

    pub fn problem(&self) -> ReferenceProblem {
        self.problem
    }
}

/// What stands before and after a user and password, where a text has them. No reference does, but URLs may.
fn user(text: &str) -> Option<(&str, &str)> {
    let start = text.find("://").map_or(0, |at| at + "://".len());
    let (scheme, rest) = text.split_at_checked(start)?;
    let (authority, _) = rest.split_once('/')?;
    let at = authority.rfind('@')?;
    Some((scheme, rest.get(at..)?))
}

impl fmt::Display for ReferenceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { text, read_as, part, position, problem } = self;
        let name = part.name();
        write!(f, "{text:?} is not a valid {}", read_as.name())?;
        match problem {
            ReferenceProblem::Empty => write!(f, ": the {name} is empty at character {position}")?,
            ReferenceProblem::NotAllowed(found) => {
                write!(f, ": {found:?} at character {position} is not allowed in the {name}")?;
            }
            ReferenceProblem::Misplaced(found) => {
                write!(f, ": {found:?} at character {position} is not allowed at this place of the {name}")?;
            }
            ReferenceProblem::TooLong { length, limit } => {
                return write!(f, ": the {name} has {length} characters, of which {limit} are allowed");
            }
            ReferenceProblem::Scheme => {
                return f
                    .write_str(": it starts with a scheme; remove everything up to and including \"://\"");
            }
            ReferenceProblem::Identifier => {
                return f.write_str(
                    ": 64 hexadecimal digits are an image's identifier, not a name; write name@sha256:…",
                );
            }
            ReferenceProblem::UnknownAlgorithm => {
                return write!(
                    f,
                    ": the digest algorithm at character {position} is not known; use sha256, sha384 or sha512"
                );
            }
            ReferenceProblem::DigestLength { expected, found } => {
                return write!(f, ": the digest has {found} hexadecimal digits instead of {expected}");
            }
            ReferenceProblem::AboveRegistry => {
                return f.write_str(": \"..\" leads out of the registry; remove it");
            }
        }
        write!(f, "; {}", part.allowed())
    }
}

/// A problem inside a piece of text, located by byte offset; becomes an error once the whole text is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) part: Part,
    pub(super) offset: usize,
    pub(super) problem: ReferenceProblem,
}

impl Fault {
    pub(super) fn new(part: Part, offset: usize, problem: ReferenceProblem) -> Self {
        Self { part, offset, problem }
    }

    /// The same fault, seen from a text in which the piece starts at `base`.
    pub(super) fn shifted(self, base: usize) -> Self {
        Self { offset: self.offset + base, ..self }
    }
}
