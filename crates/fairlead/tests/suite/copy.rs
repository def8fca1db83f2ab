//! `fairlead copy` as a person runs it: between real registries, one image and many, with the logins of docker.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fairlead_testkit::fake_registry::{Effect, FakeRegistry, Fault, Route};
use fairlead_testkit::images::{self, Image, ImageBuilder};
use fairlead_testkit::{Registry, RegistryConfig, eventually};
use serde_json::{Value, json};

use crate::person::{Outcome, PASSWORD, Person, login};
use crate::unread::signal;

const ACCEPTED: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json";

impl Person {
    fn copy(&self, args: &[&str]) -> Result<Outcome> {
        self.copy_with(args, "")
    }

    fn copy_with(&self, args: &[&str], input: &str) -> Result<Outcome> {
        self.run(&[&["copy"], args].concat(), input)
    }
}

async fn two_registries() -> Result<(Registry, Registry)> {
    Ok((Registry::start(RegistryConfig::new()).await?, Registry::start(RegistryConfig::new()).await?))
}

fn image(label: &str) -> Result<Image> {
    ImageBuilder::new().file("/content", label.as_bytes(), 0o644)?.label("which", label).build()
}

/// The manifest under a name, if it is there, and its digest.
async fn manifest(registry: &Registry, repository: &str, reference: &str) -> Result<Option<(Value, String)>> {
    let endpoint = registry.endpoint();
    let path = format!("/v2/{repository}/manifests/{reference}");
    let answer = endpoint
        .request(&endpoint.http()?, reqwest::Method::GET, &path)
        .header("accept", ACCEPTED)
        .send()
        .await?;
    if answer.status() == reqwest::StatusCode::NOT_FOUND {
        return Ok(None);
    }
    let answer = answer.error_for_status()?;
    let digest = answer.headers()["docker-content-digest"].to_str()?.to_owned();
    Ok(Some((serde_json::from_slice(&answer.bytes().await?)?, digest)))
}

async fn digest(registry: &Registry, repository: &str, tag: &str) -> Result<Option<String>> {
    Ok(manifest(registry, repository, tag).await?.map(|(_, digest)| digest))
}

#[tokio::test]
async fn images_keep_their_digest_and_are_not_sent_twice() -> Result<()> {
    let (from, to) = two_registries().await?;
    let person = Person::new()?;
    for (name, image) in
        [("single", images::empty()?), ("multi", images::multi_platform(&["amd64", "arm64"])?)]
    {
        let pushed = from.endpoint().push(name, "1", &image).await?;
        let blobs = image.blobs().len();
        let source = format!("{}/{name}:1", from.host());
        let target = |tag: &str| format!("{}/mirror/{name}:{tag}", to.host());

        let outcome = person.copy(&[&source, &target("1")])?;
        let rows = outcome.is(0).rows();
        assert_eq!(rows[0][..4], ["copied", &source, &target("1"), &pushed], "{name}");
        assert!(rows.len() == 1 && outcome.errors.is_empty(), "{}{}", outcome.output, outcome.errors);
        assert!(outcome.output.contains(&format!("{blobs} blobs sent")), "{}", outcome.output);
        assert_eq!(digest(&to, &format!("mirror/{name}"), "1").await?.as_ref(), Some(&pushed));

        let outcome = person.copy(&[&source, &target("1")])?;
        assert_eq!(outcome.is(0).rows()[0][..4], ["unchanged", &source, &target("1"), &pushed]);

        let outcome = person.copy(&["--json", &source, &target("2")])?;
        // The platforms of an index are not looked into when the destination has them as a whole.
        let skipped = if name == "single" { blobs } else { 0 };
        let mut object = outcome.is(0).objects().remove(0);
        assert!(object["seconds"].is_number(), "{object}");
        object["seconds"] = Value::Null;
        assert_eq!(
            object,
            json!({
                "source": source, "destination": target("2"), "digest": pushed, "changed": true, "bytes": 0,
                "seconds": null, "blobs": {"copied": 0, "mounted": 0, "skipped": skipped}
            })
        );
        assert_eq!(digest(&to, &format!("mirror/{name}"), "2").await?, Some(pushed));
    }
    Ok(())
}

#[tokio::test]
async fn chosen_platforms_are_all_that_is_copied() -> Result<()> {
    let (from, to) = two_registries().await?;
    let person = Person::new()?;
    let index = images::multi_platform(&["amd64", "arm64", "s390x"])?;
    let whole = from.endpoint().push("app", "1", &index).await?;
    let [source, target] = [&from, &to].map(|registry| format!("{}/app:1", registry.host()));

    let outcome =
        person.copy(&[&source, &target, "--platform", "linux/arm64", "--platform", "linux/s390x"])?;
    let (document, digest) = manifest(&to, "app", "1").await?.expect("it is there");
    assert_eq!(outcome.is(0).rows()[0][3], digest);
    assert_ne!(digest, whole);
    let kept: Vec<_> = document["manifests"].as_array().unwrap().iter().collect();
    let architectures: Vec<_> = kept.iter().map(|entry| &entry["platform"]["architecture"]).collect();
    assert_eq!(architectures, ["arm64", "s390x"]);
    let dropped = index.manifests()[0].digest();
    assert!(manifest(&to, "app", &dropped).await?.is_none(), "the other platform is not there at all");

    let outcome = person.copy(&[&source, &target, "--platform", "windows/amd64"])?;
    assert!(outcome.is(1).output.contains("linux/amd64, linux/arm64"), "{}", outcome.output);
    person.copy(&[&source, &target, "--platform", "linux/"])?.is(2);
    Ok(())
}

#[tokio::test]
async fn of_many_images_one_that_fails_does_not_stop_the_others() -> Result<()> {
    let (from, to) = two_registries().await?;
    let person = Person::new()?;
    let mut list = vec!["# what to copy\n".to_owned()];
    let mut pushed = Vec::new();
    for number in 0..12 {
        pushed.push(from.endpoint().push("app", &number.to_string(), &image(&number.to_string())?).await?);
        list.push(format!("{}/app:{number}\t{}/all/app:{number}\r", from.host(), to.host()));
        if number == 5 {
            list.push(format!("  {}/app:missing {}/all/app:missing", from.host(), to.host()));
        }
    }
    let list = list.join("\n");
    let outcome = person.copy_with(&["--file", "-", "--json", "--jobs", "4"], &list)?;
    let objects = outcome.is(1).objects();
    assert_eq!(objects.len(), 13);
    let failed: Vec<_> = objects.iter().filter(|object| object.get("error").is_some()).collect();
    assert_eq!(failed.len(), 1);
    assert_eq!(failed[0]["source"], json!(format!("{}/app:missing", from.host())));
    assert!(failed[0]["error"].as_str().unwrap().starts_with("source: "), "{}", failed[0]);
    assert!(failed[0].get("digest").is_none() && failed[0]["seconds"].is_number());
    for (number, pushed) in pushed.iter().enumerate() {
        assert_eq!(digest(&to, "all/app", &number.to_string()).await?.as_ref(), Some(pushed));
    }
    assert!(digest(&to, "all/app", "missing").await?.is_none());

    let file = person.write("list", &list.replace("app:missing", "app:0"))?;
    let outcome = person.copy(&["--file", file.to_str().unwrap(), "--jobs", "1"])?;
    let rows = outcome.is(0).rows();
    assert!(rows.len() == 13 && rows.iter().all(|row| row[0] == "unchanged"), "{rows:?}");
    Ok(())
}

#[tokio::test]
async fn the_login_of_the_destination_is_found() -> Result<()> {
    let from = Registry::start(RegistryConfig::new()).await?;
    let to = Registry::start(RegistryConfig::new().tls().user("u", PASSWORD)).await?;
    let pushed = from.endpoint().push("app", "1", &images::empty()?).await?;
    let [source, target] = [&from, &to].map(|registry| format!("{}/app:1", registry.host()));
    let person = Person::new()?;
    let outcome = person.copy(&[&source, &target])?;
    assert!(outcome.is(1).output.contains("--ca-file HOST=FILE"), "{}", outcome.output);

    let authority = person.write("ca.pem", to.endpoint().authority.as_ref().unwrap())?;
    let trust = format!("{}={}", to.host(), authority.display());
    person.write(".docker/config.json", &login(&to.host(), "u:wrong"))?;
    let outcome = person.copy(&[&source, &target, "--ca-file", &trust])?;
    assert_eq!(outcome.is(1).rows()[0][..4], ["failed", &source, &target, "-"]);
    assert!(outcome.output.contains("destination: ") && outcome.output.contains("credentials"));

    person.write(".docker/config.json", &login(&to.host(), &format!("u:{PASSWORD}")))?;
    let outcome = person.copy(&[&source, &target, "--ca-file", &trust])?;
    assert_eq!(outcome.is(0).rows()[0][..4], ["copied", &source, &target, &pushed]);
    assert_eq!(digest(&to, "app", "1").await?, Some(pushed));
    person.copy(&[&source, &target, "--ca-file", &trust, "--anonymous"])?.is(1);
    Ok(())
}

#[tokio::test]
async fn signatures_come_along_on_request() -> Result<()> {
    let (from, to) = two_registries().await?;
    let person = Person::new()?;
    let pushed = from.endpoint().push("app", "1", &images::empty()?).await?;
    let signature = format!("{}.sig", pushed.replace(':', "-"));
    let signed = images::artifact("cosign/signature", b"signed")?;
    let signed = from.endpoint().push("app", &signature, &signed).await?;
    let [source, target] = [&from, &to].map(|registry| format!("{}/app:1", registry.host()));
    person.copy(&[&source, &target])?.is(0);
    assert!(digest(&to, "app", &signature).await?.is_none());
    person.copy(&[&source, &target, "--referrers"])?.is(0);
    assert_eq!(digest(&to, "app", &signature).await?, Some(signed));
    Ok(())
}

/// What comes of a command that is interrupted as soon as something has happened.
async fn interrupted(person: &Person, args: &[&str], happened: impl Fn() -> Result<()>) -> Result<Outcome> {
    let child = person.start(args)?;
    let happened = eventually(Duration::from_secs(20), || std::future::ready(happened())).await;
    signal(&child, "INT")?;
    let outcome = tokio::task::spawn_blocking(|| Outcome::of(child)).await??;
    happened.map(|()| outcome)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interruption_leaves_nothing_half_done() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    let image = images::empty()?;
    from.hold("app", "1", &image);
    to.inject(Fault::new(Effect::Hang).on(Route::Uploads).method("PUT"));
    let person = Person::new()?;
    let [source, target] = [&from, &to].map(|registry| format!("{}/app:1", registry.host()));
    let outcome = interrupted(&person, &["copy", &source, &target], || {
        // An upload whose opening was not answered yet could not be given up: its address is not known.
        let sent = to.requests().iter().filter(|request| request.method == "PUT").count();
        ensure!(sent == image.blobs().len(), "{sent} of {} blobs are being sent", image.blobs().len());
        Ok(())
    })
    .await?;
    assert!(outcome.is(1).errors.starts_with("Interrupted: 0 of 1 images"), "{}", outcome.errors);
    assert_eq!(outcome.output, "");
    assert!(to.digest_of("app", "1").is_none());
    assert_eq!(to.open_uploads(), 0, "the registry was told that the uploads are given up");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_name_stands_for_an_image_without_its_signatures() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    let signature = format!("{}.sig", from.hold("app", "1", &images::empty()?).replace(':', "-"));
    from.hold("app", &signature, &images::artifact("cosign/signature", b"signed")?);
    to.inject(Fault::new(Effect::Hang).on(Route::Manifests).method("PUT").path(&signature));
    let person = Person::new()?;
    let [source, target] = [&from, &to].map(|registry| format!("{}/app:1", registry.host()));
    let outcome = interrupted(&person, &["copy", "--referrers", &source, &target], || {
        ensure!(to.count("PUT", &signature) == 1, "the signature is not being written");
        Ok(())
    })
    .await?;
    let expected = "Interrupted: 0 of 1 images were copied; the names of the others stand for what they did before, or \
                    for the whole new image\n";
    assert_eq!(outcome.is(1).errors, expected);
    assert!(to.digest_of("app", "1").is_none());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_time_for_a_copy_begins_when_its_logins_are_known() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    from.hold("app", "1", &images::empty()?);
    let person = Person::new()?;
    // As a user who has to type a passphrase first.
    person.helper("slow", "sleep 6; echo 'credentials not found in native keychain'; exit 1")?;
    person.write(".docker/config.json", r#"{"credsStore": "slow"}"#)?;
    let [source, target] = [&from, &to].map(|registry| format!("{}/app:1", registry.host()));
    let copy = move || person.copy(&["--timeout", "5s", &source, &target]);
    tokio::task::spawn_blocking(copy).await??.is(0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_runs_out_of_time_says_so() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    from.hold("app", "1", &images::empty()?);
    to.inject(Fault::new(Effect::Hang).on(Route::Uploads).method("PUT"));
    let person = Person::new()?;
    let [source, target] = [&from, &to].map(|registry| format!("{}/app:1", registry.host()));
    let copy = move || person.copy(&["--timeout", "700ms", &source, &target]);
    let outcome = tokio::task::spawn_blocking(copy).await??;
    let told = outcome.is(1).output.trim_end().ends_with("(--timeout 700ms was not enough)");
    assert!(told, "{}", outcome.output);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registry_that_is_left_alone_for_a_while_does_not_hold_up_the_end() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    from.inject(Fault::status(503).and(Effect::Header("retry-after", "60".into())));
    let person = Person::new()?;
    let line = |tag| format!("{}/app:{tag} {}/app:{tag}\n", from.host(), to.host());
    // Enough of them for the registry to count as down.
    let list: String = (0..4).map(line).collect();
    let begun = Instant::now();
    let copy = move || person.copy_with(&["--file", "-", "--timeout", "1s"], &list);
    tokio::task::spawn_blocking(copy).await??.is(1);
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    Ok(())
}

#[test]
fn requests_that_make_no_sense_are_refused_before_anything_is_copied() -> Result<()> {
    let person = Person::new()?;
    let list = person.write("list", "nginx r.example.com/nginx\n\nnginx\nnginx r.example.com/Nginx\n")?;
    let twice = person.write("twice", "a r.example.com/x:1\nb r.example.com/x:1\n")?;
    let (list, twice) = (list.to_str().unwrap(), twice.to_str().unwrap());
    for (args, expected) in [
        (&[][..], "<SRC>"),
        (&["nginx"], "<DST>"),
        (&["nginx", "--file", list], "<DST>"),
        (&["nginx", "r.example.com/Nginx"], "character 15"),
        (&["--file", list], "line 3: write the image"),
        (&["--file", list], "line 4: destination: \"r.example.com/Nginx\""),
        (&["--file", twice], "line 1 and line 2: "),
        (&["--file", twice], "cannot both be copied to r.example.com/x:1"),
        (&["c", "R.example.com/x:1", "--file", twice], "the arguments and line 1: "),
        (&["--file", "/nowhere/list"], "cannot read the list /nowhere/list"),
        (&["--file", "-"], "nothing to copy"),
        (&["nginx", "r.example.com/nginx", "--jobs", "0"], "--jobs"),
        (&["nginx", "r.example.com/nginx", "--timeout", "0s"], "--timeout"),
        (&["nginx", "r.example.com/nginx", "--platform", "a/b/c/d"], "--platform"),
        (&["nginx", "r.example.com/nginx", "--authfile", "/nowhere/auth.json"], "/nowhere/auth.json"),
    ] {
        let outcome = person.copy(args)?;
        assert!(outcome.is(2).errors.contains(expected), "{args:?}: {}", outcome.errors);
        assert_eq!(outcome.output, "");
    }
    Ok(())
}
