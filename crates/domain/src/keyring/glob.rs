//! Shell patterns as Go's `filepath.Match` reads them: `*`, `?`, classes in brackets, and `\` before a literal.

/// Whether the pattern matches the whole text. A malformed pattern matches nothing.
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut pattern, mut text) = (pattern, text);
    while !pattern.is_empty() {
        let (star, chunk, rest) = next_chunk(pattern);
        if star && chunk.is_empty() {
            return !text.contains(&b'/');
        }
        let last = rest.is_empty();
        let fits = |from: &'_ [u8]| match match_chunk(chunk, from) {
            Chunk::Matched(used) => {
                let remaining = from.get(used..).unwrap_or_default();
                if last && !remaining.is_empty() { Fit::No } else { Fit::At(from.len() - remaining.len()) }
            }
            Chunk::Different => Fit::No,
            Chunk::Malformed => Fit::Never,
        };
        // A star may swallow everything up to the next slash.
        let reach = text.iter().position(|byte| *byte == b'/').unwrap_or(text.len());
        let starts = if star { 0..=reach } else { 0..=0 };
        let mut found = None;
        for start in starts {
            match fits(text.get(start..).unwrap_or_default()) {
                Fit::At(length) => {
                    found = Some(start + length);
                    break;
                }
                Fit::No => {}
                Fit::Never => return false,
            }
        }
        let Some(used) = found else { return false };
        text = text.get(used..).unwrap_or_default();
        pattern = rest;
    }
    text.is_empty()
}

enum Fit {
    At(usize),
    No,
    Never,
}

enum Chunk {
    /// So many bytes of the text.
    Matched(usize),
    Different,
    Malformed,
}

/// Leading stars, then everything up to the next star that stands outside a class.
fn next_chunk(pattern: &[u8]) -> (bool, &[u8], &[u8]) {
    let stars = pattern.iter().take_while(|byte| **byte == b'*').count();
    let body = pattern.get(stars..).unwrap_or_default();
    let (mut in_class, mut escaped) = (false, false);
    let end = body.iter().position(|byte| {
        if escaped {
            escaped = false;
            return false;
        }
        match byte {
            b'\\' => escaped = true,
            b'[' => in_class = true,
            b']' => in_class = false,
            b'*' => return !in_class,
            _ => {}
        }
        false
    });
    let (chunk, rest) = body.split_at_checked(end.unwrap_or(body.len())).unwrap_or_default();
    (stars > 0, chunk, rest)
}

/// The whole chunk is read even after a difference, because a malformed one matches nothing at all.
fn match_chunk(chunk: &[u8], text: &[u8]) -> Chunk {
    let (mut chunk, mut rest, mut differs) = (chunk, text, false);
    while let [first, tail @ ..] = chunk {
        differs = differs || rest.is_empty();
        match first {
            b'[' => {
                let (letter, length) = if differs { (0, 0) } else { decode(rest) };
                rest = rest.get(length..).unwrap_or_default();
                let Some((matched, after)) = match_class(tail, letter) else {
                    return Chunk::Malformed;
                };
                differs = differs || !matched;
                chunk = after;
            }
            b'?' => {
                if !differs {
                    differs = rest.starts_with(b"/");
                    rest = rest.get(decode(rest).1..).unwrap_or_default();
                }
                chunk = tail;
            }
            _ => {
                let (literal, after) = match (first, tail) {
                    (b'\\', [literal, after @ ..]) => (literal, after),
                    (b'\\', []) => return Chunk::Malformed,
                    _ => (first, tail),
                };
                if !differs {
                    differs = rest.first() != Some(literal);
                    rest = rest.get(1..).unwrap_or_default();
                }
                chunk = after;
            }
        }
    }
    if differs { Chunk::Different } else { Chunk::Matched(text.len() - rest.len()) }
}

/// Reads a class up to its `]`; whether it holds the letter, and what follows. `None` if it is malformed.
fn match_class(class: &[u8], letter: u32) -> Option<(bool, &[u8])> {
    let (negated, mut class) = match class {
        [b'^', rest @ ..] => (true, rest),
        _ => (false, class),
    };
    let (mut holds, mut ranges) = (false, 0);
    loop {
        if let [b']', rest @ ..] = class
            && ranges > 0
        {
            return Some((holds != negated, rest));
        }
        let (low, after) = class_letter(class)?;
        let (high, after) = match after {
            [b'-', rest @ ..] => class_letter(rest)?,
            _ => (low, after),
        };
        holds = holds || (low..=high).contains(&letter);
        class = after;
        ranges += 1;
    }
}

/// One letter of a class. Something must follow it, if only the closing bracket.
fn class_letter(class: &[u8]) -> Option<(u32, &[u8])> {
    let class = match class {
        [] | [b'-' | b']', ..] => return None,
        [b'\\', rest @ ..] => rest,
        _ => class,
    };
    let (letter, length) = decode(class);
    let malformed = length == 0 || (letter == u32::from(char::REPLACEMENT_CHARACTER) && length == 1);
    let rest = class.get(length..)?;
    (!malformed && !rest.is_empty()).then_some((letter, rest))
}

/// The first character and its length; an invalid byte stands for itself alone.
fn decode(text: &[u8]) -> (u32, usize) {
    let invalid = (char::REPLACEMENT_CHARACTER.into(), text.len().min(1));
    (1..=4)
        .find_map(|length| {
            let one = std::str::from_utf8(text.get(..length)?).ok()?;
            one.chars().next().map(|c| (c.into(), length))
        })
        .unwrap_or(invalid)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("*", "", true),
            ("*", "abc", true),
            ("*", "a/b", false),
            ("a*c", "abbc", true),
            ("a*c", "abbd", false),
            ("*a*b*", "xxaxxbxx", true),
            ("a?c", "abc", true),
            ("a?c", "a/c", false),
            ("?", "é", true),
            ("[a-c]x", "bx", true),
            ("[^a-c]x", "bx", false),
            ("[a-", "a", false),
            ("[]a]", "a", false),
            ("a\\*", "a*", true),
            ("a\\", "a", false),
            ("[a*]*", "*bc", true),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} on {text}");
        }
    }
}
