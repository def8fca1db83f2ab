//! The alerts of the chart through the real promtool: they are valid, and they fire when they should.

use std::{fs, path::Path, process::Command};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::{chart::template, yaml::repository};

/// What promtool says about a file, if it has nothing against it.
fn promtool(arguments: &[&str], file: &Path) -> Result<String> {
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

/// Each alert with the series of two replicas that raise it after a while, or nearly do.
#[test]
fn each_alert_fires_for_what_it_names_and_for_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("alerts.json"), rule()["spec"].to_string()).unwrap();
    let quiet = [
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
    ];
    // What is otherwise, and which alert that raises, with the label that tells which of several it is.
    let cases = [
        (None, vec![]),
        (
            Some(("fairlead_watch_disappeared_images{name=\"all\",pod=\"a\"}", "2x120")),
            vec!["FairleadImageDisappeared{name=\"all\"}"],
        ),
        (Some(("fairlead_watch_disappeared_images{name=\"all\",pod=\"a\"}", "0x57 2x60")), vec![]),
        (
            Some(("fairlead_mirror_copies{state=\"Failed\",pod=\"a\"}", "3x120")),
            vec!["FairleadCopiesFailing{}"],
        ),
        (
            Some(("fairlead_mirror_copies{state=\"Refused\",pod=\"a\"}", "1x120")),
            vec!["FairleadCopiesRefused{}"],
        ),
        (
            Some(("fairlead_mirror_oldest_waiting_seconds{pod=\"a\"}", "4000x120")),
            vec!["FairleadCopiesWaiting{}"],
        ),
        (
            Some(("fairlead_registry_down{registry=\"quay.io\",pod=\"a\"}", "1x120")),
            vec!["FairleadRegistryDown{registry=\"quay.io\"}"],
        ),
        (Some(("fairlead_leader{pod=\"a\"}", "0x120")), vec!["FairleadWithoutLeader{}"]),
    ];
    let tests: Vec<Value> = cases
        .iter()
        .map(|(change, firing)| {
            let series = quiet.iter().map(|(series, values)| {
                let values =
                    change.filter(|(other, _)| other == series).map_or(*values, |(_, values)| values);
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
                    "expr": "sum by (alertname, name, registry) (ALERTS{alertstate=\"firing\"})",
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
