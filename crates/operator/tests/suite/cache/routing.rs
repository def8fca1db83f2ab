//! A healthy cache takes part in routing.

use fairlead_plan::routing::PolicyKind;

use super::*;

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

    bench.harbor.upstream(QUAY, Upstream::Down);
    bench.harbor.check_health();
    bench.setup.skip(MINUTES);
    offers(Some(0)).await?;
    bench.harbor.upstream(QUAY, Upstream::Open);
    bench.harbor.check_health();
    bench.setup.skip(MINUTES);
    offers(Some(1)).await?;
    bench.delete("quay").await?;
    offers(None).await?;
    bench.replica.stop().await
}
