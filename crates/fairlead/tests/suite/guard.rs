//! What the admission policies of an installation refuse, on the real API server: to a compromised operator, and to
//! all clients but the operator.

use anyhow::{Context, Result, ensure};
use fairlead_api::names::reef::PROXY_CACHE_FINALIZER;
use fairlead_operator::platform::install::{CERTIFICATE_SECRET, DEFAULT_NAMESPACE, NAME};
use fairlead_testkit::{Cluster, eventually};
use k8s_openapi::api::{
    admissionregistration::v1::MutatingWebhookConfiguration,
    core::v1::{Node, Pod, Secret, ServiceAccount},
    rbac::v1::{ClusterRoleBinding, RoleBinding},
};
use kube::{
    Api, Client,
    api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::install::manifests;
use crate::installed::pod;
use crate::kubectl;

const SOON: std::time::Duration = std::time::Duration::from_mins(1);
const COPY: &str = "kuik-pull-0123456789abcdef";

/// The policies, and the rights of a cluster administrator for the operator: what is refused, the policies refuse.
async fn installed() -> Result<(Cluster, Client, String)> {
    let cluster = Cluster::builder().start().await?;
    let mut installed = manifests(&[])?;
    installed.retain(|object| object["kind"] != "Deployment");
    kubectl::apply(&cluster, &installed, &[]).await?;
    kubectl::definitions_are_served(&cluster).await?;
    let binding: ClusterRoleBinding = serde_json::from_value(json!({
        "metadata": {"name": "compromised"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": NAME, "namespace": DEFAULT_NAMESPACE}],
    }))?;
    Api::all(cluster.client().await?).create(&PostParams::default(), &binding).await?;
    let operator = cluster.client_as(DEFAULT_NAMESPACE, NAME).await?;
    let namespace = cluster.namespace("team").await?;
    // Policies are in force a moment after they were applied.
    let probe = secret("probe", "Opaque", &json!({}));
    eventually(SOON, || async {
        let secrets: Api<Secret> = Api::namespaced(operator.clone(), &namespace);
        let params = PostParams { dry_run: true, ..PostParams::default() };
        let refused = secrets.create(&params, &probe).await.is_err_and(|error| is_refusal(&error));
        let ledgers = ledgers(&cluster.client().await?, &namespace);
        let protected =
            ledgers.create(&params, &ledger("probe")).await.is_err_and(|error| is_refusal(&error));
        ensure!(refused && protected, "not in force yet");
        Ok(())
    })
    .await?;
    Ok((cluster, operator, namespace))
}

fn is_refusal(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.message.contains("ValidatingAdmissionPolicy"))
}

/// Fails unless a policy refused the write, with these words.
fn refused<T>(what: &str, outcome: kube::Result<T>, words: &str) -> Result<()> {
    let error = outcome.err().with_context(|| format!("{what} was accepted"))?;
    ensure!(is_refusal(&error) && error.to_string().contains(words), "{what}: {error}");
    Ok(())
}

fn labels() -> Value {
    json!({
        "kuik.enix.io/owner-group": "kuik.enix.io", "kuik.enix.io/owner-version": "v1alpha1",
        "kuik.enix.io/owner-kind": "ClusterImageSetMirror", "kuik.enix.io/owner-name": "m",
        "kuik.enix.io/owner-uid": "u", "app.kubernetes.io/managed-by": "fairlead",
    })
}

fn secret(name: &str, kind: &str, labels: &Value) -> Secret {
    let key = match kind {
        "kubernetes.io/dockercfg" => ".dockercfg",
        "kubernetes.io/dockerconfigjson" => ".dockerconfigjson",
        _ => "password",
    };
    let secret = json!({
        "metadata": {"name": name, "labels": labels}, "type": kind, "stringData": {key: "{\"auths\":{}}"},
    });
    serde_json::from_value(secret).expect("a Secret")
}

fn ledgers(client: &Client, namespace: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("fairlead.dev", "v1alpha1", "ImageLedger");
    Api::namespaced_with(client.clone(), namespace, &ApiResource::from_gvk(&kind))
}

fn ledger(name: &str) -> DynamicObject {
    let ledger = json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "ImageLedger", "metadata": {"name": name},
        "spec": {"owner": {"kind": "ImageSetMirror", "name": "m", "uid": "u"}, "entries": []},
    });
    serde_json::from_value(ledger).expect("a ledger")
}

#[tokio::test]
async fn a_compromised_operator_writes_no_secret_but_copies_and_of_pods_only_its_records() -> Result<()> {
    let (cluster, operator, namespace) = installed().await?;
    let admin = cluster.client().await?;
    secrets_other_than_copies_are_refused(&admin, &operator, &namespace).await?;
    other_fields_of_pods_are_refused(&admin, &operator, &namespace).await?;
    policies_and_webhooks_are_not_redirected(&admin, &operator).await?;
    pull_pods_can_do_nothing_but_pull(&operator, &namespace).await?;
    of_nodes_and_images_only_what_warming_needs_is_written(&admin, &operator).await?;
    pins_belong_to_their_workload(&operator, &namespace).await?;

    // No other client is limited by any of it.
    let post = PostParams::default();
    Api::<Secret>::namespaced(admin.clone(), &namespace)
        .create(&post, &secret("free", "Opaque", &json!({})))
        .await?;
    Api::<Pod>::namespaced(admin, &namespace).create(&post, &pod("free")).await?;
    Ok(())
}

async fn secrets_other_than_copies_are_refused(
    admin: &Client,
    operator: &Client,
    namespace: &str,
) -> Result<()> {
    let docker = "kubernetes.io/dockerconfigjson";
    let (post, delete) = (PostParams::default(), DeleteParams::default());
    let theirs: Api<Secret> = Api::namespaced(operator.clone(), namespace);
    let without = |label: &str| {
        let mut labels = labels();
        labels.as_object_mut().expect("labels").remove(label);
        labels
    };
    for (what, forged) in [
        ("an opaque Secret", secret(COPY, "Opaque", &labels())),
        ("a token", secret(COPY, "kubernetes.io/basic-auth", &labels())),
        ("another name", secret("pull", docker, &labels())),
        ("a name without a hash", secret("kuik-pull", docker, &labels())),
        ("a name with more than a hash", secret(&format!("{COPY}.x"), docker, &labels())),
        ("no labels", secret(COPY, docker, &json!({}))),
        ("no owner", secret(COPY, docker, &without("kuik.enix.io/owner-uid"))),
        ("no mark of ours", secret(COPY, docker, &without("app.kubernetes.io/managed-by"))),
    ] {
        refused(
            what,
            theirs.create(&post, &forged).await,
            "the operator writes only copies of pull secrets",
        )?;
    }
    for kind in [docker, "kubernetes.io/dockercfg"] {
        theirs.create(&post, &secret(COPY, kind, &labels())).await.context("a copy")?;
        theirs.delete(COPY, &delete).await.context("deleting a copy")?;
    }
    // What kube-image-keeper left may be renewed and removed.
    let kuik = json!({"kuik.enix.io/owner-group": "kuik.enix.io", "kuik.enix.io/owner-uid": "u"});
    let all: Api<Secret> = Api::namespaced(admin.clone(), namespace);
    for renewed in [true, false] {
        all.create(&post, &secret(COPY, docker, &kuik)).await?;
        if renewed {
            let patch = Patch::Merge(json!({"metadata": {"labels": labels()}}));
            theirs.patch(COPY, &PatchParams::default(), &patch).await.context("renewing a copy of kuik's")?;
        }
        theirs.delete(COPY, &delete).await.context("removing a copy of kuik's")?;
    }
    // What is there already and is no copy is neither taken over nor removed.
    for (name, mine) in [("mine", "Opaque"), (COPY, docker)] {
        all.create(&post, &secret(name, mine, &json!({}))).await?;
        let marked = Patch::Merge(json!({"metadata": {"labels": labels()}}));
        let patched = theirs.patch(name, &PatchParams::default(), &marked).await;
        refused("taking a Secret over", patched, "the operator writes only copies")?;
        refused("deleting a Secret", theirs.delete(name, &delete).await, "the operator writes only copies")?;
    }
    // In its own namespace there are two more.
    let own: Api<Secret> = Api::namespaced(operator.clone(), DEFAULT_NAMESPACE);
    let other = own.create(&post, &secret("mirror-credentials", docker, &json!({}))).await;
    refused("another Secret of its own namespace", other, "the operator writes only copies")?;
    let certificate: Secret = serde_json::from_value(json!({
        "metadata": {"name": CERTIFICATE_SECRET}, "type": "kubernetes.io/tls",
        "stringData": {"tls.crt": "", "tls.key": ""},
    }))?;
    own.create(&post, &certificate).await.context("the certificate's Secret")?;
    Ok(())
}

async fn other_fields_of_pods_are_refused(admin: &Client, operator: &Client, namespace: &str) -> Result<()> {
    let mut made = pod("victim");
    made.metadata.labels = Some([("app".to_owned(), "shop".to_owned())].into());
    made.metadata.annotations = Some([("mine".to_owned(), "stays".to_owned())].into());
    let made = Api::<Pod>::namespaced(admin.clone(), namespace).create(&PostParams::default(), &made).await?;
    let name = made.metadata.name.context("a name")?;
    let pods: Api<Pod> = Api::namespaced(operator.clone(), namespace);
    let patch =
        async |patch: Value| pods.patch(&name, &PatchParams::default(), &Patch::Strategic(patch)).await;
    let metadata = |metadata: Value| json!({ "metadata": metadata });
    let image = json!({"spec": {"containers": [{"name": "main", "image": "evil.example.com/app:1"}]}});
    refused("an image", patch(image.clone()).await, "images of containers that wait")?;
    let deadline = json!({"spec": {"activeDeadlineSeconds": 1}});
    refused("a deadline", patch(deadline).await, "images of containers that wait")?;
    for (what, change) in [
        ("a label", metadata(json!({"labels": {"app": "other"}}))),
        ("a label taken away", metadata(json!({"labels": {"app": null}}))),
        ("an annotation", metadata(json!({"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}))),
        ("an annotation changed", metadata(json!({"annotations": {"mine": "gone"}}))),
        ("an annotation taken away", metadata(json!({"annotations": {"mine": null}}))),
        ("a finalizer", metadata(json!({"finalizers": ["example.com/stuck"]}))),
    ] {
        refused(what, patch(change).await, "only its own annotations")?;
    }
    let post = PostParams::default();
    refused("a new Pod", pods.create(&post, &pod("new")).await, "creates only Pods that pull images")?;
    let deleted = pods.delete(&name, &DeleteParams::default()).await;
    refused("a deletion", deleted, "deletes only Pods that pull images")?;
    let waiting = json!({"status": {"containerStatuses": [{
        "name": "main", "image": "gone.example.com/app:1", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ErrImagePull"}},
    }]}});
    let all: Api<Pod> = Api::namespaced(admin.clone(), namespace);
    all.patch_status(&name, &PatchParams::default(), &Patch::Merge(waiting)).await?;
    patch(image).await.context("the image of a container that waits for it in vain")?;
    for key in [
        "fairlead.dev/routes",
        "fairlead.dev/healed",
        "kuik.enix.io/original-images",
        "harbor.rewrite/original-upstreams",
        "harbor-reef/patched",
        "harbor-reef/patched-containers",
    ] {
        for value in [json!("{}"), Value::Null] {
            let own = metadata(json!({"annotations": {key: value}}));
            patch(own).await.with_context(|| format!("the operator's own annotation {key}"))?;
        }
    }
    Ok(())
}

/// A Pod that pulls an image onto a node, with changes to its spec.
fn pull_pod(name: &str, changes: &Value) -> Result<Pod> {
    let mut pod = json!({
        "metadata": {
            "name": name, "labels": {"app.kubernetes.io/managed-by": "drop"},
            "annotations": {"fairlead.dev/pulls": "{}"},
            "ownerReferences": [{
                "apiVersion": "drop.corewire.io/v1alpha1", "kind": "CachedImage", "name": "web", "uid": "u",
            }],
        },
        "spec": {
            "nodeName": "somewhere", "automountServiceAccountToken": false,
            "containers": [{"name": "pull", "image": "r.example.com/web:1", "command": ["true"]}],
        },
    });
    let spec = pod["spec"].as_object_mut().context("a spec")?;
    spec.extend(changes.as_object().cloned().unwrap_or_default());
    Ok(serde_json::from_value(pod)?)
}

async fn pull_pods_can_do_nothing_but_pull(operator: &Client, namespace: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(operator.clone(), namespace);
    let privileged =
        json!([{"name": "pull", "image": "r.example.com/web:1", "securityContext": {"privileged": true}}]);
    for (what, changes) in [
        ("a token", json!({"automountServiceAccountToken": true})),
        ("the network of the node", json!({"hostNetwork": true})),
        ("the processes of the node", json!({"hostPID": true})),
        ("the disk of the node", json!({"volumes": [{"name": "root", "hostPath": {"path": "/"}}]})),
        ("privileges", json!({"containers": privileged})),
        ("another container", json!({"initContainers": [{"name": "first", "image": "r.example.com/web:1"}]})),
    ] {
        let created = pods.create(&PostParams::default(), &pull_pod("harmful", &changes)?).await;
        refused(what, created, "creates only Pods that pull images")?;
    }
    pods.create(&PostParams::default(), &pull_pod("pull", &json!({}))?).await.context("a pull Pod")?;
    pods.delete("pull", &DeleteParams::default()).await.context("deleting a pull Pod")?;
    Ok(())
}

async fn of_nodes_and_images_only_what_warming_needs_is_written(
    admin: &Client,
    operator: &Client,
) -> Result<()> {
    let taints = json!([
        {"key": "fairlead.dev/warming", "effect": "NoSchedule"}, {"key": "other", "effect": "NoSchedule"},
    ]);
    let node = serde_json::from_value(json!({"metadata": {"name": "victim"}, "spec": {"taints": taints}}))?;
    Api::<Node>::all(admin.clone()).create(&PostParams::default(), &node).await?;
    let nodes: Api<Node> = Api::all(operator.clone());
    let patch = async |patch: Value| {
        nodes
            .patch("victim", &PatchParams::default(), &Patch::<()>::Json(serde_json::from_value(patch)?))
            .await
            .map_err(anyhow::Error::from)
    };
    let words = "changes only the taint fairlead.dev/warming";
    for (what, change) in [
        ("a label", json!([{"op": "add", "path": "/metadata/labels", "value": {"a": "b"}}])),
        ("an annotation", json!([{"op": "add", "path": "/metadata/annotations", "value": {"a": "b"}}])),
        ("a cordon", json!([{"op": "add", "path": "/spec/unschedulable", "value": true}])),
        ("another taint", json!([{"op": "remove", "path": "/spec/taints/1"}])),
        ("another effect", json!([{"op": "replace", "path": "/spec/taints/0/effect", "value": "NoExecute"}])),
        ("a value", json!([{"op": "add", "path": "/spec/taints/0/value", "value": "x"}])),
        (
            "a new taint",
            json!([{"op": "add", "path": "/spec/taints/-", "value": {"key": "x", "effect": "NoExecute"}}]),
        ),
    ] {
        let error = patch(change).await.err().with_context(|| format!("{what} was accepted"))?;
        ensure!(error.to_string().contains(words), "{what}: {error}");
    }
    patch(json!([{"op": "remove", "path": "/spec/taints/0"}])).await.context("taking the taint off")?;
    refused("a deletion", nodes.delete("victim", &DeleteParams::default()).await, "nor deletes Nodes")?;

    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("drop.corewire.io", "v1alpha1", "CachedImage"));
    let images: Api<DynamicObject> = Api::all_with(operator.clone(), &kind);
    let mut image = DynamicObject::new("web", &kind);
    image.data = json!({"spec": {"image": "r.example.com/web"}});
    let created = images.create(&PostParams::default(), &image).await;
    refused("an image of nobody", created, "belong to a CachedImageSet")?;
    image.metadata.owner_references = Some(vec![serde_json::from_value(json!({
        "apiVersion": "drop.corewire.io/v1alpha1", "kind": "CachedImageSet", "name": "set", "uid": "u",
    }))?]);
    images.create(&PostParams::default(), &image).await.context("a child of a set")?;
    Ok(())
}

/// Pins are what Pods run, so one that no workload owns, and that would outlast all of them, is refused.
async fn pins_belong_to_their_workload(operator: &Client, namespace: &str) -> Result<()> {
    let pin = |owner: &str| {
        let workload = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u"});
        let mut reference = workload.clone();
        reference["uid"] = json!(owner);
        let digest = format!("sha256:{}", "a".repeat(64));
        let image = json!({"asked": "docker.io/library/nginx:1", "digest": digest, "resolvedAt": "2026-01-01T00:00:00Z"});
        serde_json::from_value(json!({
            "apiVersion": "fairlead.dev/v1alpha1", "kind": "ImagePin",
            "metadata": {"name": "web", "ownerReferences": [reference]},
            "spec": {"workload": workload, "revision": "1", "images": [image]},
        }))
    };
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("fairlead.dev", "v1alpha1", "ImagePin"));
    let pins: Api<DynamicObject> = Api::namespaced_with(operator.clone(), namespace, &kind);
    let foreign = pins.create(&PostParams::default(), &pin("another")?).await;
    refused("a pin that its workload does not own", foreign, "only ImagePins that their workload owns")?;
    pins.create(&PostParams::default(), &pin("u")?).await.context("a pin")?;
    Ok(())
}

async fn policies_and_webhooks_are_not_redirected(admin: &Client, operator: &Client) -> Result<()> {
    let params = PatchParams::default();
    for (group, kind, spec, redirected, finalizer, owner) in [
        (
            "kuik.enix.io",
            "ClusterImageSetMirror",
            json!({"imageFilter": {"include": [".*"]}, "mirrors": [{"registry": "r.example.com"}]}),
            json!({"mirrors": [{"registry": "evil.example.com"}]}),
            "kuik.enix.io/mirror-cleanup",
            "policy",
        ),
        (
            "harbor-reef.nvidia.com",
            "ProxyCache",
            json!({"type": "public", "name": "m", "url": "https://r.example.com"}),
            json!({"url": "https://evil.example.com"}),
            PROXY_CACHE_FINALIZER,
            "ProxyCache",
        ),
    ] {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, "v1alpha1", kind));
        let mut policy = DynamicObject::new("m", &resource);
        policy.data = json!({ "spec": spec });
        let theirs: Api<DynamicObject> = Api::all_with(admin.clone(), &resource);
        theirs.create(&PostParams::default(), &policy).await.context("an administrator's object")?;
        let policies: Api<DynamicObject> = Api::all_with(operator.clone(), &resource);
        let redirected = policies.patch("m", &params, &Patch::Merge(json!({ "spec": redirected }))).await;
        refused(kind, redirected, &format!("no field of a {owner}'s spec"))?;
        let held = Patch::Merge(json!({"metadata": {"finalizers": [finalizer]}}));
        policies.patch("m", &params, &held).await.context("a finalizer")?;
    }

    let webhooks: Api<MutatingWebhookConfiguration> = Api::all(operator.clone());
    let change = async |change: Value| {
        let mut webhook = json!({"name": "pods.fairlead.dev"});
        webhook.as_object_mut().expect("an object").extend(change.as_object().cloned().unwrap_or_default());
        webhooks.patch(NAME, &params, &Patch::Strategic(json!({ "webhooks": [webhook] }))).await
    };
    let words = "only the path and the CA bundle";
    let everything =
        json!([{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*"]}]);
    for (what, changed) in [
        ("rules", json!({ "rules": everything })),
        ("selector", json!({"namespaceSelector": {"$patch": "replace"}})),
        ("policy", json!({"failurePolicy": "Fail"})),
        ("Service", json!({"clientConfig": {"service": {"name": "evil", "namespace": "team"}}})),
        ("host", json!({"clientConfig": {"service": null, "url": "https://evil.example.com/"}})),
    ] {
        refused(what, change(changed).await, words)?;
    }
    change(json!({"clientConfig": {"service": {"path": "/mutate/x"}}})).await.context("the path")?;
    Ok(())
}

/// A tenant with `edit`, one with `admin`, and even a cluster administrator.
#[tokio::test]
async fn nobody_but_the_operator_writes_a_ledger() -> Result<()> {
    let (cluster, operator, namespace) = installed().await?;
    let admin = cluster.client().await?;
    let post = PostParams::default();
    ledgers(&operator, &namespace).create(&post, &ledger("kept")).await.context("the operator's ledger")?;
    let mut callers = vec![("cluster administrator".to_owned(), admin.clone())];
    for role in ["edit", "admin"] {
        let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": role}}))?;
        Api::namespaced(admin.clone(), &namespace).create(&post, &account).await?;
        let rights: RoleBinding = serde_json::from_value(json!({
            "metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": role, "namespace": namespace}],
        }))?;
        Api::namespaced(admin.clone(), &namespace).create(&post, &rights).await?;
        callers.push((format!("tenant with {role}"), cluster.client_as(&namespace, role).await?));
    }
    // Rights to these kinds are not part of the roles of tenants; here they have them all the same.
    let grant = ["create", "clusterrole", "ledgers", "--verb=*", "--resource=imageledgers.fairlead.dev"];
    cluster.kubectl(grant).await?;
    let group = format!("--group=system:serviceaccounts:{namespace}");
    cluster.kubectl(["create", "clusterrolebinding", "ledgers", "--clusterrole=ledgers", &group]).await?;

    let entry = json!({"source": "docker.io/library/a:1", "mirrors": [{
        "destination": "r.example.com/library/a:1", "state": "Pending", "since": "2026-01-01T00:00:00Z",
    }]});
    for (who, client) in &callers {
        let theirs = ledgers(client, &namespace);
        let params = PatchParams::default();
        eventually(SOON, || async { Ok(theirs.get("kept").await?) }).await.context("rights take effect")?;
        refused(who, theirs.create(&post, &ledger("forged")).await, "only the operator creates")?;
        let applied = theirs.patch("forged", &PatchParams::apply("x"), &Patch::Apply(ledger("forged"))).await;
        refused(who, applied, "only the operator creates")?;
        for forged in [json!({"spec": {"entries": [entry]}}), json!({"status": {"imageCount": 7}})] {
            refused(
                who,
                theirs.patch("kept", &params, &Patch::Merge(forged)).await,
                "only the operator changes",
            )?;
        }
        let free = json!({"metadata": {"labels": {"seen": "yes"}, "finalizers": []}});
        theirs
            .patch("kept", &params, &Patch::Merge(free))
            .await
            .with_context(|| format!("metadata, {who}"))?;
        theirs.delete("kept", &DeleteParams::default()).await.with_context(|| format!("deleting, {who}"))?;
        ledgers(&operator, &namespace)
            .create(&post, &ledger("kept"))
            .await
            .context("the operator's ledger")?;
    }
    // Garbage collection works: a namespace with a ledger goes.
    cluster.kubectl(["delete", "namespace", &namespace, "--timeout=60s"]).await.map(drop)
}
