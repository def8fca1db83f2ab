//! Ledgers at the API server: read at the start of a term, written whenever they changed.
//!
//! Only the lease holder writes, and it has what it writes in memory, so a write is the whole object over the version
//! that is known. Another client's write in between is a conflict, and the caller decides what becomes of it.

use fairlead_api::fairlead::{ImageLedger, ImageLedgerSpec};
use fairlead_api::kuik;
use fairlead_plan::ledger::{Draft, Owner, OwnerKind, sum_up};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams, Preconditions};
use kube::{Api, Client};

use super::trusted;
use crate::cluster::watch::Tolerant;
use crate::platform::api_error::{Class, Failure, LIMIT, within};

/// Ledgers per request. One may have half a megabyte, and a page is in memory several times while it is decoded.
const PAGE: u32 = 2;

/// Where ledgers are kept. Clones share the connection.
#[derive(Clone)]
pub struct LedgerStore {
    client: Client,
    operator_namespace: String,
}

impl std::fmt::Debug for LedgerStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LedgerStore")
            .field("operator_namespace", &self.operator_namespace)
            .finish_non_exhaustive()
    }
}

/// A ledger was written or deleted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The version that it has now; none if it was deleted.
    pub version: Option<String>,
}

/// Why a ledger was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Another writer changed it. It has this version now, if that could be found out.
    #[error("ledger was changed by another writer; it has version {version:?} now")]
    Conflict { version: Option<String> },
    /// Another writer deleted it.
    #[error("ledger was deleted by another writer")]
    Gone,
    #[error("cannot write ledger: {0}")]
    Failed(Failure),
}

impl LedgerStore {
    /// Ledgers of cluster-scoped objects are in the operator's namespace, those of others beside their objects.
    pub fn new(client: Client, operator_namespace: &str) -> Self {
        Self { client, operator_namespace: operator_namespace.to_owned() }
    }

    /// The namespace that the ledgers of an object are in.
    pub fn namespace<'a>(&'a self, owner: &'a Owner) -> &'a str {
        owner.namespace.as_deref().unwrap_or(&self.operator_namespace)
    }

    /// What `keep` makes of every ledger that can be read and counts, and of the object that it belongs to. Asked page
    /// by page: all ledgers at once are several times as large as what is kept of them.
    pub async fn list<T>(&self, keep: impl Fn(Owner, ImageLedger) -> Option<T>) -> Result<Vec<T>, Failure> {
        let api: Api<Tolerant<ImageLedger>> = Api::all(self.client.clone());
        let mut params = ListParams::default().limit(PAGE);
        let mut kept = Vec::new();
        loop {
            let page = within(LIMIT, api.list(&params)).await?;
            for item in page.items {
                match item.0 {
                    Ok(ledger) => {
                        let found = trusted(&ledger.metadata, &ledger.spec.owner, &self.operator_namespace);
                        // The watch of ledgers reports those that do not count.
                        kept.extend(found.ok().and_then(|(owner, _)| keep(owner, ledger)));
                    }
                    Err(unreadable) => tracing::warn!(
                        namespace = unreadable.metadata.namespace,
                        name = unreadable.metadata.name,
                        error = unreadable.error,
                        "stored ledger cannot be read and is ignored; correct or delete it"
                    ),
                }
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(kept),
            }
        }
    }

    /// Carries a draft out.
    pub async fn write(&self, owner: &Owner, draft: &Draft) -> Result<Stored, WriteError> {
        let api: Api<ImageLedger> = Api::namespaced(self.client.clone(), self.namespace(owner));
        let outcome = match draft {
            Draft::Write { name, version, manner, entries, .. } => {
                let spec = ImageLedgerSpec {
                    owner: owner.named(),
                    manner: manner.clone(),
                    entries: entries.clone(),
                };
                let ledger = self.object(owner, name, version.clone(), spec);
                let params = PostParams {
                    field_manager: Some(field_manager(owner.kind).to_owned()),
                    ..PostParams::default()
                };
                let written = match version {
                    None => within(LIMIT, api.create(&params, &ledger)).await,
                    Some(_) => within(LIMIT, api.replace(name, &params, &ledger)).await,
                };
                written.map(|ledger| Stored { version: ledger.metadata.resource_version })
            }
            Draft::Delete { name, version, .. } => {
                let preconditions = Preconditions { resource_version: version.clone(), uid: None };
                let params = DeleteParams::default().preconditions(preconditions);
                match within(LIMIT, api.delete(name, &params)).await {
                    Err(failure) if failure.class == Class::Absent => Ok(Stored { version: None }),
                    deleted => deleted.map(|_| Stored { version: None }),
                }
            }
        };
        match outcome {
            Ok(stored) => Ok(stored),
            Err(failure) => Err(explain(&api, draft, failure).await),
        }
    }

    fn object(
        &self,
        owner: &Owner,
        name: &str,
        version: Option<String>,
        spec: ImageLedgerSpec,
    ) -> ImageLedger {
        let status = sum_up(&spec.entries);
        let mut ledger = ImageLedger::new(name, spec);
        ledger.metadata = ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(self.namespace(owner).to_owned()),
            resource_version: version,
            labels: Some(owner.labels()),
            owner_references: Some(vec![owner_reference(owner)]),
            ..ObjectMeta::default()
        };
        ledger.status = Some(status);
        ledger
    }
}

/// What a failure means, and after a conflict what is stored now.
async fn explain(api: &Api<ImageLedger>, draft: &Draft, failure: Failure) -> WriteError {
    match failure.class {
        // For a ledger that was to be created it is the namespace, or the kind, that is missing.
        Class::Absent if draft.version().is_some() => WriteError::Gone,
        Class::Conflict => match within(LIMIT, api.get_metadata_opt(draft.name())).await {
            Ok(Some(stored)) => WriteError::Conflict { version: stored.metadata.resource_version },
            Ok(None) => WriteError::Gone,
            Err(_) => WriteError::Conflict { version: None },
        },
        _ => WriteError::Failed(failure),
    }
}

/// One for each controller, as for everything that they write.
const fn field_manager(kind: OwnerKind) -> &'static str {
    match kind {
        OwnerKind::ClusterImageSetMirror | OwnerKind::ImageSetMirror => "fairlead-mirror",
        OwnerKind::ClusterImageSetAvailability => "fairlead-watch",
    }
}

/// Takes the ledger away with its object.
fn owner_reference(owner: &Owner) -> OwnerReference {
    OwnerReference {
        api_version: kuik::API_VERSION.to_owned(),
        kind: owner.kind.name().to_owned(),
        name: owner.name.to_string(),
        uid: owner.uid.to_string(),
        controller: Some(true),
        block_owner_deletion: Some(false),
    }
}
