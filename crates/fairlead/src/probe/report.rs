//! What a probe found out, as a line for people and as an object for programs.

use std::time::Duration;

use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use jiff::Timestamp;
use serde::Serialize;

use crate::access::hint;
use crate::output::{columns, one_line};

#[derive(Debug, Serialize)]
pub(crate) struct ProbeReport {
    /// As it was given.
    reference: String,
    /// What the registry was asked for.
    pulled: String,
    verdict: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
    milliseconds: u64,
    #[serde(skip_serializing_if = "String::is_empty")]
    reason: String,
    /// When a registry that wants no requests now will take some again, where it said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<Timestamp>,
}

impl ProbeReport {
    #[expect(clippy::needless_pass_by_value, reason = "a report replaces what it is made of")]
    pub(crate) fn new(image: Reference, verdict: Verdict, time: Duration) -> Self {
        let until = match &verdict {
            Verdict::RateLimited { until, .. } => until.and_then(|until| Timestamp::try_from(until).ok()),
            _ => None,
        };
        Self {
            reference: image.written().to_owned(),
            pulled: image.pulled().to_string(),
            verdict: verdict.kind().name(),
            digest: verdict.digest().map(|digest| digest.to_string()),
            milliseconds: u64::try_from(time.as_millis()).unwrap_or(u64::MAX),
            reason: one_line(verdict.reason()) + &hint(verdict.reason()),
            until,
        }
    }

    pub(crate) fn is_available(&self) -> bool {
        self.verdict == fairlead_domain::verdict::VerdictKind::Available.name()
    }

    fn row(&self) -> [String; 5] {
        let reason = match &self.until {
            Some(until) => format!("{} (until {until:.0})", self.reason),
            None => self.reason.clone(),
        };
        [
            self.reference.clone(),
            self.verdict.to_owned(),
            self.digest.clone().unwrap_or_else(|| "-".to_owned()),
            format!("{}ms", self.milliseconds),
            reason,
        ]
    }
}

/// One line for each report.
pub(crate) fn table(reports: &[ProbeReport]) -> String {
    let rows: Vec<_> = reports.iter().map(ProbeReport::row).collect();
    let mut text = String::new();
    columns(&mut text, 0, &rows);
    text
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use fairlead_domain::digest::Digest;

    use super::*;

    fn reports() -> Vec<ProbeReport> {
        let report = |image: &str, verdict, time| {
            ProbeReport::new(Reference::parse(image).unwrap(), verdict, Duration::from_millis(time))
        };
        let until = Some(UNIX_EPOCH + Duration::from_millis(86_400_500));
        vec![
            report("nginx", Verdict::Available { digest: Some(Digest::sha256(b"x")) }, 7),
            report("quay.io/a/b:1", Verdict::RateLimited { until, reason: "used\x1b up".into() }, 1234),
        ]
    }

    #[test]
    fn people_get_columns() {
        let digest = Digest::sha256(b"x").to_string();
        let expected = format!(
            "nginx          available     {digest}  7ms\n\
             quay.io/a/b:1  rate-limited  -{}  1234ms  used  up (until 1970-01-02T00:00:00Z)\n",
            " ".repeat(digest.len() - 1)
        );
        assert_eq!(table(&reports()), expected);
    }

    #[test]
    fn programs_get_objects() {
        let objects: Vec<_> = reports().iter().map(|report| serde_json::to_value(report).unwrap()).collect();
        let digest = Digest::sha256(b"x").to_string();
        assert_eq!(
            objects,
            [
                serde_json::json!({
                    "reference": "nginx", "pulled": "docker.io/library/nginx:latest", "verdict": "available",
                    "digest": digest, "milliseconds": 7
                }),
                serde_json::json!({
                    "reference": "quay.io/a/b:1", "pulled": "quay.io/a/b:1", "verdict": "rate-limited",
                    "milliseconds": 1234, "reason": "used  up", "until": "1970-01-02T00:00:00.5Z"
                })
            ]
        );
    }
}
