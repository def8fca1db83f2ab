//! The API server's audit log: the judge of who asked for what.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde::Deserialize;

/// Everything is recorded, without bodies. The start of a request is left out: its end says more.
pub(crate) const POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
";

/// One request, once it was answered; a watch also when it began (`stage` is then `ResponseStarted`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditEvent {
    pub stage: String,
    pub user: String,
    pub user_agent: String,
    pub verb: String,
    /// Empty for the core group and for requests that are not about objects.
    pub api_group: String,
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub uri: String,
    pub code: u16,
    pub received: Timestamp,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Line {
    stage: String,
    #[serde(rename = "requestURI")]
    request_uri: String,
    verb: String,
    user: User,
    user_agent: String,
    object_ref: ObjectRef,
    response_status: ResponseStatus,
    request_received_timestamp: Timestamp,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct User {
    username: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ObjectRef {
    api_group: String,
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseStatus {
    code: u16,
}

impl From<Line> for AuditEvent {
    fn from(line: Line) -> Self {
        Self {
            stage: line.stage,
            user: line.user.username,
            user_agent: line.user_agent,
            verb: line.verb,
            api_group: line.object_ref.api_group,
            resource: line.object_ref.resource,
            subresource: line.object_ref.subresource,
            namespace: line.object_ref.namespace,
            name: line.object_ref.name,
            uri: line.request_uri,
            code: line.response_status.code,
            received: line.request_received_timestamp,
        }
    }
}

/// The log of one API server. What was read once stays parsed: tests ask again and again until they find something.
#[derive(Debug)]
pub(crate) struct AuditLog {
    path: PathBuf,
    known: Mutex<(Vec<AuditEvent>, u64)>,
}

impl AuditLog {
    pub(crate) fn new(path: PathBuf) -> Self {
        Self { path, known: Mutex::default() }
    }

    pub(crate) fn events(&self) -> Result<Vec<AuditEvent>> {
        let mut known = self.known.lock();
        let (events, position) = read(&self.path, known.1)?;
        known.0.extend(events);
        known.1 = position;
        Ok(known.0.clone())
    }

    pub(crate) fn events_from(&self, position: u64) -> Result<(Vec<AuditEvent>, u64)> {
        read(&self.path, position)
    }
}

/// All events from a position on, and the position after them. A last line that is still being written is left for the
/// next call.
fn read(path: &Path, from: u64) -> Result<(Vec<AuditEvent>, u64)> {
    let mut text = String::new();
    let mut read = || {
        let mut file = File::open(path)?;
        file.seek(SeekFrom::Start(from))?;
        file.read_to_string(&mut text)
    };
    read().with_context(|| format!("cannot read the audit log {}", path.display()))?;
    let complete = text.rfind('\n').map_or(0, |end| end + 1);
    text.truncate(complete);
    Ok((parse(&text)?, from + u64::try_from(complete)?))
}

fn parse(text: &str) -> Result<Vec<AuditEvent>> {
    text.lines()
        .map(|line| {
            let parsed: Line =
                serde_json::from_str(line).context("the audit log holds a line that is not an event")?;
            Ok(parsed.into())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_request_is_read_and_a_half_written_line_waits() -> Result<()> {
        let text = concat!(
            r#"{"kind":"Event","stage":"ResponseComplete","requestURI":"/api/v1/namespaces/a/pods/b/status","verb":"patch","#,
            r#""user":{"username":"system:serviceaccount:x:y"},"objectRef":{"resource":"pods","namespace":"a","name":"b","#,
            r#""subresource":"status"},"responseStatus":{"code":403}}"#,
            "\n{\"kind\":\"Eve"
        );
        let mut log = tempfile::NamedTempFile::new()?;
        log.write_all(text.as_bytes())?;
        let (events, position) = read(log.path(), 0)?;
        assert_eq!(events.len(), 1);
        let event = &events[0];
        assert_eq!((event.user.as_str(), event.verb.as_str()), ("system:serviceaccount:x:y", "patch"));
        assert_eq!((event.resource.as_str(), event.subresource.as_str()), ("pods", "status"));
        assert_eq!((event.namespace.as_str(), event.name.as_str(), event.code), ("a", "b", 403));

        log.write_all(b"nt\",\"verb\":\"list\"}\n")?;
        let (events, position) = read(log.path(), position)?;
        assert_eq!(events.iter().map(|event| &*event.verb).collect::<Vec<_>>(), ["list"]);
        assert_eq!(read(log.path(), position)?.0, []);
        Ok(())
    }
}
