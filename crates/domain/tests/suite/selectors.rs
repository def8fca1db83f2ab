//! Label selectors against apimachinery.

use std::collections::BTreeMap;

use fairlead_domain::selector::Selector;
use serde::{Deserialize, Serialize};

use crate::oracle;
use crate::random::{Random, cases};

#[derive(Debug, Serialize)]
struct Question {
    selector: String,
    sets: Vec<BTreeMap<String, String>>,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
pub(crate) struct Answer {
    pub(crate) error: String,
    #[serde(rename = "match")]
    pub(crate) matched: Vec<bool>,
}

const KEYS: [&str; 8] = ["app", "a", "in", "notin", "example.com/role", "a.b/c", "k_1", "n"];
const VALUES: [&str; 9] = ["web", "db", "", "in", "notin", "7", "10", "a.b-c_d", "0"];

fn key(random: &mut Random) -> String {
    match random.below(20) {
        0 => random.text("aZ0-_./", 0, 10),
        1 => random.pick(&["a/b/c", "/k", "k/", "A.b/c", "-a", "a-", "x..y/k", "é", "a b"]).to_owned(),
        2 if random.once_in(4) => format!("{}/k", "a".repeat(250 + random.below(6))),
        3 if random.once_in(4) => "k".repeat(62 + random.below(3)),
        _ => random.pick(&KEYS).to_owned(),
    }
}

fn value(random: &mut Random) -> String {
    match random.below(20) {
        0 => random.text("aZ0-_.", 0, 8),
        1 if random.once_in(3) => "v".repeat(62 + random.below(3)),
        2 if random.once_in(3) => {
            random.pick(&["-1", "+1", "a/b", "é", "9223372036854775807", "9223372036854775808"]).to_owned()
        }
        _ => random.pick(&VALUES).to_owned(),
    }
}

fn blank(random: &mut Random) -> &'static str {
    random.pick(&["", "", "", " ", "  ", "\t", "\n"])
}

fn requirement(random: &mut Random) -> String {
    let key = key(random);
    match random.below(10) {
        0 => key,
        1 => format!("!{}{key}", blank(random)),
        2..=6 => {
            let operators = ["=", "==", "!=", ">", "<", "===", "!", "=!", "<="];
            let sound = if random.once_in(8) { 9 } else { 5 };
            let operator = random.pick(&operators[..sound]);
            format!("{key}{}{operator}{}{}", blank(random), blank(random), value(random))
        }
        _ => {
            let count = random.below(4);
            let values: Vec<String> =
                (0..count).map(|_| format!("{}{}", blank(random), value(random))).collect();
            format!("{key} {} {}({})", random.pick(&["in", "notin"]), blank(random), values.join(","))
        }
    }
}

fn selector(random: &mut Random) -> String {
    let count = if random.once_in(20) { 0 } else { 1 + random.below(3) };
    let separator = format!("{},{}", blank(random), blank(random));
    let text = (0..count).map(|_| requirement(random)).collect::<Vec<_>>().join(&separator);
    match random.below(5) {
        0 => random.mutated(&text, "ab=!(),<> innot7/.-_é"),
        1 if random.once_in(4) => random.text("ab=!(),<> in", 0, 14),
        _ => text,
    }
}

fn labels(random: &mut Random) -> BTreeMap<String, String> {
    let extra = ["-3", "+8", "99999999999999999999", "has space"];
    let mut pair = || {
        let value = if random.once_in(6) { random.pick(&extra) } else { random.pick(&VALUES) };
        (random.pick(&KEYS).to_owned(), value.to_owned())
    };
    let mut pairs = vec![pair(), pair(), pair()];
    pairs.truncate(random.below(4));
    pairs.into_iter().collect()
}

#[test]
fn parsed_and_matched_as_apimachinery_does() {
    let mut random = Random::new();
    let questions: Vec<Question> = (0..cases(10_000))
        .map(|_| Question {
            selector: selector(&mut random),
            sets: (0..5).map(|_| labels(&mut random)).collect(),
        })
        .collect();
    let answers: Vec<Answer> = oracle::names().ask(&["selector"], &questions);
    let (mut accepted, mut matched) = (0, 0);
    for (question, answer) in questions.iter().zip(answers) {
        let context = format!("{question:?} (seed {}): expected {answer:?}", random.seed());
        match Selector::parse(&question.selector) {
            Err(error) => assert!(!answer.error.is_empty(), "{context}, refused: {error}"),
            Ok(selector) => {
                assert!(answer.error.is_empty(), "{context}, accepted");
                accepted += 1;
                let ours: Vec<bool> = question.sets.iter().map(|set| selector.matches(set)).collect();
                matched += ours.iter().filter(|matched| **matched).count();
                assert_eq!(ours, answer.matched, "{context}");
                let printed = Selector::parse(&selector.to_string()).unwrap();
                assert!(
                    question.sets.iter().all(|set| printed.matches(set) == selector.matches(set)),
                    "{context}"
                );
            }
        }
    }
    assert!(accepted > questions.len() / 3 && accepted < questions.len() * 9 / 10, "{accepted}");
    assert!(matched > accepted / 2, "{matched} of {accepted}");
}
