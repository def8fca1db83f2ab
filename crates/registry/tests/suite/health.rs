//! Knowing that a registry is down, and that it is back.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use fairlead_domain::verdict::VerdictKind;
use fairlead_registry::{Client, ProbeOptions};
use fairlead_testkit::eventually;
use fairlead_testkit::fake_registry::{Effect, FakeRegistry, Fault, Route};
use fairlead_testkit::pki::Authority;
use futures::future::join_all;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::support::{
    available_again, check, client, client_for, image, parse, probe, reference, registry_with_app, within,
};

async fn down(client: &Client, registry: &FakeRegistry) -> Result<()> {
    registry.inject(Fault::new(Effect::Hang));
    let image = reference(registry, "app:1")?;
    let verdict =
        client.probe(&image, &[], ProbeOptions::default(), &within(Duration::from_millis(1500))).await;
    assert_eq!(verdict.kind(), VerdictKind::Unreachable);
    Ok(())
}

#[tokio::test]
async fn everybody_can_see_that_a_registry_is_down_and_that_it_is_back() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    let client = client();
    let host = image.host();
    assert!(client.is_down(&host).is_none() && client.healths().is_empty(), "nothing was asked yet");
    let health = client.health(&host).context("a registry with usual settings")?;
    assert!(!health.is_down() && health.recovered().is_none());

    let (told, downed) = tokio::join!(health.goes_down(), down(&client, &registry));
    downed?;
    assert_eq!(Some(&told), client.is_down(&host).as_ref());
    assert_eq!((told.kind(), health.down()), (VerdictKind::Unreachable, Some(told)));
    assert!(
        client.healths().iter().any(|(name, health)| name.as_str() == registry.host() && health.is_down())
    );

    registry.heal();
    available_again(&client, &image).await?;
    assert!(client.is_down(&host).is_none() && !health.is_down() && health.down().is_none());
    assert!(health.recovered().is_some());
    Ok(())
}

#[tokio::test]
async fn a_trial_that_hangs_does_not_hide_that_the_registry_is_back() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    let client = client();
    down(&client, &registry).await?;
    eventually(Duration::from_secs(5), || async {
        ensure!(registry.count("GET", "/v2/") > 0, "no trial yet");
        Ok(())
    })
    .await?;
    registry.heal();
    let back = Instant::now();
    available_again(&client, &image).await?;
    assert!(back.elapsed() < Duration::from_secs(3), "noticed after {:?}", back.elapsed());
    Ok(())
}

#[tokio::test]
async fn a_registry_that_refuses_connections_is_down_after_one_question() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let image = parse(&format!("{}/app:1", registry.host()))?;
    drop(registry);
    let client = client();
    assert_eq!(probe(&client, &image, &[]).await.kind(), VerdictKind::Unreachable);
    assert!(client.is_down(&image.host()).is_some());
    Ok(())
}

/// Forwards connections until they are lost; lost ones stay open and carry nothing any more, as after a route was lost
/// and found again elsewhere. New ones work.
async fn forgetful_wire(target: SocketAddr) -> Result<(SocketAddr, watch::Sender<u32>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let (losses, mut lost) = watch::channel(0);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            lost.mark_unchanged();
            let mut lost = lost.clone();
            tokio::spawn(async move {
                let mut server = TcpStream::connect(target).await?;
                tokio::select! {
                    end = copy_bidirectional(&mut client, &mut server) => end.map(drop),
                    _ = lost.changed() => std::future::pending().await,
                }
            });
        }
    });
    Ok((address, losses))
}

#[tokio::test]
async fn a_connection_that_was_lost_unnoticed_does_not_keep_a_registry_down() -> Result<()> {
    let authority = Authority::new("Test")?;
    let registry = FakeRegistry::start_tls(&authority.issue(&["127.0.0.1"])?).await?;
    registry.hold("app", "1", &image("a")?);
    let (wire, losses) = forgetful_wire(registry.address()).await?;
    let client = client_for(&wire.to_string(), |settings| settings.insecure_skip_verify = true)?;
    let image = parse(&format!("{wire}/app:1"))?;
    assert!(probe(&client, &image, &[]).await.is_available());
    losses.send_replace(1);
    let verdict =
        client.probe(&image, &[], ProbeOptions::default(), &within(Duration::from_millis(600))).await;
    assert_eq!(verdict.kind(), VerdictKind::Unreachable, "over the one connection there is");
    let lost = Instant::now();
    available_again(&client, &image).await?;
    println!("used again after {:?}", lost.elapsed());
    Ok(())
}

#[tokio::test]
async fn one_broken_image_leaves_the_others_of_its_registry_alone() -> Result<()> {
    let (registry, good) = registry_with_app().await?;
    registry.inject(Fault::status(500).path("/manifests/broken"));
    let (client, broken) = (client(), reference(&registry, "app:broken")?);
    for _ in 0..2 {
        assert_eq!(probe(&client, &broken, &[]).await.kind(), VerdictKind::Unreachable);
    }
    assert_eq!(registry.count("HEAD", "/manifests/broken"), 6, "each question was asked three times");
    assert!(client.is_down(&broken.host()).is_none());
    assert!(probe(&client, &good, &[]).await.is_available());

    registry.inject(Fault::status(500).on(Route::Manifests));
    let others = ["2", "3", "4"].map(|tag| reference(&registry, &format!("app:{tag}")));
    let others = others.into_iter().collect::<Result<Vec<_>>>()?;
    join_all(others.iter().map(|name| probe(&client, name, &[]))).await;
    assert!(client.is_down(&good.host()).is_some(), "it fails at whatever it is asked");
    Ok(())
}

#[tokio::test]
async fn what_a_proxy_does_not_get_through_to_leaves_the_rest_alone() -> Result<()> {
    let (registry, good) = registry_with_app().await?;
    registry.inject(Fault::status(502).path("/manifests/away"));
    let (client, away) = (client(), reference(&registry, "app:away")?);
    for _ in 0..3 {
        assert_eq!(probe(&client, &away, &[]).await.kind(), VerdictKind::Unreachable);
        assert!(client.is_down(&good.host()).is_none(), "however often it is asked for");
    }
    assert!(probe(&client, &good, &[]).await.is_available());
    registry.inject(Fault::status(503));
    for tag in ["2", "3", "4"] {
        probe(&client, &reference(&registry, &format!("app:{tag}"))?, &[]).await;
    }
    assert!(client.is_down(&good.host()).is_some(), "now it fails at whatever it is asked");
    Ok(())
}

async fn fail_at_three_images(client: &Client, registry: &FakeRegistry) -> Result<()> {
    for tag in ["7", "8", "9"] {
        let verdict = probe(client, &reference(registry, &format!("app:{tag}"))?, &[]).await;
        assert_eq!(verdict.kind(), VerdictKind::Unreachable);
    }
    Ok(())
}

#[tokio::test]
async fn a_registry_without_a_first_page_is_found_to_be_back() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    registry.inject(Fault::status(503).on(Route::Base));
    // Three for each of the first two images, and one for the third, which opens the circuit; one more after a trial.
    registry.inject(Fault::status(503).on(Route::Manifests).times(8));
    let client = client();
    fail_at_three_images(&client, &registry).await?;
    assert!(client.is_down(&image.host()).is_some());
    available_again(&client, &image).await?;
    assert_eq!(registry.count("HEAD", "manifests"), 9, "after an unclear trial one failure is enough");
    assert!(client.is_down(&image.host()).is_none());
    Ok(())
}

#[tokio::test]
async fn an_error_from_a_first_page_that_is_known_to_be_there_counts() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    let client = client();
    check(&client, &image).await?;
    registry.forget_requests();
    registry.inject(Fault::status(503));
    fail_at_three_images(&client, &registry).await?;
    eventually(Duration::from_secs(5), || async {
        assert!(client.is_down(&image.host()).is_some());
        ensure!(registry.count("GET", "/v2/") > 2, "no trial yet");
        Ok(())
    })
    .await?;
    assert!(client.is_down(&image.host()).is_some());
    Ok(())
}
