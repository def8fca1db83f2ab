//! Secrets that hold something else than pull secrets do: passwords of services, read as they are now.

use std::collections::BTreeMap;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::ObjectMeta;
use kube::{Api, Client};
use zeroize::Zeroizing;

use crate::platform::api_error::{Failure, LIMIT, within};

#[derive(Debug, Default)]
pub(crate) struct OpaqueSecret {
    pub(crate) metadata: ObjectMeta,
    pub(crate) data: BTreeMap<String, ByteString>,
}

impl OpaqueSecret {
    pub(crate) async fn read(client: &Client, namespace: &str, name: &str) -> Result<Self, Failure> {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let Secret { metadata, data, .. } = within(LIMIT, secrets.get(name)).await?;
        Ok(Self { metadata, data: data.unwrap_or_default() })
    }

    /// A value without the line break that files end with, which is no part of a password. The error: it is not a
    /// text.
    pub(crate) fn text(&self, key: &str) -> Option<Result<Zeroizing<String>, ()>> {
        let text = std::str::from_utf8(&self.data.get(key)?.0).map_err(drop);
        Some(text.map(|text| Zeroizing::new(text.trim_end_matches(['\r', '\n']).to_owned())))
    }
}
