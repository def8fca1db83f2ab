//! Failures get the right name: what kind they are, whose they are, and what helps.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use fairlead_domain::cause::Cause;
use fairlead_domain::verdict::{Verdict, VerdictKind};
use fairlead_registry::{ProbeMethod, ProbeOptions};
use fairlead_testkit::fake_registry::{Auth, Bearer, Effect, FakeRegistry, Fault, Route};
use fairlead_testkit::pki::Authority;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::support::{
    client, client_for, image, logins, parse, patiently, probe, reference, registry_with_app,
};

const READ: ProbeOptions = ProbeOptions {
    method: ProbeMethod::Get,
    check_digest: false,
    new_connection: false,
    cause: Cause::Administrator,
};

/// Sends the same bytes to every caller, and counts the calls.
async fn parrot(answer: String) -> Result<(SocketAddr, Arc<AtomicUsize>)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let (address, asked) = (listener.local_addr()?, Arc::new(AtomicUsize::new(0)));
    let count = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            if stream.read(&mut request).await.is_ok_and(|length| length > 0) {
                count.fetch_add(1, Ordering::Relaxed);
                drop(stream.write_all(answer.as_bytes()).await);
            }
        }
    });
    Ok((address, asked))
}

#[tokio::test]
async fn a_body_in_broken_pieces_is_malformed() -> Result<()> {
    for pieces in ["zz\r\n", "fffffffffffffffff\r\n", "1\r\nxyz", &format!("1;{}", "x".repeat(20_000))] {
        let kind = "content-type: application/vnd.oci.image.manifest.v1+json";
        let (address, asked) =
            parrot(format!("HTTP/1.1 200 OK\r\n{kind}\r\ntransfer-encoding: chunked\r\n\r\n{pieces}"))
                .await?;
        let client = client_for(&address.to_string(), |settings| settings.plain_http = true)?;
        let verdict = client.probe(&parse(&format!("{address}/app:1"))?, &[], READ, &patiently()).await;
        assert_eq!(verdict.kind(), VerdictKind::Malformed, "{pieces:.20}: {verdict}");
        assert_eq!(asked.load(Ordering::Relaxed), 1, "{pieces:.20}");
    }
    Ok(())
}

#[tokio::test]
async fn headers_without_end_are_malformed_over_http_2_as_well() -> Result<()> {
    let registry = FakeRegistry::start_tls(&Authority::new("Test")?.issue(&["127.0.0.1"])?).await?;
    registry.hold("app", "1", &image("a")?);
    let client = client_for(&registry.host(), |settings| settings.insecure_skip_verify = true)?;
    let image = reference(&registry, "app:1")?;
    assert!(probe(&client, &image, &[]).await.is_available());
    registry.forget_requests();
    registry.inject(Fault::new(Effect::Header("x-long", "x".repeat(100_000))));
    let verdict = probe(&client, &image, &[]).await;
    assert_eq!(verdict.kind(), VerdictKind::Malformed, "{verdict}");
    assert_eq!(registry.requests().len(), 1, "asking again does not help");
    Ok(())
}

#[tokio::test]
async fn a_redirect_to_nowhere_is_not_followed() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    for fault in [Fault::status(301), Fault::status(307), Fault::new(Effect::Redirect(String::new()))] {
        registry.heal();
        registry.forget_requests();
        registry.inject(fault);
        let verdict = probe(&client(), &image, &[]).await;
        assert_eq!(verdict.kind(), VerdictKind::Malformed, "{verdict}");
        assert!(verdict.reason().contains("without saying where to"), "{verdict}");
        assert_eq!(registry.requests().len(), 1);
    }
    Ok(())
}

#[tokio::test]
async fn what_storage_does_is_not_told_as_the_registrys_doing() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    let storage = FakeRegistry::start().await?;
    registry.inject(Fault::new(Effect::Redirect(format!("{}/v2/app/manifests/1", storage.url()))));
    let told_of_storage = |verdict: &Verdict, kind: VerdictKind| {
        assert_eq!(verdict.kind(), kind, "{verdict}");
        assert!(verdict.reason().contains("its storage 127.0.0.1"), "{verdict}");
    };
    for (status, kind) in [
        (401, VerdictKind::Unauthorised),
        (403, VerdictKind::Forbidden),
        (404, VerdictKind::NotFound),
        (503, VerdictKind::Unreachable),
    ] {
        storage.heal();
        storage.inject(Fault::status(status));
        told_of_storage(&probe(&client(), &image, &[]).await, kind);
    }
    drop(storage);
    let client = client();
    told_of_storage(&probe(&client, &image, &[]).await, VerdictKind::Unreachable);
    assert!(client.is_down(&image.host()).is_none(), "the registry is there");
    Ok(())
}

#[tokio::test]
async fn failures_are_told_in_words_of_our_own() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    registry.inject(Fault::new(Effect::Drop));
    let verdict = probe(&client(), &image, &[]).await;
    assert_eq!(
        verdict.reason(),
        "the registry cannot be reached: the connection was closed before the answer was complete"
    );
    drop(registry);
    let verdict = probe(&client(), &image, &[]).await;
    assert_eq!(verdict.reason(), "the registry cannot be reached: the connection was refused");
    Ok(())
}

#[tokio::test]
async fn a_setting_is_named_only_where_it_helps() -> Result<()> {
    let authority = Authority::new("ours")?;
    let directory = tempfile::tempdir()?;
    let ca_file = directory.path().join("ca.pem");
    std::fs::write(&ca_file, authority.certificate())?;
    let registry = FakeRegistry::start_tls(&authority.issue(&["r.example.com"])?).await?;
    let image = reference(&registry, "app:1")?;
    let verdict = probe(&client(), &image, &[]).await;
    assert!(verdict.reason().contains("registries.<host>.caFile"), "{verdict}");

    let trusting = client_for(&registry.host(), |settings| settings.ca_file = Some(ca_file.clone()))?;
    let verdict = probe(&trusting, &image, &[]).await;
    assert_eq!(verdict.kind(), VerdictKind::TlsError, "{verdict}");
    assert!(verdict.reason().contains("not for 127.0.0.1"), "{verdict}");
    assert!(!verdict.reason().contains("registries."), "{verdict}");

    let plain = FakeRegistry::start().await?;
    let sure = client_for(&plain.host(), |settings| settings.ca_file = Some(ca_file))?;
    let verdict = probe(&sure, &reference(&plain, "app:1")?, &[]).await;
    assert_eq!(verdict.kind(), VerdictKind::TlsError, "{verdict}");
    assert!(verdict.reason().contains("registries.<host>.plainHttp"), "{verdict}");
    Ok(())
}

#[tokio::test]
async fn a_token_server_that_refuses_says_nothing_about_head() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    registry.require(Auth::bearer(Bearer::new()));
    registry.inject(Fault::status(405).on(Route::Token));
    let verdict = probe(&client(), &image, &logins(&image, &[("ada", "secret")])).await;
    assert_eq!(verdict.kind(), VerdictKind::Malformed, "{verdict}");
    assert!(verdict.reason().contains("its token server"), "{verdict}");
    assert_eq!(registry.count("GET", "/manifests/"), 0, "the image was not asked for in another way");
    assert_eq!(registry.count("GET", "/token"), 1, "nor was the password sent again");
    Ok(())
}

#[tokio::test]
async fn a_strangers_words_are_repeated_in_part() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    let document = format!(r#"{{"mediaType":"{}"}}"#, "x".repeat(1_000_000));
    registry.inject(Fault::new(Effect::Answer(200, "application/json", document.into_bytes())));
    let verdict = probe(&client(), &image, &[]).await;
    assert_eq!(verdict.kind(), VerdictKind::Malformed, "{verdict}");
    assert!(verdict.reason().len() < 1200, "{} bytes", verdict.reason().len());
    Ok(())
}
