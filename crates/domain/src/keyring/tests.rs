use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::*;
use crate::reference::Reference;

fn keyring() -> Keyring {
    Keyring::new(IdentityKey::new([7; 32]))
}

fn users(keyring: &Keyring, image: &str) -> Vec<String> {
    let image = Reference::parse(image).unwrap().repository();
    let name = |credential: &Credential| String::from_utf8(credential.username().to_vec()).unwrap();
    keyring.lookup(&image).iter().map(name).collect()
}

fn with(entries: &[(&str, &str)]) -> Keyring {
    let mut keyring = keyring();
    for (location, user) in entries {
        assert!(keyring.add_login(location, user.as_bytes(), b"secret"), "{location}");
    }
    keyring
}

#[test]
fn more_specific_places_come_first() {
    let keyring = with(&[
        ("r.example.com", "host"),
        ("r.example.com/team", "team"),
        ("r.example.com/team/app", "app"),
        ("*.example.com", "glob"),
        ("r.example.com:5000", "port"),
        ("other.example.org", "other"),
    ]);
    assert_eq!(users(&keyring, "r.example.com/team/app:1"), ["app", "team", "host", "glob"]);
    assert_eq!(users(&keyring, "r.example.com/x"), ["host", "glob"]);
    assert_eq!(users(&keyring, "r.example.com:5000/x"), ["port"]);
    assert_eq!(users(&keyring, "s.example.com/x"), ["glob"]);
    assert!(users(&keyring, "quay.io/x/y").is_empty());
}

#[test]
fn several_credentials_for_one_place_keep_their_order() {
    let keyring =
        with(&[("r.example.com", "old"), ("https://r.example.com/v2/", "new"), ("r.example.com/", "newest")]);
    assert_eq!(users(&keyring, "r.example.com/x"), ["old", "new", "newest"]);
}

#[test]
fn docker_hub_goes_by_several_names() {
    for location in
        ["https://index.docker.io/v1/", "index.docker.io", "docker.io", "http://index.docker.io/v2/"]
    {
        let keyring = with(&[(location, "hub")]);
        for image in ["nginx", "docker.io/library/nginx:1", "index.docker.io/bitnami/redis", "bitnami/redis"]
        {
            assert_eq!(users(&keyring, image), ["hub"], "{location} for {image}");
        }
        assert!(users(&keyring, "quay.io/x/y").is_empty());
    }
    let both = with(&[("docker.io", "new"), ("index.docker.io", "old")]);
    assert_eq!(users(&both, "nginx"), ["new"]);
    let path = with(&[("docker.io/bitnami", "bitnami"), ("index.docker.io", "old")]);
    assert_eq!(users(&path, "bitnami/redis"), ["bitnami"]);
    assert_eq!(users(&path, "nginx"), ["old"]);
}

fn auth(pair: &str) -> String {
    STANDARD.encode(pair)
}

fn found(kind: SecretKind, data: &str) -> Result<Vec<(String, String)>, ConfigError> {
    let mut keyring = keyring();
    keyring.add(kind, data.as_bytes())?;
    let image = Reference::parse("r.io/x").unwrap().repository();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    Ok(keyring.lookup(&image).iter().map(|one| (text(one.username()), text(one.password()))).collect())
}

#[test]
fn both_kinds_of_secret() {
    let entry = format!(r#"{{"r.io":{{"auth":"{}"}}}}"#, auth("user:pa:ss"));
    let expected = vec![("user".to_owned(), "pa:ss".to_owned())];
    assert_eq!(found(SecretKind::DockerCfg, &entry), Ok(expected.clone()));
    assert_eq!(found(SecretKind::DockerConfigJson, &format!(r#"{{"auths":{entry},"x":[1]}}"#)), Ok(expected));
    assert_eq!(found(SecretKind::DockerConfigJson, &entry), Ok(vec![]), "no auths");
    assert_eq!(found(SecretKind::DockerConfigJson, ""), Ok(vec![]));
    assert_eq!(SecretKind::of_type("kubernetes.io/dockercfg"), Some(SecretKind::DockerCfg));
    assert_eq!(SecretKind::of_type("Opaque"), None);
}

#[test]
fn entries_are_read_as_the_kubelet_reads_them() {
    let one = |entry: &str| {
        found(SecretKind::DockerCfg, &format!(r#"{{"r.io":{entry}}}"#)).map(|list| list[0].clone())
    };
    let pair = |user: &str, password: &str| Ok((user.to_owned(), password.to_owned()));
    assert_eq!(one(r#"{"username":"u","password":"p"}"#), pair("u", "p"));
    assert_eq!(one(r#"{"USERNAME":"u","Password":"p","email":null}"#), pair("u", "p"));
    assert_eq!(
        one(&format!(r#"{{"username":"u","password":"p","auth":"{}"}}"#, auth("a:b"))),
        pair("a", "b")
    );
    assert_eq!(one(r#"{"username":"u","password":"p","auth":""}"#), pair("u", "p"));
    assert_eq!(one(r#"{"auth":"YTpi"}"#), pair("a", "b"));
    assert_eq!(one(r#"{"auth":"YTo"}"#), pair("a", ""), "unpadded");
    assert_eq!(one(r#"{"auth":"YTo=\n"}"#), pair("a", ""), "with a newline, as the base64 tool adds it");
    assert_eq!(
        one(r#"{"username":"a","username":"b","username":null}"#),
        pair("b", ""),
        "the last one counts"
    );
    assert_eq!(one("null"), pair("", ""));
    assert_eq!(one(r#"{"identitytoken":"t"}"#), pair("", ""));
}

#[test]
fn a_broken_configuration_is_refused_as_a_whole() {
    let refused = |data: &str| found(SecretKind::DockerConfigJson, data).unwrap_err();
    assert_eq!(refused("{"), ConfigError::Syntax { line: 1, column: 1 });
    assert!(matches!(refused("[]"), ConfigError::Type { .. }));
    assert!(matches!(refused(r#"{"auths":{"r.io":{"auth":1}}}"#), ConfigError::Type { .. }));
    assert!(matches!(refused(r#"{"auths":{"r.io":"x"}}"#), ConfigError::Type { .. }));
    assert!(matches!(refused(r#"{"auths":{"r.io":{}}} x"#), ConfigError::Syntax { .. }));
    for entry in ["YQ==", "Y", "a:b", "YTpi="] {
        let error = refused(&format!(r#"{{"auths":{{"u:pw@r.io":{{"auth":"{entry}"}}}}}}"#));
        assert_eq!(error, ConfigError::Auth { location: "r.io".to_owned() });
    }
    let mut untouched = keyring();
    assert!(untouched.add(SecretKind::DockerCfg, br#"{"a.io":{},"r.io":{"auth":"?"}}"#).is_err());
    assert!(untouched.is_empty());
}

#[test]
fn nothing_secret_is_ever_printed() {
    let (user, password) = ("us3r-name", "pa55-word");
    let mut ring = keyring();
    let entry = format!(r#"{{"r.io":{{"auth":"{}"}}}}"#, auth(&format!("{user}:{password}")));
    ring.add(SecretKind::DockerCfg, entry.as_bytes()).unwrap();
    let credential = ring.lookup(&Reference::parse("r.io/x").unwrap().repository()).remove(0);
    let mut printed =
        format!("{ring:?} {credential:?} {credential:#?} {:?} {}", credential.id(), credential.id());
    for broken in [
        r#"{"auths":{"r.io":{"username":["us3r-name","pa55-word"]}}}"#,
        r#"{"auths":{"r.io":"us3r-name:pa55-word"}}"#,
        r#"{"auths":{"https://us3r-name:pa55-word@r.io":{"auth":"us3r-name"}}}"#,
        r#"{"auths":{"us3r-name:pa55-word":{"auth":"?"}}}"#,
        r#"{"auths":{"us3r-name:pa55-word%40r.io":{"auth":"?"}}}"#,
        r#"{"auths":{"https://r.io/?token=pa55-word":{"auth":"?"}}}"#,
        r#"{"auths":{"r.io#pa55-word":{"auth":"?"}}}"#,
        r#"{"auths":{"r.io":{"password":"pa55-word"}"#,
    ] {
        let error = ring.add(SecretKind::DockerConfigJson, broken.as_bytes()).unwrap_err();
        printed = format!("{printed} {error} {error:?}");
    }
    let swapped = format!(r#"{{"auths":{{"{}":{{"auth":"r.io"}}}}}}"#, auth(&format!("{user}:{password}")));
    let error = ring.add(SecretKind::DockerConfigJson, swapped.as_bytes()).unwrap_err();
    printed = format!("{printed} {error} {error:?}");
    for secret in [user, password, &auth(user), &*credential.basic()] {
        assert!(!printed.contains(secret), "{secret} in {printed}");
    }
}

#[test]
fn identity_depends_on_content_and_key_alone() {
    let identity = |key: u8, location: &str, user: &str, password: &str| {
        let mut keyring = Keyring::new(IdentityKey::new([key; 32]));
        keyring.add_login(location, user.as_bytes(), password.as_bytes());
        keyring.lookup(&Reference::parse("r.io/x").unwrap().repository())[0].id()
    };
    let one = identity(1, "r.io", "ab", "c");
    assert_eq!(one, identity(1, "https://r.io/v2/", "ab", "c"));
    assert_ne!(one, identity(1, "r.io", "a", "bc"));
    assert_ne!(one, identity(2, "r.io", "ab", "c"));
}

#[test]
fn basic_authorization() {
    let keyring = with(&[("r.io", "user")]);
    let credential = keyring.lookup(&Reference::parse("r.io/x").unwrap().repository()).remove(0);
    assert_eq!(*credential.basic(), auth("user:secret"));
    assert!(!credential.is_blank());
}
