//! Registries that mean harm, and settings that open doors on purpose.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use fairlead_domain::reference::Host;
use fairlead_domain::verdict::VerdictKind;
use fairlead_registry::manifest::{OCI_MANIFEST, Selector};
use fairlead_registry::transport::resolver::{Resolve, Resolving};
use fairlead_registry::{Client, ErrorClass, Right};
use fairlead_testkit::eventually;
use fairlead_testkit::fake_registry::{Auth, Bearer, Effect, FakeRegistry, Fault, Route};
use fairlead_testkit::pki::{self, Authority};

use crate::support::{
    available_again, client, client_for, image, logins, parse, patiently, probe, reference,
    registry_with_app, settings,
};

#[tokio::test]
async fn credentials_do_not_follow_a_redirect_to_another_host() -> Result<()> {
    let (registry, storage) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    let digest = registry.hold("app", "1", &image("a")?);
    storage.hold("app", "1", &image("a")?);
    registry.require(Auth::basic("ada", "secret"));
    let elsewhere = format!("{}/v2/app/manifests/1?signature=abc", storage.url());
    let image = reference(&registry, "app:1")?;
    let client = client();
    let credentials = logins(&image, &[("ada", "secret")]);
    assert!(probe(&client, &image, &credentials).await.is_available());
    registry.inject(Fault::new(Effect::Redirect(elsewhere)).on(Route::Manifests));
    let verdict = probe(&client, &image, &credentials).await;
    assert_eq!(verdict.digest(), Some(digest.parse()?), "{verdict}");
    let seen = storage.requests();
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].header("authorization"), "");
    assert!(registry.requests().last().is_some_and(|last| !last.header("authorization").is_empty()));
    Ok(())
}

#[tokio::test]
async fn a_redirect_into_the_network_is_refused() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let image = reference(&registry, "app:1")?;
    for target in [
        "http://169.254.169.254/latest/meta-data/",
        "http://[::ffff:169.254.169.254]/latest/",
        "http://10.0.0.1/v2/",
        "http://192.168.0.1/v2/",
        "file:///etc/passwd",
    ] {
        registry.heal();
        registry.inject(Fault::new(Effect::Redirect(target.into())));
        let verdict = probe(&client(), &image, &[]).await;
        assert_eq!(verdict.kind(), VerdictKind::Malformed, "{target}: {verdict}");
        assert!(verdict.reason().contains("not followed"), "{target}: {verdict}");
    }
    registry.heal();
    registry.inject(Fault::new(Effect::Redirect("/v2/app/manifests/1".into())));
    assert_eq!(probe(&client(), &image, &[]).await.kind(), VerdictKind::Malformed, "a circle ends");
    Ok(())
}

/// Knows two names: a public registry that is really the test's, and one that leads to a chosen address.
struct Names {
    registry: SocketAddr,
    inside: SocketAddr,
}

impl Resolve for Names {
    fn resolve(&self, name: &str) -> Resolving {
        let address = if name == "inside.example.net" { self.inside } else { self.registry };
        Box::pin(async move { Ok(vec![address]) })
    }
}

#[tokio::test]
async fn a_name_is_judged_by_what_it_resolves_to() -> Result<()> {
    let authority = Authority::new("registry")?;
    let registry =
        FakeRegistry::start_tls(&authority.issue(&["r.example.com", "inside.example.net"])?).await?;
    let directory = tempfile::tempdir()?;
    let ca_file = directory.path().join("ca.pem");
    std::fs::write(&ca_file, authority.certificate())?;
    let port = registry.address().port();
    let host = format!("r.example.com:{port}");
    for (inside, kind, reason) in [
        ("169.254.169.254", VerdictKind::Malformed, "link-local"),
        ("10.0.0.1", VerdictKind::Malformed, "private"),
        // The registry is on loopback itself, so loopback is open to it.
        ("127.0.0.1", VerdictKind::NotFound, ""),
    ] {
        let mut settings = settings();
        let mut own = settings.default.clone();
        own.ca_file = Some(ca_file.clone());
        settings.set(&Host::parse(&host)?, own);
        let names = Names { registry: registry.address(), inside: SocketAddr::new(inside.parse()?, port) };
        let client = Client::with_resolver(settings, Arc::new(names));
        registry.heal();
        let target = format!("https://inside.example.net:{port}/v2/other/manifests/1");
        registry.inject(Fault::new(Effect::Redirect(target)).path("/app/"));
        let verdict = probe(&client, &parse(&format!("{host}/app:1"))?, &[]).await;
        assert_eq!(verdict.kind(), kind, "{inside}: {verdict}");
        assert!(verdict.reason().contains(reason), "{inside}: {verdict}");
    }
    Ok(())
}

#[tokio::test]
async fn a_foreign_token_server_gets_no_password() -> Result<()> {
    let (registry, thief) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    registry.hold("app", "1", &image("a")?);
    thief.require(Auth::bearer(Bearer::new()));
    // The same machine under another name is another host.
    let realm = format!("http://localhost:{}/token", thief.address().port());
    registry.require(Auth::bearer(Bearer { realm: Some(realm), ..Bearer::new() }));
    let image = reference(&registry, "app:1")?;
    let credentials = logins(&image, &[("ada", "secret")]);
    let verdict = probe(&client(), &image, &credentials).await;
    assert_eq!(verdict.kind(), VerdictKind::Unauthorised, "{verdict}");
    assert!(verdict.reason().contains("tokenHosts"), "{verdict}");
    assert_eq!(thief.requests().len(), 0, "not even asked");

    probe(&client(), &image, &[]).await;
    assert_eq!(thief.count("GET", "/token"), 1, "without a password there is nothing to steal");
    assert_eq!(thief.requests()[0].header("authorization"), "");

    let trusting = client_for(&registry.host(), |settings| settings.token_hosts = vec!["localhost".into()])?;
    probe(&trusting, &image, &credentials).await;
    assert!(thief.requests().last().is_some_and(|last| last.header("authorization").starts_with("Basic ")));
    Ok(())
}

#[tokio::test]
async fn a_token_server_that_redirects_gets_no_second_chance() -> Result<()> {
    let (registry, thief) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    registry.require(Auth::bearer(Bearer::new().user("ada", "secret")));
    registry.inject(Fault::new(Effect::Redirect(format!("{}/token", thief.url()))).on(Route::Token));
    let image = reference(&registry, "app:1")?;
    let verdict = probe(&client(), &image, &logins(&image, &[("ada", "secret")])).await;
    assert_eq!(verdict.kind(), VerdictKind::Malformed, "{verdict}");
    assert!(verdict.reason().contains("its token server answers with status 307"), "{verdict}");
    assert_eq!(thief.requests().len(), 0);
    Ok(())
}

#[tokio::test]
async fn a_registry_cannot_give_anothers_token_server_a_bad_name() -> Result<()> {
    let authority = Authority::new("private")?;
    let registry = FakeRegistry::start_tls(&authority.issue(&["127.0.0.1", "localhost"])?).await?;
    // It is another host by this name.
    let realm = Some(format!("https://localhost:{}/token", registry.address().port()));
    registry.require(Auth::bearer(Bearer { realm, ..Bearer::new() }));
    let directory = tempfile::tempdir()?;
    let ca_file = directory.path().join("ca.pem");
    std::fs::write(&ca_file, authority.certificate())?;
    let client = client_for(&registry.host(), |settings| settings.ca_file = Some(ca_file))?;

    let stranger = FakeRegistry::start().await?;
    for scheme in ["https", "http"] {
        let realm = Some(format!("{scheme}://localhost:{}/token", registry.address().port()));
        stranger.require(Auth::bearer(Bearer { realm, ..Bearer::new() }));
        for number in 0..4 {
            let verdict = probe(&client, &reference(&stranger, &format!("app:{number}"))?, &[]).await;
            assert_ne!(
                verdict.kind(),
                VerdictKind::Unauthorised,
                "its authority is not known here: {verdict}"
            );
        }
    }
    registry.hold("team/app", "1", &image("a")?);
    let verdict = probe(&client, &reference(&registry, "team/app:1")?, &[]).await;
    assert!(verdict.is_available(), "{verdict}");
    Ok(())
}

#[tokio::test]
async fn plain_http_is_for_loopback_and_where_configured() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    registry.hold("app", "1", &image("a")?);
    let port = registry.address().port();
    let host = format!("r.example.com:{port}");
    let image = parse(&format!("{host}/app:1"))?;
    let names = || Arc::new(Names { registry: registry.address(), inside: registry.address() });
    let strict = Client::with_resolver(settings(), names());
    let verdict = probe(&strict, &image, &[]).await;
    assert_eq!(verdict.kind(), VerdictKind::TlsError, "{verdict}");
    assert_eq!(registry.requests().len(), 0);

    let mut settings = settings();
    let mut own = settings.default.clone();
    own.plain_http = true;
    settings.set(&Host::parse(&host)?, own);
    let verdict = probe(&Client::with_resolver(settings, names()), &image, &[]).await;
    assert!(verdict.is_available(), "{verdict}");

    for name in ["127.0.0.1", "localhost"] {
        let verdict = probe(&client(), &parse(&format!("{name}:{port}/app:1"))?, &[]).await;
        assert!(verdict.is_available(), "{name}: {verdict}");
    }
    Ok(())
}

#[tokio::test]
async fn a_password_goes_over_plain_http_only_where_configured() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    registry.hold("app", "1", &image("a")?);
    let port = registry.address().port();
    let (home, away) = (format!("r.example.com:{port}"), format!("auth.example.com:{port}"));
    let realm = Some(format!("http://{away}/token"));
    registry.require(Auth::bearer(Bearer { realm, ..Bearer::new().user("ada", "secret") }));
    let image = parse(&format!("{home}/app:1"))?;
    let credentials = logins(&image, &[("ada", "secret")]);
    let client = |token_hosts: &[&str], plain: &[&str]| -> Result<Client> {
        let mut settings = settings();
        for host in plain {
            let mut own = settings.default.clone();
            own.plain_http = true;
            own.token_hosts = token_hosts.iter().map(|host| (*host).to_owned()).collect();
            settings.set(&Host::parse(host)?, own);
        }
        let names = Names { registry: registry.address(), inside: registry.address() };
        Ok(Client::with_resolver(settings, Arc::new(names)))
    };

    let verdict = probe(&client(&[], &[&home])?, &image, &credentials).await;
    assert_eq!(verdict.kind(), VerdictKind::Unauthorised, "{verdict}");
    assert!(
        verdict.reason().contains(&format!("{away} would get the password over plain HTTP")),
        "{verdict}"
    );
    assert!(registry.requests().iter().all(|request| request.header("authorization").is_empty()));
    assert_eq!(registry.count("GET", "/token"), 0);

    for open in [client(&[], &[&home, &away])?, client(&[&away], &[&home])?] {
        let verdict = probe(&open, &image, &credentials).await;
        assert!(verdict.is_available(), "{verdict}");
    }
    Ok(())
}

#[tokio::test]
async fn private_authorities_and_blind_trust_are_settings() -> Result<()> {
    let authority = Authority::new("private")?;
    let registry = FakeRegistry::start_tls(&authority.issue(&["127.0.0.1"])?).await?;
    registry.hold("app", "1", &image("a")?);
    let image = reference(&registry, "app:1")?;
    let directory = tempfile::tempdir()?;
    let ca_file = directory.path().join("ca.pem");
    let with_file = client_for(&registry.host(), |settings| settings.ca_file = Some(ca_file.clone()))?;
    let verdict = probe(&with_file, &image, &[]).await;
    assert!(verdict.reason().contains("ca.pem"), "a missing file is named: {verdict}");
    std::fs::write(&ca_file, authority.certificate())?;
    let verdict = probe(&with_file, &image, &[]).await;
    assert!(verdict.is_available(), "and found once it is there: {verdict}");
    assert!(registry.requests().iter().all(|request| request.version == reqwest::Version::HTTP_2));

    let blind = client_for(&registry.host(), |settings| settings.insecure_skip_verify = true)?;
    assert!(probe(&blind, &image, &[]).await.is_available());
    Ok(())
}

#[tokio::test]
async fn a_certificate_that_is_its_own_authority_must_be_the_one_that_is_named() -> Result<()> {
    let here = ["127.0.0.1"];
    let (right, other) = (pki::self_signed(&here)?, pki::self_signed(&here)?);
    let elsewhere = pki::self_signed(&["r.example.com"])?;
    let expired = pki::self_signed_and_expired(&here)?;
    let directory = tempfile::tempdir()?;
    for (served, named, refusal) in [
        (&right, vec![&right], None),
        (&right, vec![&other, &right], None),
        (&right, vec![&other], Some("an authority")),
        (&elsewhere, vec![&elsewhere], Some("not for 127.0.0.1")),
        (&expired, vec![&expired], Some("has expired")),
    ] {
        let registry = FakeRegistry::start_tls(served).await?;
        registry.hold("app", "1", &image("a")?);
        let ca_file = directory.path().join("ca.pem");
        let content: String = named.iter().map(|identity| identity.certificate.as_str()).collect();
        std::fs::write(&ca_file, content)?;
        let client = client_for(&registry.host(), |settings| settings.ca_file = Some(ca_file))?;
        let verdict = probe(&client, &reference(&registry, "app:1")?, &[]).await;
        match refusal {
            None => assert!(verdict.is_available(), "{verdict}"),
            Some(reason) => {
                assert_eq!(verdict.kind(), VerdictKind::TlsError, "{verdict}");
                assert!(verdict.reason().contains(reason), "{reason}: {verdict}");
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_changed_authority_file_is_read_again() -> Result<()> {
    let (right, wrong) = (Authority::new("right")?, Authority::new("wrong")?);
    let registry = FakeRegistry::start_tls(&right.issue(&["127.0.0.1"])?).await?;
    registry.hold("app", "1", &image("a")?);
    let image = reference(&registry, "app:1")?;
    let directory = tempfile::tempdir()?;
    let ca_file = directory.path().join("ca.pem");
    std::fs::write(&ca_file, wrong.certificate())?;
    let client = client_for(&registry.host(), |settings| settings.ca_file = Some(ca_file.clone()))?;
    // Often enough that the registry counts as down, which must not outlive the reason for it.
    for _ in 0..4 {
        assert_eq!(probe(&client, &image, &[]).await.kind(), VerdictKind::TlsError);
    }
    replace(&ca_file, right.certificate())?;
    available_again(&client, &image).await?;

    replace(&ca_file, "not a certificate")?;
    for _ in 0..30 {
        let verdict = probe(&client, &image, &[]).await;
        assert!(verdict.is_available(), "a file that went bad leaves what was known: {verdict}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    replace(&ca_file, wrong.certificate())?;
    eventually(Duration::from_secs(10), || async {
        let verdict = probe(&client, &image, &[]).await;
        ensure!(
            verdict.kind() == VerdictKind::TlsError,
            "an authority that left is still trusted: {verdict}"
        );
        Ok(())
    })
    .await
}

/// As mounted files change: another file takes the place at once.
fn replace(path: &Path, content: &str) -> Result<()> {
    let new = path.with_extension("new");
    std::fs::write(&new, content)?;
    Ok(std::fs::rename(new, path)?)
}

#[tokio::test]
async fn what_is_called_a_manifest_and_is_none_has_no_digest() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    let client = client();
    let remote = crate::support::remote(&client, &image, Right::Pull)?;
    let rubbish =
        [&b""[..], b"<html>login</html>", b"\x1f\x8b\x08", b"{}", br#"{"errors":[{"code":"DENIED"}]}"#];
    let mut faults: Vec<Fault> =
        rubbish.iter().map(|body| Fault::new(Effect::Answer(200, OCI_MANIFEST, body.to_vec()))).collect();
    faults.push(Fault::new(Effect::Shorten(10)));
    for fault in faults {
        for without_head in [Fault::status(405), Fault::new(Effect::WithoutHeader("docker-content-digest"))] {
            registry.heal();
            registry.inject(without_head.method("HEAD"));
            registry.inject(fault.clone().method("GET").on(Route::Manifests));
            let verdict = probe(&client, &image, &[]).await;
            assert_eq!(verdict.kind(), VerdictKind::Malformed, "{fault:?}: {verdict}");
            let error = remote.resolve(&Selector::of(&image), &patiently()).await.unwrap_err();
            assert_eq!(error.class(), ErrorClass::Broken, "{fault:?}: {error}");
            assert!(remote.manifest(&Selector::of(&image), &patiently()).await.is_err(), "{fault:?}");
        }
    }
    registry.heal();
    registry.inject(Fault::status(405).method("HEAD"));
    assert!(probe(&client, &image, &[]).await.is_available());
    Ok(())
}

#[tokio::test]
async fn endless_answers_are_cut() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let image = reference(&registry, "app:1")?;
    let huge = || vec![b'x'; 20 * 1024 * 1024];
    let client = client();
    let remote = crate::support::remote(&client, &image, Right::Pull)?;
    registry.inject(
        Fault::new(Effect::Answer(200, "application/json", huge()))
            .and(Effect::WithoutHeader("content-length")),
    );
    let manifest = remote.manifest(&Selector::of(&image), &patiently()).await.unwrap_err();
    assert!(manifest.to_string().contains("longer than"), "{manifest}");
    let tags = remote.tags(10, &patiently()).await.unwrap_err();
    assert!(tags.to_string().contains("longer than"), "{tags}");
    registry.heal();
    registry.inject(Fault::new(Effect::Answer(500, "application/json", huge())));
    let error = remote.manifest(&Selector::of(&image), &patiently()).await.unwrap_err();
    assert!(error.to_string().len() < 1000);
    Ok(())
}

#[tokio::test]
async fn upload_locations_and_page_links_are_judged_too() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    let client = client();
    let remote = crate::support::remote(&client, &image, Right::Push)?;
    let inside = "http://169.254.169.254/upload";
    registry.inject(Fault::new(Effect::Header("location", inside.into())).on(Route::Uploads));
    let error = remote.begin_upload(&patiently()).await.unwrap_err();
    assert!(error.to_string().contains("link-local"), "{error}");
    registry.inject(Fault::new(Effect::Header("link", format!("<{inside}>; rel=\"next\""))).on(Route::Tags));
    let error = remote.tags(10, &patiently()).await.unwrap_err();
    assert!(error.to_string().contains("link-local"), "{error}");
    Ok(())
}
