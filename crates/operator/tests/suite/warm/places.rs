//! Images that are pulled from a mirror with a login of its own, and what nodes report about images and disks.

use anyhow::{Context as _, Result, ensure};
use fairlead_api::conditions::{find, types};
use fairlead_testkit::cluster::pull_stages;
use fairlead_testkit::images::holding;
use fairlead_testkit::{Cluster, Registry, RegistryConfig, eventually};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Secret};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::json;

use super::{Bench, PULL, SOON, insecure};
use crate::definitions::cluster_with_definitions;

/// The copy of the Secret is made once, and stays while Pods come and go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_private_mirror_is_pulled_from_with_one_copy_of_its_secret() -> Result<()> {
    let cluster = cluster_with_definitions(Cluster::builder().audit(true)).await?;
    let public = Registry::start(RegistryConfig::new()).await?;
    let private = cluster.0.registry(RegistryConfig::new().user("reader", "pa55")).await?;
    for registry in [&public, &private] {
        for repository in ["team/web", "other/tool"] {
            registry.endpoint().push(repository, "1", &holding("web")?).await?;
        }
    }
    let bench = Bench::start(cluster, &insecure(&[&public, &private])).await?;
    let keys = bench.cluster.namespace("keys").await?;
    let secrets = |namespace: &str| Api::<Secret>::namespaced(bench.client.clone(), namespace);
    let login = json!({"auths": {private.host(): {"username": "reader", "password": "pa55"}}}).to_string();
    let secret = json!({
        "metadata": {"name": "login"}, "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": login},
    });
    secrets(&keys).create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
    for (policy, path, secret) in [("mirrors", "/team", "login"), ("broken", "/other", "absent")] {
        let include = json!({"include": [format!("{path}/.*")]});
        let of =
            |registry: &Registry| json!({"registry": registry.host(), "path": path, "imageFilter": include});
        let mut mirror = of(&private);
        mirror["credentialSecret"] = json!({"name": secret, "namespace": keys});
        let spec = json!({"priority": -1, "upstreams": [mirror, of(&public)]});
        bench.create("ClusterReplicatedImageSet", policy, spec).await?;
    }
    bench.cluster.start_kwok(Some(&pull_stages(PULL))).await?;
    bench.cluster.simulated_nodes("n", 3).await?;
    bench.create("PullPolicy", "quick", json!({"minDelayBetweenPulls": "10ms"})).await?;
    let image = |path: &str| json!({"image": format!("{}/{path}", public.host()), "tag": "1", "policyRef": {"name": "quick"}});
    bench.create("CachedImage", "web", image("team/web")).await?;
    let copy = eventually(SOON, || async {
        let pods = bench.pods().list(&ListParams::default()).await?.items;
        let spec = pods.into_iter().next().and_then(|pod| pod.spec).context("no Pod yet")?;
        let secrets = spec.image_pull_secrets.unwrap_or_default();
        ensure!(secrets.len() == 1, "{secrets:?}");
        Ok(secrets[0].name.clone())
    })
    .await?;
    bench.status("web", "Cached", "3/3").await?;
    bench.no_pull_pod_is_left().await?;
    let reference = bench.ledgers().await?.remove(0).spec.reference;
    assert_eq!(reference, format!("{}/team/web:1", private.host()));

    // A node that joins later uses the same copy.
    bench.cluster.simulated_nodes("late", 1).await?;
    bench.status("web", "Cached", "4/4").await?;
    bench.no_pull_pod_is_left().await?;
    ensure!(secrets(&bench.namespace).get_metadata_opt(&copy).await?.is_some(), "{copy} is gone");
    let events = bench.cluster.audit_events()?;
    let done = |verb: &str| {
        let of_copies = events.iter().filter(|event| {
            event.resource == "secrets"
                && event.namespace == bench.namespace
                && event.stage == "ResponseComplete"
        });
        of_copies.filter(|event| event.verb == verb).count()
    };
    assert_eq!((done("patch"), done("create"), done("delete")), (1, 0, 0));

    a_node_that_has_removed_the_image_gets_it_again(&bench).await?;

    // Without its Secret a mirror cannot be used, and the status says so.
    bench.create("CachedImage", "tool", image("other/tool")).await?;
    let status = bench.status("tool", "Cached", "4/4").await?;
    let ready = find(&status.conditions, types::READY).context("it has the condition")?;
    let problem = format!("Secret {keys}/absent of ClusterReplicatedImageSet/broken");
    ensure!(ready.message.contains(&problem), "{ready:?}");
    bench.replica.stop().await
}

/// But not while its disk is full.
async fn a_node_that_has_removed_the_image_gets_it_again(bench: &Bench) -> Result<()> {
    let nodes: Api<Node> = Api::all(bench.client.clone());
    // A report that is newer than the pull by enough.
    let report = async |full: bool| {
        let at = Timestamp::now() + SignedDuration::from_mins(5);
        let pressure = json!({
            "type": "DiskPressure", "status": if full { "True" } else { "False" }, "lastHeartbeatTime": at.to_string(),
            "lastTransitionTime": at.to_string(), "reason": "Test", "message": "as the test says",
        });
        let images = json!([{"names": ["r.test/pause:3"], "sizeBytes": 1}]);
        let patch = Patch::Strategic(json!({"status": {"conditions": [pressure], "images": images}}));
        nodes.patch_status("n-0", &PatchParams::default(), &patch).await
    };
    report(true).await?;
    let status = bench.status("web", "Cached", "3/3").await?;
    let ready = find(&status.conditions, types::READY).context("it has the condition")?;
    ensure!(ready.message.contains("1 skipped: disk pressure"), "{ready:?}");
    report(false).await?;
    let attempts = eventually(SOON, || async {
        let nodes = bench.ledgers().await?.into_iter().flat_map(|ledger| ledger.spec.nodes);
        let attempts: Vec<_> = nodes.map(|node| (node.attempt, node.name, node.unlisted)).collect();
        ensure!(attempts.iter().any(|(attempt, ..)| *attempt > 1), "{attempts:?}");
        Ok(attempts)
    })
    .await?;
    // Its list still lacks the image, so it is not relied on any more.
    let again: Vec<_> = attempts.iter().filter(|(attempt, ..)| *attempt > 1).collect();
    ensure!(again == [&(2, "n-0".to_owned(), true)], "{attempts:?}");
    bench.status("web", "Cached", "4/4").await?;
    bench.no_pull_pod_is_left().await
}
