//! Copies that are known to be there, and attempts that failed lately: what admission need not ask for again.

use std::time::Duration;

use fairlead_plan::pull_secrets::Content;
use tokio::time::Instant;

use super::CopyError;
use crate::controller::backoff::Backoff;
use crate::registries::cache::Capacity;

/// See `fairlead_plan::pull_secrets::GRACE` for why it is not longer.
const THERE: Duration = Duration::from_mins(10);

const RETRY: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_mins(1));

pub(super) const CAPACITY: Capacity = Capacity { entries: 65_536, bytes: usize::MAX };

#[derive(Debug, Clone)]
pub(super) enum CopyStanding {
    There,
    Failed(CopyError),
    Unknown,
}

/// What is known of one copy, and until when.
#[derive(Debug)]
pub(super) enum KnownCopy {
    There { content: Content, until: Instant },
    Failed { error: CopyError, failures: u32, until: Instant },
}

impl KnownCopy {
    pub(super) fn there(content: Content, now: Instant) -> Self {
        Self::There { content, until: now + THERE }
    }

    pub(super) fn failed(before: Option<&Self>, error: CopyError, now: Instant) -> Self {
        let failures = match before {
            Some(Self::Failed { failures, .. }) => failures.saturating_add(1),
            Some(Self::There { .. }) | None => 0,
        };
        Self::Failed { error, failures, until: now + RETRY.pause(failures, 0.5) }
    }

    pub(super) fn standing(&self, wanted: Content, now: Instant) -> CopyStanding {
        match self {
            Self::There { content, until } if *until > now && *content == wanted => CopyStanding::There,
            Self::Failed { error, until, .. } if *until > now => CopyStanding::Failed(error.clone()),
            Self::There { .. } | Self::Failed { .. } => CopyStanding::Unknown,
        }
    }
}
