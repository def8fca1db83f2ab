//! The alerts of the chart through the real promtool: they are valid, and they fire when they should.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::chart::template;
use crate::yaml::repository;

/// What promtool says about a file, if it has nothing against it.
pub fn promtool(arguments: &[&str], file: &Path) -> Result<String> {
    let output = Command::new("promtool")
        .args(arguments)
        .arg(file)
        .output()
        .context("promtool is not installed: run cluster/prerequisites.sh as root on Debian")?;
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "{said}");
    Ok(said)
}

/// The `PrometheusRule` that the chart makes.
fn rule() -> Value {
    let values = json!({ "manager": { "prometheusRule": { "create": true, "extraLabels": { "release": "prometheus" } } } });
    let objects = template(&values).unwrap();
    objects.into_iter().find(|object| object["kind"] == "PrometheusRule").expect("a PrometheusRule")
}

#[test]
fn the_rule_is_made_on_request_only_and_holds_the_alerts_as_they_are_written() {
    let without = template(&json!({})).unwrap();
    assert!(!without.iter().any(|object| object["kind"] == "PrometheusRule"), "its kind may be absent");

    let rule = rule();
    assert_eq!(rule["metadata"]["labels"]["release"], "prometheus");
    let written = fs::read_to_string(repository().join("charts/fairlead/files/alerts.yaml")).unwrap();
    let written = crate::yaml::documents(&written).unwrap().remove(0);
    assert_eq!(rule["spec"], written);
    for alert in rule["spec"]["groups"][0]["rules"].as_array().unwrap() {
        for text in ["summary", "description", "runbook"] {
            assert!(alert["annotations"][text].is_string(), "{}: no {text}", alert["alert"]);
        }
        assert!(alert["labels"]["severity"].is_string(), "{}", alert["alert"]);
    }
}

#[test]
fn promtool_accepts_the_alerts() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("alerts.json");
    fs::write(&file, rule()["spec"].to_string()).unwrap();
    let said = promtool(&["check", "rules"], &file).unwrap();
    assert!(said.contains("SUCCESS"), "{said}");
}

/// Writes of Pod statuses as API servers count them: those that succeed, and those that another write was faster than.
const STATUS_WRITES: &str =
    "apiserver_request_total{resource=\"pods\",subresource=\"status\",verb=\"PATCH\",code=\"200\"}";
const STATUS_CONFLICTS: &str =
    "apiserver_request_total{resource=\"pods\",subresource=\"status\",verb=\"PATCH\",code=\"409\"}";
/// Those that are refused, which have no series while there are none.
const STATUS_REFUSED: &str =
    "apiserver_request_total{resource=\"pods\",subresource=\"status\",verb=\"PATCH\",code=\"422\"}";

/// What two replicas say while all is well, and the API server.
const QUIET: &[(&str, &str)] = &[
    ("fairlead_leader{pod=\"a\"}", "1x120"),
    ("fairlead_leader{pod=\"b\"}", "0x120"),
    ("fairlead_watch_disappeared_images{name=\"all\",pod=\"a\"}", "0x120"),
    ("fairlead_mirror_copies{state=\"Failed\",pod=\"a\"}", "0x120"),
    ("fairlead_mirror_copies{state=\"Pending\",pod=\"a\"}", "7x120"),
    ("fairlead_mirror_copies{state=\"Refused\",pod=\"a\"}", "0x120"),
    ("fairlead_mirror_oldest_waiting_seconds{pod=\"a\"}", "30x120"),
    ("fairlead_mirror_oldest_waiting_seconds{pod=\"b\"}", "0x120"),
    ("fairlead_registry_down{registry=\"docker.io\",pod=\"a\"}", "0x120"),
    ("fairlead_registry_down{registry=\"quay.io\",pod=\"a\"}", "0x120"),
    ("fairlead_up{pod=\"a\"}", "1x120"),
    ("fairlead_up{pod=\"b\"}", "1x120"),
    ("fairlead_admission_requests_total{result=\"rewritten\",pod=\"a\"}", "0+60x120"),
    ("fairlead_admission_requests_total{result=\"recorded\",pod=\"b\"}", "0+40x120"),
    ("fairlead_admission_requests_total{result=\"late\",pod=\"a\"}", "0+1x120"),
    ("fairlead_admission_requests_total{result=\"panic\",pod=\"b\"}", "0x120"),
    ("fairlead_policies{kind=\"ImageSetMirror\",state=\"used\",pod=\"a\"}", "5x120"),
    ("fairlead_policies{kind=\"ImageSetMirror\",state=\"broken\",pod=\"a\"}", "0x120"),
    ("fairlead_policies{kind=\"ImageSetMirror\",state=\"broken\",pod=\"b\"}", "0x120"),
    ("drop_consecutive_failures{cachedimage=\"a\",image=\"r.test/a\",pod=\"a\"}", "2x120"),
    ("fairlead_mirror_policy_nodes{state=\"applied\",pod=\"a\"}", "9x120"),
    ("fairlead_mirror_policy_nodes{state=\"behind\",pod=\"a\"}", "0x120"),
    ("fairlead_mirror_policy_nodes{state=\"failing\",pod=\"a\"}", "0x120"),
    ("fairlead_router_requests_total{outcome=\"served\",registry=\"m.test\",node=\"a\"}", "0+5x120"),
    ("fairlead_router_requests_total{outcome=\"failed\",registry=\"m.test\",node=\"b\"}", "0+1x120"),
    ("fairlead_image_volume_pods_not_started{pod=\"a\"}", "0x120"),
    ("fairlead_image_volume_pods_not_started{pod=\"b\"}", "0x120"),
    ("fairlead_image_volume_findings{finding=\"misplaced\",pod=\"a\"}", "0x120"),
    ("fairlead_image_drift{kind=\"replicas\",pod=\"a\"}", "0x120"),
    ("fairlead_image_drift{kind=\"upstream\",pod=\"a\"}", "0x120"),
    // Conflicts and Pods that are gone are no failures.
    (STATUS_WRITES, "0+60x120"),
    (STATUS_CONFLICTS, "0+6x120"),
    // Tests begin at second 0: 30 and 300 days from then.
    ("fairlead_certificate_not_after_timestamp_seconds{certificate=\"leaf\",pod=\"a\"}", "2592000x120"),
    ("fairlead_certificate_not_after_timestamp_seconds{certificate=\"authority\",pod=\"a\"}", "25920000x120"),
];

/// Each alert with the series of two replicas that raise it after a while, or nearly do.
#[test]
fn each_alert_fires_for_what_it_names_and_for_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("alerts.json"), rule()["spec"].to_string()).unwrap();
    // What is otherwise, and which alert that raises, with the label that tells which of several it is.
    let gone = "_x30 stale";
    let change = |series, values| vec![(series, values)];
    let cases: Vec<(Changes, Vec<&str>)> = vec![
        (vec![], vec![]),
        (
            QUIET.iter().map(|(series, _)| (*series, gone)).collect(),
            vec!["FairleadAbsent{}", "FairleadWithoutLeader{}"],
        ),
        // One replica of two is enough.
        (vec![("fairlead_up{pod=\"b\"}", gone), ("fairlead_leader{pod=\"b\"}", gone)], vec![]),
        (
            change("fairlead_admission_requests_total{result=\"panic\",pod=\"b\"}", "0+10x120"),
            vec!["FairleadAdmissionErrors{}"],
        ),
        // Each replica sees them all, so two replicas are not two policies.
        (
            vec![
                ("fairlead_policies{kind=\"ImageSetMirror\",state=\"broken\",pod=\"a\"}", "1x120"),
                ("fairlead_policies{kind=\"ImageSetMirror\",state=\"broken\",pod=\"b\"}", "1x120"),
            ],
            vec!["FairleadPoliciesBroken{kind=\"ImageSetMirror\"}"],
        ),
        (
            change(
                "fairlead_certificate_not_after_timestamp_seconds{certificate=\"leaf\",pod=\"a\"}",
                "600000x120",
            ),
            vec!["FairleadCertificateExpiring{certificate=\"leaf\"}"],
        ),
        (
            change("fairlead_watch_disappeared_images{name=\"all\",pod=\"a\"}", "2x120"),
            vec!["FairleadImageDisappeared{name=\"all\"}"],
        ),
        (change("fairlead_watch_disappeared_images{name=\"all\",pod=\"a\"}", "0x57 2x60"), vec![]),
        (
            change("fairlead_mirror_copies{state=\"Failed\",pod=\"a\"}", "3x120"),
            vec!["FairleadCopiesFailing{}"],
        ),
        (
            change("fairlead_mirror_copies{state=\"Refused\",pod=\"a\"}", "1x120"),
            vec!["FairleadCopiesRefused{}"],
        ),
        (
            change("fairlead_mirror_oldest_waiting_seconds{pod=\"a\"}", "4000x120"),
            vec!["FairleadCopiesWaiting{}"],
        ),
        (
            change("fairlead_registry_down{registry=\"quay.io\",pod=\"a\"}", "1x120"),
            vec!["FairleadRegistryDown{registry=\"quay.io\"}"],
        ),
        (
            change("drop_consecutive_failures{cachedimage=\"a\",image=\"r.test/a\",pod=\"a\"}", "3x120"),
            vec!["FairleadWarmingFailing{}"],
        ),
        (
            change("fairlead_mirror_policy_nodes{state=\"failing\",pod=\"a\"}", "2x120"),
            vec!["FairleadNodesNotConfigured{}"],
        ),
        (change("fairlead_mirror_policy_nodes{state=\"behind\",pod=\"a\"}", "0x50 9x5 0x60"), vec![]),
        (
            change(
                "fairlead_router_requests_total{outcome=\"served\",registry=\"m.test\",node=\"a\"}",
                "5x120",
            ),
            vec!["FairleadMirrorFailing{registry=\"m.test\"}"],
        ),
        (change("fairlead_leader{pod=\"a\"}", "0x120"), vec!["FairleadWithoutLeader{}"]),
        (change(STATUS_REFUSED, "0+1x120"), vec!["FairleadPodStatusWritesFail{}"]),
        (change(STATUS_REFUSED, "0x55 0+1x65"), vec![]),
        (
            change("fairlead_image_volume_pods_not_started{pod=\"a\"}", "2x120"),
            vec!["FairleadImageVolumesNotStarting{}"],
        ),
        (change("fairlead_image_volume_pods_not_started{pod=\"a\"}", "0x55 2x65"), vec![]),
        (
            change("fairlead_image_drift{kind=\"replicas\",pod=\"a\"}", "1x120"),
            vec!["FairleadImageDrift{kind=\"replicas\"}"],
        ),
    ];
    let tests: Vec<Value> = cases
        .iter()
        .map(|(changes, firing)| {
            let samples = firing.iter().map(|alert| {
                let (name, labels) = alert.split_once('{').expect("a name and labels");
                let comma = if labels == "}" { "" } else { "," };
                json!({ "labels": format!("{{alertname=\"{name}\"{comma}{labels}"), "value": 1 })
            });
            json!({
                "interval": "1m",
                "input_series": series(changes),
                "promql_expr_test": [{
                    "expr": "sum by (alertname, name, registry, kind, certificate) (ALERTS{alertstate=\"firing\"})",
                    "eval_time": "60m",
                    "exp_samples": samples.collect::<Vec<_>>(),
                }],
            })
        })
        .collect();
    holds(directory.path(), &tests);
}

/// What is otherwise than it is while all is well.
type Changes = Vec<(&'static str, &'static str)>;

/// Recorded series and their values; none where they are absent.
type Indicators = &'static [(&'static str, Option<f64>)];

/// All series, some of them changed or added.
fn series(changes: &Changes) -> Vec<Value> {
    let kept = QUIET.iter().filter(|(series, _)| changes.iter().all(|(other, _)| other != series));
    kept.chain(changes).map(|(series, values)| json!({ "series": series, "values": values })).collect()
}

fn holds(directory: &Path, tests: &[Value]) {
    let file = directory.join("tests.json");
    let text = json!({ "rule_files": ["alerts.json"], "evaluation_interval": "1m", "tests": tests });
    fs::write(&file, text.to_string()).unwrap();
    let said = promtool(&["test", "rules"], &file).unwrap();
    assert!(said.contains("SUCCESS"), "{said}");
}

/// The indicators of KEP-5365 are 0 while all is well, so that a graph shows it, and absent only without their source.
#[test]
fn recorded_indicators_have_a_value_also_while_nothing_fails() {
    const RATIO: &str = "fairlead:pod_status_write_failures:ratio_rate10m";
    const NOT_STARTED: &str = "fairlead:image_volume_pods_not_started:max";
    const MISPLACED: &str = "fairlead:image_volume_references_misplaced:max";
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("alerts.json"), rule()["spec"].to_string()).unwrap();
    let gone = "_x120";
    let cases: [(Changes, Indicators); 5] = [
        (vec![], &[(RATIO, Some(0.0)), (NOT_STARTED, Some(0.0)), (MISPLACED, Some(0.0))]),
        // 60 refused of 60 + 60 + 120 in a minute.
        (
            vec![(STATUS_REFUSED, "0+60x120"), (STATUS_CONFLICTS, "0+60x120"), (STATUS_WRITES, "0+120x120")],
            &[(RATIO, Some(0.25))],
        ),
        // Nothing is written, and before that a write was refused.
        (
            vec![(STATUS_REFUSED, "1x120"), (STATUS_CONFLICTS, "5x120"), (STATUS_WRITES, "5x120")],
            &[(RATIO, Some(0.0))],
        ),
        (vec![(STATUS_CONFLICTS, gone), (STATUS_WRITES, gone)], &[(RATIO, None)]),
        (
            vec![
                ("fairlead_image_volume_pods_not_started{pod=\"a\"}", "3x120"),
                ("fairlead_image_volume_findings{finding=\"misplaced\",pod=\"a\"}", "2x120"),
                ("fairlead_image_volume_findings{finding=\"divergent\",pod=\"a\"}", "9x120"),
            ],
            &[(NOT_STARTED, Some(3.0)), (MISPLACED, Some(2.0))],
        ),
    ];
    let expected = |(name, value): &(&str, Option<f64>)| {
        let samples: Vec<Value> =
            value.iter().map(|value| json!({ "labels": "{}", "value": value })).collect();
        json!({ "expr": format!("round({name}, 0.001)"), "eval_time": "60m", "exp_samples": samples })
    };
    let of_case = |(changes, values): &(Changes, Indicators)| {
        let values: Vec<Value> = values.iter().map(expected).collect();
        json!({ "interval": "1m", "input_series": series(changes), "promql_expr_test": values })
    };
    holds(directory.path(), &cases.iter().map(of_case).collect::<Vec<_>>());
}
