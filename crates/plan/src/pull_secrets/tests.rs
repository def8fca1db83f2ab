use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::certificates::WallTime;
use crate::routing::{PolicyKind, SecretUse};

const NOW: WallTime = Duration::from_hours(500_000);
const MINUTE: Duration = Duration::from_mins(1);

fn policy(name: &str) -> PolicyId {
    let uid = format!("uid-of-{name}");
    PolicyId {
        kind: PolicyKind::ClusterImageSetMirror,
        namespace: None,
        name: name.into(),
        uid: uid.as_str().into(),
    }
}

fn secret(namespace: &str, name: &str) -> SecretName {
    SecretName { namespace: namespace.into(), name: name.into() }
}

#[test]
fn hashes_are_written_as_everybody_writes_them() {
    // From the published test vectors of the algorithm.
    for (text, hex) in [("", "ef46db3751d8e999"), ("a", "d24ec4f1a98c6e5b"), ("abc", "44bc2cf5ad770999")] {
        assert_eq!(format!("{:016x}", XxHash64::oneshot(0, text.as_bytes())), hex, "{text:?}");
    }
    let expected = XxHash64::oneshot(0, b"registries/6fd8c1a0-0e5a-4e2f-9f0c-1f2f3f4f5f6f");
    assert_eq!(
        copy_name(&secret("registries", "pull"), "6fd8c1a0-0e5a-4e2f-9f0c-1f2f3f4f5f6f"),
        format!("kuik-pull-{expected:016x}")
    );
}

#[test]
fn names_are_cut_to_what_kubernetes_allows() {
    for (length, expected) in [(230, 252), (231, 253), (232, 253), (253, 253)] {
        let name = copy_name(&secret("a", &"x".repeat(length)), "u");
        assert_eq!(name.len(), expected, "{length}");
        assert!(may_be_copy(&name), "{name}");
    }
    let dotted = format!("{}.{}", "x".repeat(230), "y".repeat(20));
    assert!(
        !copy_name(&secret("a", &dotted), "u").contains(".-"),
        "a part of a name cannot begin with a dash"
    );
    assert!(!may_be_copy("kuik-pull") && !may_be_copy("pull-0123456789abcdef"));
    assert!(!may_be_copy("kuik-pull-0123456789ABCDEF") && !may_be_copy("kuik-0123456789abcdef"));
}

#[test]
fn labels_fit_and_tell_the_owner() {
    let name = format!("{}-{}", "x".repeat(62), "y".repeat(100));
    let long = PolicyId { name: name.as_str().into(), ..policy("m") };
    let labels = labels(&long);
    assert!(
        labels.values().all(|value| value.len() <= 63 && value.ends_with(|end: char| end.is_alphanumeric()))
    );
    assert_eq!(labels["kuik.enix.io/owner-name"], "x".repeat(62));
    assert_eq!(labels["kuik.enix.io/owner-kind"], "ClusterImageSetMirror");
    assert_eq!(labels["app.kubernetes.io/managed-by"], "fairlead");
    let owned: BTreeMap<String, String> =
        labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    assert_eq!(owner_uid(&owned), Some(long.uid));
    assert_eq!(owner_uid(&BTreeMap::from([("kuik.enix.io/owner-uid".into(), "u".into())])), None);
}

/// A cluster in which one policy names one Secret, to be changed by the test.
struct World {
    owners: Vec<Owner>,
    unreadable: BTreeSet<Arc<str>>,
    used: BTreeSet<CopyPlace>,
    sources: BTreeMap<SecretName, SourceSecret>,
    sightings: BTreeMap<CopyPlace, Sighting>,
    searched: BTreeMap<Arc<str>, WallTime>,
    /// Of every namespace.
    selection: Selection,
}

const OLD: Content = Content([1; 32]);
const NEW: Content = Content([2; 32]);

fn name() -> Arc<str> {
    copy_name(&secret("registries", "pull"), &policy("m").uid).into()
}

fn place(namespace: &str) -> CopyPlace {
    CopyPlace { namespace: namespace.into(), name: name() }
}

fn copy(age: Duration) -> Copy {
    Copy {
        owner_uid: policy("m").uid,
        uid: "u".into(),
        resource_version: "7".into(),
        applied_at: NOW.saturating_sub(age),
        content: Some(OLD),
        complete: true,
    }
}

impl World {
    fn new() -> Self {
        let owner = Owner {
            id: policy("m").into(),
            secrets: BTreeSet::from([secret("registries", "pull")]),
            deleting_since: None,
        };
        Self {
            owners: vec![owner],
            unreadable: BTreeSet::new(),
            used: BTreeSet::new(),
            sources: BTreeMap::from([(secret("registries", "pull"), SourceSecret::Has(OLD))]),
            sightings: BTreeMap::new(),
            searched: BTreeMap::from([(name(), NOW)]),
            selection: Selection::Covered,
        }
    }

    fn used(mut self, namespace: &str) -> Self {
        self.used.insert(place(namespace));
        self
    }

    fn seen(mut self, namespace: &str, found: FoundSecret) -> Self {
        self.sightings.insert(place(namespace), Sighting { found, at: NOW });
        self
    }

    fn selected(mut self, selection: Selection) -> Self {
        self.selection = selection;
        self
    }

    fn plan(&self) -> Plan {
        let places = self.used.iter().chain(self.sightings.keys());
        let selection = places.map(|place| (place.namespace.clone(), self.selection)).collect();
        plan_copies(&View {
            owners: &self.owners,
            unreadable: &self.unreadable,
            used: &self.used,
            sources: &self.sources,
            sightings: &self.sightings,
            searched: &self.searched,
            selection: &selection,
            now: NOW,
        })
    }

    fn actions(&self) -> Vec<String> {
        let told = |action: &Action| match action {
            Action::Look { place } => format!("look {}", place.namespace),
            Action::Apply { place, why, .. } => format!("apply {}: {why}", place.namespace),
            Action::Delete { place, why, .. } => format!("delete {}: {why}", place.namespace),
            Action::Search { .. } => "search".to_owned(),
            Action::Refuse { place, .. } => format!("refuse {}", place.namespace),
            Action::Release { owner } => format!("release {}", owner.name),
        };
        self.plan().actions.iter().map(told).collect()
    }
}

#[test]
fn a_copy_in_use_is_kept_right() {
    assert_eq!(World::new().actions(), Vec::<String>::new());
    assert_eq!(World::new().used("shop").actions(), ["look shop"]);
    let absent = World::new().used("shop").seen("shop", FoundSecret::Nothing);
    assert_eq!(absent.actions(), ["apply shop: Pods use it, and it is not there"]);
    let right = || World::new().used("shop").seen("shop", FoundSecret::Copy(copy(100 * MINUTE)));
    assert_eq!(right().actions(), Vec::<String>::new());

    let mut rotated = right();
    rotated.sources.insert(secret("registries", "pull"), SourceSecret::Has(NEW));
    assert_eq!(rotated.actions(), ["apply shop: its source has changed"]);
    rotated.sources.insert(secret("registries", "pull"), SourceSecret::Unusable);
    assert_eq!(
        rotated.actions(),
        Vec::<String>::new(),
        "a source that is gone for a moment takes no copy with it"
    );

    let unmarked = Copy { complete: false, ..copy(MINUTE) };
    let adopted = World::new().used("shop").seen("shop", FoundSecret::Copy(unmarked));
    assert_eq!(adopted.actions(), ["apply shop: its marks are incomplete"]);
    let half_known =
        World::new().used("shop").seen("shop", FoundSecret::Copy(Copy { content: None, ..copy(MINUTE) }));
    assert_eq!(half_known.actions(), ["look shop"]);

    let mut long_ago = right();
    for sighting in long_ago.sightings.values_mut() {
        sighting.at = NOW.saturating_sub(VERIFY_AFTER);
    }
    assert_eq!(long_ago.actions(), ["look shop"]);
}

#[test]
fn nothing_is_copied_to_a_namespace_that_the_webhook_leaves_out() {
    let absent = |selection| World::new().used("shop").seen("shop", FoundSecret::Nothing).selected(selection);
    for selection in [Selection::LeftOut, Selection::Unknown] {
        assert_eq!(absent(selection).actions(), Vec::<String>::new(), "{selection:?}");
    }

    let unused = |selection| World::new().seen("shop", FoundSecret::Copy(copy(MINUTE))).selected(selection);
    assert_eq!(
        unused(Selection::LeftOut).actions(),
        ["delete shop: the webhook's selector leaves its namespace out"]
    );
    assert_eq!(unused(Selection::Unknown).actions(), Vec::<String>::new());

    let rotated = |selection| {
        let mut world =
            World::new().used("shop").seen("shop", FoundSecret::Copy(copy(MINUTE))).selected(selection);
        world.sources.insert(secret("registries", "pull"), SourceSecret::Has(NEW));
        world.actions()
    };
    assert_eq!(
        rotated(Selection::LeftOut),
        Vec::<String>::new(),
        "Pods keep what they were given, and no more"
    );
    assert_eq!(
        rotated(Selection::Unknown),
        ["apply shop: its source has changed"],
        "a configuration that is gone for a moment leaves no Pod with old credentials"
    );
}

#[test]
fn a_secret_of_somebody_else_is_left_alone() {
    let foreign = World::new().used("shop").seen("shop", FoundSecret::Foreign);
    assert_eq!(foreign.actions(), ["refuse shop"]);
    let mut later = foreign;
    for sighting in later.sightings.values_mut() {
        sighting.at = NOW.saturating_sub(MINUTE);
    }
    assert_eq!(later.actions(), ["refuse shop", "look shop"], "somebody may have made room");
    let unused = World::new().seen("shop", FoundSecret::Foreign);
    assert_eq!((unused.actions(), unused.plan().forget), (vec![], vec![place("shop")]));
}

#[test]
fn an_unused_copy_goes_when_nobody_can_be_about_to_use_it() {
    let unused = |age| World::new().seen("shop", FoundSecret::Copy(copy(age)));
    assert_eq!(unused(29 * MINUTE).actions(), Vec::<String>::new());
    assert_eq!(unused(GRACE).actions(), ["delete shop: no Pod uses it any more"]);
}

#[test]
fn a_copy_that_no_policy_wants_goes() {
    let base = |age| World::new().used("shop").seen("shop", FoundSecret::Copy(copy(age)));
    let mut renamed = base(2 * MINUTE);
    renamed.owners[0].secrets = BTreeSet::from([secret("registries", "other")]);
    assert_eq!(renamed.actions(), ["delete shop: its policy no longer names the source", "search"]);
    let mut just_made = base(MINUTE / 2);
    just_made.owners[0].secrets.clear();
    assert_eq!(just_made.actions(), Vec::<String>::new(), "another replica may not know of the change yet");

    let mut gone = base(2 * MINUTE);
    let owner = gone.owners.remove(0);
    assert_eq!(gone.actions(), ["delete shop: its policy is gone"]);
    gone.unreadable.insert(owner.id.uid.clone());
    assert_eq!(gone.actions(), Vec::<String>::new(), "a policy that cannot be read is not gone");

    // kube-image-keeper may have made it for a policy in a namespace, which is not looked at here.
    let mut of_others = World::new().used("shop");
    of_others.owners.clear();
    let of_others = of_others.seen("shop", FoundSecret::Copy(Copy { complete: false, ..copy(MINUTE) }));
    assert_eq!(of_others.actions(), Vec::<String>::new());
}

#[test]
fn a_policy_goes_after_its_copies() {
    let mut world = World::new().used("shop").seen("shop", FoundSecret::Copy(copy(MINUTE)));
    world.owners[0].deleting_since = Some(NOW.saturating_sub(MINUTE));
    world.searched.insert(name(), NOW.saturating_sub(2 * MINUTE));
    let deletes = "delete shop: its policy is being deleted";
    assert_eq!(world.actions(), [deletes, "search"], "a search from before does not count");
    world.searched.insert(name(), NOW);
    assert_eq!(world.actions(), [deletes]);
    world.sightings.clear();
    world.used.clear();
    assert_eq!(world.actions(), ["release m"]);
    world.owners[0].secrets.clear();
    world.searched.clear();
    assert_eq!(world.actions(), ["release m"], "a policy without secrets need not wait");
}

#[test]
fn everywhere_is_searched_once_in_a_while() {
    let mut world = World::new();
    world.searched.clear();
    assert_eq!(world.actions(), ["search"]);
    world.searched.insert(name(), NOW.saturating_sub(361 * MINUTE));
    assert_eq!(world.actions(), ["search"]);
}

fn found() -> impl Strategy<Value = FoundSecret> {
    let copies = (0..3_u64, 0..90_u32, any::<bool>(), prop::option::of(0..2_u8)).prop_map(
        |(owner, minutes, complete, content)| {
            FoundSecret::Copy(Copy {
                owner_uid: format!("uid-of-{owner}").as_str().into(),
                complete,
                content: content.map(|byte| Content([byte + 1; 32])),
                ..copy(minutes * MINUTE)
            })
        },
    );
    prop_oneof![Just(FoundSecret::Nothing), Just(FoundSecret::Foreign), copies]
}

proptest! {
    /// Whatever is there: Secrets of others are not touched, copies that may be awaited or belong to a policy that
    /// cannot be read stay, and only what is wanted is made.
    #[test]
    fn nothing_is_done_that_must_not_be(
        owners in prop::collection::btree_map(0..3_u8, (prop::collection::btree_set(0..3_u8, 0..3), any::<bool>()), 0..3),
        unreadable in prop::collection::btree_set(0..3_u8, 0..2),
        used in prop::collection::btree_set((0..3_u8, 0..3_u8, 0..3_u8), 0..6),
        seen in prop::collection::vec(((0..3_u8, 0..3_u8, 0..3_u8), found()), 0..8),
    ) {
        let uid = |owner: u8| -> Arc<str> { format!("uid-of-{owner}").as_str().into() };
        let source = |number: u8| secret("registries", &format!("pull-{number}"));
        let spot = |(namespace, owner, number): (u8, u8, u8)| CopyPlace {
            namespace: format!("team-{namespace}").as_str().into(),
            name: copy_name(&source(number), &uid(owner)).into(),
        };
        let mut world = World::new();
        world.owners = owners
            .iter()
            .map(|(owner, (secrets, deleting))| Owner {
                id: PolicyId { uid: uid(*owner), ..policy(&owner.to_string()) }.into(),
                secrets: secrets.iter().copied().map(source).collect(),
                deleting_since: deleting.then_some(NOW),
            })
            .collect();
        world.unreadable = unreadable.into_iter().map(uid).collect();
        world.used = used.into_iter().map(spot).collect();
        world.sources = (0..3).map(|number| (source(number), SourceSecret::Has(OLD))).collect();
        world.sightings =
            seen.into_iter().map(|(at, found)| (spot(at), Sighting { found, at: NOW })).collect();
        let wanted = |of: &SecretUse| {
            world.owners.iter().any(|owner| owner.id == of.by && owner.secrets.contains(&of.secret))
        };
        for action in world.plan().actions {
            match action {
                Action::Apply { place, of, .. } => {
                    prop_assert!(wanted(&of) && world.used.contains(&place));
                    prop_assert!(world.sightings[&place].found != FoundSecret::Foreign);
                }
                Action::Delete { place, copy, .. } => {
                    prop_assert_eq!(&world.sightings[&place].found, &FoundSecret::Copy(copy.clone()));
                    let live = world.owners.iter().find(|owner| owner.id.uid == copy.owner_uid);
                    let named = live.is_some_and(|owner| {
                        owner.deleting_since.is_none()
                            && owner.secrets.iter().any(|one| copy_name(one, &owner.id.uid) == *place.name)
                    });
                    let age = NOW.saturating_sub(copy.applied_at);
                    prop_assert!(!named || (age >= GRACE && !world.used.contains(&place)));
                    prop_assert!(live.is_some() || !world.unreadable.contains(&copy.owner_uid));
                }
                Action::Search { of, .. } => prop_assert!(wanted(&of)),
                Action::Look { .. } | Action::Refuse { .. } | Action::Release { .. } => {}
            }
        }
    }
}

/// The same for admission, for warming, and for the Pod that comes after one that healing evicts.
#[test]
fn what_a_pod_gets_for_a_place_depends_on_namespace_account_and_policy() {
    let by = |policy: PolicyId| Arc::new(policy);
    let of_team =
        PolicyId { kind: PolicyKind::ImageSetMirror, namespace: Some("team".into()), ..policy("namespaced") };
    let uses = [
        SecretUse { secret: secret("vault", "key"), by: by(policy("cluster")) },
        SecretUse { secret: secret("vault", "key"), by: by(policy("cluster")) },
        SecretUse { secret: secret("team", "own"), by: by(policy("cluster")) },
        SecretUse { secret: secret("vault", "other"), by: by(of_team) },
    ];
    let copy = copy_name(&uses[0].secret, &uses[0].by.uid);
    let given = |receiver: Receiver<'_, &str>, copying: bool, is_left_out: bool| -> Vec<_> {
        let offered = receiver.offered(&uses, |used| local_name(used, "team", copying, || is_left_out));
        offered.map(|one| one.given).collect()
    };
    let namespaced = Err(NotAdded::NotCopied(NotCopied::NamespacedPolicy));
    let new = Receiver { present: &[], exists: false, permitted: None };
    assert_eq!(given(new, true, false), [Ok(()), Ok(()), namespaced], "each once");
    let off = Err(NotAdded::NotCopied(NotCopied::CopyingIsOff));
    assert_eq!(given(new, false, false), [off, Ok(()), namespaced]);
    let left_out = Err(NotAdded::NotCopied(NotCopied::NamespaceLeftOut));
    assert_eq!(given(new, true, true), [left_out, Ok(()), namespaced]);
    let permitted = BTreeSet::from([copy.clone()]);
    let strict = Receiver { permitted: Some(&permitted), ..new };
    assert_eq!(given(strict, true, false), [Ok(()), Err(NotAdded::NotPermitted), namespaced]);
    let present = [&*copy];
    let exists = Receiver { present: &present, exists: true, permitted: None };
    assert_eq!(given(exists, true, false), [Ok(()), Err(NotAdded::PodExists), namespaced]);
}
