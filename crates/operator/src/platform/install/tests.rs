//! The promises of an installation that can be read off the objects; what the API server says to them is tested
//! elsewhere.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Certificates, InstallSettings, Manifest, WEBHOOK_NAME, namespace, objects, render};

fn installed(settings: &InstallSettings) -> Vec<Value> {
    objects(settings).unwrap().into_iter().map(|manifest| manifest.object).collect()
}

fn kind<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|object| object["kind"] == kind).unwrap_or_else(|| panic!("no {kind}"))
}

#[test]
fn the_webhook_can_never_stop_a_pod_and_leaves_its_own_namespace_alone() {
    let settings = InstallSettings { namespace: "pulls".into(), ..InstallSettings::default() };
    let objects = installed(&settings);
    let webhook = &kind(&objects, "MutatingWebhookConfiguration")["webhooks"][0];
    assert_eq!(webhook["name"], WEBHOOK_NAME);
    assert_eq!(webhook["failurePolicy"], "Ignore");
    assert_eq!(webhook["timeoutSeconds"], 5);
    assert_eq!(
        webhook["namespaceSelector"]["matchExpressions"],
        json!([{ "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["pulls", "fairlead-nodes"] }])
    );
    assert_eq!(webhook["clientConfig"]["service"]["namespace"], "pulls");
    assert_eq!(webhook["clientConfig"].get("caBundle"), None, "applying again would take the bundle away");
    assert_eq!(
        webhook["clientConfig"]["service"].get("path"),
        None,
        "applying again would take the path away"
    );
}

#[test]
fn every_namespaced_object_is_in_the_chosen_namespace_and_nothing_names_another() {
    let settings = InstallSettings {
        namespace: "pulls".into(),
        certificates: Certificates::CertManager,
        configuration: Some("{}".into()),
        ..InstallSettings::default()
    };
    let text = render(&objects(&settings).unwrap()).unwrap();
    assert!(!text.contains("fairlead-system"), "{text}");
    for object in installed(&settings) {
        let cluster_wide = [
            "ClusterRole",
            "ClusterRoleBinding",
            "MutatingWebhookConfiguration",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
        ];
        let kind = object["kind"].as_str().unwrap();
        let expected = if cluster_wide.contains(&kind) { Value::Null } else { json!("pulls") };
        assert_eq!(object["metadata"]["namespace"], expected, "{kind}");
    }
}

/// Role, resource and verb of everything that is granted.
fn granted(objects: &[Value]) -> BTreeSet<(String, String, String)> {
    let mut granted = BTreeSet::new();
    for name in ["ClusterRole", "Role"] {
        for rule in kind(objects, name)["rules"].as_array().unwrap() {
            for resource in rule["resources"].as_array().unwrap() {
                for verb in rule["verbs"].as_array().unwrap() {
                    let text = |value: &Value| value.as_str().unwrap().to_owned();
                    granted.insert((name.to_owned(), text(resource), text(verb)));
                }
            }
        }
    }
    granted
}

#[test]
fn secrets_are_never_listed_and_written_elsewhere_only_while_they_are_copied() {
    let verbs = |configuration: &str| {
        let configuration = Some(configuration.to_owned());
        let objects = installed(&InstallSettings { configuration, ..InstallSettings::default() });
        let granted = granted(&objects).into_iter();
        let of_secrets = granted.filter(|(role, resource, _)| role == "ClusterRole" && resource == "secrets");
        of_secrets.map(|(_, _, verb)| verb).collect::<Vec<_>>()
    };
    assert_eq!(verbs("{}"), ["create", "delete", "get", "patch"]);
    assert_eq!(verbs("routing: {pullSecrets: {copy: false}}"), ["get"]);
}

#[test]
fn cert_manager_takes_the_right_to_write_certificates_from_the_operator() {
    let settings = InstallSettings { certificates: Certificates::CertManager, ..InstallSettings::default() };
    let objects = installed(&settings);
    let rules = kind(&objects, "Role")["rules"].to_string();
    assert!(rules.contains("fairlead-webhook-path") && !rules.contains("fairlead-webhook-tls"), "{rules}");
    let container = &kind(&objects, "Deployment")["spec"]["template"]["spec"]["containers"][0];
    assert!(container["args"].as_array().unwrap().contains(&json!("--certificates-dir=/certificates")));
    let annotations = &kind(&objects, "MutatingWebhookConfiguration")["metadata"]["annotations"];
    assert_eq!(annotations["cert-manager.io/inject-ca-from"], "fairlead-system/fairlead-webhook");
}

#[test]
fn every_rule_of_a_role_has_its_reason_beside_it() {
    let objects = installed(&InstallSettings::default());
    for role in [kind(&objects, "ClusterRole"), kind(&objects, "Role")] {
        let reasons = role["metadata"]["annotations"]["fairlead.dev/reasons"].as_str().unwrap();
        assert_eq!(reasons.lines().count(), role["rules"].as_array().unwrap().len(), "{reasons}");
    }
}

#[test]
fn a_single_replica_gets_no_budget_that_would_forbid_draining_its_node() {
    let objects = installed(&InstallSettings { replicas: 1, ..InstallSettings::default() });
    assert!(objects.iter().all(|object| object["kind"] != "PodDisruptionBudget"));
    kind(&installed(&InstallSettings::default()), "PodDisruptionBudget");
}

#[test]
fn another_configuration_starts_new_pods() {
    let checksum = |text: &str| {
        let objects =
            installed(&InstallSettings { configuration: Some(text.into()), ..InstallSettings::default() });
        assert_eq!(kind(&objects, "ConfigMap")["data"]["config.yaml"], text);
        kind(&objects, "Deployment")["spec"]["template"]["metadata"]["annotations"]["checksum/config"].clone()
    };
    assert!(checksum("skipLabels: []").is_string());
    assert_ne!(checksum("skipLabels: []"), checksum("skipLabels: [a]"));
}

#[test]
fn printed_yaml_reads_back_as_the_same_objects() {
    let settings =
        InstallSettings { configuration: Some("a: |\n  b\n# yes\n".into()), ..InstallSettings::default() };
    let mut manifests = vec![namespace(&settings).unwrap()];
    manifests.extend(objects(&settings).unwrap());
    let text = render(&manifests).unwrap();
    let read = serde_saphyr::from_multiple::<Value>(&text).unwrap();
    let printed = manifests.into_iter().map(|Manifest { object, .. }| object).collect::<Vec<_>>();
    assert_eq!(read, printed);
}

#[test]
fn names_that_the_api_server_would_refuse_are_refused_first() {
    for wrong in ["", "-a", "a-", "A", "a.b", &"a".repeat(64)] {
        let error =
            objects(&InstallSettings { namespace: wrong.into(), ..InstallSettings::default() }).unwrap_err();
        assert!(error.to_string().contains("63 lower-case letters"), "{error}");
    }
    let error = objects(&InstallSettings { image: " ".into(), ..InstallSettings::default() }).unwrap_err();
    assert!(error.to_string().contains("name the image"), "{error}");
}
