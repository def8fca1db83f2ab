//! Names in paths and queries.

use std::fmt::Write as _;

/// A text as one segment of a path, or as a value of a query.
pub(crate) fn once(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            encoded.push(char::from(byte));
        } else {
            // Writing to a text cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// The name of a repository as one segment. Encoded twice: a proxy in front of Harbor decodes it once, and a slash that
/// then stands plainly in the path would name another route.
pub(crate) fn repository(name: &str) -> String {
    once(&once(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slashes_survive_one_decoding() {
        assert_eq!(once("a b/c%"), "a%20b%2Fc%25");
        assert_eq!(repository("library/nginx"), "library%252Fnginx");
        assert_eq!(repository("plain-1.0_x"), "plain-1.0_x");
    }
}
