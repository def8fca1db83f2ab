//! Files that make a container runtime do what mirror policies say.
//!
//! Runtimes differ in what their files can express. What a file cannot say is not approximated: it is left out, and
//! reported with its source. A source that must not be contacted is closed in the file wherever the file can close it
//! without closing others.

pub mod agent;
mod contacts;
mod containerd;
pub mod crio;
pub mod detect;
pub mod files;
mod registries_conf;
pub mod router;
mod runtime;
pub mod status;
mod toml;

use std::net::SocketAddr;

use fairlead_plan::node_config::{Entry, Location, NodeConfig, Scope};

pub use self::contacts::resolve;
pub use self::registries_conf::read_as;
pub use self::runtime::{Runtime, RuntimeError, RuntimeName, Version, VersionError};

/// The file for CRI-O and podman, among the drop-ins of `registries.conf`.
pub const DROP_IN: &str = "50-fairlead.conf";

/// The files of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    pub files: Vec<File>,
    /// What the files do not express, in the order of the sources.
    pub inexact: Vec<Inexact>,
    /// What holds beside the policies, and may matter to an administrator.
    pub notes: Vec<Inexact>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// Below the directory that the runtime reads: `registries.conf.d` or `certs.d`.
    pub path: String,
    pub content: String,
}

/// A source that the runtime does not treat as its policies say.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Inexact {
    pub source: Scope,
    pub message: String,
}

/// Writes the configuration for a runtime, or refuses one that cannot be configured by files at all. With the address
/// of a router, containerd is led there; the files of other runtimes say enough themselves.
pub fn render(
    config: &NodeConfig,
    runtime: &Runtime,
    router: Option<SocketAddr>,
) -> Result<Rendered, RuntimeError> {
    runtime.check()?;
    let mut rendered = match (runtime.name, router) {
        (RuntimeName::Crio | RuntimeName::Podman, _) => registries_conf::render(config, runtime),
        (RuntimeName::Containerd, Some(router)) => containerd::routed::render(config, runtime, router),
        (RuntimeName::Containerd, None) => containerd::render(config, runtime),
    };
    // What holds for a source holds under the other names of its registry.
    for list in [&mut rendered.inexact, &mut rendered.notes] {
        list.retain(|one| config.entries.get(&one.source).is_none_or(|entry| !entry.is_alias));
        list.sort();
        list.dedup();
    }
    Ok(rendered)
}

impl Rendered {
    fn report(&mut self, source: &Scope, message: impl Into<String>) {
        self.inexact.push(Inexact { source: source.clone(), message: message.into() });
    }

    fn note(&mut self, source: &Scope, message: impl Into<String>) {
        self.notes.push(Inexact { source: source.clone(), message: message.into() });
    }
}

/// Reports a source that policies close for one kind of pull, and that the file closes for both.
fn report_half_closed(source: &Scope, entry: &Entry, rendered: &mut Rendered) {
    let (digest, tag) = (&entry.digest.closed, &entry.tag.closed);
    let (closed, open) = match (digest, tag) {
        _ if entry.blocked => return,
        (Some(_), None) => ("digests", "tags"),
        (None, Some(_)) => ("tags", "digests"),
        _ => return,
    };
    rendered.report(
        source,
        format!("its source is closed for {open} as well: the file cannot close it for {closed} alone"),
    );
}

/// What is said about a mirror that leaves images of the source without a full name.
fn without_name(source: &Scope, mirror: &Location) -> String {
    let why = if source.path().is_some() && mirror.path().is_none() {
        "the source can be a whole repository, and a registry alone is no image; write a path at the mirror"
    } else {
        "images of the source have no full name there; write a host with a dot or a port, and a path if it is docker.io"
    };
    format!("the mirror {mirror} is left out: {why}")
}
