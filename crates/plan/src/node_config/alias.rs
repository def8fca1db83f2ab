//! Other names of the same registry. Runtimes compare texts, so a registry that is closed under one name would be
//! contacted under another: with its default port written out, or by the names that Docker Hub has besides `docker.io`.
//! Every source of a registry that is closed, or closed in part, therefore counts under those names as well.

use std::collections::{BTreeMap, BTreeSet};

use super::Scope;

/// Images of all of these come from one registry.
const DOCKER_HUB: [&str; 3] = ["docker.io", "index.docker.io", "registry-1.docker.io"];

/// The registries, with something closed in them, whose sources count under other names.
pub(super) struct Aliases(BTreeSet<String>);

impl Aliases {
    pub(super) fn new<'a>(closed: impl Iterator<Item = &'a Scope>) -> Self {
        let closed = closed.filter(|scope| scope.domain().is_none());
        Self(closed.map(|scope| scope.host().to_owned()).collect())
    }

    /// The same source under the other names of its registry.
    pub(super) fn of<'a>(&self, scope: &'a Scope) -> impl Iterator<Item = Scope> + use<'a> {
        let host = scope.host();
        let names = if self.0.contains(host) { other_names(host) } else { Vec::new() };
        let path = scope.as_str().strip_prefix(host).unwrap_or_default();
        names.into_iter().filter_map(move |name| Scope::parse(&[&name, path].concat()).ok())
    }

    /// Adds to a table what its sources are under other names. What is written about such a name counts before.
    pub(super) fn extend<V>(&self, table: &mut BTreeMap<Scope, V>, alias_of: impl Fn(&V) -> V) {
        let added: Vec<(Scope, V)> = table
            .iter()
            .flat_map(|(scope, value)| self.of(scope).map(|alias| (alias, alias_of(value))))
            .collect();
        for (alias, value) in added {
            table.entry(alias).or_insert(value);
        }
    }
}

/// The other names under which the same registry is reached over HTTPS.
fn other_names(host: &str) -> Vec<String> {
    let name = host.strip_suffix(":443").unwrap_or(host);
    if name.contains(':') {
        return Vec::new();
    }
    let names: &[&str] = if DOCKER_HUB.contains(&name) { &DOCKER_HUB } else { &[name] };
    let all = names.iter().flat_map(|name| [(*name).to_owned(), [name, ":443"].concat()]);
    all.filter(|other| other != host).collect()
}
