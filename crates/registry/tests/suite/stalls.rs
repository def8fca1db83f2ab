//! Answers that begin well and then stand still, or drip. Time passes in leaps here, as soon as nothing else is left to
//! do.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use fairlead_domain::cause::Cause;
use fairlead_domain::verdict::{Verdict, VerdictKind};
use fairlead_registry::copy::{Copier, CopyError, CopyOptions, Event, Observer};
use fairlead_registry::{Class, Context, ProbeMethod, ProbeOptions};
use fairlead_testkit::fake_registry::{Auth, Bearer, Effect, FakeRegistry, Fault, Route};
use tokio::time::Instant;

use crate::support::{client, image, leaping, place, reference, registry_with_app};

const READ: ProbeOptions = ProbeOptions {
    method: ProbeMethod::Get,
    check_digest: false,
    new_connection: false,
    cause: Cause::Administrator,
};

fn for_hours() -> Context {
    Context::new(Class::Background, Instant::now() + Duration::from_hours(2))
}

/// Asks for `app:1` by reading its manifest. Returns what came of it and how long that took.
async fn read(registry: &FakeRegistry, context: &Context) -> Result<(Verdict, Duration)> {
    let image = reference(registry, "app:1")?;
    let client = client();
    let started = Instant::now();
    let reading = async {
        let verdict = client.probe(&image, &[], READ, context).await;
        (verdict, started.elapsed())
    };
    leaping(|| !registry.requests().is_empty(), reading).await
}

#[tokio::test]
async fn a_manifest_that_does_not_come_to_an_end_is_given_up() -> Result<()> {
    for effect in [Effect::Stall(10), Effect::Stall(0), Effect::Drip(Duration::from_secs(2))] {
        let (registry, _) = registry_with_app().await?;
        registry.inject(Fault::new(effect.clone()).on(Route::Manifests));
        let (verdict, took) = read(&registry, &for_hours()).await?;
        assert_eq!(verdict.kind(), VerdictKind::Unreachable, "{effect:?}: {verdict}");
        assert!(took <= Duration::from_secs(31), "{effect:?}: {took:?}");
    }
    let (registry, _) = registry_with_app().await?;
    registry.inject(Fault::new(Effect::Drip(Duration::from_millis(20))).on(Route::Manifests));
    let (verdict, took) = read(&registry, &for_hours()).await?;
    assert!(
        verdict.is_available() && took > Duration::from_secs(2),
        "slow is good enough: {took:?} {verdict}"
    );
    Ok(())
}

#[tokio::test]
async fn the_time_for_an_answer_is_for_all_of_it() -> Result<()> {
    let (registry, _) = registry_with_app().await?;
    registry.inject(Fault::new(Effect::Stall(10)).on(Route::Manifests));
    let (verdict, took) = read(&registry, &for_hours().answered_within(Duration::from_secs(3))).await?;
    assert_eq!(verdict.kind(), VerdictKind::Unreachable, "{verdict}");
    assert!(took <= Duration::from_secs(4), "{took:?}");
    Ok(())
}

#[tokio::test]
async fn a_refusal_is_understood_before_its_words_have_come() -> Result<()> {
    for (status, expected) in [
        (401, VerdictKind::Unauthorised),
        (403, VerdictKind::Forbidden),
        (404, VerdictKind::NotFound),
        (429, VerdictKind::RateLimited),
    ] {
        let (registry, _) = registry_with_app().await?;
        let challenge = Effect::Header("www-authenticate", "Basic realm=\"r\"".into());
        registry.inject(Fault::status(status).and(challenge).and(Effect::Stall(5)).on(Route::Manifests));
        let patience = Context::new(Class::Admission, Instant::now() + Duration::from_secs(10));
        let (verdict, took) = read(&registry, &patience).await?;
        assert_eq!(verdict.kind(), expected, "{verdict}");
        assert!(took <= Duration::from_secs(2), "{status}: {took:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_redirect_is_followed_before_its_words_have_come() -> Result<()> {
    let (registry, _) = registry_with_app().await?;
    registry.hold("app", "2", &image("elsewhere")?);
    let location = Effect::Header("location", format!("{}/v2/app/manifests/2", registry.url()));
    let words = Effect::Answer(307, "text/plain", b"it is over there".to_vec());
    registry.inject(Fault::new(words).and(location).and(Effect::Stall(3)).path("manifests/1"));
    let (verdict, took) = read(&registry, &for_hours()).await?;
    assert!(verdict.is_available() && took <= Duration::from_secs(2), "{took:?} {verdict}");
    Ok(())
}

#[tokio::test]
async fn a_token_that_does_not_come_to_an_end_is_given_up() -> Result<()> {
    for effect in [Effect::Stall(5), Effect::Drip(Duration::from_secs(1)), Effect::Hang] {
        let (registry, _) = registry_with_app().await?;
        registry.require(Auth::bearer(Bearer::new()));
        registry.inject(Fault::new(effect.clone()).on(Route::Token));
        let (verdict, took) = read(&registry, &for_hours()).await?;
        assert_eq!(verdict.kind(), VerdictKind::Unreachable, "{effect:?}: {verdict}");
        assert!(took <= Duration::from_secs(12), "others wait for it: {effect:?} {took:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_copy_does_not_wait_for_hours_for_one_answer() -> Result<()> {
    let (source, name) = registry_with_app().await?;
    let destination = FakeRegistry::start().await?;
    source.inject(Fault::new(Effect::Stall(10)).on(Route::Manifests).method("GET"));
    let copier = Copier::new(&client());
    let (from, to) = (place(&name), place(&reference(&destination, "app:1")?));
    let nobody: Arc<dyn Observer> = Arc::new(|_: &Event| {});
    let context = for_hours();
    let started = Instant::now();
    let options = CopyOptions::default();
    let copying = copier.copy(&from, &to, &options, &nobody, &context);
    let error = leaping(|| source.count("GET", "/manifests/") > 0, copying).await?.unwrap_err();
    assert!(matches!(error, CopyError::Source(_)), "{error}");
    assert!(started.elapsed() < Duration::from_mins(5), "{:?}", started.elapsed());
    Ok(())
}
