//! Proof that a registry accepts new connections, and the checks that renew it.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fairlead_testkit::fake_registry::{Effect, FakeRegistry, Fault, Route};
use fairlead_testkit::pki::Authority;
use fairlead_testkit::{ApiProxy, eventually};
use futures::future::join_all;
use tokio::time::Instant;

use crate::support::{available_again, check, client, client_for, image, parse, probe, registry_with_app};

const SECOND: Duration = Duration::from_secs(1);

/// Requests for `/v2/`, with the number of their connection.
fn checks(registry: &FakeRegistry) -> Vec<usize> {
    let requests = registry.requests().into_iter().filter(|request| request.path == "/v2/");
    requests.map(|request| request.connection).collect()
}

#[tokio::test]
async fn a_check_is_one_request_on_a_connection_of_its_own_for_all_who_wait() -> Result<()> {
    let authority = Authority::new("Test")?;
    let registry = FakeRegistry::start_tls(&authority.issue(&["127.0.0.1"])?).await?;
    registry.hold("app", "1", &image("a")?);
    registry.inject(Fault::new(Effect::Delay(SECOND / 5)).on(Route::Base));
    let client = client_for(&registry.host(), |settings| settings.insecure_skip_verify = true)?;
    let image = parse(&format!("{}/app:1", registry.host()))?;
    assert!(probe(&client, &image, &[]).await.is_available());
    let connections = registry.connections();
    for done in join_all((0..50).map(|_| check(&client, &image))).await {
        done?;
    }
    assert_eq!(checks(&registry), [connections + 1]);
    assert_eq!(registry.connections(), connections + 1);
    assert!(probe(&client, &image, &[]).await.is_available());
    assert_eq!(registry.connections(), connections + 1, "the others stay in use");
    Ok(())
}

#[tokio::test]
async fn an_answer_proves_that_the_connection_it_came_over_was_accepted_when_it_was_opened() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    let client = client();
    let health = client.health(&image.host()).context("usual settings")?;
    assert_eq!(health.proof_age(Instant::now()), None);
    assert!(probe(&client, &image, &[]).await.is_available());
    let opened = Instant::now();
    assert!(health.proof_age(opened).is_some());
    tokio::time::sleep(SECOND / 5).await;
    assert!(probe(&client, &image, &[]).await.is_available());
    let age = health.proof_age(Instant::now()).context("it is proven")?;
    assert!(age >= SECOND / 5, "an answer over the same connection proves nothing new: {age:?}");
    check(&client, &image).await?;
    let checked = health.proof_age(Instant::now()).context("it is proven")?;
    assert!(checked < age, "{checked:?}");
    drop(registry);
    Ok(())
}

#[tokio::test]
async fn a_registry_that_resets_new_connections_is_down_while_established_ones_work() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    for fault in [ApiProxy::reset_new, ApiProxy::refuse_new] {
        let wire = ApiProxy::start(registry.address()).await?;
        let client = client();
        let image = parse(&format!("{}/{}", wire.address(), image.as_str().split_once('/').unwrap().1))?;
        assert!(probe(&client, &image, &[]).await.is_available());
        fault(&wire);
        eventually(SECOND, || async {
            assert!(probe(&client, &image, &[]).await.is_available(), "over the connection that is there");
            ensure!(tokio::net::TcpStream::connect(wire.address()).await.is_err() || is_reset(&wire).await);
            Ok(())
        })
        .await?;
        check(&client, &image).await?;
        assert!(client.is_down(&image.host()).is_some());
        // For longer than a trial takes to be sent.
        tokio::time::sleep(SECOND).await;
        assert!(client.is_down(&image.host()).is_some());
        wire.heal();
        available_again(&client, &image).await?;
    }
    Ok(())
}

async fn is_reset(wire: &ApiProxy) -> bool {
    let Ok(stream) = tokio::net::TcpStream::connect(wire.address()).await else { return true };
    drop(stream.readable().await);
    stream.try_read(&mut [0]).is_err()
}

#[tokio::test]
async fn a_hanging_registry_is_tried_at_growing_distances_and_one_at_a_time() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    let mut settings = crate::support::settings();
    settings.patience.longest_pause = Duration::from_mins(1);
    let client = fairlead_registry::Client::new(settings);
    assert!(probe(&client, &image, &[]).await.is_available());
    registry.forget_requests();
    registry.inject(Fault::new(Effect::Hang));
    let (begun, mut seen) = (Instant::now(), Vec::new());
    check(&client, &image).await?;
    assert!(client.is_down(&image.host()).is_some());
    // The check, and four trials: each waits two seconds for its answer, and the pause before it doubles from 200 ms.
    while seen.len() < 5 {
        ensure!(begun.elapsed() < 60 * SECOND, "{seen:?}");
        tokio::time::sleep(SECOND / 50).await;
        let asked = checks(&registry).len();
        assert!(asked <= seen.len() + 1, "sent in pairs after {seen:?}");
        if asked > seen.len() {
            seen.push(begun.elapsed());
        }
    }
    let distances: Vec<Duration> = seen.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    assert!(distances[1..].is_sorted(), "{distances:?}");
    assert_eq!(registry.requests().len(), 5, "and for nothing else");
    Ok(())
}

#[tokio::test]
async fn errors_count_only_where_checks_were_answered_before() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    let client = client();
    let health = client.health(&image.host()).context("usual settings")?;
    registry.inject(Fault::status(503).on(Route::Base));
    check(&client, &image).await?;
    assert!(client.is_down(&image.host()).is_none(), "there may be no such page");
    assert_eq!(health.proof_age(Instant::now()), None, "but it proves nothing");
    registry.heal();
    check(&client, &image).await?;
    assert!(health.proof_age(Instant::now()).is_some());
    registry.inject(Fault::status(503).on(Route::Base));
    check(&client, &image).await?;
    assert!(client.is_down(&image.host()).is_some());
    Ok(())
}
