//! What is decided about a Pod, behind one small trait, so that everything around it (deadlines, panics, load) is the
//! same whatever the decision costs.

use std::error::Error;

use fairlead_plan::records::{self, Outcome, Route, WHY_NOT_ROUTED};
use futures::future::BoxFuture;
use tokio::time::Instant;

use super::{patch::Patch, review::PodObject};

/// A Pod that is about to be created.
#[derive(Debug)]
pub struct PodRequest<'a> {
    pub namespace: &'a str,
    /// Nothing may be written anywhere.
    pub dry_run: bool,
    pub pod: &'a PodObject<'a>,
    /// An answer after this moment reaches nobody.
    pub deadline: Instant,
}

/// What becomes of the Pod.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Verdict {
    /// None: the Pod stays as it is.
    pub patch: Option<Patch>,
    /// Shown to whoever creates the Pod.
    pub warnings: Vec<String>,
}

pub type DecideError = Box<dyn Error + Send + Sync>;

/// Decides about Pods. An error, a panic and a missed deadline all leave the Pod as it is.
pub trait Decide: Send + Sync + 'static {
    fn decide<'a>(&'a self, request: &'a PodRequest<'a>) -> BoxFuture<'a, Result<Verdict, DecideError>>;
}

/// Leaves every image as it is, and records that.
#[derive(Debug, Clone, Copy, Default)]
pub struct RecordOnly;

impl Decide for RecordOnly {
    fn decide<'a>(&'a self, request: &'a PodRequest<'a>) -> BoxFuture<'a, Result<Verdict, DecideError>> {
        let outcome = records::record(&request.pod.to_record(), |image| {
            Route::original(image.reference, WHY_NOT_ROUTED)
        });
        let verdict = match outcome {
            Outcome::Unchanged => Verdict::default(),
            Outcome::Write(text) => Verdict {
                patch: Some(Patch::annotate(request.pod, records::ANNOTATION, text)),
                warnings: Vec::new(),
            },
            Outcome::NoRoom => Verdict {
                patch: None,
                warnings: vec![
                    "the other annotations of this Pod leave no room for a record of its images".to_owned(),
                ],
            },
        };
        Box::pin(std::future::ready(Ok(verdict)))
    }
}
