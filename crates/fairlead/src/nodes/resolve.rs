//! `fairlead resolve`: which places a node's runtime asks for an image.

use std::collections::BTreeSet;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;
use fairlead_domain::reference::Reference;
use fairlead_node::{Rendered, RuntimeName, read_as};
use fairlead_plan::node_config::{EndpointState, NodeConfig, PolicyId, PullKind, Resolution};

use super::{Given, Planned};
use crate::output::{FAILING, columns, line, write};

/// Say which places a node's runtime asks for an image, in order, and why
///
/// Policies come from files, or from the cluster that kubectl would use.
///
/// Ends with 0 if there is a place to ask, with 1 if policies cannot be read, with 2 for wrong arguments, and with 3
/// if some image has no place that may be asked.
#[derive(Debug, Args)]
pub(crate) struct Resolve {
    /// Images, as Pods name them
    #[arg(value_name = "IMAGE", required = true, value_parser = Reference::parse)]
    images: Vec<Reference>,
    #[command(flatten)]
    given: Given,
}

impl Resolve {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let Planned { config, runtime, router, has_failures: _ } = self.given.plan()?;
        let rendered = fairlead_node::render(&config, &runtime, router)?;
        let mut text = String::new();
        let mut has_place = true;
        for image in &self.images {
            let resolution = fairlead_node::resolve(&config, &runtime, router, image);
            has_place &= resolution.endpoints.iter().any(|endpoint| endpoint.state == EndpointState::Asked);
            show(&mut text, image, &resolution, &config, &rendered);
            if runtime.name != RuntimeName::Containerd {
                show_readings(&mut text, image, &resolution, &config, runtime.name);
            }
        }
        write(&text)?;
        Ok(if has_place { ExitCode::SUCCESS } else { FAILING.into() })
    }
}

fn show(
    text: &mut String,
    image: &Reference,
    resolution: &Resolution,
    config: &NodeConfig,
    rendered: &Rendered,
) {
    let kind = match resolution.kind {
        PullKind::Digest => "digest",
        PullKind::Tag => "tag",
    };
    line(text, 0, &format!("{image}, by {kind}"));
    let entry = resolution.scope.as_ref().and_then(|scope| config.entries.get_key_value(scope));
    let mirrors = entry.map(|(scope, entry)| {
        let mirrors = entry.mirrors(resolution.kind);
        (mirrors.inherited_from.as_ref().unwrap_or(scope), &mirrors.listed_by)
    });
    let mut rows = Vec::new();
    let mut place = 0;
    for (number, endpoint) in resolution.endpoints.iter().enumerate() {
        let mut why = match mirrors {
            Some((source, listed_by)) if !endpoint.is_source => {
                format!("mirror of {source}{}", by(&listed_by.mirror(number)))
            }
            _ => "source".to_owned(),
        };
        if endpoint.insecure {
            why.push_str(", insecure");
        }
        let number = if endpoint.state == EndpointState::Asked {
            place += 1;
            place.to_string()
        } else {
            "-".to_owned()
        };
        match &endpoint.state {
            EndpointState::Asked => {}
            EndpointState::Closed { scope, never: true } => {
                why.push_str(&["; not asked: NeverContactSource for ", scope.as_str()].concat());
            }
            EndpointState::Closed { scope, never: false } => {
                why.push_str(&["; not asked: blocked with ", scope.as_str()].concat());
            }
            EndpointState::NoName => why.push_str("; not asked: a registry alone is no image"),
            EndpointState::LeftOut => why.push_str("; not asked: the runtime's files leave it out"),
            EndpointState::ClosedByFile => {
                why.push_str("; not asked: the runtime's files close it because of another scope");
            }
            EndpointState::GivenUp => {
                why.push_str(
                    "; not asked: with the port after a mirror it is no image, so the runtime gives up",
                );
            }
        }
        rows.push([number, endpoint.image.clone(), why]);
    }
    columns(text, 1, &rows);
    let inexact = rendered.inexact.iter().filter(|one| Some(&one.source) == resolution.scope.as_ref());
    for one in inexact {
        line(text, 1, &format!("not exact: {}", one.message));
    }
    for one in rendered.notes.iter().filter(|one| Some(&one.source) == resolution.scope.as_ref()) {
        line(text, 1, &format!("note: {}", one.message));
    }
}

/// Readers of `registries.conf` compare texts, and so may take a place for a part of another scope than policies mean.
fn show_readings(
    text: &mut String,
    image: &Reference,
    resolution: &Resolution,
    config: &NodeConfig,
    runtime: RuntimeName,
) {
    let wanted = image.as_str().get(image.name().len()..).unwrap_or_default();
    for endpoint in
        resolution.endpoints.iter().filter(|one| one.is_source || one.state != EndpointState::GivenUp)
    {
        let place = endpoint.image.strip_suffix(wanted).unwrap_or(&endpoint.image);
        if let Some(scope) = read_as(config, place) {
            line(
                text,
                1,
                &format!("not exact: {runtime} takes {place} for a part of {scope} and treats it so"),
            );
        }
    }
}

/// The objects that list something, the first of them by name.
fn by(policies: &BTreeSet<&PolicyId>) -> String {
    match (policies.first(), policies.len()) {
        (None, _) => String::new(),
        (Some(first), 1) => format!(", by {first}"),
        (Some(first), count) => format!(", by {first} and {} more", count - 1),
    }
}
