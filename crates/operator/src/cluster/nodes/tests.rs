use fairlead_domain::reference::Reference;
use futures::FutureExt;
use serde_json::{Value, json};

use super::*;
use crate::cluster::watch::Tolerant;
use crate::cluster::watch::sink::Sink;

fn node(name: &str, heartbeat: &str, images: &[&str]) -> Value {
    json!({
        "metadata": {
            "name": name, "uid": format!("uid-{name}"), "resourceVersion": "1",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"kubernetes.io/os": "linux", "pool": "a"},
            "annotations": {"large": "x".repeat(1000)}, "managedFields": [{"manager": "kubelet"}],
        },
        "spec": {"unschedulable": true, "taints": [{"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}]},
        "status": {
            "conditions": [
                {"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat},
                {"type": "DiskPressure", "status": "False", "lastHeartbeatTime": "2026-01-01T00:00:00Z"},
            ],
            "nodeInfo": {
                "operatingSystem": "linux", "architecture": "arm64",
                "containerRuntimeVersion": "containerd://2.2.0",
            },
            "images": images.iter().map(|image| json!({"names": [image], "sizeBytes": 7})).collect::<Vec<_>>(),
        },
    })
}

fn object(node: &Value) -> Tolerant<LeanNode> {
    serde_json::from_str(&node.to_string()).expect("a Node")
}

fn listed(nodes: &[Value]) -> (Nodes, NodeSink) {
    let all = Nodes::default();
    let mut sink = NodeSink::new("Node", all.clone());
    sink.begin();
    for node in nodes {
        sink.listed(object(node));
    }
    sink.finish();
    (all, sink)
}

fn time(text: &str) -> Timestamp {
    text.parse().expect("a time")
}

fn reference(text: &str) -> Reference {
    Reference::parse(text).expect("a reference")
}

#[test]
fn what_capabilities_need_is_kept() {
    let images = [
        "docker.io/library/nginx:1.29",
        "REG.example.com:443/team/app@sha256:0000000000000000000000000000000000000000000000000000000000000000",
    ];
    let (nodes, _) = listed(&[node("n1", "2026-01-02T00:00:00Z", &images)]);
    let n1 = nodes.get("n1").expect("a Node");
    assert_eq!((&*n1.uid, n1.unschedulable, n1.ready, n1.disk_pressure), ("uid-n1", true, true, false));
    assert_eq!((&*n1.os, &*n1.architecture, &*n1.runtime), ("linux", "arm64", "containerd://2.2.0"));
    assert_eq!((&*n1.taints[0].key, &*n1.taints[0].effect), ("dedicated", "NoSchedule"));
    assert_eq!(n1.labels.len(), 2);
    assert!(n1.lists_image(&reference("nginx:1.29")), "names are compared as runtimes normalise them");
    assert!(!n1.lists_image(&reference("nginx:1.30")));
    let pinned = format!("reg.example.com/team/app@sha256:{}", "0".repeat(64));
    assert!(n1.lists_image(&reference(&pinned)));
    assert_eq!(nodes.reported_at("n1"), Some(time("2026-01-02T00:00:00Z")));
    assert_eq!(n1.created, time("2026-01-01T00:00:00Z"));
}

#[test]
fn a_list_that_may_leave_images_out_is_recognised() {
    let names: Vec<String> = (0..50).map(|number| format!("r.io/image-{number}:1")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let complete = |images: &[&str]| {
        let (nodes, _) = listed(&[node("n1", "2026-01-02T00:00:00Z", images)]);
        nodes.get("n1").expect("a Node").lists_all_images()
    };
    assert!(complete(&names[..49]) && !complete(&names));

    let mut many_names = node("n1", "2026-01-02T00:00:00Z", &[]);
    many_names["status"]["images"] = json!([{"names": ["a:1", "a:2", "a:3", "a:4", "a:5"]}]);
    let (nodes, _) = listed(&[many_names]);
    assert!(!nodes.get("n1").expect("a Node").lists_all_images(), "a kubelet lists five names of an image");
}

#[test]
fn a_heartbeat_wakes_nothing_and_its_time_is_known() {
    let (nodes, mut sink) = listed(&[node("n1", "2026-01-02T00:00:00Z", &["a:1"])]);
    let before = nodes.get("n1").expect("a Node");
    let mut changes = nodes.changes();
    sink.applied(object(&node("n1", "2026-01-02T00:05:00Z", &["a:1"])));
    assert_eq!(changes.next().now_or_never(), None);
    assert_eq!(nodes.reported_at("n1"), Some(time("2026-01-02T00:05:00Z")));
    assert!(Arc::ptr_eq(&before, &nodes.get("n1").expect("a Node")));

    sink.applied(object(&node("n1", "2026-01-02T00:05:00Z", &["a:1", "b:1"])));
    assert_eq!(changes.next().now_or_never(), Some(()));
    sink.deleted(object(&node("n1", "2026-01-02T00:05:00Z", &[])));
    assert_eq!(changes.next().now_or_never(), Some(()));
    assert!(nodes.all().is_empty());
}

#[test]
fn a_node_of_which_little_is_known_decodes() {
    for text in
        ["{}", r#"{"metadata":null,"spec":{"taints":null},"status":{"images":null,"conditions":null}}"#]
    {
        assert!(serde_json::from_str::<LeanNode>(text).is_ok(), "{text}");
    }
}

#[test]
fn nodes_are_needed_until_the_last_capability_lets_go() {
    let nodes = Nodes::default();
    let needed = nodes.needed();
    let (one, other) = (nodes.keep_watched(), nodes.keep_watched());
    assert_eq!(*needed.borrow(), 2);
    drop(one);
    drop(other);
    assert_eq!(*needed.borrow(), 0);
}
