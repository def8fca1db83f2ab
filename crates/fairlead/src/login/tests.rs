//! Logins as the tools write them, found as the tools find them; helpers are small scripts on a PATH of their own.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fairlead_domain::reference::Reference;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

/// A person's home and programs.
struct Home {
    directory: TempDir,
    environment: Environment,
}

const DOCKER: &str = ".docker/config.json";
const PODMAN: &str = ".config/containers/auth.json";

impl Home {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let programs = directory.path().join("bin");
        fs::create_dir(&programs).unwrap();
        let environment = Environment {
            home: Some(directory.path().to_owned()),
            path: format!("{}:/usr/bin:/bin", programs.display()).into(),
            ..Environment::default()
        };
        Self { directory, environment }
    }

    fn path(&self, file: &str) -> PathBuf {
        self.directory.path().join(file)
    }

    fn write(&self, file: &str, content: &str) -> PathBuf {
        let path = self.path(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    fn has(self, file: &str, content: &Value) -> Self {
        self.write(file, &content.to_string());
        self
    }

    /// Written by another process: a file that this one has open for writing cannot be run by its children.
    fn helper(self, name: &str, script: &str) -> Self {
        let path = self.path(&format!("bin/docker-credential-{name}"));
        let status = Command::new("sh")
            .args(["-c", r#"printf '#!/bin/sh\n%s\n' "$1" > "$2" && chmod +x "$2""#, "sh", script])
            .arg(path)
            .status();
        assert!(status.unwrap().success());
        self
    }

    fn logins(&self) -> Logins {
        Logins::load_with(&self.environment, IdentityKey::new([3; 32]), Duration::from_secs(5)).unwrap()
    }

    async fn found(&self, image: &str) -> Vec<String> {
        let found = self.logins().find(&repository(image)).await;
        assert_eq!(found.problems, [], "{image}");
        pairs(&found)
    }
}

fn repository(image: &str) -> Repository {
    Reference::parse(image).unwrap().repository()
}

fn pairs(found: &FoundLogins) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let pair = |login: &Credential| format!("{}:{}", text(login.username()), text(login.password()));
    found.credentials.iter().map(pair).collect()
}

fn auth(pair: &str) -> Value {
    json!({ "auth": STANDARD.encode(pair) })
}

#[tokio::test]
async fn what_docker_writes() {
    let home = Home::new().has(
        DOCKER,
        &json!({
            "auths": {
                "https://index.docker.io/v1/": auth("ada:hub:with:colons"),
                "r.example.com:5000": auth("ada:padded\0\0"),
                "https://plain.example.com": {"username": "ada", "password": "plain"},
                "token.example.com": {"auth": STANDARD.encode("0000:"), "identitytoken": "identity"},
                "empty.example.com": {},
                "null.example.com": null,
            },
            "HttpHeaders": {"User-Agent": "docker"},
            "psFormat": "table",
        }),
    );
    assert_eq!(home.logins().problems(), []);
    assert_eq!(home.found("nginx").await, ["ada:hub:with:colons"]);
    assert_eq!(home.found("r.example.com:5000/a").await, ["ada:padded"]);
    assert_eq!(home.found("plain.example.com/a").await, ["ada:plain"]);
    assert_eq!(home.found("token.example.com/a").await, ["<token>:identity"]);
    for image in ["empty.example.com/a", "null.example.com/a", "r.example.com/a", "other.example.com/a"] {
        assert!(home.found(image).await.is_empty(), "{image}");
    }
    assert!(home.found("localhost/a").await.is_empty(), "Docker Hub's password is for Docker Hub");
}

#[tokio::test]
async fn what_docker_reads_though_nothing_writes_it() {
    let home = Home::new().helper("caps", r#"echo '{"username":"ada","SECRET":"h","ServerURL":null}'"#);
    let auth = STANDARD.encode("ada:last");
    for content in [
        format!(r#"{{"auths":{{"x.example.com":{{}}}},"auths":{{"r.example.com":{{"auth":"{auth}"}}}}}}"#),
        format!(r#"{{"auths":{{"r.example.com":{{"auth":"{auth}"}}}},"auths":{{"x.example.com":{{}}}}}}"#),
        format!(r#"{{"auths":{{"r.example.com":{{"auth":"?","auth":"{auth}"}}}}}}"#),
        format!(r#"{{"Auths":{{"r.example.com":{{"AUTH":"{auth}","auth":null}}}},"credsStore":null}}"#),
        format!(r#"{{"auths":{{"r.example.com":{{"auth":"{auth}","email":"\ud800"}}}},"\udc00":1}}"#),
    ] {
        home.write(DOCKER, &content);
        assert_eq!(home.logins().problems(), [], "{content}");
        assert_eq!(home.found("r.example.com/a").await, ["ada:last"], "{content}");
    }
    home.write(DOCKER, r#"{"CREDHELPERS":{"r.example.com":"none"},"credHelpers":{"r.example.com":"caps"}}"#);
    assert_eq!(home.found("r.example.com/a").await, ["ada:h"]);
    home.write(DOCKER, "null");
    assert!(home.found("r.example.com/a").await.is_empty());
}

#[tokio::test]
async fn what_podman_writes() {
    let home = Home::new().has(
        PODMAN,
        &json!({"auths": {
            "docker.io": auth("ada:hub"),
            "r.example.com": auth("ada:whole"),
            "r.example.com/team/app": auth("bob:one"),
        }}),
    );
    assert_eq!(home.found("team/app").await, ["ada:hub"]);
    assert_eq!(home.found("r.example.com/other").await, ["ada:whole"]);
    assert_eq!(home.found("r.example.com/team/app").await, ["bob:one", "ada:whole"], "the closest first");
}

#[tokio::test]
async fn the_first_file_that_has_a_login_wins() {
    let mut home = Home::new()
        .has(PODMAN, &json!({"auths": {"a.example.com": auth("u:podman")}}))
        .has(
            DOCKER,
            &json!({"auths": {"a.example.com": auth("u:docker"), "b.example.com": auth("u:docker")}}),
        )
        .has(".dockercfg", &json!({"b.example.com": auth("u:old"), "c.example.com": auth("u:old")}))
        .has("run/containers/auth.json", &json!({"auths": {"d.example.com": auth("u:runtime")}}))
        .has("chosen.json", &json!({"auths": {"a.example.com": auth("u:chosen")}}));
    assert_eq!(home.found("a.example.com/x").await, ["u:podman"]);
    assert_eq!(home.found("b.example.com/x").await, ["u:docker"]);
    assert_eq!(home.found("c.example.com/x").await, ["u:old"]);
    assert!(home.found("d.example.com/x").await.is_empty());
    home.environment.runtime_directory = Some(home.path("run"));
    assert_eq!(home.found("d.example.com/x").await, ["u:runtime"]);
    home.environment.auth_file = Some(home.path("chosen.json"));
    assert_eq!(home.found("a.example.com/x").await, ["u:chosen"]);
    assert_eq!(home.found("b.example.com/x").await, ["u:docker"]);
    assert!(home.found("d.example.com/x").await.is_empty(), "a chosen file replaces the first");
}

#[tokio::test]
async fn helpers_are_asked_before_entries() {
    let answering = r#"read -r server; printf '{"Username":"%s","Secret":"%s"}' "$1" "$server""#;
    let home = Home::new()
        .has(
            DOCKER,
            &json!({
                "auths": {
                    "own.example.com": auth("u:file"),
                    "none.example.com": auth("u:file"),
                    "file.example.com": auth("u:file"),
                },
                "credsStore": "store",
                "credHelpers": {"own.example.com": "own", "none.example.com": "none", "file.example.com": ""},
            }),
        )
        .helper("store", answering)
        .helper("own", r#"echo '{"Username":"<token>","Secret":"identity"}'"#)
        .helper("none", "echo 'credentials not found in native keychain'; exit 1");
    assert_eq!(home.found("own.example.com/a").await, ["<token>:identity"]);
    assert_eq!(home.found("none.example.com/a").await, ["u:file"], "a helper without a login is passed over");
    assert_eq!(home.found("file.example.com/a").await, ["u:file"], "an empty name means the file itself");
    assert_eq!(home.found("other.example.com:5000/a").await, ["get:other.example.com:5000"]);
    assert_eq!(home.found("nginx").await, ["get:https://index.docker.io/v1/"]);
}

#[tokio::test]
async fn docker_hub_is_known_to_helpers_by_two_names() {
    let home = Home::new().has(PODMAN, &json!({"credHelpers": {"docker.io": "short"}})).helper(
        "short",
        r#"read -r server; [ "$server" = docker.io ] || { echo 'credentials not found in native keychain'; exit 1; }
           echo '{"Username":"ada","Secret":"short"}'"#,
    );
    assert_eq!(home.found("nginx").await, ["ada:short"]);
}

#[tokio::test]
async fn a_helper_is_asked_once() {
    let home = Home::new()
        .has(DOCKER, &json!({"credsStore": "counting"}))
        .helper("counting", r#"echo asked >> "$0.log"; echo '{"Username":"u","Secret":"p"}'"#);
    let logins = home.logins();
    let repositories: Vec<_> =
        ["a", "b", "c"].map(|name| repository(&format!("r.example.com/{name}"))).into();
    let found =
        futures::future::join_all(repositories.iter().map(|repository| logins.find(repository))).await;
    assert!(found.iter().all(|found| pairs(found) == ["u:p"]));
    let log = fs::read_to_string(home.path("bin/docker-credential-counting.log")).unwrap();
    assert_eq!(log.lines().count(), 1);
}

#[tokio::test]
async fn a_helper_that_fails_is_reported_and_tells_nothing() {
    for (script, expected) in [
        ("echo hunter2; exit 3", "exit status: 3"),
        ("echo '{\"Username\":\"u\",\"Secret\":7,\"x\":\"hunter2\"}'", "not an object"),
        ("echo hunter2", "not an object"),
        ("while :; do echo hunter2hunter2hunter2; done", "more than 65536 bytes"),
        ("exec sleep 60", "within 1 s"),
    ] {
        let home = Home::new()
            .has(DOCKER, &json!({"auths": {"r.example.com": auth("u:file")}, "credsStore": "odd"}))
            .helper("odd", script);
        let logins =
            Logins::load_with(&home.environment, IdentityKey::new([3; 32]), Duration::from_secs(1)).unwrap();
        let found = logins.find(&repository("r.example.com/a")).await;
        assert_eq!(pairs(&found), ["u:file"], "the file's own entry is still good: {script}");
        let problem = found.problems.first().unwrap().to_string();
        assert!(problem.contains(expected), "{problem}");
        assert!(problem.contains("docker-credential-odd") && problem.contains(DOCKER), "{problem}");
        assert!(!problem.contains("hunter2"), "{problem}");
    }
}

#[tokio::test]
async fn a_helper_is_found_on_the_path_alone() {
    let mut home = Home::new().has(DOCKER, &json!({"credsStore": "here"})).helper("here", "exit 0");
    home.environment.path = ".:bin::/nowhere".into();
    let found = home.logins().find(&repository("r.example.com/a")).await;
    let problem = found.problems.first().unwrap().to_string();
    assert!(problem.contains("no such program on the PATH"), "{problem}");

    let home = Home::new().has(DOCKER, &json!({"credsStore": "../bin/evil", "credHelpers": {"a": "x y"}}));
    let problems: Vec<_> = home.logins().problems().iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems.iter().all(|problem| problem.contains("cannot be the name of a credential helper")));
    assert!(home.found("r.example.com/a").await.is_empty());
}

#[test]
fn a_broken_file_is_named_and_the_others_are_used() {
    for (content, expected) in [
        ("{\n \"auths\": {\"r.example.com\": {\"auth\": \"hunter2\"", "not valid JSON: see line 2"),
        (r#"{"auths": {"r.example.com": "hunter2"}}"#, "wrong type"),
        (r#"{"auths": ["hunter2"]}"#, "wrong type"),
        (r#"{"auths": {"r.example.com": {"auth": "hunter2"}}}"#, r#"the entry for "r.example.com""#),
        (r#"{"auths": {"ada:hunter2@r.example.com": {"auth": "?"}}}"#, r#"the entry for "r.example.com""#),
        (r#"{"auths": {"r.example.com": {"registrytoken": "hunter2"}}}"#, "log in with a password"),
        (r#"{"auths": {"r example.com": {"password": "hunter2"}}}"#, "host[:port][/path]"),
        (r#"{"auths": {"aHVudGVyMjpodW50ZXIy": {"auth": "r.example.com"}}}"#, r#"the entry for "…""#),
        (r#"{"auths": {"robot:hunter2": {"auth": "r.example.com"}}}"#, r#"the entry for "…""#),
        (r#"{"auths": {"robot:hunter2%40r.example.com": {"auth": "?"}}}"#, r#"the entry for "…""#),
        (r#"{"auths": {"https://r.example.com/?token=hunter2": {"auth": "?"}}}"#, "\"r.example.com\""),
        (r#"{"auths": {"r.example.com#hunter2": {"auth": "?"}}}"#, "\"r.example.com\""),
        (r#"{"auths": {"r.example.com/hunter2": {"registrytoken": "?"}}}"#, "\"r.example.com\""),
        (r#"{"credsStore": "robot:hunter2"}"#, "the value of credsStore"),
        (r#"{"credHelpers": {"r.example.com": "robot:hunter2"}}"#, r#"credHelpers for "r.example.com""#),
        (r#"{"credHelpers": {"robot:hunter2": "r.example.com:5000"}}"#, r#"credHelpers for "…""#),
    ] {
        let home = Home::new().has(PODMAN, &json!({"auths": {"a.example.com": auth("u:p")}}));
        let path = home.write(DOCKER, content);
        let logins = home.logins();
        let [problem] = logins.problems() else { panic!("{content}: {:?}", logins.problems()) };
        let problem = problem.to_string();
        assert!(problem.contains(expected) && problem.contains(path.to_str().unwrap()), "{problem}");
        for text in [problem, format!("{logins:?}"), format!("{:?}", logins.problems())] {
            assert!(!text.contains("hunter2") && !text.contains("aHVudGVy"), "{text}");
        }
        assert_eq!(logins.files.first().map(|file| file.path.clone()), Some(home.path(PODMAN)));
    }
}

#[test]
fn files_that_are_no_files() {
    let home = Home::new();
    assert_eq!(home.logins().problems(), [], "nobody has to be logged in");
    home.write(DOCKER, " \n");
    assert_eq!(home.logins().problems(), []);
    home.write(DOCKER, &" ".repeat(2 * 1024 * 1024));
    assert!(home.logins().problems()[0].to_string().contains("more than 1048576 bytes"));
    fs::remove_file(home.path(DOCKER)).unwrap();
    fs::create_dir(home.path(DOCKER)).unwrap();
    assert!(home.logins().problems()[0].to_string().contains("cannot be read"));
}

#[test]
fn a_chosen_file_must_be_good() {
    let mut home = Home::new();
    home.environment.auth_file = Some(home.path("missing.json"));
    let load =
        |home: &Home| Logins::load(&home.environment, IdentityKey::new([3; 32])).unwrap_err().to_string();
    assert!(load(&home).contains("missing.json: it does not exist"), "{}", load(&home));
    home.environment.auth_file = Some(home.write("broken.json", "{"));
    assert!(load(&home).contains("broken.json: it is not valid JSON"), "{}", load(&home));
}
