use serde_json::{Value, json};

use super::*;

fn now() -> Timestamp {
    Timestamp::from_second(1_800_000_000).unwrap()
}

fn entry(image: &str, tag: &str, digest: &str) -> ImageEntry {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    ImageEntry { image: image.to_owned(), tag: text(tag), digest: text(digest) }
}

#[test]
fn children_have_the_names_that_drop_gives_them() {
    let digest = format!("sha256:{}", "a".repeat(64));
    for (set, entry, expected) in [
        ("web", entry("docker.io/library/nginx", "1.25", ""), "web-nginx-1-25-656002"),
        ("web", entry("docker.io/library/nginx", "", ""), "web-nginx-latest-00ab7f"),
        ("web", entry("docker.io/library/nginx", "", &digest), "web-nginx-digest-1951a5"),
        ("web", entry("docker.io/library/nginx", "1.25", &digest), "web-nginx-digest-1951a5"),
        ("s", entry("registry.example.com:5000/team/App_X", "V1.0", ""), "s-app-x-v1-0-8a9450"),
    ] {
        assert_eq!(child_name(set, &entry), expected);
    }
    let runner =
        entry("registry.gitlab.com/gitlab-org/gitlab-runner/gitlab-runner-helper", "x86_64-v17.10.0", "");
    let name = child_name("registry-discovered-apps", &runner);
    assert!(name.ends_with("-7be9e9") && name.len() == 68, "{name}");
}

#[test]
fn a_hash_survives_the_longest_names() {
    let long =
        |tag: &str| child_name(&"s".repeat(200), &entry(&format!("r.io/{}", "a".repeat(200)), tag, ""));
    assert!(long("1").len() == 253 && long("1") != long("2"));
    let [one, other] = ["r.io/app", "s.io/app"].map(|image| child_name("set", &entry(image, "1", "")));
    assert_ne!(one, other, "the same last segment of two registries");
}

fn set(spec: &Value) -> CachedImageSet {
    let mut set = CachedImageSet::new("set", serde_json::from_value(spec.clone()).unwrap());
    set.metadata.uid = Some("uid-set".to_owned());
    set.metadata.generation = Some(1);
    set
}

fn policy(ready: Option<(&str, &str)>, images: &[&str]) -> DiscoveryPolicy {
    let images: Vec<_> = images.iter().map(|image| json!({"image": image})).collect();
    let conditions: Vec<_> = ready
        .iter()
        .map(|(status, reason)| {
            json!({
                "type": "Ready", "status": status, "reason": reason, "message": "because",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            })
        })
        .collect();
    serde_json::from_value(json!({
        "metadata": {"name": "popular"},
        "spec": {"sources": []},
        "status": {"discoveredImages": images, "conditions": conditions},
    }))
    .unwrap()
}

/// The cluster after a plan was carried out.
fn apply(plan: &SetPlan, all: &mut Vec<CachedImage>) {
    all.retain(|image| plan.delete.iter().all(|(name, _)| image.metadata.name.as_ref() != Some(name)));
    for update in &plan.update {
        let child = all.iter_mut().find(|image| image.metadata.name.as_ref() == Some(&update.name)).unwrap();
        child.spec = update.spec.clone();
    }
    all.extend(plan.create.iter().cloned());
}

fn images(all: &[CachedImage]) -> Vec<String> {
    let mut images: Vec<_> =
        all.iter().map(|image| key_of(&image.spec).unwrap().reference().to_string()).collect();
    images.sort_unstable();
    images
}

const DISCOVERING: &str =
    r#"{"images": [{"image": "r.io/a", "tag": "1"}], "discoveryPolicyRef": {"name": "popular"}}"#;

fn discovering() -> CachedImageSet {
    set(&serde_json::from_str(DISCOVERING).unwrap())
}

#[test]
fn children_are_those_listed_and_those_discovered_each_once() {
    let set = set(&json!({
        "images": [{"image": "nginx"}, {"image": "docker.io/library/nginx", "tag": "latest"}, {"image": "r.io/a"}],
        "discoveryPolicyRef": {"name": "popular"}, "policyRef": {"name": "p"}, "gate": true,
        "nodeSelector": {"pool": "a"},
    }));
    let digest = format!("sha256:{}", "0".repeat(64));
    let pinned = format!("r.io:5000/b@{digest}");
    let found = policy(Some(("True", "Synced")), &["r.io/a:latest", &pinned, "r.io:5000/c", "r.io/d:2"]);
    let mut all = Vec::new();
    let first = plan(&set, Some(&found), &all, None, now());
    apply(&first, &mut all);
    assert_eq!(
        images(&all),
        [
            "docker.io/library/nginx:latest",
            "r.io/a:latest",
            "r.io/d:2",
            &*format!("r.io:5000/b@{digest}"),
            "r.io:5000/c:latest"
        ]
    );
    for child in &all {
        assert_eq!(child.metadata.labels.as_ref().unwrap()["drop.corewire.io/imageset"], "set");
        let owner = &child.metadata.owner_references.as_ref().unwrap()[0];
        assert_eq!(
            (owner.uid.as_str(), owner.controller, owner.block_owner_deletion),
            ("uid-set", Some(true), Some(false))
        );
        assert!(child.spec.gate && child.spec.policy_ref.as_ref().unwrap().name == "p");
        assert_eq!(child.spec.node_selector["pool"], "a");
    }
    let again = plan(&set, Some(&found), &all, None, now());
    assert_eq!((again.create.len(), again.update.len(), again.delete.len()), (0, 0, 0));
}

#[test]
fn a_child_tells_the_whole_name_of_its_set() {
    let name = "s".repeat(100);
    let mut long = set(&json!({"images": [{"image": "r.io/a"}]}));
    long.metadata.name = Some(name.clone());
    let child = new_child(&long, &entry("r.io/a", "", ""));
    let key = "drop.corewire.io/imageset";
    assert!(child.metadata.labels.unwrap()[key].len() <= 63);
    assert_eq!(child.metadata.annotations.unwrap()[key], name);
    assert_eq!(new_child(&set(&json!({})), &entry("r.io/a", "", "")).metadata.annotations, None);
}

#[test]
fn edits_reach_the_children_that_there_are() {
    let mut all = Vec::new();
    apply(
        &plan(&set(&json!({"images": [{"image": "r.io/a"}, {"image": "r.io/b"}]})), None, &all, None, now()),
        &mut all,
    );
    all[0].spec.priority = Some(7);
    all[0].metadata.generation = Some(2);
    all[0].metadata.uid = Some("uid-a".to_owned());
    let edited = set(&json!({
        "images": [{"image": "r.io/a", "tag": "latest"}, {"image": "r.io/c"}], "imagePullPolicy": "IfNotPresent",
        "imagePullSecrets": [{"name": "s"}], "tolerations": [{"operator": "Exists"}],
    }));
    let change = plan(&edited, None, &all, None, now());
    assert_eq!((change.create.len(), change.update.len(), change.delete.len()), (1, 1, 1));
    let ChildUpdate { uid, generation, .. } = &change.update[0];
    assert_eq!((uid.as_deref(), *generation), (Some("uid-a"), Some(2)), "what is replaced");
    apply(&change, &mut all);
    assert_eq!(images(&all), ["r.io/a:latest", "r.io/c:latest"]);
    for child in &all {
        assert_eq!(child.spec.image_pull_secrets[0].name, "s");
        assert_eq!(child.spec.tolerations.len(), 1);
    }
    assert_eq!(all[0].spec.priority, Some(7), "what the set does not say stays");
}

#[test]
fn a_discovery_that_fails_deletes_nothing() {
    let healthy = policy(Some(("True", "Synced")), &["r.io/b:1", "r.io/c:1"]);
    let mut all = Vec::new();
    apply(&plan(&discovering(), Some(&healthy), &all, None, now()), &mut all);
    assert_eq!(all.len(), 3);
    for (what, found, reason) in [
        ("missing", None, "DiscoveryPolicyNotFound"),
        ("failing without a list", Some(policy(Some(("False", "DNSError")), &[])), "DNSError"),
        ("failing with a part of it", Some(policy(Some(("False", "Timeout")), &["r.io/b:1"])), "Timeout"),
        ("failing in part", Some(policy(Some(("True", "PartiallyFailed")), &["r.io/b:1"])), "Progressing"),
        ("never run", Some(policy(None, &[])), "Progressing"),
    ] {
        let plan = plan(&discovering(), found.as_ref(), &all, None, now());
        assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (0, 0, 0), "{what}");
        let status = plan.status.unwrap();
        assert_eq!(status.conditions[0].reason, reason, "{what}");
        assert_eq!(status.images_managed, Some(3), "{what}");
    }
    let partial = policy(Some(("True", "PartiallyFailed")), &["r.io/d:1"]);
    let found = plan(&discovering(), Some(&partial), &all, None, now());
    assert_eq!((found.create.len(), found.delete.len()), (1, 0), "what is found by then is warmed");
    for child in &mut all {
        child.status = serde_json::from_value(json!({"phase": "Ready"})).unwrap();
    }
    let partial = policy(Some(("True", "PartiallyFailed")), &["r.io/b:1"]);
    let status = plan(&discovering(), Some(&partial), &all, None, now()).status.unwrap();
    assert_eq!((status.phase, status.images_ready), (Some(CachedImageSetPhase::Ready), Some(3)));
    let message = "3 of 3 images are on all their nodes; the DiscoveryPolicy found a part: because";
    assert_eq!(status.conditions[0].message, message);
    let empty = policy(Some(("True", "Synced")), &[]);
    apply(&plan(&discovering(), Some(&empty), &all, None, now()), &mut all);
    assert_eq!(images(&all), ["r.io/a:1"], "a discovery that works and finds nothing does");
    let mut without = discovering();
    without.spec.discovery_policy_ref = None;
    without.spec.images.clear();
    apply(&plan(&without, None, &all, None, now()), &mut all);
    assert!(all.is_empty());
}

#[test]
fn objects_that_only_have_the_label_are_left_alone() {
    let listed = set(&json!({"images": [{"image": "r.io/a"}]}));
    let child = new_child(&listed, &entry("r.io/a", "", ""));
    let mut orphan = child.clone();
    orphan.metadata.owner_references = None;
    let stranger = new_child(&listed, &entry("r.io/z", "", ""));
    let stranger =
        CachedImage { metadata: ObjectMeta { owner_references: None, ..stranger.metadata }, ..stranger };
    let plan = plan(&listed, None, [&orphan, &stranger], None, now());
    assert_eq!((plan.create.len(), plan.update.len(), plan.delete.len()), (0, 0, 0));
    let status = plan.status.unwrap();
    assert!(status.conditions[0].message.contains("exists and does not belong to the set"), "{status:?}");
}

#[test]
fn a_set_that_is_being_deleted_makes_no_children() {
    let mut leaving = set(&json!({"images": [{"image": "r.io/a"}]}));
    leaving.metadata.deletion_timestamp = Some(now().into());
    assert_eq!(plan(&leaving, None, [], None, now()), SetPlan::default());
}

#[test]
fn a_set_is_as_ready_as_its_children() {
    let listed = set(
        &json!({"images": [{"image": "r.io/a"}, {"image": "r.io/b"}, {"image": "r.io/b", "tag": "latest"}]}),
    );
    let mut all = Vec::new();
    apply(&plan(&listed, None, &all, None, now()), &mut all);
    let say = |child: &mut CachedImage, phase: &str, generation: i64| {
        child.metadata.generation = Some(1);
        child.status = serde_json::from_value(json!({
            "phase": phase, "observedGeneration": generation,
            "conditions": [{
                "type": "Ready", "status": "False", "reason": "ErrImagePull", "message": "node n: image not found",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        }))
        .unwrap();
    };
    let said = |all: &[CachedImage]| {
        let status = plan(&listed, None, all, None, now()).status.unwrap();
        let condition = &status.conditions[0];
        (status.phase.unwrap(), status.images_ready, condition.reason.clone(), condition.message.clone())
    };
    assert_eq!(said(&all).0, CachedImageSetPhase::Pending);
    say(&mut all[0], "Ready", 1);
    say(&mut all[1], "Ready", 0);
    assert_eq!(said(&all).1, Some(1), "what was found for an older generation does not count");
    say(&mut all[1], "Degraded", 1);
    let (phase, _, reason, message) = said(&all);
    assert_eq!((phase, reason.as_str()), (CachedImageSetPhase::Degraded, "Degraded"));
    assert!(message.contains("node n: image not found"), "{message}");
    say(&mut all[1], "Ready", 1);
    let refused = "cannot create CachedImage x: admission refused it";
    let status = plan(&listed, None, &all, Some(refused), now()).status.unwrap();
    assert_eq!(
        (status.phase, &*status.conditions[0].message),
        (Some(CachedImageSetPhase::Degraded), refused)
    );
    let (phase, ready, reason, _) = said(&all);
    assert_eq!((phase, ready, reason.as_str()), (CachedImageSetPhase::Ready, Some(2), "Ready"));
}

#[test]
fn an_image_with_a_gate_is_announced_until_it_is_there_with_it() {
    let open = set(&json!({"images": [{"image": "r.io/a"}], "nodeSelector": {"pool": "a"}}));
    let mut all = Vec::new();
    assert_eq!(coming_gate(&open, None, &all, now()), None);
    apply(&plan(&open, None, &all, None, now()), &mut all);
    let gate = set(&json!({"images": [{"image": "r.io/a"}], "nodeSelector": {"pool": "a"}, "gate": true}));
    for children in [&[][..], &all[..]] {
        let coming = coming_gate(&gate, None, children, now()).unwrap();
        assert!(coming.gate && coming.node_selector == gate.spec.node_selector, "{coming:?}");
    }
    apply(&plan(&gate, None, &all, None, now()), &mut all);
    assert_eq!(coming_gate(&gate, None, &all, now()), None);
    let discovering = set(&json!({"discoveryPolicyRef": {"name": "popular"}, "gate": true}));
    assert!(
        coming_gate(&discovering, Some(&policy(None, &[])), &[], now()).is_some_and(|coming| coming.gate)
    );
    let failing = policy(Some(("False", "DNSError")), &[]);
    assert_eq!(coming_gate(&discovering, Some(&failing), &[], now()), None, "it may never come");
}
