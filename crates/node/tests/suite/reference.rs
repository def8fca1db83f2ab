//! The merge against the library that OpenShift merges with, on random policies. Every difference has to be one of the
//! known defects of that library, each of which is a predicate here, and what is right instead is predicted by a
//! second, plain implementation of the corrected rules.

use std::collections::{BTreeMap, BTreeSet};

use fairlead_plan::node_config::{Entry, Location, PullKind};
use fairlead_testkit::oracle::Oracle;
use fastrand::Rng;
use serde::{Deserialize, Serialize};

use super::corrected::{planned, predicted};
use super::*;

const CASES: usize = 20_000;
const SOURCES: &[&str] = &[
    "*.test",
    "*.v.test",
    "a.v.test",
    "hub.test",
    "hub.test/a",
    "hub.test/a/b",
    "hub.test/a/b/c",
    "hub.test:5000",
    "hub.test:5000/a",
    "m.test/a",
    "z.other",
    "z.other/x",
];
/// What an administrator lists as insecure or blocked; places that no policy names among them.
const PLACES: &[&str] =
    &["*.v.test", "b.v.test/x", "hub.test/a/b/d", "hub.test/n", "m.test", "n.other/a/b", "z.other/x/y"];
const MIRRORS: &[&str] =
    &["a.other", "b.other", "c.other/x", "hub.test/copy", "m.test", "m.test/a", "n.other/a", "z.other"];

#[derive(Clone, Debug, Default, Serialize)]
struct Question {
    contents: Vec<Asked>,
    digests: Vec<Asked>,
    tags: Vec<Asked>,
    insecure: Vec<&'static str>,
    blocked: Vec<&'static str>,
}

#[derive(Clone, Debug, Serialize)]
struct Asked {
    source: String,
    mirrors: Vec<String>,
    never: bool,
}

#[derive(Debug, Deserialize)]
struct Answer {
    error: String,
    entries: Option<Vec<ReferenceEntry>>,
}

#[derive(Debug, Deserialize)]
struct ReferenceEntry {
    scope: String,
    blocked: bool,
    insecure: bool,
    digest: Vec<ReferenceMirror>,
    tag: Vec<ReferenceMirror>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct ReferenceMirror {
    location: String,
    insecure: bool,
}

/// Random policies of all five kinds.
fn policies(random: &mut Rng) -> Vec<MirrorPolicy> {
    use PolicyKind::{
        ImageContentSourcePolicy, ImageDigestMirrorSet, ImageSourceDigestPolicy, ImageSourceTagPolicy,
        ImageTagMirrorSet,
    };
    let kinds = [
        ImageContentSourcePolicy,
        ImageDigestMirrorSet,
        ImageSourceDigestPolicy,
        ImageSourceTagPolicy,
        ImageTagMirrorSet,
    ];
    let one = |random: &mut Rng| {
        let kind = kinds[random.usize(..kinds.len())];
        let source = SOURCES[random.usize(..SOURCES.len())];
        let mut mirrors: Vec<&str> =
            MIRRORS.iter().copied().chain([source]).filter(|_| random.u8(..) < 80).collect();
        mirrors.retain(|mirror| !mirror.starts_with('*'));
        random.shuffle(&mut mirrors);
        match random.u8(..20) {
            0 => mirrors.push("https://wrong.test"),
            1 if kind == ImageContentSourcePolicy => mirrors.extend(mirrors.first().copied()),
            _ => {}
        }
        let can_close = matches!(kind, ImageDigestMirrorSet | ImageTagMirrorSet);
        let mut made = policy(kind, source, &mirrors, can_close && random.u8(..4) == 0);
        made.id.name = format!("{}", random.u8(..4));
        made
    };
    (0..random.usize(1..7)).map(|_| one(random)).collect()
}

fn listed(random: &mut Rng) -> Vec<&'static str> {
    let all: Vec<&str> = PLACES.iter().chain(SOURCES).copied().collect();
    (0..random.usize(..3)).map(|_| all[random.usize(..all.len())]).collect()
}

/// A case, and what its policies say about each source, worked out the plain way.
struct Case {
    policies: Vec<MirrorPolicy>,
    question: Question,
    insecure: BTreeSet<&'static str>,
    /// The lists of each source, by kind of pull.
    digest: BTreeMap<String, Vec<Vec<String>>>,
    tag: BTreeMap<String, Vec<Vec<String>>>,
    never: BTreeSet<String>,
    /// Sources with a set that is wrong, which the reference was not given: it would stop at it.
    wrong: BTreeSet<String>,
}

impl Case {
    fn new(policies: Vec<MirrorPolicy>, insecure: Vec<&'static str>, blocked: Vec<&'static str>) -> Self {
        let mut case = Self {
            question: Question { insecure: insecure.clone(), blocked, ..Question::default() },
            insecure: insecure.into_iter().collect(),
            digest: BTreeMap::new(),
            tag: BTreeMap::new(),
            never: BTreeSet::new(),
            wrong: BTreeSet::new(),
            policies: Vec::new(),
        };
        for set in policies.iter().flat_map(|policy| policy.sets.iter().map(move |set| (policy.id.kind, set)))
        {
            case.take(set.0, set.1);
        }
        case.policies = policies;
        case
    }

    fn take(&mut self, kind: PolicyKind, set: &Set) {
        let Set { source, mirrors, never_contact_source: never } = set;
        let is_wrong = mirrors.iter().any(|mirror| {
            Location::parse(mirror).is_err() || (*never && lies_in(mirror, source, &['/', ':']))
        });
        if is_wrong {
            self.wrong.insert(source.clone());
            if *never {
                self.never.insert(source.clone());
            }
            return;
        }
        let asked = Asked { source: source.clone(), mirrors: mirrors.clone(), never: *never };
        let is_real = mirrors.iter().any(|mirror| mirror != source);
        if *never && is_real {
            self.never.insert(source.clone());
        }
        let mut add = |is_digest: bool, asked: Asked| {
            let (question, lists) = if is_digest {
                (&mut self.question.digests, &mut self.digest)
            } else {
                (&mut self.question.tags, &mut self.tag)
            };
            question.push(asked);
            if is_real {
                lists.entry(source.clone()).or_default().push(mirrors.clone());
            }
        };
        match kind {
            PolicyKind::ImageContentSourcePolicy => {
                self.question.contents.push(asked);
                if is_real {
                    self.digest.entry(source.clone()).or_default().push(mirrors.clone());
                }
            }
            PolicyKind::ImageDigestMirrorSet | PolicyKind::ImageSourceDigestPolicy => add(true, asked),
            PolicyKind::ImageTagMirrorSet => add(false, asked),
            PolicyKind::ImageSourceTagPolicy => {
                add(true, asked.clone());
                add(false, asked);
            }
        }
    }

    fn lists(&self, kind: PullKind) -> &BTreeMap<String, Vec<Vec<String>>> {
        match kind {
            PullKind::Digest => &self.digest,
            PullKind::Tag => &self.tag,
        }
    }

    fn is_source(&self, scope: &str) -> bool {
        self.digest.contains_key(scope) || self.tag.contains_key(scope)
    }

    /// Sources, also those that a wrong set closes, that a scope lies in.
    fn around(&self, scope: &str) -> impl Iterator<Item = &String> {
        let all: BTreeSet<&String> = self.digest.keys().chain(self.tag.keys()).chain(&self.never).collect();
        all.into_iter().filter(move |source| source.as_str() != scope && lies_in(scope, source, &['/']))
    }

    /// A bare scope inside a source that is a domain stops the reference.
    fn is_f1(&self, scopes: &BTreeSet<&str>) -> bool {
        scopes.iter().any(|scope| {
            !self.is_source(scope)
                && self.around(scope).any(|source| source.starts_with('*') && self.is_source(source))
        })
    }

    /// The reference leaves a bare scope open inside a closed one.
    fn is_f2(&self, scope: &str) -> bool {
        !self.is_source(scope) && self.around(scope).any(|source| self.never.contains(source))
    }

    /// The other kind of mirrors of a source around this one is hidden.
    fn is_f3(&self, scope: &str) -> bool {
        let lacks = |kind| {
            !self.lists(kind).contains_key(scope)
                && self.around(scope).any(|source| self.lists(kind).contains_key(source))
        };
        lacks(PullKind::Digest) || lacks(PullKind::Tag)
    }

    /// Lists contradict each other, or one repeats itself.
    fn is_f4(&self, scope: &str, kind: PullKind) -> bool {
        let own = self.lists(kind).get_key_value(scope);
        let around = self.around(scope).filter_map(|source| self.lists(kind).get_key_value(source));
        own.into_iter().chain(around).any(|(_, lists)| {
            has_cycle(lists)
                || lists.iter().any(|list| list.iter().collect::<BTreeSet<_>>().len() < list.len())
        })
    }

    /// The reference takes the mirrors of the farthest source.
    fn is_f5(&self, scope: &str) -> bool {
        !self.is_source(scope) && self.around(scope).count() > 1
    }

    /// Inherited mirrors, and insecure places.
    fn is_f6(&self, scope: &str) -> bool {
        !self.insecure.is_empty() && self.around(scope).next().is_some()
    }

    /// A wrong set of this source or of one around it.
    fn is_f7(&self, scope: &str) -> bool {
        self.wrong.contains(scope) || self.around(scope).any(|source| self.wrong.contains(source))
    }

    /// A mirror inside a closed source, listed by another set than the one that closes it.
    fn is_f8(&self, scope: &str, kind: PullKind) -> bool {
        let is_inside = |source: &String| {
            let lists = self.lists(kind).get(source).into_iter().flatten().flatten();
            self.never.contains(source)
                && lists.into_iter().any(|mirror| lies_in(mirror, source, &['/', ':']))
        };
        is_inside(&scope.to_owned()) || self.around(scope).any(is_inside)
    }
}

/// Whether a place lies in a scope; after the text of the scope one of `ends` may follow.
fn lies_in(place: &str, scope: &str, ends: &[char]) -> bool {
    let host = place.split(['/', ':']).next().unwrap();
    match scope.strip_prefix('*') {
        Some(domain) => host.ends_with(domain),
        None => place.strip_prefix(scope).is_some_and(|rest| rest.is_empty() || rest.starts_with(ends)),
    }
}

fn has_cycle(lists: &[Vec<String>]) -> bool {
    let mut edges: BTreeSet<(&str, &str)> = lists
        .iter()
        .flat_map(|list| list.windows(2))
        .map(|pair| (pair[0].as_str(), pair[1].as_str()))
        .collect();
    loop {
        let targets: BTreeSet<&str> = edges.iter().map(|(_, to)| *to).collect();
        let before = edges.len();
        edges.retain(|(from, _)| targets.contains(from));
        if edges.is_empty() || edges.len() == before {
            return !edges.is_empty();
        }
    }
}

/// Mirrors as the reference shows them.
fn shown(entry: &Entry, kind: PullKind) -> Vec<ReferenceMirror> {
    let mirrors = entry.mirrors(kind).list.iter();
    mirrors
        .map(|mirror| ReferenceMirror { location: mirror.location.to_string(), insecure: mirror.insecure })
        .collect()
}

/// Compares one case, and counts which defects explain its differences.
fn compare(case: &Case, answer: &Answer, explained: &mut BTreeMap<&'static str, usize>) {
    let config = plan(case.policies.clone(), &case.question.insecure, &case.question.blocked);
    let predicted = predicted(&case.policies, &case.question.insecure, &case.question.blocked);
    assert_eq!(planned(&config), predicted, "{:?}", case.question);
    let scopes: BTreeSet<&str> = config.named().map(Scope::as_str).collect();
    let mut explain = |is_so: bool, which: &'static str| {
        if is_so {
            *explained.entry(which).or_default() += 1;
        }
        is_so
    };
    if !answer.error.is_empty() {
        assert!(explain(case.is_f1(&scopes), "F1"), "{}: {:?}", answer.error, case.question);
        return;
    }
    let theirs: BTreeMap<&str, &ReferenceEntry> =
        answer.entries.iter().flatten().map(|entry| (entry.scope.as_str(), entry)).collect();
    assert!(theirs.keys().all(|scope| scopes.contains(scope)), "{theirs:?}: {scopes:?}");
    // The reference knows no other names of a closed registry. Files have tables for them all the same: without those,
    // an image under such a name would be pulled from the closed source.
    for (scope, entry) in config.entries.iter().filter(|(_, entry)| !entry.is_alias) {
        let scope = scope.as_str();
        let told = || format!("{scope}: {entry:?}\n{:?}\n{:?}", theirs.get(scope), case.question);
        let Some(their) = theirs.get(scope) else {
            assert!(explain(case.is_f7(scope), "F7"), "{}", told());
            continue;
        };
        assert_eq!(entry.insecure, their.insecure, "{}", told());
        if entry.is_closed() != their.blocked {
            assert!(entry.is_closed(), "{}", told());
            let is_known = explain(case.is_f2(scope), "F2")
                || explain(case.is_f3(scope), "F3")
                || explain(case.is_f7(scope), "F7");
            assert!(is_known, "{}", told());
        }
        for (kind, their) in [(PullKind::Digest, &their.digest), (PullKind::Tag, &their.tag)] {
            let ours = shown(entry, kind);
            if ours == *their {
                continue;
            }
            let places =
                |list: &[ReferenceMirror]| list.iter().map(|one| one.location.clone()).collect::<Vec<_>>();
            let is_known = if places(&ours) == places(their) {
                explain(case.is_f6(scope), "F6")
            } else {
                explain(case.is_f4(scope, kind), "F4")
                    || explain(case.is_f8(scope, kind), "F8")
                    || explain(case.is_f5(scope), "F5")
                    || explain(case.is_f3(scope), "F3")
            };
            assert!(is_known, "{kind:?} {}", told());
            if !case.is_f4(scope, kind) || case.lists(kind).contains_key(scope) {
                check_source_last(case, scope, kind, &places(&ours));
            }
        }
    }
}

/// Whatever the reason of a difference: the source is not among its own mirrors unless a list names it.
fn check_source_last(case: &Case, scope: &str, kind: PullKind, ours: &[String]) {
    let names_itself =
        case.lists(kind).get(scope).is_some_and(|lists| lists.iter().flatten().any(|mirror| mirror == scope));
    let inherits = !case.lists(kind).contains_key(scope);
    assert!(names_itself || inherits || !ours.iter().any(|mirror| mirror == scope), "{scope}: {ours:?}");
}

#[test]
fn the_merge_differs_from_the_reference_only_by_known_defects() {
    let mut random = Rng::with_seed(17);
    let cases: Vec<Case> = (0..CASES)
        .map(|_| {
            let policies = policies(&mut random);
            let insecure = listed(&mut random);
            Case::new(policies, insecure, listed(&mut random))
        })
        .collect();
    let questions: Vec<Question> = cases.iter().map(|case| case.question.clone()).collect();
    let answers: Vec<Answer> = Oracle::build("mirrors").unwrap().ask(&["merge"], &questions).unwrap();
    let mut explained = BTreeMap::new();
    for (case, answer) in cases.iter().zip(&answers) {
        compare(case, answer, &mut explained);
    }
    eprintln!("of {CASES} inputs, differences by defect of the reference: {explained:?}");
    // The inputs are rich enough to meet all of them.
    assert_eq!(explained.len(), 8, "{explained:?}");
}
