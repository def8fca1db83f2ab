//! A Harbor that is away, slow, locked or in the way of itself.

use fairlead_testkit::ApiProxy;
use fairlead_testkit::harbor::{Effect, Fault};

use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn outages_and_wrong_passwords_are_said_and_got_over() -> Result<()> {
    let bench = Bench::with_harbor().await?;
    let harbor = &bench.harbor;
    bench.create("hub", public("quay")).await?;
    bench.ready("hub").await?;
    let fault = |effect: Effect| Fault { method: None, path: "", times: None, effect };
    harbor.inject(fault(Effect::BadGateway));
    bench.setup.skip(MINUTES);
    let status = bench.fails("hub", "502").await?;
    assert_eq!((status.health, status.registry_id.is_some()), (Some(ProxyCacheHealth::Unknown), true));
    assert_eq!(holds(&status, HEALTHY), Some(ConditionStatus::Unknown));
    assert_eq!(holds(&status, OWNED), Some(ConditionStatus::True), "what was known stays");
    assert_eq!(bench.gauge("hub", "public")?.as_deref(), Some("1"), "the last definite reading");
    harbor.heal();
    bench.setup.skip(Duration::from_secs(31));
    bench.ready("hub").await?;

    // A wrong password is not tried again and again: each attempt locks the administrator.
    for number in 0..8 {
        bench.create(&format!("more-{number}"), public(&format!("more-{number}"))).await?;
        bench.ready(&format!("more-{number}")).await?;
    }
    harbor.forget_requests();
    bench.secret(ADMIN, json!({"HARBOR_ADMIN_PASSWORD": "wrong"})).await?;
    bench.fails("hub", "401").await?;
    for number in 0..8 {
        bench.fails(&format!("more-{number}"), "401").await?;
    }
    let refused = harbor.requests().iter().filter(|one| one.status == 401).count();
    assert!(refused <= 4, "{refused} attempts");
    bench.secret(ADMIN, json!({"HARBOR_ADMIN_PASSWORD": PASSWORD})).await?;
    bench.ready("hub").await?;
    bench.ready("more-7").await?;

    // Slow answers make slow looks, and no loop.
    harbor.delay(Duration::from_millis(1100));
    harbor.forget_requests();
    bench.edit("hub", json!({"url": format!("{QUAY}/")})).await?;
    bench.ready("hub").await?;
    harbor.heal();
    assert!(harbor.requests().len() <= 4, "{:?}", harbor.requests());

    // Another client makes the endpoint first: what it made is used, or the name is taken.
    harbor.set_read_only(true);
    bench.create("denied", public("denied")).await?;
    bench.fails("denied", "read only").await?;
    harbor.set_read_only(false);
    bench.setup.skip(Duration::from_secs(31));
    bench.ready("denied").await?;
    harbor.inject(Fault {
        method: Some("POST"),
        path: "/projects",
        times: Some(1),
        effect: Effect::Status(409),
    });
    bench.create("raced", public("raced")).await?;
    bench.ready("raced").await?;
    harbor.inject(Fault {
        method: Some("POST"),
        path: "/registries",
        times: None,
        effect: Effect::Status(409),
    });
    harbor.forget_requests();
    bench.create("hidden", public("hidden")).await?;
    bench.fails("hidden", "Harbor does not keep what is written").await?;
    let posts = harbor.requests().iter().filter(|one| one.status == 409).count();
    assert_eq!(posts, 2, "what is not shown after the second time is not shown at all");
    harbor.heal();
    harbor.upstream("https://gone.example", Upstream::Down);
    bench.create("gone", json!({"type": "public", "name": "gone", "url": "https://gone.example"})).await?;
    bench.fails("gone", "unhealthy").await?;
    assert_eq!((harbor.endpoint("gone"), bench.gauge("gone", "public")?), (None, None));
    bench.replica.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_harbor_that_restarts_is_found_again_and_the_end_of_a_replica_waits_for_none() -> Result<()> {
    let harbor = FakeHarbor::start().await?;
    let wire = ApiProxy::start(harbor.address()).await?;
    let bench = Bench::start_with(&format!("harbor: {{url: 'http://{}'}}", wire.address()), harbor).await?;
    let harbor = &bench.harbor;
    bench.create("hub", public("quay")).await?;
    let id = bench.ready("hub").await?.registry_id;
    wire.kill();
    bench.setup.skip(MINUTES);
    let status = bench.fails("hub", "cannot look up endpoint quay").await?;
    assert_eq!((status.registry_id, status.project_created), (id, Some(true)), "what was known stays");
    // An object that comes meanwhile is made when Harbor is back, and so is one that was half made.
    bench.create("new", public("new")).await?;
    bench.fails("new", "cannot look up endpoint new").await?;
    let project = Fault { method: Some("POST"), path: "/projects", times: None, effect: Effect::BadGateway };
    harbor.inject(project);
    wire.heal();
    bench.setup.skip(Duration::from_secs(31));
    bench.ready("hub").await?;
    bench.fails("new", "502").await?;
    assert!(harbor.endpoint("new").is_some() && harbor.project("new").is_none());
    harbor.heal();
    bench.setup.skip(Duration::from_secs(31));
    bench.ready("new").await?;
    assert_eq!(harbor.endpoints().iter().filter(|one| one.name == "new").count(), 1);
    assert_eq!(harbor.endpoint("quay").map(|one| one.id), id);

    // A call is on its way and is not answered: nothing waits for it.
    harbor.inject(Fault {
        method: None,
        path: "",
        times: None,
        effect: Effect::Stall(Duration::from_mins(1)),
    });
    bench.setup.skip(MINUTES);
    eventually(SOON, || async {
        ensure!(harbor.pending() > 0, "no call is on its way");
        Ok(())
    })
    .await?;
    let begun = tokio::time::Instant::now();
    bench.replica.stop().await?;
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    Ok(())
}
