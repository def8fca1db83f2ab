//! What can be seen of the certificates from outside: when they end, how far a change has come, how many there were.

use fairlead_plan::certificates::{Stage, WallTime};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::controller::metrics::{labels, metrics};

labels! {
    CertificateLabel { certificate }
    StageLabel { stage }
}

metrics! {
    /// Metrics of the certificates.
    pub struct Metrics {
        not_after: Family<CertificateLabel, Gauge> = "fairlead_certificate_not_after_timestamp_seconds",
            "End of validity of the webhook's leaf and of the authority that signed it";
        rotations: Family<CertificateLabel, Counter> = "fairlead_certificate_rotations",
            "Leaves and authorities that this replica made";
        stage: Family<StageLabel, Gauge> = "fairlead_certificate_stage",
            "1 for the stage that the change of authority is in";
        failures: Counter = "fairlead_certificate_failures", "Reads and writes of certificates that failed";
    }
}

const LEAF: CertificateLabel = CertificateLabel { certificate: "leaf" };
const AUTHORITY: CertificateLabel = CertificateLabel { certificate: "authority" };

const STAGES: [(Stage, &str); 4] = [
    (Stage::Missing, "missing"),
    (Stage::Staged, "staged"),
    (Stage::Retiring, "retiring"),
    (Stage::Settled, "settled"),
];

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        Self::register_all(registry)
    }

    pub(super) fn serves(&self, not_after: WallTime) {
        self.not_after.get_or_create(&LEAF).set(seconds(not_after));
    }

    pub(super) fn authority(&self, not_after: WallTime) {
        self.not_after.get_or_create(&AUTHORITY).set(seconds(not_after));
    }

    pub(super) fn made_leaf(&self) {
        self.rotations.get_or_create(&LEAF).inc();
    }

    pub(super) fn made_authority(&self) {
        self.rotations.get_or_create(&AUTHORITY).inc();
    }

    pub(super) fn failed(&self) {
        self.failures.inc();
    }

    pub(super) fn stage(&self, current: Stage) {
        for (stage, name) in STAGES {
            self.stage.get_or_create(&StageLabel { stage: name }).set(i64::from(stage == current));
        }
    }
}

fn seconds(time: WallTime) -> i64 {
    i64::try_from(time.as_secs()).unwrap_or(i64::MAX)
}
