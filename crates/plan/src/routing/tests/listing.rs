//! What is in the list, in which order, and with which Secrets.

use std::collections::BTreeMap;

use super::*;
use crate::routing::{Decision, Withheld};

#[test]
fn the_original_stands_at_priority_zero() {
    let list = |priorities: [i64; 2]| {
        let one = mirror(ClusterImageSetMirror, "one", priorities[0], &["one.io"]);
        let two = mirror(ClusterImageSetMirror, "two", priorities[1], &["two.io"]);
        let alternatives = plan(&[&one, &two], "quay.io/a:1", PullPolicy::IfNotPresent, DEFAULT);
        references(&alternatives)
            .iter()
            .map(|one| one.split_once(".io/").unwrap().0.to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(list([0, 0]), ["quay", "one", "two"]);
    assert_eq!(list([1, 0]), ["quay", "two", "one"]);
    assert_eq!(list([-1, -2]), ["two", "one", "quay"]);
    assert_eq!(list([5, -5]), ["two", "quay", "one"]);
    assert_eq!(list([i64::MAX, i64::MIN]), ["two", "quay", "one"]);
}

#[test]
fn always_asks_for_the_original_first_unless_told_otherwise() {
    let policy = mirror(ClusterImageSetMirror, "m", i64::MIN, &["m.io"]);
    let (copy, original) = ("m.io/a:1", "quay.io/a:1");
    let list = |pull, rules: Rules| {
        let alternatives = plan(&[&policy], original, pull, rules);
        references(&alternatives).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(list(PullPolicy::Always, DEFAULT), [original, copy]);
    assert_eq!(list(PullPolicy::Always, HONOUR), [copy, original]);
    assert_eq!(list(PullPolicy::IfNotPresent, DEFAULT), [copy, original]);
}

#[test]
fn never_is_left_alone_unless_told_otherwise() {
    let policy = mirror(ClusterImageSetMirror, "m", -1, &["m.io"]);
    let moved = replicated(ClusterReplicatedImageSet, "r", 0, &["-quay.io", "r.io"]);
    let left = plan(&[&policy, &moved], "quay.io/a:1", PullPolicy::Never, DEFAULT);
    assert_eq!(references(&left), ["quay.io/a:1"]);
    assert!(!left.needs_probe() && left.discarded_by().is_none());
    assert_eq!(left.notes(), ["images with the pull policy Never are not routed"]);
    let routed = Rules { rewrite_on_never: true, ..DEFAULT };
    let list = plan(&[&policy], "quay.io/a:1", PullPolicy::Never, routed);
    assert_eq!(references(&list), ["m.io/a:1", "quay.io/a:1"]);
}

#[test]
fn without_a_policy_there_is_the_original_alone() {
    let alternatives = plan(&[], "nginx", PullPolicy::Always, DEFAULT);
    assert_eq!(references(&alternatives), ["docker.io/library/nginx"]);
    assert!(!alternatives.needs_probe());
    assert_eq!(alternatives.original().written(), "nginx");
    let elsewhere = mirror(ImageSetMirror, "elsewhere/m", -1, &["m.io"]);
    assert_eq!(references(&plan(&[&elsewhere], "nginx", PullPolicy::Always, DEFAULT)).len(), 1);
}

#[test]
fn a_duplicate_keeps_its_first_place_and_brings_its_secret() {
    let first = mirror(ClusterImageSetMirror, "first", -2, &["m.io/x one/secret"]);
    let second = mirror(ClusterImageSetMirror, "second", -1, &["m.io/x two/secret"]);
    let third = mirror(ClusterImageSetMirror, "third", 7, &["m.io/x one/secret"]);
    let alternatives = plan(&[&third, &first, &second], "quay.io/a:1", PullPolicy::IfNotPresent, DEFAULT);
    assert_eq!(
        lines(&alternatives),
        "m.io/x/a:1 (ClusterImageSetMirror/first, mirrors[0] + ClusterImageSetMirror/second, mirrors[0] + \
         ClusterImageSetMirror/third, mirrors[0])\nquay.io/a:1 (original)\n"
    );
    let secrets: Vec<String> =
        alternatives.list()[0].secrets.iter().map(|one| format!("{} {}", one.secret, one.by)).collect();
    assert_eq!(
        secrets,
        ["one/secret ClusterImageSetMirror/first", "two/secret ClusterImageSetMirror/second"]
    );
}

#[test]
fn an_upstream_that_is_the_original_brings_its_secret() {
    for (priority, first) in [(0, "original"), (-1, "ClusterReplicatedImageSet/r, upstreams[0]")] {
        let set = replicated(ClusterReplicatedImageSet, "r", priority, &["quay.io system/pull", "r.io"]);
        let alternatives = plan(&[&set], "quay.io/a:1", PullPolicy::IfNotPresent, DEFAULT);
        assert_eq!(references(&alternatives), ["quay.io/a:1", "r.io/a:1"]);
        let one = &alternatives.list()[0];
        assert_eq!(one.origin.to_string(), first);
        assert_eq!(one.secrets[0].secret.to_string(), "system/pull");
        assert!(one.is_original());
    }
}

#[test]
fn origins_are_named_for_people_and_for_the_record() {
    let set = mirror(ImageSetMirror, "my-app/team", -1, &["", "m.io"]);
    let alternatives = plan(&[&set], "quay.io/a:1", PullPolicy::IfNotPresent, DEFAULT);
    let origins: Vec<(String, String)> =
        alternatives.list().iter().map(|one| (one.origin.to_string(), one.origin.by())).collect();
    assert_eq!(
        origins,
        [
            ("ImageSetMirror/my-app/team, mirrors[1]".to_owned(), "ImageSetMirror/my-app/team".to_owned()),
            ("original".to_owned(), "original".to_owned()),
        ]
    );
}

#[test]
fn mirrors_offer_copies_of_the_original_then_of_upstreams() {
    let set = replicated(ClusterReplicatedImageSet, "r", 0, &["quay.io/a", "ghcr.io/b", "-old.io/c"]);
    let mirrors = mirror(ClusterImageSetMirror, "m", -1, &["m.io", "n.io"]);
    assert_eq!(
        listed(&[&set, &mirrors], "quay.io/a/app:1"),
        "m.io/a/app:1 (ClusterImageSetMirror/m, mirrors[0])\n\
         m.io/b/app:1 (ClusterImageSetMirror/m, mirrors[0])\n\
         m.io/c/app:1 (ClusterImageSetMirror/m, mirrors[0])\n\
         n.io/a/app:1 (ClusterImageSetMirror/m, mirrors[1])\n\
         n.io/b/app:1 (ClusterImageSetMirror/m, mirrors[1])\n\
         n.io/c/app:1 (ClusterImageSetMirror/m, mirrors[1])\n\
         quay.io/a/app:1 (original + ClusterReplicatedImageSet/r, upstreams[0])\n\
         ghcr.io/b/app:1 (ClusterReplicatedImageSet/r, upstreams[1])\n"
    );
    let from_old = listed(&[&set, &mirrors], "old.io/c/app:1");
    assert!(
        from_old.starts_with("m.io/c/app:1 (ClusterImageSetMirror/m, mirrors[0])\nm.io/a/app:1 "),
        "{from_old}"
    );
    assert!(!from_old.contains("old.io"), "{from_old}");
}

#[test]
fn a_mirror_serves_copies_only_of_what_its_filter_lets_pass() {
    let set = replicated(ClusterReplicatedImageSet, "r", 0, &["quay.io/a", "ghcr.io/b"]);
    let spec = json!({ "imageFilter": { "include": ["ghcr.io/.*"] }, "mirrors": [{ "registry": "m.io" }] });
    let ghcr_only = policy(ClusterImageSetMirror, "m", spec);
    let alternatives = plan(&[&set, &ghcr_only], "quay.io/a/app:1", PullPolicy::IfNotPresent, DEFAULT);
    assert_eq!(references(&alternatives), ["quay.io/a/app:1", "m.io/b/app:1", "ghcr.io/b/app:1"]);
}

#[test]
fn mirrors_of_mirrors_are_not_offered() {
    let one = mirror(ClusterImageSetMirror, "one", 0, &["one.io/m"]);
    let two = mirror(ClusterImageSetMirror, "two", 0, &["two.io/m"]);
    let list = plan(&[&one, &two], "quay.io/a:1", PullPolicy::IfNotPresent, DEFAULT);
    assert_eq!(references(&list), ["quay.io/a:1", "one.io/m/a:1", "two.io/m/a:1"]);
    let inside = plan(&[&one], "one.io/m/a:1", PullPolicy::IfNotPresent, DEFAULT);
    assert_eq!(references(&inside), ["one.io/m/a:1"]);
    assert_eq!(
        inside.notes(),
        [
            "ClusterImageSetMirror/one, mirrors[0] offers no copy of one.io/m/a:1, which lies in that mirror already"
        ]
    );
}

#[test]
fn discarding() {
    let list = |places: &[&str], image: &str| {
        let set = replicated(ClusterReplicatedImageSet, "r", 0, places);
        let alternatives = plan(&[&set], image, PullPolicy::Always, DEFAULT);
        let found: Vec<String> = references(&alternatives).into_iter().map(str::to_owned).collect();
        (found, alternatives.needs_probe(), alternatives.discarded_by().is_some())
    };
    let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    assert_eq!(list(&["-old.io", "new.io"], "old.io/a:1"), (texts(&["new.io/a:1"]), true, true));
    assert_eq!(list(&["-old.io", "new.io"], "new.io/a:1"), (texts(&["new.io/a:1"]), false, false));
    assert_eq!(
        list(&["new.io", "-old.io", "x.io"], "new.io/a:1"),
        (texts(&["new.io/a:1", "x.io/a:1"]), true, false)
    );
    assert_eq!(list(&["-old.io"], "old.io/a:1"), (texts(&[]), false, true));
    assert_eq!(list(&["-old.io", "-older.io"], "old.io/a:1"), (texts(&[]), false, true));
}

#[test]
fn a_discarded_place_stays_where_another_object_offers_it_and_in_mirrors() {
    let discards = replicated(ClusterReplicatedImageSet, "a", 0, &["-old.io", "new.io"]);
    let offers = replicated(ClusterReplicatedImageSet, "b", 3, &["old.io", "other.io"]);
    let copies = mirror(ClusterImageSetMirror, "m", 5, &["m.io"]);
    let alternatives = plan(&[&offers, &discards, &copies], "old.io/a:1", PullPolicy::Always, DEFAULT);
    assert_eq!(references(&alternatives), ["new.io/a:1", "old.io/a:1", "other.io/a:1", "m.io/a:1"]);
    assert_eq!(alternatives.discarded_by().unwrap().to_string(), "ClusterReplicatedImageSet/a");
}

#[test]
fn the_first_upstream_that_matches_counts() {
    let upstreams = json!([
        { "registry": "quay.io", "path": "/team/app", "imageFilter": { "include": ["/team/app:.*"] } },
        { "registry": "quay.io", "path": "/team", "imageFilter": { "include": ["/team/.*"] }, "discardAlternative": true },
        { "registry": "r.io", "path": "/x" },
    ]);
    let set = policy(ClusterReplicatedImageSet, "r", json!({ "upstreams": upstreams }));
    let list = |image: &str| {
        let alternatives = plan(&[&set], image, PullPolicy::IfNotPresent, DEFAULT);
        references(&alternatives).into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(list("quay.io/team/app:1"), ["quay.io/team/app:1", "r.io/x:1"]);
    assert_eq!(list("quay.io/team/web:1"), ["quay.io/team/app/web:1", "r.io/x/web:1"]);
}

#[test]
fn filters_look_at_the_pod_as_well() {
    let spec =
        |filter: Value| json!({ "priority": -1, "filter": filter, "mirrors": [{ "registry": "m.io" }] });
    let by_label = policy(ClusterImageSetMirror, "m", spec(json!({ "include": [{ "label": "app=web" }] })));
    let by_namespace =
        policy(ClusterImageSetMirror, "m", spec(json!({ "include": [{ "namespace": "prod" }] })));
    let by_annotation =
        policy(ClusterImageSetMirror, "m", spec(json!({ "exclude": [{ "annotation": "skip" }] })));
    let by_image =
        policy(ClusterImageSetMirror, "m", spec(json!({ "exclude": [{ "image": "quay.io/.*" }] })));
    let empty_item = policy(ClusterImageSetMirror, "m", spec(json!({ "include": [{ "image": "" }] })));
    let no_filter = policy(ClusterImageSetMirror, "m", spec(json!({})));
    let concerned = |policy: &Arc<Policy>, namespace: &str, label: (&str, &str), annotation: (&str, &str)| {
        let map = |(key, value): (&str, &str)| BTreeMap::from([(key.to_owned(), value.to_owned())]);
        let (labels, annotations) = (map(label), map(annotation));
        let pod = PodFacts { namespace, labels: &labels, annotations: &annotations };
        let index = index(&[policy]);
        let concerned = index.for_pod(&pod);
        let image = "quay.io/a:1".parse().unwrap();
        let list = concerned.alternatives(&image, PullPolicy::IfNotPresent, &DEFAULT).list().len();
        assert!(list == 1 || !concerned.is_empty());
        list > 1
    };
    let other = ("other", "x");
    assert!(concerned(&by_label, "any", ("app", "web"), other));
    assert!(!concerned(&by_label, "any", ("app", "webs"), other));
    assert!(concerned(&by_namespace, "prod", other, other));
    assert!(!concerned(&by_namespace, "prod-1", other, other));
    assert!(concerned(&by_annotation, "any", other, other));
    assert!(!concerned(&by_annotation, "any", other, ("skip", "")));
    assert!(!concerned(&by_image, "any", other, other));
    assert!(concerned(&empty_item, "any", other, other));
    assert!(!concerned(&no_filter, "any", other, other), "without any filter a mirror is for no image");
}

#[test]
fn image_filters_see_whole_normalised_references() {
    let passes = |pattern: &str, image: &str| {
        let spec = json!({ "imageFilter": { "include": [pattern] }, "mirrors": [{ "registry": "m.io" }] });
        let set = policy(ClusterImageSetMirror, "m", spec);
        plan(&[&set], image, PullPolicy::IfNotPresent, DEFAULT).list().len() > 1
    };
    assert!(passes("docker.io/library/nginx:.+", "nginx"));
    assert!(passes("docker.io/library/nginx(:.+)?", "nginx"));
    assert!(passes("^docker.io/library/nginx:1$", "nginx:1"));
    assert!(passes("docker.io/library/nginx:.+", &format!("nginx@{DIGEST}")));
    assert!(passes("docker.io/library/nginx:1", &format!("nginx:1@{DIGEST}")));
    assert!(!passes("docker.io/library/nginx", "nginx-extra"));
    assert!(!passes("nginx:1", "nginx:1"));
    assert!(!passes("docker.io/library/nginx:1", "docker.io/library/my-nginx:1"));
}

#[test]
fn the_last_of_two_with_one_name_counts() {
    let old = mirror(ClusterImageSetMirror, "m", -1, &["old.io"]);
    let new = mirror(ClusterImageSetMirror, "m", -1, &["new.io"]);
    let same_name = mirror(ImageSetMirror, "my-app/m", -2, &["own.io"]);
    let index = index(&[&old, &same_name, &new]);
    assert_eq!(index.policies().count(), 2);
    let alternatives = plan_in(&index, "my-app", "quay.io/a:1", PullPolicy::IfNotPresent, DEFAULT);
    assert_eq!(references(&alternatives), ["own.io/a:1", "new.io/a:1", "quay.io/a:1"]);
}

#[test]
fn long_lists_have_no_duplicates_either() {
    let places: Vec<String> = (0..30).map(|n| format!("m{}.io", n % 20)).collect();
    let places: Vec<&str> = places.iter().map(String::as_str).collect();
    let one = mirror(ClusterImageSetMirror, "one", 0, &places);
    let two = mirror(ClusterImageSetMirror, "two", 0, &places);
    let alternatives = plan(&[&one, &two], "quay.io/a:1", PullPolicy::IfNotPresent, DEFAULT);
    assert_eq!(alternatives.list().len(), 21);
    assert_eq!(alternatives.list()[1].also.len(), 3);
    assert_eq!(references(&alternatives)[20], "m19.io/a:1");
}

#[test]
fn a_copy_of_another_image_is_withheld_unless_something_else_leads_there() {
    let set = replicated(ClusterReplicatedImageSet, "r", 0, &["quay.io/a", "ghcr.io/a", "m.io/kept/a"]);
    let mirrors = mirror(ClusterImageSetMirror, "m", -1, &["m.io", "m.io/kept"]);
    let withheld = |foreign: &[&str]| {
        let mut places = plan(&[&set, &mirrors], "quay.io/a/app:1", PullPolicy::IfNotPresent, DEFAULT);
        places.withhold(|of, _| foreign.contains(&of.as_str()));
        places
    };
    let all = ["m.io/a/app:1", "m.io/kept/a/app:1", "quay.io/a/app:1", "ghcr.io/a/app:1"];
    assert_eq!(references(&withheld(&[])), all);
    assert_eq!(references(&withheld(&["quay.io/a/app:1"])), all, "it may be the copy of a replica");
    let all_foreign = withheld(&["quay.io/a/app:1", "ghcr.io/a/app:1", "m.io/kept/a/app:1"]);
    assert_eq!(references(&all_foreign), all[1..], "what is declared to hold the image stays");
    assert!(all_foreign.notes().iter().any(|note| note.starts_with("m.io/a/app:1 is not tried")));
}

/// A place that a tenant's own policy names too stays, without the Secrets of the mirror that asks for proof.
#[test]
fn a_copy_without_proof_is_withheld_with_the_secret_of_its_mirror() {
    let spec = |access: &str, secret: &str| {
        json!({
            "access": access, "imageFilter": {"include": [".*"]}, "priority": -1,
            "mirrors": [{"registry": "m.io", "pullSecret": {"name": secret, "namespace": "vault"}}],
        })
    };
    let compiled = |manifest: &Value| Arc::new(compile(manifest).unwrap());
    let guarded = compiled(&manifest(ClusterImageSetMirror, "guarded", spec("Proven", "cluster")));
    let own = compiled(&manifest(ImageSetMirror, "my-app/own", spec("Shared", "own")));
    let planned = |policies: &[&Arc<Policy>], proven: bool| {
        let index = index(policies);
        let mut places = plan_in(&index, "my-app", "quay.io/a:1", PullPolicy::IfNotPresent, DEFAULT);
        assert_eq!(places.to_prove().count(), 1);
        places.withhold_unproven("my-app", |_| (!proven).then_some(Withheld::Unproven));
        places
    };
    assert_eq!(references(&planned(&[&guarded], true)), ["m.io/a:1", "quay.io/a:1"]);
    let withheld = planned(&[&guarded], false);
    assert_eq!(references(&withheld), ["quay.io/a:1"]);
    let why = "m.io/a:1 is not tried: namespace my-app has not proven access to quay.io/a:1";
    assert_eq!(withheld.notes(), [why]);
    assert_eq!(withheld.decide(&[]), Decision::Keep { why: why.to_owned() });

    let both = planned(&[&guarded, &own], false);
    assert_eq!(references(&both), ["m.io/a:1", "quay.io/a:1"]);
    let secrets: Vec<_> = both.list()[0].secrets.iter().map(|used| used.secret.to_string()).collect();
    assert_eq!(secrets, ["my-app/own"]);
    assert_eq!(both.list()[0].origin.by(), "ImageSetMirror/my-app/own");
}
