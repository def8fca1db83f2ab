//! References against distribution/reference, the library of containerd and the kubelet.

use fairlead_domain::reference::{AnyReference, Reference, clean_join};
use serde::Deserialize;

use crate::oracle;
use crate::random::{Random, cases};

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct Answer {
    error: String,
    text: String,
    domain: String,
    path: String,
    tag: String,
    digest: String,
    pull: String,
    any: String,
}

const EDITS: &str = "abzAZ059._-:/@[]{}%é \t\0#~";

fn host(random: &mut Random) -> String {
    let known = [
        "docker.io",
        "index.docker.io",
        "localhost",
        "ghcr.io",
        "r.example.com",
        "UPPER",
        "Docker.IO",
        "reg",
        "my_reg.lan",
        "a_b",
        "10.0.0.1",
        "[::1]",
        "[2001:DB8::ffff]",
        "[fe80::1%25en0]",
        "[]",
        "[:]",
        "xn--bcher-kva.example",
        "a-.b",
        "-a.b",
        "a..b",
        ".a",
        "a.",
        "",
        "library",
        "registry-1.docker.io",
        "LOCALHOST",
        "localhost.localdomain",
    ];
    let name =
        if random.once_in(3) { random.text("abcXYZ019-._", 1, 12) } else { random.pick(&known).to_owned() };
    match random.below(4) {
        0 => format!("{name}:{}", random.text("0123456789", 1, 6)),
        1 if random.once_in(4) => format!("{name}:{}", random.text("0a", 0, 3)),
        _ => name,
    }
}

fn segment(random: &mut Random) -> String {
    match random.below(8) {
        0 => random.text("abcz09", 1, 5),
        1 => random.text("abz09._-", 1, 8),
        2 => random.pick(&["nginx", "library", "a__b", "a--b", "a.b", "a_b", "a-b", "0"]).to_owned(),
        3 if random.once_in(3) => {
            random.pick(&["", "a___b", "a..b", "a._b", "-a", "a-", "A", ".", ".."]).to_owned()
        }
        4 if random.once_in(10) => "x".repeat(random.below(300)),
        _ => random.text("abcdefz0123456789", 1, 10),
    }
}

fn tag(random: &mut Random) -> String {
    match random.below(6) {
        0 => random.text("abcXYZ019._-", 0, 20),
        1 if random.once_in(4) => random.text("aB3._-", 120, 132),
        2 => "latest".to_owned(),
        _ => random.text("v0123456789.", 1, 8),
    }
}

fn digest(random: &mut Random) -> String {
    let (algorithm, length) = [
        ("sha256", 64),
        ("sha384", 96),
        ("sha512", 128),
        ("sha1", 40),
        ("SHA256", 64),
        ("sha256+b64", 64),
        ("", 64),
    ][if random.once_in(3) { random.below(7) } else { random.below(3) }];
    let length = if random.once_in(8) { length + random.below(3) - 1 } else { length };
    let alphabet = if random.once_in(8) { "0123456789abcdefABCDEFg" } else { "0123456789abcdef" };
    format!("{algorithm}:{}", random.text(alphabet, length, length))
}

fn reference(random: &mut Random) -> String {
    if random.once_in(60) {
        let length = 63 + random.below(3);
        return random.text("0123456789abcdef", length, length);
    }
    if random.once_in(40) {
        return digest(random);
    }
    let mut pieces: Vec<String> = (0..=random.below(3)).map(|_| segment(random)).collect();
    if random.below(3) > 0 {
        pieces.insert(0, host(random));
    }
    let mut text = pieces.join("/");
    if random.below(2) == 0 {
        text = format!("{text}:{}", tag(random));
    }
    if random.once_in(3) {
        text = format!("{text}@{}", digest(random));
    }
    text
}

fn question(random: &mut Random) -> String {
    match random.below(10) {
        0 => random.text("ab1.:/@-_[]A", 0, 24),
        1 => random.text(EDITS, 0, 16),
        2..=4 => {
            let text = reference(random);
            random.mutated(&text, EDITS)
        }
        _ => reference(random),
    }
}

#[test]
fn normalised_as_distribution_does() {
    let mut random = Random::new();
    let mut questions: Vec<String> = [
        "nginx",
        "nginx:1",
        "a/b",
        "localhost/x",
        "reg:5000/x",
        "index.docker.io/x",
        "HOST/x",
        "Repo",
        "",
        "my_reg.lan/x",
    ]
    .map(str::to_owned)
    .to_vec();
    for length in [246, 247, 248, 254, 255, 256] {
        for host in ["", "r.io/", "docker.io/", "my_reg.lan/", "docker.io/library/"] {
            questions.push(format!("{host}{}", "a".repeat(length)));
        }
    }
    questions.extend((0..cases(20_000)).map(|_| question(&mut random)));
    let answers: Vec<Answer> = oracle::names().ask(&["reference"], &questions);

    let mut accepted = 0;
    for (written, answer) in questions.iter().zip(answers) {
        let context = format!("{written:?} (seed {}): expected {answer:?}", random.seed());
        let any = AnyReference::parse(written).map_or(String::new(), |any| any.to_string());
        assert_eq!(any, answer.any, "{context}");
        let ours = match Reference::parse(written) {
            Ok(ours) => ours,
            Err(error) => {
                assert!(!answer.error.is_empty(), "{context}, refused: {error}");
                assert!(
                    (1..=written.chars().count() + 1).contains(&error.position()),
                    "{context}, refused: {error}"
                );
                continue;
            }
        };
        accepted += 1;
        assert_eq!(ours.as_str(), answer.text, "{context}");
        assert_eq!(ours.tag().unwrap_or_default(), answer.tag, "{context}");
        assert_eq!(
            ours.digest().map_or(String::new(), |digest| digest.to_string()),
            answer.digest,
            "{context}"
        );
        assert_eq!(ours.pulled().as_str(), answer.pull, "{context}");
        // The library leaves the host of `my_host.lan/app` in the path; runtimes dial it all the same.
        if answer.domain.is_empty() {
            assert_eq!(ours.name(), answer.path, "{context}");
        } else {
            assert_eq!((ours.host().as_str(), ours.path()), (&*answer.domain, &*answer.path), "{context}");
        }
        assert_eq!(Reference::parse(ours.as_str()).unwrap(), ours, "{context}");
    }
    let refused = questions.len() - accepted;
    assert!(
        accepted > questions.len() / 5 && refused > questions.len() / 5,
        "{accepted} of {}",
        questions.len()
    );
}

#[test]
fn joined_as_go_does() {
    let mut random = Random::new();
    let element = |random: &mut Random| random.text("a./", 0, 8);
    let questions: Vec<Vec<String>> =
        (0..cases(5_000)).map(|_| (0..random.below(4)).map(|_| element(&mut random)).collect()).collect();
    let answers: Vec<String> = oracle::names().ask(&["join"], &questions);
    for (elements, expected) in questions.iter().zip(answers) {
        let borrowed: Vec<&str> = elements.iter().map(String::as_str).collect();
        assert_eq!(clean_join(&borrowed), expected, "{elements:?} (seed {})", random.seed());
    }
}
