//! The cases of KEP-5365 that need no cluster, and the traps around them.

mod comparing;
mod drifting;
mod reading;
mod surveying;

use std::collections::{BTreeMap, BTreeSet, HashSet};

use fairlead_domain::digest::Digest;
use fairlead_domain::platform::Platform;
use serde_json::json;

use super::*;
use crate::pod_record::Place;

pub(super) fn digest(of: &str) -> Digest {
    Digest::sha256(of.as_bytes())
}

pub(super) fn platform(architecture: &str) -> Platform {
    Platform { os: "linux".to_owned(), architecture: architecture.to_owned(), variant: String::new() }
}

/// An index `of` with an image for two platforms, whose configurations are read as well.
pub(super) fn multi_arch(of: &str) -> Contents {
    let mut contents = Contents::default();
    let manifest = |architecture: &str| PlatformManifest {
        platform: platform(architecture),
        digest: digest(&format!("{of}/{architecture}")),
    };
    let attestation = PlatformManifest {
        platform: Platform {
            os: "unknown".to_owned(),
            architecture: "unknown".to_owned(),
            variant: String::new(),
        },
        digest: digest("attestation"),
    };
    contents.learn(digest(of), Content::index([manifest("amd64"), attestation, manifest("arm64")]));
    for architecture in ["amd64", "arm64"] {
        let config = digest(&format!("{of}/{architecture}/config"));
        contents.learn(digest(&format!("{of}/{architecture}")), Content::image(config));
    }
    contents
}

pub(super) fn manifest(of: &str) -> Reported {
    Reported::parse(&format!("registry.example/app@{}", digest(of))).expect("a report")
}

pub(super) fn id(of: &str) -> Reported {
    Reported::parse(&digest(of).to_string()).expect("a report")
}

pub(super) fn pod<'a>(name: &'a str, images: Vec<UseView<'a>>) -> PodView<'a> {
    PodView {
        namespace: "shop",
        name,
        uid: name,
        node: Some("node-1"),
        platform: None,
        controller: None,
        template_hash: None,
        revision_hash: None,
        created: 0,
        routes: None,
        volume_digests: None,
        annotation_bytes: 0,
        images,
        misplaced: Vec::new(),
    }
}

pub(super) fn container<'a>(name: &'a str, image: &'a str, image_id: Option<&'a str>) -> UseView<'a> {
    UseView {
        place: Place::Container(name),
        sidecar: false,
        image,
        image_id,
        created: image_id.is_some(),
        ended: false,
        mounts_images: false,
        mounts: Vec::new(),
    }
}

pub(super) fn volume<'a>(image: &'a str, mounts: Vec<MountView<'a>>) -> UseView<'a> {
    UseView { place: Place::Volume("model"), mounts, ..container("model", image, None) }
}

pub(super) fn mount<'a>(container: &'a str, reported: Option<&'a str>) -> MountView<'a> {
    MountView { container, path: "/models", reported, unconfirmed: false }
}

pub(super) struct Known {
    pub(super) contents: Contents,
    pub(super) later: BTreeMap<String, Digest>,
    pub(super) now: BTreeMap<String, Digest>,
    pub(super) proven: Option<BTreeSet<String>>,
    pub(super) notes: Notes,
    pub(super) given_up: bool,
    pub(super) is_old: bool,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            contents: Contents::default(),
            later: BTreeMap::new(),
            now: BTreeMap::new(),
            proven: Some(BTreeSet::new()),
            notes: Notes::default(),
            given_up: false,
            is_old: false,
        }
    }
}

impl Known {
    pub(super) fn rows<'a>(&self, pod: &PodView<'a>) -> PodRows<'a> {
        let later = |_: &PodView<'_>, image: &str| self.later.get(image).copied();
        let now = |_: &PodView<'_>, image: &str| self.now.get(image).copied();
        let holds = |_: &PodView<'_>, image: &str| {
            let holds = self.proven.as_ref()?.contains(image);
            Some(if holds { Proof::Holds } else { Proof::Lacks })
        };
        let proven = self.proven.as_ref().map(|_| &holds as _);
        let noted = |pod: &PodView<'_>, volume: &str| self.notes.of(pod.uid, volume);
        let given_up = |_: &Digest| self.given_up;
        let is_old = |_: &PodView<'_>| self.is_old;
        let (contents, given_up, is_old) = (&self.contents, &given_up, &is_old);
        rows(pod, &Knowledge { contents, given_up, noted: &noted, is_old, later: &later, now: &now, proven })
    }
}

#[test]
fn a_reported_volume_is_told_by_the_kubelet() {
    let told = format!("registry.example/llm@{}", digest("llm"));
    let routes = json!({"v": 1, "images": {"volume:model": {
        "asked": "llm:1", "used": "registry.example/llm:1", "by": "x", "digest": digest("llm"),
    }}})
    .to_string();
    let mut view = pod("a", vec![volume("registry.example/llm:1", vec![mount("web", Some(&told))])]);
    view.routes = Some(&routes);
    let proven = Known { proven: Some(BTreeSet::from([told.clone()])), ..Known::default() };
    let found = proven.rows(&view);
    let [row] = &found.rows[..] else { panic!("{found:?}") };
    assert_eq!((row.source, row.state, &*row.requested), (Source::Kubelet, State::Matching, "llm:1"));
    assert_eq!(row.expected, Some(Expected { digest: digest("llm"), resolved: Resolved::Admission }));
    assert_eq!(row.image_id().as_deref(), Some(&*told));
    assert_eq!(found.findings, []);
}

#[test]
fn what_says_nothing_is_unknown_and_breaks_nothing() {
    for reported in [None, Some(""), Some("  ")] {
        let view = pod("a", vec![volume("registry.example/llm:1", vec![mount("web", reported)])]);
        let row = Known::default().rows(&view).rows.remove(0);
        assert_eq!((row.source, row.state, row.reported), (Source::Unknown, State::Unknown, None));
    }
    let unmounted = pod("a", vec![volume("registry.example/llm:1", Vec::new())]);
    let rows = Known::default().rows(&unmounted).rows;
    assert_eq!((rows.len(), rows[0].state), (1, State::Unknown));
    assert!(rows[0].reason.contains("no container mounts"), "{}", rows[0].reason);
}

#[test]
fn an_image_of_another_volume_is_a_finding_and_no_row() {
    let mut view = pod("a", vec![container("web", "nginx:1", None)]);
    view.misplaced = vec![Misplaced { container: "web", volume: "scratch", specified: true }];
    let found = Known::default().rows(&view);
    assert_eq!(found.rows.len(), 1);
    assert_eq!(found.findings[0].kind, FindingKind::Misplaced);
    assert!(found.findings[0].text.contains("scratch"));
}

#[test]
fn containers_that_mount_different_content_are_a_finding() {
    let named = |host: &str, of: &str| format!("{host}/llm@{}", digest(of));
    let one = named("registry.example", "llm");
    let mut contents = multi_arch("llm");
    for (read, content) in multi_arch("other").iter() {
        contents.learn(*read, content.clone());
    }
    let read = Known { contents, ..Known::default() };
    let diverges = |known: &Known, second: &str| {
        let mounts = vec![mount("web", Some(&one)), mount("side", None), mount("job", Some(second))];
        let mut found = known.rows(&pod("a", vec![volume("registry.example/llm:1", mounts)]));
        assert!(found.findings.iter().all(|finding| finding.kind == FindingKind::Divergence));
        (!found.findings.is_empty(), found.rows.remove(0).reads)
    };
    for (second, expected) in [
        (one.clone(), false),
        (named("mirror.example", "llm"), false),
        // The image of the node's platform, and its configuration.
        (named("registry.example", "llm/amd64"), false),
        (digest("llm/amd64/config").to_string(), false),
        (named("registry.example", "other"), true),
        (digest("other/amd64/config").to_string(), true),
        ("junk".to_owned(), false),
    ] {
        assert_eq!(diverges(&read, &second).0, expected, "{second}");
    }
    let other = named("registry.example", "other");
    let (found, reads) = diverges(&Known::default(), &other);
    assert!(!found && reads.len() == 2, "it may be the same image under two digests: {reads:?}");
    let given_up = Known { given_up: true, ..Known::default() };
    assert!(diverges(&given_up, &other).0, "they cannot be read, so different digests count");
}

#[test]
fn a_value_from_before_a_restart_is_unconfirmed() {
    let told = format!("registry.example/llm@{}", digest("llm"));
    let image = format!("registry.example/llm:1@{}", digest("llm"));
    let stale = MountView { unconfirmed: true, ..mount("web", Some(&told)) };
    let row = Known::default().rows(&pod("a", vec![volume(&image, vec![stale])])).rows.remove(0);
    assert_eq!((row.state, row.source), (State::Unknown, Source::Kubelet));
    assert!(row.reason.contains("started again"), "{}", row.reason);
}

#[test]
fn the_annotation_is_written_once_and_goes_when_the_kubelet_reports() {
    let llm = |reported, expected: Option<&str>, pending| VolumeDigest {
        name: "model",
        image: "registry.example/llm:1",
        reported,
        expected: expected.map(digest),
        pending,
    };
    let text = json!({"model": format!("registry.example/llm@{}", digest("llm"))}).to_string();
    let forged = json!({"model": format!("registry.example/llm@{}", digest("evil"))}).to_string();
    for (found, volume, expected) in [
        (None, llm(false, None, true), Change::Leave),
        (None, llm(false, None, false), Change::Leave),
        (None, llm(false, Some("llm"), false), Change::Write(text.clone())),
        (Some(&text), llm(false, Some("llm"), false), Change::Leave),
        (Some(&forged), llm(false, Some("llm"), false), Change::Write(text.clone())),
        (Some(&forged), llm(false, None, true), Change::Leave),
        (Some(&forged), llm(false, None, false), Change::Remove),
        (Some(&text), llm(true, Some("llm"), false), Change::Remove),
        (Some(&text), llm(true, None, true), Change::Remove),
        (None, llm(true, Some("llm"), false), Change::Leave),
        (Some(&"{".to_owned()), llm(false, Some("llm"), false), Change::Write(text.clone())),
    ] {
        assert_eq!(
            change(found.map(String::as_str), std::slice::from_ref(&volume), false),
            expected,
            "{found:?} {volume:?}"
        );
    }
    // One of two is reported: the other one stays.
    let data =
        VolumeDigest { name: "data", image: "registry.example/data:1", ..llm(true, Some("data"), false) };
    let both = json!({
        "data": format!("registry.example/data@{}", digest("data")),
        "model": format!("registry.example/llm@{}", digest("llm")),
    });
    let volumes = [data, llm(false, Some("llm"), false)];
    assert_eq!(change(Some(&both.to_string()), &volumes, false), Change::Write(text.clone()));
    // What is found out late is not added to what an old Pod says, so that it is written to once.
    let data = VolumeDigest { reported: false, ..volumes[0].clone() };
    let volumes = [data, volumes[1].clone()];
    assert_eq!(change(Some(&text), &volumes, true), Change::Leave);
    assert_eq!(change(Some(&text), &volumes, false), Change::Write(both.to_string()));
    assert_eq!(change(Some(&forged), &volumes, true), Change::Write(both.to_string()));
}

#[test]
fn an_annotation_that_would_be_too_large_has_what_fits() {
    let names: Vec<_> = (0..100).map(|number| format!("volume-{number:03}")).collect();
    let volumes: Vec<_> = names
        .iter()
        .map(|name| VolumeDigest {
            name,
            image: "registry.example/llm:1",
            reported: false,
            expected: Some(digest(name)),
            pending: false,
        })
        .collect();
    let Change::Write(text) = change(None, &volumes, false) else { panic!("nothing is written") };
    let written: BTreeMap<String, String> = serde_json::from_str(&text).expect("a map");
    assert!(text.len() <= 8 * 1024 && written.len() > 50, "{} bytes", text.len());
    assert_eq!(change(Some(&text), &volumes, false), Change::Leave, "and is not written again");
}

#[test]
fn a_forged_annotation_counts_only_if_the_registry_bears_it_out() {
    let said = format!("registry.example/llm@{}", digest("evil"));
    let text = json!({"model": said}).to_string();
    let mut view = pod("a", vec![volume("registry.example/llm:1", vec![mount("web", None)])]);
    view.volume_digests = Some(&text);
    let expected =
        |known: &Known| known.rows(&view).rows.remove(0).expected.map(|expected| expected.resolved);
    assert_eq!(expected(&Known::default()), None);
    let proven = Some(BTreeSet::from([said.clone()]));
    assert_eq!(expected(&Known { proven, ..Known::default() }), Some(Resolved::Later));
    assert_eq!(expected(&Known { proven: None, ..Known::default() }), Some(Resolved::Annotation));
    let later = BTreeMap::from([("registry.example/llm:1".to_owned(), digest("llm"))]);
    let row = Known { later, ..Known::default() }.rows(&view).rows.remove(0);
    assert_eq!(row.expected.map(|expected| expected.digest), Some(digest("llm")));
    // What was known of the volume before stays, whatever the Pod says since.
    let mut notes = Notes::default();
    notes.note(&"a".into(), "model", &Expected { digest: digest("llm"), resolved: Resolved::Later });
    let proven = Some(BTreeSet::from([said]));
    let row = Known { proven, notes, ..Known::default() }.rows(&view).rows.remove(0);
    assert_eq!(row.expected, Some(Expected { digest: digest("llm"), resolved: Resolved::Later }));
    // Of an old Pod nothing else is expected, also after the annotation is gone.
    let later = || BTreeMap::from([("registry.example/llm:1".to_owned(), digest("llm"))]);
    let found = Known { later: later(), is_old: true, ..Known::default() }.rows(&view);
    assert_eq!((&found.rows[0].expected, &found.unproven[..]), (&None, &["model"][..]));
    let mut notes = Notes::default();
    notes.note_unproven(&"a".into(), "model");
    let bare = PodView { volume_digests: None, ..view.clone() };
    let found = Known { later: later(), notes, ..Known::default() }.rows(&bare);
    assert_eq!((&found.rows[0].expected, &found.unproven[..]), (&None, &["model"][..]));
    let found = Known { later: later(), is_old: true, ..Known::default() }.rows(&bare);
    assert!(found.rows[0].expected.is_some() && found.unproven.is_empty(), "one that never had any");
    // A digest of another repository is not about this volume.
    let text = json!({"model": format!("elsewhere.example/llm@{}", digest("llm"))}).to_string();
    let read = VolumeDigests::read(&text);
    assert_eq!(read.of("model", &"registry.example/llm:1".parse().expect("a reference")), None);
}

#[test]
fn an_image_is_named_in_the_form_of_an_image_id() {
    let told = |text: &str, expected: Option<&str>| {
        let image = expected.map_or_else(|| "app:1".to_owned(), |of| format!("app:1@{}", digest(of)));
        let pod = pod("a", vec![container("web", &image, Some(text))]);
        let known = Known { contents: multi_arch("app"), ..Known::default() };
        let row = known.rows(&pod).rows.remove(0);
        (row.image_id().map(std::borrow::Cow::into_owned), row.digest())
    };
    let plain = format!("registry.example/app@{}", digest("app"));
    for text in [plain.clone(), format!("docker-pullable://{plain}"), format!(" {plain}\n")] {
        assert_eq!(told(&text, None), (Some(plain.clone()), Some(digest("app"))), "{text}");
    }
    let tagged = format!("registry.example/app:1@{}", digest("app"));
    assert_eq!(told(&tagged, None).0, Some(plain));
    let nameless = format!("<none>@{}", digest("app"));
    let routed = format!("docker.io/library/app@{}", digest("app"));
    assert_eq!(told(&nameless, None).0.as_ref(), Some(&routed));
    // An image ID is told by the image that it is known to be of, and by nothing if it is of another.
    let config = digest("app/amd64/config");
    assert_eq!(told(&config.to_string(), Some("app")), (Some(routed), Some(digest("app"))));
    let other = digest("other/config");
    assert_eq!(told(&other.hex(), Some("app")), (Some(other.to_string()), None));
}

#[test]
fn a_digest_is_found_behind_the_index_that_is_reported() {
    let image_id = format!("registry.example/app@{}", digest("app"));
    let amd64 = platform("amd64");
    let mut view = pod("a", vec![container("web", "app:1", Some(&image_id))]);
    view.platform = Some(&amd64);
    let (contents, none) = (multi_arch("app"), Contents::default());
    let row = Known::default().rows(&view).rows.remove(0);
    for (wanted, found, blindly) in [
        ("app", true, true),
        ("app/amd64", true, false),
        ("app/amd64/config", true, false),
        ("app/arm64", false, false),
        ("other", false, false),
    ] {
        let has = |contents| row.has(&digest(wanted), view.platform, contents);
        assert_eq!((has(&contents), has(&none)), (found, blindly), "{wanted}");
    }
    assert_eq!(row.unread(view.platform, &none, true), [digest("app")]);
    assert_eq!(row.unread(view.platform, &contents, true), []);
    let mut index = Contents::default();
    let content = contents.get(&digest("app")).expect("an index").clone();
    index.learn(digest("app"), content);
    assert_eq!(row.unread(view.platform, &index, true), [digest("app/amd64")]);
    assert_eq!(row.unread(view.platform, &index, false), []);
}

#[test]
fn series_are_bounded_and_shared_by_namespaces() {
    let images: Vec<_> = (0..20_000).map(|number| format!("nginx:{number:05}")).collect();
    let add = |series: &mut Series<'static>, namespace: &'static str, images: &'static [String]| {
        for image in images {
            let mut pod = pod("a", vec![container("web", image, None), container("side", image, None)]);
            pod.namespace = namespace;
            let rows = Known::default().rows(&pod).rows;
            series.add(&pod, &rows, true);
        }
    };
    let images: &'static [String] = images.leak();
    let all = |order: [(&'static str, usize); 3]| {
        let mut series = Series::default();
        for (namespace, count) in order {
            add(&mut series, namespace, &images[..count]);
        }
        series
    };
    let series = all([("large", 20_000), ("middle", 3000), ("small", 10)]);
    let (shown, omitted) = series.clone().shown(MOST_SERIES);
    assert_eq!((shown.len(), omitted), (MOST_SERIES, 23_010 - MOST_SERIES));
    let of = |namespace: &str| shown.iter().filter(|series| series.labels()[0] == namespace).count();
    assert_eq!((of("small"), of("middle"), of("large")), (10, 2495, 2495));
    assert!(shown.iter().all(|series| series.pods == 1), "a Pod that uses an image twice is one Pod");
    let other = all([("small", 10), ("middle", 3000), ("large", 20_000)]);
    assert_eq!(other.shown(MOST_SERIES).0, shown, "the same are shown, whichever Pods come first");
    assert_eq!(all([("small", 10), ("middle", 100), ("large", 100)]).shown(MOST_SERIES).1, 0);
    let long: &'static [String] = vec!["é".repeat(100_000)].leak();
    let mut series = Series::default();
    add(&mut series, "shop", long);
    assert_eq!(series.shown(MOST_SERIES).0[0].labels()[3].len(), 512);
    let name = "w".repeat(100_000);
    let mut view = pod("a", vec![container("web", "nginx:1", None)]);
    view.controller =
        Some(crate::owners::Controller { api_version: "v1", kind: &name, name: &name, uid: "u" });
    let mut series = Series::default();
    series.add(&view, &Known::default().rows(&view).rows, true);
    let shown = series.shown(MOST_SERIES).0.remove(0);
    assert_eq!(shown.labels().map(str::len), [4, 512, 512, "nginx:1".len(), 0]);
}
