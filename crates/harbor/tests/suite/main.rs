//! The client against a double of Harbor over real HTTP, directly and behind a real nginx.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a failed expectation is how a test reports"
)]

use std::time::Duration;

use anyhow::{Context as _, Result};
use fairlead_domain::harbor::{Health, Login};
use fairlead_harbor::{Class, EndpointUpdate, Error, Harbor, HarborSettings, NewEndpoint, Removed};
use fairlead_testkit::harbor::{Credential, Effect, Fault, PASSWORD, Upstream};
use fairlead_testkit::{FakeHarbor, Nginx};

const UPSTREAM: &str = "https://private.example";

fn client(url: &str, password: &str) -> Result<Harbor> {
    fairlead_testkit::install_crypto();
    let login = Login { user: "admin".to_owned(), password: password.to_owned() };
    let time_limit = Duration::from_secs(5);
    let settings =
        HarborSettings { url: url.parse()?, login, ca: None, insecure_skip_verify: false, time_limit };
    Ok(Harbor::new(settings)?)
}

fn endpoint(name: &str) -> NewEndpoint {
    NewEndpoint {
        name: name.to_owned(),
        adapter: "docker-registry".to_owned(),
        url: UPSTREAM.to_owned(),
        login: Some(Login { user: "robot".to_owned(), password: "pa55".to_owned() }),
        description: "made by a test".to_owned(),
    }
}

/// Everything that a cache needs in its life.
async fn live_and_die(harbor: &FakeHarbor, client: &Harbor) -> Result<()> {
    harbor.upstream(UPSTREAM, Upstream::login("robot", "pa55"));
    assert_eq!(client.endpoint("123").await?, None);
    client.create_endpoint(&endpoint("123")).await?;
    let made = client.endpoint("123").await?.context("it was made")?;
    assert_eq!((made.access_key.as_deref(), made.health), (Some("robot"), Health::Healthy));
    assert_eq!((&*made.description, &*made.url), ("made by a test", UPSTREAM));
    assert!(client.endpoints("123").await?.contains(&made));
    assert_eq!(client.create_endpoint(&endpoint("123")).await.unwrap_err().class(), Class::Taken);

    assert_eq!(client.project("123").await?, None);
    client.create_project("123", made.id, false).await?;
    let project = client.project("123").await?.context("it was made")?;
    assert_eq!((project.endpoint, project.public), (Some(made.id), false));
    client.set_visibility("123", true).await?;
    assert!(client.project("123").await?.is_some_and(|project| project.public));

    let update = EndpointUpdate { url: UPSTREAM.to_owned(), login: None, description: "changed".to_owned() };
    client.update_endpoint(made.id, &update).await?;
    let held = harbor.endpoint("123").context("it is there")?;
    assert_eq!((held.credential, &*held.description), (None, "changed"));
    let login = Some(Login { user: "robot".to_owned(), password: "wrong".to_owned() });
    let refused = client.update_endpoint(made.id, &EndpointUpdate { login, ..update }).await.unwrap_err();
    assert_eq!((refused.class(), refused.text()), (Class::Rejected, Some("the registry is unhealthy")));

    for number in 0..250 {
        harbor.hold_repository("123", &format!("team/app-{number}/web"));
    }
    assert_eq!(client.delete_project("123").await.unwrap_err().class(), Class::InUse);
    let repositories = client.repositories("123").await?;
    assert_eq!(repositories.len(), 250);
    for name in &repositories {
        assert_eq!(client.delete_repository("123", name).await?, Removed::Now);
    }
    assert_eq!(client.delete_repository("123", "team/gone").await?, Removed::Before);
    assert_eq!(client.delete_project("123").await?, Removed::Now);
    assert_eq!(client.delete_project("123").await?, Removed::Before);
    assert_eq!(client.repositories("123").await?, [""; 0]);
    assert_eq!(client.delete_endpoint(made.id).await?, Removed::Now);
    assert_eq!(client.delete_endpoint(made.id).await?, Removed::Before);
    let requests = harbor.requests();
    assert!(requests.iter().all(|request| request.names && !request.cookie), "names, and no cookies");
    Ok(())
}

#[tokio::test]
async fn a_cache_lives_and_dies() -> Result<()> {
    let harbor = FakeHarbor::start().await?;
    live_and_die(&harbor, &client(&harbor.url(), PASSWORD)?).await
}

#[tokio::test]
async fn a_cache_lives_and_dies_behind_nginx() -> Result<()> {
    let harbor = FakeHarbor::start().await?;
    let nginx = Nginx::start(harbor.address()).await?;
    live_and_die(&harbor, &client(&nginx.url(), PASSWORD)?).await?;
    // What is encoded once does not get through, and is not taken for something that is gone.
    harbor.hold_project("p", None, true);
    harbor.hold_repository("p", "a/b");
    let once = delete_as_written(&nginx.url(), "projects/p/repositories/a%2Fb").await?;
    assert_eq!(once, 404);
    assert_eq!(harbor.repositories("p"), ["a/b"]);
    Ok(())
}

/// A DELETE whose path is sent as it is written.
async fn delete_as_written(url: &str, path: &str) -> Result<u16> {
    use fairlead_registry::http_client::{HttpClient, HttpSettings, ServiceAuth};
    let auth = ServiceAuth::Basic { user: "admin".to_owned(), password: PASSWORD.to_owned().into() };
    let http = HttpClient::new(url.parse()?, HttpSettings { auth, ..HttpSettings::default() })?;
    Ok(http.send("DELETE".parse()?, &format!("api/v2.0/{path}"), None).await?.status.as_u16())
}

#[tokio::test]
async fn neighbours_and_long_lists_do_not_hide_a_name() -> Result<()> {
    let harbor = FakeHarbor::start().await?;
    for number in 0..230 {
        harbor.hold_endpoint(&format!("quay-{number}"), UPSTREAM, |_| ());
        harbor.hold_project(&format!("quay-{number}"), Some(1), true);
    }
    let wanted = harbor.hold_endpoint("quay", UPSTREAM, |one| {
        one.credential =
            Some(Credential { kind: "basic".to_owned(), key: "u".to_owned(), secret: "s".to_owned() });
        one.status = String::new();
    });
    let project = harbor.hold_project("quay", Some(wanted), false);
    let client = client(&harbor.url(), PASSWORD)?;
    let found = client.endpoint("quay").await?.context("it is there")?;
    assert_eq!((found.id, found.health), (wanted, Health::Unknown));
    assert_eq!(client.project("quay").await?.map(|one| one.id), Some(project));
    Ok(())
}

#[tokio::test]
async fn a_lock_by_another_client_is_waited_for_and_a_wrong_password_is_said() -> Result<()> {
    let harbor = FakeHarbor::start().await?;
    let (good, bad) = (client(&harbor.url(), PASSWORD)?, client(&harbor.url(), "wrong")?);
    let (refused, found) = tokio::join!(bad.endpoint("a"), async {
        while !harbor.is_locked("admin") {
            tokio::task::yield_now().await;
        }
        good.endpoint("a").await
    });
    assert_eq!(refused.unwrap_err().class(), Class::Unauthorised);
    // The second attempt of the other client may lock the user once more.
    if let Err(error) = found {
        assert_eq!(error.class(), Class::Unauthorised);
        assert_eq!(good.endpoint("a").await?, None);
    }
    Ok(())
}

#[tokio::test]
async fn every_failure_is_named() -> Result<()> {
    let harbor = FakeHarbor::start().await?;
    let client = client(&harbor.url(), PASSWORD)?;
    let fault = |effect: Effect| Fault { method: None, path: "", times: Some(1), effect };
    for (effect, class, words) in [
        (Effect::Status(403), Class::Denied, "403 Forbidden"),
        (Effect::Status(429), Class::Unavailable, "429"),
        (Effect::Status(500), Class::Unavailable, "500"),
        (Effect::Status(422), Class::Rejected, "422"),
        (Effect::BadGateway, Class::Unavailable, "502 Bad Gateway"),
        (Effect::Page, Class::Unavailable, "cannot be read"),
        (Effect::Truncated, Class::Unavailable, "cannot be read"),
    ] {
        harbor.inject(fault(effect));
        let error = client.endpoint("a").await.unwrap_err();
        assert_eq!(error.class(), class, "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(error.to_string().starts_with("cannot look up endpoint a: "), "{error}");
    }
    // Elsewhere the login is not sent, and the password would be blamed for it.
    let elsewhere = || fault(Effect::Redirect("https://harbor.example/api/v2.0/registries".to_owned()));
    harbor.inject(elsewhere());
    let written = client.create_endpoint(&endpoint("a")).await.unwrap_err();
    harbor.inject(elsewhere());
    let read = client.check_login().await.unwrap_err();
    for error in [written, read] {
        assert_eq!(error.class(), Class::Unavailable, "{error}");
        assert!(error.to_string().contains("redirect to https://harbor.example/; write"), "{error}");
    }
    harbor.inject(fault(Effect::Stall(Duration::from_secs(10))));
    let error = client.endpoint("a").await.unwrap_err();
    assert!(matches!(error, Error::Http { .. }) && error.to_string().contains("did not answer"), "{error}");
    // A path that is not there says nothing about an object.
    let elsewhere = self::client(&format!("{}/elsewhere", harbor.url()), PASSWORD)?;
    assert_eq!(elsewhere.project("a").await.unwrap_err().class(), Class::Absent);
    let nowhere = self::client("http://127.0.0.1:1", PASSWORD)?;
    assert!(nowhere.endpoint("a").await.unwrap_err().to_string().contains("cannot be reached"));
    Ok(())
}
