//! Both releases of the registry serve what the testkit makes, and fail in the ways tests ask for.

use anyhow::Result;
use fairlead_testkit::images::{self, Image};
use fairlead_testkit::registry::{Endpoint, Release};
use fairlead_testkit::{Registry, RegistryConfig};
use reqwest::header::ACCEPT;
use reqwest::{Method, StatusCode};

async fn fetch(
    endpoint: &Endpoint,
    repository: &str,
    reference: &str,
    media_type: &str,
) -> Result<reqwest::Response> {
    let client = endpoint.http()?;
    let path = format!("/v2/{repository}/manifests/{reference}");
    Ok(endpoint.request(&client, Method::GET, &path).header(ACCEPT, media_type).send().await?)
}

async fn served_as_pushed(registry: &Registry, repository: &str, image: &Image) -> Result<()> {
    let digest = registry.endpoint().push(repository, "1", image).await?;
    let answer = fetch(registry.endpoint(), repository, "1", &image.root().media_type).await?;
    assert_eq!(answer.status(), StatusCode::OK, "{repository}");
    assert_eq!(answer.headers()["docker-content-digest"], digest.as_str(), "{repository}");
    assert_eq!(answer.bytes().await?, image.root().bytes, "{repository}");
    Ok(())
}

async fn delete(endpoint: &Endpoint, repository: &str, reference: &str) -> Result<StatusCode> {
    let path = format!("/v2/{repository}/manifests/{reference}");
    Ok(endpoint.request(&endpoint.http()?, Method::DELETE, &path).send().await?.status())
}

async fn every_kind_of_image(release: Release, deleting_a_tag: StatusCode) -> Result<()> {
    let registry = Registry::start(RegistryConfig::new().release(release).delete()).await?;
    served_as_pushed(&registry, "pause", &images::pause()?).await?;
    served_as_pushed(&registry, "a/b/succeed", &images::succeed()?).await?;
    served_as_pushed(&registry, "empty", &images::empty()?).await?;
    served_as_pushed(&registry, "multi", &images::multi_platform(&["amd64", "arm64"])?).await?;
    let artifact = images::artifact("application/vnd.example.thing", b"thing")?;
    served_as_pushed(&registry, "artifact", &artifact).await?;
    assert_eq!(delete(registry.endpoint(), "empty", "1").await?, deleting_a_tag);

    let accesses = registry.accesses()?;
    let push =
        accesses.iter().find(|access| access.method == "PUT" && access.path == "/v2/pause/manifests/1");
    assert_eq!(push.map(|access| access.status), Some(201), "{accesses:#?}");
    let last = accesses.last().map(|access| (access.method.as_str(), access.status));
    assert_eq!(last, Some(("DELETE", deleting_a_tag.as_u16())));
    Ok(())
}

#[tokio::test]
async fn release_3_serves_every_kind_of_image_and_deletes_tags() -> Result<()> {
    every_kind_of_image(Release::V3, StatusCode::ACCEPTED).await
}

#[tokio::test]
#[ignore = "needs Debian's docker-registry; `make test` as root installs and tests it"]
async fn release_2_serves_every_kind_of_image_and_refuses_to_delete_tags() -> Result<()> {
    every_kind_of_image(Release::V2, StatusCode::BAD_REQUEST).await
}

#[tokio::test]
async fn passwords_and_certificates_are_asked_for() -> Result<()> {
    let registry = Registry::start(RegistryConfig::new().tls().user("ada", "one").user("bob", "two")).await?;
    let image = images::empty()?;
    registry.endpoint().push("private", "1", &image).await?;
    let media_type = &image.root().media_type;
    for (credentials, wanted) in [
        (None, StatusCode::UNAUTHORIZED),
        (Some(("ada", "two")), StatusCode::UNAUTHORIZED),
        (Some(("bob", "two")), StatusCode::OK),
    ] {
        let mut endpoint = registry.endpoint().clone();
        endpoint.credentials = credentials.map(|(user, password)| (user.to_owned(), password.to_owned()));
        assert_eq!(fetch(&endpoint, "private", "1", media_type).await?.status(), wanted, "{credentials:?}");
    }
    let mut distrusting = registry.endpoint().clone();
    distrusting.authority =
        Some(fairlead_testkit::pki::Authority::new("somebody else")?.certificate().to_owned());
    assert!(fetch(&distrusting, "private", "1", media_type).await.is_err());
    Ok(())
}

#[tokio::test]
async fn content_survives_a_kill_and_can_be_served_read_only() -> Result<()> {
    let registry = Registry::start(RegistryConfig::new()).await?;
    let image = images::empty()?;
    registry.endpoint().push("kept", "1", &image).await?;
    assert_eq!(delete(registry.endpoint(), "kept", &image.digest()).await?, StatusCode::METHOD_NOT_ALLOWED);
    registry.kill().await?;
    assert!(fetch(registry.endpoint(), "kept", "1", &image.root().media_type).await.is_err());
    registry.start_again().await?;
    assert_eq!(
        fetch(registry.endpoint(), "kept", "1", &image.root().media_type).await?.status(),
        StatusCode::OK
    );

    let mirror = Registry::start(RegistryConfig::new().read_only(registry.directory())).await?;
    assert_eq!(
        fetch(mirror.endpoint(), "kept", "1", &image.root().media_type).await?.status(),
        StatusCode::OK
    );
    let refused = mirror.endpoint().push("new", "1", &images::artifact("x/y", b"new")?).await.unwrap_err();
    assert!(format!("{refused:#}").contains("405"), "{refused:#}");
    Ok(())
}
