//! From the Secrets that may be tried for an image to the logins that they hold for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::keyring::Credential;
use fairlead_domain::reference::Repository;
use fairlead_plan::credentials::{Attempt, Attempts};
use fairlead_plan::routing::SecretName;
use futures::{StreamExt, stream};
use tokio::time::Instant;

use super::{Keys, Read, Secrets};

/// Reading one Secret holds its users up for no longer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Secrets that are read at once.
const AT_ONCE: usize = 16;

/// What the Secrets of attempts hold for one image.
#[derive(Debug)]
pub struct Logins {
    /// Attempts whose Secrets match the image, in order, each with its credentials.
    pub matching: Vec<(Attempt, Vec<Credential>)>,
    /// What is wrong with the first Secret that cannot be used.
    pub problem: Option<String>,
}

impl Secrets {
    /// Reads the Secrets of all attempts. One that cannot be used stands in the way of no other.
    pub async fn logins(&self, attempts: Attempts, image: &Repository) -> Logins {
        let names: BTreeSet<SecretName> = attempts.iter().flat_map(|one| &one.secrets).cloned().collect();
        let reading = stream::iter(names).map(|name| async move {
            let read = self.read(&name, Instant::now() + PATIENCE).await;
            (name, read)
        });
        let read: BTreeMap<SecretName, Read> = reading.buffer_unordered(AT_ONCE).collect().await;
        let problem = attempts.iter().flat_map(|one| &one.secrets).find_map(|name| {
            let problem = read.get(name)?.problem()?;
            Some(format!("Secret {name} {problem}"))
        });
        let matching = attempts.matching(|attempt| {
            let keys = attempt.secrets.iter().filter_map(|name| read.get(name)?.keys());
            let found = Keys::lookup(keys.map(Arc::as_ref), image);
            (!found.is_empty()).then_some(found)
        });
        Logins { matching, problem }
    }
}
