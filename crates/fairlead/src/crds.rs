//! `fairlead crds`: prints the custom resource definitions.

use anyhow::Result;
use clap::Args;
use fairlead_api::crds;

/// Print the custom resource definitions of every API group that Fairlead speaks
#[derive(Debug, Args)]
pub(crate) struct Crds {
    /// Only this API group; may be given several times
    #[arg(long = "group", value_name = "GROUP", value_parser = known_group)]
    groups: Vec<String>,
}

impl Crds {
    /// The YAML stream to print.
    pub(crate) fn render(&self) -> Result<String> {
        let mut stream = String::new();
        for crd in crds::all() {
            if self.groups.is_empty() || self.groups.contains(&crd.spec.group) {
                stream.push_str("---\n");
                stream.push_str(&crds::to_yaml(&crd)?);
            }
        }
        Ok(stream)
    }
}

fn known_group(name: &str) -> Result<String, String> {
    let known = crds::groups();
    if known.iter().any(|group| group == name) {
        Ok(name.to_owned())
    } else {
        Err(format!("the groups are {}", known.join(", ")))
    }
}
