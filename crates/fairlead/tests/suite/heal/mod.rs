//! Healing as people meet it: the installed operator under its own rights, beside a real node or with statuses as a
//! kubelet writes them.

mod evicted;
mod leader;
mod learnt;
mod node;
mod refused;
pub(crate) mod reported;

/// The account of the installed operator.
const OPERATOR: &str = "system:serviceaccount:fairlead-system:fairlead";
