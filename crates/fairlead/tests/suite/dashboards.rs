//! Dashboards ask for metrics that exist, in words that Prometheus understands.

use std::collections::BTreeSet;
use std::fs;

use serde_json::{Value, json};

use crate::alerts::promtool;
use crate::chart::template;
use crate::yaml::repository;

/// Every query of the dashboard for warming: those of its panels, and those that fill its variables.
fn queries() -> (Vec<String>, Vec<String>) {
    let file = repository().join("charts/fairlead/files/warming-dashboard.json");
    let dashboard: Value = serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap();
    let texts = |items: &Value, path: &str| -> Vec<String> {
        let items = items.as_array().unwrap().iter();
        items.filter_map(|item| item.pointer(path)?.as_str()).map(str::to_owned).collect()
    };
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.filter(|panel| panel["type"] != "row");
    let asked = targets.flat_map(|panel| {
        let asked = texts(&panel["targets"], "/expr");
        assert!(!asked.is_empty(), "{} asks for nothing", panel["title"]);
        asked
    });
    (asked.collect(), texts(&dashboard["templating"]["list"], "/query/query"))
}

/// Names of metrics in a text, those of a histogram's series as that of the histogram.
fn metrics(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let names = words.filter(|word| word.starts_with("drop_"));
    names.map(|name| name.strip_suffix("_bucket").unwrap_or(name).to_owned()).collect()
}

#[test]
fn the_dashboard_for_warming_asks_for_what_the_page_about_it_names_and_for_all_of_it() {
    let page = fs::read_to_string(repository().join("docs/warming.md")).unwrap();
    let documented: BTreeSet<String> =
        page.lines().filter(|line| line.starts_with("| `drop_")).flat_map(metrics).collect();
    let (asked, filling) = queries();
    let asked: BTreeSet<String> = asked.iter().chain(&filling).flat_map(|text| metrics(text)).collect();
    assert_eq!(asked, documented);
}

#[test]
fn the_chart_hands_the_dashboard_to_grafana_on_request_only() {
    let of = |values: &Value| {
        let objects = template(values).unwrap();
        objects.into_iter().find(|object| object["metadata"]["name"] == "fairlead-dashboards")
    };
    assert_eq!(of(&json!({})), None);
    let values = json!({"manager": {"dashboards": {"create": true, "extraLabels": {"team": "a"}}}});
    let made = of(&values).expect("a ConfigMap");
    let labels = &made["metadata"]["labels"];
    assert_eq!((&labels["grafana_dashboard"], &labels["team"]), (&json!("1"), &json!("a")));
    let file = repository().join("charts/fairlead/files/warming-dashboard.json");
    let read = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let held = read(made["data"]["fairlead-warming.json"].as_str().unwrap());
    assert_eq!(held, read(&fs::read_to_string(file).unwrap()));
}

#[test]
fn promtool_accepts_the_queries_of_the_dashboard() {
    let (asked, _) = queries();
    let rules = asked.iter().enumerate().map(|(number, text)| {
        let text = text.replace("$__rate_interval", "5m");
        json!({"record": format!("query:{number}"), "expr": text})
    });
    let file = json!({"groups": [{"name": "queries", "rules": rules.collect::<Vec<_>>()}]});
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("queries.json");
    fs::write(&path, file.to_string()).unwrap();
    let said = promtool(&["check", "rules"], &path).unwrap();
    assert!(said.contains(&format!("{} rules found", asked.len())), "{said}");
}
