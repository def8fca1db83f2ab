use proptest::prelude::*;

use super::*;
use crate::routing::{PolicyId, PolicyKind};

fn secret(text: &str) -> SecretName {
    let (namespace, name) = text.split_once('/').unwrap();
    SecretName { namespace: namespace.into(), name: name.into() }
}

fn holder(namespace: &str, secrets: &[&str]) -> Holder {
    Holder {
        namespace: namespace.into(),
        pull_secrets: secrets.iter().map(|name| Arc::from(*name)).collect(),
        pod: "pod".into(),
    }
}

fn upstream(text: &str, kind: PolicyKind, namespace: Option<&str>) -> SecretUse {
    let by = PolicyId { kind, namespace: namespace.map(Into::into), name: "set".into(), uid: "u".into() };
    SecretUse { secret: secret(text), by: Arc::new(by) }
}

fn tenant() -> Principal {
    Principal::Namespace("team".into())
}

fn names(attempts: &Attempts) -> Vec<String> {
    let joined = |one: &Attempt| {
        let secrets: Vec<String> = one.secrets.iter().map(ToString::to_string).collect();
        format!("{} as {}", secrets.join("+"), one.reason)
    };
    attempts.iter().map(joined).collect()
}

/// What a mirror, Pods of two namespaces, replicated sets of both scopes and the configuration name.
fn all_of_them(principal: &Principal) -> Vec<String> {
    let mirror = secret("team/push");
    let holders = [
        holder("other", &["theirs"]),
        holder("team", &[]),
        holder("team", &["own", "kuik-hub-0123456789abcdef"]),
        holder("team", &["second"]),
    ];
    let upstreams = [
        upstream("infra/hub", PolicyKind::ClusterReplicatedImageSet, None),
        // A cluster-scoped object may name a Secret of any namespace; it is still not the tenant's to use.
        upstream("team/lent", PolicyKind::ClusterReplicatedImageSet, None),
        upstream("team/set", PolicyKind::ReplicatedImageSet, Some("team")),
    ];
    let configuration = secret("infra/fallback");
    let offered = Offered {
        mirror: Some(&mirror),
        holders: &holders,
        upstreams: &upstreams,
        configuration: Some(&configuration),
    };
    names(&attempts(principal, &offered, 0))
}

#[test]
fn a_namespaced_object_reads_with_secrets_of_its_own_namespace_only() {
    assert_eq!(
        all_of_them(&tenant()),
        [
            "team/push as credentialSecret of the mirror",
            "team/own as pull secrets of Pod team/pod",
            "team/second as pull secrets of Pod team/pod",
            "team/set as credentialSecret of an upstream of ReplicatedImageSet/team/set",
        ]
    );
}

#[test]
fn a_cluster_scoped_object_reads_as_pods_would_and_with_the_fallback_last() {
    assert_eq!(
        all_of_them(&Principal::Cluster),
        [
            "team/push as credentialSecret of the mirror",
            "other/theirs as pull secrets of Pod other/pod",
            "team/own+team/kuik-hub-0123456789abcdef as pull secrets of Pod team/pod",
            "team/second as pull secrets of Pod team/pod",
            "infra/hub as credentialSecret of an upstream of ClusterReplicatedImageSet/set",
            "team/lent as credentialSecret of an upstream of ClusterReplicatedImageSet/set",
            "team/set as credentialSecret of an upstream of ReplicatedImageSet/team/set",
            "infra/fallback as fallbackCredentialSecret of the configuration",
        ]
    );
}

#[test]
fn nobody_reads_copies_with_the_secret_of_a_stranger() {
    let (cluster, own, other) = (Principal::Cluster, tenant(), Principal::Namespace("other".into()));
    let may_read = |one: &Principal| [&cluster, &own, &other].map(|of| one.may_read_copies_of(of));
    assert_eq!(may_read(&cluster), [true, false, false], "a tenant could put anything there");
    assert_eq!(may_read(&own), [false, true, false]);
    let may_learn = |one: &Principal| [&cluster, &own, &other].map(|of| one.may_learn_from(of));
    assert_eq!(may_learn(&cluster), [true, true, true]);
    assert_eq!(may_learn(&own), [false, true, false]);
}

/// The login is the name of the first Secret; those whose names begin with `x` are for other registries.
fn matching(attempts: Attempts) -> Vec<String> {
    let login = |one: &Attempt| {
        let name = one.secrets.first()?.to_string();
        (!one.secrets.first()?.name.starts_with('x')).then_some(name)
    };
    attempts.matching(login).into_iter().map(|(_, login)| login).collect()
}

#[test]
fn namespaces_without_a_matching_secret_hide_nobody() {
    let mut holders: Vec<Holder> = (0..200).map(|n| holder(&format!("n{n:03}"), &["x"])).collect();
    holders.push(holder("z", &["right"]));
    let fallback = secret("infra/fallback");
    let offered = Offered { holders: &holders, configuration: Some(&fallback), ..Offered::default() };
    let found = matching(attempts(&Principal::Cluster, &offered, 0));
    assert_eq!(
        found,
        ["z/right", "infra/fallback"],
        "a wrong one blocks neither the others nor the fallback"
    );
}

#[test]
fn a_namespace_with_many_pods_gets_one_namespaces_share() {
    let mut holders: Vec<Holder> = (0..60).map(|n| holder("greedy", &[&*format!("s{n}")])).collect();
    holders.push(holder("modest", &["right"]));
    let offered = Offered { holders: &holders, ..Offered::default() };
    let found = matching(attempts(&Principal::Cluster, &offered, 0));
    assert_eq!(found.len(), MOST_LOGINS);
    assert_eq!(found[..2], ["greedy/s0", "modest/right"]);
}

#[test]
fn equal_logins_are_tried_once() {
    let holders = [holder("a", &["one"]), holder("b", &["two"]), holder("c", &["three"])];
    let offered = Offered { holders: &holders, ..Offered::default() };
    let login = |one: &Attempt| Some(if one.secrets[0].namespace.as_ref() == "c" { "other" } else { "same" });
    assert_eq!(attempts(&Principal::Cluster, &offered, 0).matching(login).len(), 2);
}

proptest! {
    #[test]
    fn everybody_has_a_turn_in_bounded_rounds(
        holders in prop::collection::btree_set(("[a-d]{1,2}", "[x-z][a-z]{1,2}"), 0..700),
        first in 0_u32..1000,
    ) {
        let holders: Vec<Holder> = holders.iter().map(|(namespace, name)| holder(namespace, &[name])).collect();
        let offered = Offered { holders: &holders, ..Offered::default() };
        let mut due: std::collections::BTreeSet<String> = holders
            .iter()
            .filter(|holder| !holder.pull_secrets[0].starts_with('x'))
            .map(|holder| format!("{}/{}", holder.namespace, holder.pull_secrets[0]))
            .collect();
        let windows = holders.len().div_ceil(MOST_HOLDERS_READ).max(1);
        let slices = MOST_HOLDERS_READ.div_ceil(MOST_LOGINS);
        let rounds = u32::try_from(windows * (slices + 1)).unwrap();
        for round in first..first + rounds {
            let round = attempts(&Principal::Cluster, &offered, round);
            prop_assert!(round.iter().count() <= MOST_HOLDERS_READ);
            let tried = matching(round);
            prop_assert!(tried.len() <= MOST_LOGINS);
            for login in tried {
                due.remove(&login);
            }
        }
        prop_assert!(due.is_empty(), "never tried: {due:?}");
    }
}
