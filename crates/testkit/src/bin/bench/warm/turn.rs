//! One load, warmed by an operator of its own.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Operator, eventually};

use super::load::Load;
use super::stage::{Stage, Wanted};
use super::witness::{Book, Witness};
use super::writes::{self, Deviation};
use crate::mirror::stage::HOME;

/// After the end, statuses may take so long, and after them the last Pod.
const GRACE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(250);
/// Of the leader.
const LEASE: Duration = Duration::from_secs(10);
/// An operator that has led for so long has planned more than once.
const SETTLED: Duration = Duration::from_secs(2);

/// What it came to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn {
    pub(crate) load: Load,
    /// Until the last pull was seen to be done.
    pub(crate) pulled: Duration,
    /// Until the last Pod was seen to be gone.
    pub(crate) gone: Duration,
    /// Until all statuses said so.
    pub(crate) told: Duration,
    /// Writes of Pods, and those of them that the API server refused.
    pub(crate) writes: usize,
    pub(crate) refused: usize,
    pub(crate) deviation: Deviation,
    /// Pairs of a node and an image that statuses do not count as ready.
    pub(crate) missing: usize,
    /// Pods that are there long after the end.
    pub(crate) left: usize,
    /// Most bytes of memory at one time.
    pub(crate) peak: u64,
    /// Processor time of the operator since the images were asked for.
    pub(crate) processor: Duration,
}

/// A load that is being warmed.
pub(crate) struct Running<'a> {
    stage: &'a Stage,
    load: &'a Load,
    pub(crate) operator: Operator,
    witness: Witness,
    wanted: Vec<Wanted>,
    begun: Instant,
    processor: Duration,
    killed: bool,
}

impl<'a> Running<'a> {
    /// Starts an operator and asks for images under names of their own.
    pub(crate) async fn begin(stage: &'a Stage, load: &'a Load, prefix: &str) -> Result<Self> {
        let operator = stage.operator(load).await?;
        let witness = Witness::start(stage.client.clone(), HOME).await?;
        drop(stage.asked()?);
        let processor = operator.process.processor_time()?;
        let begun = Instant::now();
        let wanted = stage.want(load, prefix).await?;
        Ok(Self { stage, load, operator, witness, wanted, begun, processor, killed: false })
    }

    /// Kills the operator and starts it again at once, as a kubelet would, under its old name.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        self.operator.process.kill().await?;
        self.operator.process.start_again().await?;
        (self.processor, self.killed) = (Duration::ZERO, true);
        Ok(())
    }

    async fn leads_again(&self) -> Result<()> {
        eventually(LEASE * 3, || async {
            let terms = self.operator.said("leadership acquired")?.len();
            ensure!(terms > 1, "the operator does not lead again:\n{}", self.operator.process.log_tail());
            Ok(())
        })
        .await?;
        tokio::time::sleep(SETTLED).await;
        Ok(())
    }

    /// Waits until everything is warm and tidied up, or for too long.
    pub(crate) async fn end(self) -> Result<Turn> {
        let pulls = self.load.pulls();
        if self.killed {
            // Also where everything was done already: what comes then must be nothing.
            self.leads_again().await?;
        }
        let all_pulled = |book: &Book| book.pulled.len() >= pulls;
        self.witness.until(self.load.deadline(), all_pulled).await;
        let end = Instant::now() + GRACE;
        let mut missing = self.stage.missing(&self.wanted).await?;
        while missing > 0 && Instant::now() < end {
            tokio::time::sleep(LOOK).await;
            missing = self.stage.missing(&self.wanted).await?;
        }
        let told = self.begun.elapsed();
        let processor = self.operator.process.processor_time()?.saturating_sub(self.processor);
        self.witness.until(GRACE, |book| book.present.is_empty()).await;
        let left = self.stage.pull_pods().await?;
        let peak = self.operator.process.peak_memory()?;
        if missing > 0 {
            println!(
                "{missing} of {pulls} pulls are missing; the operator said at last:\n{}",
                self.operator.process.log_tail()
            );
        }
        self.operator.stop().await?;
        let writes = writes::count(&self.stage.asked()?, HOME);
        let (deviation, pulled, gone) = {
            let book = self.witness.book();
            let since = |at: Option<Instant>| at.context("nothing was pulled").map(|at| at - self.begun);
            (Deviation::of(&writes, &book, self.load), since(book.last_pulled)?, since(book.last_gone)?)
        };
        self.stage.forget(&self.wanted).await?;
        Ok(Turn {
            load: *self.load,
            pulled,
            gone,
            told,
            writes: writes.all,
            refused: writes.refused,
            deviation,
            missing,
            left,
            peak,
            processor,
        })
    }
}
