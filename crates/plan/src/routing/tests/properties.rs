//! What holds for any list, whatever the policies are.

use std::collections::HashSet;

use proptest::prelude::*;

use super::super::alternatives::MOST_ORIGINS;
use super::super::policy::{Offer, Upstream};
use super::super::{Alternative, MOST_ALTERNATIVES, Origin, SecretName, SecretUse};
use super::*;

const PLACES: [&str; 9] = [
    "docker.io",
    "docker.io/library",
    "quay.io/a",
    "quay.io",
    "m.io/mirror",
    "m.io",
    "old.io/x",
    "reg:5000",
    "bad registry",
];
const IMAGES: [&str; 8] = [
    "nginx:1",
    "nginx",
    "quay.io/a/b:1",
    "quay.io/a/b/c:2",
    "m.io/mirror/library/nginx:1",
    "old.io/x/y:1",
    "reg:5000/z",
    "m.io/z:1",
];
const PATTERNS: [&str; 7] = [".*", "docker.io/.*", "/library/.*", "/a/.*", "quay.io/a/b:.+", "/.*", "("];
const SELECTORS: [&str; 5] = ["app=web", "app", "!app", "app!=web", "tier in (a,b)"];

fn entries(upstreams: bool) -> impl Strategy<Value = Value> {
    let one = (
        0..PLACES.len(),
        0u64..3,
        prop::option::of(0..3u8),
        any::<bool>(),
        prop::option::of(0..PATTERNS.len()),
    );
    let entry =
        move |(place, priority, secret, discard, pattern): (usize, u64, Option<u8>, bool, Option<usize>)| {
            let (registry, path) = PLACES[place].split_once('/').unwrap_or((PLACES[place], ""));
            let mut entry = json!({ "registry": registry, "path": path, "priority": priority });
            if let Some(secret) = secret {
                entry["credentialSecret"] = json!({ "name": format!("s{secret}"), "namespace": "secrets" });
            }
            if upstreams {
                entry["discardAlternative"] = json!(discard);
                if let Some(pattern) = pattern {
                    entry["imageFilter"] = json!({ "include": [PATTERNS[pattern]] });
                }
            }
            entry
        };
    prop::collection::vec(one.prop_map(entry), 0..4).prop_map(Value::Array)
}

/// Some of these do not compile, as in life.
fn policies() -> impl Strategy<Value = Vec<Arc<Policy>>> {
    let one = (
        0..4usize,
        0..4u8,
        -2i64..3,
        entries(false),
        entries(true),
        0..PATTERNS.len(),
        prop::option::of(0..SELECTORS.len()),
    );
    let compiled = |(kind, name, priority, mirrors, upstreams, pattern, selector): (
        usize,
        u8,
        i64,
        Value,
        Value,
        usize,
        Option<usize>,
    )| {
        let kind = PolicyKind::ALL[kind];
        let name = if kind.is_cluster_scoped() { format!("p{name}") } else { format!("my-app/p{name}") };
        let mut include: Vec<Value> =
            selector.iter().map(|selector| json!({ "label": SELECTORS[*selector] })).collect();
        let spec = match kind {
            ClusterImageSetMirror | ImageSetMirror => {
                include.push(json!({ "image": PATTERNS[pattern] }));
                json!({ "priority": priority, "filter": { "include": include }, "mirrors": mirrors })
            }
            _ => json!({ "priority": priority, "filter": { "include": include }, "upstreams": upstreams }),
        };
        compile(&manifest(kind, &name, spec)).ok().map(Arc::new)
    };
    prop::collection::vec(one.prop_map(compiled), 0..10).prop_map(|all| {
        let mut known = HashSet::new();
        all.into_iter().flatten().filter(|policy| known.insert(policy.id().to_string())).collect()
    })
}

/// The list as the definition says it, made whole, policy by policy, without any index; and what mirrors may copy.
fn by_definition(
    policies: &[Arc<Policy>],
    pod: &PodFacts<'_>,
    image: &Reference,
    original_first: bool,
) -> (Vec<Alternative>, Vec<Reference>) {
    type Place<'p> = (i64, u8, u64, &'p str, usize, usize);
    fn place(policy: &Policy, priority: u64, entry: usize, rank: usize) -> Place<'_> {
        (policy.priority, 1 + policy.id.kind as u8, priority, &policy.id.name, entry, rank)
    }
    let used = |policy: &Policy, secret: Option<&SecretName>| {
        secret.map(|secret| SecretUse { secret: secret.clone(), by: Arc::clone(&policy.id) })
    };
    let concerned = || policies.iter().filter(|policy| policy.pods.matches(pod));
    let mut all = Vec::new();
    let mut upstream_places = Vec::new();
    let mut discarded = false;
    for policy in concerned() {
        let Offer::Upstreams(upstreams) = &policy.offer else { continue };
        let holds = |one: &&Upstream| {
            let forms = image.forms();
            one.place.contains(image)
                && forms.below(&one.registry).is_some_and(|texts| one.images.matches(texts))
        };
        let Some(matched) = upstreams.iter().find(holds) else { continue };
        discarded |= matched.discarded;
        for one in upstreams {
            let Ok(moved) = matched.place.moved(image, &one.place) else { continue };
            let place = place(policy, one.priority, one.entry, 0);
            upstream_places.push((place, moved.clone()));
            if !one.discarded {
                let origin = Origin::Upstream { policy: Arc::clone(&policy.id), entry: one.entry };
                all.push((place, moved, origin, used(policy, one.secret.as_ref())));
            }
        }
    }
    upstream_places.sort();
    let mut sources = vec![image.clone()];
    for (_, one) in upstream_places {
        if !sources.contains(&one) {
            sources.push(one);
        }
    }
    if !discarded {
        let first = if original_first { i64::MIN } else { 0 };
        all.push(((first, 0, 0, "", 0, 0), image.clone(), Origin::Original, None));
    }
    for policy in concerned() {
        let Offer::Mirrors { images, mirrors, .. } = &policy.offer else { continue };
        for (rank, source) in sources.iter().enumerate() {
            if !images.matches(source.forms().iter()) {
                continue;
            }
            for one in mirrors.iter().filter(|mirror| !mirror.place.contains(source)) {
                let Ok(copy) = one.place.copy_of(source) else { continue };
                let origin = Origin::Mirror {
                    policy: Arc::clone(&policy.id),
                    entry: one.entry,
                    of: source.clone(),
                    access: policy.access,
                };
                let place = place(policy, one.priority, one.entry, rank);
                all.push((place, copy, origin, used(policy, one.secret_for_pods())));
            }
        }
    }
    all.sort_by(|one, other| one.0.cmp(&other.0));
    let mut list: Vec<Alternative> = Vec::new();
    for (_, reference, origin, secret) in all {
        if let Some(known) = list.iter_mut().find(|known| known.reference == reference) {
            known.also.push(origin);
            known.secrets.extend(secret);
        } else {
            let secrets = secret.into_iter().collect();
            list.push(Alternative { reference, origin, also: Vec::new(), secrets });
        }
    }
    // As many origins as are kept, and of their Secrets each once.
    for one in &mut list {
        one.also.truncate(MOST_ORIGINS - 1);
        let origins: Vec<_> = std::iter::once(&one.origin).chain(&one.also).collect();
        let mut known = HashSet::new();
        one.secrets.retain(|used| {
            let is_kept = origins.iter().any(|origin| origin.policy() == Some(&used.by));
            is_kept && known.insert(used.secret.clone())
        });
    }
    (list, sources)
}

/// Policies with many entries, most of them at places of their own, so that lists are longer than what is kept.
fn large_policies() -> impl Strategy<Value = Vec<Arc<Policy>>> {
    type Entries = Vec<(usize, usize, u64, bool)>;
    let entry = (0..60usize, 0..3usize, 0u64..3, any::<bool>());
    let one = (0..4usize, -1i64..2, prop::collection::vec(entry, 1..24));
    let compiled = |(number, (kind, priority, entries)): (usize, (usize, i64, Entries))| {
        let kind = PolicyKind::ALL[kind];
        let name = if kind.is_cluster_scoped() { format!("p{number}") } else { format!("my-app/p{number}") };
        let entries = entries.into_iter().map(|(host, path, priority, discard)| {
            let path = ["", "a", "b/c"][path];
            json!({
                "registry": format!("h{host}.io"), "path": path, "priority": priority, "discardAlternative": discard,
                "credentialSecret": { "name": format!("s{host}"), "namespace": "secrets" },
            })
        });
        let mut entries: Vec<Value> = entries.collect();
        let spec = match kind {
            ClusterImageSetMirror | ImageSetMirror => {
                json!({ "priority": priority, "imageFilter": { "include": [".*"] }, "mirrors": entries })
            }
            _ => {
                let own = json!({ "registry": "quay.io", "path": "", "imageFilter": { "include": [".*"] } });
                entries.push(own);
                json!({ "priority": priority, "upstreams": entries })
            }
        };
        Arc::new(compile(&manifest(kind, &name, spec)).unwrap())
    };
    prop::collection::vec(one, 1..6).prop_map(move |all| all.into_iter().enumerate().map(compiled).collect())
}

fn pull() -> impl Strategy<Value = PullPolicy> {
    prop::sample::select(vec![PullPolicy::Always, PullPolicy::IfNotPresent, PullPolicy::Never])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn of_any_list(
        (policies, shuffled) in policies().prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
        image in prop::sample::select(IMAGES.to_vec()),
        labels in prop::collection::btree_map("app|tier", "web|a|z", 0..3),
        pull in pull(),
        honor_priorities_on_always: bool,
    ) {
        let rules = Rules { rewrite_on_never: true, honor_priorities_on_always };
        let none: BTreeMap<String, String> = BTreeMap::new();
        let pod = PodFacts { namespace: "my-app", labels: &labels, annotations: &none };
        let image = Reference::parse(image).unwrap();
        let index = Index::new(policies.iter().cloned());
        let alternatives = index.for_pod(&pod).alternatives(&image, pull, &rules);

        let other = Index::new(shuffled).for_pod(&pod).alternatives(&image, pull, &rules);
        prop_assert_eq!(&other, &alternatives, "any order of policies gives the same list");

        let list = alternatives.list();
        let distinct: HashSet<String> = list.iter().map(|one| one.reference.to_string()).collect();
        prop_assert_eq!(distinct.len(), list.len(), "no duplicates");
        let first = pull == PullPolicy::Always && !honor_priorities_on_always;
        let (defined, sources) = by_definition(&policies, &pod, &image, first);
        prop_assert_eq!(list, &defined);
        prop_assert_eq!(alternatives.dropped(), 0);

        let original = list.iter().position(Alternative::is_original);
        prop_assert_eq!(original.is_none(), alternatives.discarded_by().is_some());
        if pull == PullPolicy::Always && !honor_priorities_on_always && alternatives.discarded_by().is_none() {
            prop_assert_eq!(original, Some(0));
        }

        for one in list {
            for origin in std::iter::once(&one.origin).chain(&one.also) {
                if let Origin::Mirror { policy, entry, of, .. } = origin {
                    prop_assert!(sources.contains(of), "mirrors copy the original and upstreams");
                    let policy = policies.iter().find(|known| known.id() == policy).unwrap();
                    let Offer::Mirrors { mirrors, .. } = &policy.offer else { unreachable!() };
                    let mirror = mirrors.iter().find(|mirror| mirror.entry == *entry).unwrap();
                    prop_assert!(!mirror.place.contains(of), "no copy of a copy");
                }
            }
            let secrets: HashSet<String> = one.secrets.iter().map(|used| used.secret.to_string()).collect();
            prop_assert_eq!(secrets.len(), one.secrets.len(), "each Secret once");
            let foreign = one.secrets.iter().any(|used| !used.by.is_cluster_scoped() && &*used.secret.namespace != "my-app");
            prop_assert!(!foreign, "namespaced objects use Secrets of their own namespace only");
        }
    }

    #[test]
    fn of_any_list_the_first_are_kept_and_the_others_counted(policies in large_policies(), image in "quay\\.io/[ab]/x:1") {
        let image = Reference::parse(&image).unwrap();
        let none: BTreeMap<String, String> = BTreeMap::new();
        let pod = PodFacts { namespace: "my-app", labels: &none, annotations: &none };
        let index = Index::new(policies.iter().cloned());
        let alternatives = index.for_pod(&pod).alternatives(&image, PullPolicy::IfNotPresent, &DEFAULT);
        let (defined, sources) = by_definition(&policies, &pod, &image, false);
        let entries: usize = policies.iter().map(|policy| policy.order.len()).sum();
        prop_assume!(sources.len() <= 64);
        let kept: Vec<&str> = references(&alternatives);
        let first: Vec<&str> = defined.iter().take(MOST_ALTERNATIVES).map(|one| one.reference.as_str()).collect();
        prop_assert_eq!(kept, first, "the first in order, however many there are");
        if entries * sources.len() <= 1024 {
            prop_assert_eq!(alternatives.list(), &defined[..defined.len().min(MOST_ALTERNATIVES)], "with all their origins");
            prop_assert_eq!(alternatives.dropped(), defined.len().saturating_sub(MOST_ALTERNATIVES), "exact");
        } else if defined.len() > MOST_ALTERNATIVES {
            prop_assert!(alternatives.dropped() > 0);
        }
    }

    #[test]
    fn nothing_written_in_an_object_breaks_planning(
        registry in "[ -~]{0,12}", path in "[ -~…]{0,12}", pattern in "[ -~]{0,12}", selector in "[ -~]{0,12}", image in "[a-zA-Z0-9.:/@_-]{0,20}",
    ) {
        let place = json!({ "registry": registry, "path": path, "imageFilter": { "include": [pattern] } });
        let known = json!({ "registry": "quay.io", "path": "", "imageFilter": { "exclude": ["x"] } });
        let filter = json!({ "exclude": [{ "label": selector }] });
        let manifests = [
            manifest(ClusterReplicatedImageSet, "r", json!({ "upstreams": [place, known, place] })),
            manifest(ClusterReplicatedImageSet, "r", json!({ "upstreams": [known, place], "filter": filter })),
            manifest(ClusterImageSetMirror, "m", json!({ "mirrors": [place], "imageFilter": { "include": [pattern] } })),
            manifest(ImageSetMirror, "my-app/m", json!({ "mirrors": [place, place], "filter": filter })),
        ];
        let compiled: Vec<Arc<Policy>> = manifests.iter().filter_map(|one| compile(one).ok()).map(Arc::new).collect();
        let index = Index::new(compiled);
        for image in [image.as_str(), "quay.io/a/b:1", "nginx"] {
            if let Ok(reference) = Reference::parse(image) {
                let alternatives = plan_in(&index, "my-app", reference.as_str(), PullPolicy::IfNotPresent, DEFAULT);
                prop_assert!(alternatives.list().iter().any(Alternative::is_original));
            }
        }
    }
}
