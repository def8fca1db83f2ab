//! `fairlead explain` as a person runs it: on files, with real registries behind them, and on a real cluster.

mod admitted;
mod cluster;
mod inputs;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fairlead_testkit::fake_registry::{Effect, FakeRegistry, Fault};
use fairlead_testkit::{Registry, RegistryConfig, images};
use serde_json::{Value, json};

use crate::person::{Outcome, PASSWORD, Person, base64, login};
use crate::yaml::repository;

impl Person {
    fn explain(&self, args: &[&str]) -> Result<Outcome> {
        self.explain_with(args, "")
    }

    /// As a cluster has it, with the rights of a kubeconfig.
    pub(crate) fn explain_from(&self, kubeconfig: &Path, args: &[&str]) -> Result<Outcome> {
        let kubeconfig = kubeconfig.to_str().context("a path in plain text")?;
        self.explain(&[args, &["--kubeconfig", kubeconfig]].concat())
    }

    fn explain_with(&self, args: &[&str], input: &str) -> Result<Outcome> {
        self.run(&[&["explain"], args].concat(), input)
    }

    /// Policies in a file of their own.
    fn policies(&self, text: &str) -> Result<String> {
        Ok(self.write("policies.yaml", text)?.to_str().unwrap().to_owned())
    }
}

impl Outcome {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.output)
            .unwrap_or_else(|error| panic!("{error}: {}{}", self.output, self.errors))
    }
}

/// The images of the alternatives of the only image that was asked about, or of one of several.
fn order(explained: &Value, index: usize) -> Vec<&str> {
    let list = explained["images"][index]["alternatives"].as_array().unwrap();
    list.iter().map(|one| one["image"].as_str().unwrap()).collect()
}

fn example(name: &str) -> String {
    repository().join("examples").join(name).to_str().unwrap().to_owned()
}

/// A mirror for everything in one namespace, before the original.
fn mirror(host: &str, secret: &str) -> String {
    let secret =
        if secret.is_empty() { String::new() } else { format!("\n    credentialSecret: {{name: {secret}}}") };
    format!(
        "apiVersion: kuik.enix.io/v1alpha1\nkind: ImageSetMirror\nmetadata: {{name: near, namespace: team}}\nspec:\n  \
         priority: -1\n  imageFilter: {{include: ['.*']}}\n  mirrors:\n  - registry: '{host}'\n    path: /copies{secret}\n"
    )
}

async fn registry_with(config: RegistryConfig, repository: &str) -> Result<Registry> {
    let registry = Registry::start(config).await?;
    registry.endpoint().push(repository, "1", &images::empty()?).await?;
    Ok(registry)
}

#[test]
fn every_documented_example_gives_the_documented_order() -> Result<()> {
    let person = Person::new()?;
    for (file, arguments, expected) in [
        (
            "nginx-unprivileged.yaml",
            &["docker.io/nginxinc/nginx-unprivileged:1.29"][..],
            &[
                "docker.io/nginxinc/nginx-unprivileged:1.29",
                "quay.io/nginx/nginx-unprivileged:1.29",
                "public.ecr.aws/nginx/nginx-unprivileged:1.29",
            ][..],
        ),
        (
            "global-and-team-mirror.yaml",
            &["docker-registry.example.com/my-app/api:v2", "-n", "my-app"],
            &[
                "fast-registry.internal/my-app-cache/my-app/api:v2",
                "harbor.example.com/my-app-mirror/my-app/api:v2",
                "harbor.example.com/global-mirror/my-app/api:v2",
                "docker-registry.example.com/my-app/api:v2",
            ],
        ),
        (
            "private-mirror.yaml",
            &["nginx:1.29"],
            &["registry.example.com/mirror/library/nginx:1.29", "docker.io/library/nginx:1.29"],
        ),
        ("bitnami.yaml", &["docker.io/bitnami/nginx:latest"], &["registry.bitnami.com/bitnami/nginx:latest"]),
    ] {
        let policies = example(&format!("image-routing/{file}"));
        let outcome =
            person.explain(&[arguments, &["--policies", &policies, "--no-probe", "-o", "json"]].concat())?;
        let explained = outcome.is(0).json();
        assert_eq!(order(&explained, 0), expected, "{file}");
        assert_eq!(explained["broken"], json!([]), "{file}");
        assert_eq!(outcome.errors, "", "{file}");
    }
    // All of them together, and every other kind in the same directories.
    let outcome = person.explain(&[
        "docker.io/bitnami/nginx:1",
        "--policies",
        &example(""),
        "--no-probe",
        "-o",
        "json",
    ])?;
    let explained = outcome.is(0).json();
    assert_eq!(
        order(&explained, 0),
        [
            "harbor.example.com/global-mirror/bitnami/nginx:1",
            "registry.example.com/mirror/bitnami/nginx:1",
            "registry.bitnami.com/bitnami/nginx:1"
        ]
    );
    Ok(())
}

#[test]
fn the_table_says_where_each_place_comes_from_and_what_is_passed_over() -> Result<()> {
    let person = Person::new()?;
    let outcome = person.explain(&[
        "docker-registry.example.com/my-app/api:v2",
        "-n",
        "my-app",
        "--policies",
        &example("image-routing/global-and-team-mirror.yaml"),
        "--policies",
        &example("image-routing/bitnami.yaml"),
        "--no-probe",
    ])?;
    let expected = "\
a Pod in namespace my-app

  image: docker-registry.example.com/my-app/api:v2 (pull policy IfNotPresent)

         IMAGE                                              AVAILABLE  TIME  FROM                                           DETAILS
      1  fast-registry.internal/my-app-cache/my-app/api:v2  not-asked  -     ImageSetMirror/my-app/team-mirror, mirrors[0]
      2  harbor.example.com/my-app-mirror/my-app/api:v2     not-asked  -     ImageSetMirror/my-app/team-mirror, mirrors[1]
      3  harbor.example.com/global-mirror/my-app/api:v2     not-asked  -     ClusterImageSetMirror/global-mirror, mirrors[0]
      4  docker-registry.example.com/my-app/api:v2          not-asked  -     original

    choice  fast-registry.internal/my-app-cache/my-app/api:v2
    why     registries were not asked; the first of these that answers is used
    passed over for this image:
      ClusterReplicatedImageSet/bitnami: none of its upstreams is where the image comes from

";
    let squeeze = |text: &str| {
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
    };
    assert_eq!(squeeze(&outcome.is(0).output), squeeze(expected), "{}", outcome.output);
    let column = |line: &str| line.find("not-asked");
    let rows: Vec<_> = outcome.output.lines().filter(|line| line.contains("not-asked")).collect();
    assert!(rows.len() == 4 && rows.iter().all(|row| column(row) == column(rows[0])), "{}", outcome.output);
    assert!(outcome.output.lines().all(|line| line.trim_end() == line));

    // In another namespace the same Pod gets less, and is told why.
    let outcome = person.explain(&[
        "docker-registry.example.com/my-app/api:v2",
        "--policies",
        &example("image-routing/global-and-team-mirror.yaml"),
        "--no-probe",
    ])?;
    let told = "ImageSetMirror/my-app/team-mirror: it serves Pods of namespace my-app only";
    assert!(outcome.is(0).output.contains(told), "{}", outcome.output);
    assert!(outcome.output.contains("passed over for this Pod:"), "{}", outcome.output);
    Ok(())
}

#[tokio::test]
async fn the_first_that_answers_is_chosen_and_the_rest_is_told() -> Result<()> {
    let near = registry_with(RegistryConfig::new(), "copies/team/app").await?;
    let far = registry_with(RegistryConfig::new(), "team/app").await?;
    let (copy, original) =
        (format!("{}/copies/team/app:1", near.host()), format!("{}/team/app:1", far.host()));
    let person = Person::new()?;
    let policies = person.policies(&mirror(&near.host(), ""))?;
    let arguments = [&original, "-n", "team", "--policies", &policies, "-o", "json"];

    let explained = person.explain(&arguments)?.is(0).json();
    let image = &explained["images"][0];
    assert_eq!(order(&explained, 0), [&copy, &original]);
    assert_eq!(image["choice"]["image"], json!(copy));
    assert_eq!((&image["choice"]["rewritten"], &image["choice"]["available"]), (&json!(true), &json!(true)));
    let first = &image["alternatives"][0];
    assert_eq!(
        first["from"],
        json!({"kind": "mirror", "policy": "ImageSetMirror/team/near", "entry": "mirrors[0]", "copyOf": original})
    );
    assert_eq!(image["alternatives"][1]["from"], json!({"kind": "original"}));
    assert_eq!((&first["availability"]["verdict"], &first["chosen"]), (&json!("available"), &json!(true)));
    assert!(first["availability"]["digest"].as_str().unwrap().starts_with("sha256:"));
    assert!(first["availability"]["milliseconds"].is_u64());

    near.kill().await?;
    let explained = person.explain(&arguments)?.is(0).json();
    let image = &explained["images"][0];
    assert_eq!(image["alternatives"][0]["availability"]["verdict"], json!("unreachable"));
    assert!(!image["alternatives"][0]["availability"]["reason"].as_str().unwrap().is_empty());
    assert_eq!((&image["choice"]["image"], &image["choice"]["rewritten"]), (&json!(original), &json!(false)));
    assert!(image["choice"]["why"].as_str().unwrap().contains("unreachable"), "{image}");

    let outcome = person.explain(&arguments[..arguments.len() - 2])?;
    let rows = outcome.is(0).rows();
    let row = |image: &str| {
        let is_place = |row: &&Vec<&str>| ["*", "1", "2"].contains(row.first().unwrap_or(&""));
        rows.iter().filter(is_place).find(|row| row.contains(&image)).unwrap().clone()
    };
    assert_eq!(row(&copy)[..3], ["1", &copy, "unreachable"]);
    assert_eq!(row(&original)[..4], ["*", "2", &original, "available"]);

    far.kill().await?;
    let outcome = person.explain(&arguments)?;
    let image = &outcome.is(3).json()["images"][0];
    assert_eq!((&image["choice"]["image"], &image["choice"]["available"]), (&json!(original), &json!(false)));
    person.explain(&[&arguments[..], &["--no-probe"]].concat())?.is(0);
    Ok(())
}

#[tokio::test]
async fn a_tag_that_is_pinned_is_shown_with_its_digest() -> Result<()> {
    let registry = registry_with(RegistryConfig::new(), "team/app").await?;
    let person = Person::new()?;
    let (policies, image) = (person.policies("")?, format!("{}/team/app:1", registry.host()));
    let ask = |more: &[&str]| -> Result<Value> {
        let pinned =
            [&image, "--policies", &policies, "--annotations", "fairlead.dev/pin=true", "-o", "json"];
        Ok(person.explain(&[&pinned[..], more].concat())?.is(0).json()["images"][0].clone())
    };
    let explained = ask(&[])?;
    let digest = explained["alternatives"][0]["availability"]["digest"].as_str().unwrap();
    assert_eq!(explained["choice"]["image"], json!(format!("{image}@{digest}")));
    assert_eq!(explained["pinned"], json!({"digest": digest, "by": "what is there now"}));
    let planned = ask(&["--no-probe"])?;
    assert_eq!((&planned["choice"]["image"], &planned["pinned"]), (&json!(image), &Value::Null));
    assert!(planned["notes"].to_string().contains("its tag is pinned"), "{planned}");

    registry.kill().await?;
    let arguments = [&image, "--policies", &policies, "--annotations", "fairlead.dev/pin=true"];
    let told = person.explain(&arguments)?.is(3).output.clone();
    assert!(told.contains("is not pinned: its digest could not be looked up"), "{told}");
    Ok(())
}

/// The registry lives in this process, which must not stand still while the program runs.
#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_is_slow_or_silent_is_not_waited_for_long() -> Result<()> {
    let near = FakeRegistry::start().await?;
    let far = registry_with(RegistryConfig::new(), "team/app").await?;
    near.hold("copies/team/app", "1", &images::empty()?);
    let person = Person::new()?;
    let policies = person.policies(&mirror(&near.host(), ""))?;
    let original = format!("{}/team/app:1", far.host());
    let ask = |timeout| -> Result<Value> {
        let arguments =
            [&original, "-n", "team", "--policies", &policies, "-o", "json", "--timeout", timeout];
        Ok(person.explain(&arguments)?.is(0).json()["images"][0].clone())
    };

    near.inject(Fault::new(Effect::Delay(Duration::from_millis(1500))));
    let answer = &ask("20s")?["alternatives"][0]["availability"];
    assert_eq!(answer["verdict"], json!("available"));
    assert!(answer["caveats"].to_string().contains("routing.activeCheck.timeout"), "{answer}");

    near.heal();
    near.inject(Fault::new(Effect::Hang));
    let started = Instant::now();
    let image = ask("2s")?;
    assert!(started.elapsed() < Duration::from_secs(15), "{:?}", started.elapsed());
    assert_eq!(image["alternatives"][0]["availability"]["verdict"], json!("unreachable"));
    assert_eq!(image["choice"]["image"], json!(original));
    Ok(())
}

#[tokio::test]
async fn credentials_come_from_the_manifests_and_then_from_the_person() -> Result<()> {
    let registry = registry_with(RegistryConfig::new().user("u", PASSWORD), "copies/team/app").await?;
    let host = registry.host();
    let person = Person::new()?;
    let secret = |name: &str, pair: &str| {
        format!(
            "---\napiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: team}}\ntype: \
             kubernetes.io/dockerconfigjson\ndata:\n  .dockerconfigjson: {}\n",
            base64(&login(&host, pair))
        )
    };
    let right = secret("pull", &format!("u:{PASSWORD}"));
    let first = |outcome: Outcome| outcome.json()["images"][0]["alternatives"][0]["availability"].clone();
    let ask = |person: &Person, policies: &str| {
        let file = person.policies(policies)?;
        person.explain(&["quay.example.com/team/app:1", "-n", "team", "--policies", &file, "-o", "json"])
    };

    let answer = first(ask(&person, &format!("{}{right}", mirror(&host, "pull")))?);
    assert_eq!(
        (&answer["verdict"], &answer["credentials"]),
        (&json!("available"), &json!("Secret team/pull"))
    );

    // Without its Secret the mirror cannot be judged as the operator would, and that is said.
    let answer = first(ask(&person, &mirror(&host, "pull"))?);
    assert_eq!((&answer["verdict"], &answer["credentials"]), (&json!("unauthorised"), &json!("anonymous")));
    assert_eq!(answer["mayDiffer"], json!(true));
    assert!(answer["caveats"][0].as_str().unwrap().contains("not among the given manifests"), "{answer}");

    // The account of the Pod names Secrets, too.
    let account = "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: default, namespace: team}\n\
                   imagePullSecrets: [{name: pull}]\n";
    let answer = first(ask(&person, &format!("{}{right}{account}", mirror(&host, "")))?);
    assert_eq!(answer["credentials"], json!("Secret team/pull"));

    person.write(".docker/config.json", &login(&host, &format!("u:{PASSWORD}")))?;
    let answer = first(ask(&person, &mirror(&host, ""))?);
    assert_eq!((&answer["verdict"], &answer["credentials"]), (&json!("available"), &json!("your own login")));
    Ok(())
}

#[test]
fn workloads_are_explained_image_by_image() -> Result<()> {
    let person = Person::new()?;
    let policies = person.policies(&mirror("m.example.com", ""))?;
    let manifests = "\
# a workload, and something else
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: team}
spec:
  template:
    metadata: {labels: {app: web}}
    spec:
      initContainers: [{name: setup, image: busybox}]
      containers:
      - {name: web, image: 'nginx:1.29'}
      - {name: own, image: 'm.example.com/copies/library/redis:7', imagePullPolicy: Never}
      - {name: odd, image: 'Not An Image'}
      volumes:
      - {name: model, image: {reference: 'quay.io/models/small:2', pullPolicy: IfNotPresent}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: c}
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: night}
spec: {jobTemplate: {spec: {template: {spec: {containers: [{name: job, image: 'alpine:3'}]}}}}}
";
    for (arguments, input) in
        [(["-f", "-"], manifests), (["-f", person.write("w.yaml", manifests)?.to_str().unwrap()], "")]
    {
        let outcome = person.explain_with(
            &[&arguments[..], &["--policies", &policies, "--no-probe", "-o", "json"]].concat(),
            input,
        )?;
        let explained = outcome.is(0).json();
        let images = explained["images"].as_array().unwrap();
        let names: Vec<_> =
            images.iter().map(|one| (one["role"].as_str().unwrap(), one["name"].as_str().unwrap())).collect();
        assert_eq!(
            names,
            [
                ("initContainer", "setup"),
                ("container", "web"),
                ("container", "own"),
                ("container", "odd"),
                ("volume", "model"),
                ("container", "job")
            ]
        );
        // No tag means Always, and Always means the original first.
        assert_eq!(images[0]["pullPolicy"], json!("Always"));
        assert_eq!(
            order(&explained, 0),
            ["docker.io/library/busybox", "m.example.com/copies/library/busybox"]
        );
        assert!(images[0]["notes"].to_string().contains("honorPrioritiesOnAlwaysImagePullPolicy"));
        assert_eq!(
            order(&explained, 1),
            ["m.example.com/copies/library/nginx:1.29", "docker.io/library/nginx:1.29"]
        );
        assert!(images[2]["notRouted"].as_str().unwrap().contains("Never"), "{}", images[2]);
        assert!(images[3]["notRouted"].as_str().unwrap().contains("Not An Image"), "{}", images[3]);
        assert_eq!(order(&explained, 4)[0], "m.example.com/copies/models/small:2");
        assert_eq!(images[1]["pod"]["kind"], json!("Deployment"));
        assert!(images[1]["pod"]["place"].as_str().unwrap().ends_with(":2"), "{}", images[1]["pod"]);
        // Without a namespace a manifest goes to the default one, where the mirror does not serve.
        assert_eq!(order(&explained, 5), ["docker.io/library/alpine:3"]);
        assert_eq!(images[5]["pod"]["namespace"], json!("default"));
    }
    Ok(())
}

#[test]
fn pods_that_are_never_routed_are_told_so() -> Result<()> {
    let person = Person::new()?;
    let policies = person.policies(&mirror("m.example.com", ""))?;
    let config = person.write(
        "config.yaml",
        "skipLabels: [app=web]\nskipAnnotations: ['example.com/skip']\nrouting:\n  \
         rewriteOnNeverImagePullPolicy: true\n  honorPrioritiesOnAlwaysImagePullPolicy: true\n",
    )?;
    let config = config.to_str().unwrap();
    let ask = |arguments: &[&str]| -> Result<Value> {
        let common = ["nginx", "-n", "team", "--policies", &policies, "--no-probe", "-o", "json"];
        Ok(person.explain(&[&common[..], arguments].concat())?.is(0).json()["images"][0].clone())
    };
    for (arguments, said) in [
        (&["--config", config, "--labels", "tier=a,app=web"][..], "skipLabels has app in (web)"),
        (
            &["--config", config, "--annotations", "example.com/skip=yes"],
            "skipAnnotations has example.com/skip",
        ),
        (&["--annotations", "kubernetes.io/config.mirror=x"], "static Pod"),
        (&["--operator-namespace", "team"], "operator's own namespace"),
        (&["--pull-policy", "Never"], "rewriteOnNeverImagePullPolicy"),
    ] {
        let image = ask(arguments)?;
        assert!(image["notRouted"].as_str().unwrap_or_default().contains(said), "{arguments:?}: {image}");
        assert_eq!(image["alternatives"], json!([]));
    }
    let first = |image: &Value| image["alternatives"][0]["image"].clone();
    assert_eq!(
        first(&ask(&["--config", config, "--pull-policy", "Never"])?),
        json!("m.example.com/copies/library/nginx")
    );
    assert_eq!(first(&ask(&["--config", config])?), json!("m.example.com/copies/library/nginx"));
    assert_eq!(first(&ask(&[])?), json!("docker.io/library/nginx"));
    Ok(())
}
