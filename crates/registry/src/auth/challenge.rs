//! The `WWW-Authenticate` header.
//!
//! Registries send one header per challenge, several challenges in one header, quoted commas, stray commas and unquoted
//! realms. The parser accepts all of them in one linear pass, never fails, and keeps to fixed bounds, because the bytes
//! are not trusted.

use hyper::header::{HeaderMap, WWW_AUTHENTICATE};

/// Longest header value that is parsed; usual ones stay below one kibibyte.
const LONGEST_HEADER: usize = 8 * 1024;
/// Most challenges kept; a registry offers one or two.
const MOST_CHALLENGES: usize = 16;
/// Most parameters kept per challenge; Bearer defines realm, service, scope, error and a few more.
const MOST_PARAMETERS: usize = 16;

/// One offered authentication scheme.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Challenge {
    Basic,
    Bearer(Bearer),
    /// A scheme that is not supported, such as Negotiate or Digest; for error messages.
    Other(String),
}

/// A Bearer challenge: where to get a token and for what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bearer {
    pub realm: String,
    pub service: Option<String>,
    pub scope: Option<String>,
    /// `invalid_token`, `insufficient_scope` and the like: why the token was not accepted.
    pub error: Option<String>,
}

/// All challenges of a response, in the order of its headers.
pub fn challenges(headers: &HeaderMap) -> Vec<Challenge> {
    let mut found = Vec::new();
    for value in headers.get_all(WWW_AUTHENTICATE) {
        parse_into(value.as_bytes(), &mut found);
        if found.len() >= MOST_CHALLENGES {
            break;
        }
    }
    found.truncate(MOST_CHALLENGES);
    found
}

/// The challenge to answer: Bearer before Basic, as container runtimes do, because it exposes the password less.
pub fn preferred(challenges: &[Challenge]) -> Option<&Challenge> {
    challenges
        .iter()
        .find(|challenge| matches!(challenge, Challenge::Bearer(bearer) if !bearer.realm.is_empty()))
        .or_else(|| challenges.iter().find(|challenge| matches!(challenge, Challenge::Basic)))
}

/// Parses one header value.
pub fn parse(value: &[u8]) -> Vec<Challenge> {
    let mut found = Vec::new();
    parse_into(value, &mut found);
    found.truncate(MOST_CHALLENGES);
    found
}

struct Draft {
    scheme: String,
    parameters: Vec<(String, String)>,
}

fn parse_into(value: &[u8], found: &mut Vec<Challenge>) {
    let mut cursor = Cursor { rest: value.get(..LONGEST_HEADER).unwrap_or(value) };
    let mut draft: Option<Draft> = None;
    while found.len() < MOST_CHALLENGES {
        cursor.skip(|byte| is_space(byte) || byte == b',');
        let Some(word) = cursor.take(is_token) else {
            // Neither a word nor a separator: one byte is skipped, so that parsing ends.
            if cursor.advance().is_none() {
                break;
            }
            continue;
        };
        if cursor.at_parameter() {
            cursor.skip(is_space);
            cursor.advance();
            cursor.skip(is_space);
            let value = cursor.value();
            if let Some(draft) = &mut draft
                && draft.parameters.len() < MOST_PARAMETERS
            {
                draft.parameters.push((word.to_ascii_lowercase(), value));
            }
        } else {
            found.extend(draft.take().map(Draft::finish));
            draft = Some(Draft { scheme: word, parameters: Vec::new() });
            cursor.skip_token68();
        }
    }
    found.extend(draft.map(Draft::finish));
}

impl Draft {
    fn finish(self) -> Challenge {
        if self.scheme.eq_ignore_ascii_case("basic") {
            return Challenge::Basic;
        }
        if !self.scheme.eq_ignore_ascii_case("bearer") {
            return Challenge::Other(self.scheme);
        }
        let mut bearer = Bearer::default();
        for (name, value) in self.parameters {
            match name.as_str() {
                "realm" => bearer.realm = value,
                "service" => bearer.service = Some(value),
                "scope" => bearer.scope = Some(value),
                "error" => bearer.error = Some(value),
                _ => {}
            }
        }
        Challenge::Bearer(bearer)
    }
}

struct Cursor<'a> {
    rest: &'a [u8],
}

impl Cursor<'_> {
    fn advance(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn skip(&mut self, unwanted: impl Fn(u8) -> bool) {
        while self.rest.first().is_some_and(|byte| unwanted(*byte)) {
            self.advance();
        }
    }

    fn take(&mut self, wanted: impl Fn(u8) -> bool) -> Option<String> {
        let length = self.rest.iter().take_while(|byte| wanted(**byte)).count();
        if length == 0 {
            return None;
        }
        let (word, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(String::from_utf8_lossy(word).into_owned())
    }

    /// Whether the word just read names a parameter, unlike in `Negotiate a==`.
    fn at_parameter(&self) -> bool {
        let mut ahead = self.rest.iter().copied().skip_while(|byte| is_space(*byte));
        ahead.next() == Some(b'=')
    }

    fn value(&mut self) -> String {
        if self.rest.first() != Some(&b'"') {
            return self.take(|byte| byte != b',' && !is_space(byte)).unwrap_or_default();
        }
        self.advance();
        let mut value = Vec::new();
        while let Some(byte) = self.advance() {
            match byte {
                b'"' => break,
                b'\\' => value.extend(self.advance()),
                byte => value.push(byte),
            }
        }
        String::from_utf8_lossy(&value).into_owned()
    }

    /// Skips the opaque value that some schemes carry instead of parameters (`Negotiate YII=`).
    fn skip_token68(&mut self) {
        let mut ahead = Cursor { rest: self.rest };
        ahead.skip(is_space);
        if ahead.take(|byte| is_token(byte) || byte == b'/').is_none() {
            return;
        }
        ahead.skip(|byte| byte == b'=');
        ahead.skip(is_space);
        if ahead.rest.first().is_none_or(|byte| *byte == b',') {
            self.rest = ahead.rest;
        }
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t')
}

fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bearer(realm: &str, service: Option<&str>, scope: Option<&str>) -> Challenge {
        Challenge::Bearer(Bearer {
            realm: realm.into(),
            service: service.map(Into::into),
            scope: scope.map(Into::into),
            error: None,
        })
    }

    #[test]
    fn headers_of_real_registries_are_read() {
        let hub = bearer(
            "https://auth.docker.io/token",
            Some("registry.docker.io"),
            Some("repository:a/b:pull,push"),
        );
        let cases: &[(&str, Vec<Challenge>)] = &[
            (r#"Basic realm="Registry Realm""#, vec![Challenge::Basic]),
            ("basic", vec![Challenge::Basic]),
            (
                r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push""#,
                vec![hub.clone()],
            ),
            (
                r#"bEARER  Realm = "https://auth.docker.io/token" ,, service="registry.docker.io" , scope="repository:a/b:pull,push","#,
                vec![hub.clone()],
            ),
            ("Bearer realm=https://a/t,service=a", vec![bearer("https://a/t", Some("a"), None)]),
            (
                r#"Basic realm="a, Bearer realm=\"b\"", Bearer realm="https://a/t""#,
                vec![Challenge::Basic, bearer("https://a/t", None, None)],
            ),
            (
                r#"Bearer realm="https://a/t", Basic realm="x", Negotiate"#,
                vec![
                    bearer("https://a/t", None, None),
                    Challenge::Basic,
                    Challenge::Other("Negotiate".into()),
                ],
            ),
            (
                r#"Negotiate YII/+abc==, Bearer realm="https://a/t""#,
                vec![Challenge::Other("Negotiate".into()), bearer("https://a/t", None, None)],
            ),
            (r#"Bearer realm="unfinished"#, vec![bearer("unfinished", None, None)]),
            (r"Bearer", vec![bearer("", None, None)]),
            ("", vec![]),
            (" , ,", vec![]),
            (r#"realm="no scheme""#, vec![]),
        ];
        for (header, expected) in cases {
            assert_eq!(&parse(header.as_bytes()), expected, "{header}");
        }
    }

    #[test]
    fn one_header_per_challenge_is_the_same_as_one_for_all() {
        let mut headers = HeaderMap::new();
        headers.append(WWW_AUTHENTICATE, r#"Basic realm="x""#.parse().unwrap());
        headers.append(WWW_AUTHENTICATE, r#"Bearer realm="https://a/t""#.parse().unwrap());
        assert_eq!(challenges(&headers), parse(br#"Basic realm="x", Bearer realm="https://a/t""#));
    }

    #[test]
    fn bearer_is_preferred_where_it_can_be_followed() {
        let both = parse(br#"Basic realm="x", Bearer realm="https://a/t""#);
        assert_eq!(preferred(&both), Some(&bearer("https://a/t", None, None)));
        let useless = parse(br#"Bearer service="a", Basic realm="x""#);
        assert_eq!(preferred(&useless), Some(&Challenge::Basic));
        assert_eq!(preferred(&parse(b"Negotiate")), None);
    }

    #[test]
    fn an_endless_header_is_cut() {
        let endless = "Basic ".repeat(10_000);
        assert!(parse(endless.as_bytes()).len() <= MOST_CHALLENGES);
        let parameters = format!("Bearer realm=\"r\"{}", ",x=1".repeat(5_000));
        assert_eq!(parse(parameters.as_bytes()), vec![bearer("r", None, None)]);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_within_bounds(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            prop_assert!(parse(&bytes).len() <= MOST_CHALLENGES);
        }

        #[test]
        fn challenges_with_something_wrong_are_read_within_bounds(
            bytes in fairlead_testkit::mutation::mutated(vec![
                r#"Bearer realm="https://a/t",service="b",scope="repository:a/b:pull,push",error="x""#.into(),
                r#"Negotiate YII/+abc==, Basic realm="a, \\"b\\"", Bearer realm=c"#.replace("\\\\", "\\"),
            ]),
        ) {
            prop_assert!(parse(&bytes).len() <= MOST_CHALLENGES);
        }

        #[test]
        fn quoted_text_comes_back_whole(realm in "[ -~]{0,60}", service in "[ -~]{1,40}") {
            let quote = |text: &str| text.replace('\\', r"\\").replace('"', "\\\"");
            let header = format!("Basic realm=\"x\", Bearer realm=\"{}\",service=\"{}\"", quote(&realm), quote(&service));
            prop_assert_eq!(parse(header.as_bytes()), vec![Challenge::Basic, bearer(&realm, Some(&service), None)]);
        }
    }
}
