//! Policies from files, read again when they change.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use fairlead_node::agent::FollowedPolicy;
use tokio::sync::watch;

use super::Policies;
use crate::explain::files::Manifests;
use crate::nodes::{policy_in_file, unreadable};

const READ_EVERY: Duration = Duration::from_secs(2);

/// Follows a directory. While something in it cannot be read, what was read before stays in force: a policy that closes
/// a source must not end with a typing error.
pub(super) fn follow(path: PathBuf) -> Policies {
    let (sender, receiver) = watch::channel(None);
    tokio::spawn(async move {
        let mut problem = None;
        while !sender.is_closed() {
            let read = tokio::task::block_in_place(|| read(&path));
            match read {
                Ok(policies) => {
                    problem = None;
                    sender.send_if_modified(|known| {
                        let is_new = known.as_deref() != Some(policies.as_slice());
                        if is_new {
                            *known = Some(Arc::from(policies));
                        }
                        is_new
                    });
                }
                Err(error) => {
                    let text = format!("{error:#}");
                    if problem.as_ref() != Some(&text) {
                        tracing::error!("{text}; policies stay as they were");
                        problem = Some(text);
                    }
                }
            }
            tokio::time::sleep(READ_EVERY).await;
        }
    });
    receiver
}

fn read(path: &Path) -> Result<Vec<FollowedPolicy>> {
    let mut manifests = Manifests::default();
    manifests.read(path)?;
    if let Some(broken) = manifests.broken.first() {
        bail!("{broken}");
    }
    let mut policies = Vec::new();
    for manifest in &manifests.objects {
        match policy_in_file(&manifest.object) {
            None => {}
            Some(Ok(policy)) => policies.push(policy.into()),
            Some(Err(mismatch)) => bail!("{}", unreadable(manifest, &mismatch)),
        }
    }
    Ok(policies)
}
