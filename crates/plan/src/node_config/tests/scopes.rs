//! How sources and mirrors are written, and which lies in which.

use fairlead_api::openshift::{MIRROR_PATTERN, SOURCE_PATTERN};
use proptest::prelude::*;
use regex::Regex;

use crate::node_config::scope::enclosing;
use crate::node_config::{Location, Scope};

fn agrees(text: &str) {
    let is_match = |pattern| Regex::new(pattern).unwrap().is_match(text);
    assert_eq!(Scope::parse(text).is_ok(), is_match(SOURCE_PATTERN), "source {text:?}");
    assert_eq!(Location::parse(text).is_ok(), is_match(MIRROR_PATTERN), "mirror {text:?}");
}

#[test]
fn texts_are_read_as_the_definitions_say() {
    for text in [
        "quay.io",
        "quay.io:443",
        "quay.io:99999",
        "localhost",
        "10.0.0.1:5000/x",
        "QUAY.IO",
        "*.redhat.io",
        "*.io",
        "q.io/a_b",
        "q.io/a__b",
        "q.io/a--b",
        "q.io/a.b",
        "quay.io/",
        "quay.io//x",
        "quay.io/Foo",
        "quay.io/foo:tag",
        "[fd00::1]:5000/x",
        "http://x",
        "*.redhat.io/foo",
        "*.redhat.io:5000",
        "*",
        "",
        "q.io/a___b",
        "q.io/a..b",
        "q.io/-a",
        "q.io/a ",
        "my_reg.io",
        "-quay.io",
        "q.io:",
        "q.io:5a",
        "q.io/a-_b",
        "q.io/a-.b",
        "*.",
        "*..a",
        "a.-b",
        "q.io/a_-b",
        "q.io/a._b",
    ] {
        agrees(text);
    }
}

proptest! {
    #[test]
    fn any_text_is_read_as_the_definitions_say(text in "[*]?[.]?[aB0.-]{0,4}(:[0-9a]{0,2})?(/[aB0._-]{0,5}){0,2}") {
        agrees(&text);
    }
}

#[test]
fn scopes_lie_in_scopes() {
    for (place, scope, lies_in) in [
        ("q.io/ns1/ns2", "q.io", true),
        ("q.io:443", "q.io", false),
        ("q.io2", "q.io", false),
        ("q.io.example.com", "q.io", false),
        ("foo.example.com", "*.example.com", true),
        ("foo.example.com/bar", "*.example.com", true),
        ("foo.example.com:443/bar/baz", "*.example.com", true),
        ("*.foo.example.com", "*.example.com", true),
        ("example.com", "*.example.com", false),
        ("bar/example.foo", "*.foo", false),
        ("example/bar.foo:400", "*.foo", false),
    ] {
        assert_eq!(enclosing(place).any(|text| text == scope), lies_in, "{place} in {scope}");
    }
}
