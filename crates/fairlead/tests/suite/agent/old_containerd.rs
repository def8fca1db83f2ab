//! Debian's containerd 1.6, which reads `hosts.toml` by older rules, led by the agent. Access logs of registries say
//! who was asked.

use std::process::Output;
use std::time::Duration;

use anyhow::{Result, ensure};
use fairlead_testkit::fake_registry::{Effect, FakeRegistry, Fault, Route};
use fairlead_testkit::images::{self, Image, ImageBuilder};
use fairlead_testkit::{OldContainerd, Registry, RegistryConfig, eventually};

use super::files::{Agent, policy};
use super::scopes::{by_files, write_files};

const SOON: Duration = Duration::from_secs(30);

/// A containerd that trusts these registries; `None` where it is not installed.
async fn containerd(sources: &[&Registry]) -> Result<Option<OldContainerd>> {
    if !OldContainerd::is_installed() {
        println!("containerd is not installed: the node's own is all there is");
        return Ok(None);
    }
    let authorities = sources.iter().filter_map(|source| source.endpoint().authority.clone());
    Ok(Some(OldContainerd::start(&authorities.collect::<String>()).await?))
}

async fn fetch(containerd: &OldContainerd, agent: &Agent, image: &str) -> Result<Output> {
    containerd.fetch(Some(&agent.directory.path().join("certs.d")), image).await
}

fn told(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned()).concat()
}

fn reads(registry: &Registry, repository: &str) -> Result<usize> {
    let path = format!("/v2/{repository}/");
    let is_pull = |agent: &str| agent.contains("containerd") || agent.contains("fairlead");
    let accesses = registry.accesses()?;
    Ok(accesses.iter().filter(|one| one.path.starts_with(&path) && is_pull(&one.user_agent)).count())
}

/// What the file cannot say, because this version does not try HTTP after HTTPS: so the source speaks TLS.
async fn source() -> Result<Registry> {
    Registry::start(RegistryConfig::new().tls()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn containerd_1_6_follows_policies_through_the_router() -> Result<()> {
    let (source, mirror) = tokio::try_join!(source(), Registry::start(RegistryConfig::new()))?;
    let Some(containerd) = containerd(&[&source]).await? else { return Ok(()) };
    let [open, moved, shut, missing] = ["open", "moved", "shut", "missing"].map(images::holding);
    let (open, moved, shut, missing) = (open?, moved?, shut?, missing?);
    for (registry, repository, image) in [
        (&mirror, "copies/app", &open),
        (&source, "open/app", &moved),
        (&mirror, "closed/app", &shut),
        (&source, "shut/app", &shut),
    ] {
        registry.endpoint().push(repository, "1", image).await?;
    }
    source.endpoint().push("open/app", "2", &moved).await?;
    source.endpoint().push("shut/app", "2", &missing).await?;
    let (from, to) = (source.host(), mirror.host());
    let policies = policy("open", &format!("{from}/open"), &format!("{to}/copies"), false)
        + &policy("shut", &format!("{from}/shut"), &format!("{to}/closed"), true);
    let agent =
        Agent::start(&policies, &["--runtime-version=1.6.20", &format!("--insecure-registry={to}")]).await?;
    agent.is_ready().await?;
    agent.process.wait_for_log("\"endpoint\":\"router\"", SOON).await?;

    // The tag is another image on the mirror, which proves who answered.
    let pulled = fetch(&containerd, &agent, &format!("{from}/open/app:1")).await?;
    ensure!(pulled.status.success(), "{}", told(&pulled));
    ensure!(reads(&source, "open/app")? == 0, "{:?}", source.accesses()?);
    let pulled = fetch(&containerd, &agent, &format!("{from}/shut/app:1")).await?;
    ensure!(pulled.status.success(), "{}", told(&pulled));
    let refused = fetch(&containerd, &agent, &format!("{from}/shut/app:2")).await?;
    ensure!(!refused.status.success() && told(&refused).contains("NeverContactSource"), "{}", told(&refused));
    let refused = fetch(&containerd, &agent, &format!("{from}/shut/app@{}", missing.digest())).await?;
    ensure!(!refused.status.success(), "no mirror is for digests");
    ensure!(reads(&source, "shut/app")? == 0, "{:?}", source.accesses()?);

    mirror.kill().await?;
    let pulled = fetch(&containerd, &agent, &format!("{from}/open/app:2")).await?;
    ensure!(pulled.status.success(), "{}", told(&pulled));
    ensure!(reads(&source, "open/app")? > 0);
    Ok(())
}

/// The same files are judged by the node's own containerd in `scopes`.
#[tokio::test(flavor = "multi_thread")]
async fn containerd_1_6_reads_files_without_a_router_as_they_are_meant() -> Result<()> {
    let (empty, mirror, blocked) = tokio::try_join!(source(), source(), source())?;
    let Some(containerd) = containerd(&[&empty, &mirror, &blocked]).await? else { return Ok(()) };
    let (by_tag, by_digest) = (images::holding("by tag")?, images::holding("by digest")?);
    mirror.endpoint().push("copies/team/app", "1", &by_tag).await?;
    mirror.endpoint().push("team/app", "1", &by_digest).await?;
    blocked.endpoint().push("team/app", "1", &by_tag).await?;
    let certs = tempfile::TempDir::new()?;
    let blocks = format!("--blocked-registry={}", blocked.host());
    let policies = by_files("old", &empty.host(), &mirror.host());
    write_files(&policies, &["--runtime-version=1.6.20", &blocks], certs.path())?;
    for (image, is_had) in [
        ("old-both.test/team/app:1".to_owned(), true),
        (format!("old-both.test/team/app@{}", by_tag.digest()), true),
        (format!("old-closed.test/team/app@{}", by_digest.digest()), true),
        ("old-closed.test/team/app:1".to_owned(), false),
        (format!("{}/team/app:1", blocked.host()), false),
    ] {
        let fetched = containerd.fetch(Some(certs.path()), &image).await?;
        ensure!(fetched.status.success() == is_had, "{image}: {}", told(&fetched));
    }
    ensure!(reads(&empty, "team/app")? > 0, "the first mirror is asked first");
    ensure!(reads(&blocked, "team/app")? == 0, "{:?}", blocked.accesses()?);
    Ok(())
}

/// Bytes of the image that a router passes on while it is killed.
fn large(label: &str) -> Result<Image> {
    let mut random = fastrand::Rng::with_seed(1);
    let bytes: Vec<u8> = (0..200_000).map(|_| random.u8(..)).chain(label.bytes()).collect();
    ImageBuilder::new().file("/large", &bytes, 0o644)?.build()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_router_killed_in_the_middle_of_a_layer_costs_the_pull_and_nothing_more() -> Result<()> {
    // A registry with a closed part is closed while the agent is down, so each has its own.
    let (source, other) = tokio::try_join!(source(), source())?;
    let Some(containerd) = containerd(&[&source, &other]).await? else { return Ok(()) };
    let (open, shut) = (large("open")?, large("shut")?);
    let mirror = FakeRegistry::start().await?;
    for (name, image) in [("open", &open), ("shut", &shut)] {
        source.endpoint().push(&format!("{name}/app"), "1", image).await?;
        mirror.hold(&format!("{name}/app"), "1", image);
    }
    let (from, to) = (source.host(), mirror.host());
    other.endpoint().push("shut/app", "1", &shut).await?;
    let policies = policy("open", &format!("{from}/open"), &format!("{to}/open"), false)
        + &policy("shut", &format!("{}/shut", other.host()), &format!("{to}/shut"), true);
    let agent = Agent::start(&policies, &["--runtime-version=1.6.20"]).await?;
    agent.is_ready().await?;
    agent.process.wait_for_log("\"endpoint\":\"router\"", SOON).await?;
    let stall = || mirror.inject(Fault::new(Effect::Stall(100_000)).on(Route::Blobs).method("GET").times(2));
    let is_passing_on = || async {
        let (_, page) = agent.page("metrics").await?;
        ensure!(page.contains("fairlead_router_bytes_total"), "nothing of a layer yet");
        Ok(())
    };

    stall();
    let image = format!("{from}/open/app:1");
    let (pulled, killed) = tokio::join!(fetch(&containerd, &agent, &image), async {
        eventually(SOON, is_passing_on).await?;
        agent.process.kill().await
    });
    killed?;
    let pulled = pulled?;
    ensure!(pulled.status.success(), "the source serves the rest: {}", told(&pulled));
    ensure!(reads(&source, "open/app")? > 0);

    mirror.heal();
    agent.process.start_again().await?;
    agent.process.wait_for_log("\"endpoint\":\"router\"", SOON).await?;
    let image = format!("{}/shut/app:1", other.host());
    eventually(SOON, || async {
        let pulled = fetch(&containerd, &agent, &image).await?;
        ensure!(pulled.status.success(), "{}", told(&pulled));
        Ok(())
    })
    .await?;
    ensure!(reads(&other, "shut/app")? == 0, "{:?}", other.accesses()?);
    Ok(())
}
