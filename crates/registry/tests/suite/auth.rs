//! Credentials: sent where they should be, in the right order, as seldom as possible.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use fairlead_domain::keyring::{IdentityKey, Keyring, SecretKind};
use fairlead_domain::reference::Host;
use fairlead_domain::verdict::VerdictKind;
use fairlead_registry::transport::resolver::{Resolve, Resolving};
use fairlead_registry::{Client, ProbeOptions};
use fairlead_testkit::eventually;
use fairlead_testkit::fake_registry::{Auth, Bearer, Effect, FakeRegistry, Fault, Route};
use fairlead_testkit::pki::Authority;

use crate::support::{
    client, client_for, image, in_background, logins, number, parse, probe, reference, settings, within,
};

async fn registry_with(auth: Auth) -> Result<FakeRegistry> {
    let registry = FakeRegistry::start().await?;
    registry.hold("team/app", "1", &image("a")?);
    registry.require(auth);
    Ok(registry)
}

#[tokio::test]
async fn a_password_is_asked_for_once_and_then_brought_along() -> Result<()> {
    let registry = registry_with(Auth::basic("ada", "secret")).await?;
    let image = reference(&registry, "team/app:1")?;
    let client = client();
    let credentials = logins(&image, &[("ada", "secret")]);
    for _ in 0..3 {
        assert!(probe(&client, &image, &credentials).await.is_available());
    }
    assert_eq!(registry.requests().len(), 4, "one challenge, three answers");
    let wrong = logins(&image, &[("ada", "wrong")]);
    assert_eq!(probe(&client, &image, &wrong).await.kind(), VerdictKind::Unauthorised);
    let verdict = probe(&client, &image, &[]).await;
    assert_eq!(verdict.kind(), VerdictKind::Unauthorised);
    assert!(verdict.reason().contains("no credential matches"), "{verdict}");
    Ok(())
}

#[tokio::test]
async fn a_token_is_fetched_once_and_shared() -> Result<()> {
    let registry = registry_with(Auth::bearer(Bearer::new().user("ada", "secret"))).await?;
    registry.hold("team/other", "1", &image("b")?);
    let image = reference(&registry, "team/app:1")?;
    let client = client();
    let credentials = logins(&image, &[("ada", "secret")]);
    for _ in 0..3 {
        assert!(probe(&client, &image, &credentials).await.is_available());
    }
    assert_eq!(registry.count("GET", "/token"), 1);
    assert_eq!(registry.count("HEAD", "manifests"), 4, "one challenge, three answers");
    let token =
        registry.requests().into_iter().find(|request| request.path == "/token").expect("it was asked");
    assert!(
        token.query.contains("service=fake") && token.query.contains("scope=repository%3Ateam%2Fapp%3Apull")
    );
    assert!(token.query.contains("account=ada") && token.header("authorization").starts_with("Basic "));

    registry.forget_requests();
    let other = reference(&registry, "team/other:1")?;
    assert!(probe(&client, &other, &credentials).await.is_available());
    let order: Vec<_> = registry.requests().iter().map(|request| request.method.clone()).collect();
    assert_eq!(order, ["GET", "HEAD"], "what the registry wants is known by now");
    Ok(())
}

#[tokio::test]
async fn callers_that_need_the_same_token_share_one_request() -> Result<()> {
    let registry = registry_with(Auth::bearer(Bearer::new())).await?;
    for number in 0..20 {
        registry.hold("team/app", &number.to_string(), &image(&number.to_string())?);
    }
    registry.inject(Fault::new(Effect::Delay(Duration::from_millis(100))).on(Route::Token));
    let client = client();
    let mut images = Vec::new();
    for number in 0..20 {
        images.push(reference(&registry, &format!("team/app:{number}"))?);
    }
    let probes = images.iter().map(|image| probe(&client, image, &[]));
    let verdicts = futures::future::join_all(probes).await;
    assert!(verdicts.iter().all(fairlead_domain::verdict::Verdict::is_available), "{verdicts:?}");
    assert_eq!(registry.count("GET", "/token"), 1);
    Ok(())
}

#[tokio::test]
async fn a_token_that_ended_or_was_revoked_is_replaced() -> Result<()> {
    let bearer = Bearer { lifetime: Some(Duration::from_millis(500)), ..Bearer::new() };
    let registry = registry_with(Auth::bearer(bearer)).await?;
    let image = reference(&registry, "team/app:1")?;
    let client = client();
    assert!(probe(&client, &image, &[]).await.is_available());
    tokio::time::sleep(Duration::from_millis(600)).await;
    assert!(probe(&client, &image, &[]).await.is_available());
    assert_eq!(registry.count("GET", "/token"), 2, "an old token is not even tried");

    let registry = registry_with(Auth::bearer(Bearer::new())).await?;
    let image = reference(&registry, "team/app:1")?;
    assert!(probe(&client, &image, &[]).await.is_available());
    registry.revoke_tokens();
    assert!(probe(&client, &image, &[]).await.is_available());
    assert_eq!(registry.count("GET", "/token"), 2);
    Ok(())
}

#[tokio::test]
async fn a_registry_may_know_a_repository_under_another_name() -> Result<()> {
    let bearer = Bearer { scope_prefix: "proxy/".into(), ..Bearer::new() };
    let registry = registry_with(Auth::bearer(bearer)).await?;
    let image = reference(&registry, "team/app:1")?;
    let client = client();
    assert!(probe(&client, &image, &[]).await.is_available());
    registry.forget_requests();
    assert!(probe(&client, &image, &[]).await.is_available());
    assert_eq!(registry.requests().len(), 1, "its name for the repository is remembered");
    Ok(())
}

#[tokio::test]
async fn newer_token_servers_take_a_form() -> Result<()> {
    let bearer = Bearer { post_only: true, ..Bearer::new().user("ada", "se cret&") };
    let registry = registry_with(Auth::bearer(bearer)).await?;
    let image = reference(&registry, "team/app:1")?;
    assert!(probe(&client(), &image, &logins(&image, &[("ada", "se cret&")])).await.is_available());
    assert_eq!(registry.count("POST", "/token"), 1);

    let bearer = Bearer { refresh_tokens: vec!["identity".into()], ..Bearer::new().user("ada", "x") };
    let registry = registry_with(Auth::bearer(bearer)).await?;
    let image = reference(&registry, "team/app:1")?;
    assert!(probe(&client(), &image, &logins(&image, &[("<token>", "identity")])).await.is_available());
    assert_eq!((registry.count("POST", "/token"), registry.count("GET", "/token")), (1, 0));
    assert!(!probe(&client(), &image, &logins(&image, &[("<token>", "other")])).await.is_available());
    Ok(())
}

#[tokio::test]
async fn the_token_servers_refusals_have_their_own_verdicts() -> Result<()> {
    for (status, expected) in [
        (401, VerdictKind::Unauthorised),
        (403, VerdictKind::Forbidden),
        (302, VerdictKind::Malformed),
        (404, VerdictKind::Malformed),
        (410, VerdictKind::Malformed),
        (429, VerdictKind::RateLimited),
        (500, VerdictKind::Unreachable),
    ] {
        let registry = registry_with(Auth::bearer(Bearer::new())).await?;
        registry.inject(Fault::status(status).on(Route::Token));
        let verdict = probe(&client(), &reference(&registry, "team/app:1")?, &[]).await;
        assert_eq!(verdict.kind(), expected, "{status}: {verdict}");
        assert!(verdict.reason().contains("token server"), "{verdict}");
    }
    let registry = registry_with(Auth::bearer(Bearer::new())).await?;
    registry.inject(Fault::new(Effect::Answer(200, "application/json", b"{}".to_vec())).on(Route::Token));
    let verdict = probe(&client(), &reference(&registry, "team/app:1")?, &[]).await;
    assert_eq!(verdict.kind(), VerdictKind::Malformed, "{verdict}");
    Ok(())
}

#[tokio::test]
async fn a_hiccup_of_the_token_server_passes() -> Result<()> {
    for effect in [Effect::Drop, Effect::Status(502), Effect::Status(500), Effect::Truncate(5)] {
        let registry = registry_with(Auth::bearer(Bearer::new())).await?;
        registry.inject(Fault::new(effect.clone()).on(Route::Token).times(1));
        let verdict = probe(&client(), &reference(&registry, "team/app:1")?, &[]).await;
        assert!(verdict.is_available(), "{effect:?}: {verdict}");
        assert_eq!(registry.count("GET", "/token"), 2, "{effect:?}");
    }
    let bearer = Bearer { refresh_tokens: vec!["identity".into()], ..Bearer::new().user("ada", "x") };
    let registry = registry_with(Auth::bearer(bearer)).await?;
    registry.inject(Fault::status(502).on(Route::Token));
    let image = reference(&registry, "team/app:1")?;
    let verdict = probe(&client(), &image, &logins(&image, &[("<token>", "identity")])).await;
    assert_eq!(verdict.kind(), VerdictKind::Unreachable, "{verdict}");
    assert_eq!(registry.count("POST", "/token"), 1, "who knows what a second one would do");
    Ok(())
}

#[tokio::test]
async fn one_connection_is_enough_for_every_way_of_asking() -> Result<()> {
    let bearer = Bearer { post_only: true, ..Bearer::new().user("ada", "secret") };
    let registry = registry_with(Auth::bearer(bearer)).await?;
    let client = client_for(&registry.host(), |settings| settings.budget.connections = number(1))?;
    let image = reference(&registry, "team/app:1")?;
    let context = within(Duration::from_secs(3));
    let credentials = logins(&image, &[("ada", "secret")]);
    let verdict = client.probe(&image, &credentials, ProbeOptions::default(), &context).await;
    assert!(verdict.is_available(), "{verdict}");
    Ok(())
}

#[tokio::test]
async fn a_pod_does_not_wait_for_a_token_that_stands_in_line_in_the_background() -> Result<()> {
    let registry = registry_with(Auth::bearer(Bearer::new())).await?;
    registry.hold("team/app", "2", &image("b")?);
    let client = client_for(&registry.host(), |settings| settings.budget.connections = number(2))?;
    assert!(!probe(&client, &reference(&registry, "team/other:1")?, &[]).await.is_available());
    registry.inject(Fault::new(Effect::Hang).path("team/busy"));
    let mut waiting = Vec::new();
    // The first takes the only connection that there is for the background, so the second has to wait for its token.
    for name in ["team/busy:1", "team/app:1"] {
        let (client, image) = (client.clone(), reference(&registry, name)?);
        waiting.push(tokio::spawn(async move {
            client.probe(&image, &[], ProbeOptions::default(), &in_background()).await
        }));
        eventually(Duration::from_secs(5), || async {
            ensure!(registry.count("HEAD", "team/busy") == 1, "nobody asked");
            Ok(())
        })
        .await?;
    }
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
    let image = reference(&registry, "team/app:2")?;
    let verdict = client.probe(&image, &[], ProbeOptions::default(), &within(Duration::from_secs(2))).await;
    assert!(verdict.is_available(), "{verdict}");
    assert_eq!(registry.count("HEAD", "team/app/manifests/1"), 0, "what can wait still does");
    for task in waiting {
        task.abort();
    }
    Ok(())
}

#[tokio::test]
async fn several_credentials_are_tried_in_order_and_the_first_failure_is_told() -> Result<()> {
    let registry = registry_with(Auth::basic("ada", "secret")).await?;
    let image = reference(&registry, "team/app:1")?;
    let second = logins(&image, &[("bob", "wrong"), ("ada", "secret"), ("eve", "wrong")]);
    assert!(probe(&client(), &image, &second).await.is_available());
    let tried: Vec<_> =
        registry.requests().iter().map(|request| request.header("authorization").to_owned()).collect();
    assert_eq!(tried.len(), 3, "nobody, bob, ada; eve is not needed: {tried:?}");

    let none = logins(&image, &[("bob", "wrong"), ("eve", "wrong")]);
    registry.forget_requests();
    assert_eq!(probe(&client(), &image, &none).await.kind(), VerdictKind::Unauthorised);
    let anonymous =
        registry.requests().iter().filter(|request| request.header("authorization").is_empty()).count();
    assert_eq!(anonymous, 1, "the question how to log in, and no attempt to do without");
    Ok(())
}

#[tokio::test]
async fn credentials_share_one_deadline() -> Result<()> {
    let registry = registry_with(Auth::basic("ada", "secret")).await?;
    let image = reference(&registry, "team/app:1")?;
    registry.inject(Fault::new(Effect::Delay(Duration::from_millis(250))));
    let many: Vec<(String, &str)> = (0..10).map(|number| (format!("user{number}"), "wrong")).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(user, password)| (user.as_str(), *password)).collect();
    let verdict = client()
        .probe(
            &image,
            &logins(&image, &many),
            fairlead_registry::ProbeOptions::default(),
            &crate::support::within(Duration::from_millis(800)),
        )
        .await;
    assert!(!verdict.is_available());
    // Each takes 250 ms.
    assert!(registry.requests().len() <= 4, "{}", registry.requests().len());
    Ok(())
}

#[tokio::test]
async fn passwords_and_tokens_stay_out_of_every_text() -> Result<()> {
    let registry = registry_with(Auth::bearer(Bearer::new().user("ada", "hunter2"))).await?;
    let image = reference(&registry, "team/app:1")?;
    let client = client();
    let credentials = logins(&image, &[("ada", "hunter2")]);
    assert!(probe(&client, &image, &credentials).await.is_available());
    registry.inject(Fault::status(401).on(Route::Manifests));
    let verdict = probe(&client, &image, &credentials).await;
    let remote =
        client.repository(&image.repository(), credentials.clone(), fairlead_registry::Right::Pull)?;
    for text in
        [format!("{verdict:?}"), format!("{client:?}"), format!("{remote:?}"), format!("{credentials:?}")]
    {
        assert!(!text.contains("hunter2") && !text.contains("token-"), "{text}");
    }
    Ok(())
}

/// Answers for every name with the address of one server.
struct OneServer(SocketAddr);

impl Resolve for OneServer {
    fn resolve(&self, _: &str) -> Resolving {
        let address = self.0;
        Box::pin(async move { Ok(vec![address]) })
    }
}

#[tokio::test]
async fn docker_hubs_credentials_are_really_sent() -> Result<()> {
    let authority = Authority::new("hub")?;
    let identity = authority.issue(&["registry-1.docker.io", "auth.docker.io"])?;
    let hub = FakeRegistry::start_tls(&identity).await?;
    hub.hold("library/nginx", "1.27", &image("nginx")?);
    let bearer =
        Bearer { realm: Some("https://auth.docker.io/token".into()), ..Bearer::new().user("ada", "secret") };
    hub.require(Auth::bearer(bearer));
    let directory = tempfile::tempdir()?;
    let ca_file = directory.path().join("ca.pem");
    std::fs::write(&ca_file, authority.certificate())?;
    let mut settings = settings();
    let mut own = settings.default.clone();
    own.ca_file = Some(ca_file);
    settings.set(&Host::parse("docker.io")?, own);
    let client = Client::with_resolver(settings, Arc::new(OneServer(hub.address())));

    let image = parse("nginx:1.27")?;
    for key in ["https://index.docker.io/v1/", "docker.io", "index.docker.io"] {
        let mut keyring = Keyring::new(IdentityKey::new([1; 32]));
        let config = format!(r#"{{"auths":{{"{key}":{{"username":"ada","password":"secret"}}}}}}"#);
        keyring.add(SecretKind::DockerConfigJson, config.as_bytes())?;
        let verdict = probe(&client, &image, &keyring.lookup(&image.repository())).await;
        assert!(verdict.is_available(), "{key}: {verdict}");
    }
    let token = hub.requests().into_iter().find(|request| request.path == "/token").expect("it was asked");
    assert!(token.header("authorization").starts_with("Basic "));
    assert!(token.query.contains("library%2Fnginx"));
    Ok(())
}
