//! Policies: one that is about the Pods of the load, and as many as wanted that are not. All four kinds, a third of
//! them with selectors; those would be about the images, but choose other Pods.

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{ListParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::reviews::{self, MARK};

/// Path below each mirror.
pub(crate) const COPIES: &str = "copies";

const AT_ONCE: usize = 8;
const KINDS: [(&str, &str); 4] = [
    ("ClusterImageSetMirror", "clusterimagesetmirrors"),
    ("ImageSetMirror", "imagesetmirrors"),
    ("ClusterReplicatedImageSet", "clusterreplicatedimagesets"),
    ("ReplicatedImageSet", "replicatedimagesets"),
];

/// Creates the policies of these numbers. Number 0 is the one about the Pods: it puts the mirrors, in this order,
/// before the original.
pub(crate) async fn create(
    client: &Client,
    numbers: std::ops::Range<usize>,
    source: &str,
    mirrors: &[String],
) -> Result<()> {
    stream::iter(numbers)
        .map(|number| async move {
            let (policy, plural) = if number == 0 {
                (matching(source, mirrors), KINDS.first().map_or("", |kind| kind.1))
            } else {
                other(number)
            };
            let object: DynamicObject = serde_json::from_value(policy)?;
            let kind = object.types.clone().map(|types| types.kind).unwrap_or_default();
            let resource = resource(&kind, plural);
            let api: Api<DynamicObject> = match object.metadata.namespace.clone() {
                Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
                None => Api::all_with(client.clone(), &resource),
            };
            api.create(&PostParams::default(), &object)
                .await
                .with_context(|| format!("{kind} number {number}"))?;
            Ok(())
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

/// How many policies say in their status what became of them.
pub(crate) async fn answered(client: &Client) -> Result<usize> {
    let mut count = 0;
    for (kind, plural) in KINDS {
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource(kind, plural));
        let all = api.list(&ListParams::default()).await.with_context(|| format!("listing {kind}"))?;
        count += all.iter().filter(|policy| policy.data.pointer("/status/conditions").is_some()).count();
    }
    Ok(count)
}

fn resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("kuik.enix.io", "v1alpha1", kind), plural)
}

fn matching(source: &str, mirrors: &[String]) -> Value {
    let mirrors: Vec<Value> =
        mirrors.iter().map(|host| json!({"registry": host, "path": format!("/{COPIES}")})).collect();
    json!({
        "apiVersion": "kuik.enix.io/v1alpha1",
        "kind": "ClusterImageSetMirror",
        "metadata": {"name": "bench"},
        "spec": {
            "priority": -1,
            "filter": {"include": [
                {"image": format!("{source}/bench/.+")},
                {"label": format!("{}={}", MARK.0, MARK.1)},
            ]},
            "mirrors": mirrors,
        },
    })
}

/// A policy that is about other Pods, and the plural of its kind.
fn other(number: usize) -> (Value, &'static str) {
    let (kind, plural) = KINDS.get(number % KINDS.len()).copied().unwrap_or_default();
    let has_selector = number.is_multiple_of(3);
    let (is_cluster, is_mirror) = (kind.starts_with("Cluster"), kind.ends_with("Mirror"));
    let mut include = Vec::new();
    if has_selector {
        include.push(selector(number, is_cluster));
    }
    let spec = if is_mirror {
        let pattern = if has_selector { ".*/bench/.+".to_owned() } else { pattern(number) };
        include.push(json!({"image": pattern}));
        json!({
            "priority": priority(number),
            "filter": {"include": include},
            "mirrors": [{"registry": format!("mirror-{}.example.com", number % 10), "path": format!("/m-{number}")}],
        })
    } else {
        let path = if has_selector { "/bench".to_owned() } else { format!("/team-{number}") };
        let images = json!({"include": [format!("{path}/.+")]});
        json!({
            "priority": priority(number),
            "filter": {"include": include},
            "upstreams": [
                {"registry": format!("registry-{number}.example.com"), "path": path, "imageFilter": images},
                {"registry": format!("replica-{}.example.com", number % 10), "path": path, "imageFilter": images},
            ],
        })
    };
    let mut metadata = json!({"name": format!("policy-{number:04}")});
    if !is_cluster && let Some(metadata) = metadata.as_object_mut() {
        metadata.insert("namespace".to_owned(), reviews::namespace(number / KINDS.len()).into());
    }
    let policy =
        json!({"apiVersion": "kuik.enix.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec});
    (policy, plural)
}

/// Before and after the original, and beside it.
fn priority(number: usize) -> i64 {
    i64::try_from(number % 5).unwrap_or_default() - 2
}

/// Images of other people, as they are written: by registry, by team, by name.
fn pattern(number: usize) -> String {
    match number % 3 {
        1 => format!(r"registry-{number}\.example\.com/.+"),
        _ if number.is_multiple_of(2) => format!(r"docker\.io/team-{number}/.+"),
        _ => format!(".*/legacy-{number}:.+"),
    }
}

/// Other Pods, as they are chosen: by label, by annotation, by namespace.
fn selector(number: usize, is_cluster: bool) -> Value {
    match number / 3 % 6 {
        0 => json!({"label": format!("team=other-{number}")}),
        1 => json!({"label": format!("tier in (batch-{number},jobs)")}),
        2 => json!({"annotation": format!("example.com/owner=person-{number}")}),
        3 => json!({"label": format!("app.kubernetes.io/name=elsewhere-{number},!pod-template-hash")}),
        4 if is_cluster => json!({"namespace": format!("tenant-{number}-.+")}),
        _ => json!({"annotation": format!("example.com/route-{number}")}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_kinds_and_a_third_with_selectors() {
        let all: Vec<(Value, &str)> = (1..1000).map(other).collect();
        for (kind, plural) in KINDS {
            let count = all.iter().filter(|(policy, of)| policy["kind"] == kind && *of == plural).count();
            assert!(count >= 249, "{kind}: {count}");
        }
        let looks_at_pods = |policy: &Value| {
            let include = policy["spec"]["filter"]["include"].as_array().unwrap();
            include.iter().any(|item| item.get("image").is_none())
        };
        assert_eq!(all.iter().filter(|(policy, _)| looks_at_pods(policy)).count(), 333);
    }
}
