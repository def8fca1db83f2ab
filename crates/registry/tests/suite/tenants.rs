//! What tenants may make the client talk to: neither this machine nor link-local addresses.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use fairlead_domain::cause::Cause;
use fairlead_domain::reference::{Host, Reference};
use fairlead_domain::verdict::{Verdict, VerdictKind};
use fairlead_registry::copy::{Copier, CopyEndpoint, CopyError, CopyOptions, Event, Observer};
use fairlead_registry::transport::resolver::{Resolve, Resolving};
use fairlead_registry::{Client, ProbeOptions};
use fairlead_testkit::fake_registry::{Auth, Bearer, FakeRegistry};

use crate::support::{client, client_for, patiently, place, reference, registry_with_app, settings};

async fn ask(client: &Client, image: &Reference, cause: Cause) -> Verdict {
    client.probe(image, &[], ProbeOptions { cause, ..ProbeOptions::default() }, &patiently()).await
}

/// A resolver to which every name is this machine.
struct Here;

impl Resolve for Here {
    fn resolve(&self, _: &str) -> Resolving {
        Box::pin(async { Ok(vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 0))]) })
    }
}

#[tokio::test]
async fn no_connection_of_a_tenant_goes_to_this_machine() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    let port = registry.address().port();
    let client = client();
    let spelled = ["127.0.0.1", "127.1.2.3", "localhost", "LOCALHOST", "[::1]", "[::ffff:7f00:1]", "0.0.0.0"];
    for host in spelled {
        let image = Reference::parse(&format!("{host}:{port}/app:1"))?;
        let verdict = ask(&client, &image, Cause::Tenant).await;
        assert_eq!(verdict.kind(), VerdictKind::OffLimits, "{host}: {verdict}");
        assert!(verdict.reason().contains("under `registries`"), "{verdict}");
    }
    let metadata = Reference::parse("169.254.169.254/latest/meta-data:1")?;
    assert_eq!(ask(&client, &metadata, Cause::Tenant).await.kind(), VerdictKind::OffLimits);
    assert_eq!(registry.connections(), 0);
    // What was refused says nothing about the registry.
    assert!(client.is_down(&Host::parse(&registry.host())?).is_none());
    assert_eq!(ask(&client, &image, Cause::Administrator).await.kind(), VerdictKind::Available);
    // Nor does a tenant's request travel on the connection that is open now.
    let before = (registry.connections(), registry.requests().len());
    assert_eq!(ask(&client, &image, Cause::Tenant).await.kind(), VerdictKind::OffLimits);
    let second = Duration::from_secs(1);
    let check = client.check(&image.host(), Cause::Tenant, second).context("settings that can be used")?;
    assert!(check.ended(second, tokio::time::Instant::now() + 5 * second).await);
    assert_eq!((registry.connections(), registry.requests().len()), before);
    assert!(client.is_down(&Host::parse(&registry.host())?).is_none());
    Ok(())
}

#[tokio::test]
async fn a_name_is_judged_by_what_it_resolves_to() -> Result<()> {
    let (registry, _) = registry_with_app().await?;
    let client = Client::with_resolver(settings(), Arc::new(Here));
    let image = Reference::parse(&format!("harmless.example:{}/app:1", registry.address().port()))?;
    let verdict = ask(&client, &image, Cause::Tenant).await;
    assert_eq!(verdict.kind(), VerdictKind::OffLimits, "{verdict}");
    assert!(verdict.reason().contains("harmless.example is a loopback address"), "{verdict}");
    assert_eq!(registry.connections(), 0);
    // The administrator's request gets as far as the handshake.
    let verdict = ask(&client, &image, Cause::Administrator).await;
    assert_eq!(verdict.kind(), VerdictKind::TlsError, "{verdict}");
    Ok(())
}

#[tokio::test]
async fn a_configured_registry_is_open_to_tenants_wherever_it_is() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    let client = client_for(&registry.host(), |_| {})?;
    assert_eq!(ask(&client, &image, Cause::Tenant).await.kind(), VerdictKind::Available);
    Ok(())
}

#[tokio::test]
async fn what_an_administrator_learnt_of_a_token_server_leads_no_tenant_there() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    registry.require(Auth::bearer(Bearer::new()));
    let client = client();
    assert_eq!(ask(&client, &image, Cause::Administrator).await.kind(), VerdictKind::Available);
    let before = registry.requests().len();
    assert_eq!(ask(&client, &image, Cause::Tenant).await.kind(), VerdictKind::OffLimits);
    assert_eq!(registry.requests().len(), before, "neither the registry nor its token server was asked");
    Ok(())
}

#[tokio::test]
async fn copies_reach_this_machine_on_an_administrators_account_only() -> Result<()> {
    let ((_from, source), to) = (registry_with_app().await?, FakeRegistry::start().await?);
    let copier = Copier::new(&client());
    let destination = reference(&to, "copy:1")?;
    let tenants = |image| CopyEndpoint { cause: Cause::Tenant, ..place(image) };
    let observer: Arc<dyn Observer> = Arc::new(|_: &Event| {});
    for (source, destination, is_source) in
        [(place(&source), tenants(&destination), false), (tenants(&source), place(&destination), true)]
    {
        let error =
            copier.copy(&source, &destination, &CopyOptions::default(), &observer, &patiently()).await;
        let error = error.unwrap_err();
        assert!(error.to_string().contains("is not contacted"), "{error}");
        assert_eq!(matches!(error, CopyError::Source(_)), is_source, "{error}");
        // On an administrator's account the destination is looked at before the source is.
        assert!(is_source || to.connections() == 0);
    }
    copier
        .copy(&place(&source), &place(&destination), &CopyOptions::default(), &observer, &patiently())
        .await?;
    Ok(())
}
