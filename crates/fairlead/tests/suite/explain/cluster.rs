//! Explanations from a real cluster: what is stored there, what a person may see of it, and Pods that run.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Cluster, RegistryConfig, eventually, unique};
use serde_json::{Value, json};

use super::{order, registry_with};
use crate::person::{PASSWORD, Person, base64, login};
use crate::{kubectl, kuik};

const SOON: Duration = Duration::from_secs(30);

fn mirror(namespace: &str, host: &str, secret: Option<&str>) -> Value {
    let mut mirror = json!({"registry": host, "path": "/copies"});
    if let Some(name) = secret {
        mirror["credentialSecret"] = json!({"name": name});
    }
    json!({
        "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ImageSetMirror",
        "metadata": {"name": "near", "namespace": namespace},
        "spec": {"priority": -1, "imageFilter": {"include": [".*"]}, "mirrors": [mirror]},
    })
}

fn secret(namespace: &str, name: &str, host: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace},
        "type": "kubernetes.io/dockerconfigjson",
        "data": {".dockerconfigjson": base64(&login(host, &format!("u:{PASSWORD}")))},
    })
}

fn pod(namespace: &str, image: &str, annotations: &Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "app", "namespace": namespace, "annotations": annotations},
        "spec": {"containers": [{"name": "main", "image": image}]},
    })
}

#[tokio::test]
async fn what_the_cluster_holds_is_explained_as_far_as_the_person_may_see_it() -> Result<()> {
    let cluster = kubectl::shared_with_definitions().await?;
    let namespace = cluster.namespace("explain").await?;
    let near = registry_with(RegistryConfig::new().user("u", PASSWORD), "copies/team/app").await?;
    let far = registry_with(RegistryConfig::new(), "team/app").await?;
    let (copy, original) =
        (format!("{}/copies/team/app:1", near.host()), format!("{}/team/app:1", far.host()));
    let record = json!({"v": 1, "images": {"main": {
        "asked": original, "used": copy, "by": format!("ImageSetMirror/{namespace}/near"), "why": "it was first",
    }}});
    let objects = [
        mirror(&namespace, &near.host(), Some("pull")),
        secret(&namespace, "pull", &near.host()),
        pod(&namespace, &copy, &json!({"fairlead.dev/routes": record.to_string()})),
    ];
    kubectl::create(cluster, &objects, &[]).await?;
    let person = Person::new()?;
    let all = cluster.kubeconfig();

    // The Pod was rewritten, so what it asked for is what is explained.
    let outcome = person.explain_from(&all, &["pod/app", "-n", &namespace, "-o", "json"])?;
    let explained = outcome.is(0).json();
    let image = &explained["images"][0];
    assert_eq!((&image["image"], &image["asked"]), (&json!(copy), &json!(original)));
    assert_eq!(order(&explained, 0), [&copy, &original]);
    assert_eq!(image["choice"]["image"], json!(copy));
    let answer = &image["alternatives"][0]["availability"];
    assert_eq!(answer["credentials"], json!(format!("Secret {namespace}/pull")));
    assert_eq!(
        (&image["record"]["believable"], &image["record"]["entry"]["why"]),
        (&json!(true), &json!("it was first"))
    );
    assert!(explained["warnings"].to_string().contains("pods.fairlead.dev"), "{}", explained["warnings"]);

    let table = person.explain_from(&all, &["pod/app", "-n", &namespace])?;
    let told = format!("rewritten from {original} by ImageSetMirror/{namespace}/near: it was first");
    assert!(table.is(0).output.contains(&told), "{}", table.output);

    // An image, as the same Pod would ask for it; one registry is gone.
    near.kill().await?;
    let outcome = person.explain_from(&all, &[&original, "-n", &namespace, "-o", "json"])?;
    let explained = outcome.is(0).json();
    assert_eq!(explained["images"][0]["choice"]["image"], json!(original));
    near.start_again().await?;

    // The same Pod under policies that are not applied yet.
    let file = person.policies(&super::mirror("m.example.com", "").replace("team", &namespace))?;
    let arguments = ["pod/app", "-n", &namespace, "--policies", &file, "--no-probe", "-o", "json"];
    let explained = person.explain_from(&all, &arguments)?.is(0).json();
    assert_eq!(order(&explained, 0), ["m.example.com/copies/copies/team/app:1", &copy]);
    assert_eq!(explained["images"][0]["record"]["believable"], json!(false));

    // A user who may see policies and Pods of the namespace, and nothing else.
    let reader = may_read(cluster, &namespace).await?;
    let outcome = person.explain_from(&reader, &["pod/app", "-n", &namespace, "-o", "json"])?;
    let explained = outcome.is(0).json();
    let answer = &explained["images"][0]["alternatives"][0]["availability"];
    assert_eq!((&answer["verdict"], &answer["mayDiffer"]), (&json!("unauthorised"), &json!(true)));
    assert!(answer["caveats"].to_string().contains("you may not read it"), "{answer}");
    let warnings = explained["warnings"].to_string();
    assert!(
        warnings.contains("ClusterImageSetMirror") && warnings.contains("in all namespaces"),
        "{warnings}"
    );
    let table = person.explain_from(&reader, &["pod/app", "-n", &namespace])?;
    assert!(table.is(0).output.contains("the operator may choose otherwise"), "{}", table.output);

    let outcome = person.explain_from(&all, &["pod/nobody", "-n", &namespace])?;
    assert!(outcome.is(1).errors.contains("there is no Pod nobody"), "{}", outcome.errors);
    Ok(())
}

#[tokio::test]
async fn what_nodes_of_two_namespaces_cannot_pull_is_passed_over_for_all() -> Result<()> {
    let cluster = kubectl::shared_with_definitions().await?;
    let namespace = cluster.namespace("explain").await?;
    let near = registry_with(RegistryConfig::new(), "copies/team/app").await?;
    let far = registry_with(RegistryConfig::new(), "team/app").await?;
    let copy = format!("{}/copies/team/app:1", near.host());
    let original = format!("{}/team/app:1", far.host());
    kubectl::create(cluster, &[mirror(&namespace, &near.host(), None)], &[]).await?;
    let person = Person::new()?;
    for (node, seen) in [("n1", Value::Null), ("n2", json!("fails-on-nodes"))] {
        let elsewhere = cluster.namespace("explain").await?;
        let mut failing = pod(&elsewhere, &copy, &json!({}));
        failing["spec"]["nodeName"] = json!(node);
        kubectl::create(cluster, &[failing], &[]).await?;
        let message = format!("failed to pull and unpack image \"{copy}\": {copy}: not found");
        let status = json!({"status": {"phase": "Pending", "containerStatuses": [{
            "name": "main", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": {"reason": "ErrImagePull", "message": message}},
        }]}});
        let patch = format!("--patch={status}");
        cluster
            .kubectl([
                "patch",
                "pod",
                "app",
                "-n",
                &elsewhere,
                "--subresource=status",
                "--type=merge",
                &patch,
            ])
            .await?;
        let arguments = [&original, "-n", &namespace, "-o", "json"];
        let image = &person.explain_from(&cluster.kubeconfig(), &arguments)?.is(0).json()["images"][0];
        assert_eq!(image["alternatives"][0]["availability"]["countsAs"], seen, "{node}: {image}");
        assert_eq!(image["choice"]["image"], json!(if seen.is_null() { &copy } else { &original }), "{node}");
    }
    Ok(())
}

/// A kubeconfig with which policies and Pods of one namespace can be read.
async fn may_read(cluster: &Cluster, namespace: &str) -> Result<std::path::PathBuf> {
    let role = |kind: &str| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": "reader", "namespace": namespace}});
    let mut rules = role("Role");
    rules["rules"] = json!([
        {"apiGroups": ["kuik.enix.io"], "resources": ["imagesetmirrors", "replicatedimagesets"], "verbs": ["list"]},
        {"apiGroups": [""], "resources": ["pods", "serviceaccounts"], "verbs": ["get"]},
    ]);
    let mut binding = role("RoleBinding");
    binding["roleRef"] = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"});
    binding["subjects"] = json!([{"kind": "ServiceAccount", "name": "default", "namespace": namespace}]);
    kubectl::create(cluster, &[rules, binding], &[]).await?;
    let kubeconfig = cluster.kubeconfig_as(namespace, "default").await?;
    // The authoriser sees new rights a moment after they are stored.
    let as_user = format!("--as=system:serviceaccount:{namespace}:default");
    eventually(SOON, || async {
        cluster
            .kubectl(["auth", "can-i", "list", "imagesetmirrors.kuik.enix.io", "-n", namespace, &as_user])
            .await
    })
    .await?;
    Ok(kubeconfig)
}

#[tokio::test]
async fn records_that_do_not_fit_are_not_believed() -> Result<()> {
    let cluster = kubectl::shared_with_definitions().await?;
    let person = Person::new()?;
    let route = |asked: &str, used: &str| {
        json!({"v": 1, "images": {"main": {"asked": asked, "used": used, "by": "ImageSetMirror/x/near"}}})
            .to_string()
    };
    for (annotations, asked, believable, said) in [
        (json!({}), "m.example.com/copies/a:1", false, "the operator was not asked"),
        (
            json!({"fairlead.dev/routes": route("evil.example.com/a:1", "m.example.com/copies/a:1")}),
            "evil.example.com/a:1",
            true,
            "rewritten from evil.example.com/a:1",
        ),
        (
            json!({"fairlead.dev/routes": route("evil.example.com/b:1", "m.example.com/copies/a:1")}),
            "m.example.com/copies/a:1",
            false,
            "policies of today do not offer",
        ),
        (
            json!({"fairlead.dev/routes": route("quay.io/a:1", "other.example.com/a:1")}),
            "m.example.com/copies/a:1",
            false,
            "not about the image that the Pod has now",
        ),
        (json!({"fairlead.dev/routes": "{"}), "m.example.com/copies/a:1", false, "cannot be read"),
        (
            json!({"kuik.enix.io/original-images": r#"{"main":"quay.io/a:1"}"#}),
            "quay.io/a:1",
            true,
            "rewritten from quay.io/a:1",
        ),
    ] {
        let namespace = cluster.namespace("explain").await?;
        let objects = [
            mirror(&namespace, "m.example.com", None),
            pod(&namespace, "m.example.com/copies/a:1", &annotations),
        ];
        kubectl::create(cluster, &objects, &[]).await?;
        let arguments = ["pod/app", "-n", &namespace, "--no-probe", "-o", "json"];
        let image = &person.explain_from(&cluster.kubeconfig(), &arguments)?.is(0).json()["images"][0];
        assert_eq!(image["asked"], json!(asked), "{annotations}");
        assert_eq!(image["record"]["believable"], json!(believable), "{annotations}");
        assert!(image["record"]["meaning"].as_str().unwrap().contains(said), "{image}");
    }
    Ok(())
}

/// Objects that kuik let in can be broken; one of them must not hide the others.
#[tokio::test]
async fn a_broken_policy_of_the_cluster_is_named_and_the_others_hold() -> Result<()> {
    let cluster = Cluster::builder().start().await?;
    kubectl::apply(&cluster, &kuik::definitions(), &[]).await?;
    kubectl::definitions_are_served(&cluster).await?;
    let namespace = cluster.namespace("explain").await?;
    let broken = json!({
        "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterImageSetMirror", "metadata": {"name": "broken"},
        "spec": {"imageFilter": {"include": ["("]}, "mirrors": [{"registry": "broken.example.com"}]},
    });
    let configuration = json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "fairlead-config", "namespace": "fairlead-system"},
        "data": {"config.yaml": "skipLabels: [skip]\n"},
    });
    let home = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "fairlead-system"}});
    kubectl::create(&cluster, &[home, configuration, broken, mirror(&namespace, "m.example.com", None)], &[])
        .await?;
    let person = Person::new()?;
    let arguments = ["nginx:1", "-n", &namespace, "--no-probe", "-o", "json"];
    let explained = person.explain_from(&cluster.kubeconfig(), &arguments)?.is(0).json();
    assert_eq!(order(&explained, 0), ["m.example.com/copies/library/nginx:1", "docker.io/library/nginx:1"]);
    assert_eq!(explained["broken"][0]["object"], json!("ClusterImageSetMirror/broken"));
    assert_eq!(explained["broken"][0]["field"], json!("spec.imageFilter.include[0]"));

    // The operator's configuration is the cluster's.
    let skipped =
        person.explain_from(&cluster.kubeconfig(), &[&arguments[..], &["--labels", "skip=1"]].concat())?;
    assert!(skipped.is(0).json()["images"][0]["notRouted"].to_string().contains("skipLabels"));

    // A namespace that the webhook leaves out.
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "fairlead"},
        "webhooks": [{
            "name": "pods.fairlead.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Ignore",
            "clientConfig": {"service": {"name": "fairlead-webhook", "namespace": "fairlead-system"}},
            "namespaceSelector": {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [namespace]}]},
        }],
    });
    kubectl::create(&cluster, &[webhook], &[]).await?;
    let explained = person.explain_from(&cluster.kubeconfig(), &arguments)?.is(0).json();
    assert!(explained["images"][0]["notRouted"].to_string().contains("namespaceSelector"), "{explained}");
    assert_eq!(explained["warnings"], json!([]));
    Ok(())
}

#[tokio::test]
async fn kubectl_finds_it_as_a_plugin() -> Result<()> {
    let cluster = kubectl::shared_with_definitions().await?;
    let namespace = cluster.namespace("explain").await?;
    kubectl::create(cluster, &[mirror(&namespace, "m.example.com", None)], &[]).await?;
    let directory = tempfile::tempdir()?;
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_fairlead"), directory.path().join("kubectl-fairlead"))?;
    let run = |arguments: &[&str]| -> Result<(bool, String)> {
        let output = Command::new(cluster.kubectl_path()?)
            .args(arguments)
            .env_clear()
            .env("HOME", directory.path())
            .env("PATH", directory.path())
            .env("KUBECONFIG", cluster.kubeconfig())
            .stdin(Stdio::null())
            .output()?;
        let text = String::from_utf8(output.stdout)? + &String::from_utf8(output.stderr)?;
        Ok((output.status.success(), text))
    };
    let (good, text) = run(&["fairlead", "explain", "nginx:1", "-n", &namespace, "--no-probe"])?;
    ensure!(good && text.contains("m.example.com/copies/library/nginx:1"), "{text}");
    let (good, text) = run(&["fairlead", "explain", "--help"])?;
    ensure!(good && text.contains("Usage: kubectl fairlead explain "), "{text}");
    let (good, text) = run(&["fairlead", "explain", "--nonsense"])?;
    ensure!(!good && text.contains("Usage: kubectl fairlead explain "), "{text}");
    let (good, text) = run(&["plugin", "list"])?;
    ensure!(good && text.contains("kubectl-fairlead") && !text.contains("warning"), "{text}");
    // The current namespace of the kubeconfig counts, as for kubectl itself.
    let context = unique("context");
    let own = directory.path().join("config");
    std::fs::copy(cluster.kubeconfig(), &own)?;
    let own = own.to_str().context("a path in plain text")?;
    let kubeconfig = format!("--kubeconfig={own}");
    let current = run(&["config", "view", &kubeconfig, "-o", "json"])?.1;
    let current: Value = serde_json::from_str(&current)?;
    let part = |kind: &str| {
        format!("--{kind}={}", current["contexts"][0]["context"][kind].as_str().unwrap_or_default())
    };
    let place = format!("--namespace={namespace}");
    run(&["config", "set-context", &context, &kubeconfig, &part("cluster"), &part("user"), &place])?;
    let (good, text) =
        run(&["fairlead", "explain", "nginx:1", "--no-probe", "--kubeconfig", own, "--context", &context])?;
    ensure!(good && text.contains("m.example.com/copies/library/nginx:1"), "{text}");
    Ok(())
}
