//! `fairlead probe` as a person runs it: real registries, the login files of docker and podman, helpers on the PATH.

use std::time::Duration;

use anyhow::Result;
use fairlead_testkit::fake_registry::{Auth, Bearer, Effect, FakeRegistry, Fault};
use fairlead_testkit::{Registry, RegistryConfig, images};
use serde_json::{Value, json};

use crate::person::{Outcome, PASSWORD, Person, base64, login};

impl Person {
    fn probe(&self, args: &[&str]) -> Result<Outcome> {
        self.probe_with(args, "")
    }

    fn probe_with(&self, args: &[&str], input: &str) -> Result<Outcome> {
        self.run(&[&["probe"], args].concat(), input)
    }
}

/// A registry that holds `team/app:1`, and the image's digest.
async fn registry(config: RegistryConfig) -> Result<(Registry, String)> {
    let registry = Registry::start(config).await?;
    let digest = registry.endpoint().push("team/app", "1", &images::empty()?).await?;
    Ok((registry, digest))
}

#[tokio::test]
async fn verdicts_are_printed_in_the_order_given() -> Result<()> {
    let (alive, digest) = registry(RegistryConfig::new()).await?;
    let (dead, _) = registry(RegistryConfig::new()).await?;
    dead.kill().await?;
    let person = Person::new()?;
    let [there, missing, gone] = [
        format!("{}/team/app:1", alive.host()),
        format!("{}/team/app:2", alive.host()),
        format!("{}/team/app:1", dead.host()),
    ];

    let outcome = person.probe(&[&there, "--digest"])?;
    let rows = outcome.is(0).rows();
    assert_eq!(rows[0][..3], [&there, "available", &digest]);
    assert!(rows[0][3].ends_with("ms") && rows[0].len() == 4, "{rows:?}");
    assert_eq!(outcome.errors, "");

    let outcome = person.probe(&[&gone, &there, &missing])?;
    let rows = outcome.is(1).rows();
    assert_eq!(rows.len(), 3);
    assert_eq!(rows[0][..3], [&gone, "unreachable", "-"]);
    assert_eq!(rows[1][..3], [&there, "available", &digest]);
    assert_eq!(rows[2][..3], [&missing, "not-found", "-"]);
    assert!(outcome.output.lines().all(|line| line.trim_end() == line));

    let list = format!("# images\n{missing}\n\n{there}\n");
    for args in [
        &["--json", &gone, "--file", "-"][..],
        &["--json", &gone, "--file", person.write("list", &list)?.to_str().unwrap()],
    ] {
        let outcome = person.probe_with(args, &list)?;
        let mut objects = outcome.is(1).objects();
        let place = |name: &Value| [&gone, &missing, &there].iter().position(|given| *name == json!(given));
        objects.sort_by_key(|object| place(&object["reference"]));
        let verdicts: Vec<_> =
            objects.iter().map(|object| (&object["reference"], &object["verdict"])).collect();
        assert_eq!(
            verdicts,
            [
                (&json!(gone), &json!("unreachable")),
                (&json!(missing), &json!("not-found")),
                (&json!(there), &json!("available"))
            ]
        );
        assert_eq!(objects[2]["digest"], json!(digest));
        assert!(objects[2]["milliseconds"].is_u64() && objects[2].get("reason").is_none());
        assert!(!objects[0]["reason"].as_str().unwrap().is_empty());
    }
    Ok(())
}

#[tokio::test]
async fn logins_of_docker_podman_and_helpers_are_used() -> Result<()> {
    let (registry, digest) = registry(RegistryConfig::new().user("u", PASSWORD)).await?;
    let host = registry.host();
    let image = format!("{host}/team/app:1");
    let verdict = |outcome: Outcome| outcome.rows()[0][1].to_owned();
    let right = login(&host, &format!("u:{PASSWORD}"));

    let person = Person::new()?;
    assert_eq!(verdict(person.probe(&[&image])?), "unauthorised");
    person.write(".docker/config.json", &right)?;
    let outcome = person.probe(&[&image])?;
    assert_eq!(outcome.is(0).rows()[0][..3], [&image, "available", &digest]);
    assert_eq!(verdict(person.probe(&[&image, "--anonymous"])?), "unauthorised");
    let wrong = person.write("wrong.json", &login(&host, "u:wrong"))?;
    assert_eq!(verdict(person.probe(&[&image, "--authfile", wrong.to_str().unwrap()])?), "unauthorised");

    let person = Person::new()?;
    person.write(".config/containers/auth.json", &right)?;
    person.probe(&[&image])?.is(0);

    let person = Person::new()?;
    person.write(".docker/config.json", &json!({"credHelpers": {&host: "test"}}).to_string())?;
    let outcome = person.probe(&[&image])?;
    assert!(outcome.is(1).errors.contains("docker-credential-test"), "{}", outcome.errors);
    assert!(outcome.errors.contains(".docker/config.json") && outcome.errors.contains("PATH"));
    person.helper(
        "test",
        &format!(
            r#"read -r server; [ "$server" = {host} ] && echo '{{"Username":"u","Secret":"{PASSWORD}"}}'"#
        ),
    )?;
    assert_eq!(person.probe(&[&image, &image])?.is(0).errors, "");
    Ok(())
}

#[tokio::test]
async fn a_broken_login_file_is_named_and_does_not_stop_the_rest() -> Result<()> {
    let (registry, _) = registry(RegistryConfig::new()).await?;
    let image = format!("{}/team/app:1", registry.host());
    let person = Person::new()?;
    let broken = person.write(".docker/config.json", &format!(r#"{{"auths": {{"a": "{PASSWORD}"}}}}"#))?;
    let outcome = person.probe(&[&image])?;
    assert!(outcome.is(0).errors.starts_with("Warning: the login file "), "{}", outcome.errors);
    assert!(outcome.errors.contains(broken.to_str().unwrap()), "{}", outcome.errors);
    let outcome = person.probe(&[&image, "--authfile", broken.to_str().unwrap()])?;
    assert!(outcome.is(2).output.is_empty(), "a file that was asked for must be good");
    Ok(())
}

#[tokio::test]
async fn a_private_authority_is_trusted_where_it_is_named() -> Result<()> {
    let (registry, digest) = registry(RegistryConfig::new().tls().user("u", PASSWORD)).await?;
    let host = registry.host();
    let image = format!("{host}/team/app:1");
    let person = Person::new()?;
    person.write(".docker/config.json", &login(&host, &format!("u:{PASSWORD}")))?;
    let outcome = person.probe(&[&image])?;
    assert_eq!(outcome.is(1).rows()[0][..2], [&image, "tls-error"]);
    assert!(outcome.output.contains("--ca-file HOST=FILE"), "{}", outcome.output);

    let authority = person.write("ca.pem", registry.endpoint().authority.as_ref().unwrap())?;
    let outcome = person.probe(&[&image, "--ca-file", &format!("{host}={}", authority.display())])?;
    assert_eq!(outcome.is(0).rows()[0][..3], [&image, "available", &digest]);

    let outcome = person.probe(&[&image, "--ca-file", &format!("{host}=/nowhere/ca.pem")])?;
    assert!(outcome.is(2).errors.contains("/nowhere/ca.pem"), "{}", outcome.errors);
    person.probe(&[&image, "--ca-file", "/nowhere/ca.pem"])?.is(2);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_server_elsewhere_gets_the_login_where_it_is_named() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    registry.hold("team/app", "1", &images::empty()?);
    // The same machine under another name is another host.
    let elsewhere = format!("localhost:{}", registry.address().port());
    let realm = Some(format!("http://{elsewhere}/token"));
    registry.require(Auth::bearer(Bearer { realm, ..Bearer::new().user("u", PASSWORD) }));
    let (host, image) = (registry.host(), format!("{}/team/app:1", registry.host()));
    let person = Person::new()?;
    person.write(".docker/config.json", &login(&host, &format!("u:{PASSWORD}")))?;
    let outcome = person.probe(&[&image])?;
    assert_eq!(outcome.is(1).rows()[0][..2], [&image, "unauthorised"]);
    assert!(outcome.output.contains("--token-host HOST=TOKEN-HOST"), "{}", outcome.output);

    person.probe(&[&image, "--token-host", &format!("{host}={elsewhere}")])?.is(0);
    person.probe(&[&image, "--token-host", &host])?.is(2);
    Ok(())
}

#[tokio::test]
async fn a_registry_that_hangs_costs_no_more_than_the_timeout() -> Result<()> {
    let (alive, _) = registry(RegistryConfig::new()).await?;
    let (hanging, _) = registry(RegistryConfig::new()).await?;
    hanging.pause().await?;
    let person = Person::new()?;
    let [stuck, there] = [&hanging, &alive].map(|registry| format!("{}/team/app:1", registry.host()));
    let started = std::time::Instant::now();
    let outcome = person.probe(&[&stuck, &there, "--timeout", "1s", "--json"])?;
    let taken = started.elapsed();
    hanging.resume().await?;
    let verdicts: Vec<_> = outcome.is(1).objects().iter().map(|object| object["verdict"].clone()).collect();
    assert_eq!(verdicts, [json!("available"), json!("unreachable")], "each as soon as it is known");
    assert!(taken < Duration::from_secs(8), "{taken:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_identity_token_is_exchanged() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    registry.hold("team/app", "1", &images::empty()?);
    let bearer = Bearer { refresh_tokens: vec![PASSWORD.into()], ..Bearer::new().user("u", "other") };
    registry.require(Auth::bearer(bearer));
    let person = Person::new()?;
    let entry = json!({"auth": base64("00000000-0000-0000-0000-000000000000:"), "identitytoken": PASSWORD});
    person.write(".docker/config.json", &json!({"auths": {registry.host(): entry}}).to_string())?;
    let image = format!("{}/team/app:1", registry.host());
    let outcome = tokio::task::spawn_blocking(move || person.probe(&[&image])).await??;
    outcome.is(0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_are_asked_for_side_by_side() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    registry.inject(Fault::new(Effect::Delay(Duration::from_millis(300))));
    let list: Vec<_> = (0..12).map(|number| format!("{}/team/app:{number}", registry.host())).collect();
    let person = Person::new()?;
    let probe = move || {
        person.probe_with(&["--file", "-"], &list.join("\n")).map(|outcome| outcome.is(1).rows().len())
    };
    assert_eq!(tokio::task::spawn_blocking(probe).await??, 12);
    assert!(registry.peak_in_flight() >= 4, "{} at once", registry.peak_in_flight());
    Ok(())
}

#[test]
fn questions_that_make_no_sense_are_refused_before_anything_is_asked() -> Result<()> {
    let person = Person::new()?;
    let list = person.write("list", "nginx\n\nquay.io/team/App\n")?;
    for (args, expected) in [
        (&[][..], "<REF>"),
        (&["quay.io/team/App"], "character 14"),
        (&["nginx:"], "tag is empty at character 7"),
        (&["--file", list.to_str().unwrap()], "line 3: \"quay.io/team/App\""),
        (&["--file", "/nowhere/list"], "cannot read the list /nowhere/list"),
        (&["--file", "-"], "nothing to probe"),
        (&["nginx", "--timeout", "10"], "without a unit"),
        (&["nginx", "--timeout", "0s"], "--timeout"),
        (&["nginx", "--plain-http", "http://r.example.com"], "--plain-http"),
        (&["nginx", "--authfile", "/nowhere/auth.json"], "/nowhere/auth.json: it does not exist"),
    ] {
        let outcome = person.probe(args)?;
        assert!(outcome.is(2).errors.contains(expected), "{args:?}: {}", outcome.errors);
        assert_eq!(outcome.output, "");
    }
    Ok(())
}
