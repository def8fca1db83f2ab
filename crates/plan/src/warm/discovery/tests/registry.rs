use fairlead_domain::reference::Tag;

use super::*;

fn query(changes: &Value) -> Discovery {
    let mut block = json!({"url": "https://r.example:5000", "repositories": ["team/app"]});
    for (name, value) in changes.as_object().unwrap() {
        block[name] = value.clone();
    }
    discovery(json!({"queries": [{"name": "tags", "type": "registry", "registry": block}]}))
}

fn tags(discovery: &Discovery) -> &TagQuery {
    let Question::Registry(tags) = &discovery.queries[0].question else { panic!("{discovery:?}") };
    tags
}

fn answer_of(query: &TagQuery, lists: &[Result<TagList, Failure>]) -> Result<Answer, Failure> {
    let mut reading = query.read_lists(now());
    for (repository, list) in query.repositories.iter().zip(lists) {
        reading.take(repository, list.clone());
    }
    reading.finish()
}

fn list(tags: &[&str]) -> TagList {
    TagList {
        tags: tags.iter().map(|tag| Tag::parse(tag).unwrap()).collect(),
        complete: true,
        ..TagList::default()
    }
}

fn ordered(changes: &Value, listed: &[&str]) -> Vec<String> {
    let discovery = query(changes);
    let answer = answer_of(tags(&discovery), &[Ok(list(listed))]).unwrap();
    answer.series.iter().map(|one| one.image.tag().unwrap().to_owned()).collect()
}

#[test]
fn tags_are_ordered_by_version() {
    for (changes, listed, expected) in [
        (json!({}), &["v1.9.0", "v1.10.0", "v1.2.0"][..], &["v1.10.0", "v1.9.0", "v1.2.0"][..]),
        (
            json!({}),
            &["x86_64-latest", "x86_64-v17.5.0", "bleeding"],
            &["x86_64-v17.5.0", "bleeding", "x86_64-latest"],
        ),
        (
            json!({"versionPattern": "x86_64-v(.+)"}),
            &["x86_64-v17.4.0", "x86_64-v17.10.0", "ubuntu-v99.0.0"],
            &["x86_64-v17.10.0", "x86_64-v17.4.0", "ubuntu-v99.0.0"],
        ),
        (json!({}), &["ubuntu-a-v17.0.0", "alpine-a-v17.0.0"], &["alpine-a-v17.0.0", "ubuntu-a-v17.0.0"]),
        (json!({}), &["1.25", "1.25-alpine", "2024.01.05"], &["2024.01.05", "1.25", "1.25-alpine"]),
        (json!({"topX": 2}), &["20240105", "20240201", "20231231"], &["20240201", "20240105"]),
        (json!({"tagFilter": "^v", "topX": 1}), &["v9", "v10", "99"], &["v10"]),
        (json!({}), &[], &[]),
    ] {
        assert_eq!(ordered(&changes, listed), expected, "{changes} {listed:?}");
    }
}

#[test]
fn the_newest_has_the_highest_score_and_the_template_gives_the_name() {
    let discovery =
        query(&json!({"topX": 3, "imageTemplate": "m.example/{{.Registry}}/{{.Repository}}:{{.Tag}}"}));
    let answer = answer_of(tags(&discovery), &[Ok(list(&["1", "2", "3", "4", "old"]))]).unwrap();
    let found: Vec<_> = answer.series.iter().map(|one| (one.image.written(), one.values[0].value)).collect();
    // A port is no part of a path.
    assert_eq!(found, []);
    assert!(answer.notes[0].contains("is not the name of an image"), "{:?}", answer.notes);

    let discovery = query(&json!({"topX": 3}));
    let answer = answer_of(tags(&discovery), &[Ok(list(&["1", "2", "old", "4"]))]).unwrap();
    let found: Vec<_> = answer.series.iter().map(|one| (one.image.written(), one.values[0].value)).collect();
    assert_eq!(
        found,
        [
            ("r.example:5000/team/app:4", 3.0),
            ("r.example:5000/team/app:2", 2.0),
            ("r.example:5000/team/app:1", 1.0)
        ]
    );
    let discovery = query(&json!({}));
    let answer = answer_of(tags(&discovery), &[Ok(list(&["1", "old"]))]).unwrap();
    assert_eq!(answer.notes, ["1 tags of team/app have no version and stand last, as listed"]);
}

#[test]
fn sources_order_tags_without_a_version_by_when_their_images_were_made() {
    let source = |top: usize| {
        let block =
            json!({"url": "https://r.example", "repositories": ["a"], "tagFilter": "^[^x]", "topX": top});
        discovery(json!({"sources": [{"type": "registry", "registry": block}]}))
    };
    let listed = ["aaa", "bbb", "ccc", "v1.0", "xxx"];
    let asks = |discovery: &Discovery, list: &TagList| {
        tags(discovery).to_be_dated(list).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let discovery = source(3);
    let mut found = list(&listed);
    assert_eq!(asks(&discovery, &found), ["aaa", "bbb", "ccc"]);
    assert!(asks(&source(1), &found).is_empty(), "those with a version take all places");
    assert!(asks(&query(&json!({})), &found).is_empty(), "queries keep the order of Drop");
    let many: Vec<_> = (0..51).map(|number| format!("sha-{number:x}x")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    assert!(asks(&discovery, &list(&many)).is_empty(), "too many to be asked about");
    for (tag, second) in [("aaa", 30), ("bbb", 10), ("ccc", 20)] {
        found.made.insert(Tag::parse(tag).unwrap(), Timestamp::from_second(second).unwrap());
    }
    let order = |found: &TagList| {
        let answer = answer_of(tags(&discovery), &[Ok(found.clone())]).unwrap();
        let order: Vec<_> = answer.series.iter().map(|one| one.image.tag().unwrap().to_owned()).collect();
        (order, answer.notes.join(", "))
    };
    let (tags, note) = order(&found);
    assert_eq!((tags.join(" "), note.ends_with("newest first")), ("v1.0 aaa ccc".to_owned(), true), "{note}");
    found.made.remove(&Tag::parse("aaa").unwrap());
    let (tags, _) = order(&found);
    assert_eq!(tags.join(" "), "v1.0 ccc bbb", "what is not known comes last");
    found.made.clear();
    let (tags, note) = order(&found);
    assert_eq!((tags.join(" "), note.ends_with("as listed")), ("v1.0 ccc bbb".to_owned(), true), "{note}");
}

#[test]
fn one_repository_that_fails_does_not_fail_the_others() {
    let discovery = query(&json!({"repositories": ["team/app", "team/gone"]}));
    let gone = || Err(Failure::new(FailureReason::NotFound, "it is not there"));
    let answer = answer_of(tags(&discovery), &[Ok(list(&["1"])), gone()]);
    let status = round(&discovery, &DiscoveryPolicyStatus::default(), 1, &[answer]);
    assert_eq!(listed(&status), [("r.example:5000/team/app:1", "1")]);
    let message = "1 of 2 repositories cannot be listed: team/gone: it is not there";
    assert_eq!(status.query_results[0].message.as_deref(), Some(message));
    assert_eq!(ready(&status).1, "PartiallyFailed");

    // What was known of the repository stays, in both forms, until it can be listed again.
    let block = json!({"url": "https://r.example:5000", "repositories": ["team/app", "team/gone"]});
    let source = json!({"sources": [{"type": "registry", "registry": block}]});
    for discovery in [discovery.clone(), super::discovery(source)] {
        let answer = |app: &[&str], gone| answer_of(tags(&discovery), &[Ok(list(app)), gone]);
        let images = |status: &DiscoveryPolicyStatus| {
            status.discovered_images.iter().map(|one| one.image.clone()).collect::<Vec<_>>()
        };
        let good = [answer(&["1", "2"], Ok(list(&["7"])))];
        let good = round(&discovery, &DiscoveryPolicyStatus::default(), 1, &good);
        assert_eq!(images(&good).len(), 3);
        let partial = round(&discovery, &good, 1, &[answer(&["3"], gone())]);
        assert_eq!(images(&partial), ["r.example:5000/team/app:3", "r.example:5000/team/gone:7"]);
        assert_eq!(ready(&partial).1, "PartiallyFailed");
        let empty = round(&discovery, &partial, 1, &[answer(&["3"], Ok(list(&[])))]);
        assert_eq!(images(&empty), ["r.example:5000/team/app:3"]);
    }

    let failure = answer_of(tags(&discovery), &[gone(), gone()]).unwrap_err();
    assert_eq!((failure.reason, &*failure.message), (FailureReason::NotFound, "team/app: it is not there"));
}

#[test]
fn a_list_that_was_cut_says_so() {
    let discovery = query(&json!({"maxScan": 2, "tagSeek": "v1"}));
    let query = tags(&discovery);
    assert_eq!((query.most, query.seek.as_deref(), query.plain_http), (2, Some("v1"), false));
    let cut = TagList { complete: false, ..list(&["v2", "v3"]) };
    let answer = answer_of(query, &[Ok(cut)]).unwrap();
    assert_eq!(answer.notes, ["only the first 2 tags of team/app were read"]);
}

#[test]
fn sources_of_registries_score_by_place() {
    let source = json!({"type": "registry", "registry": {
        "url": "http://localhost:5000/", "repositories": ["a"], "topX": 2,
    }});
    let discovery = discovery(json!({"sources": [source]}));
    assert!(tags(&discovery).plain_http);
    let answer = answer_of(tags(&discovery), &[Ok(list(&["v10", "v8", "v9"]))]);
    let status = round(&discovery, &DiscoveryPolicyStatus::default(), 1, &[answer]);
    let found: Vec<_> =
        status.discovered_images.iter().map(|one| (&*one.image, one.score.unwrap())).collect();
    assert_eq!(found, [("localhost:5000/a:v10", 2), ("localhost:5000/a:v9", 1)]);
    assert_eq!(status.discovered_images[0].source.as_deref(), Some("registry[0]"));
}

#[test]
fn what_repositories_without_end_bring_is_bounded() {
    let discovery = query(&json!({"repositories": ["a", "b", "c"], "maxScan": 10_000}));
    let many: Vec<_> = (0..9000).map(|number| format!("1.{number}")).collect();
    let many: Vec<_> = many.iter().map(String::as_str).collect();
    let lists = [Ok(list(&many)), Ok(list(&many)), Ok(list(&many))];
    let answer = answer_of(tags(&discovery), &lists).unwrap();
    assert_eq!(answer.series.len(), 20_000);
    assert_eq!(answer.notes, ["only the first 20000 tags were taken: set topX"]);
}
