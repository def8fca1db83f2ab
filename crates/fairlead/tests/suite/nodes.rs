//! `fairlead render`, `fairlead resolve` and `fairlead convert` as a person runs them, on files.

use anyhow::Result;

use crate::person::Person;
use crate::yaml::{documents, repository};

const POLICIES: &str = "\
apiVersion: config.openshift.io/v1
kind: ImageSourceDigestPolicy
metadata: {name: team}
spec:
  repositoryDigestMirrors:
  - source: hub.test/team
    mirrors: [m.test/team]
---
apiVersion: config.openshift.io/v1
kind: ImageSourceTagPolicy
metadata: {name: hub}
spec:
  repositoryTagMirrors:
  - source: docker.io
    mirrors: [m.test/hub]
---
apiVersion: config.openshift.io/v1
kind: ImageTagMirrorSet
metadata: {name: shut}
spec:
  imageTagMirrors:
  - source: shut.test
    mirrors: [m.test/shut]
    mirrorSourcePolicy: NeverContactSource
---
apiVersion: v1
kind: ConfigMap
metadata: {name: unrelated}
";

const OLD: &str = "\
apiVersion: operator.openshift.io/v1alpha1
kind: ImageContentSourcePolicy
metadata:
  name: old
  uid: 0a1b
  labels: {team: a}
  annotations: {kubectl.kubernetes.io/last-applied-configuration: '{}'}
spec:
  repositoryDigestMirrors:
  - source: hub.test/team
    mirrors: [m.test/a, m.test/b, m.test/a]
  - source: hub.test/none
";

const DIGEST: &str = "@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

#[test]
fn files_for_crio_go_to_standard_output_or_into_a_directory() -> Result<()> {
    let person = Person::new()?;
    let file = person.write("policies/all.yaml", POLICIES)?;
    let directory = file.parent().unwrap().to_str().unwrap();
    let printed = person.run(&["render", "-f", directory], "")?;
    printed.is(0);
    let mirror = "location = \"hub.test/team\"\n\n  [[registry.mirror]]\n    location = \"m.test/team\"\n    pull-from-mirror = \"digest-only\"\n";
    assert!(printed.output.contains(mirror), "{}", printed.output);
    assert!(printed.output.contains("location = \"shut.test\"\n  blocked = true\n"), "{}", printed.output);
    let told: Vec<&str> = printed.errors.lines().collect();
    // Of a whole host, names with another port are treated the same, which matters if something names one.
    assert!(told.len() == 1 && told[0].starts_with("Warning: shut.test: "), "{}", printed.errors);
    let with_port = person.run(&["render", "-f", "-", "--insecure-registry", "shut.test:5000"], POLICIES)?;
    assert!(with_port.is(3).errors.contains("not exact for CRI-O: shut.test: "), "{}", with_port.errors);

    let target = person.path("out");
    let written = person.run(&["render", "-f", "-", "--output-dir", target.to_str().unwrap()], POLICIES)?;
    assert_eq!(written.is(0).output, "");
    let content = std::fs::read_to_string(target.join("50-fairlead.conf"))?;
    assert_eq!(printed.output, format!("# 50-fairlead.conf\n{content}"));
    Ok(())
}

#[test]
fn what_containerd_cannot_express_is_named() -> Result<()> {
    let person = Person::new()?;
    let target = person.path("certs.d");
    let outcome = person.run(
        &["render", "-f", "-", "--runtime", "containerd", "--output-dir", target.to_str().unwrap()],
        POLICIES,
    )?;
    outcome.is(3);
    let hub = std::fs::read_to_string(target.join("docker.io/hosts.toml"))?;
    assert!(hub.contains("[host.\"https://m.test/v2/hub\"]"), "{hub}");
    assert!(!target.join("hub.test").exists());
    assert!(outcome.errors.contains("not exact for containerd: hub.test/team: "), "{}", outcome.errors);
    assert!(outcome.errors.contains("not exact for containerd: shut.test: "), "{}", outcome.errors);

    let old = ["render", "-f", "-", "--runtime", "containerd", "--runtime-version", "1.4.3"];
    let refused = person.run(&old, POLICIES)?;
    assert!(refused.is(1).errors.contains("containerd 1.4.3 is too old"), "{}", refused.errors);
    Ok(())
}

#[test]
fn a_wrong_policy_is_named_and_the_others_are_rendered() -> Result<()> {
    let person = Person::new()?;
    let wrong = OLD.replace("hub.test/none", "'*.hub.test/x'").replace("m.test/b", "https://m.test/b");
    let outcome = person.run(&["render", "-f", "-"], &format!("{POLICIES}---\n{wrong}"))?;
    outcome.is(3);
    assert!(outcome.output.contains("location = \"m.test/team\""), "{}", outcome.output);
    assert!(!outcome.output.contains("m.test/a"), "{}", outcome.output);
    for message in [
        "Failed: ImageContentSourcePolicy old: source \"hub.test/team\": \"https://m.test/b\"",
        "is not a source",
    ] {
        assert!(outcome.errors.contains(message), "{}", outcome.errors);
    }
    let nothing = person.run(&["render", "-f", "-"], "")?;
    assert!(nothing.is(1).errors.contains("no mirror policy"), "{}", nothing.errors);
    person.run(&["render", "-f", "-", "--blocked-registry", "http://x"], POLICIES)?.is(2);
    Ok(())
}

/// A field in the wrong place or of another kind says nothing to anything, and may have been what closes a source.
#[test]
fn a_policy_with_a_field_that_its_kind_does_not_have_is_named() -> Result<()> {
    let person = Person::new()?;
    let wrong = POLICIES.replace("mirrorSourcePolicy", "mirrorsourcepolicy");
    let outcome = person.run(&["render", "-f", "-"], &wrong)?;
    let said =
        "ImageTagMirrorSet/shut: spec.imageTagMirrors[0].mirrorsourcepolicy: this kind has no such field";
    assert!(outcome.is(3).errors.contains(said), "{}", outcome.errors);
    assert!(
        !outcome.output.contains("shut.test") && outcome.output.contains("m.test/team"),
        "{}",
        outcome.output
    );
    let wrong = OLD.replace("operator.openshift.io/v1alpha1", "config.openshift.io/v1");
    for command in ["render", "convert"] {
        let outcome = person.run(&[command, "-f", "-"], &format!("{POLICIES}---\n{wrong}"))?;
        let said = "ImageContentSourcePolicy/old: apiVersion: config.openshift.io/v1 is not known";
        assert!(outcome.is(3).errors.contains(said), "{}", outcome.errors);
    }
    Ok(())
}

#[test]
fn resolve_shows_the_places_in_order_and_why() -> Result<()> {
    let person = Person::new()?;
    let by_digest = format!("hub.test/team/app{DIGEST}");
    let outcome =
        person.run(&["resolve", &by_digest, "nginx:1", "hub.test/team/app:1", "-f", "-"], POLICIES)?;
    let rows = outcome.is(0).rows();
    let mirror = format!("m.test/team/app{DIGEST}");
    assert_eq!(rows[1][..2], ["1", &mirror]);
    assert_eq!(rows[1][2..].join(" "), "mirror of hub.test/team, by ImageSourceDigestPolicy team");
    assert_eq!(rows[2], ["2", &by_digest, "source"]);
    assert_eq!(rows[4][..2], ["1", "m.test/hub/library/nginx:1"]);
    assert_eq!(rows[7], ["1", "hub.test/team/app:1", "source"]);

    let closed = person.run(&["resolve", &format!("shut.test/app{DIGEST}"), "-f", "-"], POLICIES)?;
    assert!(closed.is(3).output.contains("not asked: NeverContactSource for shut.test"), "{}", closed.output);
    let blocked = ["resolve", "m.test/x:1", "-f", "-", "--blocked-registry", "m.test"];
    assert!(person.run(&blocked, POLICIES)?.is(3).output.contains("not asked: blocked with m.test"));
    Ok(())
}

#[test]
fn resolve_names_the_objects_that_list_each_mirror() -> Result<()> {
    let person = Person::new()?;
    let other = "\
apiVersion: config.openshift.io/v1
kind: ImageDigestMirrorSet
metadata: {name: other}
spec:
  imageDigestMirrors:
  - {source: hub.test/team, mirrors: [n.test/team]}
---
apiVersion: config.openshift.io/v1
kind: ImageTagMirrorSet
metadata: {name: tags}
spec:
  imageTagMirrors:
  - {source: hub.test/team, mirrors: [t.test/team]}
";
    let both = format!("{POLICIES}---\n{other}");
    let images = [format!("hub.test/team/app{DIGEST}"), "hub.test/team/app:1".to_owned()];
    let shown = person.run(&["resolve", &images[0], &images[1], "-f", "-"], &both)?;
    let by = |object: &str| format!("mirror of hub.test/team, by {object}");
    let rows: Vec<String> = shown.is(0).rows().iter().map(|row| row[2..].join(" ")).collect();
    assert_eq!(rows[1..3], [by("ImageSourceDigestPolicy team"), by("ImageDigestMirrorSet other")]);
    assert_eq!(rows[5], by("ImageTagMirrorSet tags"), "{}", shown.output);
    Ok(())
}

#[test]
fn resolve_shows_what_the_files_of_the_runtime_make_of_it() -> Result<()> {
    let person = Person::new()?;
    let by_digest = format!("hub.test/team/app{DIGEST}");
    let resolve =
        |image: &str, more: &[&str]| person.run(&[&["resolve", image, "-f", "-"], more].concat(), POLICIES);
    // Without a router, containerd's files know no repositories, and nothing closes part of a registry.
    let containerd = ["--runtime", "containerd"];
    let closed = resolve(&by_digest, &containerd)?;
    let rows = closed.is(0).rows();
    assert_eq!(rows[1][0], "-");
    assert!(rows[1].join(" ").ends_with("not asked: the runtime's files leave it out"), "{rows:?}");
    assert_eq!(rows[2][..2], ["1", &by_digest]);
    let routed = ["--runtime", "containerd", "--router", "127.0.0.1:7780"];
    assert_eq!(resolve(&by_digest, &routed)?.is(0).rows()[1][0], "1");

    // An old CRI-O has no mirrors for tags alone.
    let old = ["--runtime-version", "1.24.0"];
    let tag = resolve("shut.test/app:1", &old)?;
    assert!(tag.is(3).output.contains("not asked: the runtime's files leave it out"), "{}", tag.output);
    assert_eq!(resolve("shut.test/app:1", &[])?.is(0).rows()[1][0], "1");

    // A digest of a source that is closed for tags: files close it for both, the router does not.
    let parts = "apiVersion: config.openshift.io/v1\nkind: ImageTagMirrorSet\nmetadata: {name: tags}\nspec:\n  \
         imageTagMirrors:\n  - {source: part.test, mirrors: [m.test/part], mirrorSourcePolicy: NeverContactSource}\n---\n\
         apiVersion: config.openshift.io/v1\nkind: ImageDigestMirrorSet\nmetadata: {name: digests}\nspec:\n  \
         imageDigestMirrors:\n  - {source: part.test/team, mirrors: [m.test/team]}\n";
    let image = format!("part.test/team/app{DIGEST}");
    for (arguments, number) in [(&routed[..], "2"), (&[], "-")] {
        let shown = person.run(&[&["resolve", &image, "-f", "-"], arguments].concat(), parts)?;
        assert_eq!(shown.is(0).rows()[2][0], number, "{}", shown.output);
    }
    Ok(())
}

#[test]
fn old_policies_are_converted_and_back() -> Result<()> {
    let person = Person::new()?;
    for (arguments, kind, list) in [
        (&[][..], "ImageSourceDigestPolicy", "repositoryDigestMirrors"),
        (&["--to", "ImageDigestMirrorSet"], "ImageDigestMirrorSet", "imageDigestMirrors"),
    ] {
        let converted = person.run(&[&["convert", "-f", "-"], arguments].concat(), OLD)?;
        let object = &documents(&converted.is(0).output)?[0];
        assert_eq!(object["kind"], kind);
        assert_eq!(object["metadata"], serde_json::json!({"name": "old", "labels": {"team": "a"}}));
        let sets = serde_json::json!([
            {"source": "hub.test/team", "mirrors": ["m.test/a", "m.test/b"]},
            {"source": "hub.test/none"},
        ]);
        assert_eq!(object["spec"][list], sets);

        let back = person.run(&["convert", "--back", "-f", "-"], &converted.output)?;
        let object = &documents(&back.is(0).output)?[0];
        assert_eq!(object["kind"], "ImageContentSourcePolicy");
        assert_eq!(object["spec"]["repositoryDigestMirrors"], sets);
        // The same files for nodes, before and after.
        let rendered = |text: &str| person.run(&["render", "-f", "-"], text);
        assert_eq!(rendered(OLD)?.output, rendered(&converted.output)?.output);
    }
    Ok(())
}

#[test]
fn what_the_other_kind_cannot_say_is_not_converted() -> Result<()> {
    let person = Person::new()?;
    let never =
        POLICIES.replace("ImageTagMirrorSet", "ImageDigestMirrorSet").replace("imageTag", "imageDigest");
    let back = person.run(&["convert", "--back", "-f", "-"], &never)?;
    assert!(back.is(3).errors.contains("cannot say NeverContactSource"), "{}", back.errors);
    let said = "ImageSourceTagPolicy/hub: ImageContentSourcePolicy has no mirrors for tags; it is left out";
    assert!(back.errors.contains(said), "{}", back.errors);
    assert_eq!(documents(&back.output)?.len(), 1);
    let wrong = person.run(&["convert", "-f", "-"], &OLD.replace("hub.test/none", "hub.test/Upper"))?;
    assert!(wrong.is(3).errors.contains("item 1: \"hub.test/Upper\" is not a source"), "{}", wrong.errors);
    Ok(())
}

/// The API server would refuse the one, and keep only one of the others.
#[test]
fn what_the_api_server_would_not_take_is_not_converted() -> Result<()> {
    let person = Person::new()?;
    let mirrors =
        |count: usize| (0..count).map(|number| format!("m{number}.test")).collect::<Vec<_>>().join(", ");
    let many = |count| OLD.replace("m.test/a, m.test/b, m.test/a", &mirrors(count));
    let refused = person.run(&["convert", "-f", "-"], &many(25))?;
    let said = "ImageContentSourcePolicy/old: hub.test/team has 25 mirrors, and newer kinds take 24";
    assert!(refused.is(3).errors.contains(said) && refused.output.is_empty(), "{}", refused.errors);
    person.run(&["convert", "-f", "-"], &many(24))?.is(0);

    let object = |kind: &str, list: &str| {
        format!(
            "apiVersion: config.openshift.io/v1\nkind: {kind}\nmetadata: {{name: a}}\nspec:\n  {list}:\n  \
             - {{source: hub.test, mirrors: [m.test]}}\n---\n"
        )
    };
    let both = object("ImageSourceDigestPolicy", "repositoryDigestMirrors")
        + &object("ImageDigestMirrorSet", "imageDigestMirrors");
    let back = person.run(&["convert", "--back", "-f", "-"], &both)?;
    let said = "the same kind and name as what ImageSourceDigestPolicy a becomes";
    assert!(back.is(3).errors.contains(said), "{}", back.errors);
    assert_eq!(documents(&back.output)?.len(), 1);
    Ok(())
}

/// Commands of the page print what the page shows.
#[test]
fn the_page_shows_what_the_commands_print() -> Result<()> {
    let person = Person::new()?;
    let page = std::fs::read_to_string(repository().join("docs/node-configuration.md"))?;
    let (_, policies) = page.split_once("```yaml\n").unwrap();
    let (policies, _) = policies.split_once("```").unwrap();
    let file = person.write("policies.yaml", policies)?;
    let mut commands = 0;
    for block in page.split("```console\n$ fairlead ").skip(1) {
        let (command, shown) = block.split_once('\n').unwrap();
        let (shown, _) = shown.split_once("```").unwrap();
        let command = command.replace("policies.yaml", file.to_str().unwrap());
        let outcome = person.run(&command.split_whitespace().collect::<Vec<_>>(), "")?;
        assert_eq!(format!("{}{}", outcome.errors, outcome.output), shown, "{command}");
        commands += 1;
    }
    assert_eq!(commands, 3);
    Ok(())
}
