//! `ServiceAccount`s that let their Pods use listed secrets only.
//!
//! The API server refuses a Pod of such an account that names any other pull secret, so routing must not add one.
//! Nearly no account is like that; the others are dropped as they are decoded.

mod lean;
mod sink;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arc_swap::ArcSwap;
use k8s_openapi::api::core::v1::ServiceAccount;

use crate::cluster::state::Key;

pub(crate) use self::lean::LeanAccount;
pub(crate) use self::sink::AccountSink;
use self::sink::take;

/// The account of a Pod that names none.
const DEFAULT: &str = "default";

type Restricted = HashMap<Key, Arc<BTreeSet<String>>>;

/// The accounts that restrict their Pods. Written by their watch alone.
#[derive(Debug, Clone, Default)]
pub struct Accounts {
    restricted: Arc<ArcSwap<Restricted>>,
}

impl Accounts {
    /// The pull secrets that Pods of the account may name; `None` if that is not restricted. An empty name stands for
    /// the account that Pods get by default.
    pub fn permitted(&self, namespace: &str, name: &str) -> Option<Arc<BTreeSet<String>>> {
        let restricted = self.restricted.load();
        if restricted.is_empty() {
            return None;
        }
        let name = if name.is_empty() { DEFAULT } else { name };
        restricted.get(&Key { namespace: namespace.into(), name: name.into() }).cloned()
    }

    /// Takes an account as it is stored, where no watch runs.
    pub fn learn(&self, account: &ServiceAccount) {
        let text = serde_json::to_string(account).unwrap_or_default();
        if let Ok(account) = serde_json::from_str(&text) {
            let mut restricted = HashMap::clone(&self.restricted.load());
            take(&mut restricted, account);
            self.replace(restricted);
        }
    }

    fn replace(&self, restricted: Restricted) {
        self.restricted.store(Arc::new(restricted));
    }
}
