//! Which files an agent writes, removes and leaves alone.
//!
//! The agent owns what it wrote and nothing else. Where a file of another owner stands, or one that the runtime would
//! read in place of ours, nothing is written, and the reason is reported.

use std::collections::BTreeMap;

/// What is found where a file belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// Written by an agent.
    Ours { content: String },
    /// Not written by an agent.
    Foreign,
    /// The file is gone; what an agent kept beside it is still there.
    Lost,
    /// A directory with nothing in it, which is not an agent's. Runtimes take it for a registry without mirrors.
    Empty,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilePlan {
    /// In the order in which they are carried out.
    pub changes: Vec<FileChange>,
    /// Files that are wanted and not written, because they would take the place of others.
    pub foreign: Vec<ForeignFile>,
    /// What another owner has for every registry without a directory of its own. Each directory of ours ends that for
    /// its registry.
    pub foreign_default: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileChange {
    Create { path: String, content: String },
    Replace { path: String, content: String },
    Remove { path: String },
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ForeignFile {
    pub path: String,
    /// What stands in its way.
    pub found: String,
}

/// Directories that a runtime looks into after ours, by name, with where they are. It stops at the first directory for
/// a registry, so one of ours would hide them.
pub type LaterDirectories = BTreeMap<String, String>;

/// The directory for every registry without one of its own.
const DEFAULT: &str = "_default";

impl FilePlan {
    /// Compares what is wanted with what is there, by paths. What is no longer wanted goes last, so that a registry is
    /// never without a file because another one gets its own.
    pub fn new(
        wanted: &BTreeMap<String, String>,
        found: &BTreeMap<String, Found>,
        later: &LaterDirectories,
    ) -> Self {
        let foreign_default = found.iter().find(|(path, found)| {
            **found == Found::Foreign && path.split_once('/').is_some_and(|(name, _)| name == DEFAULT)
        });
        let foreign_default = foreign_default.map(|(path, _)| path).or_else(|| later.get(DEFAULT)).cloned();
        let mut plan = Self { foreign_default, ..Self::default() };
        for (path, content) in wanted {
            let other = other_spelling(path).filter(|other| found.get(other) == Some(&Found::Foreign));
            let other = other.or_else(|| hidden(path, found, later));
            let (path, content) = (path.clone(), content.clone());
            match (found.get(&path), other) {
                (Some(Found::Foreign), _) => plan.foreign.push(ForeignFile { found: path.clone(), path }),
                (_, Some(found)) => plan.foreign.push(ForeignFile { path, found }),
                (None | Some(Found::Lost | Found::Empty), None) => {
                    plan.changes.push(FileChange::Create { path, content });
                }
                (Some(Found::Ours { content: old }), None) if *old == content => {}
                (Some(Found::Ours { .. }), None) => plan.changes.push(FileChange::Replace { path, content }),
            }
        }
        let kept =
            |path: &String| wanted.contains_key(path) && !plan.foreign.iter().any(|one| one.path == *path);
        let ours = found.iter().filter(|(_, found)| matches!(found, Found::Ours { .. } | Found::Lost));
        let gone: Vec<&String> = ours.map(|(path, _)| path).filter(|path| !kept(path)).collect();
        plan.changes.extend(gone.into_iter().map(|path| FileChange::Remove { path: path.clone() }));
        plan
    }
}

/// A directory that the one of this path would hide.
fn hidden(path: &str, found: &BTreeMap<String, Found>, later: &LaterDirectories) -> Option<String> {
    let directory = path.split('/').next().unwrap_or_default();
    let other = other_spelling(path).and_then(|other| Some(other.split_once('/')?.0.to_owned()));
    let same = later.get(directory).or_else(|| later.get(&other?));
    let file = path.split_once('/').map_or(path, |(_, file)| file);
    let is_seen = |name: &String| directory == DEFAULT && !found.contains_key(&format!("{name}/{file}"));
    let any = || later.iter().find(|(name, _)| is_seen(name)).map(|(_, place)| place);
    same.or_else(any).cloned()
}

/// containerd looks for `host_port_` before `host:port`, so a directory of ours would hide one of an administrator.
fn other_spelling(path: &str) -> Option<String> {
    let (directory, file) = path.split_once('/')?;
    let (host, port) = directory.strip_suffix('_')?.rsplit_once('_')?;
    Some(format!("{host}:{port}/{file}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map<V: Clone>(items: &[(&str, V)]) -> BTreeMap<String, V> {
        items.iter().map(|(path, value)| ((*path).to_owned(), value.clone())).collect()
    }

    fn ours(content: &str) -> Found {
        Found::Ours { content: content.to_owned() }
    }

    fn plan(wanted: &[(&str, &str)], found: &[(&str, Found)]) -> Vec<String> {
        plan_before(wanted, found, &[])
    }

    fn plan_before(wanted: &[(&str, &str)], found: &[(&str, Found)], later: &[&str]) -> Vec<String> {
        let later = later.iter().map(|name| ((*name).to_owned(), format!("/later/{name}"))).collect();
        let wanted: Vec<(&str, String)> =
            wanted.iter().map(|(path, text)| (*path, (*text).to_owned())).collect();
        let FilePlan { changes, foreign, .. } = FilePlan::new(&map(&wanted), &map(found), &later);
        let changes = changes.into_iter().map(|change| match change {
            FileChange::Create { path, .. } => format!("create {path}"),
            FileChange::Replace { path, .. } => format!("replace {path}"),
            FileChange::Remove { path } => format!("remove {path}"),
        });
        changes
            .chain(foreign.into_iter().map(|one| format!("{} is in the way of {}", one.found, one.path)))
            .collect()
    }

    #[test]
    fn only_what_differs_changes_and_removals_come_last() {
        let found = [("a/hosts.toml", ours("1")), ("b/hosts.toml", ours("1")), ("c/hosts.toml", ours("1"))];
        let wanted = [("b/hosts.toml", "1"), ("c/hosts.toml", "2"), ("d/hosts.toml", "2")];
        assert_eq!(
            plan(&wanted, &found),
            ["replace c/hosts.toml", "create d/hosts.toml", "remove a/hosts.toml"]
        );
    }

    #[test]
    fn files_of_others_are_left_alone() {
        let found = [("a/hosts.toml", Found::Foreign), ("z/hosts.toml", Found::Foreign)];
        assert_eq!(plan(&[("a/hosts.toml", "1")], &found), ["a/hosts.toml is in the way of a/hosts.toml"]);
        assert!(plan(&[], &found).is_empty());
    }

    /// Also if ours was there first: the administrator's counts from then on.
    #[test]
    fn a_file_that_ours_would_hide_is_left_alone() {
        let found = [("a:5000/hosts.toml", Found::Foreign), ("a_5000_/hosts.toml", ours("1"))];
        assert_eq!(
            plan(&[("a_5000_/hosts.toml", "1")], &found),
            ["remove a_5000_/hosts.toml", "a:5000/hosts.toml is in the way of a_5000_/hosts.toml"]
        );
    }

    #[test]
    fn what_is_left_of_a_lost_file_goes_and_an_empty_directory_stays() {
        let found = [
            ("a/hosts.toml", Found::Lost),
            ("b/hosts.toml", Found::Lost),
            ("c/hosts.toml", Found::Empty),
            ("d/hosts.toml", Found::Empty),
        ];
        assert_eq!(
            plan(&[("b/hosts.toml", "1"), ("d/hosts.toml", "1")], &found),
            ["create b/hosts.toml", "create d/hosts.toml", "remove a/hosts.toml"]
        );
    }

    #[test]
    fn a_directory_of_others_for_all_registries_is_found_wherever_it_is() {
        let default = |found: &[(&str, Found)], later: &[(&str, String)]| {
            FilePlan::new(&BTreeMap::new(), &map(found), &map(later)).foreign_default
        };
        let later = [("_default", "/later/_default".to_owned())];
        let here = Some("_default/hosts.toml".to_owned());
        assert_eq!(default(&[("_default/hosts.toml", Found::Foreign)], &later), here);
        assert_eq!(default(&[("a/hosts.toml", Found::Foreign)], &later), Some("/later/_default".to_owned()));
        assert_eq!(default(&[("_default/hosts.toml", ours("1"))], &[]), None);
    }

    #[test]
    fn directories_that_are_looked_into_after_ours_are_not_hidden() {
        let wanted = [("_default/hosts.toml", "1"), ("a_5000_/hosts.toml", "1"), ("b/hosts.toml", "1")];
        assert_eq!(
            plan_before(&wanted, &[], &["a:5000"]),
            [
                "create b/hosts.toml",
                "/later/a:5000 is in the way of _default/hosts.toml",
                "/later/a:5000 is in the way of a_5000_/hosts.toml"
            ]
        );
        // A directory of the same name in the first place hides it anyway.
        let found = [("c/hosts.toml", Found::Foreign)];
        assert_eq!(plan_before(&wanted[..1], &found, &["c"]), ["create _default/hosts.toml"]);
    }
}
