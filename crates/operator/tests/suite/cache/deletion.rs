//! What goes with an object, and what does not.

use fairlead_testkit::definitions::{install, without_rules};
use fairlead_testkit::harbor::{Effect, Fault};

use super::*;
use crate::definitions::definition;

pub(super) async fn is_told(bench: &Bench, name: &str, words: &str) -> Result<()> {
    let events: Api<Event> = Api::namespaced(bench.client.clone(), "default");
    eventually(SOON, || async {
        let all = events.list(&ListParams::default()).await?.items;
        let told = all.iter().any(|one| {
            one.involved_object.name.as_deref() == Some(name)
                && one.reason.as_deref() == Some("LeftInHarbor")
                && one.message.as_deref().is_some_and(|message| message.contains(words))
        });
        ensure!(told, "{:?}", all.iter().map(|one| &one.message).collect::<Vec<_>>());
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_cache_takes_its_pair_along_and_waits_only_for_so_long() -> Result<()> {
    let bench = Bench::with_harbor().await?;
    let harbor = &bench.harbor;
    for name in ["full", "late", "kept", "replicated", "locked-out", "unattended", "down", "007"] {
        bench.create(&format!("c-{name}"), public(name)).await?;
        bench.ready(&format!("c-{name}")).await?;
    }
    for number in 0..250 {
        harbor.hold_repository("full", &format!("team/sub/app-{number}"));
    }
    bench.delete("c-full").await?;
    bench.is_gone("c-full").await?;
    assert_eq!((harbor.endpoint("full"), harbor.project("full")), (None, None));
    assert_eq!(harbor.repositories("full"), [""; 0]);
    assert_eq!(bench.gauge("c-full", "public")?, None);

    // A name of digits is no number.
    harbor.hold_project("bystander", None, true);
    bench.delete("c-007").await?;
    bench.is_gone("c-007").await?;
    assert!(harbor.endpoint("007").is_none() && harbor.project("bystander").is_some());

    // A repository that appears between the list and the deletion of its project.
    harbor.hold_repository("late", "app");
    harbor.hold_late_repository("late", "just-pulled");
    bench.delete("c-late").await?;
    bench.is_gone("c-late").await?;
    assert_eq!(harbor.project("late"), None);

    // A repository that a rule keeps is waited for.
    harbor.hold_repository("kept", "app");
    harbor.keep_repository("kept", "app", true);
    bench.delete("c-kept").await?;
    let says = |words: &'static str| {
        move |status: &ProxyCacheStatus| {
            status.message.as_deref().is_some_and(|message| message.contains(words))
        }
    };
    bench.status("c-kept", says("immutable tags")).await?;
    assert!(harbor.project("kept").is_some() && harbor.endpoint("kept").is_some());
    harbor.keep_repository("kept", "app", false);
    bench.setup.skip(Duration::from_secs(31));
    bench.is_gone("c-kept").await?;
    assert_eq!(harbor.endpoint("kept"), None);

    let id = harbor.endpoint("replicated").map(|one| one.id).unwrap_or_default();
    harbor.replicate(id, true);
    bench.delete("c-replicated").await?;
    let status = bench.status("c-replicated", says("replication policy")).await?;
    assert_eq!(condition(&status, types::READY)?.reason, "Deleting");
    harbor.replicate(id, false);
    bench.setup.skip(Duration::from_secs(31));
    bench.is_gone("c-replicated").await?;
    assert_eq!(harbor.endpoint("replicated"), None);

    // Without the administrator's password nothing can be removed; as soon as it is there, it is.
    bench.secrets().delete(ADMIN, &DeleteParams::default()).await?;
    bench.delete("c-locked-out").await?;
    bench.status("c-locked-out", says("not found")).await?;
    bench.secret(ADMIN, json!({"HARBOR_ADMIN_PASSWORD": PASSWORD})).await?;
    bench.is_gone("c-locked-out").await?;
    assert_eq!((harbor.endpoint("locked-out"), harbor.project("locked-out")), (None, None));

    // Harbor does not come back: the object goes all the same, and says what is left.
    harbor.inject(Fault { method: None, path: "", times: None, effect: Effect::BadGateway });
    bench.delete("c-down").await?;
    bench.status("c-down", |status| status.message.as_deref().is_some_and(|it| it.contains("502"))).await?;
    bench.setup.skip(Duration::from_mins(9));
    bench.caches().get("c-down").await.context("it waits for ten minutes")?;
    bench.setup.skip(Duration::from_mins(2));
    bench.is_gone("c-down").await?;
    is_told(&bench, "c-down", "502").await?;
    assert!(harbor.endpoint("down").is_some());

    // No replica leads for longer than that: the next one removes the pair, and gives up nothing that it has not tried.
    let Bench { cluster, client, harbor, own, replica: first, .. } = bench;
    first.stop().await?;
    harbor.heal();
    Api::<ProxyCache>::all(client.clone()).delete("c-unattended", &DeleteParams::default()).await?;
    let config = format!("harbor: {{url: '{}'}}", harbor.url());
    let Replica { candidate, setup, context, page } = replica(&client, &own, "two", &config)?;
    setup.skip(Duration::from_mins(11));
    let bench = Bench { cluster, client, harbor, own, page, setup, context, replica: candidate };
    let harbor = &bench.harbor;
    bench.is_gone("c-unattended").await?;
    assert_eq!((harbor.endpoint("unattended"), harbor.project("unattended")), (None, None));
    bench.replica.stop().await
}

/// Stored under a definition without rules, as harbor-reef-operator's is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_cache_goes_at_once_and_says_what_it_leaves() -> Result<()> {
    let bench = Bench::with_harbor().await?;
    bench.create("invalid", public("invalid")).await?;
    bench.ready("invalid").await?;
    install(&bench.client, &without_rules(definition("ProxyCache")?)?).await?;
    // The API server takes the definition up a moment later.
    eventually(SOON, || async { bench.edit("invalid", json!({"url": ""})).await }).await?;
    bench.fails("invalid", "spec.url is missing").await?;
    bench.delete("invalid").await?;
    bench.is_gone("invalid").await?;
    is_told(&bench, "invalid", "spec.url is missing").await?;
    assert!(bench.harbor.endpoint("invalid").is_some(), "what it stood for is not known");
    bench.replica.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_to_be_retained_stays_and_without_a_harbor_nothing_waits_for_ever() -> Result<()> {
    let bench = Bench::start("harbor: {url: HARBOR, retainOnDelete: true}").await?;
    bench.create("kept", public("kept")).await?;
    bench.ready("kept").await?;
    bench.create("orphan", public("orphan")).await?;
    bench.ready("orphan").await?;
    bench.secrets().delete(ADMIN, &DeleteParams::default()).await?;
    bench.fails("kept", &format!("{ADMIN} not found")).await?;
    bench.harbor.forget_requests();
    bench.delete("kept").await?;
    bench.is_gone("kept").await?;
    assert_eq!(bench.harbor.requests(), [], "no call, and no password needed");
    assert!(bench.harbor.endpoint("kept").is_some() && bench.harbor.project("kept").is_some());

    // The operator comes back without a Harbor.
    let Bench { cluster, client, harbor, own, replica: first, .. } = bench;
    first.stop().await?;
    let Replica { candidate, setup, context, page } = replica(&client, &own, "two", "harbor: {}")?;
    let bench = Bench { cluster, client, harbor, own, page, setup, context, replica: candidate };
    let status = bench.status("orphan", |status| status.phase == Some(ProxyCachePhase::Pending)).await?;
    assert_eq!(condition(&status, types::READY)?.reason, "HarborNotConfigured");
    bench.delete("orphan").await?;
    bench
        .status("orphan", |status| condition(status, types::READY).is_ok_and(|one| one.reason == "Deleting"))
        .await?;
    bench.setup.skip(Duration::from_mins(11));
    bench.is_gone("orphan").await?;
    is_told(&bench, "orphan", "no Harbor is configured").await?;
    bench.create("new", public("new")).await?;
    bench.status("new", |status| status.phase == Some(ProxyCachePhase::Pending)).await?;
    assert_eq!(bench.caches().get("new").await?.finalizers(), [""; 0], "nothing to be held for");
    bench.delete("new").await?;
    bench.is_gone("new").await?;
    drop(bench.cluster);
    Ok(())
}
