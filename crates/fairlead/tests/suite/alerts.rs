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

/// What two replicas say while all is well.
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
    let cases = [
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
        (change("fairlead_leader{pod=\"a\"}", "0x120"), vec!["FairleadWithoutLeader{}"]),
    ];
    let tests: Vec<Value> = cases
        .iter()
        .map(|(changes, firing)| {
            let series = QUIET.iter().map(|(series, values)| {
                let changed = changes.iter().find(|(other, _)| other == series);
                let values = changed.map_or(*values, |(_, values)| *values);
                json!({ "series": series, "values": values })
            });
            let samples = firing.iter().map(|alert| {
                let (name, labels) = alert.split_once('{').expect("a name and labels");
                let comma = if labels == "}" { "" } else { "," };
                json!({ "labels": format!("{{alertname=\"{name}\"{comma}{labels}"), "value": 1 })
            });
            json!({
                "interval": "1m",
                "input_series": series.collect::<Vec<_>>(),
                "promql_expr_test": [{
                    "expr": "sum by (alertname, name, registry, kind, certificate) (ALERTS{alertstate=\"firing\"})",
                    "eval_time": "60m",
                    "exp_samples": samples.collect::<Vec<_>>(),
                }],
            })
        })
        .collect();
    let file = directory.path().join("tests.json");
    let text = json!({ "rule_files": ["alerts.json"], "evaluation_interval": "1m", "tests": tests });
    fs::write(&file, text.to_string()).unwrap();
    let said = promtool(&["test", "rules"], &file).unwrap();
    assert!(said.contains("SUCCESS"), "{said}");
}
