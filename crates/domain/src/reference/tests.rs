use std::collections::{BTreeSet, HashSet};

use proptest::prelude::*;

use super::*;

const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn parse(text: &str) -> Reference {
    Reference::parse(text).unwrap()
}

fn location(registry: &str, path: &str) -> Location {
    Location::new(registry, path).unwrap()
}

#[test]
fn normalised_like_a_runtime() {
    for (written, normalised) in [
        ("nginx", "docker.io/library/nginx"),
        ("nginx:1.29", "docker.io/library/nginx:1.29"),
        ("bitnami/redis:7", "docker.io/bitnami/redis:7"),
        ("docker.io/nginx", "docker.io/library/nginx"),
        ("index.docker.io/library/nginx:1", "docker.io/library/nginx:1"),
        ("index.docker.io/x", "docker.io/library/x"),
        ("localhost/foo", "localhost/foo"),
        ("localhost:5000/foo:1", "localhost:5000/foo:1"),
        ("localhost:5000", "docker.io/library/localhost:5000"),
        ("myreg:5000/a/b", "myreg:5000/a/b"),
        ("UPPER/x", "UPPER/x"),
        ("Ghcr.IO/a/b", "Ghcr.IO/a/b"),
        ("[::1]:5000/a/b:1", "[::1]:5000/a/b:1"),
        ("[2001:db8::1]/a", "[2001:db8::1]/a"),
        ("my_registry.lan/app:1", "my_registry.lan/app:1"),
        ("a/b__c/d---e.f", "docker.io/a/b__c/d---e.f"),
    ] {
        assert_eq!(parse(written).as_str(), normalised);
        assert_eq!(parse(written).written(), written);
    }
}

#[test]
fn parts() {
    let text = format!("[::1]:5000/team/app:v1@sha256:{HEX}");
    let reference = parse(&text);
    assert_eq!(reference.host().as_str(), "[::1]:5000");
    assert_eq!((reference.host().name(), reference.host().port()), ("::1", Some("5000")));
    assert_eq!(reference.path(), "team/app");
    assert_eq!(reference.segments().collect::<Vec<_>>(), ["team", "app"]);
    assert_eq!(reference.tag(), Some("v1"));
    assert_eq!(reference.digest().unwrap().hex(), HEX);
    assert_eq!(reference.repository().as_str(), "[::1]:5000/team/app");
    assert_eq!(reference.repository().path(), "team/app");
    assert_eq!(parse("nginx").repository(), parse("docker.io/library/nginx:1").repository());
    assert_eq!((parse("nginx").tag(), parse("nginx").digest()), (None, None));
}

#[test]
fn all_digest_algorithms_of_runtimes() {
    for (algorithm, digits) in [("sha256", 64), ("sha384", 96), ("sha512", 128)] {
        let digest = "a".repeat(digits);
        assert!(Reference::parse(&format!("x@{algorithm}:{digest}")).is_ok());
        assert!(Reference::parse(&format!("x@{algorithm}:{digest}a")).is_err());
        assert!(Reference::parse(&format!("x@{algorithm}:{}A", &digest[1..])).is_err());
    }
}

#[test]
fn refusals_name_part_character_and_remedy() {
    for (written, part, position, problem) in [
        ("", Part::Reference, 1, ReferenceProblem::Empty),
        (HEX, Part::Reference, 1, ReferenceProblem::Identifier),
        ("Nginx", Part::Repository, 1, ReferenceProblem::NotAllowed('N')),
        ("ghcr.io/Team/app", Part::Repository, 9, ReferenceProblem::NotAllowed('T')),
        ("nginx:la test", Part::Tag, 9, ReferenceProblem::NotAllowed(' ')),
        ("nginx:", Part::Tag, 7, ReferenceProblem::Empty),
        ("nginx:.x", Part::Tag, 7, ReferenceProblem::Misplaced('.')),
        ("a//b", Part::Repository, 3, ReferenceProblem::Empty),
        ("a/", Part::Repository, 3, ReferenceProblem::Empty),
        ("/a", Part::Repository, 1, ReferenceProblem::Empty),
        ("a/b..c", Part::Repository, 5, ReferenceProblem::Misplaced('.')),
        ("a/b___c", Part::Repository, 6, ReferenceProblem::Misplaced('_')),
        ("a/b-/c", Part::Repository, 4, ReferenceProblem::Misplaced('-')),
        ("a/-b", Part::Repository, 3, ReferenceProblem::Misplaced('-')),
        ("a/b.", Part::Repository, 4, ReferenceProblem::Misplaced('.')),
        ("r.io:80x/a", Part::Port, 8, ReferenceProblem::NotAllowed('x')),
        ("r.io:/a", Part::Port, 6, ReferenceProblem::Empty),
        ("r..io/a", Part::Host, 3, ReferenceProblem::Misplaced('.')),
        ("-r.io/a", Part::Host, 1, ReferenceProblem::Misplaced('-')),
        ("r-.io/a", Part::Host, 2, ReferenceProblem::Misplaced('-')),
        ("https://r.io/a", Part::Host, 6, ReferenceProblem::Scheme),
        ("https:/r.io/a", Part::Port, 7, ReferenceProblem::Empty),
        ("user@r.io/a", Part::Host, 5, ReferenceProblem::NotAllowed('@')),
        ("[::1/a", Part::Host, 1, ReferenceProblem::Misplaced('[')),
        ("[::g]/a", Part::Host, 4, ReferenceProblem::NotAllowed('g')),
        ("[::1]x/a", Part::Host, 6, ReferenceProblem::Misplaced('x')),
        ("[.]/a", Part::Host, 2, ReferenceProblem::NotAllowed('.')),
        ("é/a:é", Part::Repository, 1, ReferenceProblem::NotAllowed('é')),
        ("a:é", Part::Tag, 3, ReferenceProblem::NotAllowed('é')),
        ("a@", Part::Digest, 3, ReferenceProblem::Empty),
        ("a@md5:00", Part::Digest, 3, ReferenceProblem::UnknownAlgorithm),
        ("a@sha256:xyz", Part::Digest, 10, ReferenceProblem::NotAllowed('x')),
        ("a@sha256:00", Part::Digest, 10, ReferenceProblem::DigestLength { expected: 64, found: 2 }),
    ] {
        let error = Reference::parse(written).unwrap_err();
        assert_eq!((error.part(), error.position(), error.problem()), (part, position, problem), "{written}");
    }
    assert_eq!(
        Reference::parse("nginx:la test").unwrap_err().to_string(),
        "\"nginx:la test\" is not a valid image reference: ' ' at character 9 is not allowed in the tag; a tag has \
         letters, digits, '_', '.' and '-', starting with a letter, a digit or '_'"
    );
    let long = Reference::parse(&"a/".repeat(5000)).unwrap_err().to_string();
    assert!(long.len() < 600, "{long}");
}

#[test]
fn refusals_do_not_repeat_passwords() {
    for (text, shown) in [
        ("us3r:pa55@r.io/x", "\"…@r.io/x\""),
        ("https://us3r:pa55@r.io/x", "\"https://…@r.io/x\""),
        ("us3r:p@55@r.io/X", "\"…@r.io/X\""),
        ("name:tag@sha256:0", "\"name:tag@sha256:0\""),
        ("r.io/x:1@sha256:0", "\"r.io/x:1@sha256:0\""),
    ] {
        let error = Reference::parse(text).unwrap_err();
        assert!(error.to_string().starts_with(shown), "{error}");
        assert!(!format!("{error:?}").contains("us3r"), "{error:?}");
    }
}

#[test]
fn length_limits() {
    let path = |length: usize| "a".repeat(length);
    assert!(Reference::parse(&format!("r.io/{}", path(255))).is_ok());
    let error = Reference::parse(&format!("r.io/{}", path(256))).unwrap_err();
    assert_eq!(error.problem(), ReferenceProblem::TooLong { length: 256, limit: 255 });
    // What normalisation adds counts.
    assert!(Reference::parse(&path(247)).is_ok());
    assert!(Reference::parse(&path(248)).is_err());
    assert!(Reference::parse(&format!("a:{}", path(128))).is_ok());
    let error = Reference::parse(&format!("a:{}", path(129))).unwrap_err();
    assert_eq!(error.problem(), ReferenceProblem::TooLong { length: 129, limit: 128 });
}

#[test]
fn equal_by_what_they_name() {
    let (short, long) = (parse("nginx"), parse("docker.io/library/nginx"));
    assert_eq!(short, long);
    assert_eq!([short.clone(), long.clone()].iter().collect::<HashSet<_>>().len(), 1);
    assert_eq!([short.clone(), long].iter().collect::<BTreeSet<_>>().len(), 1);
    assert_ne!(short, parse("nginx:latest"));
    assert!(parse("a.io/x") < parse("b.io/a"));
}

#[test]
fn what_is_pulled() {
    let pinned = format!("nginx@sha256:{HEX}");
    for (written, pulled) in [
        ("nginx".to_owned(), "docker.io/library/nginx:latest".to_owned()),
        ("nginx:1".to_owned(), "docker.io/library/nginx:1".to_owned()),
        (pinned.clone(), format!("docker.io/library/{pinned}")),
        (format!("nginx:1@sha256:{HEX}"), format!("docker.io/library/{pinned}")),
    ] {
        assert_eq!(parse(&written).pulled().as_str(), pulled);
        assert_eq!(parse(&pulled), parse(&written).pulled());
    }
}

#[test]
fn tags_and_digests_can_be_changed() {
    let digest: Digest = format!("sha256:{HEX}").parse().unwrap();
    let reference = parse("r.io/a:v1");
    let pinned = reference.with_digest(&digest);
    assert_eq!(pinned.as_str(), format!("r.io/a:v1@{digest}"));
    assert_eq!(pinned.without_tag().as_str(), format!("r.io/a@{digest}"));
    assert_eq!(pinned.without_digest(), reference);
    assert_eq!(parse(pinned.as_str()).tag(), pinned.tag());
    assert!(Tag::parse("-x").is_err());
}

#[test]
fn places_that_enclose_it() {
    let places = |written: &str| {
        parse(written).place().ancestors().map(|place| place.as_str().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(places("nginx:1"), ["docker.io", "docker.io/library", "docker.io/library/nginx"]);
    assert_eq!(places("reg:5000/a"), ["reg:5000", "reg:5000/a"]);
}

#[test]
fn forms_for_filters() {
    let forms = |written: &str| parse(written).forms().iter().map(str::to_owned).collect::<BTreeSet<_>>();
    let set = |texts: &[String]| texts.iter().cloned().collect::<BTreeSet<_>>();
    let name = "docker.io/library/nginx";
    assert_eq!(forms("nginx"), set(&[name.to_owned(), format!("{name}:latest")]));
    assert_eq!(forms("nginx:1"), set(&[format!("{name}:1")]));
    assert_eq!(
        forms(&format!("nginx:1@sha256:{HEX}")),
        set(&[format!("{name}:1@sha256:{HEX}"), format!("{name}:1"), format!("{name}@sha256:{HEX}")])
    );
    assert_eq!(
        forms(&format!("nginx@sha256:{HEX}")),
        set(&[format!("{name}@sha256:{HEX}"), format!("{name}:sha256:{HEX}")])
    );
    let nginx = parse("nginx:1").forms();
    assert_eq!(nginx.paths().collect::<Vec<_>>(), ["/library/nginx:1"]);
    assert_eq!(nginx.below(&location("docker.io", "/library")).unwrap().collect::<Vec<_>>(), ["/nginx:1"]);
    assert_eq!(nginx.below(&location("docker.io", "/library/nginx")).unwrap().collect::<Vec<_>>(), [":1"]);
    assert!(nginx.below(&location("docker.io", "/lib")).is_none());
    assert!(parse("docker.io.evil/x").forms().below(&location("docker.io", "")).is_none());
}

#[test]
fn mirror_destinations() {
    for (source, registry, path, destination) in [
        ("nginx:1.29", "registry.example.com", "/mirror", "registry.example.com/mirror/library/nginx:1.29"),
        (
            "quay.io/thanos/thanos:v1",
            "registry.example.com",
            "mirror/",
            "registry.example.com/mirror/thanos/thanos:v1",
        ),
        ("nginx", "registry.example.com", "/mirror", "registry.example.com/mirror/library/nginx"),
        ("reg:5000/a/b:1", "h.io", "", "h.io/a/b:1"),
        ("a.io/x:1", "h.io:5000/deep", "//er/", "h.io:5000/deep/er/x:1"),
        ("a.io/x:1", "h.io", "a/../b/.", "h.io/b/x:1"),
        ("quay.io/x:1", "docker.io", "", "docker.io/library/x:1"),
        ("quay.io/x:1", "mirror", "m", "docker.io/mirror/m/x:1"),
        ("quay.io/x:1", "index.docker.io", "me", "docker.io/me/x:1"),
    ] {
        assert_eq!(location(registry, path).copy_of(&parse(source)).unwrap().as_str(), destination);
    }
    for (registry, path) in [
        ("", "/m"),
        ("/", ""),
        ("https://h.io", "m"),
        ("h.io", "../x"),
        ("h.io", "M"),
        ("h.io", "a b"),
        ("h_:1", ""),
    ] {
        assert!(Location::new(registry, path).is_err(), "{registry} {path}");
    }
    assert_eq!(
        Location::new("h.io", "a/../../b").unwrap_err().to_string(),
        "\"h.io/a/../../b\" is not a valid registry location: \"..\" leads out of the registry; remove it"
    );
    let long = location("h.io", &"m".repeat(200));
    assert!(matches!(long.copy_of(&parse(&"a".repeat(100))), Err(LocationError::Invalid { .. })));
}

#[test]
fn moving_between_upstreams() {
    for (image, from, to, moved) in [
        (
            "docker.io/thanosio/thanos:v1",
            ("docker.io", "/thanosio/thanos"),
            ("quay.io", "/thanos/thanos/"),
            "quay.io/thanos/thanos:v1",
        ),
        ("quay.io/enix/x:3", ("quay.io", "/enix/"), ("ghcr.io", "/enix/"), "ghcr.io/enix/x:3"),
        (
            "nginx:1",
            ("docker.io", "/library/"),
            ("gitlab.x", "/g/dependency_proxy/containers/"),
            "gitlab.x/g/dependency_proxy/containers/nginx:1",
        ),
        ("nginx:1", ("docker.io", "/"), ("h.x", "/hub"), "h.x/hub/library/nginx:1"),
        ("ghcr.io/a/nginx:1", ("ghcr.io", "/a"), ("docker.io", ""), "docker.io/library/nginx:1"),
    ] {
        let moved_to = location(from.0, from.1).moved(&parse(image), &location(to.0, to.1)).unwrap();
        assert_eq!(moved_to.as_str(), moved);
    }
    let nginx = parse("nginx:1");
    for (registry, path) in
        [("docker.io", "/lib"), ("docker.io", "/zzz"), ("quay.io", "/"), ("docker.io", "library/nginx/x")]
    {
        let place = location(registry, path);
        assert!(!place.contains(&nginx));
        assert!(matches!(place.moved(&nginx, &location("q.x", "/p")), Err(LocationError::Outside { .. })));
    }
    assert!(!location("docker.io", "").contains(&parse("docker.io.evil/x")));
    let exact = location("docker.io", "library/nginx");
    assert!(matches!(exact.moved(&nginx, &location("q.x", "")), Err(LocationError::NoRepository { .. })));
}

#[test]
fn joined_like_go() {
    for (elements, joined) in [
        (&["a", "b"][..], "a/b"),
        (&["a/", "/b/"], "a/b"),
        (&["", ""], ""),
        (&["a", ".."], "."),
        (&["a", "../.."], ".."),
        (&["/", "../b"], "/b"),
        (&["h.io", "x/../y", "./z"], "h.io/y/z"),
    ] {
        assert_eq!(clean_join(elements), joined);
    }
}

#[test]
fn hosts() {
    let host = |text: &str| Host::parse(text).unwrap();
    assert_eq!((host("r.io:5000").name(), host("r.io:5000").port()), ("r.io", Some("5000")));
    assert_eq!((host("[::1]").name(), host("[::1]").port()), ("::1", None));
    assert_eq!(&*host("index.docker.io").endpoint(), "registry-1.docker.io");
    assert_eq!(&*host("r.io").endpoint(), "r.io");
    for (text, loopback) in [
        ("localhost", true),
        ("localhost:5000", true),
        ("LOCALHOST", true),
        ("x.localhost", true),
        ("127.0.0.1:5000", true),
        ("127.9.9.9", true),
        ("[::1]:5000", true),
        ("[::ffff:7f00:1]", true),
        ("128.0.0.1", false),
        ("localhost.evil.com", false),
        ("notlocalhost", false),
    ] {
        assert_eq!(host(text).is_loopback(), loopback, "{text}");
    }
    for text in ["", "a/b", "https://a", "a:b", "a b"] {
        assert!(Host::parse(text).is_err(), "{text}");
    }
}

#[test]
fn statuses_name_images_by_digest_too() {
    let digest: Digest = format!("sha256:{HEX}").parse().unwrap();
    assert_eq!(AnyReference::parse(HEX).unwrap(), AnyReference::Digest(digest));
    assert_eq!(AnyReference::parse(&digest.to_string()).unwrap().digest(), Some(digest));
    let named = AnyReference::parse(&format!("nginx@{digest}")).unwrap();
    assert_eq!(named.digest(), Some(digest));
    assert_eq!(named.to_string(), format!("docker.io/library/nginx@{digest}"));
    assert!(AnyReference::parse("").is_err());
}

#[test]
fn travels_through_json_normalised() {
    let json = serde_json::to_string(&parse("nginx:1")).unwrap();
    assert_eq!(json, "\"docker.io/library/nginx:1\"");
    assert_eq!(serde_json::from_str::<Reference>(&json).unwrap(), parse("nginx:1"));
    assert!(serde_json::from_str::<Reference>("\"A B\"").is_err());
}

proptest! {
    #[test]
    fn parsing_is_total_and_normalising_settles(text in "\\PC{0,60}|[a-zA-Z0-9._:/@\\[\\]-]{0,60}") {
        if let Ok(reference) = Reference::parse(&text) {
            let again = parse(reference.as_str());
            prop_assert_eq!(&again, &reference);
            prop_assert_eq!(again.as_str(), reference.as_str());
            prop_assert_eq!(again.tag(), reference.tag());
            prop_assert_eq!(again.path(), reference.path());
            prop_assert_eq!(reference.written(), text);
            prop_assert!(reference.forms().iter().all(|form| form.starts_with(reference.name())));
        }
    }

    #[test]
    fn a_move_there_and_back_changes_nothing(
        path in "[a-z]{1,5}(/[a-z]{1,5}){1,3}", tag in "[a-z0-9]{1,8}", to in "[a-z]{1,5}(/[a-z]{1,5}){0,2}",
    ) {
        let image = parse(&format!("a.io/{path}:{tag}"));
        let first = path.split('/').next().unwrap();
        let (from, to) = (location("a.io", first), location("b.io", &to));
        let moved = from.moved(&image, &to).unwrap();
        prop_assert!(to.contains(&moved));
        prop_assert_eq!(to.moved(&moved, &from).unwrap(), image);
    }
}
