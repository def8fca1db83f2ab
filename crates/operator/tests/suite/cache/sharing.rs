//! What belongs to others is used where it fits, and never changed.

use super::deletion::is_told;
use super::*;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pairs_of_others_are_used_as_they_are_and_stay() -> Result<()> {
    let bench = Bench::with_harbor().await?;
    let harbor = &bench.harbor;
    // Another cluster with the same manifest made this one, a person that one.
    let mark = "Managed by Fairlead: cluster 0c1d, ProxyCache shared";
    let theirs = harbor.hold_endpoint("shared", QUAY, |one| mark.clone_into(&mut one.description));
    harbor.hold_project("shared", Some(theirs), true);
    let by_hand = harbor.hold_endpoint("by-hand", QUAY, |_| ());
    harbor.hold_project("by-hand", Some(by_hand), true);
    let wrong = harbor.hold_endpoint("wrong", "https://else.example", |_| ());
    harbor.hold_project("wrong", Some(wrong), true);
    harbor.hold_project("plain", None, true);
    harbor.hold_repository("by-hand", "precious");
    for name in ["shared", "by-hand", "wrong", "plain"] {
        bench.create(name, public(name)).await?;
    }
    for name in ["shared", "by-hand"] {
        let status = bench.ready(name).await?;
        assert_eq!((holds(&status, OWNED), status.registry_id), (Some(ConditionStatus::False), None));
        assert_eq!((status.project_created, status.health), (Some(true), Some(ProxyCacheHealth::Healthy)));
    }
    let status = bench.fails("wrong", "https://else.example and should be https://quay.example").await?;
    assert_eq!(holds(&status, types::READY), Some(ConditionStatus::False));
    bench.fails("plain", "is not a proxy cache").await?;
    assert_eq!(harbor.endpoint("plain"), None, "nothing is made beside it");
    for name in ["shared", "by-hand", "wrong", "plain"] {
        bench.delete(name).await?;
        bench.is_gone(name).await?;
    }
    assert_eq!(harbor.writes(), [], "nothing was written at all");

    // An object of harbor-reef-operator's days names the number of its endpoint, and so it is taken over.
    let old = harbor.hold_endpoint("old", QUAY, |_| ());
    harbor.hold_project("old", Some(old), true);
    bench.replica_is_away(async |bench| {
        bench.create("old", public("old")).await?;
        let status = json!({"status": {"phase": "Ready", "registryId": old, "projectCreated": true, "message": "stale"}});
        let params = PatchParams { field_manager: Some("manager".to_owned()), ..PatchParams::default() };
        bench.caches().patch_status("old", &params, &Patch::Merge(status)).await?;
        Ok(())
    })
    .await?;
    let status = bench.status("old", |status| holds(status, OWNED) == Some(ConditionStatus::True)).await?;
    assert_eq!((status.registry_id, status.message), (Some(old), None));
    assert!(harbor.endpoint("old").is_some_and(|one| one.description.starts_with("Managed by Fairlead")));

    // Two objects with one name: the second uses what the first owns, and inherits it.
    bench.create("first", public("twins")).await?;
    bench.ready("first").await?;
    bench.create("second", public("twins")).await?;
    let status = bench.ready("second").await?;
    assert_eq!(holds(&status, OWNED), Some(ConditionStatus::False));
    let id = harbor.endpoint("twins").map(|one| one.id);
    bench.delete("first").await?;
    bench.is_gone("first").await?;
    let status = bench.status("second", |status| holds(status, OWNED) == Some(ConditionStatus::True)).await?;
    assert_eq!((status.registry_id, harbor.endpoint("twins").map(|one| one.id)), (id, id));
    bench.delete("second").await?;
    bench.is_gone("second").await?;
    assert_eq!((harbor.endpoint("twins"), harbor.project("twins")), (None, None));
    bench.replica.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn former_names_leave_nothing_behind_but_what_another_object_asks_for() -> Result<()> {
    use fairlead_testkit::harbor::{Effect, Fault};

    let bench = Bench::with_harbor().await?;
    let harbor = &bench.harbor;
    bench.create("first", public("old")).await?;
    let id = bench.ready("first").await?.registry_id;
    bench.create("heir", public("old")).await?;
    let status = bench.ready("heir").await?;
    assert_eq!(holds(&status, OWNED), Some(ConditionStatus::False));
    bench.edit("first", json!({"name": "new"})).await?;
    bench.ready("first").await?;
    let status = bench.status("heir", |status| holds(status, OWNED) == Some(ConditionStatus::True)).await?;
    assert_eq!((status.registry_id, harbor.endpoint("old").map(|one| one.id)), (id, id));
    assert!(harbor.writes().iter().all(|write| write.method != "DELETE"), "it is the heir's now");

    // Several names, of which none can be given up yet.
    let keeps_projects = || {
        let effect = Effect::Status(412);
        harbor.inject(Fault { method: Some("DELETE"), path: "/projects", times: None, effect });
    };
    keeps_projects();
    for name in ["newer", "newest"] {
        bench.edit("first", json!({"name": name})).await?;
        let left = |status: &ProxyCacheStatus| holds(status, SYNCED) == Some(ConditionStatus::False);
        let status = bench.status("first", left).await?;
        assert_eq!(condition(&status, SYNCED)?.reason, "FormerPairLeft");
        assert!(status.message.as_deref().is_some_and(|message| message.contains("cannot delete project")));
        assert_eq!(status.phase, Some(ProxyCachePhase::Ready), "the new pair works");
        assert_eq!(status.registry_id, harbor.endpoint(name).map(|one| one.id));
    }
    let names = || {
        let mut names: Vec<_> = harbor.endpoints().into_iter().map(|one| one.name).collect();
        names.sort();
        names
    };
    harbor.heal();
    bench.setup.skip(Duration::from_secs(31));
    bench.ready("first").await?;
    assert_eq!(names(), ["newest", "old"]);

    // One that is never let go is given up, and an event says so.
    keeps_projects();
    bench.edit("first", json!({"name": "last"})).await?;
    bench.status("first", |status| holds(status, SYNCED) == Some(ConditionStatus::False)).await?;
    bench.setup.skip(Duration::from_mins(11));
    bench.ready("first").await?;
    is_told(&bench, "first", "cannot delete project newest").await?;
    harbor.forget_requests();
    bench.setup.skip(MINUTES);
    eventually(SOON, || async {
        ensure!(!harbor.requests().is_empty(), "it was not looked at again");
        Ok(())
    })
    .await?;
    assert_eq!(harbor.writes(), [], "nothing is tried any more");
    assert_eq!(names(), ["last", "newest", "old"]);
    bench.replica.stop().await
}

impl Bench {
    /// Does something before the controller can see the object half made: its status comes with it.
    async fn replica_is_away(&self, something: impl AsyncFnOnce(&Self) -> Result<()>) -> Result<()> {
        // Harbor does not answer meanwhile, so nothing is decided on the object as it was at first.
        use fairlead_testkit::harbor::{Effect, Fault};
        self.harbor.inject(Fault { method: None, path: "", times: None, effect: Effect::BadGateway });
        something(self).await?;
        self.harbor.heal();
        self.setup.skip(Duration::from_mins(1));
        Ok(())
    }
}
