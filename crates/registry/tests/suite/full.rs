//! Registries without room, and uploads that are given up while the circuit is open.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use fairlead_domain::reference::Host;
use fairlead_registry::copy::{Copier, CopyError, CopyOptions, Event, Observer};
use fairlead_registry::{BreakerSettings, Client};
use fairlead_testkit::eventually;
use fairlead_testkit::fake_registry::{Effect, FakeRegistry, Fault, Route};

use crate::support::{bytes, client, copy, layered, patiently, place, probe, reference, settings};

/// As distribution answers when its disk is full.
const FULL: &str = r#"{"errors":[{"code":"UNKNOWN","message":"unknown error","detail":
    {"DriverName":"filesystem","Enclosed":{"Op":"write","Path":"/var/lib/registry/x","Err":28}}}]}"#;

#[tokio::test]
async fn a_full_disk_is_told_as_such() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    from.hold("app", "1", &layered(&[&bytes(1, 1000)])?);
    for method in ["POST", "PATCH", "PUT"] {
        to.inject(
            Fault::new(Effect::Answer(500, "application/json", FULL.into()))
                .on(Route::Uploads)
                .method(method),
        );
    }
    let (source, destination) = (reference(&from, "app:1")?, reference(&to, "app:1")?);
    let copier = Copier::new(&client());
    for _ in 0..4 {
        let error = copy(&copier, &source, &destination, &CopyOptions::default()).await.unwrap_err();
        assert!(matches!(error, CopyError::Destination(_)), "{error}");
        let told = error.to_string();
        assert!(!told.contains("cannot be reached"), "{told}");
        assert!(told.contains("no space left") || told.contains("answers with an error"), "{told}");
    }
    Ok(())
}

#[tokio::test]
async fn an_upload_is_given_up_at_the_registry_although_the_circuit_is_open() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    from.hold("app", "1", &layered(&[&bytes(1, 4_000_000)])?);
    from.inject(Fault::new(Effect::Stall(100_000)).on(Route::Blobs).method("GET"));
    let mut settings = settings();
    let hour = Duration::from_hours(1);
    settings.patience = BreakerSettings { first_pause: hour, longest_pause: hour, interest: hour };
    let client = Client::new(settings);
    let copier = Copier::new(&client);
    let (source, destination) = (reference(&from, "app:1")?, reference(&to, "app:1")?);
    let copying = {
        let (copier, from, to) = (copier.clone(), place(&source), place(&destination));
        tokio::spawn(async move {
            let observer: Arc<dyn Observer> = Arc::new(|_: &Event| {});
            copier.copy(&from, &to, &CopyOptions::default(), &observer, &patiently()).await
        })
    };
    let soon = Duration::from_secs(10);
    eventually(soon, || async {
        ensure!(to.open_uploads() == 1, "no upload is open");
        Ok(())
    })
    .await?;
    to.inject(Fault::new(Effect::Drop).on(Route::Manifests).method("HEAD"));
    let host = Host::parse(&to.host())?;
    eventually(soon, || async {
        probe(&client, &reference(&to, "other:1")?, &[]).await;
        ensure!(client.is_down(&host).is_some(), "the circuit is closed");
        Ok(())
    })
    .await?;
    copying.abort();
    eventually(soon, || async {
        ensure!(to.open_uploads() == 0, "the upload is still open");
        Ok(())
    })
    .await?;
    assert!(client.is_down(&host).is_some(), "the circuit was open all the time");
    Ok(())
}
