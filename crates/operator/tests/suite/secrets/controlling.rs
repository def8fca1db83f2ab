//! Copies as the leader looks after them.

use std::time::Duration;

use anyhow::{Result, ensure};
use fairlead_api::kuik::ClusterReplicatedImageSet;
use fairlead_testkit::definitions::{install, without_rules};
use fairlead_testkit::eventually;
use kube::Api;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams};
use serde_json::json;

use crate::definitions::definition;

use super::bench::{Bench, Replica, SOON, put_secret, soon};

const SECRET_CLEANUP: &str = "kuik.enix.io/secret-cleanup";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_leader_renews_copies_and_removes_them() -> Result<()> {
    let bench = Bench::new().await?;
    a_rotation_reaches_the_copies_in_use(&bench).await?;
    a_copy_goes_half_an_hour_after_its_last_use(&bench).await?;
    a_copy_goes_when_its_policy_names_another_secret(&bench).await?;
    a_policy_takes_its_copies_along(&bench).await?;
    a_policy_with_kuiks_finalizer_can_be_deleted(&bench).await?;
    an_unreadable_set_with_kuiks_finalizer_can_be_deleted(&bench).await?;
    without_copying_policies_can_be_deleted_too(&bench).await?;
    bench.no_secret_was_listed()
}

async fn a_rotation_reaches_the_copies_in_use(bench: &Bench) -> Result<()> {
    let policy = bench.policy("rotated", &["pull"], &[]).await?;
    let (of, name) = (policy.of("pull"), policy.copy_of("pull"));
    let unused = bench.cluster.namespace("unused").await?;
    let admitting = Replica::new(bench, true).await?;
    for namespace in [&bench.team, &unused] {
        admitting.copies.ensure(&of, namespace, soon()).await?;
    }
    let pod = bench.pod(&bench.team, &[&name]).await?;
    bench.rotate("pull", "new").await?;

    let mut leader = Replica::new(bench, true).await?;
    leader.name([of.clone()]);
    leader.lead(bench);
    let has = async |user: &str| {
        eventually(SOON, || async {
            let found = bench.user_in(&bench.team, &name).await?;
            ensure!(found == user, "{found}");
            Ok(())
        })
        .await
    };
    has("new").await?;
    ensure!(bench.user_in(&unused, &name).await? == "old", "nobody needs it there");

    // A user removes the copy, and a Pod comes that names it.
    bench.secrets(&bench.team).delete(&name, &DeleteParams::default()).await?;
    leader.stop().await?;
    let mut leader = Replica::new(bench, true).await?;
    leader.name([of]);
    leader.lead(bench);
    has("new").await?;

    leader.stop().await?;
    bench.delete_pod(&bench.team, &pod).await?;
    bench.rotate("pull", "old").await?;
    bench.mirrors().delete(&policy.id.name, &DeleteParams::default()).await?;
    Ok(())
}

async fn a_copy_goes_half_an_hour_after_its_last_use(bench: &Bench) -> Result<()> {
    let policy = bench.policy("unused", &["pull"], &[]).await?;
    let (of, name) = (policy.of("pull"), policy.copy_of("pull"));
    let (kept, found) = (bench.cluster.namespace("kept").await?, bench.cluster.namespace("found").await?);
    let mut leader = Replica::new(bench, true).await?;
    leader.name([of.clone()]);
    for namespace in [&bench.team, &kept, &found] {
        leader.copies.ensure(&of, namespace, soon()).await?;
    }
    let pod = bench.pod(&bench.team, &[&name]).await?;
    bench.pod(&kept, &[&name]).await?;
    leader.turn_clock(Duration::from_mins(31));
    leader.lead(bench);
    // No Pod leads to this one: it is found by looking into every namespace.
    bench.gone(&found, &name).await?;
    ensure!(bench.is_there(&bench.team, &name).await? && bench.is_there(&kept, &name).await?);

    // A young one stays although no Pod uses it: one may be about to come.
    let young = bench.cluster.namespace("young").await?;
    leader.copies.ensure(&of, &young, soon()).await?;
    bench.delete_pod(&bench.team, &pod).await?;
    bench.gone(&bench.team, &name).await?;
    ensure!(bench.is_there(&young, &name).await? && bench.is_there(&kept, &name).await?);
    leader.stop().await?;
    bench.mirrors().delete(&policy.id.name, &DeleteParams::default()).await?;
    Ok(())
}

async fn a_copy_goes_when_its_policy_names_another_secret(bench: &Bench) -> Result<()> {
    bench.rotate("other", "other").await?;
    let policy = bench.policy("renamed", &["pull", "other"], &[]).await?;
    let (pull, other) = (policy.copy_of("pull"), policy.copy_of("other"));
    let mut leader = Replica::new(bench, true).await?;
    leader.name([policy.of("pull"), policy.of("other")]);
    for secret in ["pull", "other"] {
        leader.copies.ensure(&policy.of(secret), &bench.team, soon()).await?;
    }
    bench.pod(&bench.team, &[&pull, &other]).await?;
    // A Secret of a person whose name looks like a copy's.
    let mine = "kuik-mine-0123456789abcdef";
    put_secret(&bench.admin, &bench.team, mine, "Opaque", "x").await?;
    bench.pod(&bench.team, &[mine]).await?;
    // And one that has taken the very name of a copy.
    let taken = bench.policy("taken", &["pull"], &[]).await?;
    put_secret(&bench.admin, &bench.team, &taken.copy_of("pull"), "Opaque", "x").await?;
    bench.pod(&bench.team, &[&taken.copy_of("pull")]).await?;
    leader.name([policy.of("pull"), policy.of("other"), taken.of("pull")]);
    leader.turn_clock(Duration::from_mins(2));
    leader.lead(bench);
    bench.rename(&policy, &["other"]).await?;
    bench.gone(&bench.team, &pull).await?;
    ensure!(bench.is_there(&bench.team, &other).await? && bench.is_there(&bench.team, mine).await?);
    eventually(SOON, || async {
        let told = leader.secrets.problems().of(&taken.id);
        ensure!(told.len() == 1 && told[0].contains("which is no copy"), "{told:?}");
        Ok(())
    })
    .await?;
    bench.mirrors().delete(&taken.id.name, &DeleteParams::default()).await?;
    leader.stop().await?;
    ensure!(bench.requests("patch", &bench.team, &taken.copy_of("pull"))? == 0);
    ensure!(bench.requests("delete", &bench.team, &taken.copy_of("pull"))? == 0);
    bench.mirrors().delete(&policy.id.name, &DeleteParams::default()).await?;
    bench.gone(&bench.team, &other).await
}

async fn a_policy_takes_its_copies_along(bench: &Bench) -> Result<()> {
    let policy = bench.policy("deleted", &["pull"], &[]).await?;
    let name = policy.copy_of("pull");
    let replica = Replica::new(bench, true).await?;
    replica.copies.ensure(&policy.of("pull"), &bench.team, soon()).await?;
    // No operator runs: Kubernetes itself collects what the policy owned.
    bench.mirrors().delete(&policy.id.name, &DeleteParams::default()).await?;
    bench.gone(&bench.team, &name).await
}

async fn a_policy_with_kuiks_finalizer_can_be_deleted(bench: &Bench) -> Result<()> {
    let others = "example.com/other";
    let policy = bench.policy("finalized", &["pull"], &[others, SECRET_CLEANUP]).await?;
    let name = policy.copy_of("pull");
    let left = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "labels": {
            "kuik.enix.io/owner-group": "kuik.enix.io", "kuik.enix.io/owner-uid": *policy.id.uid,
        }},
    });
    let unused = bench.cluster.namespace("left").await?;
    for namespace in [&bench.team, &unused] {
        let apply = Patch::Apply(&left);
        bench.secrets(namespace).patch(&name, &PatchParams::apply("kuik-webhook"), &apply).await?;
    }
    bench.pod(&bench.team, &[&name]).await?;
    let mut leader = Replica::new(bench, true).await?;
    leader.lead(bench);
    bench.mirrors().delete(&policy.id.name, &DeleteParams::default()).await?;
    bench.gone(&bench.team, &name).await?;
    bench.gone(&unused, &name).await?;
    eventually(SOON, || async {
        let finalizers = bench.mirrors().get(&policy.id.name).await?.metadata.finalizers;
        ensure!(finalizers.as_deref() == Some(&[others.to_owned()]), "{finalizers:?}");
        Ok(())
    })
    .await?;
    let patch = Patch::Merge(json!({"metadata": {"finalizers": []}}));
    bench.mirrors().patch(&policy.id.name, &PatchParams::default(), &patch).await?;
    leader.stop().await
}

/// Stored under a definition that let everything in, as kube-image-keeper's older ones did.
async fn an_unreadable_set_with_kuiks_finalizer_can_be_deleted(bench: &Bench) -> Result<()> {
    let strict = definition("ClusterReplicatedImageSet")?;
    install(&bench.admin, &without_rules(strict.clone())?).await?;
    let resource = ApiResource::erase::<ClusterReplicatedImageSet>(&());
    let sets: Api<DynamicObject> = Api::all_with(bench.admin.clone(), &resource);
    let broken = json!({
        "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterReplicatedImageSet",
        "metadata": {"name": "broken", "finalizers": [SECRET_CLEANUP]}, "spec": {"upstreams": 7},
    });
    let apply = Patch::Apply(&broken);
    let params = PatchParams::apply("test").force();
    eventually(SOON, || async { Ok(sets.patch("broken", &params, &apply).await?) }).await?;
    install(&bench.admin, &strict).await?;

    let mut leader = Replica::new(bench, true).await?;
    leader.lead(bench);
    sets.delete("broken", &DeleteParams::default()).await?;
    eventually(SOON, || async {
        ensure!(sets.get_opt("broken").await?.is_none(), "it is held");
        Ok(())
    })
    .await?;
    leader.stop().await
}

async fn without_copying_policies_can_be_deleted_too(bench: &Bench) -> Result<()> {
    let policy = bench.policy("off", &["pull"], &[SECRET_CLEANUP]).await?;
    let before = bench.requests("", "", "")?;
    let mut leader = Replica::new(bench, false).await?;
    leader.lead(bench);
    bench.mirrors().delete(&policy.id.name, &DeleteParams::default()).await?;
    eventually(SOON, || async {
        ensure!(bench.mirrors().get_opt(&policy.id.name).await?.is_none(), "it is held");
        Ok(())
    })
    .await?;
    leader.stop().await?;
    ensure!(bench.requests("", "", "")? == before, "Secrets were asked for");
    Ok(())
}
