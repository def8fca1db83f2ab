//! What the warming kinds accept because Drop acted on it, and what they refuse because no kubelet could.

use anyhow::Result;
use serde_json::{Value, json};

use crate::refused::{Change, Refusal, assert_accepted, assert_refused, change, refusal, without};

const DIGEST: &str = "sha256:4f2a6d0c5b1e8f93a7c4d2e1b0f9a8c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a1";

fn object(kind: &str, spec: &Value) -> Value {
    json!({ "apiVersion": "drop.corewire.io/v1alpha1", "kind": kind, "metadata": { "name": "good" }, "spec": spec })
}

fn image() -> Value {
    object(
        "CachedImage",
        &json!({
            "image": "registry.example.com/team/app",
            "tag": "v1",
            "imagePullPolicy": "IfNotPresent",
            "imagePullSecrets": [{ "name": "login" }],
            "nodeSelector": { "pool": "builds" },
            "tolerations": [{ "key": "dedicated", "operator": "Equal", "value": "builds", "effect": "NoSchedule" }],
            "priority": -5,
            "policyRef": { "name": "gentle" },
        }),
    )
}

fn set() -> Value {
    object(
        "CachedImageSet",
        &json!({
            "policyRef": { "name": "gentle" },
            "discoveryPolicyRef": { "name": "popular" },
            "images": [{ "image": "docker.io/library/nginx", "tag": "1.29" }, { "image": "nginx" }],
        }),
    )
}

fn policy() -> Value {
    object(
        "PullPolicy",
        &json!({
            "maxConcurrentNodes": 2,
            "maxConcurrentPulls": 10,
            "minDelayBetweenPulls": "30s",
            "failureBackoff": { "initial": "1m", "max": "30m" },
            "repullInterval": "168h",
        }),
    )
}

/// An entry as it stands in a list of images and in a `CachedImage`, under the pointer and path of what holds it.
fn bad_references(pointer: [&'static str; 3], path: [&'static str; 3]) -> Vec<Refusal> {
    let ([image, tag, digest], [image_path, tag_path, digest_path]) = (pointer, path);
    let bad = |value: &str, remedy| refusal(change(image, value), image_path, remedy);
    let mut refusals = vec![
        bad("", "at least 1 chars long"),
        bad("https://registry.example.com/team/app", "must not have a scheme"),
        bad("docker://nginx", "not https://"),
        bad("nginx:1.29", "put what follows the last colon into tag"),
        bad("localhost:5000", "put what follows the last colon into tag"),
        bad("registry.example.com:5000/app:v1", "put what follows the last colon into tag"),
        bad("registry.example.com/Team/App", "path in lower case"),
        bad("Nginx", "path in lower case"),
        bad(" nginx", "without blanks"),
        bad("registry.example.com/team//app", "image is not a repository"),
        bad("registry.example.com/team/app/", "image is not a repository"),
        bad("/team/app", "such as docker.io/library/nginx"),
        bad("registry.example.com/team/*", "image is not a repository"),
        bad("team/a..b", "image is not a repository"),
        refusal(without(image), image_path, "Required value"),
        refusal(change(image, json!(["nginx"])), image_path, "must be of type string"),
        refusal(change(image, "a".repeat(401)), image_path, "400"),
    ];
    for value in [format!("nginx@{DIGEST}"), format!("nginx:1@{DIGEST}")] {
        refusals.push(refusal(change(image, value), image_path, "put what follows the @ into digest"));
    }
    for value in [":v1", "-v1", ".v1", "v1 ", "v1/x", "a+b", "v1@sha256:00"] {
        refusals.push(refusal(change(tag, value), tag_path, "such as 1.29-alpine"));
    }
    refusals.push(refusal(change(tag, "a".repeat(129)), tag_path, "at most 128"));
    refusals.push(refusal(change(tag, 1.29), tag_path, "must be of type string"));
    for value in ["4f2a6d0c", "sha256:4f2a", "sha1:da39a3ee5e6b4b0d3255bfef95601890afd80709", "latest"] {
        refusals.push(refusal(change(digest, value), digest_path, "sha256: followed by 64"));
    }
    refusals.push(refusal(change(digest, DIGEST.to_uppercase()), digest_path, "in lower case"));
    refusals
}

fn good_references([image, tag, digest]: [&'static str; 3]) -> Vec<Change> {
    let images = [
        "nginx",
        "library/nginx",
        "docker.io/nginx",
        "localhost/app",
        "localhost:5000/team/app",
        "registry:5000/app",
        "10.0.0.7/app",
        "Registry.Example.Com/team/app",
        "UPPER/x",
        "[2001:db8::7]:5000/app",
        "registry.example.com/a/b/c/d__e/f_g/h--i/j.k",
        "foo_bar/baz",
    ];
    let tags = ["", "latest", "V1.0_x-y", "_x", "20240105"];
    let digests = [
        String::new(),
        DIGEST.to_owned(),
        format!("sha512:{}", "0a".repeat(64)),
        format!("sha384:{}", "0a".repeat(48)),
    ];
    images
        .map(|value| change(image, value))
        .into_iter()
        .chain(tags.map(|value| change(tag, value)))
        .chain([change(tag, format!("v1@{DIGEST}"))])
        .chain(digests.map(|value| change(digest, value)))
        .collect()
}

/// What a kind refuses in the parts that it hands on to a Pod.
fn bad_placement() -> Vec<Refusal> {
    let toleration = |value| change("/spec/tolerations", json!([value]));
    vec![
        refusal(
            change("/spec/nodeSelector", json!({ "a b": "c" })),
            "spec.nodeSelector",
            "not the key of a label",
        ),
        refusal(
            change("/spec/nodeSelector", json!({ "/zone": "c" })),
            "spec.nodeSelector",
            "with a DNS name and /",
        ),
        refusal(
            change("/spec/nodeSelector", json!({ "zone": "a/b" })),
            "spec.nodeSelector",
            "not the value of a label",
        ),
        refusal(
            change("/spec/nodeSelector", json!({ "zone": "a".repeat(64) })),
            "spec.nodeSelector.zone",
            "63",
        ),
        refusal(
            change("/spec/nodeSelector", json!({ "gpu": true })),
            "spec.nodeSelector.gpu",
            "must be of type string",
        ),
        refusal(
            toleration(json!({ "key": "a", "operator": "Equals" })),
            "spec.tolerations[0].operator",
            "write Equal, Exists",
        ),
        refusal(
            toleration(json!({ "key": "a", "effect": "NoScheduling" })),
            "spec.tolerations[0].effect",
            "NoSchedule, Prefer",
        ),
        refusal(toleration(json!({ "value": "a" })), "spec.tolerations[0].key", "set operator to Exists"),
        refusal(toleration(json!({})), "spec.tolerations[0].key", "key is missing"),
        refusal(toleration(json!({ "key": "a b" })), "spec.tolerations[0].key", "not the key of a taint"),
        refusal(
            toleration(json!({ "key": "a", "operator": "Exists", "value": "b" })),
            "spec.tolerations[0].value",
            "set operator to Equal",
        ),
        refusal(
            toleration(json!({ "key": "a", "value": "b/c" })),
            "spec.tolerations[0].value",
            "not the value of a taint",
        ),
        refusal(
            toleration(json!({ "key": "a", "operator": "Gt", "value": "many" })),
            "spec.tolerations[0].value",
            "a whole number",
        ),
        refusal(
            toleration(json!({ "key": "a", "operator": "Exists", "tolerationSeconds": 60 })),
            "spec.tolerations[0].tolerationSeconds",
            "needs effect NoExecute",
        ),
    ]
}

fn good_placement() -> Vec<Change> {
    let tolerations = [
        json!([]),
        json!([{ "operator": "Exists" }]),
        json!([{ "operator": "Exists", "effect": "NoSchedule" }]),
        json!([{ "key": "a" }]),
        json!([{ "key": "a", "operator": "", "value": "", "effect": "" }]),
        json!([{ "key": "example.com/a.b_c-d", "operator": "Equal", "value": "x.y", "effect": "PreferNoSchedule" }]),
        json!([{ "key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": -1 }]),
        json!([{ "key": "a", "operator": "Lt", "value": "-5" }]),
        json!([{ "key": "a" }, { "key": "a" }]),
    ];
    let selectors = [
        json!({}),
        json!({ "kubernetes.io/os": "linux", "node-role.kubernetes.io/worker": "" }),
        json!({ "Zone_1.a": "B-2" }),
    ];
    tolerations
        .map(|value| change("/spec/tolerations", value))
        .into_iter()
        .chain(selectors.map(|value| change("/spec/nodeSelector", value)))
        .collect()
}

fn bad_pulls() -> Vec<Refusal> {
    vec![
        refusal(
            change("/spec/imagePullPolicy", "always"),
            "spec.imagePullPolicy",
            "supported values: \"Always\"",
        ),
        refusal(
            change("/spec/imagePullSecrets", json!(["login"])),
            "spec.imagePullSecrets[0]",
            "must be of type object",
        ),
        refusal(
            change("/spec/imagePullSecrets", json!([{ "name": "a", "namespace": "b" }])),
            "spec.imagePullSecrets[0].namespace",
            "unknown field",
        ),
        refusal(change("/spec/policyRef", json!({})), "spec.policyRef.name", "Required value"),
        refusal(
            change("/spec/policyRef", json!({ "name": "" })),
            "spec.policyRef.name",
            "at least 1 chars long",
        ),
        refusal(
            change("/spec/policyRef", json!({ "name": "Gentle One" })),
            "spec.policyRef.name",
            "lower-case letters",
        ),
        refusal(change("/spec/policyRef", "gentle"), "spec.policyRef", "must be of type object"),
    ]
}

#[tokio::test]
async fn cached_image() -> Result<()> {
    let fields = ["/spec/image", "/spec/tag", "/spec/digest"];
    let mut refusals = bad_references(fields, ["spec.image", "spec.tag", "spec.digest"]);
    refusals.extend(bad_placement());
    refusals.extend(bad_pulls());
    refusals.extend([
        refusal(without("/spec"), "spec", "Required value"),
        refusal(change("/spec/priority", "high"), "spec.priority", "must be of type integer"),
        refusal(change("/spec/priority", 3_000_000_000_u32), "spec.priority", "int32"),
        refusal(change("/spec/digests", DIGEST), "spec.digests", "unknown field"),
    ]);
    assert_refused(&image(), refusals).await?;
    let mut accepted = good_references(fields);
    accepted.extend(good_placement());
    accepted.extend([
        without("/spec/tag"),
        without("/spec/policyRef"),
        change("/spec/imagePullPolicy", "Never"),
        change("/spec/imagePullSecrets", json!([{ "name": "" }, { "name": "a" }, { "name": "a" }])),
        change("/spec/priority", i64::from(i32::MIN)),
        change("/spec", json!({ "image": "nginx:1.29", "digest": DIGEST })),
        change("/spec", json!({ "image": "nginx", "tag": "not a tag, and not used", "digest": DIGEST })),
        change("/spec", json!({ "image": "nginx" })),
        change("/metadata/name", "a.".repeat(126) + "a"),
    ]);
    assert_accepted(&image(), accepted).await
}

#[tokio::test]
async fn cached_image_set() -> Result<()> {
    let fields = ["/spec/images/1/image", "/spec/images/1/tag", "/spec/images/1/digest"];
    let mut refusals =
        bad_references(fields, ["spec.images[1].image", "spec.images[1].tag", "spec.images[1].digest"]);
    refusals.extend(bad_placement());
    refusals.extend(bad_pulls());
    refusals.extend([
        refusal(
            change("/spec/discoveryPolicyRef/name", ""),
            "spec.discoveryPolicyRef.name",
            "at least 1 chars long",
        ),
        refusal(
            change("/spec/discoveryPolicyRef/name", "a/b"),
            "spec.discoveryPolicyRef.name",
            "lower-case letters",
        ),
        refusal(
            change("/spec/discoveryPolicyRef", json!({})),
            "spec.discoveryPolicyRef.name",
            "Required value",
        ),
        refusal(change("/spec/images", "nginx"), "spec.images", "must be of type array"),
        refusal(change("/spec/images", json!(["nginx"])), "spec.images[0]", "must be of type object"),
        refusal(
            change("/spec/images", vec![json!({ "image": "nginx" }); 1025]),
            "spec.images",
            "at most 1024 items",
        ),
        refusal(change("/spec/images/0/priority", 1), "spec.images[0].priority", "unknown field"),
    ]);
    assert_refused(&set(), refusals).await?;
    let mut accepted = good_references(fields);
    accepted.extend(good_placement());
    let many: Vec<_> = (0..1024)
        .map(|n| json!({ "image": format!("registry.example.com/team/{}{n}", "app/".repeat(20)) }))
        .collect();
    accepted.extend([
        without("/spec"),
        change("/spec", json!({})),
        change("/spec/images", json!([])),
        change(
            "/spec/images",
            json!([{ "image": "nginx" }, { "image": "nginx" }, { "image": "nginx", "tag": "latest" }]),
        ),
        change("/spec/images", many),
    ]);
    assert_accepted(&set(), accepted).await
}

#[tokio::test]
async fn pull_policy() -> Result<()> {
    let mut refusals = bad_placement();
    for (pointer, path) in [
        ("/spec/minDelayBetweenPulls", "spec.minDelayBetweenPulls"),
        ("/spec/failureBackoff/initial", "spec.failureBackoff.initial"),
        ("/spec/failureBackoff/max", "spec.failureBackoff.max"),
        ("/spec/repullInterval", "spec.repullInterval"),
    ] {
        refusals.extend([
            refusal(change(pointer, "7d"), path, "7 days are 168h"),
            refusal(change(pointer, "10"), path, "with the units h, m, s or ms"),
            refusal(change(pointer, "-10s"), path, "not a duration"),
            refusal(change(pointer, "ten seconds"), path, "not a duration"),
            refusal(change(pointer, 10), path, "must be of type string"),
        ]);
    }
    refusals.extend([
        refusal(
            change("/spec/maxConcurrentNodes", 0),
            "spec.maxConcurrentNodes",
            "greater than or equal to 1",
        ),
        refusal(
            change("/spec/maxConcurrentNodes", "50%"),
            "spec.maxConcurrentNodes",
            "must be of type integer",
        ),
        refusal(
            change("/spec/maxConcurrentPulls", -1),
            "spec.maxConcurrentPulls",
            "greater than or equal to 1",
        ),
        refusal(
            change("/spec/maxConcurrentPulls", 1.5),
            "spec.maxConcurrentPulls",
            "must be of type integer",
        ),
        refusal(change("/spec/failureBackoff", "5m"), "spec.failureBackoff", "must be of type object"),
        refusal(change("/spec/maxConcurrent", 1), "spec.maxConcurrent", "unknown field"),
    ]);
    assert_refused(&policy(), refusals).await?;
    let mut accepted = good_placement();
    accepted.extend([
        without("/spec"),
        change("/spec", json!({})),
        change("/spec/failureBackoff", json!({})),
        change("/spec/failureBackoff", json!({ "initial": "1h", "max": "1m" })),
        change("/spec/minDelayBetweenPulls", "0s"),
        change("/spec/minDelayBetweenPulls", "0"),
        change("/spec/repullInterval", "1.5h30m20s"),
        change("/spec/maxConcurrentNodes", i64::from(i32::MAX)),
    ]);
    assert_accepted(&policy(), accepted).await
}
