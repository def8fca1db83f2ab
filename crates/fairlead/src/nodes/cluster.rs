//! Mirror policies of a cluster, the runtime of one of its nodes, and how the agents there are run.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use fairlead_api::fairlead::{NodeMirrorReport, NodeMirrorReportSpec};
use fairlead_node::Runtime;
use fairlead_operator::platform::install::{AGENT, AGENT_CONTAINER, AGENT_NAMESPACE};
use fairlead_plan::node_config::Scope;
use k8s_openapi::api::apps::v1::DaemonSet;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams};

use crate::access::warn;
use crate::agent::cluster::{KINDS, Seen};
use crate::connect::Server;
use crate::explain::files::Manifest;

pub(super) struct ClusterInputs {
    pub(super) objects: Vec<Manifest>,
    /// Of the node that was named.
    pub(super) runtime: Option<Runtime>,
    /// Of the agent on it; `None`: no agents are installed.
    pub(super) agent: Option<Arguments>,
    /// What the agent there says.
    pub(super) report: Option<NodeMirrorReportSpec>,
}

/// What the arguments of the agents say about the files that they write.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Arguments {
    pub(super) insecure: Vec<Scope>,
    pub(super) blocked: Vec<Scope>,
    pub(super) router: Option<SocketAddr>,
    pub(super) without_router: bool,
}

impl Arguments {
    async fn read(client: &kube::Client) -> Result<Option<Self>> {
        let agents: Api<DaemonSet> = Api::namespaced(client.clone(), AGENT_NAMESPACE);
        let found = agents.get_opt(AGENT).await.context("cannot read the DaemonSet of the agents")?;
        let Some(agents) = found else { return Ok(None) };
        let containers = agents.spec.and_then(|spec| spec.template.spec).map(|pod| pod.containers);
        let mut containers = containers.into_iter().flatten();
        let container = containers.find(|container| container.name == AGENT_CONTAINER);
        Ok(Some(Self::parse(&container.and_then(|container| container.args).unwrap_or_default())))
    }

    /// A value follows its flag, after `=` or as an argument of its own. What the agent would not accept is left out:
    /// it does not run then.
    fn parse(arguments: &[String]) -> Self {
        let mut parsed = Self::default();
        let mut arguments = arguments.iter().map(String::as_str);
        while let Some(argument) = arguments.next() {
            let (flag, value) = match argument.split_once('=') {
                Some((flag, value)) => (flag, Some(value)),
                None => (argument, None),
            };
            match flag {
                "--without-router" => parsed.without_router = true,
                "--insecure-registry" | "--blocked-registry" => {
                    let list =
                        if flag.starts_with("--i") { &mut parsed.insecure } else { &mut parsed.blocked };
                    list.extend(value.or_else(|| arguments.next()).and_then(|text| Scope::parse(text).ok()));
                }
                "--router" => {
                    parsed.router = value.or_else(|| arguments.next()).and_then(|text| text.parse().ok());
                }
                _ => {}
            }
        }
        parsed
    }
}

/// Reads all kinds that the cluster serves.
pub(super) async fn read(server: &Server, node: Option<&str>) -> Result<ClusterInputs> {
    let client = server.connect().await?.client;
    let mut objects = Vec::new();
    for (group, version, kind, plural) in KINDS {
        let names = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &names);
        let list = match api.list(&ListParams::default()).await {
            Ok(list) => list,
            Err(kube::Error::Api(status)) if status.code == 404 => continue,
            Err(error) => return Err(error).with_context(|| format!("cannot list {plural}")),
        };
        for mut object in list {
            // Items of a list do not say what they are.
            object.types =
                Some(kube::api::TypeMeta { api_version: names.api_version.clone(), kind: kind.to_owned() });
            let object = serde_json::to_value(object)?;
            objects.push(Manifest { place: "cluster".to_owned(), object });
        }
    }
    let (mut agent, mut report) = (None, None);
    let runtime = match node {
        Some(node) => {
            agent = Arguments::read(&client).await?;
            let reports: Api<NodeMirrorReport> = Api::all(client.clone());
            match reports.get(node).await {
                Ok(found) => report = Some(found.spec),
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => warn(&format!("cannot read NodeMirrorReport {node}: {error}")),
            }
            let runtime = Seen::read(&client, node).await?.runtime;
            Some(
                runtime
                    .with_context(|| format!("Node {node} names no runtime that reads mirror policies"))?,
            )
        }
        None => None,
    };
    Ok(ClusterInputs { objects, runtime, agent, report })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_agents_are_read_in_both_forms() {
        let parse = |text: &str| Arguments::parse(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        let scopes =
            |texts: &[&str]| texts.iter().map(|text| Scope::parse(text).unwrap()).collect::<Vec<_>>();
        let read = parse(
            "agent --insecure-registry=a.test --blocked-registry b.test/x --insecure-registry c.test --router=[::1]:1 \
             --without-router --status=127.0.0.1:1",
        );
        assert_eq!(read.insecure, scopes(&["a.test", "c.test"]));
        assert_eq!(read.blocked, scopes(&["b.test/x"]));
        assert_eq!((read.router, read.without_router), ("[::1]:1".parse().ok(), true));
        assert_eq!(parse("agent"), Arguments::default());
    }
}
