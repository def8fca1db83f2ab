//! Configuration of containerd and of the Pods' network.

use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::json;

use super::{Layout, NETWORK_PLUGINS, search_path};
use crate::cluster::network::PODS;
use crate::process::Program;
use crate::workdir;

/// Where containerd finds out how to reach registries; read again at every pull.
pub(super) fn hosts_directory(cluster: &Path) -> PathBuf {
    cluster.join("certs.d")
}

pub(super) fn prepare(layout: &Layout<'_>) -> Result<Program> {
    let network = layout.file("cni.d");
    workdir::write(&network.join("10-pods.conflist"), network_config(layout)?)?;
    let file = layout.file("containerd.toml");
    workdir::write(&file, config(layout))?;
    // The shim is looked up on the PATH, beside containerd.
    let path = search_path();
    Ok(Program::new(layout.assets.program("containerd")?)
        .args(["--config".to_owned(), file.display().to_string()])
        .env("PATH", format!("{}:{path}", layout.assets.directory().display())))
}

fn config(layout: &Layout<'_>) -> String {
    let quoted = |name: &str| format!("\"{}\"", layout.file(name).display());
    format!(
        r#"version = 3
root = {root}
state = {state}
# Not needed here; each would probe the machine, or complain that it cannot work.
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.nri.v1.nri",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.tracing.processor.v1.otlp",
]

[grpc]
address = {socket}

[ttrpc]
address = {ttrpc}

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{sandbox}"

[plugins."io.containerd.cri.v1.images".registry]
config_path = {hosts}

[plugins."io.containerd.cri.v1.runtime"]
# An unprivileged parent may not lower its children's OOM score.
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{NETWORK_PLUGINS}"]
conf_dir = {network}
"#,
        root = quoted("containerd"),
        state = quoted("containerd-state"),
        socket = quoted("containerd.sock"),
        ttrpc = quoted("containerd.sock.ttrpc"),
        hosts = format_args!("\"{}\"", hosts_directory(layout.directory).display()),
        network = quoted("cni.d"),
        sandbox = layout.sandbox,
    )
}

fn network_config(layout: &Layout<'_>) -> Result<String> {
    let routes = json!([{"dst": "0.0.0.0/0"}]);
    let ranges = json!([[{"subnet": PODS}]]);
    let config = json!({
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [{
            "type": "ptp",
            "ipam": {"type": "host-local", "ranges": ranges, "routes": routes, "dataDir": layout.file("cni-state")},
        }],
    });
    Ok(serde_json::to_string_pretty(&config)?)
}
