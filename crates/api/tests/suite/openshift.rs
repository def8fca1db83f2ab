//! What the mirror kinds accept and refuse: the strict ones by pattern and rule, the legacy one hardly anything.

use anyhow::Result;
use serde_json::{Value, json};

use crate::refused::{Change, Refusal, assert_accepted, assert_refused, change, refusal, without};

const NEVER: &str = "NeverContactSource";

fn policy(kind: &str, list: &str) -> Value {
    let mut spec = json!({});
    spec[list] = json!([
        { "source": "registry.example.com/team", "mirrors": ["mirror.example.com/team", "mirror.example.net:5000"] },
        { "source": "*.example.org" },
    ]);
    json!({ "apiVersion": "config.openshift.io/v1", "kind": kind, "metadata": { "name": "good" }, "spec": spec })
}

/// A kind and its list, and where its first item stands.
struct Places {
    kind: &'static str,
    list: &'static str,
    pointers: [&'static str; 4],
    paths: [&'static str; 3],
}

macro_rules! places {
    ($kind:literal, $list:literal) => {
        Places {
            kind: $kind,
            list: $list,
            pointers: [
                concat!("/spec/", $list),
                concat!("/spec/", $list, "/0"),
                concat!("/spec/", $list, "/0/source"),
                concat!("/spec/", $list, "/0/mirrors"),
            ],
            paths: [
                concat!("spec.", $list),
                concat!("spec.", $list, "[0].source"),
                concat!("spec.", $list, "[0].mirrors"),
            ],
        }
    };
}

fn bad_lists(places: &Places) -> Vec<Refusal> {
    let [list, item, source, mirrors] = places.pointers;
    let [list_path, source_path, mirrors_path] = places.paths;
    let mirror = |value: &str, remedy| refusal(change(mirrors, json!([value])), mirrors_path, remedy);
    let mut refusals: Vec<_> = [
        "",
        "https://quay.io",
        "quay.io/",
        "quay.io//x",
        "quay.io/Foo",
        "quay.io/foo:tag",
        "quay.io/foo@sha256:00",
        "[fd00::1]:5000/x",
        "*",
        "*.redhat.io/foo",
        "*.redhat.io:5000",
        "q.io/a___b",
        "q.io/a..b",
        "q.io/-a",
        "q.io ",
        "my_reg.io",
        "-quay.io",
    ]
    .map(|value| refusal(change(source, value), source_path, "host[:port], host[:port]/path or *.host"))
    .into();
    refusals.extend([
        refusal(without("/spec"), "spec", "Required value"),
        refusal(without(source), source_path, "Required value"),
        refusal(change(source, 5), source_path, "must be of type string"),
        refusal(change(source, "a".repeat(257)), source_path, "256"),
        refusal(change(list, "quay.io"), list_path, "must be of type array"),
        refusal(change(list, vec![json!({ "source": "quay.io" }); 1025]), list_path, "at most 1024 items"),
        refusal(change(item, "quay.io"), list_path, "must be of type object"),
        refusal(change(mirrors, "mirror.example.com"), mirrors_path, "must be of type array"),
        refusal(change(mirrors, json!(["a.io", "a.io"])), mirrors_path, "Duplicate value"),
        refusal(
            change(mirrors, (0..25).map(|n| format!("m{n}.example.com")).collect::<Vec<_>>()),
            mirrors_path,
            "at most 24 items",
        ),
        refusal(change(mirrors, json!(["a".repeat(257)])), mirrors_path, "256"),
        mirror("https://mirror.example.com", "must not have a scheme"),
        mirror("*.redhat.io", "write host[:port]"),
        mirror("mirror.example.com/foo@sha256:00", "must not have a digest"),
        mirror("[fd00::1]:5000/x", "an IPv6 address"),
        mirror("mirror.example.com ", "a blank"),
        mirror("mirror.example.com/foo:tag", "must not have a tag"),
        mirror("mirror.example.com/Foo", "in lower case"),
        mirror("mirror.example.com/", "remove the slash at the end"),
        mirror("mirror.example.com//foo", "the second of two slashes"),
        mirror("", "at least 1 chars long"),
        mirror("my_reg.io", "should match"),
    ]);
    refusals
}

fn good_lists(places: &Places) -> Vec<Change> {
    let [list, _, source, mirrors] = places.pointers;
    let common = [
        "quay.io",
        "quay.io:443",
        "quay.io:99999",
        "localhost",
        "reg",
        "10.0.0.1:5000/x",
        "QUAY.IO",
        "q.io/a_b",
        "q.io/a__b",
        "q.io/a--b",
        "q.io/a.b",
    ];
    let mut accepted: Vec<_> = common.map(|value| change(source, value)).into();
    accepted.extend(common.map(|value| change(mirrors, json!([value]))));
    accepted.extend(["*.redhat.io", "*.io"].map(|value| change(source, value)));
    let longest = format!("{}.example.com/{}", "m".repeat(44), "p".repeat(199));
    let full: Vec<_> = (0..1024)
        .map(|n| {
            let mirrors: Vec<_> =
                (0..24).map(|m| format!("mirror-{m}.example.com:5000/t{n}/images")).collect();
            json!({ "source": format!("registry.example.com/t{n}"), "mirrors": mirrors })
        })
        .collect();
    accepted.extend([
        change("/spec", json!({})),
        change(list, json!([])),
        change(list, json!([{ "source": "quay.io" }, { "source": "quay.io", "mirrors": ["a.io"] }])),
        change(list, json!([{ "source": "quay.io", "mirrors": ["quay.io", "a.io"] }])),
        change(mirrors, json!([])),
        change(list, json!([{ "source": longest, "mirrors": [longest] }])),
        change(list, full),
    ]);
    accepted
}

#[tokio::test]
async fn image_source_digest_policy() -> Result<()> {
    assert_source_policy(&places!("ImageSourceDigestPolicy", "repositoryDigestMirrors")).await
}

#[tokio::test]
async fn image_source_tag_policy() -> Result<()> {
    assert_source_policy(&places!("ImageSourceTagPolicy", "repositoryTagMirrors")).await
}

async fn assert_source_policy(places: &Places) -> Result<()> {
    let good = policy(places.kind, places.list);
    let mut refusals = bad_lists(places);
    refusals.push(refusal(
        change("/spec/imageDigestMirrors", json!([])),
        "spec.imageDigestMirrors",
        "unknown field",
    ));
    assert_refused(&good, refusals).await?;
    assert_accepted(&good, good_lists(places)).await
}

#[tokio::test]
async fn image_digest_mirror_set() -> Result<()> {
    assert_mirror_set(&places!("ImageDigestMirrorSet", "imageDigestMirrors")).await
}

#[tokio::test]
async fn image_tag_mirror_set() -> Result<()> {
    assert_mirror_set(&places!("ImageTagMirrorSet", "imageTagMirrors")).await
}

async fn assert_mirror_set(places: &Places) -> Result<()> {
    let good = policy(places.kind, places.list);
    let [_, item, ..] = places.pointers;
    let [_, _, mirrors_path] = places.paths;
    let never = |source: &str, mirrors: &[&str]| {
        change(item, json!({ "source": source, "mirrors": mirrors, "mirrorSourcePolicy": NEVER }))
    };
    let mut refusals = bad_lists(places);
    refusals.extend([
        refusal(
            change(item, json!({ "source": "s.test", "mirrors": ["m.test"], "mirrorSourcePolicy": "Never" })),
            "mirrorSourcePolicy",
            "supported values: \"NeverContactSource\", \"AllowContactingSource\"",
        ),
        refusal(
            change(item, json!({ "source": "s.test", "mirrorSourcePolicy": NEVER })),
            mirrors_path,
            "list a mirror",
        ),
        refusal(never("s.test", &[]), mirrors_path, "mirrors are missing"),
        refusal(never("s.test", &["m.test", "s.test"]), mirrors_path, "remove it from mirrors"),
        refusal(never("s.test", &["m.test", "s.test/mirror"]), mirrors_path, "use a mirror elsewhere"),
        refusal(never("s.test", &["s.test:5000/mirror"]), mirrors_path, "a mirror lies inside the source"),
        refusal(never("s.test/a", &["s.test/a/b"]), mirrors_path, "a mirror lies inside the source"),
        refusal(never("*.s.test", &["m.s.test"]), mirrors_path, "a mirror lies inside the source"),
        refusal(
            never("*.s.test", &["m.test", "a.b.s.test:5000/x/y"]),
            mirrors_path,
            "set mirrorSourcePolicy to AllowContactingSource",
        ),
    ]);
    assert_refused(&good, refusals).await?;
    let allow = |source: &str, mirrors: &[&str]| {
        change(
            item,
            json!({ "source": source, "mirrors": mirrors, "mirrorSourcePolicy": "AllowContactingSource" }),
        )
    };
    let mut accepted = good_lists(places);
    accepted.extend([
        never("s.test", &["m.test", "n.test"]),
        never("s.test/a", &["s.test/ab", "s.test/b", "s.test"]),
        never("s.test", &["s.tests", "xs.test", "m.test/s.test"]),
        never("s.test:5000", &["s.test", "s.test:50001", "s.test:443/mirror"]),
        never("*.s.test", &["s.test", "xs.test", "m.s.test.example.com", "m.test/a.s.test"]),
        allow("s.test", &["s.test/mirror", "s.test"]),
        allow("s.test", &[]),
    ]);
    let inside: Vec<_> = (0..1024)
        .map(|n| {
            let mirrors: Vec<_> = (0..24).map(|m| format!("registry.example.com/m{m}/t{n}/images")).collect();
            json!({ "source": format!("registry.example.com/t{n}"), "mirrors": mirrors, "mirrorSourcePolicy": NEVER })
        })
        .collect();
    accepted.push(change(places.pointers[0], inside));
    assert_accepted(&good, accepted).await
}

#[tokio::test]
async fn image_content_source_policy_stays_as_loose_as_it_was() -> Result<()> {
    let places = places!("ImageContentSourcePolicy", "repositoryDigestMirrors");
    let mut good = policy(places.kind, places.list);
    good["apiVersion"] = "operator.openshift.io/v1alpha1".into();
    let [list, item, source, mirrors] = places.pointers;
    let [list_path, source_path, mirrors_path] = places.paths;
    let refusals = vec![
        refusal(without("/spec"), "spec", "Required value"),
        refusal(change("/spec", json!([])), "spec", "must be of type object"),
        refusal(change(list, "quay.io"), list_path, "must be of type array"),
        refusal(change(list, json!({})), list_path, "must be of type array"),
        refusal(change(item, "quay.io"), list_path, "must be of type object"),
        refusal(change(item, json!({})), source_path, "Required value"),
        refusal(without(source), source_path, "Required value"),
        refusal(change(source, 5), source_path, "must be of type string"),
        refusal(change(source, json!(["quay.io"])), source_path, "must be of type string"),
        refusal(change(mirrors, "mirror.example.com"), mirrors_path, "must be of type array"),
        refusal(change(mirrors, json!([5])), mirrors_path, "must be of type string"),
        refusal(change(mirrors, json!([["a.io"]])), mirrors_path, "must be of type string"),
        refusal(
            change("/spec/repositoryTagMirrors", json!([])),
            "spec.repositoryTagMirrors",
            "unknown field",
        ),
    ];
    assert_refused(&good, refusals).await?;
    let mut accepted = good_lists(&places);
    accepted.extend(
        ["", "https://quay.io/", "*.a.test/ns", "quay.io/Foo:tag", &"a".repeat(1000)]
            .map(|value| change(source, value)),
    );
    accepted.extend([
        change(mirrors, json!(["a.io", "a.io", "", "*.b.test/ns", "c.io  ", "[fd00::1]:5000/x"])),
        change(mirrors, (0..100).map(|n| format!("m{n}.example.com")).collect::<Vec<_>>()),
        change(list, vec![json!({ "source": "quay.io" }); 3000]),
    ]);
    assert_accepted(&good, accepted).await
}
