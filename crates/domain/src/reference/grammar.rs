//! The grammar of each part of a reference, as container runtimes enforce it. Every check is one pass over the bytes.

use super::error::{Fault, Part, ReferenceProblem};
use crate::digest::{Digest, DigestError};

/// Limits of the distribution specification.
pub(super) const REPOSITORY_LIMIT: usize = 255;
pub(super) const TAG_LIMIT: usize = 128;

type Check = Result<(), Fault>;

fn char_at(text: &str, offset: usize) -> char {
    text.get(offset..).and_then(|rest| rest.chars().next()).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn not_allowed(part: Part, text: &str, offset: usize) -> Fault {
    Fault::new(part, offset, ReferenceProblem::NotAllowed(char_at(text, offset)))
}

fn misplaced(part: Part, text: &str, offset: usize) -> Fault {
    Fault::new(part, offset, ReferenceProblem::Misplaced(char_at(text, offset)))
}

/// A host name, IPv4 address or bracketed IPv6 address, with an optional port.
pub(super) fn host(text: &str) -> Check {
    let name_end = if text.starts_with('[') { ipv6_literal(text)? } else { domain_name(text)? };
    match text.get(name_end..).unwrap_or_default().strip_prefix(':') {
        None => Ok(()),
        Some("") => Err(Fault::new(Part::Port, name_end + 1, ReferenceProblem::Empty)),
        Some(port) => match port.bytes().position(|byte| !byte.is_ascii_digit()) {
            Some(at) => Err(not_allowed(Part::Port, text, name_end + 1 + at)),
            None => Ok(()),
        },
    }
}

/// Runtimes look at the characters only; whether the address is one shows when it is dialled.
fn ipv6_literal(text: &str) -> Result<usize, Fault> {
    let inner = text.get(1..).unwrap_or_default();
    let address = |byte: u8| byte.is_ascii_hexdigit() || byte == b':';
    let length = inner.bytes().position(|byte| !address(byte)).unwrap_or(inner.len());
    let close = 1 + length;
    match (inner.as_bytes().get(length), length) {
        (Some(b']'), 0) => Err(Fault::new(Part::Host, 1, ReferenceProblem::Empty)),
        (Some(b']'), _) => match text.as_bytes().get(close + 1) {
            None | Some(b':') => Ok(close + 1),
            Some(_) => Err(misplaced(Part::Host, text, close + 1)),
        },
        (Some(_), _) => Err(not_allowed(Part::Host, text, close)),
        (None, _) => Err(misplaced(Part::Host, text, 0)),
    }
}

fn domain_name(text: &str) -> Result<usize, Fault> {
    let end = text.find(':').unwrap_or(text.len());
    let mut previous = b'.';
    for (offset, byte) in text.bytes().enumerate().take(end) {
        match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {}
            b'.' if previous == b'-' => return Err(misplaced(Part::Host, text, offset - 1)),
            b'-' | b'.' if previous != b'.' => {}
            b'-' | b'.' => return Err(misplaced(Part::Host, text, offset)),
            _ => return Err(not_allowed(Part::Host, text, offset)),
        }
        previous = byte;
    }
    match previous {
        _ if end == 0 => Err(Fault::new(Part::Host, 0, ReferenceProblem::Empty)),
        b'.' | b'-' => Err(misplaced(Part::Host, text, end - 1)),
        _ => Ok(end),
    }
}

/// One or more segments between slashes. The length limit is the caller's: it counts what normalisation adds.
pub(super) fn path(text: &str) -> Check {
    // What came before: a letter or digit, or the separator that only a letter or digit may follow.
    let mut previous = b'/';
    let mut doubled = false;
    for (offset, byte) in text.bytes().enumerate() {
        let after_text = previous.is_ascii_alphanumeric();
        let fine = match byte {
            b'/' if previous == b'/' => {
                return Err(Fault::new(Part::Repository, offset, ReferenceProblem::Empty));
            }
            b'/' if !after_text => return Err(misplaced(Part::Repository, text, offset - 1)),
            b'/' | b'a'..=b'z' | b'0'..=b'9' => true,
            b'.' => after_text,
            b'-' => after_text || previous == b'-',
            b'_' => after_text || (previous == b'_' && !doubled),
            _ => return Err(not_allowed(Part::Repository, text, offset)),
        };
        if !fine {
            return Err(misplaced(Part::Repository, text, offset));
        }
        doubled = byte == b'_' && previous == b'_';
        previous = byte;
    }
    match previous {
        b'/' => Err(Fault::new(Part::Repository, text.len(), ReferenceProblem::Empty)),
        b'.' | b'_' | b'-' => Err(misplaced(Part::Repository, text, text.len() - 1)),
        _ => Ok(()),
    }
}

pub(super) fn path_length(length: usize) -> Check {
    if length > REPOSITORY_LIMIT {
        let problem = ReferenceProblem::TooLong { length, limit: REPOSITORY_LIMIT };
        return Err(Fault::new(Part::Repository, 0, problem));
    }
    Ok(())
}

pub(super) fn tag(text: &str) -> Check {
    if text.is_empty() {
        return Err(Fault::new(Part::Tag, 0, ReferenceProblem::Empty));
    }
    for (offset, byte) in text.bytes().enumerate() {
        match byte {
            b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' | b'_' => {}
            b'.' | b'-' if offset > 0 => {}
            b'.' | b'-' => return Err(misplaced(Part::Tag, text, offset)),
            _ => return Err(not_allowed(Part::Tag, text, offset)),
        }
    }
    if text.len() > TAG_LIMIT {
        let problem = ReferenceProblem::TooLong { length: text.len(), limit: TAG_LIMIT };
        return Err(Fault::new(Part::Tag, TAG_LIMIT, problem));
    }
    Ok(())
}

pub(super) fn digest(text: &str) -> Result<Digest, Fault> {
    text.parse().map_err(|error| match error {
        DigestError::NoSeparator if text.is_empty() => Fault::new(Part::Digest, 0, ReferenceProblem::Empty),
        DigestError::NoSeparator | DigestError::UnknownAlgorithm => {
            Fault::new(Part::Digest, 0, ReferenceProblem::UnknownAlgorithm)
        }
        DigestError::NotHexadecimal { offset } => not_allowed(Part::Digest, text, offset),
        DigestError::WrongLength { expected, found, .. } => {
            Fault::new(Part::Digest, text.len() - found, ReferenceProblem::DigestLength { expected, found })
        }
    })
}
