//! The real readers of `registries.conf`: skopeo and podman pull from real registries, whose access logs say who was
//! asked, in which order.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_node::RuntimeName::Podman;
use fairlead_testkit::images::{self, Image};
use fairlead_testkit::{Registry, RegistryConfig, eventually};
use tempfile::TempDir;

use super::*;

const SKOPEO: &str = "/usr/bin/skopeo";
const PODMAN: &str = "/usr/bin/podman";

/// A source and two mirrors of it.
struct Bench {
    source: Registry,
    first: Registry,
    second: Registry,
    directory: TempDir,
}

impl Bench {
    async fn start() -> Result<Option<Self>> {
        for program in [SKOPEO, PODMAN] {
            if !Path::new(program).exists() {
                eprintln!("{program} is not installed: the golden files and the library are all there is");
                return Ok(None);
            }
        }
        let start = || Registry::start(RegistryConfig::new());
        let (source, first, second) = tokio::try_join!(start(), start(), start())?;
        Ok(Some(Self { source, first, second, directory: TempDir::new()? }))
    }

    fn scope(&self, path: &str) -> String {
        format!("{}/{path}", self.source.host())
    }

    fn mirrors(&self) -> [String; 2] {
        [&self.first, &self.second].map(|registry| format!("{}/copies", registry.host()))
    }

    /// Makes policies for `source/team` and its mirrors the configuration.
    fn follow(&self, make: fn(&str, &[&str]) -> MirrorPolicy, blocked: &[&str]) -> Result<()> {
        let [first, second] = self.mirrors();
        let hosts = [&self.source, &self.first, &self.second].map(Registry::host);
        let insecure: Vec<&str> = hosts.iter().map(String::as_str).collect();
        let policies = vec![make(&self.scope("team"), &[&first, &second])];
        let rendered = rendered(&plan(policies, &insecure, blocked), Podman, Some("4.3.1"));
        std::fs::write(self.file(), &rendered.files[0].content)?;
        Ok(())
    }

    fn file(&self) -> std::path::PathBuf {
        self.directory.path().join("registries.conf")
    }

    fn skopeo(&self, image: &str) -> Result<Output> {
        let out = TempDir::new_in(self.directory.path())?;
        Command::new(SKOPEO)
            .arg("--registries-conf")
            .arg(self.file())
            .args(["--insecure-policy", "copy", &format!("docker://{image}")])
            .arg(format!("dir:{}", out.path().display()))
            .env("HOME", self.directory.path())
            .output()
            .context("skopeo")
    }

    /// With a tag and a digest in one name, which skopeo does not take.
    fn podman(&self, image: &str) -> Result<Output> {
        let place = |name: &str| self.directory.path().join(name).display().to_string();
        Command::new(PODMAN)
            .args(["--root", &place("root"), "--runroot", &place("run"), "--storage-driver=vfs"])
            .arg("--registries-conf")
            .arg(self.file())
            .args(["pull", image])
            .env("HOME", self.directory.path())
            .output()
            .context("podman")
    }

    /// Who was asked for a repository of that name since the last call, and with what outcome for manifests.
    fn asked(&self, seen: &mut [usize; 3]) -> Result<[Vec<u16>; 3]> {
        let registries = [&self.source, &self.first, &self.second];
        let mut asked = [const { Vec::new() }; 3];
        for ((registry, seen), asked) in registries.into_iter().zip(seen).zip(&mut asked) {
            let accesses = registry.accesses()?;
            let is_manifest = |path: &str| path.contains("/app/manifests/");
            let by_client = |agent: &str| agent.contains("skopeo") || agent.contains("containers");
            let new = accesses.iter().skip(*seen);
            *asked = new
                .filter(|access| access.method == "GET" && is_manifest(&access.path))
                .filter(|access| by_client(&access.user_agent))
                .map(|access| access.status)
                .collect();
            *seen = accesses.len();
        }
        Ok(asked)
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

const NOBODY: Vec<u16> = Vec::new();

#[tokio::test]
async fn skopeo_and_podman_ask_whom_the_policies_say() -> Result<()> {
    let Some(bench) = Bench::start().await? else { return Ok(()) };
    let (everywhere, late, at_source) =
        (images::holding("everywhere")?, images::holding("second mirror")?, images::holding("source alone")?);
    let other = images::holding("another image under the same tag")?;
    for (registry, repository) in
        [(&bench.source, "team/app"), (&bench.first, "copies/app"), (&bench.second, "copies/app")]
    {
        registry.endpoint().push(repository, "all", &everywhere).await?;
    }
    bench.first.endpoint().push("copies/app", "1", &other).await?;
    for (registry, tag, image) in [(&bench.source, "1", &late), (&bench.source, "2", &at_source)] {
        registry.endpoint().push("team/app", tag, image).await?;
    }
    bench.second.endpoint().push("copies/app", "1", &late).await?;
    let app = bench.scope("team/app");
    let by = |image: &Image| format!("{app}@{}", image.digest());
    let mut seen = [0; 3];
    bench.asked(&mut seen)?;

    // Mirrors for digests: a tag is asked from the source, a digest from one mirror after the other.
    bench.follow(digest, &[])?;
    ensure!(bench.skopeo(&format!("{app}:1"))?.status.success());
    assert_eq!(bench.asked(&mut seen)?, [vec![200], NOBODY, NOBODY]);
    ensure!(bench.skopeo(&by(&late))?.status.success());
    assert_eq!(bench.asked(&mut seen)?, [NOBODY, vec![404], vec![200]]);
    ensure!(bench.skopeo(&by(&at_source))?.status.success());
    assert_eq!(bench.asked(&mut seen)?, [vec![200], vec![404], vec![404]]);
    // A name with both is pulled by its digest.
    let both_parts = bench.podman(&format!("{app}:1@{}", late.digest()))?;
    ensure!(both_parts.status.success(), "{}", said(&both_parts));
    assert_eq!(bench.asked(&mut seen)?.map(|asked| asked.len().min(1)), [0, 1, 1]);

    // Mirrors for tags, the other way round.
    bench.follow(tag, &[])?;
    ensure!(bench.skopeo(&format!("{app}:1"))?.status.success());
    assert_eq!(bench.asked(&mut seen)?, [NOBODY, vec![200], NOBODY]);
    ensure!(bench.podman(&by(&everywhere))?.status.success());
    assert_eq!(bench.asked(&mut seen)?.map(|asked| asked.len().min(1)), [1, 0, 0]);

    // The seed's policy for tags has no restriction.
    bench.follow(both, &[])?;
    ensure!(bench.skopeo(&by(&everywhere))?.status.success());
    assert_eq!(bench.asked(&mut seen)?, [NOBODY, vec![200], NOBODY]);

    // Closed: the source is not asked, whatever the mirrors have.
    bench.follow(digest_never, &[])?;
    let refused = bench.skopeo(&format!("{app}:1"))?;
    ensure!(!refused.status.success() && said(&refused).contains("is blocked"), "{}", said(&refused));
    assert_eq!(bench.asked(&mut seen)?, [NOBODY, NOBODY, NOBODY]);
    ensure!(bench.skopeo(&by(&late))?.status.success());
    ensure!(!bench.skopeo(&by(&at_source))?.status.success());
    assert_eq!(bench.asked(&mut seen)?, [NOBODY, vec![404, 404], vec![200, 404]]);

    // A blocked mirror is passed over, and a blocked source is not asked.
    bench.follow(both, &[&bench.first.host()])?;
    ensure!(bench.skopeo(&by(&everywhere))?.status.success());
    assert_eq!(bench.asked(&mut seen)?, [NOBODY, NOBODY, vec![200]]);
    bench.follow(both, &[&bench.source.host()])?;
    ensure!(!bench.skopeo(&by(&at_source))?.status.success());
    assert_eq!(bench.asked(&mut seen)?, [NOBODY, vec![404], vec![404]]);

    // Wrong bytes in the first mirror: nothing wrong arrives, and there is no failover for one layer.
    bench.follow(both, &[])?;
    spoil(&bench.first, &everywhere)?;
    let spoiled = bench.skopeo(&by(&everywhere))?;
    ensure!(!spoiled.status.success(), "wrong content was taken");
    assert_eq!(bench.asked(&mut seen)?, [NOBODY, vec![200], NOBODY]);

    bench.first.kill().await?;
    ensure!(bench.skopeo(&by(&late))?.status.success());
    assert_eq!(bench.asked(&mut seen)?, [NOBODY, NOBODY, vec![200]]);
    bench.second.kill().await?;
    ensure!(bench.skopeo(&by(&late))?.status.success());
    assert_eq!(bench.asked(&mut seen)?, [vec![200], NOBODY, NOBODY]);
    Ok(())
}

/// Changes the stored layers of an image, so that they do not have their digests.
fn spoil(registry: &Registry, image: &Image) -> Result<()> {
    for blob in image.blobs() {
        let digest = blob.digest();
        let hex = digest.strip_prefix("sha256:").context("sha256")?;
        let stored = format!("storage/docker/registry/v2/blobs/sha256/{}/{hex}/data", &hex[..2]);
        let path = registry.directory().join(stored);
        let spoiled: Vec<u8> = std::fs::read(&path)?.iter().map(|byte| byte ^ 1).collect();
        std::fs::write(path, spoiled)?;
    }
    Ok(())
}

#[tokio::test]
async fn a_pull_through_cache_is_a_mirror() -> Result<()> {
    let Some(bench) = Bench::start().await? else { return Ok(()) };
    let image = images::holding("through a cache")?;
    bench.source.endpoint().push("team/app", "1", &image).await?;
    let cache = Registry::start(RegistryConfig::new().cache_of(bench.source.endpoint())).await?;
    let mirror = format!("{}/team", cache.host());
    let (source, hosts) = (bench.scope("team"), [bench.source.host(), cache.host()]);
    let insecure: Vec<&str> = hosts.iter().map(String::as_str).collect();
    let never = digest_never(&source, &[&mirror]);
    let rendered = rendered(&plan(vec![never], &insecure, &[]), Podman, None);
    std::fs::write(bench.file(), &rendered.files[0].content)?;
    let pulled = bench.skopeo(&format!("{source}/app@{}", image.digest()))?;
    ensure!(pulled.status.success(), "{}", said(&pulled));
    let by_skopeo = |registry: &Registry| {
        Ok::<_, anyhow::Error>(
            registry.accesses()?.iter().filter(|access| access.user_agent.contains("skopeo")).count(),
        )
    };
    ensure!(by_skopeo(&bench.source)? == 0, "{:?}", bench.source.accesses()?);
    // The cache itself asks the source, which is its own affair.
    ensure!(
        by_skopeo(&cache)? > 0
            && bench.source.accesses()?.iter().any(|access| access.path.contains("manifests"))
    );
    // What it holds, it serves without the source.
    eventually(Duration::from_secs(30), || async {
        let stored = cache.directory().join("storage/docker/registry/v2/repositories/team/app/_manifests");
        ensure!(stored.exists(), "the cache stores in the background");
        Ok(())
    })
    .await?;
    bench.source.kill().await?;
    let again = bench.skopeo(&format!("{source}/app@{}", image.digest()))?;
    ensure!(again.status.success(), "{}", said(&again));
    Ok(())
}
