//! Copies by a user with several logins, of which not every one may do everything.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::Result;
use fairlead_domain::cause::Cause;
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::VerdictKind;
use fairlead_registry::copy::{Copied, Copier, CopyEndpoint, CopyError, CopyOptions, Event, Observer};
use fairlead_testkit::fake_registry::{Auth, FakeRegistry, Fault};

use crate::support::{
    bytes, client, image, in_background, layered, logins, place, probe, reference, registry_with_app,
};

async fn copy_as(
    users: &[(&str, &str)],
    source: &Reference,
    destination: &Reference,
) -> Result<Copied, CopyError> {
    let nobody: Arc<dyn Observer> = Arc::new(|_: &Event| {});
    let destination = CopyEndpoint {
        reference: destination.clone(),
        credentials: logins(destination, users).into(),
        cause: Cause::Administrator,
    };
    let options = CopyOptions::default();
    Copier::new(&client()).copy(&place(source), &destination, &options, &nobody, &in_background()).await
}

#[tokio::test]
async fn a_login_that_is_not_known_hides_no_absence_that_another_finds() -> Result<()> {
    let from = FakeRegistry::start().await?;
    // Large enough to be looked for before it is sent.
    from.hold("app", "1", &layered(&[&bytes(1, 2_000_000)])?);
    let source = reference(&from, "app:1")?;
    let to = FakeRegistry::start().await?;
    to.require(Auth::basic("ada", "secret"));
    let destination = reference(&to, "new/app:1")?;
    copy_as(&[("bob", "wrong"), ("ada", "secret")], &source, &destination).await?;
    assert!(to.digest_of("new/app", "1").is_some());

    let error = copy_as(&[("bob", "wrong"), ("eve", "wrong")], &source, &destination).await.unwrap_err();
    assert!(error.to_string().contains("does not accept the credentials"), "{error}");
    Ok(())
}

#[tokio::test]
async fn where_one_login_may_only_read_another_writes() -> Result<()> {
    let (_from, source) = registry_with_app().await?;
    for refusal in [401, 403] {
        let to = FakeRegistry::start().await?;
        let users = ["reader", "writer"].map(|user| (user.to_owned(), "secret".to_owned()));
        to.require(Auth::Basic(HashMap::from(users)));
        for method in ["POST", "PATCH", "PUT"] {
            to.inject(Fault::status(refusal).method(method).user("reader"));
        }
        let old = to.hold("app", "1", &image("old")?);
        let both = [("reader", "secret"), ("writer", "secret")];
        let done = copy_as(&both, &source, &reference(&to, "app:1")?).await?;
        assert_eq!(to.digest_of("app", "1"), Some(done.digest.to_string()), "{refusal}");
        assert_ne!(to.digest_of("app", "1"), Some(old));

        let error = copy_as(&[("reader", "secret")], &source, &reference(&to, "app:2")?).await.unwrap_err();
        assert!(matches!(error, CopyError::Destination(_)), "{refusal}: {error}");
    }
    Ok(())
}

#[tokio::test]
async fn a_login_that_is_not_known_hides_no_failure_that_passes() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    registry.require(Auth::basic("ada", "secret"));
    registry.inject(Fault::status(503).user("ada"));
    let verdict = probe(&client(), &image, &logins(&image, &[("bob", "wrong"), ("ada", "secret")])).await;
    assert_eq!(verdict.kind(), VerdictKind::Unreachable, "{verdict}");
    Ok(())
}
