//! Compares what the installed roles grant with what the operator did, by the API server's audit log: nothing it needs
//! may be missing, and nothing may be granted that it does not use, unless the role itself says what it is for.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use fairlead_operator::platform::install::{NAME, RARELY_USED, WARM_ROLE};
use fairlead_testkit::Cluster;
use fairlead_testkit::audit::AuditEvent;
use k8s_openapi::api::rbac::v1::{ClusterRole, PolicyRule, Role};
use kube::{Api, ResourceExt};

/// One thing that a role permits: a verb on a resource, or on one object of it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Grant {
    verb: String,
    group: String,
    resource: String,
    /// Empty means any.
    name: String,
    /// Empty means all.
    namespace: String,
}

impl Grant {
    fn covers(&self, event: &AuditEvent) -> bool {
        let resource = match event.subresource.as_str() {
            "" => event.resource.clone(),
            sub => format!("{}/{sub}", event.resource),
        };
        self.verb == event.verb
            && self.group == event.api_group
            && self.resource == resource
            && (self.name.is_empty() || self.name == event.name)
            && (self.namespace.is_empty() || self.namespace == event.namespace)
    }

    /// As the annotation of a role writes it.
    fn title(&self) -> String {
        let mut title = format!("{} {}", self.verb, self.resource);
        for (mark, part) in [('.', &self.group), ('/', &self.name)] {
            if !part.is_empty() {
                title.push(mark);
                title.push_str(part);
            }
        }
        title
    }
}

/// Fails with all missing and all unused rights of the operator that is installed in `namespace`, but for those that
/// its roles explain.
pub async fn check(cluster: &Cluster, namespace: &str) -> Result<()> {
    check_if(cluster, namespace, |_| true).await
}

/// The same on an API server that does not send a list as part of a watch: there, that explains nothing.
pub async fn check_on_old_server(cluster: &Cluster, namespace: &str) -> Result<()> {
    check_if(cluster, namespace, |case| !case.contains("do not send a list as part of a watch")).await
}

async fn check_if(cluster: &Cluster, namespace: &str, counts: impl Fn(&str) -> bool) -> Result<()> {
    let (grants, explained) = granted(cluster, namespace, counts).await?;
    judge(&grants, &explained, &requests(cluster, namespace)?)
}

/// Fails with rights that were not used although what their roles explain them by did not hold: some of these cases.
pub async fn check_cases(cluster: &Cluster, namespace: &str, cases: &[&str]) -> Result<()> {
    let (grants, titles) = granted(cluster, namespace, |case| cases.contains(&case)).await?;
    let of_cases: Vec<_> = grants.into_iter().filter(|grant| titles.contains(&grant.title())).collect();
    ensure!(of_cases.len() >= cases.len(), "no right is explained by some of {cases:?}: {of_cases:#?}");
    let unused = unused(&of_cases, &BTreeSet::new(), &requests(cluster, namespace)?);
    ensure!(unused.is_empty(), "not used: {unused:#?}");
    Ok(())
}

/// The same for a `ServiceAccount` and the `ClusterRole` of its name, which is all that it has.
pub async fn check_role(cluster: &Cluster, namespace: &str, name: &str) -> Result<()> {
    let roles: Api<ClusterRole> = Api::all(cluster.client().await?);
    let role = roles.get(name).await.context("no ClusterRole")?;
    let grants = expand(role.rules.as_deref().unwrap_or_default(), "");
    judge(&grants, &explained(role.annotations(), |_| true), &requests_of(cluster, namespace, name)?)
}

fn requests(cluster: &Cluster, namespace: &str) -> Result<Vec<AuditEvent>> {
    requests_of(cluster, namespace, NAME)
}

fn requests_of(cluster: &Cluster, namespace: &str, name: &str) -> Result<Vec<AuditEvent>> {
    let user = format!("system:serviceaccount:{namespace}:{name}");
    let events = cluster.audit_events()?.into_iter().filter(|event| event.user == user).collect::<Vec<_>>();
    ensure!(!events.is_empty(), "the audit log knows no request of {user}");
    Ok(events)
}

fn judge(grants: &[Grant], explained: &BTreeSet<String>, events: &[AuditEvent]) -> Result<()> {
    let refused =
        events.iter().filter(|event| matches!(event.code, 401 | 403)).map(describe).collect::<BTreeSet<_>>();
    ensure!(refused.is_empty(), "rights are missing; refused were: {refused:#?}");
    let unused = unused(grants, explained, events);
    ensure!(unused.is_empty(), "granted, but neither used nor explained by {RARELY_USED}: {unused:#?}");
    Ok(())
}

fn unused(grants: &[Grant], explained: &BTreeSet<String>, events: &[AuditEvent]) -> Vec<String> {
    let unused = grants.iter().filter(|grant| !events.iter().any(|event| grant.covers(event)));
    unused.map(Grant::title).filter(|title| !explained.contains(title)).collect()
}

fn describe(event: &AuditEvent) -> String {
    format!("{} {} ({})", event.verb, event.uri, event.code)
}

async fn granted(
    cluster: &Cluster,
    namespace: &str,
    counts: impl Fn(&str) -> bool,
) -> Result<(Vec<Grant>, BTreeSet<String>)> {
    let client = cluster.client().await?;
    let cluster_role = Api::<ClusterRole>::all(client.clone()).get(NAME).await.context("no ClusterRole")?;
    let roles = Api::<Role>::namespaced(client, namespace);
    let role = roles.get(NAME).await.context("no Role")?;
    let warm = roles.get(WARM_ROLE).await.context("no Role for pull Pods")?;
    let mut grants = expand(cluster_role.rules.as_deref().unwrap_or_default(), "");
    for role in [&role, &warm] {
        grants.extend(expand(role.rules.as_deref().unwrap_or_default(), namespace));
    }
    let explained = [cluster_role.annotations(), role.annotations(), warm.annotations()]
        .into_iter()
        .flat_map(|annotations| explained(annotations, &counts))
        .collect();
    Ok((grants, explained))
}

/// The rights that a role explains by a case that counts.
fn explained(annotations: &BTreeMap<String, String>, counts: impl Fn(&str) -> bool) -> BTreeSet<String> {
    let lines = annotations.get(RARELY_USED).map(String::as_str).unwrap_or_default().lines();
    lines
        .filter_map(|line| line.split_once(": "))
        .filter(|(_, case)| counts(case))
        .flat_map(|(rare, _)| single_titles(rare))
        .collect()
}

/// `list pods a,b/status.example.com` is `list pods`, `list a.example.com` and `list b/status.example.com`.
fn single_titles(rare: &str) -> Vec<String> {
    let mut words = rare.split(' ');
    let verb = words.next().unwrap_or_default();
    let targets = words.flat_map(|target| {
        let Some((others, last)) = target.rsplit_once(',') else { return vec![target.to_owned()] };
        let (last, group) = last.split_at(last.find('.').unwrap_or(last.len()));
        others.split(',').chain([last]).map(|resource| format!("{resource}{group}")).collect()
    });
    targets.map(|target| format!("{verb} {target}")).collect()
}

fn expand(rules: &[PolicyRule], namespace: &str) -> Vec<Grant> {
    let mut grants = Vec::new();
    for rule in rules {
        let names = rule.resource_names.clone().unwrap_or_else(|| vec![String::new()]);
        for verb in &rule.verbs {
            for group in rule.api_groups.iter().flatten() {
                for resource in rule.resources.iter().flatten() {
                    grants.extend(names.iter().map(|name| Grant {
                        verb: verb.clone(),
                        group: group.clone(),
                        resource: resource.clone(),
                        name: name.clone(),
                        namespace: namespace.to_owned(),
                    }));
                }
            }
        }
    }
    grants
}

#[test]
fn an_explanation_covers_each_of_its_resources() {
    let titles = single_titles("list pods a,b.example.com secrets/one");
    assert_eq!(titles, ["list pods", "list a.example.com", "list b.example.com", "list secrets/one"]);
}

#[test]
fn a_missing_right_and_a_right_too_many_are_both_found() {
    let rules = [PolicyRule {
        api_groups: Some(vec![String::new()]),
        resources: Some(vec!["secrets".to_owned()]),
        resource_names: Some(vec!["one".to_owned()]),
        verbs: vec!["get".to_owned(), "update".to_owned()],
        ..PolicyRule::default()
    }];
    let grants = expand(&rules, "here");
    let event = |verb: &str, name: &str, code| AuditEvent {
        stage: "ResponseComplete".to_owned(),
        user: "operator".to_owned(),
        user_agent: String::new(),
        verb: verb.to_owned(),
        api_group: String::new(),
        resource: "secrets".to_owned(),
        subresource: String::new(),
        namespace: "here".to_owned(),
        name: name.to_owned(),
        uri: format!("/{name}"),
        code,
        ..AuditEvent::default()
    };
    let nothing = BTreeSet::new();
    let used = [event("get", "one", 404), event("update", "one", 200)];
    judge(&grants, &nothing, &used).unwrap();

    let unused = judge(&grants, &nothing, &used[..1]).unwrap_err().to_string();
    assert!(unused.contains("update secrets/one"), "{unused}");
    judge(&grants, &["update secrets/one".to_owned()].into(), &used[..1]).unwrap();
    let another = [event("get", "one", 200), event("update", "two", 200)];
    judge(&grants, &nothing, &another).unwrap_err();
    let refused = [event("get", "one", 200), event("update", "one", 200), event("list", "", 403)];
    assert!(judge(&grants, &nothing, &refused).unwrap_err().to_string().contains("list"));
}
