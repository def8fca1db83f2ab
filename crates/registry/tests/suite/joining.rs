//! One answer for many: what those who wait for the same question keep to themselves.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::{Verdict, VerdictKind};
use fairlead_registry::{Class, Client, Context, ProbeOptions};
use fairlead_testkit::fake_registry::{Effect, FakeRegistry, Fault};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::support::{asked, client, in_background, parse, patiently, registry_with_app};

/// Asks, and returns once the question is on its way.
async fn ask(
    client: &Client,
    registry: &FakeRegistry,
    image: &Reference,
    context: Context,
) -> Result<JoinHandle<Verdict>> {
    let (client, image) = (client.clone(), image.clone());
    let asking =
        tokio::spawn(async move { client.probe(&image, &[], ProbeOptions::default(), &context).await });
    asked(registry).await?;
    Ok(asking)
}

#[tokio::test]
async fn whoever_joins_waits_no_longer_than_for_a_question_of_its_own() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    registry.inject(Fault::new(Effect::Hang));
    let client = client();
    let watching = in_background().answered_within(Duration::from_secs(10));
    let watching = ask(&client, &registry, &image, watching).await?;
    let (telling, told) = watch::channel(None);
    let hurried = patiently().answered_within(Duration::from_millis(300)).telling_when_sent(telling);
    let started = Instant::now();
    let verdict = client.probe(&image, &[], ProbeOptions::default(), &hurried).await;
    assert_eq!(verdict.kind(), VerdictKind::Unreachable);
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert!(told.borrow().is_some(), "it knows that the question was sent");
    assert_eq!(registry.requests().len(), 1);
    watching.abort();
    Ok(())
}

#[tokio::test]
async fn whoever_has_more_time_for_an_answer_asks_again() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    registry.inject(Fault::new(Effect::Hang).times(1));
    let client = client();
    let hasty = Context::new(Class::Background, tokio::time::Instant::now() + Duration::from_mins(1))
        .answered_within(Duration::from_millis(300));
    let hasty = ask(&client, &registry, &image, hasty).await?;
    let patient = patiently().answered_within(Duration::from_secs(10));
    assert!(client.probe(&image, &[], ProbeOptions::default(), &patient).await.is_available());
    assert_eq!(hasty.await?.kind(), VerdictKind::Unreachable);
    Ok(())
}

#[tokio::test]
async fn a_question_that_fails_at_once_is_known_to_have_been_sent() -> Result<()> {
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
