use std::collections::{BTreeMap, BTreeSet};

use fairlead_domain::selector::{FilterItem, Rules};
use proptest::prelude::*;
use serde_json::json;

use super::*;

type Texts = BTreeMap<String, String>;

/// A Pod that owns what a [`PodUse`] borrows.
#[derive(Debug, Clone)]
struct Pod {
    namespace: Arc<str>,
    name: Arc<str>,
    labels: Texts,
    annotations: Texts,
    pull_secrets: Arc<[Arc<str>]>,
    /// Container, image, image ID.
    images: Vec<(String, Arc<str>, Option<String>)>,
}

fn pod(namespace: &str, name: &str, images: &[&str]) -> Pod {
    Pod {
        namespace: namespace.into(),
        name: name.into(),
        labels: Texts::new(),
        annotations: Texts::new(),
        pull_secrets: Arc::default(),
        images: images
            .iter()
            .enumerate()
            .map(|(n, image)| (format!("c{n}"), (*image).into(), None))
            .collect(),
    }
}

impl Pod {
    fn with_secrets(self, secrets: &[&str]) -> Self {
        Self { pull_secrets: secrets.iter().map(|secret| Arc::from(*secret)).collect(), ..self }
    }

    fn running(mut self, id: &str) -> Self {
        for (_, _, running) in &mut self.images {
            *running = Some(id.to_owned());
        }
        self
    }

    /// Routed at admission: the first container was asked to run this.
    fn asked(mut self, asked: &str) -> Self {
        let route = json!({ "asked": asked, "used": *self.images[0].1, "by": "ClusterImageSetMirror/all" });
        let record = json!({ "v": 1, "images": { "c0": route } });
        self.annotations.insert(names::fairlead::ROUTES.to_owned(), record.to_string());
        self
    }

    fn borrowed(&self) -> PodUse<'_> {
        let images = self.images.iter().map(|(container, image, running)| ImageUse {
            place: Place::Container(container),
            image,
            running: running.as_deref(),
        });
        PodUse {
            facts: PodFacts {
                namespace: &self.namespace,
                labels: &self.labels,
                annotations: &self.annotations,
            },
            namespace: &self.namespace,
            name: &self.name,
            pull_secrets: &self.pull_secrets,
            images: images.collect(),
        }
    }
}

/// What a selection owns.
#[derive(Debug)]
struct Owned {
    namespace: Option<String>,
    pods: PodMatcher,
    images: ImageFilter,
}

impl Owned {
    fn new(namespace: Option<&str>, label: Option<&str>, pattern: &str) -> Self {
        let items: Vec<_> = label.map(FilterItem::Label).into_iter().collect();
        let rules = Rules { include: &items, exclude: &[] };
        Self {
            namespace: namespace.map(str::to_owned),
            pods: PodMatcher::compile(rules).unwrap(),
            images: ImageFilter::legacy(&[pattern], &[] as &[&str]).unwrap(),
        }
    }

    fn borrowed(&self) -> Selection<'_> {
        Selection {
            namespace: self.namespace.as_deref(),
            pods: &self.pods,
            images: &self.images,
            proofs: true,
        }
    }
}

fn gathered(selections: &[Owned], pods: &[Pod]) -> Vec<Vec<Used>> {
    let selections: Vec<_> = selections.iter().map(Owned::borrowed).collect();
    gather(&selections, pods.iter().map(Pod::borrowed))
}

/// Everything in use.
fn all(pods: &[Pod]) -> Vec<Used> {
    gathered(&[Owned::new(None, None, ".*")], pods).remove(0)
}

/// Images with whether they were asked for.
fn told(used: &[Used]) -> Vec<(&str, bool)> {
    used.iter().map(|used| (used.image.as_str(), used.original)).collect()
}

#[test]
fn each_image_is_listed_once_however_it_is_written() {
    let used = all(&[
        pod("b", "1", &["nginx", "quay.io/x:1"]),
        pod("a", "1", &["docker.io/library/nginx", "nginx:latest", "not an image", ""]),
    ]);
    let expected =
        [("docker.io/library/nginx", true), ("docker.io/library/nginx:latest", true), ("quay.io/x:1", true)];
    assert_eq!(told(&used), expected);
    assert!(used.iter().all(|used| used.image.written() == used.image.as_str()));
}

#[test]
fn what_was_asked_for_counts_beside_what_was_given_instead() {
    let used = all(&[pod("a", "1", &["m.io/nginx:1", "quay.io/x:1"]).asked("nginx:1")]);
    assert_eq!(
        told(&used),
        [("docker.io/library/nginx:1", true), ("m.io/nginx:1", false), ("quay.io/x:1", true)]
    );
    // Another Pod asks for the copy itself.
    let pods = [pod("a", "1", &["m.io/nginx:1"]).asked("nginx:1"), pod("a", "2", &["m.io/nginx:1"])];
    for pods in [pods.clone().to_vec(), pods.into_iter().rev().collect()] {
        assert_eq!(told(&all(&pods)), [("docker.io/library/nginx:1", true), ("m.io/nginx:1", true)]);
    }
}

#[test]
fn claims_that_say_nothing_leave_the_image_as_it_is() {
    let here = "m.io/nginx:1";
    let mut elsewhere = pod("a", "1", &[here]).asked("nginx:1");
    elsewhere.images[0].1 = "m.io/other:1".into();
    assert_eq!(told(&all(&[elsewhere])), [("m.io/other:1", true)]);
    for asked in ["no image", "", here] {
        assert_eq!(told(&all(&[pod("a", "1", &[here]).asked(asked)])), [(here, true)]);
    }
    // A present image that cannot be read does not hide what was asked for.
    assert_eq!(told(&all(&[pod("a", "1", &["M/:"]).asked("quay.io/x:1")])), [("quay.io/x:1", true)]);
}

#[test]
fn annotations_of_kuik_are_understood() {
    let mut routed = pod("a", "1", &["m.io/nginx:1", "m.io/tool:1"]);
    routed.annotations.insert(
        names::kuik::ORIGINAL_IMAGES.into(),
        json!({ "c0": "nginx:1", "init:c1": "tool:1" }).to_string(),
    );
    let mut routed = routed.borrowed();
    routed.images[1].place = Place::Init("c1");
    let selection = Owned::new(None, None, "docker.io/.*");
    let used = gather(&[selection.borrowed()], [routed]).remove(0);
    assert_eq!(told(&used), [("docker.io/library/nginx:1", true), ("docker.io/library/tool:1", true)]);
}

#[test]
fn selections_see_their_pods_and_their_images_only() {
    let mut labelled = pod("a", "1", &["quay.io/x:1", "nginx:1"]);
    labelled.labels.insert("app".into(), "web".into());
    let pods = [labelled, pod("b", "1", &["quay.io/y:1"]), pod("a", "2", &["quay.io/z:1"])];
    let found = gathered(
        &[
            Owned::new(None, None, "quay.io/.*"),
            Owned::new(Some("a"), None, "quay.io/.*"),
            Owned::new(None, Some("app=web"), ".*"),
            Owned::new(Some("b"), Some("app=web"), ".*"),
            Owned::new(None, None, "ghcr.io/.*"),
            Owned::new(Some("c"), None, ".*"),
        ],
        &pods,
    );
    let told: Vec<Vec<_>> =
        found.iter().map(|used| used.iter().map(|used| used.image.as_str()).collect()).collect();
    let expected: [&[&str]; 6] = [
        &["quay.io/x:1", "quay.io/y:1", "quay.io/z:1"],
        &["quay.io/x:1", "quay.io/z:1"],
        &["docker.io/library/nginx:1", "quay.io/x:1"],
        &[],
        &[],
        &[],
    ];
    assert_eq!(told, expected);
    assert!(gathered(&[], &pods).is_empty());
}

/// The filter of a mirror is about sources: the place that a copy came from has to pass it by itself.
#[test]
fn what_was_asked_for_and_what_was_given_pass_filters_separately() {
    let pods = [pod("a", "1", &["m.io/nginx:1"]).asked("nginx:1")];
    let found = gathered(&[Owned::new(None, None, "docker.io/.*"), Owned::new(None, None, "m.io/.*")], &pods);
    assert_eq!(told(&found[0]), [("docker.io/library/nginx:1", true)]);
    assert_eq!(told(&found[1]), [("m.io/nginx:1", false)]);
}

#[test]
fn holders_are_told_apart_by_their_credentials() {
    let image = &["quay.io/x:1"];
    let used = all(&[
        pod("b", "z", image),
        pod("a", "y", image).with_secrets(&["s2"]),
        pod("a", "w", image).with_secrets(&["s2"]),
        pod("a", "x", image).with_secrets(&["s1", "s2"]),
        pod("b", "a", image),
    ]);
    let holders: Vec<_> = used[0]
        .holders
        .iter()
        .map(|holder| (&*holder.namespace, holder.pull_secrets.len(), &*holder.pod))
        .collect();
    assert_eq!(holders, [("a", 2, "x"), ("a", 1, "w"), ("b", 0, "a")]);
}

#[test]
fn so_many_holders_are_remembered_and_no_more() {
    let mut pods: Vec<_> = (0..5000)
        .map(|number| pod(&format!("n{:04}", 4999 - number), "p", &["quay.io/x:1"]).with_secrets(&["s"]))
        .collect();
    // Those of one namespace take no more than its share, whichever come first.
    pods.extend((0..200).rev().map(|number| {
        pod("n0001", &format!("q{number}"), &["quay.io/x:1"]).with_secrets(&[&*format!("s{number:03}")])
    }));
    let used = all(&pods);
    let namespaces: Vec<_> = used[0].holders.iter().map(|holder| &*holder.namespace).collect();
    assert_eq!(namespaces.len(), MOST_HOLDERS);
    assert_eq!(namespaces.iter().filter(|name| **name == "n0001").count(), MOST_HOLDERS_OF_NAMESPACE);
    assert_eq!((namespaces[0], namespaces[1], namespaces[65]), ("n0000", "n0001", "n0002"));
    let of_one: Vec<_> = used[0].holders.iter().filter(|holder| &*holder.namespace == "n0001").collect();
    assert_eq!((&*of_one[0].pull_secrets[0], &*of_one[63].pull_secrets[0]), ("s", "s062"));
}

#[test]
fn what_runs_is_known_by_its_manifest_and_only_if_all_agree() {
    let (one, other) = (Digest::sha256(b"1"), Digest::sha256(b"2"));
    let run = |ids: &[&str]| {
        let pods: Vec<_> =
            (0..).zip(ids).map(|(n, id)| pod("a", &format!("p{n}"), &["quay.io/x:1"]).running(id)).collect();
        all(&pods)[0].running
    };
    let (first, second) = (format!("quay.io/x@{one}"), format!("quay.io/x@{other}"));
    assert_eq!(run(&[&first]), Some(one));
    assert_eq!(run(&[&first, "", &first]), Some(one));
    assert_eq!(run(&[&format!("docker-pullable://quay.io/x@{one}")]), Some(one));
    assert_eq!(run(&[&first, &second, &first]), None);
    // Digests of configurations.
    assert_eq!(run(&[&one.to_string()]), None);
    assert_eq!(run(&[&one.hex()]), None);
    assert_eq!(run(&[&format!("docker://{one}")]), None);
    assert_eq!(run(&["quay.io/x@sha256:12"]), None);
    // Copies are verbatim, so what runs is also what was asked for.
    let used = all(&[pod("a", "1", &["m.io/x:1"]).asked("quay.io/x:1").running(&format!("m.io/x@{one}"))]);
    assert_eq!(used.iter().map(|used| used.running).collect::<Vec<_>>(), [Some(one), Some(one)]);
}

#[test]
fn pull_pods_of_warming_are_recognised() {
    let labels = |pairs: &[(&str, &str)]| -> Texts {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let managed = (names::kubernetes::MANAGED_BY, "drop");
    let image = (names::drop::CACHED_IMAGE, "nginx");
    assert!(is_warming(&labels(&[managed, image])));
    assert!(!is_warming(&labels(&[managed])));
    assert!(!is_warming(&labels(&[image])));
    assert!(!is_warming(&labels(&[(names::kubernetes::MANAGED_BY, "Helm"), image])));
    assert!(!is_warming(&Texts::new()));
}

/// Ten thousand Pods with two containers each: an image is held against the filters once, not once per Pod.
#[test]
fn work_grows_with_images_rather_than_with_pods() {
    let images: Vec<Arc<str>> = (0..200).map(|n| format!("quay.io/team/app-{n}:1").into()).collect();
    let selection = Owned::new(None, None, "quay.io/team/.*");
    let mut gathering = Gathering::new(&[selection.borrowed()]);
    let pods: Vec<Pod> = (0..10_000)
        .map(|n| {
            let mut pod = pod("team", &format!("p{n:05}"), &[]);
            pod.images = [n, n * 7].map(|n| (format!("c{n}"), Arc::clone(&images[n % 200]), None)).to_vec();
            pod
        })
        .collect();
    for pod in &pods {
        gathering.add(&pod.borrowed());
    }
    assert_eq!(gathering.judged(), 200);
    let used = gathering.finish().remove(0);
    assert_eq!(used.len(), 200);
    assert!(used.iter().all(|used| used.holders.len() == 1));
    assert_eq!(&*used[0].holders[0].pod, "p00000");
}

/// A tenant whose filter takes long must not make others wait for it.
#[test]
fn filters_of_a_namespace_are_held_against_its_own_images_only() {
    let (own, everyone) = (Owned::new(Some("team"), None, ".*"), Owned::new(None, None, ".*"));
    let pods = [
        pod("team", "1", &["quay.io/a:1", "quay.io/b:1"]),
        pod("other", "1", &["quay.io/b:1", "quay.io/c:1"]),
    ];
    for (selections, judged) in [(vec![&own], 2), (vec![&everyone], 3), (vec![&own, &everyone], 5)] {
        let borrowed: Vec<_> = selections.iter().map(|selection| selection.borrowed()).collect();
        let mut gathering = Gathering::new(&borrowed);
        for pod in &pods {
            gathering.add(&pod.borrowed());
        }
        assert_eq!(gathering.judged(), judged);
    }
}

const IMAGES: [&str; 7] =
    ["nginx", "docker.io/nginx", "nginx:1", "quay.io/a/b:1", "m.io/library/nginx:1", "m.io/x", "b a d"];

fn any_pod() -> impl Strategy<Value = Pod> {
    let image = || prop::sample::select(IMAGES.to_vec());
    let digest = prop::option::of(prop::sample::select(vec!["m.io/x", "bare"]));
    (
        "n[a-e]",
        "p[0-9]",
        prop::collection::vec("s[12]", 0..3),
        prop::option::of("web|db"),
        prop::collection::vec(image(), 1..4),
        prop::option::of(image()),
        digest,
    )
        .prop_map(|(namespace, name, secrets, app, images, asked, running)| {
            let secrets: Vec<_> = secrets.iter().map(String::as_str).collect();
            let mut made = pod(&namespace, &name, &images).with_secrets(&secrets);
            made.labels.extend(app.map(|app| ("app".to_owned(), app)));
            if let Some(asked) = asked {
                made = made.asked(asked);
            }
            match running {
                Some("bare") => made.running(&Digest::sha256(b"1").to_string()),
                Some(name) => made.running(&format!("{name}@{}", Digest::sha256(b"1"))),
                None => made,
            }
        })
}

/// The list as the definition says it, Pod by Pod, without any index.
type Definition = (String, bool, Arc<[Holder]>, Option<Digest>);

fn by_definition(selection: &Owned, pods: &[Pod]) -> Vec<Definition> {
    type Holders = BTreeMap<(Arc<str>, Arc<[Arc<str>]>), Arc<str>>;
    let mut found: BTreeMap<String, (bool, Holders, BTreeSet<Digest>)> = BTreeMap::new();
    for pod in pods {
        let uses = pod.borrowed();
        let own = selection.namespace.as_deref().is_none_or(|namespace| *pod.namespace == *namespace);
        if !own || !selection.pods.matches(&uses.facts) {
            continue;
        }
        let claims = crate::pod_record::RecordedOriginals::read(&crate::pod_record::PodAnnotations::of(
            pod.annotations.iter().map(|(key, value)| (key.as_str(), value.as_str())),
        ));
        for image in &uses.images {
            let present = Reference::parse(image.image).ok();
            let asked =
                claims.asked(&image.place, image.image).and_then(|asked| Reference::parse(asked).ok());
            let asked = asked.or_else(|| present.clone());
            let given = present.filter(|present| Some(present) != asked.as_ref());
            for (reference, original) in [(asked, true), (given, false)] {
                let Some(reference) = reference.filter(|one| selection.images.matches(one.forms().iter()))
                else {
                    continue;
                };
                let (any_original, holders, digests) = found.entry(reference.to_string()).or_default();
                *any_original |= original;
                let holder = holders
                    .entry((Arc::clone(&pod.namespace), Arc::clone(&pod.pull_secrets)))
                    .or_insert_with(|| Arc::clone(&pod.name));
                if pod.name < *holder {
                    *holder = Arc::clone(&pod.name);
                }
                let id = image.running.and_then(|id| Reference::parse(id).ok());
                digests.extend(id.and_then(|id| id.digest()));
            }
        }
    }
    let list = found.into_iter().map(|(image, (original, holders, digests))| {
        let mut of_namespace = BTreeMap::new();
        let first = |((namespace, _), _): &((Arc<str>, _), _)| {
            let number: &mut usize = of_namespace.entry(Arc::clone(namespace)).or_default();
            *number += 1;
            *number <= MOST_HOLDERS_OF_NAMESPACE
        };
        let holders = holders.into_iter().filter(first).take(MOST_HOLDERS);
        let holders = holders.map(|((namespace, pull_secrets), pod)| Holder { namespace, pull_secrets, pod });
        let running = digests.first().filter(|_| digests.len() == 1).copied();
        (image, original, holders.collect(), running)
    });
    list.collect()
}

proptest! {
    #[test]
    fn all_selections_together_find_what_each_would_alone(
        (pods, shuffled) in prop::collection::vec(any_pod(), 0..40)
            .prop_flat_map(|pods| (Just(pods.clone()), Just(pods).prop_shuffle())),
        selections in prop::collection::vec(
            (prop::option::of("n[a-e]"), prop::option::of("app|app=web|!app"), "\\.\\*|docker\\.io/\\.\\*|m\\.io/\\.\\*"),
            0..5,
        ),
    ) {
        let selections: Vec<_> = selections
            .iter()
            .map(|(namespace, label, pattern)| Owned::new(namespace.as_deref(), label.as_deref(), pattern))
            .collect();
        let found = gathered(&selections, &pods);
        prop_assert_eq!(&found, &gathered(&selections, &shuffled));
        for (selection, found) in selections.iter().zip(found) {
            let found: Vec<_> = found
                .into_iter()
                .map(|used| (used.image.to_string(), used.original, used.holders, used.running))
                .collect();
            prop_assert_eq!(found, by_definition(selection, &pods));
        }
    }
}

/// Every user of a Pod can write annotations; only the node writes a status.
#[test]
fn a_namespace_ran_what_its_pods_name_and_run() {
    let digest = Digest::sha256(b"1");
    let id = format!("quay.io/x@{digest}");
    let pods = [
        pod("ran", "1", &["quay.io/x:1"]).running(&id),
        pod("waits", "1", &["quay.io/x:1"]),
        pod("was-given", "1", &["m.io/x:1"]).asked("quay.io/x:1").running(&id),
    ];
    let ran = |used: &[Used], image: &str| {
        let used = used.iter().find(|used| used.image.as_str() == image).unwrap();
        used.ran.iter().map(|(namespace, digest)| (namespace.to_string(), *digest)).collect::<Vec<_>>()
    };
    let used = all(&pods);
    assert_eq!(ran(&used, "quay.io/x:1"), [("ran".to_owned(), digest)]);
    assert_eq!(ran(&used, "m.io/x:1"), [("was-given".to_owned(), digest)]);
    let everything = Owned::new(None, None, ".*");
    let selection = Selection { proofs: false, ..everything.borrowed() };
    let unasked = gather(&[selection], pods.iter().map(Pod::borrowed)).remove(0);
    assert!(unasked.iter().all(|used| used.ran.is_empty()));
}

#[test]
fn a_pinned_tag_is_used_as_the_tag_and_as_its_digest() {
    let digest = Digest::sha256(b"x");
    let (tag, held) = ("docker.io/library/nginx:1", format!("docker.io/library/nginx:1@{digest}"));
    let copy = format!("m.io/nginx:1@{digest}");
    let expected = [(tag, true), (&*held, true), (&*copy, false)];
    assert_eq!(told(&all(&[pod("a", "1", &[&copy]).asked("nginx:1")])), expected);
    assert_eq!(told(&all(&[pod("a", "1", &[&held]).asked("nginx:1")])), expected[..2]);
    assert_eq!(told(&all(&[pod("a", "1", &[&held])])), [(&*held, true)], "nothing says that it was a tag");
}
