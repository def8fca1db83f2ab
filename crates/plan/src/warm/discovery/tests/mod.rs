//! Whole policies, from their text to their status.

mod registry;
mod requests;
mod rounds;
mod specs;

use fairlead_api::conditions::{ConditionStatus, find, merge};
use fairlead_api::drop::{DiscoveryPolicySpec, DiscoveryPolicyStatus};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;

fn now() -> Timestamp {
    "2026-03-10T12:00:00Z".parse().unwrap()
}

fn compiled(spec: Value) -> Result<Discovery, SpecError> {
    let spec: DiscoveryPolicySpec = serde_json::from_value(spec).unwrap();
    Discovery::compile(&spec)
}

fn discovery(spec: Value) -> Discovery {
    compiled(spec).unwrap()
}

fn prometheus(name: &str) -> Value {
    json!({
        "name": name, "type": "prometheus",
        "prometheus": {"endpoint": "http://prometheus.example:9090", "query": "up"},
    })
}

/// What Prometheus answers to a range query: images with the values of the last minutes.
fn matrix(series: &[(&str, &[f64])]) -> Vec<u8> {
    let result: Vec<Value> = series
        .iter()
        .map(|(image, values)| {
            let begin = now().as_second() - 60 * i64::try_from(values.len()).unwrap();
            let points = (1..).zip(*values).map(|(n, value)| json!([begin + 60 * n, value.to_string()]));
            json!({"metric": {"image": image, "pod": "p"}, "values": points.collect::<Vec<_>>()})
        })
        .collect();
    json!({"status": "success", "data": {"resultType": "matrix", "result": result}}).to_string().into_bytes()
}

/// Carries out the first query that is not a registry's with one response.
fn answered(query: &Query, status: u16, body: &[u8]) -> Result<Answer, Failure> {
    let mut reading = query.read(now()).unwrap();
    reading.take(status, body)?;
    Ok(reading.finish())
}

/// A status as it is stored after a round.
fn store(stored: &DiscoveryPolicyStatus, report: &Report) -> DiscoveryPolicyStatus {
    let generation = report.status.observed_generation;
    let conditions = merge(&stored.conditions, &report.findings, generation, now());
    DiscoveryPolicyStatus { conditions, ..report.status.clone() }
}

fn round(
    discovery: &Discovery,
    stored: &DiscoveryPolicyStatus,
    generation: i64,
    answers: &[Result<Answer, Failure>],
) -> DiscoveryPolicyStatus {
    round_after(discovery, (stored, true), generation, answers).0
}

/// A round after one whose list was complete or not.
fn round_after(
    discovery: &Discovery,
    (stored, complete): (&DiscoveryPolicyStatus, bool),
    generation: i64,
    answers: &[Result<Answer, Failure>],
) -> (DiscoveryPolicyStatus, bool) {
    let (generation, answers) = (Some(generation), &mut answers.to_vec()[..]);
    let report = discovery.report(Round { stored, complete, generation, answers, nodes: 2, now: now() });
    (store(stored, &report), report.complete)
}

/// Images, each with its score, or with its source where the policy has sources.
fn listed(status: &DiscoveryPolicyStatus) -> Vec<(&str, &str)> {
    let images = status.discovered_images.iter();
    images
        .map(|one| (&*one.image, one.final_score.as_deref().or(one.source.as_deref()).unwrap_or("")))
        .collect()
}

fn ready(status: &DiscoveryPolicyStatus) -> (bool, &str, &str) {
    let ready = find(&status.conditions, "Ready").unwrap();
    (ready.status == ConditionStatus::True, &ready.reason, &ready.message)
}
