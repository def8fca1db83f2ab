//! The Pod that is created.

use std::slice;

use k8s_openapi::api::core::v1::Pod;

use super::super::pull_pod::{Order, pull_pod};
use super::super::record::Pull;
use super::*;

fn image(name: &str, spec: &Value) -> CachedImage {
    let mut image = CachedImage::new(name, serde_json::from_value(spec.clone()).unwrap());
    image.metadata.uid = Some(format!("uid-{name}"));
    image
}

fn order(images: &[CachedImage], node: &str, change: impl FnOnce(&mut Node), runner: Option<&str>) -> Pod {
    let mut sim = Sim::new(settings());
    sim.node(node, change);
    let references: Vec<_> = images
        .iter()
        .map(|image| asked(&image.spec.image, image.spec.tag.as_deref(), None).unwrap())
        .collect();
    let text = |field: &Option<String>| field.as_deref().unwrap().into();
    let pulls = images.iter().zip(&references).map(|(object, reference)| Pull {
        image: text(&object.metadata.name),
        uid: text(&object.metadata.uid),
        reference: reference.as_str().into(),
        attempt: 1,
    });
    let node = Arc::clone(&sim.nodes[node].0);
    pull_pod(&Order {
        namespace: "pulls".into(),
        record: Arc::new(Record {
            node: Arc::clone(&node.uid),
            volumes: runner.is_some(),
            pulls: pulls.collect(),
        }),
        node,
        like: Arc::new(images[0].clone()),
        pull_secrets: Arc::default(),
        deadline: Duration::from_mins(30),
        runner: runner.map(Into::into),
    })
}

#[test]
fn the_pod_is_as_small_and_as_harmless_as_a_pod_can_be() {
    let web = image(
        "web",
        &json!({
            "image": "nginx", "tag": "1.29", "imagePullPolicy": "IfNotPresent",
            "imagePullSecrets": [{"name": "registry"}],
            "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        }),
    );
    let pod = serde_json::to_value(order(slice::from_ref(&web), "n", |_| {}, None)).unwrap();
    let name = pod["metadata"]["name"].as_str().unwrap();
    assert!(name.starts_with("pull-web-"), "{name}");
    assert_eq!(
        pod["metadata"],
        json!({
            "name": name,
            "namespace": "pulls",
            "labels": {
                "app.kubernetes.io/managed-by": "drop",
                "drop.corewire.io/cachedimage": "web",
                "drop.corewire.io/node": "n",
            },
            "annotations": {
                "linkerd.io/inject": "disabled",
                "sidecar.istio.io/inject": "false",
                "fairlead.dev/pulls": "{\"node\":\"uid-n\",\"pulls\":[{\"image\":\"web\",\"uid\":\"uid-web\",\
                    \"reference\":\"docker.io/library/nginx:1.29\",\"attempt\":1}]}",
            },
            "ownerReferences": [{
                "apiVersion": "drop.corewire.io/v1alpha1", "kind": "CachedImage", "name": "web", "uid": "uid-web",
                "controller": true,
            }],
        })
    );
    assert_eq!(
        pod["spec"],
        json!({
            "activeDeadlineSeconds": 1800,
            "automountServiceAccountToken": false,
            "containers": [{
                "name": "pull",
                "image": "docker.io/library/nginx:1.29",
                "imagePullPolicy": "IfNotPresent",
                "command": ["true"],
                "resources": {"requests": {"cpu": "1m", "memory": "8Mi"}, "limits": {"memory": "64Mi"}},
                "securityContext": {
                    "allowPrivilegeEscalation": false,
                    "capabilities": {"drop": ["ALL"]},
                    "readOnlyRootFilesystem": true,
                    "runAsNonRoot": true,
                },
            }],
            "enableServiceLinks": false,
            "imagePullSecrets": [{"name": "registry"}],
            "nodeName": "n",
            "restartPolicy": "Never",
            "securityContext": {
                "fsGroup": 65534, "runAsGroup": 65534, "runAsNonRoot": true, "runAsUser": 65534,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "terminationGracePeriodSeconds": 0,
            "tolerations": [
                {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},
                {"key": "fairlead.dev/warming", "operator": "Exists"},
            ],
        })
    );
}

#[test]
fn names_that_no_label_can_hold_are_in_annotations() {
    for length in [63, 64, 253] {
        let long =
            |first: &str| format!("{first}{}z", ".x".repeat(length / 2))[..length - 1].to_owned() + "z";
        let web = image(&long("a"), &json!({"image": "r.io/a"}));
        let node = long("n");
        let pod = order(slice::from_ref(&web), &node, |_| {}, None);
        let labels = pod.metadata.labels.unwrap();
        let annotations = pod.metadata.annotations.unwrap();
        for (key, name) in
            [("drop.corewire.io/cachedimage", long("a")), ("drop.corewire.io/node", node.clone())]
        {
            assert!(labels[key].len() <= 63, "{}", labels[key]);
            assert_eq!(labels[key] == name, length <= 63);
            assert_eq!(annotations.get(key), (length > 63).then_some(&name));
        }
        assert_eq!(pod.spec.unwrap().node_name, Some(node));
    }
}

#[test]
fn a_batch_has_a_container_and_an_owner_for_each_image() {
    let images = ["a", "b"].map(|name| image(name, &json!({"image": format!("r.io/{name}"), "tag": "1"})));
    let pod = order(&images, "n", |_| {}, None);
    let spec = pod.spec.unwrap();
    let containers: Vec<_> =
        spec.containers.iter().map(|one| (&*one.name, one.image.as_deref().unwrap())).collect();
    assert_eq!(containers, [("pull-uid-a", "r.io/a:1"), ("pull-uid-b", "r.io/b:1")]);
    let owners = pod.metadata.owner_references.unwrap();
    assert_eq!(owners.iter().map(|owner| &*owner.uid).collect::<Vec<_>>(), ["uid-a", "uid-b"]);
    assert!(owners.iter().all(|owner| owner.controller.is_none()));
    assert_eq!(pod.metadata.annotations.unwrap()["drop.corewire.io/cachedimage"], "a,b");
    let label = &pod.metadata.labels.unwrap()["drop.corewire.io/cachedimage"];
    assert_eq!(label, &pod.metadata.name.unwrap());
}

#[test]
fn an_image_can_be_pulled_as_a_volume() {
    let model = image("model", &json!({"image": "r.io/model", "tag": "3"}));
    let spec = order(slice::from_ref(&model), "n", |_| {}, Some("r.io/fairlead:1")).spec.unwrap();
    assert_eq!(spec.containers[0].image.as_deref(), Some("r.io/fairlead:1"));
    let volumes = serde_json::to_value(spec.volumes).unwrap();
    assert_eq!(
        volumes,
        json!([{"name": "pull", "image": {"reference": "r.io/model:3", "pullPolicy": "Always"}}])
    );
    assert_eq!(spec.containers[0].volume_mounts.as_ref().unwrap()[0].name, "pull");
}

#[test]
fn windows_gets_nothing_that_only_linux_knows() {
    let web = image("web", &json!({"image": "r.io/a"}));
    let spec = order(slice::from_ref(&web), "n", |node| node.os = "windows".into(), None).spec.unwrap();
    assert_eq!(spec.os.unwrap().name, "windows");
    assert!(spec.containers[0].security_context.is_none());
    assert_eq!(spec.security_context.unwrap().run_as_user, None);
}
