//! Events of Kubernetes in log lines: which image was pulled, how long that took, and how large it is.

use std::collections::BTreeMap;

use fairlead_domain::duration::Duration;
use fairlead_domain::reference::Reference;
use serde_json::{Map, Value};

use super::sample::{count, image};

const PULLED: &str = "pulled";

/// Where the parts of an event stand: labels of the stream, or fields of a line that is JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventFields {
    pub reason: String,
    pub message: String,
    /// Read from the message where there is none.
    pub image: Option<String>,
}

/// A pull that an event tells of.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Pull {
    pub(super) image: Reference,
    pub(super) seconds: Option<f64>,
    pub(super) bytes: Option<f64>,
}

impl EventFields {
    /// The finished pull that a line tells of. An image that was there already was not pulled.
    pub(super) fn pull(&self, labels: &BTreeMap<String, String>, line: &str) -> Option<Pull> {
        let label = |name: &str| labels.get(name).map(String::as_str).filter(|text| !text.is_empty());
        let fields: Map<String, Value> = match (label(&self.reason), label(&self.message)) {
            (Some(_), Some(_)) => Map::new(),
            _ => serde_json::from_str(line).unwrap_or_default(),
        };
        let find = |name: &str, aliases: &[&str]| {
            label(name).or_else(|| {
                let names = std::iter::once(name).chain(aliases.iter().copied());
                names.filter_map(|name| fields.get(name)?.as_str()).find(|text| !text.is_empty())
            })
        };
        let message = find(&self.message, &["message", "msg"]).unwrap_or(line);
        let is_pull = match find(&self.reason, &["reason"]) {
            Some(reason) => reason.eq_ignore_ascii_case(PULLED),
            None => message.to_ascii_lowercase().contains("successfully pulled"),
        };
        let named = self.image.as_deref().and_then(|field| find(field, &[]));
        let image = match named {
            Some(text) => image(quoted_image(text).unwrap_or(text)),
            None => image(quoted_image(message)?),
        };
        let pull = Pull { image: image?, seconds: seconds(message), bytes: bytes(message) };
        (is_pull && (pull.seconds.is_some() || pull.bytes.is_some())).then_some(pull)
    }
}

/// The quoted text after the word image. Lines in logfmt have a backslash before their quotes.
fn quoted_image(message: &str) -> Option<&str> {
    let after = ["image ", "Image "].iter().filter_map(|word| Some((message.find(word)?, word.len()))).min();
    let (at, length) = after?;
    let rest = message.get(at + length..)?;
    let rest = rest.strip_prefix('\\').unwrap_or(rest).strip_prefix('"')?;
    let (image, _) = rest.split_once('"')?;
    Some(image.strip_suffix('\\').unwrap_or(image))
}

/// The time after the word `in`, in the notation of Go: `2.5s`, `1m2.345s`.
fn seconds(message: &str) -> Option<f64> {
    let mut words = message.split_whitespace();
    while let Some(word) = words.next() {
        if word != "in" {
            continue;
        }
        let Some(text) = words.clone().next() else { break };
        let text = text.trim_end_matches(['.', ',', ';', '"', '\\', ')']);
        if let Some(time) = text.parse::<Duration>().ok().filter(|time| !time.is_zero()) {
            return Some(time.as_std().as_secs_f64());
        }
    }
    None
}

fn bytes(message: &str) -> Option<f64> {
    const BEFORE: &str = "image size: ";
    let lower = message.to_ascii_lowercase();
    let rest = lower.get(lower.find(BEFORE)? + BEFORE.len()..)?;
    let (number, unit) = rest.split_once(' ')?;
    let size: u64 = number.parse().ok().filter(|_| unit.starts_with("bytes"))?;
    // Exact below 2^53 bytes.
    let (high, low) = (size >> 32, size & u64::from(u32::MAX));
    Some(count(usize::try_from(high).ok()?) * 4_294_967_296.0 + count(usize::try_from(low).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> EventFields {
        EventFields { reason: "reason".to_owned(), message: "message".to_owned(), image: None }
    }

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    const MESSAGE: &str = r#"Successfully pulled image "nginx:1.25" in 2.5s (3s including waiting). Image size: 70542235 bytes."#;

    fn told(labels: &BTreeMap<String, String>, line: &str) -> Option<(String, Option<f64>, Option<f64>)> {
        let pull = fields().pull(labels, line)?;
        Some((pull.image.written().to_owned(), pull.seconds, pull.bytes))
    }

    #[test]
    fn events_are_read_from_labels_json_logfmt_and_plain_text() {
        let expected = Some(("nginx:1.25".to_owned(), Some(2.5), Some(70_542_235.0)));
        let json = serde_json::json!({"reason": "Pulled", "message": MESSAGE}).to_string();
        let alloy = serde_json::json!({"name": "web", "reason": "Pulled", "msg": MESSAGE}).to_string();
        let logfmt = format!("name=web reason=Pulled msg={MESSAGE:?}");
        for (labels, line) in [
            (labels(&[("reason", "Pulled"), ("message", MESSAGE)]), "ignored"),
            (labels(&[("reason", "pulled")]), &*json),
            (labels(&[]), &*json),
            (labels(&[]), &*alloy),
            (labels(&[]), &*logfmt),
            (labels(&[]), MESSAGE),
        ] {
            assert_eq!(told(&labels, line), expected, "{line}");
        }
    }

    #[test]
    fn what_is_no_finished_pull_is_left_out() {
        for line in [
            r#"Container image "nginx:1.25" already present on machine"#,
            r#"Pulling image "nginx:1.25""#,
            r#"{"reason":"Failed","message":"Successfully pulled image \"nginx\" in 2s"}"#,
            "Successfully pulled image nginx in 2s",
            r#"Successfully pulled image "sha256:0000000000000000000000000000000000000000000000000000000000000000" in 2s"#,
            r#"Successfully pulled image "nginx" in 0s"#,
            "",
            "{",
        ] {
            assert_eq!(told(&labels(&[]), line), None, "{line}");
        }
        let present = labels(&[("reason", "Pulled")]);
        assert_eq!(told(&present, r#"Container image "nginx" already present on machine"#), None);
    }

    #[test]
    fn durations_are_read_whole() {
        for (text, expected) in [
            ("2.5s", 2.5),
            ("500ms", 0.5),
            ("1m", 60.0),
            ("1h", 3600.0),
            ("1m2.345s", 62.345),
            ("2h3m4s", 7384.0),
            ("750µs", 0.000_75),
        ] {
            let line = format!("Successfully pulled image \"a/b\" in {text} ({text} including waiting)");
            assert_eq!(told(&labels(&[]), &line), Some(("a/b".to_owned(), Some(expected), None)), "{text}");
        }
    }

    #[test]
    fn the_image_may_stand_in_a_field_of_its_own() {
        let fields = EventFields { image: Some("img".to_owned()), ..fields() };
        let read = |labels: &BTreeMap<_, _>| Some(fields.pull(labels, MESSAGE)?.image.as_str().to_owned());
        assert_eq!(read(&labels(&[("img", "r.example/a:1")])).as_deref(), Some("r.example/a:1"));
        assert_eq!(read(&labels(&[("img", "image \"r.example/a:2\"")])).as_deref(), Some("r.example/a:2"));
        assert_eq!(read(&labels(&[])).as_deref(), Some("docker.io/library/nginx:1.25"));
    }

    #[test]
    fn a_size_alone_counts() {
        let line = "Successfully pulled image \"a/b\". Image size: 9007199254740993 bytes.";
        assert_eq!(told(&labels(&[]), line), Some(("a/b".to_owned(), None, Some(9_007_199_254_740_992.0))));
    }
}
