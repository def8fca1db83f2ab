//! One running operator of this build, not installed: under whatever rights its kubeconfig gives it.

use std::path::Path;

use anyhow::Result;
pub use fairlead_testkit::Operator as Replica;
pub use fairlead_testkit::operator::SOON;

pub async fn start(kubeconfig: &Path, namespace: &str, identity: &str) -> Result<Replica> {
    Replica::of(env!("CARGO_BIN_EXE_fairlead"))
        .namespace(namespace)
        .identity(identity)
        .start(kubeconfig)
        .await
}
