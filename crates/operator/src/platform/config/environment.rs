//! Environment variables of the programs that Fairlead replaces. Where they are set, they win over the file, so that
//! a Deployment written for those programs goes on meaning what it meant. A wrong one is reported and stops nothing:
//! those programs went on healing, and admission does not depend on any of them.

use super::{
    checks::{check_url, is_dns_label},
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
    warnings: &mut Vec<String>,
    variable: impl Fn(&str) -> Option<String>,
) {
    // A variable that is set to nothing says nothing.
    let value =
        |name: &str| variable(name).map(|value| value.trim().to_owned()).filter(|value| !value.is_empty());

    if let Some(list) = value("WATCH_NAMESPACE") {
        config.heal.namespaces.clear();
        for namespace in list.split(',').map(str::trim).filter(|namespace| !namespace.is_empty()) {
            // It stays in the list, where it matches nothing: a limit that cannot be read is no leave to heal
            // everywhere.
            config.heal.namespaces.insert(namespace.to_owned());
            if !is_dns_label(namespace) {
                warnings.push(format!(
                    "the environment variable WATCH_NAMESPACE: `{namespace}` is no name of a namespace, so nothing is \
                     healed for it: write names joined by commas"
                ));
            }
        }
    }
    if let Some(url) = value("HARBOR_URL") {
        let checked = check_url(&url);
        config.harbor.url = checked.is_ok().then_some(url);
        if let Err(message) = checked {
            warnings.push(format!(
                "the environment variable HARBOR_URL {message}; until then ProxyCache objects are left alone"
            ));
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
