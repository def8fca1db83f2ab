//! Waiting for a condition instead of sleeping for a guess.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// Far from both the beginning and the deadline: what has not happened by then takes long, and asking for it rarely
/// leaves the machine to it.
const FAR: Duration = Duration::from_secs(5);
const PATIENT_PAUSE: Duration = Duration::from_millis(500);

/// Calls `attempt` until it succeeds and returns its value. After `deadline` the error of the last attempt is the
/// answer, so let each attempt say what it saw (`ensure!(found == wanted, "found {found}")`). An attempt that hangs is
/// given up at the deadline, too.
pub async fn eventually<T, F, A>(deadline: Duration, mut attempt: F) -> Result<T>
where
    F: FnMut() -> A,
    A: Future<Output = Result<T>>,
{
    let begun = Instant::now();
    let end = begun + deadline;
    let mut pause = FIRST_PAUSE;
    let mut last = anyhow::anyhow!("the first attempt did not finish");
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match tokio::time::timeout(left, attempt()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => last = error,
            Err(_) => {
                return Err(last).context(format!("not within {deadline:?}, and the last attempt hung"));
            }
        }
        if Instant::now() + pause >= end {
            return Err(last).context(format!("not within {deadline:?}"));
        }
        tokio::time::sleep(pause).await;
        let (waited, left) = (begun.elapsed(), end.saturating_duration_since(Instant::now()));
        let longest = if waited.min(left) < FAR { LONGEST_PAUSE } else { PATIENT_PAUSE };
        pause = (pause * 2).min(longest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn returns_the_first_success() {
        let mut calls = 0;
        let value = eventually(Duration::from_secs(5), || {
            calls += 1;
            let call = calls;
            async move {
                anyhow::ensure!(call >= 3, "call {call}");
                Ok(call)
            }
        });
        assert_eq!(value.await.unwrap(), 3);
    }

    #[tokio::test]
    async fn says_what_the_last_attempt_saw() {
        let attempt = || async { anyhow::bail!("seven is not eight") };
        let error = eventually::<(), _, _>(Duration::from_millis(30), attempt).await.unwrap_err();
        assert_eq!(format!("{error:#}"), "not within 30ms: seven is not eight");
    }

    #[tokio::test]
    async fn gives_up_an_attempt_that_hangs() {
        let attempt = std::future::pending::<Result<()>>;
        let error = eventually(Duration::from_millis(30), attempt).await.unwrap_err();
        assert!(format!("{error:#}").contains("hung"), "{error:#}");
    }
}
