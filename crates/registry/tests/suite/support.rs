//! What the tests share: clients, credentials, references, deadlines.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fairlead_domain::cause::Cause;
use fairlead_domain::keyring::{Credential, IdentityKey, Keyring};
use fairlead_domain::reference::{Host, Reference};
use fairlead_domain::verdict::Verdict;
use fairlead_registry::copy::{Copied, Copier, CopyEndpoint, CopyError, CopyOptions, Event, Observer};
use fairlead_registry::{
    BreakerSettings, Class, Client, Context, ProbeOptions, RegistrySettings, RepositoryClient, Right,
    Settings,
};
use fairlead_testkit::eventually;
use fairlead_testkit::fake_registry::FakeRegistry;
use fairlead_testkit::images::{self, Image};
use fairlead_testkit::registry::{Access, Registry};
use tokio::time::Instant;

pub(crate) fn number(value: u32) -> NonZeroU32 {
    NonZeroU32::new(value).unwrap_or(NonZeroU32::MIN)
}

/// Settings in which a registry that failed is tried again soon, so that tests need not wait.
pub(crate) fn settings() -> Settings {
    let patience = BreakerSettings {
        first_pause: Duration::from_millis(200),
        longest_pause: Duration::from_millis(400),
        interest: Duration::from_mins(1),
    };
    let mut settings = Settings::default();
    settings.patience = patience;
    settings
}

pub(crate) fn client() -> Client {
    Client::new(settings())
}

/// A client with settings for one registry.
pub(crate) fn client_for(host: &str, change: impl FnOnce(&mut RegistrySettings)) -> Result<Client> {
    let mut settings = settings();
    let mut own = settings.default.clone();
    change(&mut own);
    settings.set(&Host::parse(host)?, own);
    Ok(Client::new(settings))
}

/// Runs a liveness check of an image's registry, or waits for the one under way.
pub(crate) async fn check(client: &Client, image: &Reference) -> Result<()> {
    let check = client
        .check(&image.host(), Cause::Administrator, Duration::from_secs(1))
        .context("settings that can be used")?;
    ensure!(check.ended(Duration::from_secs(9), Instant::now() + Duration::from_secs(9)).await);
    Ok(())
}

pub(crate) fn within(time: Duration) -> Context {
    Context::new(Class::Admission, Instant::now() + time)
}

/// Enough time for anything that works.
pub(crate) fn patiently() -> Context {
    within(Duration::from_secs(20))
}

pub(crate) fn in_background() -> Context {
    Context::new(Class::Background, Instant::now() + Duration::from_secs(20))
}

pub(crate) fn reference(registry: &FakeRegistry, rest: &str) -> Result<Reference> {
    parse(&format!("{}/{rest}", registry.host()))
}

pub(crate) fn parse(text: &str) -> Result<Reference> {
    Reference::parse(text).with_context(|| text.to_owned())
}

/// An image of a real registry.
pub(crate) fn at(registry: &Registry, rest: &str) -> Result<Reference> {
    parse(&format!("{}/{rest}", registry.endpoint().host()))
}

/// Every request a real registry has answered. It writes some of them down after it has answered.
pub(crate) async fn asked_of(registry: &Registry) -> Result<Vec<Access>> {
    let mut last = registry.accesses()?;
    loop {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let now = registry.accesses()?;
        if now.len() == last.len() {
            return Ok(now);
        }
        last = now;
    }
}

/// A small image that differs from others by its label.
pub(crate) fn image(label: &str) -> Result<Image> {
    images::ImageBuilder::new().file("/content", label.as_bytes(), 0o644)?.label("which", label).build()
}

/// A registry that holds an image, and the name of that image.
pub(crate) async fn registry_with_app() -> Result<(FakeRegistry, Reference)> {
    let registry = FakeRegistry::start().await?;
    registry.hold("app", "1", &image("a")?);
    let name = reference(&registry, "app:1")?;
    Ok((registry, name))
}

/// Credentials for an image, given as user and password for its registry, in the order of trial.
pub(crate) fn logins(image: &Reference, pairs: &[(&str, &str)]) -> Vec<Credential> {
    let mut keyring = Keyring::new(IdentityKey::new([9; 32]));
    for (user, password) in pairs {
        assert!(keyring.add_login(image.host().as_str(), user.as_bytes(), password.as_bytes()));
    }
    keyring.lookup(&image.repository())
}

pub(crate) async fn probe(client: &Client, image: &Reference, credentials: &[Credential]) -> Verdict {
    client.probe(image, credentials, ProbeOptions::default(), &patiently()).await
}

pub(crate) fn remote(client: &Client, image: &Reference, right: Right) -> Result<RepositoryClient> {
    Ok(client.repository(&image.repository(), Vec::new(), right)?)
}

/// Waits until the registry has been asked at least once.
pub(crate) async fn asked(registry: &FakeRegistry) -> Result<()> {
    eventually(Duration::from_secs(5), || async {
        ensure!(!registry.requests().is_empty(), "nobody asked");
        Ok(())
    })
    .await
}

/// Awaits work with a clock that leaps as soon as nothing is left to do, from the moment on in which `when` holds.
/// Before that a slow machine would leap over the way there.
pub(crate) async fn leaping<T>(when: impl Fn() -> bool, work: impl Future<Output = T>) -> Result<T> {
    let leap = async {
        eventually(Duration::from_mins(1), || async {
            ensure!(when(), "the moment to leap did not come");
            Ok(())
        })
        .await?;
        // What was answered meanwhile arrives first.
        tokio::time::sleep(Duration::from_millis(100)).await;
        tokio::time::pause();
        anyhow::Ok(())
    };
    let (done, leapt) = tokio::join!(work, leap);
    leapt?;
    tokio::time::resume();
    Ok(done)
}

/// Waits until an image is available again.
pub(crate) async fn available_again(client: &Client, image: &Reference) -> Result<()> {
    eventually(Duration::from_secs(10), || async {
        let verdict = probe(client, image, &[]).await;
        ensure!(verdict.is_available(), "{verdict}");
        Ok(())
    })
    .await
}

/// An image that every caller may use.
pub(crate) fn place(reference: &Reference) -> CopyEndpoint {
    CopyEndpoint { reference: reference.clone(), credentials: Arc::from([]), cause: Cause::Administrator }
}

/// Copies without watching.
pub(crate) async fn copy(
    copier: &Copier,
    source: &Reference,
    destination: &Reference,
    options: &CopyOptions,
) -> Result<Copied, CopyError> {
    let nobody: Arc<dyn Observer> = Arc::new(|_: &Event| {});
    copier.copy(&place(source), &place(destination), options, &nobody, &in_background()).await
}

/// An image with one layer of the given bytes for each.
pub(crate) fn layered(layers: &[&[u8]]) -> Result<Image> {
    let mut builder = images::ImageBuilder::new();
    for (position, layer) in layers.iter().enumerate() {
        builder = builder.file(&format!("/layer-{position}"), layer, 0o644)?;
    }
    builder.build()
}

/// Bytes that differ by a number and do not repeat.
pub(crate) fn bytes(number: u64, length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(number);
    std::iter::repeat_with(|| random.u8(..)).take(length).collect()
}
