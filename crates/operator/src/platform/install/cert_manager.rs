//! The objects that let cert-manager make the webhook's certificate. Its kinds are not part of Kubernetes, so they are
//! written as plain values.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::metadata::labels;
use super::{CERTIFICATE_SECRET, InstallSettings, WEBHOOK_SERVICE};

/// Name of both the Issuer and the Certificate.
const NAME: &str = "fairlead-webhook";
/// Where the program finds the certificate that cert-manager keeps.
pub(super) const DIRECTORY: &str = "/certificates";

pub(super) fn inject_annotation(settings: &InstallSettings) -> BTreeMap<String, String> {
    [("cert-manager.io/inject-ca-from".to_owned(), format!("{}/{NAME}", settings.namespace))].into()
}

pub(super) fn issuer(settings: &InstallSettings) -> Value {
    json!({
        "apiVersion": "cert-manager.io/v1",
        "kind": "Issuer",
        "metadata": { "name": NAME, "namespace": settings.namespace, "labels": labels() },
        "spec": { "selfSigned": {} },
    })
}

pub(super) fn certificate(settings: &InstallSettings) -> Value {
    let service = format!("{WEBHOOK_SERVICE}.{}.svc", settings.namespace);
    json!({
        "apiVersion": "cert-manager.io/v1",
        "kind": "Certificate",
        "metadata": { "name": NAME, "namespace": settings.namespace, "labels": labels() },
        "spec": {
            "secretName": CERTIFICATE_SECRET,
            "dnsNames": [service, format!("{service}.cluster.local")],
            "issuerRef": { "kind": "Issuer", "name": NAME },
            "privateKey": { "algorithm": "ECDSA", "size": 256, "rotationPolicy": "Always" },
        },
    })
}
