//! The Helm chart through the real helm: its defaults are the plain manifests, its values are checked, and its switches
//! do what the documentation says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use fairlead_api::openshift::SOURCE_PATTERN;
use fairlead_operator::platform::install::{
    Certificates, PullSecrets, agent_rights, cluster_rights, deletion_rights, eviction_rights, explanation,
    guard, migration_rights, namespaced_rights, warm_rights,
};
use fairlead_plan::node_config::Scope;
use fairlead_testkit::assets::{Assets, Group};
use serde_json::{Map, Value, json};

use crate::yaml::{assert_generated, documents, fairlead, repository, title};

/// What `helm template` makes of values, or what it says against them.
pub fn template(values: &Value) -> Result<Vec<Value>> {
    let file = tempfile::Builder::new().suffix(".json").tempfile()?;
    std::fs::write(file.path(), serde_json::to_vec(values)?)?;
    template_file(file.path(), "fairlead")
}

fn template_file(values: &Path, release: &str) -> Result<Vec<Value>> {
    let home = tempfile::tempdir()?;
    let helm = Assets::build(&[Group::Helm])?.program("helm")?;
    let output = Command::new(helm)
        .args(["template", release])
        .arg(repository().join("charts/fairlead"))
        .args(["--namespace", "fairlead-system", "--kube-version", "1.33.0", "--values"])
        .arg(values)
        .env_clear()
        .env("HOME", home.path())
        .output()?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    documents(&String::from_utf8(output.stdout)?)
}

fn find<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

fn operator(objects: &[Value]) -> &Value {
    &find(objects, "Deployment")["spec"]["template"]["spec"]["containers"][0]
}

#[test]
fn generated_files_of_the_chart_are_up_to_date() {
    let directory = repository().join("charts/fairlead/files/crds");
    let mut expected = BTreeMap::new();
    for definition in fairlead_api::crds::all() {
        let text = fairlead_api::crds::to_yaml(&definition).unwrap();
        expected.insert(fairlead_api::crds::file_name(&definition), text);
    }
    for (name, text) in &expected {
        assert_generated(&format!("charts/fairlead/files/crds/{name}"), text);
    }
    for file in std::fs::read_dir(directory).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        assert!(expected.contains_key(&name), "charts/fairlead/files/crds/{name} has no kind: delete it");
    }

    let rights = |certificates, pull_secrets| {
        let role = |rights: Vec<_>| {
            json!({
                "annotations": explanation(&rights),
                "rules": rights.iter().map(fairlead_operator::platform::install::Right::rule).collect::<Vec<_>>(),
            })
        };
        json!({
            "cluster": role(cluster_rights(pull_secrets)),
            "namespaced": role(namespaced_rights(certificates)),
            "warm": role(warm_rights()),
            "evictions": role(eviction_rights()),
            "migrations": role(migration_rights()),
            "deletions": role(deletion_rights()),
            "agent": role(agent_rights()),
        })
    };
    let rights = |certificates| json!({ "copied": rights(certificates, PullSecrets::Copied), "kept": rights(certificates, PullSecrets::Kept) });
    let rights =
        json!({ "self": rights(Certificates::Own), "cert-manager": rights(Certificates::CertManager) });
    let text = format!(
        "# Rights of the operator with either maker of certificates, and with pull secrets copied or kept where they are, from\n\
         # crates/operator/src/platform/install/rights.rs (`make bless`).\n{}",
        serde_saphyr::to_string(&rights).unwrap()
    );
    assert_generated("charts/fairlead/files/rights.yaml", &text);

    let operator = guard::Account { namespace: "@namespace@", name: "@serviceAccount@" };
    let guards = [
        guard::of_operator(operator),
        guard::of_deletions(operator),
        guard::of_records(operator),
        guard::of_reports(),
    ];
    let guards = guards.map(|guard| {
        let name = guard.policy.metadata.name.unwrap();
        (name, json!({ "policy": guard.policy.spec, "binding": guard.binding.spec }))
    });
    let text = format!(
        "# Limits on writes, for a ServiceAccount that the template fills in, from\n\
         # crates/operator/src/platform/install/guard.rs (`make bless`).\n{}",
        serde_saphyr::to_string(&BTreeMap::from(guards)).unwrap()
    );
    assert_generated("charts/fairlead/files/guards.yaml", &text);
}

#[test]
fn writes_are_limited_for_the_account_that_the_values_name() {
    let values = json!({
        "serviceAccount": { "create": false, "name": "mine" },
        "configuration": { "routing": { "pullSecrets": { "copy": false } } },
    });
    let objects = template(&values).unwrap();
    let policies = objects.iter().filter(|object| object["kind"] == "ValidatingAdmissionPolicy");
    let conditions: Vec<_> =
        policies.filter_map(|policy| policy["spec"]["matchConditions"][0]["expression"].as_str()).collect();
    assert_eq!(conditions.len(), 3, "what protects reports of agents is not about the operator");
    for condition in conditions {
        assert!(condition.contains("'system:serviceaccount:fairlead-system:mine'"), "{condition}");
    }
    let bindings = objects.iter().filter(|object| object["kind"] == "ValidatingAdmissionPolicyBinding");
    assert!(
        bindings.count() == 4 && !objects.iter().any(|object| object.to_string().contains("@namespace@"))
    );
}

/// The schema of `configuration` is a part of the schema of all values, made from the keys that the operator declares.
#[test]
fn generated_schema_of_the_configuration_is_up_to_date() {
    let path = "charts/fairlead/values.schema.json";
    let text = std::fs::read_to_string(repository().join(path)).unwrap();
    let (before, rest) = text.split_once("\n    \"configuration\": ").expect("the value");
    let (_, after) = rest.split_once("\n    \"crds\": ").expect("the value after it");
    let schema = serde_json::to_string_pretty(&fairlead_operator::platform::config::schema()).unwrap();
    let schema = schema.replace('\n', "\n    ");
    let expected = format!("{before}\n    \"configuration\": {schema},\n    \"crds\": {after}");
    assert_generated(path, &expected);
}

#[test]
fn the_chart_is_the_version_of_the_program() {
    let chart = std::fs::read_to_string(repository().join("charts/fairlead/Chart.yaml")).unwrap();
    let chart = &documents(&chart).unwrap()[0];
    assert_eq!(chart["appVersion"], env!("CARGO_PKG_VERSION"));
    assert_eq!(chart["version"], env!("CARGO_PKG_VERSION"));
}

#[test]
fn defaults_of_the_chart_are_the_plain_manifests() {
    for (values, option) in [
        (json!({}), "self"),
        (json!({ "manager": { "webhook": { "certificates": "cert-manager" } } }), "cert-manager"),
    ] {
        let plain = fairlead(&["manifests", "--without-namespace", "--certificates", option]).unwrap();
        let plain = by_title(documents(&plain).unwrap());
        let mut chart = by_title(template(&values).unwrap());
        let empty = chart.remove("ConfigMap/fairlead-config").expect("a ConfigMap to be filled later");
        assert_eq!(empty.get("data"), None);
        assert_eq!(plain.keys().collect::<Vec<_>>(), chart.keys().collect::<Vec<_>>());
        for (name, object) in &plain {
            let difference = first_difference("", object, &chart[name]);
            assert_eq!(
                difference, None,
                "{name} with certificates by {option}: plain manifests and chart differ"
            );
        }
    }
}

#[test]
fn agents_of_the_chart_are_those_of_the_plain_manifests_and_leave_no_files_behind() {
    let configuration = json!({"nodes": {
        "insecureRegistries": ["a.test"], "blockedRegistries": ["b.test/x"], "router": false,
    }});
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), configuration.to_string()).unwrap();
    let config = format!("--config={}", file.path().display());
    let plain = fairlead(&["manifests", "--without-namespace", "--agents", &config]).unwrap();
    let plain = by_title(documents(&plain).unwrap());
    let values = |keep: bool| json!({"agent": {"enabled": true, "keepFiles": keep}, "configuration": configuration.clone()});
    let chart = by_title(template(&values(false)).unwrap());
    for (name, object) in &plain {
        if !name.starts_with("ConfigMap/") {
            assert_eq!(first_difference("", object, &chart[name]), None, "{name}");
        }
    }
    let only_chart = |chart: &BTreeMap<String, Value>| {
        chart.keys().filter(|name| !plain.contains_key(*name)).cloned().collect::<Vec<_>>()
    };
    let removal = only_chart(&chart);
    assert_eq!(removal.len(), 4, "{removal:?}");
    let job = removal.iter().find(|name| name.starts_with("Job/")).expect("a Job");
    assert_eq!(chart[job]["metadata"]["annotations"]["helm.sh/hook"], "pre-delete");
    assert!(only_chart(&by_title(template(&values(true)).unwrap())).is_empty());
}

#[test]
fn agents_send_containerd_to_mirrors_only_on_request() {
    let plain = fairlead(&["manifests", "--without-namespace", "--agents", "--redirect"]).unwrap();
    let plain = by_title(documents(&plain).unwrap());
    let chart = |redirect: bool, router: bool| {
        let agent = json!({"enabled": true, "redirect": redirect});
        let values = json!({"agent": agent, "configuration": {"nodes": {"router": router}}});
        by_title(template(&values).unwrap())
    };
    let redirects = |objects: &BTreeMap<String, Value>| {
        let agents = objects.iter().find(|(name, _)| name.starts_with("DaemonSet/")).expect("a DaemonSet").1;
        let container = &agents["spec"]["template"]["spec"]["containers"][0];
        container["args"].as_array().unwrap().contains(&json!("--redirect"))
    };
    assert!(redirects(&plain) && redirects(&chart(true, true)));
    // Without a router, the argument would be refused.
    assert!(!redirects(&chart(false, true)) && !redirects(&chart(true, false)));
}

#[test]
fn registries_that_agents_would_refuse_are_refused_by_the_chart() {
    let agents = std::fs::read_to_string(repository().join("charts/fairlead/templates/agent.yaml")).unwrap();
    assert!(agents.contains(&format!("`{SOURCE_PATTERN}`")), "the pattern is another one");
    for (place, is_right) in [
        ("a.test:5000/x", true),
        ("*.a.test", true),
        ("A.test/x_y", true),
        ("https://a.test", false),
        ("a b", false),
        ("a.test/", false),
        ("a.test/X", false),
        ("*.a.test/x", false),
        ("a.test:x", false),
    ] {
        assert_eq!(Scope::parse(place).is_ok(), is_right, "{place}");
        let values =
            json!({"agent": {"enabled": true}, "configuration": {"nodes": {"blockedRegistries": [place]}}});
        let rendered = template(&values);
        assert_eq!(rendered.is_ok(), is_right, "{place}: {:?}", rendered.err());
    }
}

#[test]
fn metrics_of_agents_are_read_where_they_can_be_reached() {
    let values = |address: &str| {
        let metrics = json!({"address": address, "podMonitor": {"create": true}});
        json!({"agent": {"enabled": true, "metrics": metrics}})
    };
    let error = template(&values("127.0.0.1:7781")).unwrap_err().to_string();
    assert!(error.contains("needs an agent.metrics.address that Prometheus reaches"), "{error}");
    let chart = by_title(template(&values("0.0.0.0:7790")).unwrap());
    let monitor = chart.iter().find(|(name, _)| name.starts_with("PodMonitor/")).expect("a PodMonitor").1;
    let endpoint = &monitor["spec"]["podMetricsEndpoints"][0];
    assert_eq!(endpoint["relabelings"][0]["replacement"], "${1}:7790");
    let agents = chart.iter().find(|(name, _)| name.starts_with("DaemonSet/")).expect("a DaemonSet").1;
    let container = &agents["spec"]["template"]["spec"]["containers"][0];
    assert!(container["args"].as_array().unwrap().contains(&json!("--status=0.0.0.0:7790")), "{container}");
}

/// Where two values part, and what either has there.
fn first_difference(path: &str, left: &Value, right: &Value) -> Option<String> {
    match (left, right) {
        _ if left == right => None,
        (Value::Object(left), Value::Object(right)) => {
            let keys = left.keys().chain(right.keys()).collect::<BTreeSet<_>>();
            let field = |fields: &Map<String, Value>, key| fields.get(key).cloned().unwrap_or_default();
            keys.into_iter().find_map(|key| {
                first_difference(&format!("{path}/{key}"), &field(left, key), &field(right, key))
            })
        }
        (Value::Array(left), Value::Array(right)) if left.len() == right.len() => left
            .iter()
            .zip(right)
            .enumerate()
            .find_map(|(index, (left, right))| first_difference(&format!("{path}/{index}"), left, right)),
        _ => Some(format!("{path} is {left} and {right}")),
    }
}

/// Without what only Helm writes, and without what says who manages an object.
fn by_title(objects: Vec<Value>) -> BTreeMap<String, Value> {
    objects
        .into_iter()
        .map(|mut object| {
            for place in ["/metadata", "/spec/template/metadata"] {
                let Some(metadata) = object.pointer_mut(place).and_then(Value::as_object_mut) else {
                    continue;
                };
                if let Some(labels) = metadata.get_mut("labels").and_then(Value::as_object_mut) {
                    labels.retain(|key, _| key != "helm.sh/chart" && key != "app.kubernetes.io/managed-by");
                }
                if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
                    annotations.remove("helm.sh/resource-policy");
                    if annotations.is_empty() {
                        metadata.remove("annotations");
                    }
                }
            }
            (title(&object), object)
        })
        .collect()
}

#[test]
fn every_definition_is_kept_at_uninstall_and_each_group_has_its_switch() {
    let groups = fairlead_api::crds::groups();
    let definitions = |values: &Value| {
        let objects = template(values).unwrap();
        objects.into_iter().filter(|object| object["kind"] == "CustomResourceDefinition").collect::<Vec<_>>()
    };
    let all = definitions(&json!({}));
    assert_eq!(all.len(), fairlead_api::crds::all().len());
    for definition in &all {
        assert_eq!(
            definition["metadata"]["annotations"]["helm.sh/resource-policy"],
            "keep",
            "{}",
            title(definition)
        );
    }
    for group in &groups {
        let left = definitions(&json!({ "crds": { "groups": { group: false } } }));
        assert!(left.len() < all.len(), "{group} has no switch");
        assert!(left.iter().all(|definition| definition["spec"]["group"] != group.as_str()), "{group}");
    }
    assert!(definitions(&json!({ "crds": { "create": false } })).is_empty());
}

#[test]
fn a_misspelt_or_impossible_value_is_refused_with_its_path() {
    for (values, named) in [
        (json!({ "manger": {} }), "manger"),
        (json!({ "manager": { "replica": 2 } }), "replica"),
        (json!({ "manager": { "replicas": 0 } }), "replicas"),
        (json!({ "image": { "pullPolicy": "Sometimes" } }), "pullPolicy"),
        (json!({ "image": { "repo": "example.com/fairlead" } }), "repo"),
        (json!({ "manager": { "webhook": { "certificates": "vault" } } }), "certificates"),
        (json!({ "crds": { "groups": { "example.com": true } } }), "example.com"),
        (json!({ "serviceAccount": { "create": false } }), "serviceAccount.name"),
        (json!({ "configuration": { "rooting": {} } }), "rooting"),
        (json!({ "configuration": { "routing": { "activeCheck": { "timout": "2s" } } } }), "timout"),
        (json!({ "configuration": { "registries": { "quay.io": { "plainHTTP": true } } } }), "plainHTTP"),
        (json!({ "configuration": { "mirroring": { "platforms": [{ "arch": "arm64" }] } } }), "arch"),
        (json!({ "configuration": { "mirroring": { "workers": "many" } } }), "workers"),
        (json!({ "configuration": { "heal": { "namespaces": "team-a" } } }), "namespaces"),
        (
            json!({ "manager": { "webhook": { "certificates": "cert-manager", "createCertificateIssuer": false } } }),
            "certificateIssuerRef",
        ),
    ] {
        let error = template(&values).expect_err(&format!("{values} was accepted")).to_string();
        assert!(error.contains(named), "{values}: {error}");
    }
}

/// What the operator accepts is not refused by Helm: every kind of value, empty ones included.
#[test]
fn every_kind_of_configuration_is_accepted() {
    let configuration = json!({
        "skipLabels": ["app in (a,b),!c"],
        "routing": { "activeCheck": { "timeout": 0, "resolveDigest": true }, "probe": null },
        "registries": {
            "default": { "requestsPerSecond": 2.5, "tokenHosts": ["auth.example.com"], "caFile": null },
            "reg.example.com:5000": { "plainHttp": true, "burst": 1, "tokenHosts": [] },
        },
        "mirroring": { "platforms": [{ "os": "linux", "architecture": "arm64", "variant": "" }] },
        "monitoring": { "registries": { "items": { "quay.io": { "timeout": "", "interval": "1h" } } } },
        "warm": { "maxPulls": "", "method": "run" },
        "account": { "pinning": "off" },
    });
    let text = serde_saphyr::to_string(&configuration).unwrap();
    fairlead_operator::platform::config::Config::parse(&text).unwrap();
    template(&json!({ "configuration": configuration })).unwrap();
}

/// Every value that kuik's chart has, set to something else than its default.
#[test]
fn a_values_file_of_kuik_is_understood() {
    let objects = template(&json!({
        "manager": {
            "replicas": 3,
            "image": { "repository": "registry.example.com/kuik", "tag": "2.1.0", "pullPolicy": "Always" },
            "verbosity": "DEBUG",
            "imagePullSecrets": [{ "name": "pull" }, "bare"],
            "podAnnotations": { "a": "b" },
            "podSecurityContext": { "fsGroup": 1 },
            "securityContext": { "runAsUser": 7 },
            "nodeSelector": { "pool": "system" },
            "tolerations": [{ "operator": "Exists" }],
            "affinity": { "nodeAffinity": {} },
            "topologySpreadConstraints": [{ "maxSkew": 2, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule" }],
            "env": [{ "name": "HTTPS_PROXY", "value": "http://proxy" }],
            "deploymentStrategy": { "type": "Recreate", "rollingUpdate": null },
            "priorityClassName": "system-cluster-critical",
            "pdb": { "create": true, "minAvailable": 1, "maxUnavailable": "50%" },
            "readinessProbe": { "periodSeconds": 7 },
            "livenessProbe": { "periodSeconds": 8 },
            "resources": { "requests": { "cpu": "1" }, "limits": { "cpu": "2", "memory": "1Gi" } },
            "serviceMonitor": {
                "create": true,
                "scrapeInterval": "15s",
                "scrapeTimeout": "5s",
                "extraLabels": { "release": "prometheus" },
                "relabelings": [{ "action": "labelmap", "regex": "a" }],
            },
            "webhook": {
                "createCertificateIssuer": false,
                "certificateIssuerRef": { "kind": "Issuer", "name": "kube-image-keeper-selfsigned-issuer" },
                "namespaceSelector": {
                    "matchExpressions": [{ "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"] }],
                    "matchLabels": { "team": "a" },
                },
            },
        },
        "rbac": { "create": true },
        "serviceAccount": { "create": true, "name": "keeper", "annotations": { "role": "x" }, "extraLabels": { "l": "m" } },
        "configuration": { "routing": { "activeCheck": { "timeout": "2s" } } },
    }))
    .unwrap();

    let pod = &find(&objects, "Deployment")["spec"]["template"];
    assert_eq!(find(&objects, "Deployment")["spec"]["replicas"], 3);
    assert_eq!(find(&objects, "Deployment")["spec"]["strategy"], json!({ "type": "Recreate" }));
    assert_eq!(pod["metadata"]["annotations"]["a"], "b");
    assert!(pod["metadata"]["annotations"]["checksum/config"].is_string());
    let spec = &pod["spec"];
    assert_eq!(spec["imagePullSecrets"], json!([{ "name": "pull" }, { "name": "bare" }]));
    assert_eq!(spec["serviceAccountName"], "keeper");
    assert_eq!(spec["securityContext"]["fsGroup"], 1);
    assert_eq!(spec["securityContext"]["runAsNonRoot"], true);
    assert_eq!(spec["nodeSelector"], json!({ "kubernetes.io/os": "linux", "pool": "system" }));
    let own = json!({ "key": "fairlead.dev/warming", "operator": "Exists" });
    assert_eq!(spec["tolerations"], json!([own, { "operator": "Exists" }]));
    assert_eq!(spec["affinity"], json!({ "nodeAffinity": {} }));
    assert_eq!(spec["topologySpreadConstraints"][0]["topologyKey"], "rack");
    assert_eq!(spec["priorityClassName"], "system-cluster-critical");
    let container = operator(&objects);
    let own = format!("ghcr.io/fairlead/fairlead:{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(container["image"], own.as_str(), "kuik's image, wherever it is kept, is not ours");
    assert_eq!(container["args"], json!(["operator", "--log-level=debug"]));
    assert_eq!(container["env"][2], json!({ "name": "HTTPS_PROXY", "value": "http://proxy" }));
    assert_eq!(container["securityContext"]["runAsUser"], 7);
    assert_eq!(container["readinessProbe"]["periodSeconds"], 7);
    assert_eq!(container["livenessProbe"]["periodSeconds"], 8);
    assert_eq!(container["resources"]["limits"], json!({ "cpu": "2", "memory": "1Gi" }));

    let budget = &find(&objects, "PodDisruptionBudget")["spec"];
    assert_eq!((&budget["maxUnavailable"], budget.get("minAvailable")), (&json!("50%"), None));
    let monitor = find(&objects, "ServiceMonitor");
    assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
    assert_eq!(monitor["spec"]["endpoints"][0]["interval"], "15s");
    let account = find(&objects, "ServiceAccount");
    assert_eq!(account["metadata"]["name"], "keeper");
    assert_eq!(account["metadata"]["annotations"], json!({ "role": "x" }));
    assert_eq!(account["metadata"]["labels"]["l"], "m");
    for binding in ["ClusterRoleBinding", "RoleBinding"] {
        assert_eq!(find(&objects, binding)["subjects"][0]["name"], "keeper");
    }
    assert!(!objects.iter().any(|object| object["kind"] == "Certificate"), "cert-manager was not asked for");

    let selector = &find(&objects, "MutatingWebhookConfiguration")["webhooks"][0]["namespaceSelector"];
    let excluded = selector["matchExpressions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["values"][0])
        .collect::<Vec<_>>();
    assert_eq!(excluded, ["fairlead-system", "kube-system"]);
    assert_eq!(selector["matchExpressions"][0]["values"], json!(["fairlead-system", "fairlead-nodes"]));
    assert_eq!(selector["matchLabels"], json!({ "team": "a" }));

    let text = find(&objects, "ConfigMap")["data"]["config.yaml"].as_str().unwrap();
    assert_eq!(documents(text).unwrap(), [json!({ "routing": { "activeCheck": { "timeout": "2s" } } })]);
}

#[test]
fn the_image_of_fairlead_has_values_of_its_own() {
    let image = json!({ "repository": "example.com/fairlead", "tag": "1", "pullPolicy": "Always" });
    let objects = template(&json!({ "image": image })).unwrap();
    let container = operator(&objects);
    assert_eq!(container["image"], "example.com/fairlead:1");
    assert_eq!(container["imagePullPolicy"], "Always");
}

/// Both sum up the content of the configuration, whatever its layout, so that moving from one to the other starts no
/// Pods.
#[test]
fn the_same_configuration_is_the_same_to_the_chart_and_to_plain_manifests() {
    let text = "# a comment\nskipLabels: [a]\nregistries:\n  default: {requestsPerSecond: 2.5, burst: 7}\nheal:\n  enabled: false\n";
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    let plain = fairlead(&["manifests", "--config", file.path().to_str().unwrap()]).unwrap();
    let chart = template(&json!({ "configuration": documents(text).unwrap()[0] })).unwrap();
    let annotations = |objects: &[Value]| {
        find(objects, "Deployment")["spec"]["template"]["metadata"]["annotations"].clone()
    };
    assert_eq!(annotations(&documents(&plain).unwrap()), annotations(&chart));
}

#[test]
fn another_configuration_starts_new_pods() {
    let checksum = |configuration: Value| {
        let objects = template(&json!({ "configuration": configuration })).unwrap();
        find(&objects, "Deployment")["spec"]["template"]["metadata"]["annotations"]["checksum/config"].clone()
    };
    let one = checksum(json!({ "skipLabels": ["a"] }));
    assert!(one.is_string());
    assert_ne!(one, checksum(json!({ "skipLabels": ["b"] })));
}

#[test]
fn switches_leave_out_what_they_name() {
    let kinds = |values: Value| {
        let objects = template(&values).unwrap();
        objects.iter().map(|object| object["kind"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for (values, gone) in [
        (
            json!({ "rbac": { "create": false } }),
            vec!["ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding"],
        ),
        (json!({ "networkPolicy": { "create": false } }), vec!["NetworkPolicy"]),
        (json!({ "manager": { "pdb": { "create": false } } }), vec!["PodDisruptionBudget"]),
        (json!({ "manager": { "replicas": 1 } }), vec!["PodDisruptionBudget"]),
        (json!({ "serviceAccount": { "create": false, "name": "there" } }), vec!["ServiceAccount"]),
    ] {
        let left = kinds(values.clone());
        assert!(gone.iter().all(|kind| !left.iter().any(|found| found == kind)), "{values}: {left:?}");
    }
}

/// The table of values in the documentation names every value there is, with its default where that is a plain one.
#[test]
fn every_value_is_documented_with_its_default() {
    let read = |path: &str| std::fs::read_to_string(repository().join(path)).unwrap();
    let page = read("docs/install.md");
    let rows = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|line| line.split_once("` | "))
        .collect::<BTreeMap<_, _>>();
    let values = documents(&read("charts/fairlead/values.yaml")).unwrap().remove(0);
    let mut leaves = Vec::new();
    collect("", &values, &rows, &mut leaves);
    for (path, value) in leaves {
        let row =
            rows.get(path.as_str()).unwrap_or_else(|| panic!("docs/install.md says nothing about {path}"));
        if !value.is_object() || value == json!({}) {
            let text = value
                .as_str()
                .filter(|text| !text.is_empty())
                .map_or_else(|| value.to_string(), str::to_owned);
            assert!(
                row.starts_with(&format!("`{text}` |")),
                "docs/install.md has another default for {path}: {row}"
            );
        }
    }
}

/// Values down to the depth at which the documentation speaks of them.
fn collect(path: &str, value: &Value, rows: &BTreeMap<&str, &str>, leaves: &mut Vec<(String, Value)>) {
    if path == "crds.groups" {
        return;
    }
    match value.as_object() {
        Some(fields) if !fields.is_empty() && !rows.contains_key(path) => {
            for (name, value) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                collect(&path, value, rows, leaves);
            }
        }
        _ => leaves.push((path.to_owned(), value.clone())),
    }
}
