//! Which build runs, under our names and under those that dashboards of kube-image-keeper ask for.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
    revision: &'static str,
    os: &'static str,
    arch: &'static str,
}

/// kube-image-keeper's labels. Those of the Go toolchain stay empty; the names stay, so that joins on them work.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KeeperBuild {
    version: &'static str,
    revision: &'static str,
    built: &'static str,
    goversion: &'static str,
    goos: &'static str,
    goarch: &'static str,
}

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Commit of the build where the build names one.
const REVISION: &str = match option_env!("FAIRLEAD_REVISION") {
    Some(revision) => revision,
    None => "",
};

pub(super) fn register(registry: &mut Registry) {
    let os = std::env::consts::OS;
    let arch = std::env::consts::ARCH;
    registry.register(
        "fairlead_build",
        "The build that runs",
        Info::new(Build { version: VERSION, revision: REVISION, os, arch }),
    );
    registry.register("fairlead_up", "1 while the operator serves", ConstGauge::new(1_i64));
    registry.register(
        "kube_image_keeper_manager_build",
        "The build that runs; the name that kube-image-keeper uses",
        Info::new(KeeperBuild {
            version: VERSION,
            revision: REVISION,
            built: "",
            goversion: "",
            goos: os,
            goarch: arch,
        }),
    );
    registry.register(
        "kube_image_keeper_manager_up",
        "1 while the operator serves; the name that kube-image-keeper uses",
        ConstGauge::new(1_i64),
    );
}
