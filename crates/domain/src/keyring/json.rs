//! Making text that Go's JSON decoder accepts acceptable to ours.
//!
//! The kubelet replaces what is not valid Unicode inside strings; our decoder refuses it. A Secret that nodes can use
//! must not be refused here, so the replacement is done first. Elsewhere such bytes are errors to both.

use zeroize::Zeroizing;

const REPLACEMENT: &str = "\u{fffd}";
const ESCAPED_REPLACEMENT: &str = "\\ufffd";
/// Length of an escaped code unit: a backslash, `u` and four digits.
const ESCAPE: usize = 6;

pub(super) fn tidied(data: &[u8]) -> Zeroizing<String> {
    // Twice the space: a buffer that grows leaves copies of what it holds behind.
    let mut text = Zeroizing::new(String::with_capacity(data.len() * 3));
    for chunk in data.utf8_chunks() {
        text.push_str(chunk.valid());
        // One for each byte, which is what Go does.
        chunk.invalid().iter().for_each(|_| text.push_str(REPLACEMENT));
    }
    if !text.contains("\\u") {
        return text;
    }
    let mut paired = Zeroizing::new(String::with_capacity(text.len()));
    let mut rest = text.as_str();
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        paired.push_str(before);
        let (kept, length) = match (surrogate(escape), escape.get(ESCAPE..).and_then(surrogate)) {
            (Some(Half::High), Some(Half::Low)) => (escape.get(..2 * ESCAPE), 2 * ESCAPE),
            (Some(_), _) => (Some(ESCAPED_REPLACEMENT), ESCAPE),
            // Any other escape: its second character must not be taken for the start of one.
            (None, _) => {
                let length = 1 + escape.chars().nth(1).map_or(0, char::len_utf8);
                (escape.get(..length), length)
            }
        };
        paired.push_str(kept.unwrap_or_default());
        rest = escape.get(length..).unwrap_or_default();
    }
    paired.push_str(rest);
    paired
}

enum Half {
    High,
    Low,
}

/// Whether the text starts with an escaped half of a surrogate pair.
fn surrogate(text: &str) -> Option<Half> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    let valid = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    match u16::from_str_radix(digits, 16).ok().filter(|_| valid)? {
        0xd800..=0xdbff => Some(Half::High),
        0xdc00..=0xdfff => Some(Half::Low),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_broken_changes() {
        for (input, expected) in [
            (&br#"{"a":"b"}"#[..], r#"{"a":"b"}"#),
            (b"\"\xff\xfe\"", "\"\u{fffd}\u{fffd}\""),
            (br#""\ud83d\ude00""#, r#""\ud83d\ude00""#),
            (br#""\ud83dx""#, r#""\ufffdx""#),
            (br#""\ude00\ud83d""#, r#""\ufffd\ufffd""#),
            (br#""\ud83d\ud83d\ude00""#, r#""\ufffd\ud83d\ude00""#),
            (br#""\\ud83d""#, r#""\\ud83d""#),
            (br#""\u00e9\n""#, r#""\u00e9\n""#),
            (br#""\u12"#, r#""\u12"#),
            (b"\\", "\\"),
        ] {
            assert_eq!(*tidied(input), expected);
        }
    }
}
