//! Tokens: decoding the answer of a token server, and their lifetime.

use std::time::Duration;

use hyper::header::HeaderValue;
use serde_json::Value;
use tokio::time::Instant;

use crate::error::Problem;
use crate::size_limits;

/// The protocol's lifetime for a token that states none.
const USUAL_LIFETIME: Duration = Duration::from_mins(1);
const LONGEST_LIFETIME: Duration = Duration::from_hours(12);
/// Tokens are replaced a little before they expire: a request takes time.
const MARGIN: Duration = Duration::from_secs(10);

/// A token, ready to be sent.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    /// Marked sensitive, so that it is not printed.
    pub(crate) header: HeaderValue,
    pub(crate) fresh_until: Instant,
}

impl Token {
    pub(crate) fn is_fresh(&self, now: Instant) -> bool {
        now < self.fresh_until
    }

    /// Decodes a token server's answer. Lifetimes count from now, because the server's clock may differ.
    pub(crate) fn read(body: &[u8], now: Instant) -> Result<Self, Problem> {
        let refuse = |reason: &str| Problem::malformed(format!("the token server's answer {reason}"));
        let answer: Value = serde_json::from_slice(body).map_err(|_| refuse("is not JSON"))?;
        let text = |name: &str| answer.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let token = text("token").or_else(|| text("access_token")).ok_or_else(|| refuse("holds no token"))?;
        if token.len() > size_limits::TOKEN {
            return Err(refuse("holds a token that is too long"));
        }
        let mut header = HeaderValue::from_str(&format!("Bearer {token}"))
            .map_err(|_| refuse("holds a token that is no text"))?;
        header.set_sensitive(true);
        Ok(Self { header, fresh_until: now + usable(lifetime(&answer)) })
    }
}

fn lifetime(answer: &Value) -> Duration {
    let seconds = match answer.get("expires_in") {
        Some(Value::Number(number)) => number.as_f64(),
        Some(Value::String(text)) => text.parse().ok(),
        _ => None,
    };
    match seconds {
        Some(seconds) => {
            let bounded = seconds.clamp(0.0, LONGEST_LIFETIME.as_secs_f64());
            Duration::try_from_secs_f64(bounded).unwrap_or_default()
        }
        None => USUAL_LIFETIME,
    }
}

fn usable(lifetime: Duration) -> Duration {
    lifetime.saturating_sub(MARGIN.min(lifetime / 5))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(body: &str) -> Result<(String, u64), String> {
        let now = Instant::now();
        match Token::read(body.as_bytes(), now) {
            Ok(token) => Ok((token.header.to_str().unwrap().to_owned(), (token.fresh_until - now).as_secs())),
            Err(problem) => Err(problem.to_string()),
        }
    }

    #[test]
    fn answers_of_token_servers() {
        let token = |lifetime| Ok(("Bearer t".to_owned(), lifetime));
        for (body, expected) in [
            (r#"{"token":"t"}"#, token(50)),
            (r#"{"access_token":"t","expires_in":300}"#, token(290)),
            (r#"{"token":"t","access_token":"u","expires_in":"20"}"#, token(16)),
            (r#"{"token":"t","expires_in":0}"#, token(0)),
            (r#"{"token":"t","expires_in":-5}"#, token(0)),
            (r#"{"token":"t","expires_in":1e300}"#, token(12 * 3600 - 10)),
            (r#"{"token":"","access_token":"t"}"#, token(50)),
        ] {
            assert_eq!(read(body), expected, "{body}");
        }
        for body in ["", "{}", r#"{"token":7}"#, r#"{"token":"a\nb"}"#, "[]"] {
            assert!(read(body).unwrap_err().contains("token server"), "{body}");
        }
        assert!(read(&format!(r#"{{"token":"{}"}}"#, "x".repeat(size_limits::TOKEN + 1))).is_err());
    }

    #[test]
    fn a_token_is_not_printed() {
        let token = Token::read(br#"{"token":"secret-token"}"#, Instant::now()).unwrap();
        assert!(!format!("{token:?}").contains("secret-token"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            drop(Token::read(&body, Instant::now()));
        }
    }
}
