//! Regular expressions and shell patterns against Go's own.

use fairlead_domain::keyring::glob_matches;
use fairlead_domain::selector::{FilterSet, ImageFilter, Pattern, PatternSet};
use serde::Serialize;

use crate::oracle;
use crate::random::{Random, cases};
use crate::selectors::Answer;

#[derive(Debug, Serialize)]
struct Question {
    pattern: String,
    texts: Vec<String>,
}

const ATOMS: [&str; 60] = [
    "a",
    "b",
    "k",
    "s",
    "S",
    "1",
    "_",
    "-",
    "/",
    ":",
    "@",
    " ",
    ".",
    ".",
    ".*",
    ".+",
    r"\.",
    r"\d",
    r"\D",
    r"\w",
    r"\W",
    r"\s",
    r"\S",
    r"\b",
    r"\B",
    "^",
    "$",
    r"\A",
    r"\z",
    "[a-c]",
    "[^a-c]",
    "[[:alpha:]]",
    "[^[:digit:]_]",
    "[[:^space:]]",
    r"[\d\-x]",
    r"[\w.]",
    r"\pL",
    r"\PN",
    r"\p{Lu}",
    r"\p{^Greek}",
    r"[\p{L}\d]",
    r"\Qa.b\E",
    r"\Q",
    r"\x41",
    r"\x{61}",
    r"\101",
    r"\0",
    r"\n",
    r"\t",
    "nginx",
    "docker.io/",
    "é",
    "\u{17f}",
    "\u{212a}",
    "[]a]",
    "[^]]",
    "[a-]",
    "{",
    "}",
    "]",
];
const BROKEN: [&str; 34] = [
    "(",
    ")",
    "[",
    "[b-a]",
    "[[:foo:]]",
    "[[:",
    r"\",
    r"\1",
    r"\8",
    r"\C",
    r"\E",
    r"\Z",
    r"\pX",
    r"\p{Nope}",
    r"\x",
    r"\x4",
    r"\x{}",
    r"\x{110000}",
    r"\xzz",
    "(?",
    "(?x)",
    "(?=a)",
    "(?<a",
    "(?P<a b>)",
    "(?P=a)",
    "(?-)",
    "(?i-)",
    "**",
    "{2,1}",
    "{1001}",
    "{1,1001}",
    "a{1000}{2}",
    r"\y",
    "[a",
];
const REPEATS: [&str; 16] = [
    "*", "+", "?", "*?", "+?", "??", "{2}", "{1,2}", "{0}", "{0,}", "{2,}?", "{,2}", "{01}", "{ 1}", "{1",
    "{3,3}",
];

fn pattern(random: &mut Random, depth: usize) -> String {
    let mut text = String::new();
    for _ in 0..random.below(5) {
        match random.below(12) {
            0 | 1 if depth > 0 => {
                let open = random.pick(&[
                    "(", "(?:", "(?i:", "(?P<n>", "(?<m_1>", "(?s:", "(?m:", "(?-i:", "(?is-m:", "(?U:",
                ]);
                let inside = pattern(random, depth - 1);
                text = format!("{text}{open}{inside})");
            }
            2 if depth > 0 => {
                let (one, other) = (pattern(random, depth - 1), pattern(random, depth - 1));
                text = format!("{text}{one}|{other}");
            }
            3 if random.once_in(6) => text.push_str(random.pick(&BROKEN)),
            4 if random.once_in(3) => {
                text.push_str(random.pick(&["(?i)", "(?m)", "(?s)", "(?U)", "(?-s)", "(?)"]));
            }
            _ => text.push_str(random.pick(&ATOMS)),
        }
        if random.once_in(3) {
            text.push_str(random.pick(&REPEATS));
        }
    }
    text
}

fn text(random: &mut Random) -> String {
    match random.below(6) {
        0 => random
            .pick(&["", "a", "nginx", "docker.io/library/nginx:1", "a.b", "\n", "ab\nba", "K", "S"])
            .to_owned(),
        1 => random.text("abkKsS1 \n._-/:@", 0, 6),
        _ => random.text("aabbk1.", 0, 5),
    }
}

#[test]
fn read_and_matched_as_go_does() {
    let mut random = Random::new();
    let questions: Vec<Question> = (0..cases(10_000))
        .map(|_| {
            let written = pattern(&mut random, 3);
            let written =
                if random.once_in(6) { random.mutated(&written, r"ab()[]{}*+?|\^$-:1,pQE") } else { written };
            let pattern = if written.len() > 1000 { String::new() } else { written };
            Question { pattern, texts: (0..8).map(|_| text(&mut random)).collect() }
        })
        .collect();
    let answers: Vec<Answer> = oracle::names().ask(&["regex"], &questions);
    let (mut accepted, mut matched) = (0, 0);
    for (question, answer) in questions.iter().zip(answers) {
        let context = format!("{question:?} (seed {}): expected {answer:?}", random.seed());
        match Pattern::parse(&question.pattern) {
            Err(error) => assert!(!answer.error.is_empty(), "{context}, refused: {error}"),
            Ok(pattern) => {
                assert!(answer.error.is_empty(), "{context}, accepted");
                accepted += 1;
                let ours: Vec<bool> = question.texts.iter().map(|text| pattern.matches(text)).collect();
                matched += ours.iter().filter(|matched| **matched).count();
                assert_eq!(ours, answer.matched, "{context}");
            }
        }
    }
    assert!(accepted > questions.len() / 3 && accepted < questions.len() * 9 / 10, "{accepted}");
    assert!(matched > accepted / 3, "{matched} of {accepted}");
}

#[test]
fn unicode_classes_hold_the_same_ascii_characters() {
    let names: Vec<Vec<String>> = oracle::names().ask(&["classes"], &["all"]);
    let mut names = names.concat();
    names.extend(
        ["Any", "assigned", "ASCII", "Lc", "lu", "cased letter", "Dash-Punctuation", "Nope", ""]
            .map(str::to_owned),
    );
    let ascii: Vec<String> = (0..128u8).map(|byte| char::from(byte).to_string()).collect();
    let questions: Vec<Question> = names
        .iter()
        .flat_map(|name| {
            [format!(r"\p{{{name}}}"), format!(r"(?i)\P{{{name}}}"), format!(r"[^\p{{^{name}}}]")]
        })
        .map(|pattern| Question { pattern, texts: ascii.clone() })
        .collect();
    let answers: Vec<Answer> = oracle::names().ask(&["regex"], &questions);
    for (question, answer) in questions.iter().zip(answers) {
        let pattern = Pattern::parse(&question.pattern);
        // Some releases of Go refuse scripts of several words, others know them; we always do.
        if question.pattern.contains(['_']) && !answer.error.is_empty()
            || question.pattern.contains("SignWriting")
        {
            assert!(pattern.is_ok(), "{}", question.pattern);
            continue;
        }
        assert_eq!(pattern.is_ok(), answer.error.is_empty(), "{}: {}", question.pattern, answer.error);
        if let Ok(pattern) = pattern {
            let ours: Vec<bool> = ascii.iter().map(|text| pattern.matches(text)).collect();
            assert_eq!(ours, answer.matched, "{}", question.pattern);
        }
    }
}

#[test]
fn many_at_once_match_as_each_alone() {
    let mut random = Random::new();
    for _ in 0..cases(40) {
        let patterns: Vec<Pattern> =
            (0..120).filter_map(|_| Pattern::parse(&pattern(&mut random, 2)).ok()).collect();
        let mut set = PatternSet::default();
        let ids: Vec<_> = patterns.iter().map(|pattern| set.insert(pattern)).collect();
        set.build();
        let texts: Vec<String> = (0..3).map(|_| text(&mut random)).collect();
        let matched = set.matches(texts.iter().map(String::as_str));
        for (pattern, id) in patterns.iter().zip(&ids) {
            let alone = texts.iter().any(|text| pattern.matches(text));
            assert_eq!(matched.contains(*id), alone, "{pattern} on {texts:?} (seed {})", random.seed());
        }

        let sources: Vec<String> = patterns.iter().map(ToString::to_string).collect();
        let filters: Vec<ImageFilter> = sources
            .chunks(4)
            .map(|chunk| {
                let split = random.below(chunk.len() + 1);
                ImageFilter::legacy(&chunk[..split], &chunk[split..]).unwrap()
            })
            .collect();
        let together: Vec<usize> =
            FilterSet::new(&filters).matching(texts.iter().map(String::as_str)).iter().collect();
        let alone: Vec<usize> = filters
            .iter()
            .enumerate()
            .filter(|(_, filter)| filter.matches(texts.iter().map(String::as_str)))
            .map(|(number, _)| number)
            .collect();
        assert_eq!(together, alone, "{filters:?} on {texts:?} (seed {})", random.seed());
    }
}

#[test]
fn shell_patterns_match_as_go_does() {
    let mut random = Random::new();
    let questions: Vec<[String; 2]> = (0..cases(10_000))
        .map(|_| [random.text(r"aab**?[]^-\é/", 0, 8), random.text("aab*é/-", 0, 6)])
        .collect();
    let answers: Vec<bool> = oracle::names().ask(&["glob"], &questions);
    let mut matched = 0;
    for ([pattern, text], expected) in questions.iter().zip(answers) {
        let ours = glob_matches(pattern.as_bytes(), text.as_bytes());
        assert_eq!(ours, expected, "{pattern} on {text} (seed {})", random.seed());
        matched += usize::from(ours);
    }
    assert!(matched > questions.len() / 100, "{matched}");
}
