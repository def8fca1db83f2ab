//! What the operator tells about itself: metrics of the process, and whether its loops still turn.
//!
//! Every part registers metrics of its own; the registry is assembled once, where the parts are put together.

mod build;
mod liveness;
pub mod page;
mod process;
mod registries;

#[cfg(test)]
pub(crate) use registries::MOST_OF_A_NAMESPACE;
pub(crate) use registries::{OTHERS, RegistryLabels};

pub use liveness::{Heartbeat, Heartbeats};

use prometheus_client::registry::Registry;

/// Registers what belongs to the process as a whole.
pub fn register(registry: &mut Registry) {
    build::register(registry);
    process::register(registry);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_names_the_build_and_the_process() {
        let mut registry = Registry::default();
        register(&mut registry);
        let page = page::text(&registry).expect("writing to memory");
        for line in [
            concat!("fairlead_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\""),
            concat!("kube_image_keeper_manager_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\""),
            "kube_image_keeper_manager_up 1",
            "fairlead_up 1",
            "process_resident_memory_bytes ",
            "process_cpu_seconds_total ",
            "process_start_time_seconds ",
        ] {
            assert!(page.lines().any(|found| found.starts_with(line)), "no line {line} in\n{page}");
        }
    }
}
