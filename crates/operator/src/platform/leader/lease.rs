//! The Lease object as the record that the election is about.

use std::time::Duration;

use fairlead_plan::leadership::{Record, Stamp, Stored, Write};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::{Api, ObjectMeta, PostParams};
use kube::{Client, ResourceExt};

use crate::platform::api_error::{Failure, within};

/// Reads and writes one Lease, each request within its own time limit.
#[derive(Clone)]
pub(super) struct Leases {
    api: Api<Lease>,
    namespace: String,
    name: String,
}

impl Leases {
    pub(super) fn new(client: Client, namespace: &str, name: &str) -> Self {
        Self {
            api: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        }
    }

    pub(super) fn namespace(&self) -> &str {
        &self.namespace
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) async fn read(&self, limit: Duration) -> Result<Option<Stored>, Failure> {
        let lease = within(limit, self.api.get_opt(&self.name)).await?;
        Ok(lease.map(into_stored))
    }

    pub(super) async fn write(&self, write: &Write, limit: Duration) -> Result<Stored, Failure> {
        let lease = Lease {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                namespace: Some(self.namespace.clone()),
                resource_version: write.replaces.clone(),
                ..ObjectMeta::default()
            },
            spec: Some(into_spec(&write.record)),
        };
        let params =
            PostParams { field_manager: Some("fairlead-leader".to_owned()), ..PostParams::default() };
        let stored = match write.replaces {
            Some(_) => within(limit, self.api.replace(&self.name, &params, &lease)).await?,
            None => within(limit, self.api.create(&params, &lease)).await?,
        };
        Ok(into_stored(stored))
    }
}

fn into_stored(lease: Lease) -> Stored {
    let version = lease.resource_version().unwrap_or_default();
    let spec = lease.spec.unwrap_or_default();
    let record = Record {
        holder: spec.holder_identity,
        acquired: spec.acquire_time.map(|time| Stamp(time.0.as_microsecond())),
        renewed: spec.renew_time.map(|time| Stamp(time.0.as_microsecond())),
        transitions: spec.lease_transitions.unwrap_or(0),
        duration: spec
            .lease_duration_seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .filter(|seconds| *seconds > 0)
            .map(Duration::from_secs),
    };
    Stored { record, version }
}

fn into_spec(record: &Record) -> LeaseSpec {
    LeaseSpec {
        holder_identity: record.holder.clone(),
        acquire_time: record.acquired.and_then(into_time),
        renew_time: record.renewed.and_then(into_time),
        lease_transitions: Some(record.transitions),
        lease_duration_seconds: record
            .duration
            .map(|duration| i32::try_from(duration.as_secs()).unwrap_or(i32::MAX)),
        ..LeaseSpec::default()
    }
}

fn into_time(stamp: Stamp) -> Option<MicroTime> {
    Timestamp::from_microsecond(stamp.0).ok().map(MicroTime)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_survives_the_way_through_a_lease() {
        let record = Record {
            holder: Some("replica".to_owned()),
            acquired: Some(Stamp(1_700_000_000_123_456)),
            renewed: Some(Stamp(1_700_000_002_000_001)),
            transitions: 3,
            duration: Some(Duration::from_secs(10)),
        };
        let lease = Lease {
            metadata: ObjectMeta { resource_version: Some("17".to_owned()), ..ObjectMeta::default() },
            spec: Some(into_spec(&record)),
        };
        let text = serde_json::to_string(&lease).expect("a lease is plain data");
        let lease = serde_json::from_str(&text).expect("it was written by us");
        assert_eq!(into_stored(lease), Stored { record, version: "17".to_owned() });
    }

    #[test]
    fn a_lease_without_content_is_free() {
        let stored = into_stored(Lease::default());
        assert_eq!(
            (stored.record.holder, stored.record.duration, stored.record.transitions),
            (None, None, 0)
        );
    }
}
