//! Asks about one place as the kubelet will: what admission, healing and warming choose by.

use fairlead_domain::cause::Cause;
use fairlead_domain::keyring::Credential;
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use fairlead_plan::routing::{self, Alternative};
use tokio::time::Instant;

use crate::context::Context;

/// One place, and what is needed to ask about it.
#[derive(Debug)]
pub struct Question<'a> {
    pub reference: &'a Reference,
    /// It is what the Pod asked for.
    pub is_original: bool,
    pub cause: Cause,
    pub credentials: Vec<Credential>,
}

impl<'a> Question<'a> {
    pub fn new(place: &'a Alternative, credentials: Vec<Credential>) -> Self {
        let Alternative { reference, .. } = place;
        Self { reference, is_original: place.is_original(), cause: place.cause(), credentials }
    }
}

impl Context {
    /// What the registry says, as it counts for Pods of the namespace.
    pub async fn ask(&self, question: &Question<'_>, namespace: &str, deadline: Instant) -> Verdict {
        let Question { reference, cause, credentials, .. } = question;
        let verdicts = self.verdicts.caused_by(*cause);
        let verdict = verdicts.ask(reference, credentials, namespace, deadline).await;
        self.judge(question, namespace, verdict)
    }

    /// What a verdict counts as: nodes may hold credentials of their own, and may have failed to pull what is there.
    pub fn judge(&self, question: &Question<'_>, namespace: &str, verdict: Verdict) -> Verdict {
        let Question { reference, is_original, credentials, .. } = question;
        let verdict = if verdict.is_available() {
            verdict
        } else {
            let trust = self.node_trust.trust_node_credentials(&reference.host());
            routing::judge(*is_original, verdict, !credentials.is_empty(), trust)
        };
        self.node_failures.judge(reference, namespace, credentials, verdict)
    }
}
