//! Which nodes an image is for.

use fairlead_api::drop::{CachedImageSpec, PullPolicySpec};
use fairlead_domain::platform::Platform;
use k8s_openapi::api::core::v1::Toleration;

use super::super::targets::{Skip, Targets, tolerates};
use super::*;

fn toleration(key: &str, operator: &str, value: &str, effect: &str) -> Toleration {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Toleration {
        key: text(key),
        operator: text(operator),
        value: text(value),
        effect: text(effect),
        toleration_seconds: None,
    }
}

#[test]
fn tolerations_mean_what_they_mean_in_kubernetes() {
    for (given, matched, expected) in [
        (("", "Exists", "", ""), ("k", "v", "NoSchedule"), true),
        (("", "Exists", "", "NoExecute"), ("k", "v", "NoSchedule"), false),
        (("", "Exists", "", "NoExecute"), ("k", "v", "NoExecute"), true),
        (("", "", "", ""), ("k", "", "NoSchedule"), false),
        (("k", "Exists", "", ""), ("k", "v", "NoSchedule"), true),
        (("k", "Exists", "", "NoSchedule"), ("k", "v", "NoExecute"), false),
        (("k", "Equal", "v", ""), ("k", "v", "NoSchedule"), true),
        (("k", "", "v", ""), ("k", "v", "NoSchedule"), true),
        (("k", "", "w", ""), ("k", "v", "NoSchedule"), false),
        (("j", "Exists", "", ""), ("k", "v", "NoSchedule"), false),
        (("k", "Gt", "5", ""), ("k", "7", "NoSchedule"), true),
        (("k", "Lt", "5", ""), ("k", "7", "NoSchedule"), false),
        (("k", "Lt", "x", ""), ("k", "7", "NoSchedule"), false),
        (("k", "Like", "v", ""), ("k", "v", "NoSchedule"), false),
    ] {
        let given_toleration = toleration(given.0, given.1, given.2, given.3);
        let found = tolerates(&given_toleration, &taint(matched.0, matched.1, matched.2));
        assert_eq!(found, expected, "{given:?} {matched:?}");
    }
}

fn spec(spec: &Value) -> CachedImageSpec {
    let mut spec = spec.clone();
    spec["image"] = "r.io/a".into();
    serde_json::from_value(spec).unwrap()
}

fn node(change: impl FnOnce(&mut Node)) -> Node {
    let mut sim = Sim::new(settings());
    sim.node("n", change);
    Node::clone(&sim.nodes["n"].0)
}

fn tainted(taints: &[(&str, &str)]) -> impl FnOnce(&mut Node) {
    let taints: Vec<_> = taints.iter().map(|(key, effect)| taint(key, "", effect)).collect();
    move |node| node.taints = taints.into()
}

#[test]
fn each_reason_to_leave_a_node_alone_is_told() {
    let plain = || spec(&json!({}));
    let tolerant = || spec(&json!({"tolerations": [{"operator": "Exists"}]}));
    let selective = || spec(&json!({"nodeSelector": {"pool": "a"}}));
    let key = |key: &str| Some(Skip::Taint { key: key.into() });
    let labelled = |node: &mut Node| node.labels = [("pool".into(), "a".into())].into();
    let cases: Vec<(&str, CachedImageSpec, Node, Option<Skip>)> = vec![
        ("any node", plain(), node(|_| {}), None),
        ("no label", selective(), node(|_| {}), Some(Skip::Selector)),
        ("the label", selective(), node(labelled), None),
        ("a taint", plain(), node(tainted(&[("gpu", "NoSchedule")])), key("gpu")),
        ("a mild taint", plain(), node(tainted(&[("gpu", "PreferNoSchedule")])), None),
        ("a hard taint", plain(), node(tainted(&[("gpu", "NoExecute")])), key("gpu")),
        ("tolerated", tolerant(), node(tainted(&[("gpu", "NoSchedule"), ("x", "NoExecute")])), None),
        ("the gate's taint", plain(), node(tainted(&[("fairlead.dev/warming", "NoSchedule")])), None),
        (
            "a control plane",
            plain(),
            node(tainted(&[("node-role.kubernetes.io/control-plane", "NoSchedule")])),
            key("node-role.kubernetes.io/control-plane"),
        ),
        (
            "a virtual node",
            plain(),
            node(tainted(&[("virtual-kubelet.io/provider", "NoSchedule")])),
            key("virtual-kubelet.io/provider"),
        ),
        ("not ready", plain(), node(|node| node.ready = false), Some(Skip::NotReady)),
        ("not ready but tolerated", tolerant(), node(|node| node.ready = false), Some(Skip::NotReady)),
        ("disk pressure", tolerant(), node(|node| node.disk_pressure = true), Some(Skip::DiskPressure)),
        (
            "a taint of disk pressure",
            plain(),
            node(tainted(&[("node.kubernetes.io/disk-pressure", "NoSchedule")])),
            Some(Skip::DiskPressure),
        ),
        ("cordoned", plain(), node(|node| node.unschedulable = true), Some(Skip::Cordoned)),
        ("cordoned but tolerated", tolerant(), node(|node| node.unschedulable = true), None),
        (
            "starting",
            plain(),
            node(tainted(&[("node.cilium.io/agent-not-ready", "NoExecute")])),
            key("node.cilium.io/agent-not-ready"),
        ),
    ];
    for (what, spec, node, expected) in cases {
        assert_eq!(Targets::new(&spec, None, &[]).skip(&node), expected, "{what}");
    }
}

#[test]
fn what_lasts_is_told_before_what_passes() {
    let mut both = node(tainted(&[("node.kubernetes.io/not-ready", "NoExecute"), ("gpu", "NoSchedule")]));
    both.ready = false;
    let skip = Targets::new(&spec(&json!({})), None, &[]).skip(&both).unwrap();
    assert_eq!(skip, Skip::Taint { key: "gpu".into() });
    assert!(skip.is_lasting());
    assert!(!Skip::NotReady.is_lasting() && !Skip::Cordoned.is_lasting() && !Skip::DiskPressure.is_lasting());
    for key in [
        "node.cilium.io/agent-not-ready",
        "karpenter.sh/unregistered",
        "example.com/startup",
        "startup-taint.cluster-autoscaler.kubernetes.io/gpu",
        "node.cloudprovider.kubernetes.io/uninitialized",
    ] {
        assert!(!Skip::Taint { key: key.into() }.is_lasting(), "{key}");
    }
}

#[test]
fn a_policy_narrows_what_the_image_asks_for() {
    let tolerant = spec(&json!({"tolerations": [{"operator": "Exists"}]}));
    let policy = |policy: Value| serde_json::from_value::<PullPolicySpec>(policy).unwrap();
    let gpu = node(tainted(&[("gpu", "NoSchedule")]));
    let skip = |policy: &PullPolicySpec, node: &Node| Targets::new(&tolerant, Some(policy), &[]).skip(node);
    assert_eq!(
        skip(&policy(json!({})), &gpu),
        None,
        "a policy without tolerations says nothing about taints"
    );
    let other = policy(json!({"tolerations": [{"key": "other", "operator": "Exists"}]}));
    assert_eq!(skip(&other, &gpu), Some(Skip::Taint { key: "gpu".into() }));
    let same = policy(json!({"tolerations": [{"key": "gpu", "operator": "Exists"}]}));
    assert_eq!(skip(&same, &gpu), None);
    let plain = spec(&json!({}));
    let alone = Targets::new(&plain, Some(&same), &[]).skip(&gpu);
    assert_eq!(alone, Some(Skip::Taint { key: "gpu".into() }), "a policy tolerates nothing for the image");
    let labelled = policy(json!({"nodeSelector": {"pool": "a"}}));
    assert_eq!(skip(&labelled, &gpu), Some(Skip::Selector));
}

#[test]
fn a_platform_that_the_image_lacks_is_known_before_pulling() {
    let platform = |os: &str, architecture: &str| Platform {
        os: os.to_owned(),
        architecture: architecture.to_owned(),
        variant: String::new(),
    };
    let index = [platform("linux", "amd64"), platform("unknown", "unknown")];
    let spec = spec(&json!({}));
    let skip = |node: &Node| Targets::new(&spec, None, &index).skip(node);
    assert_eq!(skip(&node(|_| {})), None);
    let arm = skip(&node(|node| node.architecture = "arm64".into())).unwrap();
    assert_eq!(arm.to_string(), "the image has no variant for linux/arm64");
    assert!(skip(&node(|node| node.os = "windows".into())).is_some());
    let older = [platform("linux", "386"), platform("linux", "arm")];
    for (architecture, runtime, expected) in [
        ("amd64", "containerd://2.2.0", true),
        ("arm64", "containerd://2.2.0", true),
        ("amd64", "cri-o://1.34.0", false),
        ("s390x", "containerd://2.2.0", false),
    ] {
        let node = node(|node| (node.architecture, node.runtime) = (architecture.into(), runtime.into()));
        assert_eq!(
            Targets::new(&spec, None, &older).skip(&node).is_none(),
            expected,
            "{architecture} {runtime}"
        );
    }
    assert_eq!(
        skip(&node(|node| (node.os, node.architecture) = ("".into(), "".into()))),
        None,
        "not reported yet"
    );
    let unknown = node(|node| node.architecture = "s390x".into());
    assert_eq!(Targets::new(&spec, None, &[]).skip(&unknown), None, "platforms are not known");
}
