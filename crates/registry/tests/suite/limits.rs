//! Limits: budgets, shared probes, registries that are down.

use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, Result, ensure};
use fairlead_domain::reference::Tag;
use fairlead_domain::verdict::{Verdict, VerdictKind};
use fairlead_registry::copy::{Copier, CopyError, CopyOptions};
use fairlead_registry::manifest::Selector;
use fairlead_registry::{
    Budget, Class, Context, Error, Outage, ProbeMethod, ProbeOptions, Problem, Rate, Right,
};
use fairlead_testkit::eventually;
use fairlead_testkit::fake_registry::{Effect, FakeRegistry, Fault, Route};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::support::{
    asked, available_again, bytes, client, client_for, copy, image, in_background, layered, logins, number,
    parse, patiently, probe, reference, registry_with_app, remote, within,
};

#[tokio::test]
async fn the_same_question_is_asked_once() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    registry.inject(Fault::new(Effect::Delay(Duration::from_millis(200))));
    let client = client();
    let verdicts = futures::future::join_all((0..50).map(|_| probe(&client, &image, &[]))).await;
    assert!(verdicts.iter().all(Verdict::is_available));
    assert_eq!(registry.requests().len(), 1);
    probe(&client, &image, &[]).await;
    assert_eq!(registry.requests().len(), 2, "answers are not kept here");
    Ok(())
}

#[tokio::test]
async fn holders_of_other_credentials_ask_for_themselves() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    registry.inject(Fault::new(Effect::Delay(Duration::from_millis(200))));
    let client = client();
    let (ada, bob) = (logins(&image, &[("ada", "x")]), logins(&image, &[("bob", "x")]));
    tokio::join!(probe(&client, &image, &ada), probe(&client, &image, &bob), probe(&client, &image, &[]));
    assert_eq!(registry.requests().len(), 3);
    Ok(())
}

#[tokio::test]
async fn a_caller_that_gives_up_spoils_nothing() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    registry.inject(Fault::new(Effect::Delay(Duration::from_millis(300))));
    let client = client();
    let hasty = {
        let (client, image) = (client.clone(), image.clone());
        tokio::spawn(async move { probe(&client, &image, &[]).await })
    };
    asked(&registry).await?;
    let patient = probe(&client, &image, &[]);
    hasty.abort();
    assert!(patient.await.is_available());
    assert_eq!(registry.requests().len(), 1);
    Ok(())
}

#[tokio::test]
async fn requests_keep_to_the_budget_and_admission_goes_first() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    for count in 0..12 {
        registry.hold("app", &count.to_string(), &image(&count.to_string())?);
    }
    let client = client_for(&registry.host(), |settings| {
        settings.budget.rate = Some(Rate::per_second(10.0, number(2)));
    })?;
    let started = Instant::now();
    let mut waiting = Vec::new();
    for count in 0..10 {
        let (client, image) = (client.clone(), reference(&registry, &format!("app:{count}"))?);
        waiting.push(tokio::spawn(async move {
            client.probe(&image, &[], ProbeOptions::default(), &in_background()).await
        }));
    }
    asked(&registry).await?;
    let before = registry.requests().len();
    assert!(probe(&client, &reference(&registry, "app:11")?, &[]).await.is_available());
    let place = registry.requests().iter().position(|request| request.path.ends_with("/11"));
    // Two may have been let through that had not arrived.
    assert!(place.is_some_and(|place| place <= before + 2), "{place:?} after {before}");
    for task in waiting {
        assert!(task.await?.is_available());
    }
    assert!(started.elapsed() >= Duration::from_millis(800), "11 requests at 10 a second, 2 at once");
    Ok(())
}

#[tokio::test]
async fn a_pod_does_not_wait_for_a_background_probe_of_the_same_image() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    for name in ["a", "b", "c", "wanted"] {
        registry.hold("app", name, &image(name)?);
    }
    let client = client_for(&registry.host(), |settings| {
        settings.budget.rate = Some(Rate::per_second(4.0, number(1)));
    })?;
    let mut waiting = Vec::new();
    for name in ["a", "b", "c", "wanted"] {
        let (own, image) = (client.clone(), reference(&registry, &format!("app:{name}"))?);
        waiting.push(tokio::spawn(async move {
            own.probe(&image, &[], ProbeOptions::default(), &in_background()).await
        }));
        tokio::task::yield_now().await;
    }
    asked(&registry).await?;
    assert!(probe(&client, &reference(&registry, "app:wanted")?, &[]).await.is_available());
    for task in waiting {
        assert!(task.await?.is_available());
    }
    let order: Vec<_> = registry.requests().iter().map(|request| request.path.clone()).collect();
    let place = order.iter().position(|path| path.ends_with("/wanted"));
    assert!(place.is_some_and(|place| place <= 1), "{order:?}");
    Ok(())
}

#[tokio::test]
async fn what_is_withdrawn_in_line_is_not_sent() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let client = client_for(&registry.host(), |settings| {
        settings.budget.rate = Some(Rate::per_second(4.0, number(1)));
    })?;
    probe(&client, &reference(&registry, "app:first")?, &[]).await;
    let (withdrawal, withdrawn) = (CancellationToken::new(), reference(&registry, "app:withdrawn")?);
    let context = in_background().withdrawn_by(withdrawal.clone());
    let in_line = client.probe(&withdrawn, &[], ProbeOptions::default(), &context);
    let (verdict, ()) = tokio::join!(in_line, async {
        tokio::task::yield_now().await;
        withdrawal.cancel();
    });
    assert_eq!(verdict.kind(), VerdictKind::Unreachable);
    // Its turn comes after that of the one that was withdrawn.
    client.probe(&reference(&registry, "app:next")?, &[], ProbeOptions::default(), &in_background()).await;
    assert_eq!(registry.count("HEAD", "/next"), 1);
    assert_eq!(registry.count("HEAD", "/withdrawn"), 0);
    Ok(())
}

#[tokio::test]
async fn a_probe_that_fails_at_once_is_known_to_have_been_sent() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let image = parse(&format!("{}/app:1", registry.host()))?;
    drop(registry);
    let (telling, told) = watch::channel(None);
    let context = patiently().telling_when_sent(telling);
    let verdict = client().probe(&image, &[], ProbeOptions::default(), &context).await;
    assert_eq!(verdict.kind(), VerdictKind::Unreachable);
    told.borrow().context("it was sent")?;
    Ok(())
}

#[tokio::test]
async fn connections_are_limited() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    registry.inject(Fault::new(Effect::Delay(Duration::from_millis(50))));
    let client = client_for(&registry.host(), |settings| {
        settings.budget = Budget { rate: None, connections: number(3) };
    })?;
    let mut images = Vec::new();
    for count in 0..30 {
        images.push(reference(&registry, &format!("app:{count}"))?);
    }
    futures::future::join_all(images.iter().map(|image| probe(&client, image, &[]))).await;
    assert_eq!(registry.requests().len(), 30);
    assert_eq!(registry.peak_in_flight(), 3);
    Ok(())
}

#[tokio::test]
async fn background_work_waits_for_a_quota_and_admission_is_told() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    let refusal = Fault::status(429).and(Effect::Header("retry-after", "1".into()));
    registry.inject(refusal.times(1));
    let client = client();
    let options = ProbeOptions::default();
    assert_eq!(probe(&client, &image, &[]).await.kind(), VerdictKind::RateLimited);
    assert_eq!(probe(&client, &image, &[]).await.kind(), VerdictKind::RateLimited);
    assert_eq!(registry.requests().len(), 1, "admission looks at its alternatives, and waits for no quota");
    assert!(client.probe(&image, &[], options, &in_background()).await.is_available());
    assert_eq!(registry.requests().len(), 2);
    Ok(())
}

#[tokio::test]
async fn what_is_left_of_a_quota_is_kept_for_others_whatever_else_is_answered() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    let states = |remaining: &str| {
        Fault::new(Effect::Header("ratelimit-limit", "100;w=21600".into()))
            .and(Effect::Header("ratelimit-remaining", remaining.into()))
            .times(1)
    };
    let client = client();
    let background =
        async || client.probe(&image, &[], ProbeOptions::default(), &in_background()).await.kind();
    registry.inject(states("5;w=21600"));
    // The second answer says nothing about a quota.
    for _ in 0..2 {
        assert!(probe(&client, &image, &[]).await.is_available());
        assert_eq!(background().await, VerdictKind::RateLimited);
    }
    registry.inject(states("50;w=21600"));
    assert!(probe(&client, &image, &[]).await.is_available());
    assert_eq!(background().await, VerdictKind::Available);
    Ok(())
}

fn until(verdict: &Verdict) -> Option<SystemTime> {
    match verdict {
        Verdict::RateLimited { until, .. } => *until,
        _ => None,
    }
}

/// Whether something ends after this time, give or take a minute.
fn ends_after(verdict: &Verdict, time: Duration) -> bool {
    let expected = SystemTime::now() + time;
    let minute = Duration::from_mins(1);
    until(verdict).is_some_and(|until| until > expected - minute && until < expected + minute)
}

#[tokio::test]
async fn after_a_refusal_nobody_in_line_is_sent() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    registry.inject(
        Fault::new(Effect::Delay(Duration::from_millis(50)))
            .and(Effect::Status(429))
            .and(Effect::Header("retry-after", "300".into())),
    );
    let client = client_for(&registry.host(), |settings| {
        settings.budget = Budget { rate: Some(Rate::per_second(200.0, number(4))), connections: number(4) };
    })?;
    let images: Vec<_> =
        (0..40).map(|count| reference(&registry, &format!("app:{count}"))).collect::<Result<_>>()?;
    let verdicts = futures::future::join_all(images.iter().map(|image| probe(&client, image, &[]))).await;
    assert!(verdicts.iter().all(|verdict| ends_after(verdict, Duration::from_mins(5))), "{verdicts:?}");
    assert!(registry.requests().len() <= 4, "only those that were under way: {}", registry.requests().len());
    Ok(())
}

#[tokio::test]
async fn an_answer_that_was_under_way_does_not_end_a_refusal() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    for name in ["slow", "other"] {
        registry.hold("app", name, &image(name)?);
    }
    registry.inject(
        Fault::new(Effect::Delay(Duration::from_millis(300)))
            .and(Effect::Header("ratelimit-limit", "100;w=21600".into()))
            .and(Effect::Header("ratelimit-remaining", "5;w=21600".into()))
            .path("slow"),
    );
    registry.inject(Fault::status(429).and(Effect::Header("retry-after", "600".into())).path("refused"));
    let client = client();
    let (slow, refused) = (reference(&registry, "app:slow")?, reference(&registry, "app:refused")?);
    let (slow, refused) = tokio::join!(probe(&client, &slow, &[]), probe(&client, &refused, &[]));
    assert!(slow.is_available() && ends_after(&refused, Duration::from_mins(10)), "{slow} {refused}");
    let told = probe(&client, &reference(&registry, "app:other")?, &[]).await;
    assert!(ends_after(&told, Duration::from_mins(10)), "{told}");
    assert_eq!(registry.requests().len(), 2);
    Ok(())
}

#[tokio::test]
async fn everybody_is_told_the_end_that_the_registry_told() -> Result<()> {
    let day = Duration::from_hours(24);
    for (name, value, expected) in [
        ("retry-after", "86400", Some(day)),
        ("retry-after", "172800", Some(day)),
        ("ratelimit-remaining", "0;w=21600", Some(Duration::from_hours(6))),
        ("x-nothing", "", None),
    ] {
        let registry = FakeRegistry::start().await?;
        registry.inject(Fault::status(429).and(Effect::Header(name, value.into())));
        let client = client();
        for count in 0..3 {
            let verdict = probe(&client, &reference(&registry, &format!("app:{count}"))?, &[]).await;
            match expected {
                Some(expected) => assert!(ends_after(&verdict, expected), "{value}, {count}: {verdict:?}"),
                None => assert!(matches!(verdict, Verdict::RateLimited { until: None, .. }), "{verdict:?}"),
            }
        }
        assert_eq!(registry.requests().len(), 1, "{name}: {value}");
    }
    Ok(())
}

#[tokio::test]
async fn a_refusal_of_the_storage_has_an_end_and_is_not_held_against_the_registry() -> Result<()> {
    let (registry, storage) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    storage.inject(Fault::status(429).and(Effect::Header("retry-after", "600".into())));
    registry
        .inject(Fault::new(Effect::Redirect(format!("{}/v2/a/manifests/1", storage.url()))).path("/stored"));
    registry.hold("app", "own", &image("own")?);
    let client = client();
    let verdict = probe(&client, &reference(&registry, "app:stored")?, &[]).await;
    assert!(ends_after(&verdict, Duration::from_mins(10)), "{verdict:?}");
    assert!(probe(&client, &reference(&registry, "app:own")?, &[]).await.is_available());
    Ok(())
}

#[tokio::test]
async fn a_registry_that_asks_to_be_left_alone_for_a_while_is() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    registry.inject(Fault::status(503).and(Effect::Header("retry-after", "20".into())));
    let client = client();
    for count in 1..=3 {
        let verdict = probe(&client, &reference(&registry, &format!("app:{count}"))?, &[]).await;
        assert_eq!(verdict.kind(), VerdictKind::Unreachable, "{verdict}");
        assert_eq!(registry.requests().len(), count, "it is not asked again at once");
    }
    let told = probe(&client, &reference(&registry, "app:4")?, &[]).await;
    assert!(told.reason().contains("circuit open after"), "{told}");
    let app = remote(&client, &reference(&registry, "app")?, Right::Pull)?;
    let refused = app.resolve(&Selector::from(&Tag::parse("4")?), &patiently()).await;
    let back = SystemTime::now() + Duration::from_secs(20);
    assert!(
        matches!(refused, Err(Error { problem: Problem::Unreachable(Outage { until: Some(until), .. }), .. })
            if until > back - Duration::from_secs(10) && until < back),
        "those who can wait know until when"
    );
    Ok(())
}

#[tokio::test]
async fn no_trial_is_sent_before_the_time_that_the_registry_named() -> Result<()> {
    const NAMED: Duration = Duration::from_secs(2);
    let registry = FakeRegistry::start().await?;
    registry.inject(Fault::status(503).and(Effect::Header("retry-after", "2".into())));
    let client = client();
    for count in 1..=3 {
        probe(&client, &reference(&registry, &format!("app:{count}"))?, &[]).await;
    }
    let opened = Instant::now();
    eventually(Duration::from_secs(10), || async {
        ensure!(registry.count("GET", "/v2/") > 0, "no trial yet");
        Ok(())
    })
    .await?;
    assert!(opened.elapsed() > NAMED / 2, "{:?}", opened.elapsed());
    Ok(())
}

#[tokio::test]
async fn a_registry_that_asks_for_a_moment_gets_it() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    registry.inject(Fault::status(503).and(Effect::Header("retry-after", "1".into())).times(1));
    let started = Instant::now();
    assert!(probe(&client(), &image, &[]).await.is_available());
    assert!(started.elapsed() >= Duration::from_secs(1), "{:?}", started.elapsed());
    Ok(())
}

#[tokio::test]
async fn a_manifest_that_broke_off_is_read_again() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    registry.inject(Fault::new(Effect::Truncate(10)).on(Route::Manifests).times(2));
    let options = ProbeOptions { method: ProbeMethod::Get, ..ProbeOptions::default() };
    assert!(client().probe(&image, &[], options, &patiently()).await.is_available());
    assert_eq!(registry.count("GET", "manifests"), 3);
    Ok(())
}

#[tokio::test]
async fn another_account_has_another_quota() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    registry.inject(Fault::status(429).and(Effect::Header("retry-after", "60".into())).times(1));
    let client = client();
    assert_eq!(probe(&client, &image, &[]).await.kind(), VerdictKind::RateLimited);
    assert!(probe(&client, &image, &logins(&image, &[("ada", "x")])).await.is_available());
    Ok(())
}

#[tokio::test]
async fn a_dead_registry_costs_one_slow_call() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    registry.inject(Fault::new(Effect::Hang));
    let client = client();
    let options = ProbeOptions::default();
    let first = client.probe(&image, &[], options, &within(Duration::from_secs(3))).await;
    assert_eq!(first.kind(), VerdictKind::Unreachable);
    let started = Instant::now();
    for count in 0..100 {
        let image = reference(&registry, &format!("app:{count}"))?;
        let verdict = client.probe(&image, &[], options, &within(Duration::from_secs(5))).await;
        assert_eq!(verdict.kind(), VerdictKind::Unreachable);
        assert!(verdict.reason().contains("circuit open after"), "{verdict}");
    }
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    assert_eq!(registry.count("HEAD", "manifests"), 1);
    Ok(())
}

#[tokio::test]
async fn a_registry_that_comes_back_is_noticed_without_a_caller_paying_for_it() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    registry.inject(Fault::new(Effect::Drop));
    let client = client();
    assert_eq!(probe(&client, &image, &[]).await.kind(), VerdictKind::Unreachable);
    assert_eq!(registry.count("HEAD", "manifests"), 3, "asked three times, then left alone");
    registry.heal();
    available_again(&client, &image).await?;
    assert!(registry.count("GET", "/v2/") >= 1, "a trial of our own found out");
    Ok(())
}

#[tokio::test]
async fn one_registry_that_is_down_does_not_slow_another() -> Result<()> {
    let (dead, alive) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    alive.hold("app", "1", &image("a")?);
    dead.inject(Fault::new(Effect::Hang));
    let client = client();
    let hanging = reference(&dead, "app:1")?;
    let deadline = Context::new(Class::Admission, tokio::time::Instant::now() + Duration::from_secs(3));
    let started = Instant::now();
    let working = reference(&alive, "app:1")?;
    let (_, quick) = tokio::join!(client.probe(&hanging, &[], ProbeOptions::default(), &deadline), async {
        let verdict = probe(&client, &working, &[]).await;
        (verdict, started.elapsed())
    });
    assert!(quick.0.is_available() && quick.1 < Duration::from_secs(2), "{quick:?}");
    Ok(())
}

#[tokio::test]
async fn a_registry_whose_answers_break_off_is_left_alone_for_a_while() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    registry.inject(Fault::new(Effect::Truncate(10)).on(Route::Manifests));
    for name in ["2", "3"] {
        registry.hold("app", name, &crate::support::image(name)?);
    }
    let client = client();
    let options = ProbeOptions { method: ProbeMethod::Get, ..ProbeOptions::default() };
    // However often one image is asked for: another may be well.
    for name in ["1", "1", "2", "3"] {
        let verdict =
            client.probe(&reference(&registry, &format!("app:{name}"))?, &[], options, &patiently()).await;
        assert_eq!(verdict.kind(), VerdictKind::Unreachable, "{verdict}");
        assert!(name == "3" || !verdict.reason().contains("circuit open after"), "{name}: {verdict}");
    }
    let before = registry.count("GET", "manifests");
    let told = client.probe(&image, &[], options, &patiently()).await;
    assert!(told.reason().contains("circuit open after"), "{told}");
    assert_eq!(registry.count("GET", "manifests"), before);
    registry.heal();
    available_again(&client, &image).await
}

#[tokio::test]
async fn a_registry_that_falls_silent_in_mid_answer_costs_one_slow_call() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    registry.inject(Fault::new(Effect::Stall(10)).on(Route::Manifests));
    let client = client();
    let options = ProbeOptions { method: ProbeMethod::Get, ..ProbeOptions::default() };
    let first = client.probe(&image, &[], options, &within(Duration::from_secs(1))).await;
    assert_eq!(first.kind(), VerdictKind::Unreachable, "{first}");
    let started = Instant::now();
    let told = client.probe(&image, &[], options, &within(Duration::from_secs(10))).await;
    assert!(told.reason().contains("circuit open after"), "{told}");
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    Ok(())
}

#[tokio::test]
async fn a_source_that_lies_is_not_held_against_the_destination() -> Result<()> {
    let (source, destination) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    let layers: Vec<Vec<u8>> = (0..6).map(|number| bytes(number, 200_000)).collect();
    let layers: Vec<&[u8]> = layers.iter().map(Vec::as_slice).collect();
    source.hold("app", "1", &layered(&layers)?);
    source.inject(Fault::new(Effect::Corrupt).on(Route::Blobs));
    let client = client();
    let copier = Copier::new(&client);
    let (from, to) = (reference(&source, "app:1")?, reference(&destination, "app:1")?);
    let error = copy(&copier, &from, &to, &CopyOptions::default()).await.unwrap_err();
    assert!(matches!(error, CopyError::Source(_)), "{error}");
    let verdict = probe(&client, &to, &[]).await;
    assert_eq!(verdict.kind(), VerdictKind::NotFound, "it answers: {verdict}");
    Ok(())
}
