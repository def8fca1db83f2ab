//! `fairlead inventory` on Pods in files and on a real API server, in the forms of all runtimes.

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use fairlead_domain::digest::Digest;
use fairlead_testkit::Cluster;
use fairlead_testkit::fake_registry::FakeRegistry;
use fairlead_testkit::images::{Image, holding, multi_platform};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::person::{Outcome, Person};
use crate::yaml::repository;

fn digest(of: &str) -> String {
    Digest::sha256(of.as_bytes()).to_string()
}

fn image_id(of: &str) -> String {
    format!("registry.example/team/app@{}", digest(of))
}

/// A replica of a Deployment that runs an image and mounts another one.
fn replica(name: &str, runs: &str, mounted: Option<&str>) -> Value {
    let routes = json!({"v": 1, "images": {
        "web": {"asked": "registry.example/team/app:1", "used": "registry.example/team/app:1", "by": "original", "digest": digest("app")},
        "volume:model": {
            "asked": "origin.example/llm:1", "used": "mirror.example/llm:1", "by": "ClusterImageSetMirror//m", "digest": digest("llm"),
        },
    }});
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": name, "namespace": "shop", "uid": name, "labels": {"pod-template-hash": "6d4f7"},
            "annotations": {"fairlead.dev/routes": routes.to_string()},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-6d4f7", "uid": "rs", "controller": true}],
        },
        "spec": {
            "nodeName": "node-1",
            "initContainers": [{"name": "proxy", "image": "proxy:2", "restartPolicy": "Always"}],
            "containers": [{
                "name": "web", "image": "registry.example/team/app:1",
                "volumeMounts": [{"name": "model", "mountPath": "/models"}],
            }],
            "ephemeralContainers": [{"name": "debug", "image": "busybox"}],
            "volumes": [{"name": "model", "image": {"reference": "mirror.example/llm:1"}}],
        },
        "status": {"phase": "Running", "containerStatuses": [{
            "name": "web", "image": "registry.example/team/app:1", "imageID": runs, "containerID": "containerd://1",
            "volumeMounts": [{"name": "model", "mountPath": "/models", "volumeStatus": mounted.map(|image| json!({"image": {"imageRef": image}}))}],
        }]},
    })
}

/// What the command says of Pods alone: their registries do not exist.
fn inventory(pods: &[Value], arguments: &[&str]) -> Result<Outcome> {
    asking(pods, &[&["--no-registries"], arguments].concat())
}

fn asking(pods: &[Value], arguments: &[&str]) -> Result<Outcome> {
    let person = Person::new()?;
    let list = json!({"apiVersion": "v1", "kind": "List", "items": pods});
    let mut all = vec!["inventory", "-f", "-"];
    all.extend(arguments);
    person.run(&all, &list.to_string())
}

fn node(name: &str, architecture: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": {
        "kubernetes.io/os": "linux", "kubernetes.io/arch": architecture,
    }}})
}

#[test]
fn every_image_of_a_pod_has_a_row_with_all_that_is_known() -> Result<()> {
    let pods = [replica("web-a", &image_id("app"), None)];
    let outcome = inventory(&pods, &["-o", "json"])?;
    let report: Value = serde_json::from_str(&outcome.is(0).output)?;
    assert_eq!(report["version"], 1);
    let images = report["images"].as_array().context("images")?;
    let row = |name: &str| images.iter().find(|image| image["name"] == name).with_context(|| name.to_owned());
    let roles: Vec<_> = images.iter().map(|image| image["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["sidecar", "container", "ephemeral", "volume"]);
    let web = row("web")?;
    assert_eq!((&web["state"], &web["expected"]["resolved"]), (&json!("matching"), &json!("admission")));
    assert_eq!(web["workload"], json!({"kind": "Deployment", "name": "web"}));
    let model = row("model")?;
    assert_eq!(model["requested"], "origin.example/llm:1");
    assert_eq!(model["routed"], "mirror.example/llm:1");
    assert_eq!(model["mount"], json!({"container": "web", "path": "/models"}));
    assert_eq!((&model["source"], &model["state"]), (&json!("expected"), &json!("unknown")));
    assert_eq!(model["imageID"], format!("mirror.example/llm@{}", digest("llm")));
    assert_eq!((&row("proxy")?["source"], &row("proxy")?["expected"]), (&json!("unknown"), &Value::Null));
    Ok(())
}

#[test]
fn a_digest_is_found_wherever_it_runs_and_what_differs_is_told() -> Result<()> {
    let (one, other) = (image_id("app"), image_id("other"));
    let pods = [
        replica("web-a", &one, None),
        replica("web-b", &other, Some("sha256:junk")),
        node("node-1", "amd64"),
    ];
    let asked = ["--digest", &digest("other"), "-o", "json"];
    // Odd, and of a Pod that does not run what is asked for.
    let mut odd = replica("web-c", &one, None);
    odd["status"]["containerStatuses"][0]["volumeMounts"][0] = json!({
        "name": "data", "mountPath": "/data", "volumeStatus": {"image": {"imageRef": one}},
    });
    let with_odd = [&pods[..], &[odd]].concat();
    assert_eq!(inventory(&with_odd, &asked)?.is(0).json()["findings"], json!([]));
    let all = inventory(&with_odd, &["-o", "json"])?.is(0).json();
    assert_eq!(all["findings"][0]["kind"], "misplaced");
    let found: Value = serde_json::from_str(&inventory(&pods, &asked)?.is(0).output)?;
    let images = found["images"].as_array().context("images")?;
    assert_eq!(images.len(), 1);
    assert_eq!((&images[0]["pod"], &images[0]["node"]), (&json!("web-b"), &json!("node-1")));
    let asked = [&asked[..2], &["--by", "digest"]].concat();
    let by_digest = inventory(&pods, &asked)?;
    assert_eq!(by_digest.rows()[1][3], "node-1", "{}", by_digest.output);
    let grouped = inventory(&pods, &[&asked[..], &["-o", "json"]].concat())?.is(0).json();
    assert_eq!(grouped["groups"][0]["name"], digest("other"));
    assert_eq!(grouped["groups"][0]["pods"], json!(["shop/web-b"]));
    for (by, title) in [("pod", "NAMESPACE"), ("image", "IMAGE"), ("node", "NODE"), ("digest", "DIGEST")] {
        let outcome = inventory(&pods, &["--by", by])?;
        assert_eq!(outcome.is(0).rows()[0][0], title);
    }
    let by_image = inventory(&pods, &["--by", "image", "team/app"])?;
    let rows = by_image.rows();
    assert_eq!(rows.len(), 2, "{}", by_image.output);
    let in_full = inventory(&pods, &["docker.io/library/busybox:latest"])?;
    assert_eq!(in_full.is(0).rows().len(), 3, "{}", in_full.output);
    let drift = inventory(&pods, &["--drift"])?;
    assert!(drift.is(3).output.contains("Deployment/web"), "{}", drift.output);
    assert_eq!(
        inventory(&pods[..1], &["--drift"])?.is(0).output,
        "no image has drifted, as far as is known\n"
    );
    // A Pod that goes is shown, and is no replica any more.
    let mut going = replica("web-b", &other, None);
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    let with_going = [replica("web-a", &one, None), going, node("node-1", "amd64")];
    inventory(&with_going, &["--drift"])?.is(0);
    assert!(inventory(&with_going, &[])?.output.contains("web-b"));
    // Of nodes of different platforms it takes a registry to tell.
    let mut elsewhere = replica("web-b", &other, None);
    elsewhere["spec"]["nodeName"] = json!("node-2");
    let platforms =
        [replica("web-a", &one, None), elsewhere, node("node-1", "amd64"), node("node-2", "arm64")];
    let drift = inventory(&platforms, &["--drift"])?;
    assert!(drift.is(0).errors.contains("not known: web: whether replicas run the same"), "{}", drift.errors);
    let pods = [
        node("node-1", "amd64"),
        replica("web-a", &digest("config"), None),
        replica("web-b", &digest("another"), None),
    ];
    let drift = inventory(&pods, &["--drift", "-o", "json"])?;
    let drift: Value = serde_json::from_str(&drift.is(3).output)?;
    assert_eq!((&drift["version"], &drift["drift"][0]["kind"]), (&json!(1), &json!("replicas")));
    assert_eq!(drift["drift"][0]["workload"], "web");
    // With all images, tags and places are not asked about, which the answer says.
    let all = inventory(&pods, &["-o", "json"])?.is(0).json();
    assert_eq!(all["drift"], drift["drift"]);
    let told = |report: &Value| report["warnings"].to_string().contains("use --drift");
    assert!(told(&all) && !told(&drift), "{all} {drift}");
    Ok(())
}

/// The digest of the configuration of an image's first manifest.
fn config_of(image: &Image) -> Result<String> {
    let manifest: Value = serde_json::from_slice(&image.manifests().first().context("a manifest")?.bytes)?;
    Ok(manifest["config"]["digest"].as_str().context("a configuration")?.to_owned())
}

/// The registry lives in this process, which must not stand still while the program runs.
#[tokio::test(flavor = "multi_thread")]
async fn registries_are_asked_what_is_behind_digests_and_what_tags_name_now() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let (index, other) = (multi_platform(&["amd64", "arm64"])?, holding("other")?);
    let expected = registry.hold("team/app", "1", &index);
    let differing = registry.hold("team/app", "other", &other);
    let image = format!("{}/team/app:1", registry.host());
    let runs = |name: &str, reported: &str| {
        let mut pod = replica(name, reported, None);
        let routes = json!({"v": 1, "images": {
            "web": {"asked": image, "used": image, "by": "original", "digest": expected},
        }});
        pod["metadata"]["annotations"]["fairlead.dev/routes"] = json!(routes.to_string());
        pod["metadata"]["ownerReferences"] = Value::Null;
        pod["spec"]["containers"] = json!([{"name": "web", "image": image}]);
        for field in ["initContainers", "ephemeralContainers", "volumes"] {
            pod["spec"][field] = Value::Null;
        }
        pod
    };
    let named = |digest: &str| format!("{}/team/app@{digest}", registry.host());
    let (manifest, config) = (index.manifests()[0].digest(), config_of(&index)?);
    let mut pods = vec![
        node("node-1", "amd64"),
        runs("by-index", &named(&expected)),
        runs("by-manifest", &named(&manifest)),
        runs("by-id", &config),
        runs("differing", &named(&differing)),
        runs("unlike", &format!("sha256:{:064}", 7)),
        runs("unknown-there", &named(&digest("unknown there"))),
    ];
    let report = asking(&pods, &["-o", "json"])?.is(3).json();
    let row = |report: &Value, pod: &str| {
        let images = report["images"].as_array().cloned().unwrap_or_default();
        images.into_iter().find(|image| image["pod"] == *pod).unwrap_or_default()
    };
    for (pod, state) in [
        ("by-index", "matching"),
        ("by-manifest", "matching"),
        ("by-id", "matching"),
        ("differing", "differing"),
        ("unlike", "differing"),
        ("unknown-there", "differing"),
    ] {
        assert_eq!(row(&report, pod)["state"], state, "{pod}: {report}");
    }
    assert_eq!(registry.count("GET", &expected), 1, "an index is read once");
    let by_id = row(&report, "by-id");
    assert_eq!((&by_id["digest"], &by_id["imageID"]), (&json!(expected), &json!(named(&expected))));
    let kind = json!({"digest": expected, "resolved": "admission", "kind": "index", "onPlatform": manifest});
    assert_eq!(by_id["expected"], kind);
    let unlike = row(&report, "unlike");
    assert_eq!((&unlike["digest"], &unlike["imageID"]), (&Value::Null, &json!(format!("sha256:{:064}", 7))));

    // Without registries it is not known, and nothing is said of indexes that agree unless it is asked for.
    let blind = inventory(&pods, &["-o", "json"])?.is(0).json();
    assert_eq!(row(&blind, "differing")["state"], "unknown");
    let agreeing = [pods[0].clone(), pods[1].clone()];
    let plain = asking(&agreeing, &["-o", "json"])?.is(0).json();
    assert_eq!(row(&plain, "by-index")["expected"], json!({"digest": expected, "resolved": "admission"}));
    let detailed = asking(&agreeing, &["-o", "json", "--details"])?.is(0).json();
    assert_eq!(row(&detailed, "by-index")["expected"], kind);

    // A digest is found behind those that are reported.
    for wanted in [&manifest, &config] {
        let found = asking(&agreeing, &["-o", "json", "--digest", wanted])?.is(0).json();
        assert_eq!(found["images"].as_array().map(Vec::len), Some(1), "{wanted}: {found}");
    }
    assert_eq!(inventory(&agreeing, &["-o", "json", "--digest", &manifest])?.json()["images"], json!([]));

    // The tag moves.
    asking(&agreeing, &["--drift"])?.is(0);
    let moved = registry.hold("team/app", "1", &holding("moved")?);
    let drift = asking(&agreeing, &["--drift", "-o", "json"])?.is(3).json();
    assert_eq!(
        (&drift["drift"][0]["kind"], &drift["drift"][0]["digests"][1]),
        (&json!("upstream"), &json!(moved))
    );
    // A Pod was admitted before, and pulled after that.
    let between = [pods[0].clone(), runs("between", &named(&moved))];
    let report = asking(&between, &["-o", "json"])?.is(0).json();
    let row_between = row(&report, "between");
    assert_eq!(row_between["state"], "unknown", "{report}");
    assert!(
        row_between["reason"].as_str().is_some_and(|reason| reason.contains("what the tag names now")),
        "{row_between}"
    );

    // A mirror differs, whatever was known at admission; a copy of one platform does not.
    let mut mirrored = runs("mirrored", &named(&moved));
    let routes = json!({"v": 1, "images": {"web": {
        "asked": image, "used": image, "by": "original", "digest": moved,
        "alternatives": [format!("{}/copies/app:1", registry.host())],
    }}});
    mirrored["metadata"]["annotations"]["fairlead.dev/routes"] = json!(routes.to_string());
    let mirrored = [pods[0].clone(), mirrored];
    registry.hold("copies/app", "1", &index);
    let drift = asking(&mirrored, &["--drift", "-o", "json"])?.is(3).json();
    assert_eq!((&drift["drift"][0]["kind"], &drift["drift"][1]), (&json!("mirror"), &Value::Null), "{drift}");
    registry.hold("copies/app", "1", &holding("moved")?);
    asking(&mirrored, &["--drift"])?.is(0);

    // What cannot be asked is named.
    pods.truncate(3);
    let gone = registry.host().clone();
    drop(registry);
    let report = asking(&pods, &["-o", "json", "--timeout", "5s"])?.is(0).json();
    assert_eq!(row(&report, "by-manifest")["state"], "unknown");
    assert!(report["warnings"][0].as_str().is_some_and(|one| one.contains(&gone)), "{report}");
    Ok(())
}

#[test]
fn what_cannot_be_read_is_named_and_the_rest_is_shown() -> Result<()> {
    let broken =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "odd"}, "spec": {"containers": 5}});
    let outcome = inventory(&[broken, replica("web-a", &image_id("app"), None)], &[])?;
    assert!(outcome.is(0).errors.contains("Pod/odd is left out"), "{}", outcome.errors);
    let outcome = inventory(&[json!({"apiVersion": "v1", "kind": "ConfigMap"})], &[])?;
    assert!(outcome.is(1).errors.contains("there is no Pod"), "{}", outcome.errors);
    inventory(&[], &["--digest", "sha256:1"])?.is(2);
    let outcome = inventory(&[], &["--drift", "-o", "cyclonedx"])?;
    assert!(outcome.is(2).errors.contains("write --drift as table or json"), "{}", outcome.errors);
    // As an API server writes it, the items of a PodList name no kind.
    let mut item = replica("web-a", &image_id("app"), None);
    item.as_object_mut().context("a Pod")?.retain(|field, _| field != "kind" && field != "apiVersion");
    let list = json!({"apiVersion": "v1", "kind": "PodList", "items": [item]}).to_string();
    let outcome = Person::new()?.run(&["inventory", "--no-registries", "-f", "-"], &list)?;
    assert!(outcome.is(0).output.contains("web-a") && outcome.errors.is_empty(), "{}", outcome.errors);
    Ok(())
}

/// What the official schema and library say of a bill of materials: the package URLs, or what is wrong.
fn checked(document: &str) -> Result<String> {
    let oracle = repository().join("oracles/bom");
    let go = |arguments: &[&str]| {
        let mut command = Command::new("go");
        command.args(arguments).current_dir(&oracle);
        command
    };
    ensure!(go(&["mod", "download"]).status()?.success(), "go mod download failed in {}", oracle.display());
    let module = go(&["list", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go"]).output()?;
    let schemas = String::from_utf8(module.stdout)?.trim().to_owned();
    let mut child = go(&["run", ".", &format!("{schemas}/schema")])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("Go is needed to check bills of materials: install Go 1.26 or later")?;
    child.stdin.take().context("input")?.write_all(document.as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

#[test]
fn the_bill_of_materials_is_valid_by_the_official_schema() -> Result<()> {
    let long = format!("sha512:{}", "ab".repeat(64));
    let mut other = replica("web-b", &format!("registry.example:5000/team/app@{long}"), None);
    other["spec"]["containers"][0]["image"] = json!("registry.example:5000/Odd Name");
    let mut nameless = replica("web-c", "", None);
    nameless["spec"]["containers"][0]["image"] = json!("");
    let pods = [replica("web-a", &image_id("app"), None), other, nameless];
    let outcome = inventory(&pods, &["-o", "cyclonedx"])?;
    let said = checked(&outcome.is(0).output)?;
    let expected = format!(
        "pkg:oci/app@{}?repository_url=registry.example%2Fteam%2Fapp",
        digest("app").replace(':', "%3A")
    );
    assert!(said.lines().any(|line| line == expected), "{said}");
    assert!(checked(&outcome.output.replace("\"container\"", "\"box\"")).is_err(), "the check checks");
    Ok(())
}

#[tokio::test]
async fn a_cluster_is_asked_and_the_kubelets_word_comes_first() -> Result<()> {
    let cluster = Cluster::builder().feature_gate("ImageVolumeWithDigest", true).start().await?;
    let namespace = cluster.namespace("inventory").await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client().await?, &namespace);
    let annotated = json!({"model": format!("mirror.example/llm@{}", digest("llm"))}).to_string();
    let forms = [
        ("containerd", digest("config"), "id"),
        ("crio", digest("config").replace("sha256:", ""), "id"),
        ("crio-next", format!("mirror.example/llm@{}", digest("llm")), "manifest"),
        ("junk", "x".repeat(256), "unreadable"),
    ];
    for (name, form, _) in &forms {
        let mut pod = replica(name, "", None);
        pod["metadata"] = json!({"name": name, "annotations": {"fairlead.dev/volume-digests": annotated}});
        pod["spec"]["nodeName"] = Value::Null;
        pod["spec"]["schedulerName"] = json!("nobody");
        let ephemeral = pod["spec"].as_object_mut().context("a specification")?.remove("ephemeralContainers");
        ensure!(ephemeral.is_some());
        pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        let status = replica(name, &image_id("app"), Some(form))["status"].clone();
        let mut status = json!({"status": status});
        status["status"]["containerStatuses"][0]["ready"] = json!(true);
        status["status"]["containerStatuses"][0]["restartCount"] = json!(0);
        pods.patch_status(name, &PatchParams::default(), &Patch::Merge(status)).await?;
    }
    let kubeconfig = cluster.kubeconfig();
    let person = Person::new()?;
    let kubeconfig = kubeconfig.to_str().unwrap();
    let arguments =
        ["inventory", "--no-registries", "-n", &namespace, "-o", "json", "--kubeconfig", kubeconfig];
    let outcome = person.run(&arguments, "")?;
    let report: Value = serde_json::from_str(&outcome.is(0).output)?;
    for (name, form, class) in &forms {
        let images = report["images"].as_array().context("images")?;
        let row = images
            .iter()
            .find(|image| image["pod"] == *name && image["role"] == "volume")
            .context("a row")?;
        assert_eq!(
            (&row["reported"]["text"], &row["reported"]["class"]),
            (&json!(form), &json!(class)),
            "{name}"
        );
        assert_eq!(row["expected"], json!({"digest": digest("llm"), "resolved": "annotation"}));
        let source = if *class == "unreadable" { "expected" } else { "kubelet" };
        assert_eq!(row["source"], source, "{name}");
        assert_eq!(row["state"], if *class == "manifest" { "matching" } else { "unknown" }, "{name}: {row}");
    }
    let one = ["inventory", "--no-registries", "--pod", "crio-next", "--kubeconfig", kubeconfig];
    let outcome = person.run(&one, "")?;
    assert!(
        outcome.is(0).output.lines().skip(1).all(|line| line.contains("crio-next")),
        "{}",
        outcome.output
    );
    Ok(())
}
