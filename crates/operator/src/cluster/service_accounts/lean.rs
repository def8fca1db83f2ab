//! A `ServiceAccount` as it is decoded: its name, whether it restricts, and its pull secrets.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::ServiceAccount;
use kube::api::ObjectMeta;
use serde::Deserialize;

use crate::cluster::watch::{LeanMeta, stands_for};

#[derive(Debug, Clone, Deserialize)]
#[serde(from = "Wire")]
pub(crate) struct LeanAccount {
    /// Name, namespace and version; nothing else is filled.
    pub(crate) metadata: ObjectMeta,
    /// The only pull secrets that its Pods may name, if it restricts them.
    pub(super) permitted: Option<BTreeSet<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wire {
    #[serde(default)]
    metadata: LeanMeta<WireAnnotations>,
    image_pull_secrets: Option<Vec<WireReference>>,
}

#[derive(Default, Deserialize)]
struct WireAnnotations {
    #[serde(rename = "kubernetes.io/enforce-mountable-secrets")]
    enforce: Option<String>,
}

#[derive(Deserialize)]
struct WireReference {
    name: Option<String>,
}

/// Texts that the API server takes for yes.
fn is_true(text: &str) -> bool {
    matches!(text, "1" | "t" | "T" | "true" | "TRUE" | "True")
}

impl From<Wire> for LeanAccount {
    fn from(wire: Wire) -> Self {
        let restricts =
            wire.metadata.annotations.as_ref().and_then(|annotations| annotations.enforce.as_deref());
        let permitted = restricts.is_some_and(is_true).then(|| {
            let secrets = wire.image_pull_secrets.unwrap_or_default();
            secrets.into_iter().filter_map(|secret| secret.name).collect()
        });
        Self { metadata: wire.metadata.into(), permitted }
    }
}

stands_for!(LeanAccount, ServiceAccount);

#[cfg(test)]
mod tests {
    use fairlead_api::names::kubernetes::ENFORCE_MOUNTABLE_SECRETS;
    use serde_json::json;

    use super::*;

    fn permitted(enforce: Option<&str>) -> Option<Vec<String>> {
        let mut account = json!({
            "metadata": {"name": "a", "namespace": "shop", "annotations": {"other": "x"}},
            "secrets": [{"name": "token"}],
            "imagePullSecrets": [{"name": "registry"}, {}],
        });
        if let Some(enforce) = enforce {
            account["metadata"]["annotations"][ENFORCE_MOUNTABLE_SECRETS] = json!(enforce);
        }
        let account: LeanAccount = serde_json::from_str(&account.to_string()).expect("an account");
        Some(account.permitted?.into_iter().collect())
    }

    #[test]
    fn only_annotated_accounts_restrict() {
        assert_eq!(permitted(None), None);
        assert_eq!(permitted(Some("false")), None);
        assert_eq!(permitted(Some("yes")), None, "the API server does not understand that either");
        for yes in ["true", "True", "1", "t"] {
            assert_eq!(permitted(Some(yes)), Some(vec!["registry".to_owned()]), "{yes}");
        }
    }

    #[test]
    fn an_account_of_which_little_is_known_decodes() {
        for text in ["{}", r#"{"metadata":{"annotations":null},"imagePullSecrets":null}"#] {
            assert!(serde_json::from_str::<LeanAccount>(text).is_ok(), "{text}");
        }
    }
}
