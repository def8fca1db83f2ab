//! `hosts.toml` files of containerd, one directory for each registry.
//!
//! A file is about a whole registry and knows neither repositories nor domains. It restricts who may name a tag's
//! digest, not who may serve bytes: every host of a file is asked for them. So only these are written: the same mirrors
//! for digests and tags, mirrors for digests with a closed source, a closed registry, an insecure one. A broken or
//! missing file makes containerd ask the source, so every file names its server and has a host table.

pub(crate) mod routed;

use std::collections::{BTreeMap, BTreeSet};

use fairlead_domain::reference::Host;
use fairlead_plan::node_config::{Entry, Mirror, NodeConfig, PullKind, Scope};

use crate::runtime::Runtime;
use crate::toml::{HEADER, key, quoted};
use crate::{File, Rendered};

const PULL: &str = r#"["pull"]"#;
const PULL_AND_RESOLVE: &str = r#"["pull", "resolve"]"#;
/// Pushing alone: nothing is pulled from here.
const CLOSED: &str = r#"["push"]"#;
const NO_FALLBACK: &str = "this version of containerd does not try HTTP after HTTPS, as insecure registries need \
                           (1.6.38, 1.7.13, 2.0 or later do)";
const CHECKED: &str = "the source is asked with a checked certificate";

pub(crate) fn render(config: &NodeConfig, runtime: &Runtime) -> Rendered {
    let mut rendered = Rendered::default();
    let closed_inside = enclosing_closed_places(config);
    let mut registries: BTreeMap<&str, Vec<(&Scope, &Entry)>> = BTreeMap::new();
    for (scope, entry) in &config.entries {
        if scope.domain().is_some() {
            let why = "containerd has no files for every host of a domain";
            report_left_out(&mut rendered, scope, why, &what_follows(entry, None));
        } else {
            registries.entry(scope.host()).or_default().push((scope, entry));
        }
    }
    for (host, entries) in registries {
        let whole = entries.iter().copied().find(|(scope, _)| scope.path().is_none());
        for (scope, entry) in entries.iter().filter(|(scope, _)| scope.path().is_some()) {
            let why = "containerd's files are about whole registries";
            report_left_out(&mut rendered, scope, why, &what_follows(entry, whole));
        }
        let Some((scope, entry)) = whole else { continue };
        let hosts = hosts_of_registry(config, (scope, entry), entries.len(), &closed_inside, runtime);
        let hosts = match hosts {
            Ok(hosts) => {
                let unnamed = |mirror: &&Mirror| !scope.is_replaceable_by(&mirror.location);
                for mirror in entry.digest.list.iter().filter(unnamed) {
                    rendered.report(scope, crate::without_name(scope, &mirror.location));
                }
                hosts
            }
            Err(why) if entry.is_closed() => {
                rendered.report(scope, format!("{why}; the registry is closed, without mirrors"));
                Hosts::default()
            }
            Err(why) => {
                report_left_out(&mut rendered, scope, why, "");
                continue;
            }
        };
        crate::report_half_closed(scope, entry, &mut rendered);
        if is_loopback(host) && !entry.is_closed() && !runtime.falls_back_to_http() {
            rendered.report(scope, format!("{NO_FALLBACK}; {CHECKED}"));
        }
        let path = format!("{}/hosts.toml", directory(host));
        let insecure = asks_insecurely(host, entry.insecure, runtime);
        rendered.files.push(File { path, content: hosts.file(host, entry, insecure) });
    }
    rendered
}

/// The hosts of a registry's file, if one can be written; `entries` is how many there are about the registry.
fn hosts_of_registry<'a>(
    config: &NodeConfig,
    (scope, entry): (&Scope, &'a Entry),
    entries: usize,
    closed_inside: &BTreeSet<&str>,
    runtime: &Runtime,
) -> Result<Hosts<'a>, &'static str> {
    if entries > 1 {
        return Err(
            "repositories of this registry have entries of their own, which containerd's files cannot tell apart",
        );
    }
    hosts(config, scope, entry, closed_inside, runtime)
}

/// What the file of a registry says about pulls of one kind: the mirrors that are asked, and whether the source is.
/// Without a file, containerd asks the source.
pub(crate) fn asked<'a>(
    config: &'a NodeConfig,
    runtime: &Runtime,
    registry: &str,
    kind: PullKind,
) -> (Vec<&'a Mirror>, bool) {
    let Some((scope, entry)) = config.entries.get_key_value(registry) else { return (Vec::new(), true) };
    let entries = config.entries.keys().filter(|scope| scope.host() == registry).count();
    match hosts_of_registry(config, (scope, entry), entries, &enclosing_closed_places(config), runtime) {
        Ok(hosts) if kind == PullKind::Tag && hosts.capabilities == PULL => (Vec::new(), !entry.is_closed()),
        Ok(hosts) => (hosts.mirrors, !entry.is_closed()),
        Err(_) => (Vec::new(), !entry.is_closed()),
    }
}

fn report_left_out(rendered: &mut Rendered, scope: &Scope, why: &str, what_follows: &str) {
    rendered.report(scope, format!("{why}; it is left out{what_follows}"));
}

/// What becomes of a source that is left out. `whole` is the entry of its whole registry.
fn what_follows(entry: &Entry, whole: Option<(&Scope, &Entry)>) -> String {
    match whole {
        Some((registry, whole)) if whole.is_closed() => format!(", and closed with all of {registry}"),
        _ if entry.is_closed() => ", and its source is still contacted".to_owned(),
        _ => String::new(),
    }
}

/// Every place that has a closed one inside it. containerd does not look mirrors up again, so such a mirror would be
/// asked for what must not be asked there.
fn enclosing_closed_places(config: &NodeConfig) -> BTreeSet<&str> {
    let closed = config.entries.iter().filter(|(_, entry)| entry.is_closed());
    closed
        .flat_map(|(scope, _)| {
            std::iter::successors(Some(scope.as_str()), |text| {
                text.rsplit_once('/').map(|(parent, _)| parent)
            })
            .skip(1)
        })
        .collect()
}

/// The hosts of a file.
#[derive(Default)]
struct Hosts<'a> {
    mirrors: Vec<&'a Mirror>,
    capabilities: &'static str,
}

fn hosts<'a>(
    config: &NodeConfig,
    scope: &Scope,
    entry: &'a Entry,
    closed_inside: &BTreeSet<&str>,
    runtime: &Runtime,
) -> Result<Hosts<'a>, &'static str> {
    let capabilities = match (entry.is_same_for_both(), entry.tag.list.is_empty()) {
        (true, _) => PULL_AND_RESOLVE,
        (false, true) if entry.is_closed() => PULL,
        (false, true) => {
            return Err(
                "containerd would also take the layers of tags from mirrors that are for digests only",
            );
        }
        (false, false) => {
            return Err("containerd cannot keep mirrors for tags and mirrors for digests apart");
        }
    };
    let mut mirrors: Vec<&Mirror> = Vec::new();
    let mut urls = BTreeSet::new();
    // containerd would ask the others as well; they are left out as for every other runtime.
    for mirror in entry.digest.list.iter().filter(|mirror| scope.is_replaceable_by(&mirror.location)) {
        if let Some((_, found)) =
            config.entry_for(mirror.location.as_str()).filter(|(_, found)| found.is_closed())
        {
            if [PullKind::Digest, PullKind::Tag].iter().all(|kind| found.is_closed_for(*kind)) {
                continue;
            }
            return Err(
                "a mirror must not be contacted for one kind of pull, which containerd cannot tell apart",
            );
        }
        if closed_inside.contains(mirror.location.as_str()) {
            return Err("a mirror has places that must not be contacted, and containerd would not look");
        }
        // Two tables of one name make the file unreadable.
        if urls.insert(url(mirror.location.as_str(), mirror.insecure)) {
            mirrors.push(mirror);
        }
    }
    let insecure = entry.insecure || mirrors.iter().any(|mirror| mirror.insecure);
    if insecure && !runtime.falls_back_to_http() {
        return Err(NO_FALLBACK);
    }
    Ok(Hosts { mirrors, capabilities })
}

impl Hosts<'_> {
    /// `insecure`: the source is asked without a checked certificate, or without TLS.
    fn file(&self, registry: &str, entry: &Entry, insecure: bool) -> String {
        let mut text = HEADER.to_owned();
        let mut before = self.mirrors.as_slice();
        // The last host is asked whatever the file says. Where the source is closed, that has to be a mirror.
        match self.mirrors.split_last() {
            Some((last, others)) if entry.is_closed() => {
                host_keys(
                    &mut text,
                    0,
                    Some("server"),
                    last.location.as_str(),
                    last.insecure,
                    Some(self.capabilities),
                );
                before = others;
            }
            _ => {
                let capabilities = entry.is_closed().then_some(CLOSED);
                host_keys(&mut text, 0, Some("server"), registry, insecure, capabilities);
            }
        }
        if before.is_empty() {
            text.push_str("\n[host]\n");
        }
        for mirror in before {
            let location = mirror.location.as_str();
            for piece in ["\n[host.", &quoted(&url(location, mirror.insecure)), "]\n"] {
                text.push_str(piece);
            }
            host_keys(&mut text, 2, None, location, mirror.insecure, Some(self.capabilities));
        }
        text
    }
}

fn host_keys(
    text: &mut String,
    indent: usize,
    name: Option<&str>,
    place: &str,
    insecure: bool,
    capabilities: Option<&str>,
) {
    if let Some(name) = name {
        key(text, indent, name, &quoted(&url(place, insecure)));
    }
    if let Some(capabilities) = capabilities {
        key(text, indent, "capabilities", capabilities);
    }
    for (name, is_set) in [("override_path", place.contains('/')), ("skip_verify", insecure)] {
        if is_set {
            key(text, indent, name, "true");
        }
    }
}

/// Whether a file has containerd ask the source without a checked certificate, and without TLS if there is none.
/// Without a file it does so for every registry of its own machine, so a file must not end that.
fn asks_insecurely(registry: &str, is_listed: bool, runtime: &Runtime) -> bool {
    is_listed || is_loopback(registry) && runtime.falls_back_to_http()
}

fn is_loopback(registry: &str) -> bool {
    Host::parse(registry).is_ok_and(|host| host.is_loopback())
}

/// A path of a mirror stands after `/v2`, as the requests have it.
fn url(place: &str, insecure: bool) -> String {
    let scheme = if insecure { "http" } else { "https" };
    let (host, path) = place.split_once('/').map_or((place, None), |(host, path)| (host, Some(path)));
    let host = if host == "docker.io" { "registry-1.docker.io" } else { host };
    path.map_or_else(|| format!("{scheme}://{host}"), |path| format!("{scheme}://{host}/v2/{path}"))
}

/// The directory of the file that decides about a source where containerd is led to a router.
pub(crate) fn directory_of(scope: &Scope) -> String {
    if scope.domain().is_some() { routed::DEFAULT.to_owned() } else { directory(scope.host()) }
}

/// A colon cannot be part of a directory's name everywhere.
fn directory(host: &str) -> String {
    host.split_once(':').map_or_else(|| host.to_owned(), |(name, port)| format!("{name}_{port}_"))
}

/// The registry that a directory is for.
pub(crate) fn host_of(directory: &str) -> String {
    let port = directory.strip_suffix('_').and_then(|name| name.rsplit_once('_'));
    let port = port.filter(|(_, port)| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()));
    port.map_or_else(|| directory.to_owned(), |(name, port)| format!("{name}:{port}"))
}
