//! Tasks that must not end: whichever does ends the process, because half an operator is worse than one that restarts.

use std::collections::HashMap;
use std::error::Error;
use std::time::Duration;

use tokio::task::{Id, JoinError, JoinSet};

type TaskResult = Result<(), Box<dyn Error + Send + Sync>>;

/// A task ended that should have gone on.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    #[error("the task `{task}` ended although nothing asked it to")]
    Ended { task: String },
    #[error("the task `{task}` failed: {source}")]
    Failed { task: String, source: Box<dyn Error + Send + Sync> },
    #[error("the task `{task}` panicked; this is a bug")]
    Panicked { task: String },
}

/// The tasks of the operator by name.
#[derive(Debug, Default)]
pub struct Tasks {
    set: JoinSet<TaskResult>,
    names: HashMap<Id, String>,
}

impl Tasks {
    pub fn spawn(&mut self, name: impl Into<String>, task: impl Future<Output = ()> + Send + 'static) {
        self.spawn_fallible(name, async {
            task.await;
            Ok::<_, std::convert::Infallible>(())
        });
    }

    pub fn spawn_fallible<E>(
        &mut self,
        name: impl Into<String>,
        task: impl Future<Output = Result<(), E>> + Send + 'static,
    ) where
        E: Error + Send + Sync + 'static,
    {
        let handle = self.set.spawn(async { task.await.map_err(|error| Box::new(error).into()) });
        self.names.insert(handle.id(), name.into());
    }

    /// Waits for the first task that ends. Never returns while there is none.
    pub async fn first_to_end(&mut self) -> TaskError {
        match self.set.join_next_with_id().await {
            None => std::future::pending().await,
            Some(Ok((id, Ok(())))) => TaskError::Ended { task: self.name(id) },
            Some(Ok((id, Err(source)))) => TaskError::Failed { task: self.name(id), source },
            Some(Err(error)) => self.lost(&error),
        }
    }

    /// Waits until all have ended and gives up on the rest after `limit`, naming it.
    pub async fn finish(&mut self, limit: Duration) -> Vec<String> {
        let all = async {
            while let Some(result) = self.set.join_next_with_id().await {
                match result {
                    Ok((id, outcome)) => {
                        let task = self.names.remove(&id);
                        if let Err(error) = outcome {
                            tracing::warn!(task, %error, "task failed while shutting down");
                        }
                    }
                    Err(error) => tracing::warn!(error = %self.lost(&error), "task lost while shutting down"),
                }
            }
        };
        if tokio::time::timeout(limit, all).await.is_ok() {
            return Vec::new();
        }
        self.set.abort_all();
        let mut left: Vec<_> = self.names.drain().map(|(_, name)| name).collect();
        left.sort();
        left
    }

    fn lost(&mut self, error: &JoinError) -> TaskError {
        TaskError::Panicked { task: self.name(error.id()) }
    }

    fn name(&mut self, id: Id) -> String {
        self.names.remove(&id).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_task_to_end_is_named() {
        let mut tasks = Tasks::default();
        tasks.spawn("steady", std::future::pending());
        tasks.spawn("brief", async {});
        assert!(matches!(tasks.first_to_end().await, TaskError::Ended { task } if task == "brief"));
        tasks.spawn_fallible("broken", async { Err(std::io::Error::other("disk on fire")) });
        let error = tasks.first_to_end().await.to_string();
        assert_eq!(error, "the task `broken` failed: disk on fire");
        tasks.spawn("buggy", async { panic!("oh") });
        assert!(matches!(tasks.first_to_end().await, TaskError::Panicked { task } if task == "buggy"));
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_stop_in_time_is_named_and_ended() {
        let mut tasks = Tasks::default();
        tasks.spawn("polite", tokio::time::sleep(Duration::from_secs(1)));
        tasks.spawn("stubborn", std::future::pending());
        assert_eq!(tasks.finish(Duration::from_secs(5)).await, ["stubborn"]);
    }
}
