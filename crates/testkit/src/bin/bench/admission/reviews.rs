//! What is asked: reviews of new Pods as an API server sends them, with everything that its defaults, its admission
//! plugins and the managers of fields have put into a Pod by then.

use std::fmt;

use anyhow::Result;
use clap::Args;
use serde_json::{Map, Value, json};

pub(crate) const NAMESPACES: usize = 20;
pub(crate) const IMAGES: usize = 50;
/// Two reviews for each image, so that images meet several namespaces.
pub(crate) const REVIEWS: usize = 2 * IMAGES;
/// Repositories of the images, below the registry.
const PREFIX: &str = "bench";
/// A label that all these Pods carry.
pub(crate) const MARK: (&str, &str) = ("example.com/fleet", "bench");

/// Repository of an image, and its tag.
pub(crate) fn image(number: usize) -> (String, String) {
    let number = number % IMAGES;
    (format!("{PREFIX}/team-{}/service-{number:02}", number % 7), format!("1.{number}.0"))
}

pub(crate) fn namespace(number: usize) -> String {
    format!("bench-{:02}", number % NAMESPACES)
}

/// A Pod about to be created, and what is said about it.
#[derive(Clone, Debug)]
pub(crate) struct Review {
    pub(crate) uid: String,
    /// Numbers of the images of its containers, in order.
    pub(crate) images: Vec<usize>,
    pub(crate) pod: Value,
    /// The request's body.
    pub(crate) body: Vec<u8>,
}

/// What Pods are like.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Containers of each Pod
    #[arg(long)]
    pub(crate) containers: usize,
    /// Pods as a person writes them in a hurry: a name and an image for each container, and what the API server adds
    #[arg(long)]
    pub(crate) plain: bool,
}

impl Shape {
    /// Pods as workloads have them.
    pub(crate) fn of(containers: usize) -> Self {
        Self { containers, plain: false }
    }

    /// Pods in which there is little to skip.
    pub(crate) fn plain(containers: usize) -> Self {
        Self { containers, plain: true }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = if self.plain { "plain " } else { "" };
        write!(f, "{plain}Pods of {}", self.containers)
    }
}

/// All reviews of Pods of this shape, whose images are in the registry `source`.
pub(crate) fn all(source: &str, shape: Shape) -> Result<Vec<Review>> {
    all_in(None, source, shape)
}

/// The same in one namespace, where that is named.
pub(crate) fn all_in(only: Option<&str>, source: &str, shape: Shape) -> Result<Vec<Review>> {
    let place = |number| only.map_or_else(|| namespace(number), str::to_owned);
    (0..REVIEWS).map(|number| review(source, shape, number, &place(number))).collect()
}

/// The review of this number. Each has other images than the one before.
fn review(source: &str, shape: Shape, number: usize, namespace: &str) -> Result<Review> {
    let images: Vec<usize> = (0..shape.containers).map(|place| (number + 17 * place) % IMAGES).collect();
    let mut pod = pod(source, namespace, number, &images);
    if shape.plain {
        strip(&mut pod);
    }
    Review::new(number, namespace, images, pod)
}

/// Reviews of Pods of one workload revision, which is none of the others', with one container of this image.
pub(crate) fn revision(image: &str, count: usize) -> Result<Vec<Review>> {
    let namespace = namespace(REVIEWS);
    let mut pod = pod("", &namespace, REVIEWS, &[0]);
    if let Some(written) = pod.pointer_mut("/spec/containers/0/image") {
        *written = image.into();
    }
    (0..count).map(|number| Review::new(number, &namespace, vec![0], pod.clone())).collect()
}

impl Review {
    fn new(number: usize, namespace: &str, images: Vec<usize>, pod: Value) -> Result<Self> {
        let uid = uid(number);
        let body = body(number, namespace, &pod)?;
        Ok(Self { uid, images, pod, body })
    }
}

fn body(number: usize, namespace: &str, pod: &Value) -> Result<Vec<u8>> {
    let user = json!({
        "username": "system:serviceaccount:kube-system:replicaset-controller",
        "uid": "5d0b4a4c-9a8e-4a27-9c3f-2d1f6f0c7a11",
        "groups": ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"],
        "extra": {"authentication.kubernetes.io/credential-id": [format!("JTI={}", self::uid(number + 7))]},
    });
    // In the order in which API servers write it.
    let body = format!(
        concat!(
            r#"{{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{{"uid":"{uid}","#,
            r#""kind":{{"group":"","version":"v1","kind":"Pod"}},"#,
            r#""resource":{{"group":"","version":"v1","resource":"pods"}},"#,
            r#""requestKind":{{"group":"","version":"v1","kind":"Pod"}},"#,
            r#""requestResource":{{"group":"","version":"v1","resource":"pods"}},"#,
            r#""namespace":"{namespace}","operation":"CREATE","userInfo":{user},"object":{pod},"oldObject":null,"#,
            r#""dryRun":false,"options":{{"kind":"CreateOptions","apiVersion":"meta.k8s.io/v1"}}}}}}"#,
        ),
        uid = uid(number),
        namespace = namespace,
        user = serde_json::to_string(&user)?,
        pod = serde_json::to_string(pod)?,
    );
    Ok(body.into_bytes())
}

fn uid(number: usize) -> String {
    format!("7b1c{number:04x}-41d2-4c0e-9f57-{:012x}", number * 7919)
}

fn pod(source: &str, namespace: &str, number: usize, images: &[usize]) -> Value {
    let app = format!("service-{number:02}");
    let hash = format!("{:08x}", number * 48_271 % 0xffff_ffff);
    let token = format!("kube-api-access-{}", &hash.get(3..).unwrap_or_default());
    let containers: Vec<Value> = images
        .iter()
        .enumerate()
        .map(|(place, image)| container(source, &app, place, *image, &token))
        .collect();
    json!({
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "generateName": format!("{app}-{hash}-"),
            "namespace": namespace,
            "creationTimestamp": null,
            "labels": labels(number, &app, &hash),
            "annotations": {
                "prometheus.io/scrape": "true",
                "prometheus.io/port": "8080",
                "checksum/config": format!("{:064x}", number * 982_451_653),
                "kubectl.kubernetes.io/restartedAt": "2026-03-02T10:11:12Z",
            },
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{app}-{hash}"),
                "uid": uid(number + 500), "controller": true, "blockOwnerDeletion": true,
            }],
            "managedFields": [{
                "manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1",
                "time": "2026-03-02T10:11:13Z", "fieldsType": "FieldsV1", "fieldsV1": managed(&containers),
            }],
        },
        "spec": {
            "volumes": [
                {"name": "config", "configMap": {"name": format!("{app}-config"), "defaultMode": 420}},
                {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
                service_account_volume(&token),
            ],
            "containers": containers,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "serviceAccountName": app,
            "serviceAccount": app,
            "securityContext": {"runAsNonRoot": true, "fsGroup": 2000, "seccompProfile": {"type": "RuntimeDefault"}},
            "affinity": {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{
                "weight": 100,
                "podAffinityTerm": {
                    "labelSelector": {"matchLabels": {"app.kubernetes.io/name": app}},
                    "topologyKey": "topology.kubernetes.io/zone",
                },
            }]}},
            "schedulerName": "default-scheduler",
            "tolerations": [
                {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
                {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            ],
            "priority": 0,
            "enableServiceLinks": true,
            "preemptionPolicy": "PreemptLowerPriority",
        },
        "status": {},
    })
}

/// Leaves only what every Pod has.
fn strip(pod: &mut Value) {
    let remove = |object: Option<&mut Value>, fields: &[&str]| {
        if let Some(object) = object.and_then(Value::as_object_mut) {
            object.retain(|field, _| !fields.contains(&field.as_str()));
        }
    };
    remove(pod.pointer_mut("/metadata"), &["annotations", "managedFields", "ownerReferences"]);
    remove(pod.pointer_mut("/spec"), &["affinity"]);
    for container in pod.pointer_mut("/spec/containers").and_then(Value::as_array_mut).into_iter().flatten() {
        let rare = [
            "args",
            "env",
            "envFrom",
            "livenessProbe",
            "ports",
            "readinessProbe",
            "resources",
            "securityContext",
        ];
        remove(Some(container), &rare);
    }
}

/// What differs between Pods: some labels are on all, others only on some.
fn labels(number: usize, app: &str, hash: &str) -> Map<String, Value> {
    let mut labels = Map::new();
    let mut set = |name: &str, value: &str| drop(labels.insert(name.to_owned(), Value::from(value)));
    set("app.kubernetes.io/name", app);
    set("app.kubernetes.io/instance", &format!("{app}-{}", number % 4));
    set("app.kubernetes.io/version", &format!("1.{}.0", number % IMAGES));
    set("app.kubernetes.io/managed-by", "Helm");
    set("pod-template-hash", hash);
    set("team", &format!("team-{}", number % 7));
    set(MARK.0, MARK.1);
    if number.is_multiple_of(2) {
        set("tier", if number.is_multiple_of(4) { "web" } else { "backend" });
    }
    if number.is_multiple_of(5) {
        set("canary", "true");
    }
    labels
}

fn container(source: &str, app: &str, place: usize, image: usize, token: &str) -> Value {
    let (repository, tag) = self::image(image);
    let mut environment: Vec<Value> = (0..4)
        .map(|number| {
            let value = format!("https://{app}-{number}.internal.example.com:8443/v1");
            json!({"name": format!("UPSTREAM_{number}_URL"), "value": value})
        })
        .collect();
    environment.push(
        json!({"name": "POD_NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}}),
    );
    environment.push(json!({
        "name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": format!("{app}-database"), "key": "password"}},
    }));
    let probe = |path: &str, period: u32| {
        json!({
            "httpGet": {"path": path, "port": "http", "scheme": "HTTP"},
            "initialDelaySeconds": 5, "timeoutSeconds": 1, "periodSeconds": period, "successThreshold": 1, "failureThreshold": 3,
        })
    };
    json!({
        "name": format!("container-{place}"),
        "image": format!("{source}/{repository}:{tag}"),
        "args": ["--listen=:8080", "--config=/etc/service/config.yaml", "--log-format=json"],
        "ports": [
            {"name": "http", "containerPort": 8080 + place, "protocol": "TCP"},
        ],
        "env": environment,
        "envFrom": [{"configMapRef": {"name": format!("{app}-environment")}}],
        "resources": {"limits": {"cpu": "1", "memory": "512Mi"}, "requests": {"cpu": "100m", "memory": "256Mi"}},
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/service"},
            {"name": "scratch", "mountPath": "/tmp"},
            {"name": token, "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
        ],
        "livenessProbe": probe("/healthz", 10),
        "readinessProbe": probe("/readyz", 5),
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
        "securityContext": {"capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false},
    })
}

fn service_account_volume(name: &str) -> Value {
    json!({"name": name, "projected": {"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [
            {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
        ]}},
    ]}})
}

/// Who set which field, in the form of `fieldsV1`: in real Pods a third of the text.
fn managed(containers: &[Value]) -> Value {
    let mut of_containers = Map::new();
    for container in containers {
        let name = container.get("name").and_then(Value::as_str).unwrap_or_default();
        of_containers.insert(format!(r#"k:{{"name":"{name}"}}"#), fields(container));
    }
    json!({
        "f:metadata": {
            "f:annotations": {".": {}, "f:checksum/config": {}, "f:prometheus.io/port": {}, "f:prometheus.io/scrape": {}},
            "f:generateName": {},
            "f:labels": {
                ".": {}, "f:app.kubernetes.io/name": {}, "f:app.kubernetes.io/instance": {}, "f:pod-template-hash": {},
            },
            "f:ownerReferences": {".": {}},
        },
        "f:spec": {
            "f:affinity": {".": {}, "f:podAntiAffinity": {}}, "f:containers": of_containers, "f:dnsPolicy": {},
            "f:enableServiceLinks": {}, "f:restartPolicy": {}, "f:schedulerName": {}, "f:securityContext": {},
            "f:serviceAccount": {}, "f:serviceAccountName": {}, "f:terminationGracePeriodSeconds": {}, "f:volumes": {".": {}},
        },
    })
}

fn fields(value: &Value) -> Value {
    match value {
        Value::Object(object) => {
            let mut all = Map::from_iter([(".".to_owned(), json!({}))]);
            all.extend(object.iter().map(|(name, value)| (format!("f:{name}"), fields(value))));
            Value::Object(all)
        }
        Value::Array(items) => {
            let named = |item: &Value| {
                let (key, name) = ["name", "mountPath"]
                    .into_iter()
                    .find_map(|key| Some((key, item.get(key)?.as_str()?.to_owned())))?;
                Some((format!(r#"k:{{"{key}":"{name}"}}"#), fields(item)))
            };
            Value::Object(items.iter().filter_map(named).collect())
        }
        _ => json!({}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::Pod;
    use kube::core::admission::{AdmissionRequest, AdmissionReview};

    #[test]
    fn reviews_are_what_they_claim() {
        for shape in [Shape::of(1), Shape::of(3), Shape::of(20), Shape::plain(3)] {
            let reviews = all("127.0.0.1:5000", shape).unwrap();
            let mut images: Vec<usize> = reviews.iter().flat_map(|review| review.images.clone()).collect();
            images.sort_unstable();
            images.dedup();
            assert_eq!(images.len(), IMAGES);
            let mut namespaces = Vec::new();
            for review in reviews {
                let read: AdmissionReview<Pod> = serde_json::from_slice(&review.body).unwrap();
                let request: AdmissionRequest<Pod> = read.try_into().unwrap();
                assert_eq!(request.uid, review.uid);
                let spec = request.object.unwrap().spec.unwrap();
                assert_eq!(spec.containers.len(), shape.containers);
                assert!(shape.plain || review.body.len() > 5000 + 3000 * (shape.containers - 1));
                namespaces.push(request.namespace.unwrap());
            }
            namespaces.sort_unstable();
            namespaces.dedup();
            assert_eq!(namespaces.len(), NAMESPACES);
        }
    }
}
