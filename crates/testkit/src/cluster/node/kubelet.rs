//! Configuration of the kubelet.

use std::path::Path;

use anyhow::Result;
use serde_json::json;

use super::{Layout, NAME};
use crate::process::Program;
use crate::workdir;

pub(super) fn prepare(layout: &Layout<'_>, kubeconfig: &Path) -> Result<Program> {
    let file = layout.file("kubelet.yaml");
    // JSON is YAML, too.
    workdir::write(&file, config(layout)?)?;
    Ok(Program::new(layout.assets.program("kubelet")?).args([
        format!("--config={}", file.display()),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--root-dir={}", layout.file("kubelet").display()),
        format!("--cert-dir={}", layout.file("kubelet-pki").display()),
        format!("--hostname-override={NAME}"),
        format!("--node-ip={}", layout.address),
    ]))
}

fn config(layout: &Layout<'_>) -> Result<String> {
    let config = json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": layout.address,
        "port": layout.kubelet_port,
        "readOnlyPort": 0,
        "healthzBindAddress": layout.address,
        "healthzPort": layout.kubelet_health_port,
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true},
            "x509": {"clientCAFile": layout.file("pki/ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": format!("unix://{}", layout.socket().display()),
        "podLogsDir": layout.file("pod-logs"),
        "resolvConf": "/dev/null",
        // A machine that also builds and runs tests is no tidy node: take its control groups as they are. Those of
        // Pods are needed: without them this kubelet dereferences nil when the first pull of a Pod with limits fails.
        "failCgroupV1": false,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", super::name_of(layout.directory)),
        "cgroupsPerQOS": true,
        "enforceNodeAllocatable": [],
        "failSwapOn": false,
        "makeIPTablesUtilChains": false,
        // Neither a full disk nor a big image is to evict Pods or collect images behind a test's back.
        "evictionHard": {"nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%", "memory.available": "1Mi"},
        "imageGCHighThresholdPercent": 100,
        "serializeImagePulls": false,
        "maxPods": 250,
        "nodeStatusUpdateFrequency": "2s",
    });
    Ok(serde_json::to_string_pretty(&config)?)
}
