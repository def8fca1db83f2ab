use std::collections::BTreeMap;

use super::*;

fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn matches(selector: &str, pairs: &[(&str, &str)]) -> bool {
    Selector::parse(selector).unwrap().matches(&labels(pairs))
}

#[test]
fn every_form_of_requirement() {
    let app = [("app", "web"), ("size", "7"), ("empty", "")];
    for (selector, expected) in [
        ("", true),
        ("app", true),
        ("!app", false),
        ("!other", true),
        ("app=web", true),
        ("app==web", true),
        ("app=db", false),
        ("app!=db", true),
        ("app!=web", false),
        ("app in (db, web)", true),
        ("app notin (db,web)", false),
        ("size>6", true),
        ("size>7", false),
        ("size<8", true),
        ("app>1", false),
        ("empty=", true),
        ("empty in ()", true),
        ("empty in (,a)", true),
        ("app=web,size>6", true),
        ("app=web,size>7", false),
        (" app \t= web , size ", true),
    ] {
        assert_eq!(matches(selector, &app), expected, "{selector}");
    }
}

#[test]
fn an_absent_key_differs_from_everything() {
    assert!(matches("k!=v", &[]));
    assert!(matches("k notin (v)", &[]));
    assert!(matches("k notin ()", &[]));
    assert!(!matches("k=", &[]));
    assert!(!matches("k in ()", &[]));
    assert!(!matches("k<5", &[]));
}

#[test]
fn the_operators_words_are_also_keys_and_values() {
    assert!(matches("in in (in, notin)", &[("in", "notin")]));
    assert!(matches("notin", &[("notin", "")]));
    assert!(!matches("!in", &[("in", "")]));
}

#[test]
fn numbers_in_annotations_may_be_signed() {
    assert!(matches("n<1", &[("n", "-5")]));
    assert!(matches("n>1", &[("n", "+5")]));
    assert!(!matches("n>1", &[("n", "99999999999999999999")]));
}

#[test]
fn refusals_point_at_the_place() {
    for (selector, message) in [
        ("k===v", "label selector \"k===v\": character 4: found '=', expected a value"),
        ("k=v,", "label selector \"k=v,\": character 5: found the end, expected a key, or '!' and a key"),
        ("k in v", "label selector \"k in v\": character 6: found \"v\", expected '(' and a list of values"),
        (
            "k in (a b)",
            "label selector \"k in (a b)\": character 9: found \"b\", expected a value, ',' or ')'",
        ),
        ("k in (a", "label selector \"k in (a\": character 8: found the end, expected a value, ',' or ')'"),
        ("!k=v", "label selector \"!k=v\": character 3: found '=', expected ',' or the end"),
        (
            "a b",
            "label selector \"a b\": character 3: found \"b\", expected '=', '==', '!=', 'in', 'notin', '>', '<', ',' or the end",
        ),
        (
            "k>x",
            "label selector \"k>x\": character 3: the value \"x\" is not an integer, which '>' and '<' compare",
        ),
        (
            "k=\0v",
            "label selector \"k=\\0v\": character 3: found a NUL character, expected text without NUL characters",
        ),
    ] {
        assert_eq!(Selector::parse(selector).unwrap_err().to_string(), message);
    }
    let long = "x".repeat(64);
    assert!(matches!(Selector::parse(&format!("k={long}")), Err(SelectorError::Value { position: 3, .. })));
    assert!(matches!(Selector::parse(&long), Err(SelectorError::Key { position: 1, .. })));
    assert!(Selector::parse(&format!("{}/k", "a.".repeat(126) + "ab")).is_err());
    for key in ["a/b/c", "/k", "k/", "A/k", "-k", "k-", "é"] {
        assert!(matches!(Selector::parse(key), Err(SelectorError::Key { .. })), "{key}");
    }
}

#[test]
fn printed_selectors_mean_the_same() {
    for selector in ["", "a,!b,c in (x,y),d notin (,z),e>1,f<2,g=h,i!=j"] {
        let parsed = Selector::parse(selector).unwrap();
        assert_eq!(Selector::parse(&parsed.to_string()), Ok(parsed));
    }
}
