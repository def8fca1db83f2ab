//! What a `ProxyCache` accepts because Harbor takes it, and what it refuses because Harbor would not.

use anyhow::Result;
use serde_json::{Value, json};

use crate::refused::{Refusal, assert_accepted, assert_refused, change, refusal, without};

fn cache(spec: &Value) -> Value {
    json!({ "apiVersion": "harbor-reef.nvidia.com/v1alpha1", "kind": "ProxyCache", "metadata": { "name": "good" }, "spec": spec })
}

fn public() -> Value {
    cache(&json!({ "type": "public", "name": "dockerhub", "url": "https://registry-1.docker.io" }))
}

fn private() -> Value {
    cache(
        &json!({ "type": "private", "name": "nvcr", "url": "https://nvcr.io", "credentials": { "secretName": "login" } }),
    )
}

fn ecr() -> Value {
    cache(&json!({
        "type": "aws-ecr-private",
        "name": "ecr",
        "ecr": { "accountId": "123456789012", "region": "eu-central-1", "staticCredentialsSecretName": "keys" },
    }))
}

fn bad_for_all_types() -> Vec<Refusal> {
    let name =
        |value: &str| refusal(change("/spec/name", value), "spec.name", "lower-case letters and digits");
    vec![
        refusal(without("/spec"), "spec", "Required value"),
        refusal(without("/spec/type"), "spec.type", "Required value"),
        refusal(change("/spec/type", "docker-hub"), "spec.type", "supported values: \"public\""),
        refusal(without("/spec/name"), "spec.name", "Required value"),
        name(""),
        name("DockerHub"),
        name("docker hub"),
        name("docker/hub"),
        name("docker--hub"),
        name("-dockerhub"),
        name("dockerhub."),
        refusal(change("/spec/name", "a".repeat(65)), "spec.name", "64"),
        refusal(change("/spec/name", 1), "spec.name", "must be of type string"),
        refusal(change("/spec/quota", 1), "spec.quota", "unknown field"),
    ]
}

#[tokio::test]
async fn public_cache() -> Result<()> {
    let mut refusals = bad_for_all_types();
    refusals.push(refusal(without("/spec/url"), "spec.url", "url is missing"));
    refusals.push(refusal(change("/spec/url", ""), "spec.url", "such as https://quay.io"));
    for url in [
        "ftp://quay.io",
        "oci://quay.io",
        "https://",
        "https://quay.io?x=1",
        "https://quay .io",
        "quay.io:port",
        "://quay.io",
    ] {
        refusals.push(refusal(change("/spec/url", url), "spec.url", "write https:// and the host"));
    }
    refusals.extend([
        refusal(change("/spec/routing", json!({})), "spec.routing.priority", "Required value"),
        refusal(
            change("/spec/routing", json!({ "priority": 1, "credentialSecret": { "name": "pull" } })),
            "spec.routing.credentialSecret",
            "namespace must name the namespace of the Secret",
        ),
        refusal(change("/spec/type", "private"), "spec.credentials", "credentials are missing"),
        refusal(change("/spec/type", "aws-ecr-private"), "spec.ecr", "ecr is missing"),
    ]);
    assert_refused(&public(), refusals).await?;
    let urls = [
        "https://quay.io",
        "https://quay.io/",
        "HTTP://registry.example.com:5000/v2/",
        "docker.io",
        "quay.io",
        "https://index.docker.io/v1/",
        "https://[2001:db8::7]:5000",
        " https://quay.io ",
        "http://localhost:5000",
    ];
    let mut accepted: Vec<_> = urls.map(|url| change("/spec/url", url)).into();
    accepted.extend([
        change("/spec/name", "2024"),
        change("/spec/name", "a.b_c-d"),
        change("/spec/name", "a".repeat(64)),
        change("/spec/credentials", json!({ "secretName": "not-used" })),
        change(
            "/spec/ecr",
            json!({ "accountId": "123456789012", "staticCredentialsSecretName": "not-used" }),
        ),
    ]);
    assert_accepted(&public(), accepted).await
}

#[tokio::test]
async fn private_cache() -> Result<()> {
    let mut refusals = bad_for_all_types();
    refusals.extend([
        refusal(without("/spec/url"), "spec.url", "url is missing"),
        refusal(without("/spec/credentials"), "spec.credentials", "a Secret in the operator's namespace"),
        refusal(change("/spec/credentials", json!({})), "spec.credentials.secretName", "Required value"),
        refusal(
            change("/spec/credentials/secretName", ""),
            "spec.credentials.secretName",
            "lower-case letters",
        ),
        refusal(
            change("/spec/credentials/secretName", "kube-system/login"),
            "spec.credentials.secretName",
            "not the name of an object",
        ),
        refusal(
            change("/spec/credentials/usernameKey", "user name"),
            "spec.credentials.usernameKey",
            "not a key of a Secret",
        ),
        refusal(
            change("/spec/credentials/passwordKey", "a/b"),
            "spec.credentials.passwordKey",
            "letters, digits",
        ),
        refusal(
            change("/spec/credentials/passwordKey", 5),
            "spec.credentials.passwordKey",
            "must be of type string",
        ),
        refusal(change("/spec/credentials/username", "admin"), "spec.credentials.username", "unknown field"),
        refusal(
            change("/spec/routing", json!({ "priority": -1 })),
            "spec.routing",
            "routing.credentialSecret is missing",
        ),
    ]);
    assert_refused(&private(), refusals).await?;
    let accepted = vec![
        change("/spec/credentials/usernameKey", ""),
        change("/spec/credentials/usernameKey", ".dockerconfigjson"),
        change("/spec/credentials/passwordKey", "API_KEY-1.x"),
        change("/spec/credentials/secretName", "team.registry-login"),
        change(
            "/spec/routing",
            json!({ "priority": -1, "credentialSecret": { "name": "pull", "namespace": "harbor" } }),
        ),
    ];
    assert_accepted(&private(), accepted).await
}

#[tokio::test]
async fn ecr_cache() -> Result<()> {
    let mut refusals = bad_for_all_types();
    for id in ["", "12345", "1234567890123", "12345678901a", "1234-5678-9012"] {
        refusals.push(refusal(change("/spec/ecr/accountId", id), "spec.ecr.accountId", "12 digits"));
    }
    for region in ["EU-central-1", "frankfurt", "eu_central_1", "eu-central-1a"] {
        refusals.push(refusal(change("/spec/ecr/region", region), "spec.ecr.region", "such as eu-central-1"));
    }
    refusals.extend([
        refusal(
            change("/spec/ecr/accountId", 123_456_789_012_u64),
            "spec.ecr.accountId",
            "must be of type string",
        ),
        refusal(without("/spec/ecr"), "spec.ecr", "needs ecr.accountId"),
        refusal(without("/spec/ecr/accountId"), "spec.ecr.accountId", "Required value"),
        refusal(
            without("/spec/ecr/staticCredentialsSecretName"),
            "spec.ecr.staticCredentialsSecretName",
            "Required value",
        ),
        refusal(
            change("/spec/ecr/staticCredentialsSecretName", ""),
            "spec.ecr.staticCredentialsSecretName",
            "lower-case letters",
        ),
    ]);
    assert_refused(&ecr(), refusals).await?;
    let mut accepted: Vec<_> = ["", "us-gov-west-1", "ap-southeast-3", "us-iso-east-1", "eusc-de-east-1"]
        .map(|region| change("/spec/ecr/region", region))
        .into();
    accepted.extend([without("/spec/ecr/region"), change("/spec/url", "https://not-used.example.com")]);
    assert_accepted(&ecr(), accepted).await
}
