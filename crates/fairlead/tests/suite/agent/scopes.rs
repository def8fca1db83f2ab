//! Pulls on the real node that lead through the file of domains, closed and insecure parts of one registry, mirrors
//! with a login and an authority of their own, and files without a router.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use fairlead_testkit::RegistryConfig;
use serde_json::{Value, json};

use super::node::{image, policy, reads, shared};
use super::pulls::follow;

#[tokio::test]
#[ignore = "needs root; `make test` as root runs it"]
async fn every_host_of_a_domain_is_pulled_from_its_mirror() -> Result<()> {
    let node = shared().await?;
    let _agent = node.with_agent().await?;
    let [mirror] = node.take()?;
    let wanted = image("of a domain")?;
    mirror.endpoint().push("wild/team/app", "1", &wanted).await?;
    let item = json!({"source": "*.wild.test", "mirrors": [format!("{}/wild", mirror.host())],
        "mirrorSourcePolicy": "NeverContactSource"});
    follow(node, "wild", &[policy("ImageTagMirrorSet", "imageTagMirrors", "wild", &item)]).await?;
    for host in ["any.wild.test", "other.wild.test:5000"] {
        node.pull(&format!("{host}/team/app:1")).await?.runs(node).await?;
    }
    let said = node.pull("any.wild.test/team/other:1").await?.fails(node).await?;
    ensure!(said.contains("NeverContactSource for *.wild.test in ImageTagMirrorSet wild"), "{said}");
    // Registries without a policy and without a file share the one of domains: their own source is asked.
    let said = node.pull("unknown.invalid/team/app:1").await?.fails(node).await?;
    ensure!(said.contains("https://unknown.invalid/v2/team/app/manifests/1"), "{said}");
    Ok(())
}

#[tokio::test]
#[ignore = "needs root; `make test` as root runs it"]
async fn blocked_insecure_and_old_policies_meet_in_one_registry() -> Result<()> {
    let node = shared().await?;
    let _agent = node.with_agent().await?;
    let ([mirror], source) = (node.take()?, &node.partly_blocked);
    let (open, shut, old) = (image("open beside blocked")?, image("blocked")?, image("of an old policy")?);
    for (registry, repository, image) in [
        (source, "open/app", &open),
        (source, "shut/app", &shut),
        (source, "old/app", &open),
        (mirror, "old/app", &old),
    ] {
        registry.endpoint().push(repository, "1", image).await?;
    }
    let said = node.pull(&format!("{}/shut/app:1", source.host())).await?.fails(node).await?;
    ensure!(said.contains(&format!("{}/shut is a blocked registry", source.host())), "{said}");
    ensure!(reads(source, "shut/app")?.is_empty(), "{:?}", reads(source, "shut/app")?);
    // The router alone is in its file, and sends containerd to a source without TLS.
    node.pull(&format!("{}/open/app:1", source.host())).await?.runs(node).await?;

    let item =
        json!({"source": format!("{}/old", source.host()), "mirrors": [format!("{}/old", mirror.host())]});
    let policy = json!({"apiVersion": "operator.openshift.io/v1alpha1", "kind": "ImageContentSourcePolicy",
        "metadata": {"name": "old"}, "spec": {"repositoryDigestMirrors": [item]}});
    node.apply(&policy, source).await?;
    node.pull(&format!("{}/old/app@{}", source.host(), old.digest())).await?.runs(node).await?;
    ensure!(reads(mirror, "old/app")?.iter().any(|access| access.path.contains("/blobs/")));
    Ok(())
}

#[tokio::test]
#[ignore = "needs root; `make test` as root runs it"]
async fn a_mirror_with_a_login_and_an_authority_serves_as_soon_as_both_are_given() -> Result<()> {
    let node = shared().await?;
    let _agent = node.with_agent().await?;
    let config = RegistryConfig::new().tls().user("robot", "secret");
    let mirror = node.cluster.registry(config).await?;
    let [source] = node.take()?;
    let wanted = image("behind a login and an authority")?;
    mirror.endpoint().push("private/app", "1", &wanted).await?;
    let item = json!({"source": format!("{}/team", source.host()),
        "mirrors": [format!("{}/private", mirror.host())], "mirrorSourcePolicy": "NeverContactSource"});
    node.apply(&policy("ImageTagMirrorSet", "imageTagMirrors", "private", &item), source).await?;
    let pull = node.pull(&format!("{}/team/app:1", source.host())).await?;
    let said = pull.fails(node).await?;
    ensure!(said.contains("no trusted connection to the registry"), "{said}");
    let directory = node.cluster.directory();
    std::fs::write(directory.join("mirror-ca.crt"), mirror.endpoint().authority.clone().context("TLS")?)?;
    // The base64 of robot:secret.
    let logins = json!({"auths": {mirror.host(): {"auth": "cm9ib3Q6c2VjcmV0"}}});
    std::fs::write(directory.join("mirror-credentials.json"), logins.to_string())?;
    pull.runs(node).await?;
    ensure!(reads(source, "team/app")?.is_empty(), "{:?}", reads(source, "team/app")?);
    Ok(())
}

/// Writes the files for containerd as `fairlead render` does, as if an administrator had.
pub(super) fn write_files(policies: &[Value], arguments: &[&str], to: &Path) -> Result<()> {
    let made = tempfile::TempDir::new()?;
    let list = made.path().join("policies.json");
    std::fs::write(&list, json!({"apiVersion": "v1", "kind": "List", "items": policies}).to_string())?;
    let (list, files) = (list.display().to_string(), made.path().join("files"));
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_fairlead"))
        .args(["render", "--runtime=containerd", "-f", &list, "--output-dir", &files.display().to_string()])
        .args(arguments)
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for directory in std::fs::read_dir(&files)? {
        let directory = directory?;
        let text = std::fs::read_to_string(directory.path().join("hosts.toml"))?;
        // Without its first line a file is not the agent's.
        let (_, text) = text.split_once('\n').context("a header")?;
        let place = to.join(directory.file_name());
        std::fs::create_dir_all(&place)?;
        std::fs::write(place.join("hosts.toml"), text)?;
    }
    Ok(())
}

/// Policies that files alone express: mirrors below a path for everything, mirrors for digests of a closed registry.
pub(super) fn by_files(name: &str, empty: &str, mirror: &str) -> Vec<Value> {
    let both = json!({"source": format!("{name}-both.test"), "mirrors": [format!("{mirror}/copies")]});
    let closed = json!({"source": format!("{name}-closed.test"), "mirrors": [empty, mirror],
        "mirrorSourcePolicy": "NeverContactSource"});
    vec![
        policy("ImageSourceTagPolicy", "repositoryTagMirrors", &format!("{name}-both"), &both),
        policy("ImageDigestMirrorSet", "imageDigestMirrors", &format!("{name}-closed"), &closed),
    ]
}

#[tokio::test]
#[ignore = "needs root; `make test` as root runs it"]
async fn files_without_a_router_are_read_as_they_are_meant() -> Result<()> {
    let node = shared().await?;
    let _agent = node.with_agent().await?;
    let [empty, mirror] = node.take()?;
    let blocked = node.cluster.registry(RegistryConfig::new()).await?;
    let (by_tag, by_digest) = (image("by files, by tag")?, image("by files, by digest")?);
    mirror.endpoint().push("copies/team/app", "1", &by_tag).await?;
    mirror.endpoint().push("team/app", "1", &by_digest).await?;
    blocked.endpoint().push("team/app", "1", &by_tag).await?;
    let certs = node.cluster.directory().join("certs.d");
    std::fs::remove_dir_all(certs.join(blocked.host()))?;
    let policies = by_files("plain", &empty.host(), &mirror.host());
    let insecure = [empty, mirror].map(|registry| format!("--insecure-registry={}", registry.host()));
    let blocks = format!("--blocked-registry={}", blocked.host());
    write_files(&policies, &[&insecure[0], &insecure[1], &blocks], &certs)?;

    node.pull("plain-both.test/team/app:1").await?.runs(node).await?;
    node.pull(&format!("plain-both.test/team/app@{}", by_tag.digest())).await?.runs(node).await?;
    node.pull(&format!("plain-closed.test/team/app@{}", by_digest.digest())).await?.runs(node).await?;
    let first = reads(empty, "team/app")?;
    ensure!(!first.is_empty(), "the first mirror is asked first");
    node.pull("plain-closed.test/team/app:1").await?.fails(node).await?;
    node.pull(&format!("{}/team/app:1", blocked.host())).await?.fails(node).await?;
    ensure!(reads(&blocked, "team/app")?.is_empty(), "{:?}", reads(&blocked, "team/app")?);
    Ok(())
}
