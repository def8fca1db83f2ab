//! Copies and namespaces that the webhook's selector leaves out.

use anyhow::{Result, ensure};
use fairlead_operator::registries::secrets::CopyError;
use fairlead_plan::pull_secrets::{NotCopied, Selection};
use fairlead_testkit::eventually;
use k8s_openapi::api::core::v1::Namespace;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::bench::{Bench, LEFT_OUT, Replica, SOON, WEBHOOK, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_is_copied_to_a_namespace_that_the_webhook_leaves_out() -> Result<()> {
    let bench = Bench::new().await?;
    let policy = bench.policy("selecting", &["pull"], &[]).await?;
    let (of, name) = (policy.of("pull"), policy.copy_of("pull"));
    let mut replica = Replica::new(&bench, true).await?;
    replica.name([of.clone()]);

    // Admission copies nothing there, even if it is asked.
    let left_out = bench.cluster.namespace("left-out").await?;
    label(&bench, &left_out, Some("yes")).await?;
    replica.selects(&left_out, Selection::LeftOut).await?;
    let outcome = replica.copies.ensure(&of, &left_out, soon()).await;
    ensure!(matches!(outcome, Err(CopyError::LeftOut { .. })), "{outcome:?}");
    ensure!(replica.copies.name_of(&of, &left_out) == Err(NotCopied::NamespaceLeftOut));

    // Nor does the leader for a Pod that names the copy itself.
    bench.pod(&left_out, &[&name]).await?;
    let (unused, renamed) =
        (bench.cluster.namespace("unused").await?, bench.cluster.namespace("renamed").await?);
    for namespace in [&bench.team, &unused, &renamed] {
        replica.copies.ensure(&of, namespace, soon()).await?;
    }
    bench.pod(&bench.team, &[&name]).await?;
    replica.lead(&bench);
    eventually(SOON, || async {
        ensure!(bench.requests("get", &left_out, &name)? > 0, "the leader has not looked yet");
        Ok(())
    })
    .await?;

    // A copy that no Pod uses goes as soon as its namespace is left out: by a label, or by another selector.
    ensure!(bench.is_there(&unused, &name).await? && bench.is_there(&renamed, &name).await?);
    label(&bench, &unused, Some("yes")).await?;
    bench.gone(&unused, &name).await?;
    select(
        &bench,
        &json!([
            {"key": LEFT_OUT, "operator": "DoesNotExist"},
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [renamed]},
        ]),
    )
    .await?;
    bench.gone(&renamed, &name).await?;

    // One in use stays, and does not get what its source has become since.
    label(&bench, &bench.team, Some("yes")).await?;
    replica.selects(&bench.team, Selection::LeftOut).await?;
    bench.rotate("pull", "new").await?;
    let witness = bench.cluster.namespace("witness").await?;
    bench.pod(&witness, &[&name]).await?;
    // What policies name is read again every minute.
    eventually(SOON * 4, || async {
        ensure!(
            bench.user_in(&witness, &name).await? == "new",
            "the leader does not know the new content yet"
        );
        Ok(())
    })
    .await?;
    ensure!(bench.user_in(&bench.team, &name).await? == "old", "the copy was renewed");
    label(&bench, &bench.team, None).await?;
    eventually(SOON, || async {
        ensure!(bench.user_in(&bench.team, &name).await? == "new", "covered again, and not renewed");
        Ok(())
    })
    .await?;

    // Without a webhook configuration nothing new is made, and nothing is taken away.
    bench.webhooks().delete(WEBHOOK, &DeleteParams::default()).await?;
    replica.selects(&witness, Selection::Unknown).await?;
    let fresh = bench.cluster.namespace("fresh").await?;
    let outcome = replica.copies.ensure(&of, &fresh, soon()).await;
    ensure!(matches!(outcome, Err(CopyError::Unselected { .. })), "{outcome:?}");
    bench.register().await?;
    // Requests have waited for what is not known about it once, and do not do so again.
    replica.selects(&fresh, Selection::Covered).await?;
    replica.copies.ensure(&of, &fresh, soon()).await?;
    ensure!(bench.is_there(&witness, &name).await? && bench.is_there(&bench.team, &name).await?);

    ensure!(!bench.is_there(&left_out, &name).await?);
    ensure!(bench.requests("patch", &left_out, "")? == 0, "something was written there");
    replica.stop().await?;
    bench.no_secret_was_listed()
}

async fn label(bench: &Bench, namespace: &str, value: Option<&str>) -> Result<()> {
    let patch = Patch::Merge(json!({"metadata": {"labels": {LEFT_OUT: value}}}));
    Api::<Namespace>::all(bench.admin.clone()).patch(namespace, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Gives the webhook another selector.
async fn select(bench: &Bench, expressions: &Value) -> Result<()> {
    let webhook =
        json!({"name": "pods.fairlead.dev", "namespaceSelector": {"matchExpressions": expressions}});
    let patch = Patch::Strategic(json!({"webhooks": [webhook]}));
    bench.webhooks().patch(WEBHOOK, &PatchParams::default(), &patch).await?;
    Ok(())
}
