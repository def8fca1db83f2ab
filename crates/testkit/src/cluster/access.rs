//! Ways into a cluster: clients, kubeconfig files, namespaces, kubectl and helm.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use tokio::process::Command;

use super::Cluster;
use crate::assets::{Assets, COLLECT_RARELY, Group};
use crate::poll::eventually;
use crate::proxy::ApiProxy;
use crate::{kubeconfig, unique, workdir};

const NAMESPACE_DEADLINE: Duration = Duration::from_secs(30);
const TOKEN_SECONDS: i64 = 24 * 60 * 60;

impl Cluster {
    /// A client with all rights. Made anew for each call: a client belongs to the runtime that made it, and every test
    /// has its own.
    pub async fn client(&self) -> Result<Client> {
        kubeconfig::client(&self.admin).await
    }

    /// A client with the rights of a `ServiceAccount`.
    pub async fn client_as(&self, namespace: &str, service_account: &str) -> Result<Client> {
        kubeconfig::client(&self.kubeconfig_as(namespace, service_account).await?).await
    }

    /// Kubeconfig file of a user with all rights.
    pub fn kubeconfig(&self) -> PathBuf {
        self.admin.clone()
    }

    /// Kubeconfig file with the rights of a `ServiceAccount`, which must exist.
    pub async fn kubeconfig_as(&self, namespace: &str, service_account: &str) -> Result<PathBuf> {
        let token = self.token(namespace, service_account, None).await?;
        self.kubeconfig_with(namespace, service_account, &token)
    }

    /// The same, as a Pod on this node would have it.
    pub async fn kubeconfig_on_node(
        &self,
        namespace: &str,
        service_account: &str,
        node: &str,
    ) -> Result<PathBuf> {
        let token = self.token(namespace, service_account, Some(node)).await?;
        self.kubeconfig_with(namespace, service_account, &token)
    }

    /// A client with the rights of a `ServiceAccount`, as a Pod on this node would have it.
    pub async fn client_on_node(&self, namespace: &str, service_account: &str, node: &str) -> Result<Client> {
        kubeconfig::client(&self.kubeconfig_on_node(namespace, service_account, node).await?).await
    }

    fn kubeconfig_with(&self, namespace: &str, service_account: &str, token: &str) -> Result<PathBuf> {
        let user = format!("{namespace}-{service_account}");
        let text = kubeconfig::with_token(&self.admin, token)?;
        self.write_kubeconfig(&user, &text)
    }

    /// A token of a `ServiceAccount`, valid for longer than any test; bound to a node if one is named.
    pub async fn token(&self, namespace: &str, service_account: &str, node: Option<&str>) -> Result<String> {
        let bound_object_ref = node.map(|node| BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Node".to_owned()),
            name: Some(node.to_owned()),
            uid: None,
        });
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, namespace);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                expiration_seconds: Some(TOKEN_SECONDS),
                bound_object_ref,
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let issued = accounts
            .create_token_request(service_account, &PostParams::default(), &request)
            .await
            .with_context(|| {
            format!("cannot get a token for ServiceAccount {namespace}/{service_account}")
        })?;
        issued
            .status
            .and_then(|status| status.token)
            .context("the answer to the token request holds no token")
    }

    /// A wire to the API server that can be cut.
    pub async fn proxy(&self) -> Result<ApiProxy> {
        ApiProxy::start(self.api_server()?).await
    }

    /// The same user as in `kubeconfig`, by way of a proxy.
    pub fn kubeconfig_through(&self, proxy: &ApiProxy, kubeconfig: &Path) -> Result<PathBuf> {
        let text = kubeconfig::with_server(kubeconfig, &format!("https://{}", proxy.address()))?;
        self.write_kubeconfig("proxied", &text)
    }

    fn write_kubeconfig(&self, name: &str, text: &str) -> Result<PathBuf> {
        let path = self.directory.join("kubeconfigs").join(format!("{}.yaml", unique(name)));
        workdir::write(&path, text)?;
        Ok(path)
    }

    /// Makes a namespace that no other test has, ready for Pods, and returns its name.
    pub async fn namespace(&self, prefix: &str) -> Result<String> {
        let client = self.client().await?;
        let name = unique(prefix);
        let namespace = Namespace {
            metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
            ..Namespace::default()
        };
        Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &namespace).await?;
        // Pods are refused until their ServiceAccount is there.
        let accounts: Api<ServiceAccount> = Api::namespaced(client, &name);
        eventually(NAMESPACE_DEADLINE, || async { Ok(accounts.get("default").await?) })
            .await
            .with_context(|| format!("namespace {name} has no default ServiceAccount"))?;
        Ok(name)
    }

    /// Runs kubectl with all rights; its standard output, or an error with what it said.
    pub async fn kubectl<A: AsRef<str>>(&self, args: impl IntoIterator<Item = A>) -> Result<String> {
        self.run(&self.assets.program("kubectl")?, args).await
    }

    /// Runs helm with all rights; its standard output, or an error with what it said.
    pub async fn helm<A: AsRef<str>>(&self, args: impl IntoIterator<Item = A>) -> Result<String> {
        let assets = Assets::ensure(&[Group::Helm]).await?;
        self.run(&assets.program("helm")?, args).await
    }

    /// Path of kubectl, for programs that call it.
    pub fn kubectl_path(&self) -> Result<PathBuf> {
        self.assets.program("kubectl")
    }

    async fn run<A: AsRef<str>>(&self, program: &Path, args: impl IntoIterator<Item = A>) -> Result<String> {
        let args: Vec<String> = args.into_iter().map(|arg| arg.as_ref().to_owned()).collect();
        let home = self.directory.join("home");
        std::fs::create_dir_all(&home)?;
        let output = Command::new(program)
            .args(&args)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", home)
            .envs(std::env::var("GOMAXPROCS").map(|threads| ("GOMAXPROCS", threads)))
            .env(COLLECT_RARELY.0, COLLECT_RARELY.1)
            .env("KUBECONFIG", &self.admin)
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .with_context(|| format!("cannot run {}", program.display()))?;
        ensure!(
            output.status.success(),
            "{} {} ended with {}:\n{}{}",
            program.display(),
            args.join(" "),
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
