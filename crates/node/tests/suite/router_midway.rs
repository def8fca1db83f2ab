//! Requests that the router cannot connect with what came before them, and what they count as.

use anyhow::{Result, ensure};

use crate::router::{Node, is_left_to_source};
use crate::{both, plan};

/// An alert goes off where all requests to a mirror fail, and a source is none.
#[tokio::test]
async fn a_source_that_a_list_names_and_that_fails_is_no_mirror_that_fails() -> Result<()> {
    let mirrors = ["hub.test/team", "m.invalid/copies"];
    let node = Node::start(plan(vec![both("hub.test/team", &mirrors)], &[], &[])).await?;
    ensure!(is_left_to_source(&node.head("team/app/manifests/1").await?));
    let page = node.metrics()?;
    let failed = |registry: &str| {
        page.contains(&format!(
            "fairlead_router_requests_total{{outcome=\"failed\",registry=\"{registry}\"}}"
        ))
    };
    ensure!(failed("m.invalid") && !failed("hub.test"), "{page}");
    Ok(())
}
