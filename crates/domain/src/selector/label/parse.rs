//! Reading selector text: tokens, then requirements, then the rules for keys and values.

use std::collections::HashSet;

use thiserror::Error;

use super::{Requirement, Test};

/// Why a text is not a selector. Positions count characters from 1.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SelectorError {
    #[error("label selector {selector:?}: character {position}: found {found}, expected {expected}")]
    Unexpected { selector: String, position: usize, found: String, expected: Expected },
    #[error("label selector {selector:?}: character {position}: the key {key:?} {problem}")]
    Key { selector: String, position: usize, key: String, problem: &'static str },
    #[error("label selector {selector:?}: character {position}: the value {value:?} {problem}")]
    Value { selector: String, position: usize, value: String, problem: &'static str },
}

/// What could have stood where something else was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Expected {
    #[error("a key, or '!' and a key")]
    Key,
    #[error("'=', '==', '!=', 'in', 'notin', '>', '<', ',' or the end")]
    Operator,
    #[error("',' or the end")]
    Comma,
    #[error("a value")]
    Value,
    #[error("'(' and a list of values")]
    List,
    #[error("a value, ',' or ')'")]
    ListItem,
    #[error("text without NUL characters")]
    Text,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    /// A key, a value, or the words `in` and `notin`, which are operators only where one is expected.
    Word(&'a str),
    Sign(&'static str),
    End,
}

const SIGNS: [&str; 9] = ["==", "!=", "=", "!", "(", ")", ",", ">", "<"];

struct Parser<'a> {
    text: &'a str,
    /// Tokens with their byte offsets, the end last.
    tokens: Vec<(usize, Token<'a>)>,
    next: usize,
}

pub(super) fn parse(text: &str) -> Result<Vec<Requirement>, SelectorError> {
    let mut parser = Parser { text, tokens: tokens(text), next: 0 };
    // The original lexer takes NUL for the end and silently ignores what follows; that can only be a mistake.
    if let Some(at) = text.find('\0') {
        return Err(parser.unexpected(at, "a NUL character", Expected::Text));
    }
    let mut requirements = Vec::new();
    if parser.peek() == Token::End {
        return Ok(requirements);
    }
    loop {
        requirements.push(parser.requirement()?);
        match parser.take() {
            (_, Token::End) => return Ok(requirements),
            (_, Token::Sign(",")) => {}
            other => return Err(parser.refuse(other, Expected::Comma)),
        }
    }
}

fn tokens(text: &str) -> Vec<(usize, Token<'_>)> {
    let mut tokens = Vec::new();
    let mut offset = 0;
    while let Some(rest) = text.get(offset..).filter(|rest| !rest.is_empty()) {
        let blank = |c: char| matches!(c, ' ' | '\t' | '\r' | '\n');
        let (length, token) = if rest.starts_with(blank) {
            (1, None)
        } else if let Some(sign) = SIGNS.into_iter().find(|sign| rest.starts_with(sign)) {
            (sign.len(), Some(Token::Sign(sign)))
        } else {
            let ends = |c: char| blank(c) || matches!(c, '=' | '!' | '(' | ')' | ',' | '>' | '<');
            let word = rest.split(ends).next().unwrap_or(rest);
            (word.len(), Some(Token::Word(word)))
        };
        tokens.extend(token.map(|token| (offset, token)));
        offset += length;
    }
    tokens.push((text.len(), Token::End));
    tokens
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Token<'a> {
        self.tokens.get(self.next).map_or(Token::End, |(_, token)| *token)
    }

    fn take(&mut self) -> (usize, Token<'a>) {
        let token = self.tokens.get(self.next).copied().unwrap_or((self.text.len(), Token::End));
        self.next += 1;
        token
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        let absent = self.peek() == Token::Sign("!");
        if absent {
            self.take();
        }
        let (at, key) = match self.take() {
            (at, Token::Word(key)) => (at, key),
            other => return Err(self.refuse(other, Expected::Key)),
        };
        if let Err(problem) = check_key(key) {
            let position = self.position(at);
            return Err(SelectorError::Key {
                selector: self.text.to_owned(),
                position,
                key: key.to_owned(),
                problem,
            });
        }
        let ends = matches!(self.peek(), Token::End | Token::Sign(","));
        let test = match (absent, ends) {
            (true, _) => Test::Absent,
            (false, true) => Test::Exists,
            (false, false) => self.test()?,
        };
        Ok(Requirement { key: key.into(), test })
    }

    fn test(&mut self) -> Result<Test, SelectorError> {
        Ok(match self.take() {
            (_, Token::Sign("=" | "==")) => Test::In(vec![self.single_value()?.1.into()]),
            (_, Token::Sign("!=")) => Test::NotIn(vec![self.single_value()?.1.into()]),
            (_, Token::Sign(">")) => Test::Above(self.bound()?),
            (_, Token::Sign("<")) => Test::Below(self.bound()?),
            (_, Token::Word("in")) => Test::In(self.list()?),
            (_, Token::Word("notin")) => Test::NotIn(self.list()?),
            other => return Err(self.refuse(other, Expected::Operator)),
        })
    }

    /// The empty value may be left out.
    fn single_value(&mut self) -> Result<(usize, &'a str), SelectorError> {
        if matches!(self.peek(), Token::End | Token::Sign(",")) {
            return Ok((self.tokens.get(self.next).map_or(0, |(at, _)| *at), ""));
        }
        match self.take() {
            (at, Token::Word(value)) => self.checked(at, value).map(|value| (at, value)),
            other => Err(self.refuse(other, Expected::Value)),
        }
    }

    fn bound(&mut self) -> Result<i64, SelectorError> {
        let (at, value) = self.single_value()?;
        value.parse().map_err(|_| self.bad_value(at, value, "is not an integer, which '>' and '<' compare"))
    }

    /// A parenthesised list, in which any value may be empty: `(a,,b)`, `(,)` and `()` are lists.
    fn list(&mut self) -> Result<Vec<Box<str>>, SelectorError> {
        match self.take() {
            (_, Token::Sign("(")) => {}
            other => return Err(self.refuse(other, Expected::List)),
        }
        let mut values: Vec<Box<str>> = Vec::new();
        let mut known = HashSet::new();
        loop {
            let value = match self.peek() {
                Token::Word(value) => {
                    let (at, _) = self.take();
                    self.checked(at, value)?
                }
                _ => "",
            };
            if known.insert(value) {
                values.push(value.into());
            }
            match self.take() {
                (_, Token::Sign(",")) => {}
                (_, Token::Sign(")")) => return Ok(values),
                other => return Err(self.refuse(other, Expected::ListItem)),
            }
        }
    }

    fn checked(&self, at: usize, value: &'a str) -> Result<&'a str, SelectorError> {
        match check_value(value) {
            Ok(()) => Ok(value),
            Err(problem) => Err(self.bad_value(at, value, problem)),
        }
    }

    fn bad_value(&self, at: usize, value: &str, problem: &'static str) -> SelectorError {
        let (selector, position) = (self.text.to_owned(), self.position(at));
        SelectorError::Value { selector, position, value: value.to_owned(), problem }
    }

    fn refuse(&self, (at, token): (usize, Token<'_>), expected: Expected) -> SelectorError {
        match token {
            Token::Word(word) => self.unexpected(at, &format!("{word:?}"), expected),
            Token::Sign(sign) => self.unexpected(at, &format!("'{sign}'"), expected),
            Token::End => self.unexpected(at, "the end", expected),
        }
    }

    fn unexpected(&self, at: usize, found: &str, expected: Expected) -> SelectorError {
        let (selector, position) = (self.text.to_owned(), self.position(at));
        SelectorError::Unexpected { selector, position, found: found.to_owned(), expected }
    }

    fn position(&self, at: usize) -> usize {
        self.text.get(..at).unwrap_or_default().chars().count() + 1
    }
}

const NAME_LIMIT: usize = 63;
const PREFIX_LIMIT: usize = 253;

/// Letters, digits, `-`, `_` and `.`, starting and ending with a letter or digit.
fn is_name(text: &str) -> bool {
    let inside = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(|byte| inside(*byte))
}

fn check_key(key: &str) -> Result<(), &'static str> {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if name.contains('/') {
        return Err("has more than one '/'; a key is [domain/]name");
    }
    if let Some(prefix) = prefix {
        let label = |label: &str| {
            let inside = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
            let edges = !label.starts_with('-') && !label.ends_with('-');
            !label.is_empty() && edges && label.bytes().all(inside)
        };
        if !prefix.split('.').all(label) {
            return Err("has a prefix that is not a domain name of lower-case letters, digits, '-' and '.'");
        }
        if prefix.len() > PREFIX_LIMIT {
            return Err("has a prefix of more than 253 characters");
        }
    }
    if name.len() > NAME_LIMIT {
        return Err("has a name of more than 63 characters");
    }
    if !is_name(name) {
        return Err(
            "must have a name of letters, digits, '-', '_' and '.', starting and ending with a letter or digit",
        );
    }
    Ok(())
}

fn check_value(value: &str) -> Result<(), &'static str> {
    if value.len() > NAME_LIMIT {
        return Err("has more than 63 characters; selectors cannot compare longer values");
    }
    if !value.is_empty() && !is_name(value) {
        return Err("must be letters, digits, '-', '_' and '.', starting and ending with a letter or digit");
    }
    Ok(())
}
