//! Wakes readers when something has changed.
//!
//! It says that something has, never what: a busy reader misses nothing, because it finds everything in its next look,
//! and a thousand changes in between wake it once.

use futures::future::select_all;
use tokio::sync::watch;

/// The telling side.
#[derive(Debug)]
pub(crate) struct Bell {
    rings: watch::Sender<()>,
}

impl Default for Bell {
    fn default() -> Self {
        Self { rings: watch::Sender::new(()) }
    }
}

impl Bell {
    pub(crate) fn ring(&self) {
        self.rings.send_replace(());
    }

    pub(crate) fn listen(&self) -> Changes {
        Changes { rings: self.rings.subscribe() }
    }
}

/// The listening side. What happened before it was made does not count as a change.
#[derive(Debug, Clone)]
pub struct Changes {
    rings: watch::Receiver<()>,
}

impl Changes {
    /// Waits for a change since the last call; changes since then count as one. Dropping the future loses none.
    pub async fn next(&mut self) {
        if self.rings.changed().await.is_err() {
            // The last sender is gone: nothing changes any more.
            std::future::pending::<()>().await;
        }
    }

    /// Waits for a change of any of these; for ever where there are none.
    pub(crate) async fn any(all: &mut [Self]) {
        if all.is_empty() {
            return std::future::pending().await;
        }
        select_all(all.iter_mut().map(|one| Box::pin(one.next()))).await;
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn many_changes_are_told_once_and_none_is_lost() {
        let bell = Bell::default();
        bell.ring();
        let mut changes = bell.listen();
        assert_eq!(changes.next().now_or_never(), None, "that was before");
        for _ in 0..1000 {
            bell.ring();
        }
        assert_eq!(changes.next().now_or_never(), Some(()));
        assert_eq!(changes.next().now_or_never(), None);
        bell.ring();
        assert_eq!(changes.next().now_or_never(), Some(()));
    }

    #[test]
    fn nothing_changes_any_more_when_the_teller_is_gone() {
        let mut changes = Bell::default().listen();
        assert_eq!(changes.next().now_or_never(), None);
    }
}
