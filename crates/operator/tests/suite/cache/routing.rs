//! A healthy cache takes part in routing.

use fairlead_plan::routing::PolicyKind;

use super::*;

/// Waits until the status says so, with these words.
async fn is_offered(bench: &Bench, name: &str, reason: &str, words: &str) -> Result<()> {
    eventually(2 * SOON, || async {
        let status = bench.caches().get(name).await?.status.unwrap_or_default();
        let offered = find(&status.conditions, OFFERED).context("nothing is said of it")?;
        ensure!(offered.reason == reason && offered.message.contains(words), "{offered:?}");
        ensure!((offered.status == ConditionStatus::True) == (reason == "Offered"), "{offered:?}");
        Ok(())
    })
    .await
}

/// What routing does not take, and a Secret for Pods that is not there, are told by the object itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_that_cannot_be_offered_says_why() -> Result<()> {
    let mut bench = Bench::start("harbor: {url: HARBOR, pullHost: pull.example.com}").await?;
    let policies = bench.context.policies.clone();
    let named = move || {
        policies.current().policies().flat_map(|policy| policy.secret_uses().collect::<Vec<_>>()).collect()
    };
    bench.replica.spawn(bench.context.secrets.clone().run(named, bench.replica.stopping()));
    let below = format!("{QUAY}/team");
    bench.harbor.upstream(&below, Upstream::Open);
    let mut spec = public("below");
    (spec["url"], spec["routing"]) = (json!(below), json!({"priority": 1}));
    bench.create("below", spec).await?;
    bench.ready("below").await?;
    is_offered(&bench, "below", "InvalidSpec", "spec.url: has a path").await?;

    bench.secret("robot", json!({"username": "robot", "password": "one"})).await?;
    let secret = json!({"name": "pull", "namespace": bench.own});
    let mut spec = private("team");
    spec["routing"] = json!({"priority": 1, "credentialSecret": secret});
    bench.create("team", spec).await?;
    bench.ready("team").await?;
    is_offered(&bench, "team", "SecretUnavailable", "pull").await?;
    let logins = json!({"auths": {"pull.example.com": {"username": "u", "password": "p"}}}).to_string();
    let secret = json!({
        "metadata": {"name": "pull"}, "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": logins},
    });
    bench.secrets().create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
    is_offered(&bench, "team", "Offered", "").await?;
    bench.edit("team", json!({"routing": null})).await?;
    let without = |status: &ProxyCacheStatus| find(&status.conditions, OFFERED).is_none();
    bench.status("team", without).await?;
    bench.replica.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cache_is_offered_to_pods_only_while_its_upstream_is_healthy() -> Result<()> {
    let bench = Bench::start("harbor: {url: HARBOR, pullHost: pull.example.com}").await?;
    let offers = async |wanted: Option<usize>| {
        eventually(SOON, || async {
            let index = bench.context.policies.current();
            let found = index.policies().find(|policy| policy.id().kind == PolicyKind::ProxyCache);
            let offered = found.map(|policy| policy.offered());
            ensure!(offered == wanted, "{offered:?} and not {wanted:?}");
            Ok(())
        })
        .await
    };
    bench.create("quiet", public("quiet")).await?;
    bench.ready("quiet").await?;
    offers(None).await?;
    let mut spec = public("quay");
    spec["routing"] = json!({"priority": -1});
    bench.create("quay", spec).await?;
    bench.ready("quay").await?;
    offers(Some(1)).await?;
    let index = bench.context.policies.current();
    let hosts: Vec<_> =
        index.policies().flat_map(|policy| policy.registries()).map(|host| host.to_string()).collect();
    assert!(hosts.contains(&"pull.example.com".to_owned()), "{hosts:?}");

    is_offered(&bench, "quay", "Offered", "").await?;
    assert!(find(&bench.ready("quiet").await?.conditions, OFFERED).is_none(), "it does not ask for it");

    bench.harbor.upstream(QUAY, Upstream::Down);
    bench.harbor.check_health();
    bench.setup.skip(MINUTES);
    offers(Some(0)).await?;
    is_offered(&bench, "quay", "NotHealthy", "upstream").await?;
    bench.harbor.upstream(QUAY, Upstream::Open);
    bench.harbor.check_health();
    bench.setup.skip(MINUTES);
    offers(Some(1)).await?;
    bench.delete("quay").await?;
    offers(None).await?;
    bench.replica.stop().await
}
