//! What a registry wanted for one repository is no more than a guess for the next.

use std::time::Duration;

use anyhow::{Result, bail};
use bytes::Bytes;
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::{Reference, Tag};
use fairlead_domain::verdict::{Verdict, VerdictKind};
use fairlead_registry::manifest::Selector;
use fairlead_registry::{Client, Deleted, ProbeOptions, Right};
use fairlead_testkit::fake_registry::{Auth, Bearer, Effect, FakeRegistry, Fault, Logged, Route, Strangers};

use crate::support::{client, image, logins, patiently, probe, reference, within};

/// The ways of a registry that knows Ada alone.
fn for_ada() -> [Auth; 2] {
    [Auth::basic("ada", "secret"), Auth::bearer(Bearer::new().user("ada", "secret"))]
}

/// A registry with repositories for those whom it knows, and others for all.
async fn half_open(auth: Auth) -> Result<(FakeRegistry, Reference, Reference)> {
    let registry = FakeRegistry::start().await?;
    for name in ["team/app", "open/app"] {
        registry.hold(name, "1", &image(name)?);
    }
    registry.require(auth);
    registry.behave(|behaviour| behaviour.strangers = Strangers::MayRead("open/"));
    let (private, public) = (reference(&registry, "team/app:1")?, reference(&registry, "open/app:1")?);
    Ok((registry, private, public))
}

/// Every request since the last look, by method, path and whether it said who sends it.
fn asked(registry: &FakeRegistry) -> Vec<String> {
    let told = |request: &Logged| {
        let kind = request.header("authorization").split(' ').next().unwrap_or_default().to_owned();
        format!("{} {} {kind}", request.method, request.path).trim_end().to_owned()
    };
    let asked = registry.requests().iter().map(told).collect();
    registry.forget_requests();
    asked
}

#[tokio::test]
async fn what_is_served_to_anybody_needs_no_login_that_works() -> Result<()> {
    const PRIVATE: &str = "HEAD /v2/team/app/manifests/1";
    for (auth, login, refused) in [
        (0, None, vec![PRIVATE.to_owned()]),
        (0, Some(("ada", "wrong")), vec![format!("{PRIVATE} Basic"), PRIVATE.to_owned()]),
        (1, None, vec!["GET /token".to_owned(), PRIVATE.to_owned()]),
        (1, Some(("ada", "wrong")), vec!["GET /token Basic".to_owned(), PRIVATE.to_owned()]),
    ] {
        let (registry, private, public) = half_open(for_ada()[auth].clone()).await?;
        let client = client();
        let login: Vec<_> = login.into_iter().collect();
        let look = async |image: &Reference| probe(&client, image, &logins(image, &login)).await;
        assert!(look(&public).await.is_available(), "nothing was asked for yet");
        assert_eq!(look(&private).await.kind(), VerdictKind::Unauthorised);
        let verdict = look(&public).await;
        assert!(verdict.is_available(), "{login:?}: {verdict}");
        asked(&registry);
        assert_eq!(look(&private).await.kind(), VerdictKind::Unauthorised, "a refusal stays one");
        assert_eq!(asked(&registry), refused, "nothing is sent twice");
        let missing = look(&reference(&registry, "open/other:1")?).await;
        let expected = if login.is_empty() { VerdictKind::NotFound } else { VerdictKind::Unauthorised };
        assert_eq!(missing.kind(), expected, "somebody else might see it: {missing}");
    }
    Ok(())
}

#[tokio::test]
async fn a_login_that_works_is_brought_along_everywhere() -> Result<()> {
    for auth in for_ada() {
        let (registry, private, public) = half_open(auth).await?;
        let client = client();
        for image in [&private, &public] {
            assert!(probe(&client, image, &logins(image, &[("ada", "secret")])).await.is_available());
        }
        asked(&registry);
        for image in [&private, &public] {
            assert!(probe(&client, image, &logins(image, &[("ada", "secret")])).await.is_available());
        }
        assert_eq!(asked(&registry).len(), 2, "one request each");
        let missing = reference(&registry, "open/app:2")?;
        let verdict = probe(&client, &missing, &logins(&missing, &[("ada", "secret")])).await;
        assert_eq!((verdict.kind(), asked(&registry).len()), (VerdictKind::NotFound, 1));
    }
    Ok(())
}

#[tokio::test]
async fn nobody_is_asked_for_without_a_login_while_another_is_left() -> Result<()> {
    let (registry, private, _) = half_open(Auth::basic("ada", "secret")).await?;
    let client = client();
    assert!(!probe(&client, &private, &[]).await.is_available());
    asked(&registry);
    let verdict = probe(&client, &private, &logins(&private, &[("bob", "wrong"), ("ada", "secret")])).await;
    assert!(verdict.is_available(), "{verdict}");
    let path = "HEAD /v2/team/app/manifests/1";
    assert_eq!(asked(&registry), [format!("{path} Basic"), format!("{path} Basic")]);

    let verdict = probe(&client, &private, &logins(&private, &[("bob", "wrong"), ("eve", "wrong")])).await;
    assert_eq!(verdict.kind(), VerdictKind::Unauthorised, "{verdict}");
    assert_eq!(asked(&registry), [&format!("{path} Basic"), &format!("{path} Basic"), path]);
    Ok(())
}

#[tokio::test]
async fn one_refusal_is_enough_for_all_that_is_read_of_a_repository() -> Result<()> {
    for auth in for_ada() {
        let (registry, private, public) = half_open(auth).await?;
        let client = client();
        let wrong = logins(&public, &[("ada", "wrong")]);
        assert!(!probe(&client, &private, &wrong).await.is_available());
        asked(&registry);
        let remote = client.repository(&public.repository(), wrong, Right::Push)?;
        for _ in 0..3 {
            remote.manifest(&Selector::of(&public), &patiently()).await?;
        }
        let bare = "GET /v2/open/app/manifests/1";
        assert_eq!(asked(&registry)[1..], [bare, bare, bare]);
        let error = remote.begin_upload(&patiently()).await.unwrap_err();
        assert!(error.to_string().contains("does not accept the credentials"), "{error}");
        let written = asked(&registry);
        assert!(written.len() <= 2, "{written:?}");
        assert!(written[0].ends_with(" Basic"), "not without a login that was given: {written:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_token_server_in_trouble_is_no_trouble_where_no_token_is_needed() -> Result<()> {
    for (effect, expected) in [
        (Effect::Status(401), VerdictKind::Unauthorised),
        (Effect::Status(403), VerdictKind::Forbidden),
        (Effect::Status(404), VerdictKind::Malformed),
        (Effect::Redirect("/elsewhere".into()), VerdictKind::Malformed),
        (Effect::Status(429), VerdictKind::RateLimited),
        (Effect::Status(503), VerdictKind::Unreachable),
        (Effect::Drop, VerdictKind::Unreachable),
        (Effect::Hang, VerdictKind::Unreachable),
    ] {
        let tokens = FakeRegistry::start().await?;
        tokens.inject(Fault::new(effect.clone()));
        let bearer = Bearer { realm: Some(format!("{}/token", tokens.url())), ..Bearer::new() };
        let (registry, private, public) = half_open(Auth::bearer(bearer)).await?;
        let client = client();
        let look = async |image: &Reference| {
            let context = within(Duration::from_secs(5)).answered_within(Duration::from_millis(200));
            client.probe(image, &[], ProbeOptions::default(), &context).await
        };
        for _ in 0..2 {
            let refused = look(&private).await;
            assert_eq!(refused.kind(), expected, "{effect:?}: {refused}");
            let verdict = look(&public).await;
            assert!(verdict.is_available(), "{effect:?}: {verdict}");
        }
        assert!(asked(&registry).iter().all(|request| !request.contains("Basic")));
    }
    Ok(())
}

#[tokio::test]
async fn when_time_is_up_nothing_more_is_asked() -> Result<()> {
    let tokens = FakeRegistry::start().await?;
    tokens.inject(Fault::new(Effect::Hang));
    let bearer = Bearer { realm: Some(format!("{}/token", tokens.url())), ..Bearer::new() };
    let (registry, private, public) = half_open(Auth::bearer(bearer)).await?;
    let client = client();
    // Too short a time to tell that the token server is down.
    let look = async |image: &Reference| {
        let context = within(Duration::from_millis(400));
        client.probe(image, &[], ProbeOptions::default(), &context).await
    };
    // On a slow machine, time may be up before anything is asked.
    for _ in 0..50 {
        let verdict = look(&private).await;
        assert_eq!(verdict.kind(), VerdictKind::Unreachable, "{verdict}");
        let requests = asked(&registry).len();
        assert!(requests <= 1, "{requests}");
        if requests == 1 && !tokens.requests().is_empty() {
            let verdict = look(&public).await;
            assert_eq!((verdict.kind(), asked(&registry).len()), (VerdictKind::Unreachable, 0), "{verdict}");
            return Ok(());
        }
    }
    bail!("the token server was never asked")
}

#[tokio::test]
async fn a_token_server_that_moved_takes_no_image_along() -> Result<()> {
    for users in [&[][..], &[("ada", "secret")]] {
        let (registry, former) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
        registry.hold("team/app", "1", &image("a")?);
        let image = reference(&registry, "team/app:1")?;
        let realm = Some(format!("{}/token", former.url()));
        registry.require(Auth::bearer(Bearer { realm, ..Bearer::new() }));
        let client = client();
        let verdict = probe(&client, &image, &logins(&image, users)).await;
        assert_eq!(verdict.kind(), VerdictKind::Malformed, "{verdict}");
        assert!(verdict.reason().contains("its token server answers with status 404"), "{verdict}");
        let remote = client.repository(&image.repository(), logins(&image, users), Right::Delete)?;
        let tag = Tag::parse("1")?;
        let deleted = remote.delete_tag(&tag, &patiently()).await;
        assert!(deleted.is_err(), "whether there is something to delete is not known: {deleted:?}");

        registry.require(Auth::bearer(Bearer::new()));
        let verdict = probe(&client, &image, &logins(&image, users)).await;
        assert!(verdict.is_available(), "{verdict}");
        assert_eq!(remote.delete_tag(&tag, &patiently()).await?, Deleted::Tag);
    }
    Ok(())
}

#[tokio::test]
async fn each_part_of_a_registry_may_have_its_own_token_server() -> Result<()> {
    let (registry, first) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    registry.hold("team-b/app", "1", &image("b")?);
    registry.require(Auth::bearer(Bearer::new().user("ada", "secret")));
    let challenge = format!("Bearer realm=\"{}/token\",service=\"a\"", first.url());
    registry.inject(Fault::status(401).and(Effect::Header("www-authenticate", challenge)).path("team-a"));
    first.inject(Fault::status(403));
    let (client, other) = (client(), reference(&registry, "team-a/app:1")?);
    let image = reference(&registry, "team-b/app:1")?;
    // The second login is the one that the right token server knows.
    let users = [("bob", "wrong"), ("ada", "secret")];
    for _ in 0..2 {
        let verdict = probe(&client, &other, &logins(&other, &users)).await;
        assert_eq!(verdict.kind(), VerdictKind::Forbidden, "{verdict}");
        let verdict = probe(&client, &image, &logins(&image, &users)).await;
        assert!(verdict.is_available(), "{verdict}");
    }
    asked(&registry);
    assert!(probe(&client, &image, &logins(&image, &users[1..])).await.is_available());
    assert_eq!(asked(&registry), ["HEAD /v2/team-b/app/manifests/1 Bearer"], "and then as ever");
    Ok(())
}

#[tokio::test]
async fn a_stream_is_not_sent_on_a_guess() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    registry.require(Auth::bearer(Bearer { lifetime: Some(Duration::ZERO), ..Bearer::new() }));
    registry.inject(Fault::status(403).on(Route::Token).after(1));
    // The token has ended by the time it is needed again, and the registry takes it as long as it does not look.
    let image = reference(&registry, "app:1")?;
    let remote = client().repository(&image.repository(), Vec::new(), Right::Push)?;
    registry
        .inject(Fault::new(Effect::Status(202)).and(location(&registry)).method("POST").after(1).times(1));
    let mut upload = remote.begin_upload(&patiently()).await?;
    asked(&registry);
    let error = upload.append_stream(3, Bytes::from_static(b"abc").into(), &patiently()).await.unwrap_err();
    assert!(error.to_string().contains("token server"), "{error}");
    assert_eq!(asked(&registry), ["GET /token"], "it could not be sent again with what the registry wants");
    Ok(())
}

fn location(registry: &FakeRegistry) -> Effect {
    Effect::Header("location", format!("{}/v2/app/blobs/uploads/1", registry.url()))
}

async fn look(client: &Client, image: &Reference, users: &[(&str, &str)]) -> Verdict {
    probe(client, image, &logins(image, users)).await
}

/// A registry that asks strangers at its door alone and tells them that nothing is behind it.
async fn hiding(auth: Auth) -> Result<(FakeRegistry, Reference)> {
    let registry = FakeRegistry::start().await?;
    registry.hold("team/app", "1", &image("a")?);
    registry.require(auth);
    registry.behave(|behaviour| behaviour.strangers = Strangers::Misled);
    let image = reference(&registry, "team/app:1")?;
    Ok((registry, image))
}

#[tokio::test]
async fn a_login_is_shown_at_the_door_of_a_registry_that_hides() -> Result<()> {
    for (auth, token) in for_ada().into_iter().zip([0, 1]) {
        let (registry, image) = hiding(auth).await?;
        let client = client();
        assert_eq!(look(&client, &image, &[]).await.kind(), VerdictKind::NotFound);
        assert_eq!(asked(&registry).len(), 1, "strangers have nothing to show");
        let verdict = look(&client, &image, &[("ada", "secret")]).await;
        assert!(verdict.is_available(), "{verdict}");
        assert_eq!(
            asked(&registry).len(),
            3 + token,
            "asked, asked at the door, perhaps a token, asked again"
        );
        assert!(look(&client, &image, &[("ada", "secret")]).await.is_available());
        assert_eq!(asked(&registry).len(), 1, "what it wants is known by now");
        let missing = reference(&registry, "team/app:2")?;
        assert_eq!(look(&client, &missing, &[("ada", "secret")]).await.kind(), VerdictKind::NotFound);
        assert_eq!(asked(&registry).len(), 1);
    }
    Ok(())
}

#[tokio::test]
async fn a_refused_login_proves_no_absence() -> Result<()> {
    for auth in for_ada() {
        let (_registry, image) = hiding(auth).await?;
        let client = client();
        let wrong = [("ada", "wrong")];
        for known in [false, true] {
            let verdict = look(&client, &image, &wrong).await;
            assert_eq!(verdict.kind(), VerdictKind::Unauthorised, "{known}: {verdict}");
        }
        let remote = client.repository(&image.repository(), logins(&image, &wrong), Right::Delete)?;
        let deleted = remote.delete_tag(&Tag::parse("1")?, &patiently()).await;
        assert!(deleted.is_err(), "{deleted:?}");
    }
    Ok(())
}

#[tokio::test]
async fn the_door_is_looked_at_once() -> Result<()> {
    let client = client();
    let (broken, image) = hiding(Auth::basic("ada", "secret")).await?;
    broken.inject(Fault::status(503).on(Route::Base));
    let verdict = look(&client, &image, &[("ada", "secret")]).await;
    assert_eq!(verdict.kind(), VerdictKind::Unreachable, "what a login would show is not known: {verdict}");
    broken.heal();
    assert!(look(&client, &image, &[("ada", "secret")]).await.is_available(), "it is not held against it");

    let registry = FakeRegistry::start().await?;
    let image = reference(&registry, "team/app:1")?;
    for requests in [2, 1, 1] {
        assert_eq!(look(&client, &image, &[("ada", "secret")]).await.kind(), VerdictKind::NotFound);
        assert_eq!(asked(&registry).len(), requests);
    }
    let remote = client.repository(&image.repository(), logins(&image, &[("ada", "secret")]), Right::Pull)?;
    assert_eq!(remote.blob_size(&Digest::sha256(b"x"), &patiently()).await?, None);
    assert_eq!(asked(&registry).len(), 1);
    Ok(())
}
