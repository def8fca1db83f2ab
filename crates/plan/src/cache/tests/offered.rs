//! What an object says about whether Pods are sent to it.

use fairlead_api::reef::{OFFERED, ProxyCache};

use super::*;

fn status(phase: ProxyCachePhase, health: ProxyCacheHealth) -> ProxyCacheStatus {
    ProxyCacheStatus { phase: Some(phase), health: Some(health), ..ProxyCacheStatus::default() }
}

#[test]
fn a_cache_says_why_it_is_not_offered() {
    use ProxyCacheHealth::{Healthy, Unhealthy, Unknown};
    use ProxyCachePhase::{Error, Pending, Ready};
    let missing = ["Secret vault/pull does not exist".to_owned()];
    for (error, secrets, phase, health, reason, words) in [
        (None, &[][..], Ready, Healthy, "Offered", ""),
        (Some("spec.url: has a path"), &[], Ready, Healthy, "InvalidSpec", "has a path"),
        (Some("spec.url: has a path"), &[], Error, Unknown, "InvalidSpec", "has a path"),
        (None, &missing, Ready, Healthy, "SecretUnavailable", "vault/pull does not exist"),
        (None, &[], Error, Healthy, "NotReady", "not ready"),
        (None, &[], Ready, Unhealthy, "NotHealthy", "healthy"),
        (None, &[], Ready, Unknown, "NotHealthy", "healthy"),
        (Some("spec.routing: no Harbor"), &[], Pending, Unknown, "HarborNotConfigured", ""),
    ] {
        let finding = offered(&Offer { error, secrets, status: &status(phase, health) });
        assert_eq!((finding.type_, &*finding.reason), (OFFERED, reason), "{finding:?}");
        assert_eq!(finding.status, (reason == "Offered").into());
        assert!(finding.message.contains(words), "{finding:?}");
    }
}

#[test]
fn what_routing_does_not_take_is_named() {
    let of = |routing: serde_json::Value, url: &str| {
        let spec = json!({"type": "public", "name": "quay", "url": url, "routing": routing});
        let object = json!({
            "apiVersion": "harbor-reef.nvidia.com/v1alpha1", "kind": "ProxyCache",
            "metadata": {"name": "quay", "uid": "u"}, "spec": spec,
        });
        let object: ProxyCache = serde_json::from_value(object).unwrap();
        routing_error(&object, Some("harbor.example.com"))
    };
    assert_eq!(of(json!({"priority": 1}), QUAY), None);
    assert_eq!(of(json!(null), "https://quay.io/team"), None, "it does not ask for it");
    let error = of(json!({"priority": 1}), "https://quay.io/team").unwrap();
    assert!(error.contains("spec.url: has a path"), "{error}");
}

#[test]
fn a_status_that_says_the_same_of_the_offer_is_not_written() {
    let now = Timestamp::UNIX_EPOCH;
    let found = |status: &ProxyCacheStatus| offered(&Offer { error: None, secrets: &[], status });
    let first = report(None, Some(1), &seen(Health::Healthy, None), 0, now);
    let finding = found(&first.status);
    assert_eq!(finding.reason, "Offered", "what is stored beside it counts");
    let first = first.and([finding]);
    let conditions = merge(&[], &first.findings, Some(1), now);
    let stored = ProxyCacheStatus { conditions, ..first.status };
    let again = report(Some(&stored), Some(1), &seen(Health::Healthy, None), 0, now);
    let finding = found(&again.status);
    assert!(says(Some(&stored), &again.clone().and([finding])));
    let missing = ["Secret vault/pull does not exist".to_owned()];
    let other = offered(&Offer { error: None, secrets: &missing, status: &again.status });
    assert!(!says(Some(&stored), &again.and([other])));
}
