//! Servers that repeat the secrets they were sent.

use anyhow::Result;
use fairlead_domain::verdict::VerdictKind;
use fairlead_registry::Right;
use fairlead_registry::manifest::Selector;
use fairlead_testkit::fake_registry::{Auth, Bearer, Effect, FakeRegistry, Fault, Route};
use serde_json::json;

use crate::support::{client, image, logins, patiently, probe, reference};

const PASSWORD: &str = "hunter2&more";
const BASIC: &str = "YWRhOmh1bnRlcjImbW9yZQ==";
const IN_FORM: &str = "hunter2%26more";

/// Answers as a server that explains itself with these words.
fn says(status: u16, message: &str) -> Fault {
    let body = json!({"errors": [{"code": "DENIED", "message": message}, {"code": "SECOND"}]});
    Fault::new(Effect::Answer(status, "application/json", body.to_string().into_bytes()))
}

fn repetitions() -> Vec<String> {
    vec![
        format!("bad login ada:{PASSWORD}"),
        format!("cannot read 'Authorization: Basic {BASIC}'"),
        format!("cannot read username=ada&password={IN_FORM}"),
        // Cut where half of the password is left.
        format!("{}{PASSWORD}", " ".repeat(290)),
    ]
}

#[track_caller]
fn check(text: &str) {
    for secret in ["hunter2", BASIC.trim_end_matches('='), IN_FORM, "token-"] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
    assert!(text.contains("DENIED (its words repeat a secret and are left out); SECOND"), "{text}");
}

#[tokio::test]
async fn a_registry_that_repeats_a_password_is_not_quoted() -> Result<()> {
    for words in repetitions() {
        for (status, kind) in [
            (401, VerdictKind::Unauthorised),
            (403, VerdictKind::Forbidden),
            (404, VerdictKind::NotFound),
            (429, VerdictKind::RateLimited),
        ] {
            let registry = FakeRegistry::start().await?;
            registry.require(Auth::basic("ada", PASSWORD));
            // An unknown caller gets the usual challenge; the answer to it is what is repeated.
            registry.inject(
                says(status, &words)
                    .method("GET")
                    .after(1)
                    .and(Effect::Header("www-authenticate", "Basic realm=\"here\"".to_owned())),
            );
            let image = reference(&registry, "app:1")?;
            let client = client();
            let remote =
                client.repository(&image.repository(), logins(&image, &[("ada", PASSWORD)]), Right::Pull)?;
            let error = remote.manifest(&Selector::of(&image), &patiently()).await.unwrap_err();
            check(&error.to_string());
            check(&format!("{error:?}"));
            assert_eq!(error.problem.verdict().kind(), kind, "{error}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_registry_that_repeats_a_token_is_not_quoted() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    registry.hold("app", "1", &image("a")?);
    registry.require(Auth::bearer(Bearer::new().user("ada", PASSWORD)));
    let image = reference(&registry, "app:1")?;
    let client = client();
    let credentials = logins(&image, &[("ada", PASSWORD)]);
    assert!(probe(&client, &image, &credentials).await.is_available());
    let last = registry.requests().pop().expect("it was asked");
    let token = last.header("authorization").strip_prefix("Bearer ").expect("a token").to_owned();
    registry.inject(says(403, &format!("the token {token} has no right to pull")).method("GET"));
    let remote = client.repository(&image.repository(), credentials, Right::Pull)?;
    let error = remote.manifest(&Selector::of(&image), &patiently()).await.unwrap_err();
    assert!(!error.to_string().contains(&token), "{error}");
    check(&error.to_string());
    Ok(())
}

#[tokio::test]
async fn a_token_server_that_repeats_a_password_is_not_quoted() -> Result<()> {
    for words in repetitions() {
        for (user, status) in [("ada", 401), ("ada", 403), ("ada", 404), ("<token>", 401)] {
            let registry = FakeRegistry::start().await?;
            registry.require(Auth::bearer(Bearer::new().user("ada", PASSWORD)));
            registry.inject(says(status, &words).on(Route::Token));
            let image = reference(&registry, "app:1")?;
            // The Basic form of an identity token is never sent, so it cannot be repeated.
            if user == "<token>" && words.contains(BASIC) {
                continue;
            }
            let verdict = probe(&client(), &image, &logins(&image, &[(user, PASSWORD)])).await;
            assert!(!verdict.is_available());
            assert!(verdict.reason().contains("its token server says"), "{verdict}");
            check(verdict.reason());
            check(&format!("{verdict:?}"));
        }
    }
    Ok(())
}

#[tokio::test]
async fn other_words_are_repeated_as_ever() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    registry.inject(says(403, "ada may not pull from here").method("GET"));
    let image = reference(&registry, "app:1")?;
    let remote =
        client().repository(&image.repository(), logins(&image, &[("ada", PASSWORD)]), Right::Pull)?;
    let error = remote.manifest(&Selector::of(&image), &patiently()).await.unwrap_err();
    assert!(error.to_string().contains("DENIED (ada may not pull from here); SECOND"), "{error}");
    Ok(())
}
