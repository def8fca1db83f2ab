//! Environment variables of the programs that Fairlead replaces. Where they are set, they win over the file, so that
//! a Deployment written for those programs goes on meaning what it meant.

use super::{
    checks::{check_url, is_dns_label},
    problem::{Problem, Problems},
    types::Config,
};

/// Variables that meant something once, and what to do instead.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("ENABLE_WEBHOOKS", "to turn admission off, delete the MutatingWebhookConfiguration"),
    ("LEADER_ELECTION_ENABLED", "replicas always elect a leader, a single one too"),
    ("LEASE_DURATION", "the lease lasts 10s, which lets another replica take over within 15s"),
    ("RENEW_DEADLINE", "a leader that cannot renew its lease stops acting after 8s"),
    ("RETRY_PERIOD", "the lease is renewed every 2s"),
];

pub(super) fn apply(
    config: &mut Config,
    problems: &mut Problems,
    warnings: &mut Vec<String>,
    variable: impl Fn(&str) -> Option<String>,
) {
    // A variable that is set to nothing says nothing.
    let value =
        |name: &str| variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());

    if let Some(list) = value("WATCH_NAMESPACE") {
        config.heal.namespaces.clear();
        for namespace in list.split(',').map(str::trim).filter(|namespace| !namespace.is_empty()) {
            if is_dns_label(namespace) {
                config.heal.namespaces.insert(namespace.to_owned());
            } else {
                let message =
                    format!("`{namespace}` is no name of a namespace: write names joined by commas");
                problems.push(Problem::of_variable("WATCH_NAMESPACE", message));
            }
        }
    }
    if let Some(url) = value("HARBOR_URL") {
        match check_url(&url) {
            Ok(()) => config.harbor.url = Some(url),
            Err(message) => problems.push(Problem::of_variable("HARBOR_URL", message)),
        }
    }
    if let Some(name) = value("HARBOR_ADMIN_SECRET") {
        config.harbor.admin_secret = name;
    }
    if let Some(key) = value("HARBOR_ADMIN_SECRET_KEY") {
        config.harbor.admin_secret_key = key;
    }
    if let Some(retain) = value("HARBOR_RETAIN_ON_DELETE") {
        config.harbor.retain_on_delete = retain.eq_ignore_ascii_case("true");
    }
    for (name, instead) in WITHOUT_EFFECT {
        if value(name).is_some() {
            warnings.push(format!("the environment variable {name} has no effect: {instead}"));
        }
    }
}
