//! Reading RE2 syntax as Go's `regexp` does, so that a pattern means here what it meant where it was written for.
//!
//! What Go accepts is accepted and what it refuses is refused (a test runs both side by side), except that very long,
//! deeply nested or very large patterns are refused earlier.

use super::PatternProblem as Problem;
use super::ascii::{self, AsciiSet};
use super::node::{Look, Node};

/// Go's own limit for a counted repetition, and for the product of nested ones.
const REPEAT_LIMIT: u32 = 1000;
/// Groups inside groups. Far beyond what people write, far below what a stack holds.
const DEPTH_LIMIT: usize = 100;

/// Where and why reading stopped; the offset counts bytes.
pub(super) type Stop = (usize, Problem);

#[derive(Debug, Clone, Copy, Default)]
struct Flags {
    fold: bool,
    multiline: bool,
    dot_newline: bool,
}

/// A node with the largest product of counted repetitions along any path into it.
type Counted = (Node, u32);

#[derive(Default)]
struct Level {
    branches: Vec<Counted>,
    sequence: Vec<Counted>,
    /// Flags to return to when the group closes.
    outer: Flags,
    opened_at: usize,
}

pub(super) struct Reader<'a> {
    text: &'a str,
    at: usize,
    flags: Flags,
    levels: Vec<Level>,
    current: Level,
    after_repeat: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn read(text: &'a str) -> Result<Node, Stop> {
        let mut reader = Self {
            text,
            at: 0,
            flags: Flags::default(),
            levels: Vec::new(),
            current: Level::default(),
            after_repeat: false,
        };
        while let Some(next) = reader.peek() {
            let repeat = reader.step(next)?;
            reader.after_repeat = repeat;
        }
        if reader.levels.is_empty() {
            return Ok(close(reader.current).0);
        }
        Err((reader.current.opened_at, Problem::MissingParenthesis))
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn take(&mut self) -> Option<char> {
        let next = self.peek()?;
        self.at += next.len_utf8();
        Some(next)
    }

    fn skip(&mut self, prefix: &str) -> bool {
        let found = self.rest().starts_with(prefix);
        if found {
            self.at += prefix.len();
        }
        found
    }

    fn push(&mut self, node: Node) {
        self.current.sequence.push((node, 1));
    }

    fn literal(&mut self, code: u32) {
        self.push(Node::Class(AsciiSet::range(code, code, self.flags.fold)));
    }

    /// Reads one element; `true` if it was a repetition, which another one must not follow.
    fn step(&mut self, next: char) -> Result<bool, Stop> {
        let start = self.at;
        match next {
            '(' if self.rest().starts_with("(?") => self.open_special()?,
            '(' => {
                self.at += 1;
                self.open(start, self.flags)?;
            }
            ')' => {
                self.at += 1;
                let Some(outer) = self.levels.pop() else {
                    return Err((start, Problem::UnexpectedParenthesis));
                };
                let inner = std::mem::replace(&mut self.current, outer);
                self.flags = inner.outer;
                self.current.sequence.push(close(inner));
            }
            '|' => {
                self.at += 1;
                let branch = concat(std::mem::take(&mut self.current.sequence));
                self.current.branches.push(branch);
            }
            '*' => return self.repeat(start, 1, 0, None),
            '+' => return self.repeat(start, 1, 1, None),
            '?' => return self.repeat(start, 1, 0, Some(1)),
            '{' if let Some((length, least, most)) = self.counts() => {
                let beyond = |count: u32| count > REPEAT_LIMIT;
                if beyond(least) || most.is_some_and(|most| beyond(most) || least > most) {
                    return Err((start, Problem::RepeatCount));
                }
                return self.repeat(start, length, least, most);
            }
            '^' | '$' | '.' => {
                self.at += 1;
                let multiline = self.flags.multiline;
                self.push(match next {
                    '^' if multiline => Node::Look(Look::LineStart),
                    '^' => Node::Look(Look::TextStart),
                    '$' if multiline => Node::Look(Look::LineEnd),
                    '$' => Node::Look(Look::TextEnd),
                    _ if self.flags.dot_newline => Node::Class(AsciiSet::ALL),
                    _ => Node::Class(AsciiSet::ALL.without(AsciiSet::NEWLINE)),
                });
            }
            '[' => {
                let class = self.class()?;
                self.push(Node::Class(class));
            }
            '\\' => self.escaped()?,
            _ => {
                self.take();
                self.literal(next.into());
            }
        }
        Ok(false)
    }

    fn open(&mut self, opened_at: usize, outer: Flags) -> Result<(), Stop> {
        if self.levels.len() >= DEPTH_LIMIT {
            return Err((opened_at, Problem::TooDeep));
        }
        let level = Level { outer, opened_at, ..Level::default() };
        self.levels.push(std::mem::replace(&mut self.current, level));
        Ok(())
    }

    /// `(?:`, `(?flags)`, `(?flags:`, `(?P<name>` and `(?<name>`; everything else of that look is not RE2.
    fn open_special(&mut self) -> Result<(), Stop> {
        let start = self.at;
        let rest = self.rest();
        for opening in ["(?P<", "(?<"] {
            if let Some(name) = rest.strip_prefix(opening) {
                let Some((name, _)) = name.split_once('>') else {
                    return Err((start, Problem::GroupName));
                };
                let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
                if name.is_empty() || !name.chars().all(word) {
                    return Err((start, Problem::GroupName));
                }
                self.at += opening.len() + name.len() + 1;
                return self.open(start, self.flags);
            }
        }
        self.at += 2;
        let outer = self.flags;
        let mut flags = outer;
        let (mut value, mut seen) = (true, true);
        loop {
            match self.take() {
                Some('i') => (flags.fold, seen) = (value, true),
                Some('m') => (flags.multiline, seen) = (value, true),
                Some('s') => (flags.dot_newline, seen) = (value, true),
                // Swaps greedy and lazy, which does not change whether the whole text matches.
                Some('U') => seen = true,
                Some('-') if value => (value, seen) = (false, false),
                Some(end @ (':' | ')')) if seen => {
                    if end == ':' {
                        self.open(start, outer)?;
                    }
                    self.flags = flags;
                    return Ok(());
                }
                _ => return Err((start, Problem::GroupSyntax)),
            }
        }
    }

    /// `{n}`, `{n,}` or `{n,m}` ahead, with its length; anything else is a literal brace.
    fn counts(&self) -> Option<(usize, u32, Option<u32>)> {
        let (inside, _) = self.rest().strip_prefix('{')?.split_once('}')?;
        let number = |digits: &str| {
            let plain = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit());
            let leading_zero = digits.len() > 1 && digits.starts_with('0');
            // What does not fit is far beyond the limit anyway.
            (plain && !leading_zero).then(|| digits.parse().unwrap_or(u32::MAX))
        };
        let (least, most) = match inside.split_once(',') {
            None => (number(inside)?, Some(number(inside)?)),
            Some((least, "")) => (number(least)?, None),
            Some((least, most)) => (number(least)?, Some(number(most)?)),
        };
        Some((inside.len() + 2, least, most))
    }

    fn repeat(&mut self, start: usize, length: usize, least: u32, most: Option<u32>) -> Result<bool, Stop> {
        self.at += length;
        self.skip("?");
        if self.after_repeat {
            return Err((start, Problem::DoubleRepeat));
        }
        let Some((node, product)) = self.current.sequence.pop() else {
            return Err((start, Problem::NothingToRepeat));
        };
        // `*`, `+` and `?` do not multiply anything out; `{0}` drops whatever is inside.
        let product = match (self.text.get(start..=start), most.unwrap_or(least)) {
            (Some("{"), 0) if most == Some(0) => 1,
            (Some("{"), count) => product.saturating_mul(count.max(1)),
            _ => product,
        };
        if product > REPEAT_LIMIT {
            return Err((start, Problem::RepeatCount));
        }
        self.current.sequence.push((Node::Repeat { node: Box::new(node), least, most }, product));
        Ok(true)
    }

    fn escaped(&mut self) -> Result<(), Stop> {
        let start = self.at;
        let looks = [
            (r"\A", Look::TextStart),
            (r"\z", Look::TextEnd),
            (r"\b", Look::WordEdge),
            (r"\B", Look::NoWordEdge),
        ];
        for (text, look) in looks {
            if self.skip(text) {
                self.push(Node::Look(look));
                return Ok(());
            }
        }
        if self.skip(r"\Q") {
            let quoted = self.rest().split(r"\E").next().unwrap_or_default();
            quoted.chars().for_each(|c| self.literal(c.into()));
            self.at += quoted.len();
            self.skip(r"\E");
            return Ok(());
        }
        if let Some(class) = self.class_escape()? {
            self.push(Node::Class(class));
            return Ok(());
        }
        let code = self.character_escape(start)?;
        self.literal(code);
        Ok(())
    }

    /// `\d`, `\pN`, `\p{Name}` and their likes, if one is ahead.
    fn class_escape(&mut self) -> Result<Option<AsciiSet>, Stop> {
        let start = self.at;
        let Some(rest) = self.rest().strip_prefix('\\') else {
            return Ok(None);
        };
        let Some(letter) = rest.bytes().next() else {
            return Ok(None);
        };
        if let Some(class) = ascii::perl_class(letter, self.flags.fold) {
            self.at += 2;
            return Ok(Some(class));
        }
        if !matches!(letter, b'p' | b'P') {
            return Ok(None);
        }
        self.at += 2;
        let name = if self.skip("{") {
            let Some((name, _)) = self.rest().split_once('}') else {
                return Err((start, Problem::ClassName));
            };
            self.at += name.len() + 1;
            name
        } else {
            let rest = self.rest();
            let length = self.take().map_or(0, char::len_utf8);
            rest.get(..length).unwrap_or_default()
        };
        match ascii::unicode_class(name, letter == b'P', self.flags.fold) {
            Some(class) => Ok(Some(class)),
            None => Err((start, Problem::ClassName)),
        }
    }

    /// An escape that stands for one character, as its code point.
    fn character_escape(&mut self, start: usize) -> Result<u32, Stop> {
        self.at += 1;
        let Some(next) = self.take() else {
            return Err((start, Problem::TrailingBackslash));
        };
        let invalid = Err((start, Problem::Escape));
        Ok(match next {
            'a' => 0x07,
            'f' => 0x0c,
            'n' => 0x0a,
            'r' => 0x0d,
            't' => 0x09,
            'v' => 0x0b,
            'x' => match self.hexadecimal() {
                Some(code) => code,
                None => return invalid,
            },
            '0'..='7' => {
                let digit = |c: char| c.to_digit(8);
                let mut code = digit(next).unwrap_or(0);
                // A single digit other than 0 would be a back-reference, which RE2 does not have.
                if next != '0' && self.peek().and_then(digit).is_none() {
                    return invalid;
                }
                for _ in 0..2 {
                    let Some(value) = self.peek().and_then(digit) else {
                        break;
                    };
                    code = code * 8 + value;
                    self.at += 1;
                }
                code
            }
            c if c.is_ascii() && !c.is_ascii_alphanumeric() => c.into(),
            _ => return invalid,
        })
    }

    /// After `\x`: two digits, or any number of them in braces.
    fn hexadecimal(&mut self) -> Option<u32> {
        let digits = if self.skip("{") {
            let digits = self.rest().split_once('}')?.0;
            self.at += digits.len() + 1;
            digits
        } else {
            let digits = self.rest().get(..2)?;
            self.at += 2;
            digits
        };
        let valid = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let digits = digits.trim_start_matches('0');
        let code = if digits.is_empty() { 0 } else { u32::from_str_radix(digits, 16).ok()? };
        (valid && code <= char::MAX.into()).then_some(code)
    }

    fn class(&mut self) -> Result<AsciiSet, Stop> {
        let start = self.at;
        self.at += 1;
        let negated = self.skip("^");
        let mut set = AsciiSet::EMPTY;
        let mut first = true;
        // A bracket that comes first is a member.
        while first || !self.rest().starts_with(']') {
            first = false;
            if let Some(class) = self.named_class()? {
                set = set.union(class);
                continue;
            }
            if let Some(class) = self.class_escape()? {
                set = set.union(class);
                continue;
            }
            let low_at = self.at;
            let low = self.class_character(start)?;
            let rest = self.rest();
            let high = if rest.starts_with('-') && !rest.starts_with("-]") && rest.len() >= 2 {
                self.at += 1;
                self.class_character(start)?
            } else {
                low
            };
            if high < low {
                return Err((low_at, Problem::ClassRange));
            }
            set = set.union(AsciiSet::range(low, high, self.flags.fold));
        }
        self.at += 1;
        Ok(if negated { set.negated() } else { set })
    }

    fn class_character(&mut self, class_start: usize) -> Result<u32, Stop> {
        let start = self.at;
        match self.peek() {
            None => Err((class_start, Problem::MissingBracket)),
            Some('\\') => self.character_escape(start),
            Some(c) => {
                self.at += c.len_utf8();
                Ok(c.into())
            }
        }
    }

    /// `[:name:]`, if one is ahead.
    fn named_class(&mut self) -> Result<Option<AsciiSet>, Stop> {
        let Some((name, _)) = self.rest().strip_prefix("[:").and_then(|rest| rest.split_once(":]")) else {
            return Ok(None);
        };
        let Some(class) = ascii::posix_class(name, self.flags.fold) else {
            return Err((self.at, Problem::ClassName));
        };
        self.at += name.len() + 4;
        Ok(Some(class))
    }
}

fn close(mut level: Level) -> Counted {
    let last = concat(level.sequence);
    if level.branches.is_empty() {
        return last;
    }
    level.branches.push(last);
    let product = level.branches.iter().map(|(_, product)| *product).max().unwrap_or(1);
    (Node::Alternate(level.branches.into_iter().map(|(node, _)| node).collect()), product)
}

/// Sequences inside sequences are flattened, so that literals that groups tear apart are seen as one.
fn concat(mut sequence: Vec<Counted>) -> Counted {
    if sequence.len() == 1
        && let Some(only) = sequence.pop()
    {
        return only;
    }
    let product = sequence.iter().map(|(_, product)| *product).max().unwrap_or(1);
    let mut nodes = Vec::with_capacity(sequence.len());
    for (node, _) in sequence {
        match node {
            Node::Concat(inner) => nodes.extend(inner),
            other => nodes.push(other),
        }
    }
    (Node::Concat(nodes), product)
}
