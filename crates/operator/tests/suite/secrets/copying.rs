//! Copies as admission makes them.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fairlead_operator::registries::secrets::CopyError;
use fairlead_plan::pull_secrets::{NotCopied, Selection};
use fairlead_plan::routing::{PolicyId, PolicyKind, SecretUse};
use fairlead_testkit::eventually;
use futures::future::join_all;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use tokio::time::Instant;

use super::bench::{Bench, Replica, SOON, docker_config, put_secret, soon};

/// On one thread, so that nothing is done for a caller whose time is up before it leaves.
#[tokio::test]
async fn copies_are_made_where_pods_need_them() -> Result<()> {
    let bench = Bench::new().await?;
    let long_name = format!("{}.{}", "p".repeat(200), "q".repeat(52));
    let policy = bench.policy(&long_name, &["pull"], &[]).await?;
    fifty_pods_at_once_need_one_copy(&bench, &policy.of("pull"), &policy.copy_of("pull"), &long_name).await?;
    what_need_not_or_must_not_be_copied(&bench, &policy.of("pull")).await?;
    the_longest_name_works(&bench, &policy.id).await?;
    somebody_elses_secret_is_not_touched(&bench).await?;
    a_copy_of_kuik_is_taken_over(&bench).await?;
    a_source_may_change_its_type(&bench).await?;
    a_source_that_cannot_be_used_is_told(&bench).await?;
    a_namespace_that_is_going_costs_one_request(&bench, &policy.of("pull")).await?;
    bench.no_secret_was_listed()
}

async fn fifty_pods_at_once_need_one_copy(
    bench: &Bench,
    of: &SecretUse,
    name: &str,
    owner: &str,
) -> Result<()> {
    let (replica, other) = (Replica::new(bench, true).await?, Replica::new(bench, true).await?);
    ensure!(replica.copies.name_of(of, &bench.team) == Ok(name.to_owned()));
    ensure!(!bench.is_there(&bench.team, name).await?, "asking for the name writes nothing");
    let made = join_all((0..50).map(|_| replica.copies.ensure(of, &bench.team, soon()))).await;
    for outcome in made {
        ensure!(outcome? == name);
    }
    ensure!(bench.requests("patch", &bench.team, name)? == 1);
    ensure!(bench.user_in(&bench.team, name).await? == "old");
    let metadata = bench.secrets(&bench.team).get(name).await?.metadata;
    let labels = metadata.labels.context("no labels")?;
    for (key, value) in [
        ("kuik.enix.io/owner-group", "kuik.enix.io"),
        ("kuik.enix.io/owner-version", "v1alpha1"),
        ("kuik.enix.io/owner-kind", "ClusterImageSetMirror"),
        ("kuik.enix.io/owner-uid", &*of.by.uid),
        ("kuik.enix.io/owner-name", &"p".repeat(63)),
        ("app.kubernetes.io/managed-by", "fairlead"),
    ] {
        ensure!(labels.get(key).is_some_and(|found| found == value), "{key}: {labels:?}");
    }
    let owners = metadata.owner_references.context("no owner")?;
    ensure!(owners[0].name == owner && owners[0].block_owner_deletion == Some(false), "{owners:?}");

    // Another replica finds it, and both know it from then on. Another namespace gets its own of the same name.
    let reads = bench.requests("get", &bench.team, name)?;
    for _ in 0..20 {
        ensure!(other.copies.ensure(of, &bench.team, soon()).await? == name);
    }
    ensure!(bench.requests("get", &bench.team, name)? == reads + 1);
    ensure!(bench.requests("patch", &bench.team, name)? == 1);
    let second = bench.cluster.namespace("second").await?;
    ensure!(replica.copies.ensure(of, &second, soon()).await? == name);
    ensure!(bench.is_there(&second, name).await?);

    // Replicas that make it at the same time do not get in each other's way, and a caller without time finds it later.
    let third = bench.cluster.namespace("third").await?;
    replica.selects(&third, Selection::Covered).await?;
    let outcome = replica.copies.ensure(of, &third, Instant::now()).await;
    ensure!(matches!(outcome, Err(CopyError::TimeIsUp { .. })), "{outcome:?}");
    let both = [&replica, &other].into_iter().cycle().take(20);
    for outcome in join_all(both.map(|one| one.copies.ensure(of, &third, soon()))).await {
        ensure!(outcome? == name);
    }

    // An older copy is confirmed, so that the leader does not take it for abandoned.
    let late = Replica::new(bench, true).await?;
    late.turn_clock(Duration::from_mins(11));
    ensure!(late.copies.ensure(of, &bench.team, soon()).await? == name);
    ensure!(bench.requests("patch", &bench.team, name)? == 2);
    Ok(())
}

async fn what_need_not_or_must_not_be_copied(bench: &Bench, of: &SecretUse) -> Result<()> {
    let before = bench.requests("patch", "", "")?;
    let replica = Replica::new(bench, true).await?;
    ensure!(replica.copies.ensure(of, &bench.registries, soon()).await? == "pull");

    let namespaced = PolicyId {
        kind: PolicyKind::ImageSetMirror,
        namespace: Some(bench.registries.as_str().into()),
        name: "m".into(),
        uid: "u".into(),
    };
    let theirs = SecretUse { by: namespaced.into(), ..of.clone() };
    ensure!(replica.copies.ensure(&theirs, &bench.registries, soon()).await? == "pull");
    let outcome = replica.copies.ensure(&theirs, &bench.team, soon()).await;
    ensure!(matches!(outcome, Err(CopyError::NamespacedOwner { .. })), "{outcome:?}");
    ensure!(replica.copies.name_of(&theirs, &bench.team) == Err(NotCopied::NamespacedPolicy));

    let off = Replica::new(bench, false).await?;
    let elsewhere = bench.cluster.namespace("elsewhere").await?;
    let outcome = off.copies.ensure(of, &elsewhere, soon()).await;
    ensure!(matches!(outcome, Err(CopyError::Disabled { .. })), "{outcome:?}");
    ensure!(off.copies.ensure(of, &bench.registries, soon()).await? == "pull");
    ensure!(bench.requests("patch", "", "")? == before);
    Ok(())
}

async fn the_longest_name_works(bench: &Bench, owner: &std::sync::Arc<PolicyId>) -> Result<()> {
    let replica = Replica::new(bench, true).await?;
    // Cutting this one as it comes would leave a dot before the dash.
    let source = format!("{}.{}", "n".repeat(230), "z".repeat(22));
    bench.rotate(&source, "long").await?;
    let of = SecretUse { secret: super::bench::secret_name(&bench.registries, &source), by: owner.clone() };
    let name = replica.copies.ensure(&of, &bench.team, soon()).await?;
    ensure!(bench.user_in(&bench.team, &name).await? == "long");
    Ok(())
}

async fn somebody_elses_secret_is_not_touched(bench: &Bench) -> Result<()> {
    let policy = bench.policy("foreign", &["pull"], &[]).await?;
    let name = policy.copy_of("pull");
    // Even with the very same content it is not ours.
    bench.rotate("pull", "old").await?;
    let config = docker_config("r.example.com", "old");
    put_secret(&bench.admin, &bench.team, &name, "kubernetes.io/dockerconfigjson", &config).await?;
    let before = bench.secrets(&bench.team).get(&name).await?.metadata.resource_version;
    let replica = Replica::new(bench, true).await?;
    for _ in 0..20 {
        let outcome = replica.copies.ensure(&policy.of("pull"), &bench.team, soon()).await;
        ensure!(matches!(outcome, Err(CopyError::Foreign { .. })), "{outcome:?}");
    }
    ensure!(bench.secrets(&bench.team).get(&name).await?.metadata.resource_version == before);
    ensure!(bench.requests("get", &bench.team, &name)? == 1, "it is not looked at for every Pod");
    let told = replica.secrets.problems().of(&policy.id);
    ensure!(told.len() == 1 && told[0].contains("which is no copy"), "{told:?}");
    Ok(())
}

async fn a_copy_of_kuik_is_taken_over(bench: &Bench) -> Result<()> {
    let policy = bench.policy("kuiks", &["pull"], &[]).await?;
    let name = policy.copy_of("pull");
    let left_behind = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson",
        "metadata": {"name": name, "labels": {
            "kuik.enix.io/owner-group": "kuik.enix.io", "kuik.enix.io/owner-version": "v1alpha1",
            "kuik.enix.io/owner-kind": "ImageSetMirror", "kuik.enix.io/owner-name": "kuiks",
            "kuik.enix.io/owner-uid": *policy.id.uid,
        }},
        "stringData": {".dockerconfigjson": docker_config("r.example.com", "outdated")},
    });
    bench
        .secrets(&bench.team)
        .patch(&name, &PatchParams::apply("kuik-webhook"), &Patch::Apply(left_behind))
        .await?;
    let replica = Replica::new(bench, true).await?;
    ensure!(replica.copies.ensure(&policy.of("pull"), &bench.team, soon()).await? == name);
    ensure!(bench.user_in(&bench.team, &name).await? == "old");
    let metadata = bench.secrets(&bench.team).get(&name).await?.metadata;
    ensure!(metadata.owner_references.is_some_and(|owners| *owners[0].uid == *policy.id.uid));
    ensure!(
        metadata.labels.is_some_and(|labels| labels["kuik.enix.io/owner-kind"] == "ClusterImageSetMirror")
    );
    Ok(())
}

async fn a_source_may_change_its_type(bench: &Bench) -> Result<()> {
    let flat = r#"{"r.example.com": {"username": "flat", "password": "x"}}"#;
    put_secret(&bench.admin, &bench.registries, "retyped", "kubernetes.io/dockercfg", flat).await?;
    let policy = bench.policy("retyped", &["retyped"], &[]).await?;
    let of = policy.of("retyped");
    let name = Replica::new(bench, true).await?.copies.ensure(&of, &bench.team, soon()).await?;
    let copy = bench.secrets(&bench.team).get(&name).await?;
    ensure!(copy.type_.as_deref() == Some("kubernetes.io/dockercfg"));

    bench.secrets(&bench.registries).delete("retyped", &DeleteParams::default()).await?;
    bench.rotate("retyped", "structured").await?;
    Replica::new(bench, true).await?.copies.ensure(&of, &bench.team, soon()).await?;
    ensure!(bench.user_in(&bench.team, &name).await? == "structured");
    Ok(())
}

async fn a_source_that_cannot_be_used_is_told(bench: &Bench) -> Result<()> {
    put_secret(&bench.admin, &bench.registries, "opaque", "Opaque", "pa55").await?;
    let policy = bench.policy("mistaken", &["missing", "opaque"], &[]).await?;
    let replica = Replica::new(bench, true).await?;
    for (secret, expected) in [("missing", "does not exist"), ("opaque", "its type is Opaque")] {
        let outcome = replica.copies.ensure(&policy.of(secret), &bench.team, soon()).await;
        let Err(error @ CopyError::Source { .. }) = outcome else { bail!("{secret}: {outcome:?}") };
        ensure!(error.to_string().contains(expected), "{error}");
        ensure!(!bench.is_there(&bench.team, &policy.copy_of(secret)).await?);
    }
    Ok(())
}

async fn a_namespace_that_is_going_costs_one_request(bench: &Bench, of: &SecretUse) -> Result<()> {
    let going = bench.cluster.namespace("going").await?;
    let held: ConfigMap =
        serde_json::from_value(json!({"metadata": {"name": "held", "finalizers": ["example.com/hold"]}}))?;
    let maps = Api::<ConfigMap>::namespaced(bench.admin.clone(), &going);
    maps.create(&PostParams::default(), &held).await?;
    let namespaces = Api::<Namespace>::all(bench.admin.clone());
    namespaces.delete(&going, &DeleteParams::default()).await?;
    // The API server refuses new objects as soon as it knows.
    eventually(SOON, || async {
        let probe: Secret = serde_json::from_value(json!({"metadata": {"generateName": "probe-"}}))?;
        let refused = bench.secrets(&going).create(&PostParams::default(), &probe).await.is_err();
        ensure!(refused, "the namespace still takes objects");
        Ok(())
    })
    .await?;
    let replica = Replica::new(bench, true).await?;
    for _ in 0..20 {
        let outcome = replica.copies.ensure(of, &going, soon()).await;
        let Err(error @ CopyError::Failed { .. }) = outcome else { bail!("{outcome:?}") };
        ensure!(error.to_string().contains("terminated"), "{error}");
    }
    ensure!(bench.requests("patch", &going, "")? == 1);
    maps.patch("held", &PatchParams::default(), &Patch::Merge(json!({"metadata": {"finalizers": []}})))
        .await?;
    Ok(())
}
