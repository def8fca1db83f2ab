//! Patterns that may match anywhere in a text, as the filters of discovery do.

use regex::Regex;

use super::{PatternError, automaton, read};

/// A compiled pattern in RE2's syntax, without anchors of its own.
#[derive(Debug, Clone)]
pub struct Search(Regex);

impl Search {
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let node = read(text)?;
        automaton(text, &node.to_string()).map(Self)
    }

    /// Whether some part of the text matches.
    pub fn finds(&self, text: &str) -> bool {
        self.0.is_match(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_match_anywhere_counts() {
        for (pattern, text, expected) in [
            ("nginx", "docker.io/library/nginx:1.25", true),
            ("^nginx", "docker.io/library/nginx:1.25", false),
            ("a|b$", "xa-c", true),
            ("a|b$", "b-c", false),
            ("", "anything", true),
            (r"\Qa.b\E", "xa.by", true),
            (r"\Qa.b\E", "xaxby", false),
            ("v1{", "v1{", true),
        ] {
            assert_eq!(Search::parse(pattern).unwrap().finds(text), expected, "{pattern} {text}");
        }
        assert!(Search::parse("a)|(b").is_err());
    }
}
