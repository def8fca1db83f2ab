//! Status of the warming, caching and mirror kinds: every field of the types is in the definitions, so the API server
//! keeps what a controller writes, and `kubectl get` shows it.

use std::fmt::Debug;

use anyhow::{Context, Result, ensure};
use fairlead_api::{drop, openshift, reef};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::ClusterResourceScope;
use kube::core::object::HasStatus;
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Stores an object with its status, lets `kubectl` print it, and takes it away. Returns what was printed.
async fn keep<K>(spec: Value, mut status: Value, shown_as: &str) -> Result<String>
where
    K: Resource<DynamicType = (), Scope = ClusterResourceScope> + HasStatus,
    K: Clone + Debug + Serialize + DeserializeOwned,
    K::Status: Serialize,
{
    let api: Api<K> = Api::all(crate::definitions::client().await?);
    let name = fairlead_testkit::unique("status");
    status["observedGeneration"] = 1.into();
    status["conditions"] = conditions();
    let object: K = serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec }))?;
    api.create(&PostParams::default(), &object).await?;
    let patch = json!({ "status": status });
    api.patch_status(&name, &PatchParams::default().validation_strict(), &Patch::Merge(&patch))
        .await
        .with_context(|| K::kind(&()).into_owned())?;
    let read = api.get(&name).await?;
    let kept = serde_json::to_value(read.status().context("no status")?)?;
    ensure!(kept == status, "{}: wrote {status}, read {kept}", K::kind(&()));
    let printed =
        fairlead_testkit::shared().await.kubectl(["get", shown_as, &read.name_any(), "-o", "wide"]).await?;
    api.delete(&name, &DeleteParams::default()).await?;
    Ok(printed)
}

fn conditions() -> Value {
    let condition = |type_: &str, status: &str| {
        json!({
            "type": type_, "status": status, "observedGeneration": 1,
            "lastTransitionTime": "2026-02-03T04:05:06Z", "reason": format!("{type_}Reason"), "message": format!("{type_} message"),
        })
    };
    json!([
        condition("Ready", "False"),
        condition("Accepted", "True"),
        condition("Applied", "Unknown"),
        condition("Exact", "False"),
    ])
}

/// The words of the heading and of the only row.
fn columns(printed: &str) -> (Vec<&str>, &str) {
    let mut lines = printed.lines();
    let heading = lines.next().unwrap_or_default().split_whitespace().collect();
    (heading, lines.next().unwrap_or_default())
}

#[tokio::test]
async fn warming() -> Result<()> {
    let printed = keep::<drop::CachedImage>(
        json!({ "image": "docker.io/library/nginx", "tag": "1.29", "policyRef": { "name": "gentle" } }),
        json!({
            "phase": "Degraded", "ready": "2/5", "resolvedDigest": "sha256:00", "nodesTargeted": 5, "nodesReady": 2,
            "nodesPulling": 1, "cachedNodes": ["a", "b"], "consecutiveFailures": 3,
            "lastPulledAt": "2026-02-03T04:05:06Z", "lastAttemptedAt": "2026-02-03T04:05:07Z",
        }),
        "cachedimages",
    )
    .await?;
    let (heading, row) = columns(&printed);
    ensure!(
        heading == ["NAME", "IMAGE", "TAG", "STATUS", "READY", "AGE", "DIGEST", "SET", "MESSAGE", "POLICY"],
        "{printed}"
    );
    ensure!(row.contains("ReadyReason") && row.contains("2/5") && row.contains("Ready message"), "{printed}");

    let printed = keep::<drop::CachedImageSet>(
        json!({ "discoveryPolicyRef": { "name": "popular" } }),
        json!({ "phase": "Pending", "imagesManaged": 7, "imagesReady": 4 }),
        "cachedimagesets",
    )
    .await?;
    let (heading, row) = columns(&printed);
    ensure!(heading == ["NAME", "STATUS", "READY", "MANAGED", "SOURCE", "MESSAGE", "AGE"], "{printed}");
    ensure!(row.contains('4') && row.contains('7') && row.contains("popular"), "{printed}");

    let printed = keep::<drop::PullPolicy>(
        json!({ "maxConcurrentPulls": 3 }),
        json!({ "userCount": 2, "users": ["a", "b"] }),
        "pullpolicies",
    )
    .await?;
    let (heading, row) = columns(&printed);
    ensure!(
        heading == ["NAME", "MAXNODES", "MAXPULLS", "MINDELAY", "REPULLINTERVAL", "AGE", "USERS"],
        "{printed}"
    );
    ensure!(row.contains("10s"), "the default is shown: {printed}");

    let query =
        json!({ "name": "q", "type": "registry", "registry": { "url": "https://r", "repositories": ["a"] } });
    let printed = keep::<drop::DiscoveryPolicy>(
        json!({ "queries": [query] }),
        json!({
            "lastSyncTime": "2026-02-03T04:05:06Z", "imageCount": 2, "sourceCount": 1,
            "queryResults": [
                { "name": "q", "type": "registry", "status": "failed", "message": "denied" },
                { "name": "p", "type": "loki", "status": "success" },
            ],
            "discoveredImages": [
                { "image": "r/a:2", "rank": 1, "finalScore": "0.5" },
                { "image": "r/a:1", "score": -7, "source": "registry[0]" },
            ],
        }),
        "discoverypolicies",
    )
    .await?;
    let (heading, row) = columns(&printed);
    ensure!(heading == ["NAME", "STATUS", "IMAGES", "LASTSYNC", "MESSAGE", "AGE"], "{printed}");
    ensure!(row.contains("ReadyReason"), "{printed}");
    Ok(())
}

#[tokio::test]
async fn one_category_lists_all_warming_kinds() -> Result<()> {
    crate::definitions::client().await?;
    let listed = fairlead_testkit::shared()
        .await
        .kubectl(["api-resources", "--categories=drop", "-o", "name"])
        .await?;
    let mut listed: Vec<_> = listed.lines().collect();
    listed.sort_unstable();
    ensure!(
        listed
            == [
                "cachedimages.drop.corewire.io",
                "cachedimagesets.drop.corewire.io",
                "discoverypolicies.drop.corewire.io",
                "pullpolicies.drop.corewire.io",
            ],
        "{listed:?}"
    );
    Ok(())
}

#[tokio::test]
async fn caching() -> Result<()> {
    let printed = keep::<reef::ProxyCache>(
        json!({ "type": "public", "name": "dockerhub", "url": "docker.io" }),
        json!({
            "phase": "Error", "health": "unknown", "registryId": 4, "projectCreated": false, "message": "not found",
            "lastReconciled": "2026-02-03T04:05:06Z",
        }),
        "hpc",
    )
    .await?;
    let (heading, row) = columns(&printed);
    ensure!(heading == ["NAME", "TYPE", "PHASE", "HEALTH", "AGE"], "{printed}");
    ensure!(row.contains("public") && row.contains("Error") && row.contains("unknown"), "{printed}");
    Ok(())
}

#[tokio::test]
async fn mirrors() -> Result<()> {
    let nothing = || json!({});
    let printed = [
        keep::<openshift::ImageSourceDigestPolicy>(nothing(), nothing(), "imagesourcedigestpolicies").await?,
        keep::<openshift::ImageSourceTagPolicy>(nothing(), nothing(), "imagesourcetagpolicies").await?,
        keep::<openshift::ImageDigestMirrorSet>(nothing(), nothing(), "idms").await?,
        keep::<openshift::ImageTagMirrorSet>(nothing(), nothing(), "itms").await?,
        keep::<openshift::ImageContentSourcePolicy>(nothing(), nothing(), "icsp").await?,
    ];
    for printed in printed {
        let (heading, row) = columns(&printed);
        ensure!(heading == ["NAME", "ACCEPTED", "APPLIED", "EXACT", "AGE"], "{printed}");
        ensure!(row.split_whitespace().skip(1).take(3).eq(["True", "Unknown", "False"]), "{printed}");
    }
    Ok(())
}
