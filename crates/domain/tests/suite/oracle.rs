//! The reference implementations of names and credentials.

use std::sync::OnceLock;

use fairlead_testkit::oracle;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Image references, selectors, regular expressions and paths.
pub(crate) fn names() -> &'static Oracle {
    static BUILT: OnceLock<Oracle> = OnceLock::new();
    BUILT.get_or_init(|| Oracle(oracle::Oracle::build("names").unwrap()))
}

/// The kubelet's credentials.
pub(crate) fn keyring() -> &'static Oracle {
    static BUILT: OnceLock<Oracle> = OnceLock::new();
    BUILT.get_or_init(|| Oracle(oracle::Oracle::build("keyring").unwrap()))
}

pub(crate) struct Oracle(oracle::Oracle);

impl Oracle {
    pub(crate) fn ask<Q: Serialize, A: DeserializeOwned>(
        &self,
        function: &[&str],
        questions: &[Q],
    ) -> Vec<A> {
        self.0.ask(function, questions).unwrap()
    }
}
