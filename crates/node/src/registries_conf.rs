//! A drop-in of `registries.conf`, which CRI-O, podman and skopeo read.
//!
//! The file can say almost all of it. It differs in three places. The entry with the longest text counts, and of two
//! with equal length the first by alphabet, so `*.vendor.test` hides `r.vendor.test`. A mirror that leaves no name for
//! an image makes the whole pull fail. And before `pull-from-mirror`, digests and tags could not have mirrors of their
//! own.

use std::collections::BTreeSet;

use fairlead_plan::node_config::{Entry, Mirror, NodeConfig, PullKind, Scope};

use crate::runtime::Runtime;
use crate::toml::{HEADER, key, quoted};
use crate::{DROP_IN, File, Rendered};

pub(crate) fn render(config: &NodeConfig, runtime: &Runtime) -> Rendered {
    let mut rendered = Rendered::default();
    let closed_by_force = hidden_hosts(config, &mut rendered);
    let mut text = HEADER.to_owned();
    for (scope, entry) in &config.entries {
        let table = Table::new(scope, entry, runtime, &mut rendered);
        if scope.domain().is_some() && entry.has_mirrors() {
            rendered.report(
                scope,
                "images that are named with a port keep the port after the mirror, so their pulls fail or ask another \
                 port of the mirror",
            );
        }
        table.write(&mut text, closed_by_force.contains(scope));
    }
    if !config.entries.is_empty() {
        rendered.files.push(File { path: DROP_IN.to_owned(), content: text });
    }
    rendered
}

/// Finds hosts whose entries are hidden by that of their domain, and the domains that have to be closed because such a
/// host is.
fn hidden_hosts<'a>(config: &'a NodeConfig, rendered: &mut Rendered) -> BTreeSet<&'a Scope> {
    let mut closed = BTreeSet::new();
    for (scope, entry) in &config.entries {
        let label = scope.as_str().split_once('.').filter(|(label, _)| label.len() == 1 && *label != "*");
        let Some((_, domain)) = label.filter(|(_, domain)| !domain.contains(['/', ':'])) else { continue };
        let Some((hiding, over)) = config.entries.get_key_value(format!("*.{domain}").as_str()) else {
            continue;
        };
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
                rendered.report(scope, crate::without_name(&mirror.location));
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
