//! `hosts.toml` files that lead to the router.
//!
//! The router knows all entries, so a file says only when it is asked. A registry with nothing closed has its source
//! after the router, and stays open while the router is not there. A registry with something closed has the router
//! alone. Domains share one file with every registry that has none of its own.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use fairlead_plan::node_config::{Entry, NodeConfig, PullKind, Scope};

use super::{CHECKED, NO_FALLBACK, PULL_AND_RESOLVE, asks_insecurely, directory, host_keys, is_loopback};
use crate::runtime::Runtime;
use crate::toml::{HEADER, key, quoted};
use crate::{File, Rendered};

/// The directory that containerd looks into for registries without one of their own.
pub(super) const DEFAULT: &str = "_default";

pub(crate) fn render(config: &NodeConfig, runtime: &Runtime, router: SocketAddr) -> Rendered {
    let mut rendered = Rendered::default();
    let router = quoted(&format!("http://{router}"));
    let registries = config.entries.keys().filter(|scope| scope.domain().is_none()).map(Scope::host);
    for registry in registries.collect::<BTreeSet<_>>() {
        let is_listed = config.entry_for(registry).is_some_and(|(_, entry)| entry.insecure);
        let is_insecure = asks_insecurely(registry, is_listed, runtime);
        let insecure = is_insecure && runtime.falls_back_to_http();
        let is_routed = config.is_routed(registry);
        let is_closed = config.leads_to_router_only(registry);
        let closes_all = is_closed && !is_closed_for_good(config, registry);
        for (scope, entry) in config.entries_of(registry) {
            if closes_all {
                let message = format!("while the agent is not there, nothing can be pulled from {registry}");
                rendered.report(scope, message);
            }
            report(scope, entry, is_insecure, runtime, &mut rendered);
        }
        let mut text = HEADER.to_owned();
        if is_closed {
            only_router(&mut text, &router, insecure);
        } else {
            host_keys(&mut text, 0, Some("server"), registry, insecure, None);
            if is_routed {
                router_first(&mut text, &router);
            } else {
                text.push_str("\n[host]\n");
            }
        }
        rendered.files.push(File { path: format!("{}/hosts.toml", directory(registry)), content: text });
    }
    let is_closed = config.domains().any(|(_, entry)| entry.is_closed());
    for (scope, entry) in config.domains() {
        if is_closed {
            rendered.report(
                scope,
                "while the agent is not there, nothing can be pulled from registries without a policy of their own: \
                 containerd has no files for a domain",
            );
        }
        report(scope, entry, false, runtime, &mut rendered);
    }
    if is_closed || config.domains().any(|(_, entry)| entry.has_mirrors()) {
        let mut text = HEADER.to_owned();
        if is_closed {
            only_router(&mut text, &router, false);
        } else {
            router_first(&mut text, &router);
        }
        rendered.files.push(File { path: format!("{DEFAULT}/hosts.toml"), content: text });
    }
    rendered
}

/// What is not as the policies say, although a router is there. `is_insecure`: the whole registry is.
fn report(scope: &Scope, entry: &Entry, is_insecure: bool, runtime: &Runtime, rendered: &mut Rendered) {
    if (entry.insecure || is_loopback(scope.host())) && !entry.is_closed() {
        if !runtime.falls_back_to_http() {
            rendered.report(scope, format!("{NO_FALLBACK}; {CHECKED}"));
        } else if !is_insecure {
            rendered.report(scope, format!("containerd's files are about whole registries; {CHECKED}"));
        }
    }
    for mirror in [PullKind::Digest, PullKind::Tag].iter().flat_map(|kind| &entry.mirrors(*kind).list) {
        if scope.is_replaceable_by(&mirror.location) {
            continue;
        }
        if scope.is_replaceable_below_by(&mirror.location) {
            let mirror = &mirror.location;
            let message = format!(
                "the mirror {mirror} is not asked for an image {scope} itself, only for those below it: a registry alone \
                 is no image"
            );
            rendered.report(scope, message);
        } else {
            rendered.report(scope, crate::without_name(scope, &mirror.location));
        }
    }
}

/// Whether nothing of a registry can be pulled anyway.
fn is_closed_for_good(config: &NodeConfig, registry: &str) -> bool {
    config.entries_of(registry).all(|(scope, entry)| scope.path().is_none() && !entry.has_mirrors())
}

/// The router, and what the rest of the file says after it.
fn router_first(text: &mut String, router: &str) {
    for piece in ["\n[host.", router, "]\n"] {
        text.push_str(piece);
    }
    key(text, 2, "capabilities", PULL_AND_RESOLVE);
}

/// `skip_verify` is for the source, to which the router sends the runtime for what is open.
fn only_router(text: &mut String, router: &str, skip_verify: bool) {
    key(text, 0, "server", router);
    key(text, 0, "capabilities", PULL_AND_RESOLVE);
    if skip_verify {
        key(text, 0, "skip_verify", "true");
    }
    text.push_str("\n[host]\n");
}
