//! A drop-in of `registries.conf`, which CRI-O, podman and skopeo read.
//!
//! The file can say almost all of it. It differs in three places. The entry with the longest text counts, and of two
//! with equal length the first by alphabet, so `*.vendor.test` hides `r.vendor.test`. A mirror that leaves no name for
//! an image makes the whole pull fail. And before `pull-from-mirror`, digests and tags could not have mirrors of their
//! own.

use std::collections::BTreeSet;
use std::ops::Bound;

use fairlead_plan::node_config::{Entry, Mirror, NodeConfig, PullKind, Scope};

use crate::runtime::Runtime;
use crate::toml::{HEADER, key, quoted};
use crate::{DROP_IN, File, Rendered};

pub(crate) fn render(config: &NodeConfig, runtime: &Runtime) -> Rendered {
    let mut rendered = Rendered::default();
    let closings = Closings::new(config, &mut rendered);
    let mut text = HEADER.to_owned();
    for (scope, entry) in &config.entries {
        if let Some(named) = named_with_port(config, scope, entry) {
            rendered.report(
                named,
                format!("images named {scope}/… still contact the source: the file would close every port of the host"),
            );
            continue;
        }
        let table = Table::new(scope, entry, runtime, &mut rendered);
        report_ports(config, scope, entry, closings.by_force.contains(scope), &mut rendered);
        report_repeated(scope, entry, &mut rendered);
        crate::report_half_closed(scope, entry, &mut rendered);
        closings.report_mirrors(scope, entry, &mut rendered);
        table.write(&mut text, closings.by_force.contains(scope));
    }
    if !config.entries.is_empty() {
        rendered.files.push(File { path: DROP_IN.to_owned(), content: text });
    }
    rendered
}

/// The registry with its port that this is another name of, without one.
fn named_with_port<'a>(config: &'a NodeConfig, scope: &Scope, entry: &Entry) -> Option<&'a Scope> {
    let is_host = entry.is_alias && entry.is_closed() && !scope.as_str().contains(['/', ':']);
    let named = config.entries.get_key_value(format!("{scope}:443").as_str());
    named.filter(|(_, named)| is_host && !named.is_alias).map(|(named, _)| named)
}

/// The entries that count for readers of the file: it has tables for them, and no other table hides those.
pub(crate) fn in_file(config: &NodeConfig) -> NodeConfig {
    let counts = |scope: &Scope, entry: &Entry| {
        named_with_port(config, scope, entry).is_none() && hiding(config, scope).is_none()
    };
    let entries = config.entries.iter().filter(|(scope, entry)| counts(scope, entry));
    let entries = entries.map(|(scope, entry)| (scope.clone(), entry.clone())).collect();
    NodeConfig { entries, findings: Vec::new() }
}

/// The domain whose table hides that of a host, because their texts have the same length.
fn hiding<'a>(config: &'a NodeConfig, host: &Scope) -> Option<(&'a Scope, &'a Entry)> {
    let (label, domain) = host.as_str().split_once('.')?;
    if label.len() != 1 || label == "*" || domain.contains(['/', ':']) {
        return None;
    }
    config.entries.get_key_value(["*.", domain].concat().as_str())
}

/// The table by which readers judge a place. That of a host without a port counts for every port.
pub(crate) fn table<'a>(config: &'a NodeConfig, place: &str) -> Option<(&'a Scope, &'a Entry)> {
    let found = config.entry_for(place);
    // No table hides one of these, and all of them are in the file.
    let found = found.filter(|(scope, _)| scope.domain().is_none() && scope.as_str().contains(['/', ':']));
    let host = place.split(['/', ':']).next().unwrap_or_default();
    let of_host = || {
        let (scope, entry) = config.entries.get_key_value(host)?;
        let is_in_file = named_with_port(config, scope, entry).is_none();
        is_in_file.then(|| hiding(config, scope).unwrap_or((scope, entry)))
    };
    // No entry names this port, so that is the domain's.
    let of_domain = || config.entry_for(&[host, ":0"].concat()).filter(|(scope, _)| matches(scope, place));
    found.or_else(of_host).or_else(of_domain)
}

/// What readers put after the mirrors of a table for an image that is named with a port. Where the table is that of a
/// host without one, or of a domain, they keep the port.
pub(crate) fn kept_port<'n>(scope: &Scope, name: &'n str) -> Option<&'n str> {
    let rest = name.get(name.find(['/', ':'])?..)?;
    (rest.starts_with(':') && !scope.as_str().contains(['/', ':'])).then_some(rest)
}

/// What the file closes.
pub(crate) struct Closings<'a> {
    config: &'a NodeConfig,
    /// Scopes that are closed because of others, which hide them or which they hide.
    by_force: BTreeSet<&'a Scope>,
    has_any: bool,
}

impl<'a> Closings<'a> {
    pub(crate) fn new(config: &'a NodeConfig, rendered: &mut Rendered) -> Self {
        let mut by_force = hidden_hosts(config, rendered);
        by_force.extend(hosts_with_closed_ports(config, rendered));
        Self { config, by_force, has_any: config.entries.values().any(Entry::is_closed) }
    }

    /// The scope by whose table readers find a place closed.
    pub(crate) fn closing(&self, place: &str) -> Option<&'a Scope> {
        let (scope, entry) = table(self.config, place).filter(|_| self.has_any)?;
        (entry.is_closed() || self.by_force.contains(scope)).then_some(scope)
    }

    /// Readers look every mirror up before they ask it. Where policies close it, that is said of the policies.
    fn report_mirrors(&self, scope: &Scope, entry: &Entry, rendered: &mut Rendered) {
        for kind in [PullKind::Digest, PullKind::Tag] {
            for mirror in &entry.mirrors(kind).list {
                let Some(closing) = self.closing(mirror.location.as_str()) else { continue };
                let found = self.config.entry_for(mirror.location.as_str());
                if found.is_none_or(|(_, found)| !found.is_closed_for(kind)) {
                    let mirror = &mirror.location;
                    rendered.report(
                        scope,
                        format!(
                            "the mirror {mirror} is not asked: readers of the file take it for a part of {closing}, \
                             which the file closes"
                        ),
                    );
                }
            }
        }
    }
}

/// A host without a port is one with any port as well. Few registries have several, so that is no more than a note
/// where nothing names another port of the host. Hosts of a domain may have any.
fn report_ports(
    config: &NodeConfig,
    scope: &Scope,
    entry: &Entry,
    closed_by_force: bool,
    rendered: &mut Rendered,
) {
    // Docker Hub has no other port.
    let is_host =
        scope.domain().is_some() || !scope.as_str().contains(['/', ':']) && scope.as_str() != "docker.io";
    let message = if is_host && entry.has_mirrors() {
        "images that are named with a port keep the port after the mirror, so their pulls fail or ask another port of \
         the mirror"
    } else if is_host && scope.domain().is_none() && entry.is_closed() && !closed_by_force {
        "other ports of the host are closed as well"
    } else {
        return;
    };
    if scope.domain().is_some() || has_other_ports(config, scope) {
        rendered.report(scope, message);
    } else {
        rendered.note(scope, message);
    }
}

/// Readers look for the first place of a domain's text in a name, and then for its end.
fn report_repeated(scope: &Scope, entry: &Entry, rendered: &mut Rendered) {
    if let Some(domain) = scope.domain().filter(|_| entry.is_closed()) {
        rendered.report(
            scope,
            format!(
                "hosts with {domain} twice in their names still contact the source: readers do not match them"
            ),
        );
    }
}

/// Whether a policy or a list names the host with a port.
fn has_other_ports(config: &NodeConfig, host: &Scope) -> bool {
    let with_port = format!("{host}:");
    let from = config.entries.range::<str, _>((Bound::Included(with_port.as_str()), Bound::Unbounded));
    let mut named = from.take_while(|(scope, _)| scope.as_str().starts_with(&with_port));
    named.any(|(_, entry)| !entry.is_alias)
}

/// The entry by which readers of the file judge a place, if it is another than policies mean. They compare texts: a
/// host without a port matches every port of it, and what is longer hides what is more specific.
pub fn read_as<'a>(config: &'a NodeConfig, place: &str) -> Option<&'a Scope> {
    let mut longest: Option<&Scope> = None;
    let in_file =
        config.entries.iter().filter(|(scope, entry)| named_with_port(config, scope, entry).is_none());
    for (scope, _) in in_file.filter(|(scope, _)| matches(scope, place)) {
        if longest.is_none_or(|longest| longest.as_str().len() < scope.as_str().len()) {
            longest = Some(scope);
        }
    }
    longest.filter(|longest| config.entry_for(place).is_none_or(|(scope, _)| scope != *longest))
}

fn matches(scope: &Scope, place: &str) -> bool {
    let rest = match scope.domain() {
        None => place.strip_prefix(scope.as_str()),
        Some(domain) => {
            place.split_once(domain).filter(|(before, _)| !before.contains('/')).map(|(_, rest)| rest)
        }
    };
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', ':', '@']))
}

/// Whether the table of a domain in another file counts for a host in place of ours. Of two tables whose texts are of
/// the same length, readers follow the first by alphabet.
pub(crate) fn hides(prefix: &str, host: &Scope) -> bool {
    let domain = prefix.strip_prefix('*').filter(|_| host.domain().is_none());
    domain.is_some_and(|domain| host.as_str().len() == prefix.len() && host.as_str().ends_with(domain))
}

/// Finds hosts whose entries are hidden by that of their domain, and the domains that have to be closed because such a
/// host is.
fn hidden_hosts<'a>(config: &'a NodeConfig, rendered: &mut Rendered) -> BTreeSet<&'a Scope> {
    let mut closed = BTreeSet::new();
    for (scope, entry) in &config.entries {
        let Some((hiding, over)) = hiding(config, scope) else { continue };
        let same = |kind| entry.mirrors(kind).list == over.mirrors(kind).list;
        let same_mirrors = same(PullKind::Digest) && same(PullKind::Tag);
        if same_mirrors && entry.is_closed() == over.is_closed() && entry.insecure == over.insecure {
            continue;
        }
        if entry.is_closed() && !over.is_closed() {
            closed.insert(hiding);
            rendered.report(
                hiding,
                format!("every source below the domain is closed, because {scope} must not be contacted and {hiding} hides it"),
            );
        }
        rendered.report(
            scope,
            format!(
                "{hiding} has a text of the same length and hides it: its images are treated as {hiding} says"
            ),
        );
    }
    closed
}

/// Finds open hosts in closed domains. Their entries are also those of all their ports, about which only the domain
/// says something.
fn hosts_with_closed_ports<'a>(config: &'a NodeConfig, rendered: &mut Rendered) -> Vec<&'a Scope> {
    let mut closed = Vec::new();
    for (scope, entry) in &config.entries {
        if entry.is_closed() || scope.domain().is_some() || scope.as_str().contains(['/', ':']) {
            continue;
        }
        // A port that no entry names stands for all of those.
        let over = config.entry_for(&format!("{scope}:0")).filter(|(over, _)| over.domain().is_some());
        if let Some((domain, _)) = over.filter(|(_, over)| over.is_closed()) {
            rendered.report(
                scope,
                format!(
                    "its source is closed as well: {domain} must not be contacted, and {scope} hides it for names with \
                     a port"
                ),
            );
            closed.push(scope);
        }
    }
    closed
}

/// The mirrors that the table of a scope names for pulls of one kind.
pub(crate) fn asked<'a>(
    runtime: &Runtime,
    scope: &'a Scope,
    entry: &'a Entry,
    kind: PullKind,
) -> Vec<&'a Mirror> {
    let table = Table::new(scope, entry, runtime, &mut Rendered::default());
    let is_asked = |restriction: Option<&str>| match (kind, restriction) {
        (PullKind::Digest, restriction) => restriction != Some("tag-only"),
        (PullKind::Tag, None) => !table.by_digest_only,
        (PullKind::Tag, restriction) => restriction != Some("digest-only"),
    };
    let mirrors = table.mirrors.iter().filter(|(_, restriction)| is_asked(*restriction));
    mirrors.map(|(mirror, _)| *mirror).collect()
}

/// One `[[registry]]` table.
struct Table<'a> {
    scope: &'a Scope,
    entry: &'a Entry,
    /// For readers that know no restriction for each mirror.
    by_digest_only: bool,
    mirrors: Vec<(&'a Mirror, Option<&'static str>)>,
}

impl<'a> Table<'a> {
    fn new(scope: &'a Scope, entry: &'a Entry, runtime: &Runtime, rendered: &mut Rendered) -> Self {
        let mut usable = |kind| {
            let (usable, left_out): (Vec<&Mirror>, Vec<&Mirror>) =
                entry.mirrors(kind).list.iter().partition(|mirror| scope.is_replaceable_by(&mirror.location));
            for mirror in left_out {
                rendered.report(scope, crate::without_name(scope, &mirror.location));
            }
            usable
        };
        let (digest, tag) = (usable(PullKind::Digest), usable(PullKind::Tag));
        let all =
            |list: Vec<&'a Mirror>, restriction| list.into_iter().map(move |mirror| (mirror, restriction));
        if runtime.restricts_mirrors() {
            let mirrors = all(digest, Some("digest-only")).chain(all(tag, Some("tag-only"))).collect();
            return Self { scope, entry, by_digest_only: false, mirrors };
        }
        if digest == tag {
            return Self { scope, entry, by_digest_only: false, mirrors: all(digest, None).collect() };
        }
        if !tag.is_empty() {
            rendered.report(
                scope,
                "mirrors for tags are left out: this version would use them for digests as well (pull-from-mirror \
                 needs CRI-O 1.25, podman 4.1 or later)",
            );
        }
        Self { scope, entry, by_digest_only: !digest.is_empty(), mirrors: all(digest, None).collect() }
    }

    fn write(&self, text: &mut String, closed_by_force: bool) {
        text.push_str("\n[[registry]]\n");
        let place = self.scope.as_str();
        if self.scope.domain().is_some() {
            key(text, 2, "prefix", &quoted(place));
        } else {
            key(text, 2, "prefix", &quoted(""));
            key(text, 2, "location", &quoted(place));
        }
        let closed = self.entry.is_closed() || closed_by_force;
        for (name, is_set) in [
            ("insecure", self.entry.insecure),
            ("blocked", closed),
            ("mirror-by-digest-only", self.by_digest_only),
        ] {
            if is_set {
                key(text, 2, name, "true");
            }
        }
        for (mirror, restriction) in &self.mirrors {
            text.push_str("\n  [[registry.mirror]]\n");
            key(text, 4, "location", &quoted(mirror.location.as_str()));
            if mirror.insecure {
                key(text, 4, "insecure", "true");
            }
            if let Some(restriction) = restriction {
                key(text, 4, "pull-from-mirror", &quoted(restriction));
            }
        }
    }
}
