//! The keyring against the kubelet's own.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fairlead_domain::keyring::{IdentityKey, Keyring, SecretKind};
use fairlead_domain::reference::Reference;
use serde::{Deserialize, Serialize};

use crate::oracle;
use crate::random::{Random, cases};

#[derive(Debug, Serialize)]
struct Question {
    secrets: Vec<Secret>,
    images: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Secret {
    #[serde(rename = "type")]
    kind: String,
    /// Base64, as Go reads bytes from JSON.
    data: String,
    #[serde(skip)]
    config: String,
}

#[derive(Debug, Deserialize, Default)]
#[serde(default)]
struct Answer {
    error: String,
    found: Vec<Vec<(String, String)>>,
}

const HOSTS: [&str; 24] = [
    "docker.io",
    "index.docker.io",
    "registry-1.docker.io",
    "r.example.com",
    "s.example.com",
    "*.example.com",
    "*.*.com",
    "r*.example.com",
    "*",
    "?.example.com",
    "[rs].example.com",
    "R.example.com",
    "localhost",
    "127.0.0.1",
    "[::1]",
    "[2001:db8::1]",
    "[:::]",
    "[fe80::1%25eth0]",
    "example.com",
    "UPPER",
    "my_reg.lan",
    "r.example.com.",
    "b\u{fc}cher.example",
    "",
];
/// Places that the images below are found in.
const COMMON: [&str; 8] = [
    "docker.io",
    "index.docker.io",
    "r.example.com",
    "*.example.com",
    "r.example.com/team",
    "r.example.com:5000",
    "localhost",
    "*.*.*",
];
const PATHS: [&str; 16] = [
    "",
    "",
    "",
    "/",
    "/v1/",
    "/v2/",
    "/v1",
    "/v2/team",
    "/team",
    "/team/",
    "/team/app",
    "/te",
    "/library",
    "/%74eam",
    "//",
    "/v1/v2/team",
];

fn location(random: &mut Random) -> String {
    if random.once_in(2) {
        return random.pick(&COMMON).to_owned();
    }
    let scheme = random.pick(&["", "", "", "https://", "http://", "HTTPS://", "ftp://"]);
    let user =
        if random.once_in(15) { random.pick(&["me@", "me:pw@", "m%40:p@", "m e@", "%zz@"]) } else { "" };
    let ports = ["", "", "", ":5000", ":443", ":", ":x", ":5000:1"];
    let sound = if random.once_in(6) { 8 } else { 5 };
    let port = random.pick(&ports[..sound]);
    let tail =
        if random.once_in(15) { random.pick(&["?x=1", "#frag", "?", "#%zz", "%", "%41", " "]) } else { "" };
    let text = format!("{scheme}{user}{}{port}{}{tail}", random.pick(&HOSTS), random.pick(&PATHS));
    if random.once_in(10) { random.mutated(&text, r"ar.*?[]/:@%#\é 1") } else { text }
}

fn image(random: &mut Random) -> String {
    let hosts = [
        "",
        "",
        "docker.io/",
        "index.docker.io/",
        "r.example.com/",
        "r.example.com/",
        "s.example.com/",
        "r.example.com:5000/",
        "rx.example.com/",
        "localhost/",
        "localhost:5000/",
        "127.0.0.1:5000/",
        "[::1]/",
        "[::1]:5000/",
        "[2001:db8::1]:443/",
        "[:::]:5000/",
        "UPPER/",
        "example.com/",
        "my_reg.lan/",
        "R.example.com/",
        "registry-1.docker.io/",
        "a.b.com/",
    ];
    let paths = ["nginx", "team/app", "teams/app", "library/nginx", "te", "team", "v1/team", "team/app/sub"];
    format!("{}{}{}", random.pick(&hosts), random.pick(&paths), random.pick(&["", ":1", ":latest"]))
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

/// One entry, mostly sound; the user tells entries apart.
fn entry(random: &mut Random, user: &str) -> String {
    let auth = STANDARD.encode(format!("{user}:p:{}", random.text("xé", 0, 2)));
    let auth = match random.below(12) {
        0 => auth.trim_end_matches('=').to_owned(),
        1 => format!("{auth}\n"),
        2 if random.once_in(3) => random.text("abcd=+/-_ \n", 0, 8),
        3 if random.once_in(3) => auth.replace('=', ""),
        _ => auth,
    };
    let username = quoted(user);
    match random.below(40) {
        0 => "null".to_owned(),
        1 => "{}".to_owned(),
        2 => random
            .pick(&["[]", "1", "\"x\"", "{\"auth\":1}", "{\"email\":1}", "{\"username\":{}}", "{\"x\":[{}]}"])
            .to_owned(),
        3 => format!(r#"{{"username":{username},"auth":""}}"#),
        4 => format!(r#"{{"username":{username},"username":null,"password":"a","PASSWORD":"b"}}"#),
        5 => format!(r#"{{"Username":{username},"pa\u017fsword":"\ud800x\ud83d\ude00"}}"#),
        6 => format!(r#"{{"auth":{},"identitytoken":"t","email":null}}"#, quoted(&auth)),
        7..=20 => format!(r#"{{"username":{username},"password":"pw","email":"a@b"}}"#),
        _ => format!(r#"{{"username":"ignored","auth":{}}}"#, quoted(&auth)),
    }
}

fn secret(random: &mut Random, number: usize) -> Secret {
    let entries: Vec<String> = (0..random.below(5))
        .map(|index| {
            let user = format!("u{number}{index}");
            format!("{}:{}", quoted(&location(random)), entry(random, &user))
        })
        .collect();
    let entries = format!("{{{}}}", entries.join(","));
    let legacy = random.once_in(3);
    let config = match (legacy, random.below(30)) {
        (true, _) => entries,
        (false, 0) => format!(r#"{{"AUTHS":{entries},"auths":null}}"#),
        (false, 1) => format!(r#"{{"auths":{{"r.example.com":{{"username":"twice"}}}},"auths":{entries}}}"#),
        (false, 2) => format!(r#"{{"auths":{entries},"HttpHeaders":{{"a":1}}}}"#),
        (false, 3) => format!(r#"{{"auths":{entries},"httpheaders":{{"a":"b","c":null}},"credsStore":"x"}}"#),
        (false, 4) => "null".to_owned(),
        (false, _) => format!(r#"{{"auths":{entries}}}"#),
    };
    let config = if random.once_in(40) { random.mutated(&config, "{}[]\",:nul1\\ ") } else { config };
    let config = if random.once_in(40) { String::new() } else { config };
    let kind = match (random.below(20), legacy) {
        (0, _) => "Opaque",
        (1, _) | (_, true) => "kubernetes.io/dockercfg",
        _ => "kubernetes.io/dockerconfigjson",
    };
    Secret { kind: kind.to_owned(), data: STANDARD.encode(&config), config }
}

#[test]
fn found_as_the_kubelet_does() {
    let mut random = Random::new();
    let questions: Vec<Question> = (0..cases(6_000))
        .map(|_| {
            let secrets = (0..=random.below(3)).map(|number| secret(&mut random, number)).collect();
            // The kubelet looks up the normalised name without tag and digest.
            let images =
                (0..6).map(|_| Reference::parse(&image(&mut random)).unwrap().name().to_owned()).collect();
            Question { secrets, images }
        })
        .collect();
    let answers: Vec<Answer> = oracle::keyring().ask(&[], &questions);

    let (mut refused, mut found, mut several) = (0, 0, 0);
    for (question, answer) in questions.iter().zip(answers) {
        let context = format!("{question:#?} (seed {}): expected {answer:?}", random.seed());
        let mut keyring = Keyring::new(IdentityKey::new([1; 32]));
        let added = question.secrets.iter().try_for_each(|secret| match SecretKind::of_type(&secret.kind) {
            Some(kind) => keyring.add(kind, secret.config.as_bytes()),
            None => Ok(()),
        });
        assert_eq!(added.is_err(), !answer.error.is_empty(), "{added:?} for {context}");
        if added.is_err() {
            refused += 1;
            continue;
        }
        for (image, expected) in question.images.iter().zip(&answer.found) {
            let repository = Reference::parse(image).unwrap().repository();
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            let ours: Vec<(String, String)> = keyring
                .lookup(&repository)
                .iter()
                .map(|credential| (text(credential.username()), text(credential.password())))
                .collect();
            assert_eq!(&ours, expected, "{image} in {context}");
            found += usize::from(!ours.is_empty());
            several += usize::from(ours.len() > 1);
        }
    }
    let total = questions.len();
    assert!(refused > total / 20 && refused < total / 2, "{refused} of {total} refused");
    assert!(found > total / 2 && several > total / 10, "{found} found, {several} with several candidates");
}
