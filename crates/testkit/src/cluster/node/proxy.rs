//! Configuration of kube-proxy, which translates the addresses of Services.

use std::path::Path;

use anyhow::Result;
use serde_json::json;

use super::{Layout, NAME, search_path};
use crate::cluster::network::PODS;
use crate::process::Program;
use crate::workdir;

pub(super) fn prepare(layout: &Layout<'_>, kubeconfig: &Path) -> Result<Program> {
    let config = json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "hostnameOverride": NAME,
        "clientConnection": {"kubeconfig": kubeconfig},
        "clusterCIDR": PODS,
        "healthzBindAddress": format!("{}:{}", layout.address, layout.proxy_health_port),
        // Settings of the whole machine; zero leaves them alone.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    });
    let file = layout.file("kube-proxy.yaml");
    // JSON is YAML, too.
    workdir::write(&file, serde_json::to_string_pretty(&config)?)?;
    Ok(Program::new(layout.assets.program("kube-proxy")?)
        .arg(format!("--config={}", file.display()))
        .env("PATH", search_path()))
}
