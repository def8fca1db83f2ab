//! Sentences for people that fit into one line of a record or an event, whatever registries answer.

use std::fmt::Display;

/// Longest sentence, in bytes.
pub(super) const LINE_LIMIT: usize = 280;
/// Room kept for saying how many pieces were left out.
const REMAINDER: usize = 24;
const ELLIPSIS: &str = "…";

/// The text without line breaks and other control characters, cut to so many bytes.
pub(super) fn clipped(text: &impl Display, limit: usize) -> String {
    clip(&text.to_string(), limit)
}

/// The text without line breaks and other control characters, in so many bytes at most. It ends after a whole word and
/// with an ellipsis where it was cut; only a word that is too long by itself is cut inside.
pub(crate) fn clip(text: &str, limit: usize) -> String {
    let mut text = text.replace(char::is_control, " ");
    if text.len() <= limit {
        return text;
    }
    let end = text.floor_char_boundary(limit.saturating_sub(ELLIPSIS.len()));
    let follows_space = text.get(end..).is_some_and(|rest| rest.starts_with(' '));
    let words = text.get(..end).filter(|_| !follows_space).and_then(|kept| kept.rfind(' '));
    text.truncate(words.unwrap_or(end));
    text.truncate(text.trim_end_matches([' ', ',', ';', ':']).len());
    text.push_str(ELLIPSIS);
    text
}

/// Appends pieces separated by semicolons while they fit, keeping `reserved` bytes free, and counts the others.
pub(super) fn list(line: &mut String, pieces: impl ExactSizeIterator<Item = String>, reserved: usize) {
    let all = pieces.len();
    for (index, piece) in pieces.enumerate() {
        let separator = if index == 0 { "" } else { "; " };
        if line.len() + separator.len() + piece.len() + REMAINDER + reserved > LINE_LIMIT {
            line.extend([separator, &(all - index).to_string(), " more"]);
            return;
        }
        line.extend([separator, &piece]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_of_bounded_length() {
        assert_eq!(clipped(&"short", 10), "short");
        assert_eq!(clipped(&"two\nlines\tand\u{0}more", 40), "two lines and more");
        assert_eq!(clipped(&"ääääää", 9), "äää…", "a word that is too long");
        for (limit, cut) in [
            (40, "the registry says: no such tag, try x"),
            (36, "the registry says: no such tag…"),
            (32, "the registry says: no such…"),
            (21, "the registry says…"),
            (15, "the registry…"),
            (9, "the…"),
        ] {
            assert_eq!(clipped(&"the registry says: no such tag, try x", limit), cut, "{limit}");
        }
        let mut line = "none: ".to_owned();
        list(&mut line, (0..100).map(|n| format!("piece {n}")), 0);
        assert!(line.len() <= LINE_LIMIT, "{line}");
        assert!(line.starts_with("none: piece 0; piece 1; ") && line.ends_with(" more"), "{line}");
        let mut line = String::new();
        list(&mut line, ["a".to_owned(), "b".to_owned()].into_iter(), 100);
        assert_eq!(line, "a; b");
    }
}
