//! The router between a client that asks like containerd and registries that log what they are asked.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fairlead_domain::keyring::{IdentityKey, Keyring};
use fairlead_node::router::{Router, RouterSettings};
use fairlead_plan::node_config::NodeConfig;
use fairlead_testkit::fake_registry::{Auth, Bearer, Effect, FakeRegistry, Fault, Route};
use fairlead_testkit::images::{self, Image};
use prometheus_client::registry::Registry;
use reqwest::{Method, Response, StatusCode, redirect};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::{both, digest, digest_never, plan, tag, tag_never};

/// The registry of all images here. Nothing listens there: a router has no business with it.
const SOURCE: &str = "hub.test";

pub(crate) struct Node {
    pub(crate) router: Arc<Router>,
    address: String,
    client: reqwest::Client,
    stop: CancellationToken,
}

impl Node {
    pub(crate) async fn start(config: NodeConfig) -> Result<Self> {
        Self::start_with(config, RouterSettings::default(), keyring()).await
    }

    async fn start_with(config: NodeConfig, settings: RouterSettings, keyring: Keyring) -> Result<Self> {
        fairlead_testkit::install_crypto();
        let router = Arc::new(Router::new(settings, keyring));
        follow(&router, config);
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let stop = CancellationToken::new();
        tokio::spawn(Arc::clone(&router).serve(listener, stop.clone()));
        let client = reqwest::Client::builder()
            .no_proxy()
            .tls_certs_only([])
            .redirect(redirect::Policy::none())
            .build()?;
        Ok(Self { router, address, client, stop })
    }

    async fn ask(&self, method: Method, path: &str) -> Result<Response> {
        let url = format!("http://{}/v2/{path}?ns={SOURCE}", self.address);
        // A runtime that was asked for credentials before sends them; they are for the source.
        Ok(self
            .client
            .request(method, url)
            .header("Authorization", "Basic c291cmNlOnNlY3JldA==")
            .send()
            .await?)
    }

    pub(crate) async fn head(&self, path: &str) -> Result<Response> {
        self.ask(Method::HEAD, path).await
    }

    pub(crate) async fn get(&self, path: &str) -> Result<Response> {
        self.ask(Method::GET, path).await
    }

    /// Pulls like containerd: the headers of what was asked for, its manifest by digest, and everything in it.
    pub(crate) async fn pull(&self, repository: &str, reference: &str, image: &Image) -> Result<()> {
        let found = self.head(&format!("{repository}/manifests/{reference}")).await?;
        ensure!(found.status() == StatusCode::OK, "{reference}: {}", found.status());
        let resolved = found.headers()["docker-content-digest"].to_str()?.to_owned();
        ensure!(resolved == image.digest(), "{resolved}");
        for manifest in [image.root()].into_iter().chain(image.manifests()) {
            let content = self.get(&format!("{repository}/manifests/{}", manifest.digest())).await?;
            ensure!(content.headers()["content-type"] == manifest.media_type.as_str());
            ensure!(content.bytes().await? == manifest.bytes, "the manifest differs");
        }
        for blob in image.blobs() {
            let content = self.get(&format!("{repository}/blobs/{}", blob.digest())).await?;
            ensure!(content.status() == StatusCode::OK, "{}", content.status());
            ensure!(content.content_length() == Some(blob.bytes.len() as u64));
            ensure!(content.bytes().await? == blob.bytes, "the blob differs");
        }
        Ok(())
    }

    /// The status line, which is all that containerd reports of a refusal.
    async fn status_line(&self, path: &str) -> Result<String> {
        let mut stream = tokio::net::TcpStream::connect(&self.address).await?;
        let request = format!("HEAD /v2/{path}?ns={SOURCE} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok(answer.lines().next().context("no answer")?.to_owned())
    }

    pub(crate) fn metrics(&self) -> Result<String> {
        let mut registry = Registry::default();
        self.router.register_metrics(&mut registry);
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &registry)?;
        Ok(page)
    }
}

/// Router and files follow other entries.
pub(crate) fn follow(router: &Router, config: NodeConfig) {
    let config = Arc::new(config);
    router.follow(Arc::clone(&config));
    router.files_follow(config);
}

impl Drop for Node {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn keyring() -> Keyring {
    Keyring::new(IdentityKey::new([7; 32]))
}

/// A mirror that holds the image in `copies/app` under the tag `1`.
pub(crate) async fn mirror(image: &Image) -> Result<(FakeRegistry, String)> {
    let registry = FakeRegistry::start().await?;
    registry.hold("copies/app", "1", image);
    let place = format!("{}/copies", registry.host());
    Ok((registry, place))
}

pub(crate) fn is_left_to_source(response: &Response) -> bool {
    response.status() == StatusCode::NOT_FOUND
}

#[tokio::test]
async fn a_repository_is_pulled_from_its_mirror_by_tag_and_by_digest() -> Result<()> {
    let image = images::multi_platform(&["amd64", "arm64"])?;
    let (registry, place) = mirror(&image).await?;
    let node = Node::start(plan(vec![both("hub.test/team", &[&place])], &[], &[])).await?;
    node.pull("team/app", "1", &image).await?;
    node.pull("team/app", &image.digest(), &image).await?;
    let host = registry.host();
    let page = node.metrics()?;
    let served = format!("fairlead_router_requests_total{{outcome=\"served\",registry=\"{host}\"}}");
    ensure!(page.contains(&served), "{page}");
    ensure!(registry.requests().iter().all(|request| request.header("authorization").is_empty()));
    // Other repositories of the registry are not concerned.
    ensure!(is_left_to_source(&node.head("other/app/manifests/1").await?));
    Ok(())
}

#[tokio::test]
async fn a_mirror_that_is_down_is_passed_over_and_the_next_one_serves() -> Result<()> {
    let image = images::holding("behind a dead mirror")?;
    let (registry, place) = mirror(&image).await?;
    let dead = FakeRegistry::start().await?;
    let gone = format!("{}/copies", dead.host());
    drop(dead);
    let node = Node::start(plan(vec![both("hub.test/team", &[&gone, &place])], &[], &[])).await?;
    node.pull("team/app", "1", &image).await?;
    drop(registry);
    ensure!(is_left_to_source(&node.head("team/app/manifests/1").await?), "both are down");
    Ok(())
}

#[tokio::test]
async fn a_mirror_that_accepts_connections_and_says_nothing_delays_one_request_by_two_seconds() -> Result<()>
{
    let silent = TcpListener::bind("127.0.0.1:0").await?;
    let gone = format!("{}/copies", silent.local_addr()?);
    let node = Node::start(plan(vec![both("hub.test/team", &[&gone])], &[], &[])).await?;
    let begun = Instant::now();
    ensure!(is_left_to_source(&node.head("team/app/manifests/1").await?));
    let first = begun.elapsed();
    ensure!(first > Duration::from_millis(1900) && first < Duration::from_secs(8), "{first:?}");
    let begun = Instant::now();
    for number in 0..10 {
        ensure!(is_left_to_source(&node.head(&format!("team/app/manifests/{number}")).await?));
    }
    ensure!(begun.elapsed() < Duration::from_millis(1900), "it is remembered: {:?}", begun.elapsed());
    Ok(())
}

#[tokio::test]
async fn content_of_a_tag_comes_from_the_mirror_for_tags() -> Result<()> {
    let image = images::multi_platform(&["amd64"])?;
    let (tags, tags_place) = mirror(&image).await?;
    let (digests, digests_place) = mirror(&image).await?;
    let policies = vec![tag("hub.test/team", &[&tags_place]), digest("hub.test/team", &[&digests_place])];
    let node = Node::start(plan(policies, &[], &[])).await?;
    node.pull("team/app", "1", &image).await?;
    ensure!(digests.requests().is_empty(), "{:?}", digests.requests());
    tags.forget_requests();
    node.pull("team/app", &image.digest(), &image).await?;
    ensure!(tags.requests().is_empty(), "{:?}", tags.requests());
    Ok(())
}

#[tokio::test]
async fn a_tag_without_mirrors_for_tags_is_left_to_the_source_with_its_content() -> Result<()> {
    let image = images::holding("by tag from the source")?;
    let (registry, place) = mirror(&image).await?;
    let node = Node::start(plan(vec![digest("hub.test/team", &[&place])], &[], &[])).await?;
    ensure!(is_left_to_source(&node.head("team/app/manifests/1").await?));
    ensure!(is_left_to_source(&node.get(&format!("team/app/manifests/{}", image.digest())).await?));
    ensure!(is_left_to_source(&node.get(&format!("team/app/blobs/{}", image.blobs()[0].digest())).await?));
    ensure!(registry.requests().is_empty(), "{:?}", registry.requests());
    Ok(())
}

#[tokio::test]
async fn a_closed_source_is_refused_in_the_status_line_with_the_policy_and_the_mirrors() -> Result<()> {
    let empty = FakeRegistry::start().await?;
    let place = format!("{}/copies", empty.host());
    let node = Node::start(plan(vec![tag_never("hub.test/team", &[&place])], &[], &[])).await?;
    let line = node.status_line("team/app/manifests/1").await?;
    ensure!(
        line.starts_with(
            "HTTP/1.1 403 hub.test/team/app is not pulled from its source: NeverContactSource for hub.test/team \
             in ImageTagMirrorSet hub.test/team; "
        ),
        "{line}"
    );
    ensure!(line.contains(&format!("{place}/app: it is not there")), "{line}");
    let body: serde_json::Value = node.get("team/app/manifests/1").await?.json().await?;
    ensure!(body["errors"][0]["code"] == "DENIED", "{body}");
    let digest = images::empty()?.digest();
    let refused = node.head(&format!("team/app/manifests/{digest}")).await?;
    ensure!(refused.status() == StatusCode::FORBIDDEN, "no mirror is for digests: {}", refused.status());
    let page = node.metrics()?;
    ensure!(
        page.contains("fairlead_router_requests_total{outcome=\"refused\",registry=\"hub.test\"} 3"),
        "{page}"
    );
    Ok(())
}

/// Its file names no source, so that it is closed while the router is not there.
#[tokio::test]
async fn the_open_part_of_a_registry_with_closed_parts_is_redirected_to_the_source() -> Result<()> {
    let node = Node::start(plan(vec![digest_never("hub.test/closed", &["m.test/x"])], &[], &[])).await?;
    let sent = node.head("open/app/manifests/1").await?;
    ensure!(sent.status() == StatusCode::TEMPORARY_REDIRECT, "{}", sent.status());
    ensure!(sent.headers()["location"] == "https://hub.test/v2/open/app/manifests/1", "{:?}", sent.headers());
    Ok(())
}

/// containerd has no other server than the router until the file changes, and takes 404 for the end of the pull.
#[tokio::test]
async fn an_opened_registry_is_redirected_to_its_source_until_its_file_is_written() -> Result<()> {
    let node = Node::start(plan(vec![digest_never("hub.test", &["m.test"])], &[], &[])).await?;
    let open = Arc::new(plan(vec![digest("hub.test/team", &["m.test/team"])], &[], &[]));
    node.router.follow(Arc::clone(&open));
    let sent = node.head("open/app/manifests/1").await?;
    ensure!(sent.status() == StatusCode::TEMPORARY_REDIRECT, "{}", sent.status());
    ensure!(sent.headers()["location"] == "https://hub.test/v2/open/app/manifests/1", "{:?}", sent.headers());
    node.router.files_follow(open);
    ensure!(is_left_to_source(&node.head("open/app/manifests/1").await?));
    Ok(())
}

#[tokio::test]
async fn registries_without_a_policy_count_as_one() -> Result<()> {
    let node = Node::start(plan(vec![tag("*.vendor.test", &["m.test/x"])], &[], &["shut.test"])).await?;
    for registry in ["one.test", "two.test", "a.vendor.test", "b.vendor.test", "shut.test"] {
        let url =
            format!("http://{}/v2/app/manifests/{}?ns={registry}", node.address, images::empty()?.digest());
        node.client.head(url).send().await?;
    }
    let page = node.metrics()?;
    for (outcome, registry, count) in
        [("source", "other", 2), ("source", "*.vendor.test", 2), ("refused", "shut.test", 1)]
    {
        let line = format!(
            "fairlead_router_requests_total{{outcome=\"{outcome}\",registry=\"{registry}\"}} {count}\n"
        );
        ensure!(page.contains(&line), "{line} {page}");
    }
    Ok(())
}

/// Storage behind a registry may answer HEAD otherwise than GET.
#[tokio::test]
async fn a_mirror_that_answers_get_alone_serves_layers() -> Result<()> {
    let image = images::holding("served to GET alone")?;
    for fault in [Fault::status(403), Fault::status(405), Fault::new(Effect::WithoutHeader("content-length"))]
    {
        let (registry, place) = mirror(&image).await?;
        registry.inject(fault.on(Route::Blobs).method("HEAD"));
        for redirects in [false, true] {
            let settings = RouterSettings { redirects, ..RouterSettings::default() };
            let config = plan(vec![tag_never("hub.test/team", &[&place])], &[], &[]);
            let node = Node::start_with(config, settings, keyring()).await?;
            if !redirects {
                node.pull("team/app", "1", &image).await?;
            }
            for blob in image.blobs() {
                // Blobs are known by the pull of their tag.
                node.head("team/app/manifests/1").await?;
                node.get(&format!("team/app/manifests/{}", image.digest())).await?;
                let found = node.head(&format!("team/app/blobs/{}", blob.digest())).await?;
                ensure!(found.status() == StatusCode::OK, "{}", found.status());
                ensure!(found.headers()["content-length"] == blob.bytes.len().to_string().as_str());
            }
        }
    }
    Ok(())
}

/// The runtime trusts only what the node trusts.
#[tokio::test]
async fn layers_of_mirrors_with_own_authorities_are_not_redirected() -> Result<()> {
    let image = images::holding("behind an authority of its own")?;
    let registry = fairlead_testkit::Registry::start(fairlead_testkit::RegistryConfig::new().tls()).await?;
    registry.endpoint().push("copies/app", "1", &image).await?;
    let directory = tempfile::TempDir::new()?;
    let file = directory.path().join("ca.pem");
    let settings =
        RouterSettings { redirects: true, authorities: Some(file.clone()), ..RouterSettings::default() };
    let config = plan(vec![both("hub.test/team", &[&format!("{}/copies", registry.host())])], &[], &[]);
    let node = Node::start_with(config, settings, keyring()).await?;
    ensure!(is_left_to_source(&node.head("team/app/manifests/1").await?), "the file may come later");
    std::fs::write(&file, registry.endpoint().authority.clone().context("an authority")?)?;
    node.router.look_for_authorities();
    fairlead_testkit::eventually(Duration::from_secs(30), || node.pull("team/app", "1", &image)).await
}

#[tokio::test]
async fn wrong_content_never_ends_well_and_is_not_asked_for_again() -> Result<()> {
    let image = images::holding("spoiled on its way")?;
    let (registry, place) = mirror(&image).await?;
    let node = Node::start(plan(vec![both("hub.test/team", &[&place])], &[], &[])).await?;
    registry.inject(Fault::new(Effect::Corrupt).on(Route::Blobs).method("GET"));
    for blob in image.blobs() {
        let path = format!("team/app/blobs/{}", blob.digest());
        let answer = node.get(&path).await;
        // Short content is found wrong before anything of it was sent.
        let is_whole = match answer {
            Ok(answer) if answer.status() == StatusCode::OK => answer.bytes().await.is_ok(),
            _ => false,
        };
        ensure!(!is_whole, "wrong content was passed on");
        ensure!(is_left_to_source(&node.get(&path).await?));
    }
    registry.inject(Fault::new(Effect::Corrupt).on(Route::Manifests).method("GET"));
    ensure!(is_left_to_source(&node.get(&format!("team/app/manifests/{}", image.digest())).await?));
    Ok(())
}

/// What the runtime has of a large layer cannot be taken back, so that pull fails and the next one goes elsewhere.
#[tokio::test]
async fn a_large_layer_that_is_wrong_breaks_off_and_comes_from_the_next_mirror_after_that() -> Result<()> {
    let content: Vec<u8> = (0..3_000_000_u32).map(|number| number.to_le_bytes()[0]).collect();
    let image = images::ImageBuilder::new().file("/large", &content, 0o644)?.build()?;
    let ((spoiled, first), (whole, second)) = (mirror(&image).await?, mirror(&image).await?);
    let layer = &image.blobs()[0];
    let path = format!("team/app/blobs/{}", layer.digest());
    spoiled.inject(Fault::new(Effect::Corrupt).on(Route::Blobs).method("GET"));
    let node = Node::start(plan(vec![digest_never("hub.test/team", &[&first, &second])], &[], &[])).await?;
    let answer = node.get(&path).await?;
    ensure!(answer.status() == StatusCode::OK && answer.bytes().await.is_err(), "its end has to be missing");
    ensure!(node.get(&path).await?.bytes().await? == layer.bytes, "the second mirror serves it");
    // The first one is asked again where no other has it, and what it sent before is not forgotten.
    whole.lose_blob("copies/app", &layer.digest());
    spoiled.lose_blob("copies/app", &layer.digest());
    let refused = node.get(&path).await?;
    ensure!(refused.status() == StatusCode::FORBIDDEN, "{}", refused.status());
    let said = refused.text().await?;
    ensure!(said.contains("; it sent wrong content before"), "{said}");
    Ok(())
}

#[tokio::test]
async fn mirrors_get_their_own_credentials_and_none_of_the_runtime() -> Result<()> {
    let image = images::holding("behind a login")?;
    let (registry, place) = mirror(&image).await?;
    registry.require(Auth::Basic(HashMap::from([("robot".to_owned(), "secret".to_owned())])));
    let settings = || RouterSettings { redirects: true, ..RouterSettings::default() };
    let config = || plan(vec![both("hub.test/team", &[&place])], &[], &[]);
    let without = Node::start_with(config(), settings(), keyring()).await?;
    ensure!(is_left_to_source(&without.head("team/app/manifests/1").await?));
    let mut own = keyring();
    own.add_login(&registry.host(), b"robot", b"secret");
    without.router.use_credentials(own);
    without.pull("team/app", "1", &image).await?;
    let sent: Vec<String> =
        registry.requests().iter().map(|one| one.header("authorization").to_owned()).collect();
    ensure!(sent.iter().all(|header| header.is_empty() || header == "Basic cm9ib3Q6c2VjcmV0"), "{sent:?}");
    Ok(())
}

#[tokio::test]
async fn a_token_server_elsewhere_gets_the_password_of_a_mirror_only_if_it_is_listed() -> Result<()> {
    let image = images::holding("behind a token server")?;
    let (registry, place) = mirror(&image).await?;
    registry.require(Auth::Bearer(Bearer {
        users: HashMap::from([("robot".to_owned(), "secret".to_owned())]),
        anonymous_pull: false,
        realm: Some(format!("http://localhost:{}/token", registry.address().port())),
        ..Bearer::default()
    }));
    for (token_hosts, is_served) in [(vec![], false), (vec!["localhost".to_owned()], true)] {
        let mut own = keyring();
        own.add_login(&registry.host(), b"robot", b"secret");
        let settings = RouterSettings { token_hosts, ..RouterSettings::default() };
        let config = plan(vec![both("hub.test/team", &[&place])], &[], &[]);
        let node = Node::start_with(config, settings, own).await?;
        let found = node.head("team/app/manifests/1").await?;
        ensure!((found.status() == StatusCode::OK) == is_served, "{}", found.status());
    }
    Ok(())
}

#[tokio::test]
async fn layers_are_redirected_where_that_is_permitted() -> Result<()> {
    let image = images::holding("fetched by the runtime itself")?;
    let (registry, place) = mirror(&image).await?;
    let settings = RouterSettings { redirects: true, ..RouterSettings::default() };
    let node =
        Node::start_with(plan(vec![both("hub.test/team", &[&place])], &[], &[]), settings, keyring()).await?;
    let blob = &image.blobs()[0];
    let sent = node.get(&format!("team/app/blobs/{}", blob.digest())).await?;
    ensure!(sent.status() == StatusCode::TEMPORARY_REDIRECT, "{}", sent.status());
    let location = sent.headers()["location"].to_str()?;
    ensure!(location == format!("{}/v2/copies/app/blobs/{}", registry.url(), blob.digest()), "{location}");
    Ok(())
}

#[tokio::test]
async fn a_mirror_that_lacks_a_layer_is_helped_by_the_next_one() -> Result<()> {
    let image = images::holding("in two mirrors")?;
    let ((partial, first), (_whole, second)) = (mirror(&image).await?, mirror(&image).await?);
    for blob in image.blobs() {
        partial.lose_blob("copies/app", &blob.digest());
    }
    let node = Node::start(plan(vec![both("hub.test/team", &[&first, &second])], &[], &[])).await?;
    node.pull("team/app", "1", &image).await
}

#[tokio::test]
async fn entries_can_change_between_two_requests() -> Result<()> {
    let image = images::holding("moved")?;
    let (_registry, place) = mirror(&image).await?;
    let node = Node::start(plan(Vec::new(), &[], &[])).await?;
    ensure!(is_left_to_source(&node.head("team/app/manifests/1").await?));
    follow(&node.router, plan(vec![both("hub.test/team", &[&place])], &[], &[]));
    node.pull("team/app", "1", &image).await
}

/// Under every policy a pull may meet on its way: it goes on with what is permitted then, and never goes to a source
/// that has been closed meanwhile.
#[tokio::test]
async fn a_pull_goes_on_by_the_policies_that_hold_when_they_change_in_between() -> Result<()> {
    let image = images::holding("while policies change")?;
    let (first, first_place) = mirror(&image).await?;
    let (second, second_place) = mirror(&image).await?;
    let blob = format!("team/app/blobs/{}", image.blobs()[0].digest());
    let manifest = format!("team/app/manifests/{}", image.digest());
    let node = Node::start(plan(vec![both("hub.test/team", &[&first_place])], &[], &[])).await?;
    let begin = async || -> Result<()> {
        follow(&node.router, plan(vec![both("hub.test/team", &[&first_place])], &[], &[]));
        ensure!(node.head("team/app/manifests/1").await?.status() == StatusCode::OK);
        ensure!(node.get(&manifest).await?.status() == StatusCode::OK);
        first.forget_requests();
        Ok(())
    };
    begin().await?;
    follow(&node.router, plan(vec![tag_never("hub.test/team", &[&second_place])], &[], &[]));
    ensure!(node.get(&blob).await?.bytes().await? == image.blobs()[0].bytes, "the new mirror serves");
    ensure!(first.requests().is_empty(), "{:?}", first.requests());
    begin().await?;
    follow(&node.router, plan(Vec::new(), &[], &["hub.test"]));
    ensure!(node.get(&blob).await?.status() == StatusCode::FORBIDDEN, "closed in the middle of the pull");
    begin().await?;
    follow(&node.router, plan(Vec::new(), &[], &[]));
    ensure!(is_left_to_source(&node.get(&blob).await?), "the policy is gone");
    ensure!(first.requests().is_empty() && !second.requests().is_empty());
    Ok(())
}
