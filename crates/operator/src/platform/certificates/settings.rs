//! What the keeper must know: where its objects are, and what the certificates should say.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use fairlead_plan::certificates::{Settings as Plan, ValidityError};
use rustls::pki_types::ServerName;

/// Names and times of the webhook's certificates and of its path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The operator's own namespace, where the Secret and the Service are.
    pub namespace: String,
    pub secret: String,
    /// The `MutatingWebhookConfiguration` whose bundle and path are kept.
    pub configuration: String,
    pub(super) plan: Plan,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    #[error("{0}; set it with --certificate-validity")]
    Validity(#[from] ValidityError),
    #[error("`{0}` cannot be a name in a certificate: give --certificate-name a DNS name or an IP address")]
    Name(String),
}

impl Settings {
    /// The Secret that holds authority and leaf.
    pub const SECRET: &str = "fairlead-webhook-tls";
    /// The Secret that holds the tokens of the path where certificates come from files.
    pub const PATH_SECRET: &str = "fairlead-webhook-path";
    /// The Service through which the API server calls.
    pub const SERVICE: &str = "fairlead-webhook";

    /// Settings for the webhook's Service in `namespace`, with further names or addresses to put into the leaf.
    pub fn new(
        namespace: &str,
        configuration: &str,
        further_names: &[String],
        validity: Duration,
    ) -> Result<Self, SettingsError> {
        let service = format!("{}.{namespace}.svc", Self::SERVICE);
        let cluster_name = format!("{service}.cluster.local");
        let names = further_names
            .iter()
            .chain([&service, &cluster_name])
            .map(|name| normalise(name))
            .collect::<Result<BTreeSet<_>, _>>()?;
        Ok(Self {
            namespace: namespace.to_owned(),
            secret: Self::SECRET.to_owned(),
            configuration: configuration.to_owned(),
            plan: Plan::new(validity, names)?,
        })
    }

    /// Settings for the path alone, where certificates come from files. `validity` paces a change of token as it does
    /// with certificates of the operator's own.
    pub fn of_path(namespace: &str, configuration: &str, validity: Duration) -> Result<Self, SettingsError> {
        Ok(Self {
            namespace: namespace.to_owned(),
            secret: Self::PATH_SECRET.to_owned(),
            configuration: configuration.to_owned(),
            plan: Plan::new(validity, BTreeSet::new())?,
        })
    }
}

/// Names as they will be read back from a certificate.
fn normalise(name: &str) -> Result<String, SettingsError> {
    let name = name.trim();
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(address.to_string());
    }
    let name = name.to_ascii_lowercase();
    match ServerName::try_from(name.as_str()) {
        Ok(_) => Ok(name),
        Err(_) => Err(SettingsError::Name(name)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_service_and_those_that_were_given() {
        let further =
            ["127.0.0.1".to_owned(), "Webhook.Example.COM".to_owned(), "0:0:0:0:0:0:0:1".to_owned()];
        let settings = Settings::new("ns", "fairlead", &further, Duration::from_mins(1)).unwrap();
        let names: Vec<_> = settings.plan.names.iter().map(String::as_str).collect();
        assert_eq!(
            names,
            [
                "127.0.0.1",
                "::1",
                "fairlead-webhook.ns.svc",
                "fairlead-webhook.ns.svc.cluster.local",
                "webhook.example.com"
            ]
        );
    }

    #[test]
    fn what_cannot_be_a_name_or_a_validity_is_refused() {
        for bad in ["", "a b", "https://x", "-a.com"] {
            let error =
                Settings::new("ns", "fairlead", &[bad.to_owned()], Duration::from_mins(1)).unwrap_err();
            assert!(error.to_string().contains("--certificate-name"), "{error}");
        }
        let error = Settings::new("ns", "fairlead", &[], Duration::from_secs(5)).unwrap_err();
        assert!(error.to_string().contains("--certificate-validity"), "{error}");
    }
}
