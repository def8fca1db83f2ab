//! Which kinds the API server serves, asked for one group at a time.
//!
//! Every account may ask this; reading the definitions themselves would need a right that Fairlead has no other use
//! for.

use std::collections::BTreeMap;
use std::time::Duration;

use kube::Client;
use kube::api::{Api, ListParams, PartialObjectMeta};
use kube::core::Resource;
use kube::core::dynamic::ApiResource;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::platform::api_error::{Class, Failure, LIMIT};

/// The kinds of one group ask at about the same time; one answer serves them all.
const FRESH: Duration = Duration::from_secs(2);
/// Names under which the API server knows a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KindNames {
    pub(super) name: &'static str,
    pub(super) plural: &'static str,
    pub(super) group: &'static str,
    pub(super) version: &'static str,
}

impl KindNames {
    fn group_version(&self) -> String {
        format!("{}/{}", self.group, self.version)
    }
}

type Plurals = Vec<String>;

/// Asks what is served and shares the answers.
pub(super) struct Discovery {
    client: Client,
    answers: BTreeMap<String, Mutex<Option<(Instant, Plurals)>>>,
}

impl Discovery {
    pub(super) fn new(client: Client, kinds: impl IntoIterator<Item = KindNames>) -> Self {
        let answers = kinds.into_iter().map(|kind| (kind.group_version(), Mutex::default())).collect();
        Self { client, answers }
    }

    pub(super) async fn serves<K>(&self, kind: &KindNames) -> Result<bool, Failure>
    where
        K: Resource<DynamicType = ()>,
    {
        let limited = tokio::time::timeout(LIMIT, self.ask::<K>(kind));
        limited.await.unwrap_or_else(|_| Err(Failure::timed_out(LIMIT)))
    }

    async fn ask<K>(&self, kind: &KindNames) -> Result<bool, Failure>
    where
        K: Resource<DynamicType = ()>,
    {
        let group_version = kind.group_version();
        let Some(answer) = self.answers.get(&group_version) else {
            return Ok(false);
        };
        let mut answer = answer.lock().await;
        if let Some((at, plurals)) = &*answer
            && at.elapsed() < FRESH
        {
            return Ok(plurals.iter().any(|plural| plural == kind.plural));
        }
        let plurals = match self.client.list_api_group_resources(&group_version).await {
            Ok(list) => list.resources.into_iter().map(|resource| resource.name).collect(),
            Err(error) => match Failure::from(&error) {
                failure if failure.class == Class::Absent => Plurals::new(),
                failure if failure.class == Class::Denied => return self.try_to_list::<K>().await,
                failure => return Err(failure),
            },
        };
        let served = plurals.contains(&kind.plural.to_owned());
        *answer = Some((Instant::now(), plurals));
        Ok(served)
    }

    /// Some clusters forbid discovery. Then the kind itself tells; a refusal is left to the watch to report.
    async fn try_to_list<K>(&self) -> Result<bool, Failure>
    where
        K: Resource<DynamicType = ()>,
    {
        let api = Api::<PartialObjectMeta>::all_with(self.client.clone(), &ApiResource::erase::<K>(&()));
        match api.list(&ListParams::default().limit(1)).await {
            Ok(_) => Ok(true),
            Err(error) => match Failure::from(&error) {
                failure if failure.class == Class::Absent => Ok(false),
                failure if failure.class == Class::Denied => Ok(true),
                failure => Err(failure),
            },
        }
    }
}
