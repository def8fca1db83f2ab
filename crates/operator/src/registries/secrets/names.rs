//! Which names can be asked for.
//!
//! Mutating admission comes before validation, so the name of a pull secret in a Pod can be any text. It becomes part
//! of a request's path, where `/`, `?` and `..` would lead elsewhere.

use fairlead_plan::routing::SecretName;

/// Whether a Secret of this name can exist.
pub(super) fn can_exist(secret: &SecretName) -> bool {
    let label = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
            && !text.starts_with('-')
            && !text.ends_with('-')
    };
    secret.namespace.len() <= 63
        && label(&secret.namespace)
        && secret.name.len() <= 253
        && secret.name.split('.').all(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_kubernetes_allows_are_asked_for() {
        let can = |namespace: &str, name: &str| {
            can_exist(&SecretName { namespace: namespace.into(), name: name.into() })
        };
        assert!(can("shop", "registry.example.com-key") && can("a", "0"));
        for name in [
            "",
            "a/b",
            "..",
            "a?watch=true",
            "a%2fb",
            "A",
            "a..b",
            ".a",
            "a.",
            "-a",
            "a b",
            "ä",
            &"a".repeat(254),
        ] {
            assert!(!can("shop", name), "{name}");
        }
        assert!(!can("", "a") && !can("a.b", "a") && !can("../kube-system", "a"));
    }
}
