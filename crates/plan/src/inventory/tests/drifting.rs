//! Replicas that differ, tags that move, mirrors that hold something else.

use fairlead_domain::platform::Platform;
use serde_json::json;

use super::*;
use crate::owners::Controller;

const HASH: &str = "6d4f7";

fn replica<'a>(
    name: &'a str,
    image: &'a str,
    image_id: &'a str,
    platform: Option<&'a Platform>,
) -> PodView<'a> {
    let controller = Controller { api_version: "apps/v1", kind: "ReplicaSet", name: "web-6d4f7", uid: "rs" };
    let mut pod = pod(name, vec![container("web", image, Some(image_id))]);
    (pod.controller, pod.template_hash, pod.platform) = (Some(controller), Some(HASH), platform);
    pod
}

fn judge<'a>(pods: &[PodView<'a>], current: &Current<'_>) -> DriftFindings<'a> {
    let known = Known::default();
    let (mut suspects, mut drifts) = (Suspects::default(), Drifts::default());
    for pod in pods {
        known.rows(pod).rows.iter().for_each(|row| suspects.add(pod, row, current));
    }
    for pod in pods {
        known.rows(pod).rows.iter().for_each(|row| drifts.add(pod, row, &suspects));
    }
    let found = drifts.finish(current);
    assert!(found.drifts.is_empty() || !suspects.is_empty());
    found
}

fn seen(digest: Digest) -> SeenDigest {
    SeenDigest { digest, at: 1000 }
}

fn drifts<'a>(
    pods: &[PodView<'a>],
    contents: &Contents,
    now: Option<Digest>,
) -> (Vec<Drift>, Vec<DriftRead<'a>>) {
    let now = |_: &str, _: &str| now.map(seen);
    let current = Current { contents, given_up: &|_| false, now: &now, places: &|_, _| None };
    let found = judge(pods, &current);
    (found.drifts, found.reads)
}

/// The same where nothing can be read.
fn blindly<'a>(pods: &[PodView<'a>]) -> DriftFindings<'a> {
    let contents = Contents::default();
    let current =
        Current { contents: &contents, given_up: &|_| true, now: &|_, _| None, places: &|_, _| None };
    judge(pods, &current)
}

fn image_id(of: &str) -> String {
    format!("registry.example/app@{}", digest(of))
}

#[test]
fn replicas_of_one_tag_with_different_content_drift() {
    let mut contents = multi_arch("old");
    for (read, content) in multi_arch("new").iter() {
        contents.learn(*read, content.clone());
    }
    let (old, new) = (image_id("old"), image_id("new"));
    let amd64 = platform("amd64");
    let pods = ["a", "b", "c"]
        .map(|name| replica(name, "app:1", if name == "c" { &new } else { &old }, Some(&amd64)));
    let (found, _) = drifts(&pods, &contents, None);
    let [drift] = &found[..] else { panic!("{found:?}") };
    assert_eq!(
        (drift.kind, &*drift.workload_kind, &*drift.workload),
        (DriftKind::Replicas, "Deployment", "web")
    );
    assert_eq!(drift.digests, [digest("old").to_string(), digest("new").to_string()]);
    assert!(drift.message.contains("in 2 Pods"), "{}", drift.message);

    let (found, reads) = drifts(&pods, &Contents::default(), None);
    assert_eq!(found, [], "it may be the same image under two digests");
    assert_eq!(reads.len(), 2);
    let found = blindly(&pods);
    assert_eq!(found.drifts.len(), 1, "they cannot be read, so different digests count");
    assert_eq!(found.reads.len(), 2, "and are wanted all the same, so that the answer stays");
    let (found, _) = drifts(&pods[..2], &contents, None);
    assert_eq!(found, []);
}

#[test]
fn what_an_index_holds_is_the_same_on_every_node() {
    let contents = multi_arch("app");
    let (amd64, arm64) = (platform("amd64"), platform("arm64"));
    let [index, on_amd64] = [image_id("app"), image_id("app/amd64")];
    let pods = [
        replica("a", "app:1", &index, Some(&arm64)),
        replica("b", "app:1", &on_amd64, Some(&amd64)),
        replica("c", "app:1", &index, Some(&amd64)),
    ];
    assert_eq!(drifts(&pods, &contents, None).0, []);
    let on_arm64 = image_id("app/arm64");
    let platforms =
        [replica("a", "app:1", &on_arm64, Some(&arm64)), replica("b", "app:1", &on_amd64, Some(&amd64))];
    let found = blindly(&platforms);
    assert!(found.drifts.is_empty() && found.undecided.len() == 1, "{found:?}");
    let unknown = [replica("a", "app:1", &on_arm64, None), replica("b", "app:1", &on_amd64, None)];
    assert_eq!(blindly(&unknown).drifts, [], "the nodes may be of different platforms");
    let configs = ["amd64", "arm64"].map(|on| digest(&format!("app/{on}/config")).to_string());
    let pods =
        [replica("a", "app:1", &configs[0], Some(&amd64)), replica("b", "app:1", &configs[1], Some(&arm64))];
    assert_eq!(drifts(&pods, &contents, None).0, [], "two platforms have two configurations");
    let pods =
        [replica("a", "app:1", &configs[0], Some(&amd64)), replica("b", "app:1", &configs[1], Some(&amd64))];
    assert_eq!(drifts(&pods, &contents, None).0.len(), 1);
}

#[test]
fn replicas_of_a_platform_that_few_nodes_have_drift_as_well() {
    let mut contents = multi_arch("old");
    for (read, content) in multi_arch("new").iter() {
        contents.learn(*read, content.clone());
    }
    let (amd64, arm64) = (platform("amd64"), platform("arm64"));
    let [on_amd64, old, new] = ["old/amd64", "old/arm64", "new/arm64"].map(image_id);
    let pods = [
        replica("a", "app:1", &on_amd64, Some(&amd64)),
        replica("b", "app:1", &on_amd64, Some(&amd64)),
        replica("c", "app:1", &old, Some(&arm64)),
        replica("d", "app:1", &new, Some(&arm64)),
    ];
    let (found, _) = drifts(&pods, &contents, None);
    let [drift] = &found[..] else { panic!("{found:?}") };
    assert_eq!(drift.digests, [digest("old/arm64").to_string(), digest("new/arm64").to_string()]);
    assert!(drift.message.contains("in 1 Pods (c, for instance)"), "{}", drift.message);
    assert_eq!(drifts(&pods[..3], &contents, None).0, [], "two platforms have two images");

    // Both images are of the index that another replica reports, so nothing is left to be told.
    let index = image_id("old");
    let of_index = replica("e", "app:1", &index, Some(&amd64));
    let current =
        Current { contents: &contents, given_up: &|_| true, now: &|_, _| None, places: &|_, _| None };
    let found = judge(&[pods[0].clone(), pods[2].clone(), of_index], &current);
    assert!(found.drifts.is_empty() && found.undecided.is_empty() && found.reads.is_empty(), "{found:?}");
}

#[test]
fn a_tag_that_moved_drifts_and_a_digest_cannot() {
    let mut contents = multi_arch("old");
    for (read, content) in multi_arch("new").iter() {
        contents.learn(*read, content.clone());
    }
    let old = image_id("old");
    let (found, _) = drifts(&[replica("a", "app:1", &old, None)], &contents, Some(digest("new")));
    let [drift] = &found[..] else { panic!("{found:?}") };
    assert_eq!((drift.kind, &*drift.pod), (DriftKind::Upstream, "a"));
    assert_eq!(drifts(&[replica("a", "app:1", &old, None)], &contents, Some(digest("old"))).0, []);
    let pinned = format!("app:1@{}", digest("old"));
    assert_eq!(drifts(&[replica("a", &pinned, &old, None)], &contents, Some(digest("new"))).0, []);
}

#[test]
fn a_look_from_before_a_pod_came_says_nothing_about_it() {
    let mut contents = multi_arch("old");
    for (read, content) in multi_arch("new").iter() {
        contents.learn(*read, content.clone());
    }
    let new = image_id("new");
    let came = |created: &[i64]| {
        let pods = created.iter().zip(["a", "b"]).map(|(created, name)| {
            let mut pod = replica(name, "app:1", &new, None);
            pod.created = *created;
            pod
        });
        drifts(&pods.collect::<Vec<_>>(), &contents, Some(digest("old"))).0
    };
    assert_eq!([came(&[1000]), came(&[1500])], [vec![], vec![]], "its digest is the newer one");
    for created in [&[999][..], &[1500, 999]] {
        let found = came(created);
        assert_eq!(found.len(), 1, "the tag was moved back");
        assert_eq!(found[0].pod, if created.len() == 1 { "a" } else { "b" });
    }
}

/// A `StatefulSet` is the controller of the Pods of all its revisions.
fn ordinal<'a>(name: &'a str, revision: &'a str, image: &'a str, image_id: &'a str) -> PodView<'a> {
    let set = Controller { api_version: "apps/v1", kind: "StatefulSet", name: "web", uid: "set" };
    PodView {
        controller: Some(set),
        template_hash: None,
        revision_hash: Some(revision),
        ..replica(name, image, image_id, None)
    }
}

#[test]
fn drift_concerns_the_revisions_whose_pods_run_it() {
    let mut contents = multi_arch("old");
    for (read, content) in multi_arch("new").iter() {
        contents.learn(*read, content.clone());
    }
    let (old, new) = (image_id("old"), image_id("new"));
    let pods = [
        ordinal("web-0", "one", "app:1", &old),
        ordinal("web-1", "two", "app:1", &old),
        ordinal("web-2", "three", "app:1", &new),
    ];
    let (found, _) = drifts(&pods, &contents, Some(digest("new")));
    let of = |kind| found.iter().find(|drift| drift.kind == kind).expect("it drifts").revisions.clone();
    let revision = |name: &str| DriftedRevision { controller: "set".to_owned(), revision: name.to_owned() };
    assert_eq!(of(DriftKind::Upstream), [vec![revision("one"), revision("two")]]);
    assert_eq!(
        of(DriftKind::Replicas),
        [vec![revision("one"), revision("two")], vec![revision("three")]],
        "no revision runs both"
    );
    let concerned = by_revision(&found);
    assert_eq!(concerned.keys().map(|one| &*one.revision).collect::<Vec<_>>(), ["one", "two"]);
}

#[test]
fn what_a_tag_names_now_is_read_where_the_image_was_asked_for() {
    let old = image_id("old");
    let pods = [replica("a", "app:1", &old, None)];
    let (found, reads) = drifts(&pods, &Contents::default(), Some(digest("new")));
    assert_eq!(found, [], "it may be the same image under two digests");
    let mut read: Vec<_> = reads.iter().map(|read| (read.digest, &*read.image, read.pod)).collect();
    read.sort_unstable();
    let mut expected = [(digest("new"), "app:1", "a"), (digest("old"), "app:1", "a")];
    expected.sort_unstable();
    assert_eq!(read, expected);
    // The old one is gone from the registry.
    let contents = multi_arch("new");
    let now = |_: &str, _: &str| Some(seen(digest("new")));
    let current = Current { contents: &contents, given_up: &|_| true, now: &now, places: &|_, _| None };
    assert_eq!(judge(&pods, &current).drifts.len(), 1);
}

#[test]
fn an_image_volume_drifts_by_what_is_expected_of_it() {
    let (one, other) = (digest("old"), digest("new"));
    let routes = |of: &Digest| {
        let route = json!({"asked": "llm:1", "used": "llm:1", "by": "original", "digest": of});
        json!({"v": 1, "images": {"volume:model": route}}).to_string()
    };
    let texts = [routes(&one), routes(&other)];
    let repeated = format!("registry.example/llm@{one}");
    let pods = [("a", &texts[0]), ("b", &texts[1])].map(|(name, routes)| {
        let mut pod = replica(name, "app:1", "", None);
        // What may be about an earlier container does not count.
        let mount = MountView { unconfirmed: true, ..mount("web", Some(&repeated)) };
        pod.images = vec![volume("llm:1", vec![mount])];
        pod.routes = Some(routes);
        pod
    });
    let (_, reads) = drifts(&pods, &Contents::default(), None);
    let read: Vec<_> = reads.iter().map(|read| (read.digest, &*read.image, read.pod)).collect();
    assert_eq!(read, [(one, "llm:1", "a"), (other, "llm:1", "b")]);
    let mut contents = multi_arch("old");
    for (read, content) in multi_arch("new").iter() {
        contents.learn(*read, content.clone());
    }
    let (found, _) = drifts(&pods, &contents, None);
    let [drift] = &found[..] else { panic!("{found:?}") };
    assert_eq!((&*drift.image_of, &*drift.pod, drift.revisions.len()), ("volume:model", "a", 2));
}

#[test]
fn a_mirror_that_differed_at_admission_is_told() {
    let routes = json!({"v": 1, "images": {"web": {
        "asked": "app:1", "used": "mirror.example/app:1", "by": "ClusterImageSetMirror//m",
        "differs": [{"image": "docker.io/library/app:1", "digest": digest("new"), "by": "original"}],
    }}})
    .to_string();
    let mut pod = pod("a", vec![container("web", "mirror.example/app:1", None)]);
    pod.routes = Some(&routes);
    let pods = [pod];
    let (found, _) = drifts(&pods, &Contents::default(), None);
    assert_eq!(found[0].kind, DriftKind::Mirror);
    assert!(found[0].message.contains("docker.io/library/app:1 holds"), "{}", found[0].message);
    // The mirror has caught up since: registries say so, or the comparison of places.
    assert_eq!(drifts(&pods, &Contents::default(), Some(digest("new"))).0, []);
    let contents = Contents::default();
    let compared = |places: &'static [&'static str]| {
        let places = move |_: &str, _: &str| Some(places.iter().map(|one| (*one).to_owned()).collect());
        let current =
            Current { contents: &contents, given_up: &|_| false, now: &|_, _| None, places: &places };
        judge(&pods, &current).drifts
    };
    assert_eq!(compared(&[]), []);
    assert!(compared(&["a is 1 and b is 2"])[0].message.contains("a is 1 and b is 2"));
}

#[test]
fn a_mirror_that_differs_since_is_told() {
    let running = image_id("app");
    let pods = [replica("a", "app:1", &running, None)];
    let contents = Contents::default();
    let places = |_: &str, image: &str| (image == "app:1").then(|| vec!["a is 1 and b is 2".to_owned()]);
    let current = Current { contents: &contents, given_up: &|_| false, now: &|_, _| None, places: &places };
    let found = judge(&pods, &current).drifts;
    let [drift] = &found[..] else { panic!("{found:?}") };
    assert_eq!((drift.kind, &*drift.workload), (DriftKind::Mirror, "web"));
}
