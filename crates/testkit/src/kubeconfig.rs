//! Kubeconfig files for the users of a cluster.

use std::path::Path;

use anyhow::{Context, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

pub(crate) fn render(server: &str, authority: &str, user: &str, token: &str) -> String {
    let authority = STANDARD.encode(authority);
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: fairlead-test
  cluster:
    server: {server}
    certificate-authority-data: {authority}
users:
- name: {user}
  user:
    token: {token}
contexts:
- name: {user}
  context:
    cluster: fairlead-test
    user: {user}
current-context: {user}
"
    )
}

pub(crate) async fn load(path: &Path) -> Result<Config> {
    let kubeconfig =
        Kubeconfig::read_from(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    // A test cluster is on this machine; a proxy from the environment must not come between.
    config.proxy_url = None;
    Ok(config)
}

pub(crate) async fn client(path: &Path) -> Result<Client> {
    crate::install_crypto();
    let config = load(path).await?;
    Client::try_from(config).with_context(|| format!("cannot make a client from {}", path.display()))
}

/// The same cluster, with a bearer token instead of whatever the file logs in with.
pub(crate) fn with_token(path: &Path, token: &str) -> Result<String> {
    edit(path, |kubeconfig| {
        for user in &mut kubeconfig.auth_infos {
            user.auth_info = Some(AuthInfo { token: Some(token.to_owned().into()), ..AuthInfo::default() });
        }
    })
}

/// The same user at another address of the same server.
pub(crate) fn with_server(path: &Path, server: &str) -> Result<String> {
    edit(path, |kubeconfig| {
        for cluster in kubeconfig.clusters.iter_mut().filter_map(|named| named.cluster.as_mut()) {
            cluster.server = Some(server.to_owned());
        }
    })
}

fn edit(path: &Path, change: impl FnOnce(&mut Kubeconfig)) -> Result<String> {
    let mut kubeconfig =
        Kubeconfig::read_from(path).with_context(|| format!("cannot read {}", path.display()))?;
    change(&mut kubeconfig);
    // JSON is YAML, too.
    Ok(serde_json::to_string_pretty(&kubeconfig)?)
}
