//! Takes the events of the watch.

use std::collections::HashMap;

use super::{Accounts, LeanAccount, Restricted};
use crate::cluster::state::Key;
use crate::cluster::watch::Tolerant;
use crate::cluster::watch::sink::{Counts, Sink};

#[derive(Debug, Default)]
pub(crate) struct AccountSink {
    accounts: Accounts,
    restricted: Restricted,
    fresh: Option<Restricted>,
}

impl AccountSink {
    pub(crate) fn new(accounts: Accounts) -> Self {
        Self { accounts, ..Self::default() }
    }
}

pub(super) fn take(restricted: &mut Restricted, object: Tolerant<LeanAccount>) {
    // One that cannot be read is one that the API server cannot read either.
    let Ok(account) = object.0 else { return };
    let key = Key::of(&account.metadata);
    match account.permitted {
        Some(permitted) => restricted.insert(key, permitted.into()),
        None => restricted.remove(&key),
    };
}

impl Sink<LeanAccount> for AccountSink {
    fn begin(&mut self) {
        self.fresh = Some(HashMap::new());
    }

    fn listed(&mut self, object: Tolerant<LeanAccount>) {
        take(self.fresh.get_or_insert_default(), object);
    }

    fn finish(&mut self) {
        if let Some(fresh) = self.fresh.take() {
            self.restricted = fresh;
        }
    }

    fn applied(&mut self, object: Tolerant<LeanAccount>) {
        take(&mut self.restricted, object);
    }

    fn deleted(&mut self, object: Tolerant<LeanAccount>) {
        if let Ok(account) = object.0 {
            self.restricted.remove(&Key::of(&account.metadata));
        }
    }

    fn publish(&mut self) -> Counts {
        self.accounts.replace(self.restricted.clone());
        Counts { objects: self.restricted.len(), malformed: 0, images: None }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn account(name: &str, enforce: &str) -> Tolerant<LeanAccount> {
        let account = json!({
            "metadata": {
                "name": name, "namespace": "shop",
                "annotations": {"kubernetes.io/enforce-mountable-secrets": enforce},
            },
            "imagePullSecrets": [{"name": "registry"}],
        });
        serde_json::from_str(&account.to_string()).expect("an account")
    }

    #[test]
    fn restrictions_come_and_go() {
        let accounts = Accounts::default();
        let mut sink = AccountSink::new(accounts.clone());
        sink.begin();
        sink.listed(account("default", "true"));
        sink.listed(account("free", "false"));
        sink.finish();
        assert_eq!(sink.publish().objects, 1);
        let permitted = accounts.permitted("shop", "").expect("the default account restricts");
        assert!(permitted.contains("registry") && permitted.len() == 1);
        assert_eq!(accounts.permitted("shop", "free"), None);
        assert_eq!(accounts.permitted("other", "default"), None);

        sink.applied(account("default", "false"));
        sink.applied(account("free", "true"));
        sink.publish();
        assert_eq!(accounts.permitted("shop", "default"), None);
        assert!(accounts.permitted("shop", "free").is_some());
        sink.deleted(account("free", "true"));
        sink.publish();
        assert_eq!(accounts.permitted("shop", "free"), None);
    }
}
