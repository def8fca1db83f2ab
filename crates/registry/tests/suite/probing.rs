//! Verdicts: every way a registry can answer, or not.

use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use fairlead_domain::verdict::{Verdict, VerdictKind};
use fairlead_registry::manifest::Selector;
use fairlead_registry::{ProbeMethod, ProbeOptions, Right};
use fairlead_testkit::fake_registry::{Effect, FakeRegistry, Fault, Route};
use fairlead_testkit::pki::Authority;
use futures::future::join_all;

use crate::support::{client, image, parse, patiently, probe, reference, registry_with_app, remote, within};

#[tokio::test]
async fn an_image_that_is_there_is_available_with_its_digest_after_one_request() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let digest = registry.hold("team/app", "1", &image("a")?);
    let client = client();
    let verdict = probe(&client, &reference(&registry, "team/app:1")?, &[]).await;
    assert_eq!(verdict, Verdict::Available { digest: Some(digest.parse()?) });
    let by_digest = reference(&registry, &format!("team/app:gone@{digest}"))?;
    assert!(probe(&client, &by_digest, &[]).await.is_available(), "the digest counts, not the tag");
    let requests = registry.requests();
    assert_eq!(requests.len(), 2, "{requests:?}");
    assert!(requests.iter().all(|request| request.method == "HEAD"));
    assert_eq!(requests[0].path, "/v2/team/app/manifests/1");
    let accept = requests[0].header("accept");
    for kind in ["oci.image.index", "oci.image.manifest", "manifest.list.v2", "distribution.manifest.v2"] {
        assert!(accept.contains(kind), "{accept}");
    }
    assert_eq!(registry.connections(), 2, "one attempt at TLS, then one connection for all");
    Ok(())
}

#[tokio::test]
async fn every_status_gets_its_verdict() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let image = reference(&registry, "team/app:1")?;
    for (status, expected) in [
        (401, VerdictKind::Unauthorised),
        (403, VerdictKind::Forbidden),
        (404, VerdictKind::NotFound),
        (408, VerdictKind::Unreachable),
        (410, VerdictKind::NotFound),
        (429, VerdictKind::RateLimited),
        (500, VerdictKind::Unreachable),
        (503, VerdictKind::Unreachable),
        (400, VerdictKind::Malformed),
        (418, VerdictKind::Malformed),
    ] {
        registry.heal();
        registry.inject(Fault::status(status).on(Route::Manifests));
        let verdict = probe(&client(), &image, &[]).await;
        assert_eq!(verdict.kind(), expected, "{status}: {verdict}");
        assert!(!verdict.reason().is_empty());
    }
    Ok(())
}

#[tokio::test]
async fn a_passing_failure_is_asked_about_again() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    registry.inject(Fault::status(503).times(1));
    registry.inject(Fault::new(Effect::Drop).times(1));
    let verdict = probe(&client(), &image, &[]).await;
    assert!(verdict.is_available(), "{verdict}");
    assert_eq!(registry.count("HEAD", "manifests"), 3);
    Ok(())
}

#[tokio::test]
async fn a_quota_that_is_used_up_says_when_it_is_back() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    let ends = |verdict: Verdict| match verdict {
        Verdict::RateLimited { until: Some(until), .. } => {
            until.duration_since(SystemTime::now()).unwrap_or_default().as_secs().div_ceil(10) * 10
        }
        other => panic!("expected a quota with an end, got {other}"),
    };
    registry.inject(Fault::status(429).and(Effect::Header("retry-after", "30".into())).times(1));
    let client = client();
    assert_eq!(ends(probe(&client, &image, &[]).await), 30);
    assert_eq!(ends(probe(&client, &image, &[]).await), 30, "nothing is asked before then");
    assert_eq!(registry.requests().len(), 1);

    registry.heal();
    registry.inject(Fault::new(Effect::Header("ratelimit-remaining", "0;w=21600".into())));
    assert_eq!(ends(probe(&crate::support::client(), &image, &[]).await), 21600, "also on a success");
    registry.heal();
    registry.inject(Fault::new(Effect::Header("ratelimit-remaining", "5;w=21600".into())));
    assert!(probe(&crate::support::client(), &image, &[]).await.is_available());
    Ok(())
}

#[tokio::test]
async fn silence_refusal_and_unknown_names_are_unreachable() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    registry.inject(Fault::new(Effect::Hang));
    let started = Instant::now();
    let verdict = client()
        .probe(
            &reference(&registry, "app:1")?,
            &[],
            ProbeOptions::default(),
            &within(Duration::from_millis(300)),
        )
        .await;
    assert_eq!(verdict.kind(), VerdictKind::Unreachable);
    assert!(verdict.reason().contains("deadline"), "{verdict}");
    assert!(started.elapsed() < Duration::from_secs(3));

    let gone = reference(&registry, "app:1")?;
    drop(registry);
    let verdict = probe(&client(), &gone, &[]).await;
    assert_eq!(verdict.kind(), VerdictKind::Unreachable, "{verdict}");
    assert!(verdict.reason().contains("refused"), "{verdict}");

    let verdict = probe(&client(), &parse("registry.invalid/app:1")?, &[]).await;
    assert_eq!(verdict.kind(), VerdictKind::Unreachable, "{verdict}");
    assert!(verdict.reason().contains("its name cannot be resolved"), "{verdict}");
    let verdict = probe(&client(), &parse("registry.example:99999/app:1")?, &[]).await;
    assert_eq!(verdict.kind(), VerdictKind::Unreachable, "{verdict}");
    Ok(())
}

#[tokio::test]
async fn a_certificate_that_is_not_trusted_is_a_tls_error() -> Result<()> {
    let identity = Authority::new("nobody knows it")?.issue(&["127.0.0.1"])?;
    let registry = FakeRegistry::start_tls(&identity).await?;
    let verdict = probe(&client(), &reference(&registry, "app:1")?, &[]).await;
    assert_eq!(verdict.kind(), VerdictKind::TlsError, "{verdict}");
    assert!(verdict.reason().contains("caFile"), "{verdict}");
    Ok(())
}

#[tokio::test]
async fn where_head_makes_no_sense_the_manifest_is_read_and_hashed() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let digest = registry.hold("app", "1", &image("a")?);
    let wrong = format!("sha256:{}", "0".repeat(64));
    let odd_heads = [
        Fault::new(Effect::WithoutHeader("docker-content-digest")),
        Fault::new(Effect::Header("docker-content-digest", "md5:nonsense".into())),
        Fault::new(Effect::WithoutHeader("content-length")),
        Fault::new(Effect::WithoutHeader("content-type")),
        Fault::new(Effect::Header("content-type", "text/html".into())),
        Fault::status(405),
        Fault::status(501),
    ];
    for fault in odd_heads {
        registry.heal();
        registry.forget_requests();
        registry.inject(fault.clone().method("HEAD"));
        let verdict = probe(&client(), &reference(&registry, "app:1")?, &[]).await;
        assert_eq!(verdict.digest(), Some(digest.parse()?), "{fault:?}: {verdict}");
        assert_eq!((registry.count("HEAD", ""), registry.count("GET", "")), (1, 1), "{fault:?}");
    }
    registry.heal();
    registry.inject(Fault::new(Effect::Header("docker-content-digest", wrong.clone())));
    let options = ProbeOptions { method: ProbeMethod::Get, ..ProbeOptions::default() };
    let image = reference(&registry, "app:1")?;
    let verdict = client().probe(&image, &[], options, &patiently()).await;
    assert_eq!(verdict.digest(), Some(digest.parse()?), "a header that lies is not believed");
    let by_digest = reference(&registry, &format!("app@{digest}"))?;
    let verdict = probe(&client(), &by_digest, &[]).await;
    assert_eq!(verdict.digest(), Some(digest.parse()?), "nor about what was asked for by digest");
    Ok(())
}

#[tokio::test]
async fn what_is_no_manifest_is_malformed() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let image = reference(&registry, "app:1")?;
    let page = Effect::Answer(200, "text/html", b"<html>log in first</html>".to_vec());
    registry.inject(Fault::new(page));
    let verdict = probe(&client(), &image, &[]).await;
    assert_eq!(verdict.kind(), VerdictKind::Malformed, "{verdict}");

    registry.heal();
    let digest = registry.hold("app", "1", &crate::support::image("a")?);
    registry.inject(Fault::new(Effect::Corrupt));
    let by_digest = reference(&registry, &format!("app@{digest}"))?;
    let options = ProbeOptions { method: ProbeMethod::Get, ..ProbeOptions::default() };
    let verdict = client().probe(&by_digest, &[], options, &patiently()).await;
    assert_eq!(verdict.kind(), VerdictKind::Malformed, "{verdict}");

    registry.heal();
    let endless =
        Effect::Answer(200, "application/vnd.oci.image.manifest.v1+json", vec![b' '; 5 * 1024 * 1024]);
    registry.inject(Fault::new(endless));
    let verdict = client().probe(&image, &[], options, &patiently()).await;
    assert_eq!(verdict.kind(), VerdictKind::Malformed, "{verdict}");
    assert!(verdict.reason().contains("longer than"), "{verdict}");
    Ok(())
}

#[tokio::test]
async fn the_second_look_finds_a_tag_without_its_manifest() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let digest = registry.hold("app", "1", &image("a")?);
    let image = reference(&registry, "app:1")?;
    let check = |method| ProbeOptions { method, check_digest: true, ..ProbeOptions::default() };
    let ask = async |method| client().probe(&image, &[], check(method), &patiently()).await;

    assert!(ask(ProbeMethod::Head).await.is_available());
    assert_eq!(registry.count("HEAD", ""), 2);
    assert_eq!(registry.count("HEAD", &digest), 1);

    for (status, by_head, by_get) in [
        (404, VerdictKind::NotFound, VerdictKind::NotFound),
        (401, VerdictKind::Unauthorised, VerdictKind::Unauthorised),
        (429, VerdictKind::RateLimited, VerdictKind::RateLimited),
        (405, VerdictKind::Available, VerdictKind::Malformed),
    ] {
        registry.heal();
        registry.inject(Fault::status(status).path(&digest));
        assert_eq!(ask(ProbeMethod::Head).await.kind(), by_head, "{status}");
        assert_eq!(ask(ProbeMethod::Get).await.kind(), by_get, "{status}");
    }
    registry.heal();
    registry.inject(Fault::status(404).path(&digest));
    assert!(ask(ProbeMethod::Head).await.reason().contains("its manifest"));

    registry.heal();
    registry.forget_requests();
    let by_digest = reference(&registry, &format!("app@{digest}"))?;
    client().probe(&by_digest, &[], check(ProbeMethod::Head), &patiently()).await;
    assert_eq!(registry.requests().len(), 1, "a digest needs no second look");
    Ok(())
}

#[tokio::test]
async fn the_second_look_is_not_content_with_any_success() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let digest = registry.hold("app", "1", &image("a")?);
    let image = reference(&registry, "app:1")?;
    let options = ProbeOptions { check_digest: true, ..ProbeOptions::default() };
    let ask = async || client().probe(&image, &[], options, &patiently()).await;

    let page = Effect::Answer(200, "text/html", b"<html>log in first</html>".to_vec());
    registry.inject(Fault::new(page).path(&digest));
    let verdict = ask().await;
    assert_eq!(verdict.kind(), VerdictKind::Malformed, "{verdict}");

    registry.heal();
    registry.forget_requests();
    let other = format!("sha256:{}", "0".repeat(64));
    let other = Effect::Header("docker-content-digest", other);
    registry.inject(Fault::new(other).method("HEAD").path(&digest));
    assert_eq!(ask().await.digest(), Some(digest.parse()?));
    assert_eq!(registry.count("GET", &digest), 1, "what its headers do not say is read");
    Ok(())
}

#[tokio::test]
async fn the_same_question_is_asked_once_in_whatever_case_the_host_is_written() -> Result<()> {
    let (registry, _) = registry_with_app().await?;
    registry.inject(Fault::new(Effect::Delay(Duration::from_millis(200))));
    let client = client();
    let port = registry.address().port();
    let names = ["localhost", "LOCALHOST", "Localhost"].map(|name| parse(&format!("{name}:{port}/app:1")));
    let names = names.into_iter().collect::<Result<Vec<_>>>()?;
    let verdicts = join_all(names.iter().map(|name| probe(&client, name, &[]))).await;
    assert!(verdicts.iter().all(Verdict::is_available), "{verdicts:?}");
    assert_eq!(registry.requests().len(), 1);
    Ok(())
}

#[tokio::test]
async fn both_looks_share_one_deadline() -> Result<()> {
    let (registry, image) = registry_with_app().await?;
    registry.inject(Fault::new(Effect::Delay(Duration::from_millis(400))));
    let options = ProbeOptions { check_digest: true, ..ProbeOptions::default() };
    let verdict = client().probe(&image, &[], options, &within(Duration::from_millis(600))).await;
    assert_eq!(verdict.kind(), VerdictKind::Unreachable, "each of them alone would be in time");
    Ok(())
}

#[tokio::test]
async fn a_tag_is_resolved_whatever_kind_of_manifest_it_names() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let client = client();
    for (tag, kind) in [
        ("index", fairlead_registry::manifest::OCI_INDEX),
        ("manifest", fairlead_registry::manifest::OCI_MANIFEST),
        ("list", fairlead_registry::manifest::DOCKER_LIST),
        ("docker", fairlead_registry::manifest::DOCKER_MANIFEST),
    ] {
        let digest = registry.hold_manifest("app", tag, kind, format!(r#"{{"mediaType":"{kind}"}}"#));
        let image = reference(&registry, &format!("app:{tag}"))?;
        let resolved =
            remote(&client, &image, Right::Pull)?.resolve(&Selector::of(&image), &patiently()).await?;
        assert_eq!(resolved.digest.to_string(), digest);
        assert_eq!(resolved.media_type, kind);
    }
    Ok(())
}

#[tokio::test]
async fn a_manifest_asked_for_by_sha512_is_checked_by_it() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let kind = fairlead_registry::manifest::OCI_INDEX;
    let digest = registry.hold_manifest("app", "sha512:", kind, r#"{"manifests":[]}"#);
    assert!(digest.starts_with("sha512:"));
    let image = reference(&registry, &format!("app@{digest}"))?;
    let client = client();
    let remote = remote(&client, &image, Right::Pull)?;
    assert_eq!(remote.manifest(&Selector::of(&image), &patiently()).await?.digest.to_string(), digest);
    registry.inject(Fault::new(Effect::Corrupt));
    let error = remote.manifest(&Selector::of(&image), &patiently()).await.unwrap_err();
    assert!(error.to_string().contains("digest"), "{error}");
    Ok(())
}
