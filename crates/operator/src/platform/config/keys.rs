//! The two uses of the declaration of all keys: reading a file by it, and describing every key for the reference.

use std::collections::BTreeMap;
use std::rc::Rc;

use fairlead_domain::reference::HostKey;

use super::nearest::nearest;
use super::problem::{ConfigProblem, Problems};
use super::reference::{self, KeyRow};
use super::registries::check_host;
use super::schema;
use super::tree::{NodeContent, YamlNode};
use super::values::Value;

/// One level of keys, being read or described.
pub(super) struct Keys<'a> {
    path: String,
    /// The keys of this level in the file. `None` while describing.
    map: Option<&'a YamlNode>,
    known: Vec<String>,
    walk: &'a mut Walk,
}

/// What a walk over all keys collects.
#[derive(Default)]
struct Walk {
    problems: Problems,
    /// Paths of keys with a value.
    given: Vec<String>,
    rows: Vec<KeyRow>,
}

impl<'a> Keys<'a> {
    /// Reads a document; returns the paths of all keys that were given a value.
    pub(super) fn read(
        root: &YamlNode,
        problems: &mut Problems,
        inside: impl FnOnce(&mut Keys<'_>),
    ) -> Vec<String> {
        if root.is_null() {
            return Vec::new();
        }
        if !matches!(root.content, NodeContent::Map(_)) {
            let message = format!("the file holds {}, but must hold keys, such as `routing:`", root.what());
            problems.push(ConfigProblem::at(root.line, "", message));
            return Vec::new();
        }
        let mut walk = Walk::default();
        let mut keys = Keys { path: String::new(), map: Some(root), known: Vec::new(), walk: &mut walk };
        inside(&mut keys);
        keys.refuse_unknown();
        problems.append(&mut walk.problems);
        walk.given
    }

    pub(super) fn describe(inside: impl FnOnce(&mut Keys<'_>)) -> Vec<KeyRow> {
        let mut walk = Walk::default();
        inside(&mut Keys { path: String::new(), map: None, known: Vec::new(), walk: &mut walk });
        walk.rows
    }

    /// A key that holds further keys.
    pub(super) fn section(&mut self, key: &str, inside: impl FnOnce(&mut Keys<'_>)) {
        let path = self.know(key);
        if self.map.is_none() {
            inside(&mut self.below(path, None));
        } else if let Some((_, node)) = self.find(key) {
            self.enter(path, node, inside);
        }
    }

    /// A key with one value that has a default.
    pub(super) fn value<T: Value>(
        &mut self,
        key: &str,
        target: &mut T,
        check: impl Fn(&T) -> Result<(), String>,
        meaning: &'static str,
    ) {
        let shown = target.to_string();
        if let Some(value) = self.take(key, &shown, check, meaning) {
            *target = value;
        }
    }

    /// A key with one value that may be absent; `nothing` says in the reference what its absence means.
    pub(super) fn optional<T: Value>(
        &mut self,
        key: &str,
        target: &mut Option<T>,
        nothing: &str,
        check: impl Fn(&T) -> Result<(), String>,
        meaning: &'static str,
    ) {
        let shown = target.as_ref().map_or_else(|| nothing.to_owned(), T::to_string);
        if let Some(value) = self.take(key, &shown, check, meaning) {
            *target = Some(value);
        }
    }

    /// A key whose empty value (`0`, `""`, or the word that stands for its absence) means the same as its absence.
    pub(super) fn or_nothing<T: Value>(
        &mut self,
        key: &str,
        target: &mut Option<T>,
        nothing: &str,
        check: impl Fn(&T) -> Result<(), String>,
        meaning: &'static str,
    ) {
        if self.find(key).is_some_and(|(_, node)| is_word(node, "") || is_word(node, nothing)) {
            self.know(key);
            *target = None;
            return;
        }
        self.optional(
            key,
            target,
            nothing,
            |value| if value.is_nothing() { Ok(()) } else { check(value) },
            meaning,
        );
        target.take_if(|value| value.is_nothing());
        if self.map.is_none()
            && let Some(row) = self.walk.rows.last_mut()
        {
            row.schema = schema::or_blank(&row.schema);
        }
    }

    /// A key with a list of single values. A list in the file replaces the default, it is not added to it.
    pub(super) fn list<T: Value>(
        &mut self,
        key: &str,
        target: &mut Vec<T>,
        check: impl Fn(&T) -> Result<(), String>,
        meaning: &'static str,
    ) {
        let shown = target.iter().map(T::to_string).collect::<Vec<_>>().join(", ");
        if let Some(values) = self.take_list(key, &format!("[{shown}]"), check, meaning) {
            *target = values;
        }
    }

    /// A key with a list that may be absent, which is not the same as an empty one.
    pub(super) fn optional_list<T: Value>(
        &mut self,
        key: &str,
        target: &mut Option<Vec<T>>,
        nothing: &str,
        check: impl Fn(&T) -> Result<(), String>,
        meaning: &'static str,
    ) {
        if let Some(values) = self.take_list(key, nothing, check, meaning) {
            *target = Some(values);
        }
    }

    /// A key with a list of maps.
    pub(super) fn list_of_sections<T: Default>(
        &mut self,
        key: &str,
        target: &mut Option<Vec<T>>,
        nothing: &str,
        meaning: &'static str,
        inside: impl Fn(&mut Keys<'_>, &mut T),
    ) {
        let path = self.know(key);
        if self.describe_row(&path, "list", nothing, meaning, || schema::list(&serde_json::json!({}))) {
            inside(&mut self.below(format!("{path}[]"), None), &mut T::default());
            return;
        }
        let Some((line, items)) = self.items(key, &path, "list") else { return };
        if items.is_empty() {
            let message = format!("is an empty list: name at least one, or leave the key out ({nothing})");
            self.problem(line, &path, message);
        }
        let mut values = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let mut value = T::default();
            if self.enter(format!("{path}[{index}]"), item, |keys| inside(keys, &mut value)) {
                values.push(value);
            }
        }
        *target = Some(values);
    }

    /// All keys of this level that were not declared before: registries, each once, in whatever spelling of its host.
    pub(super) fn hosts<T: Default>(
        &mut self,
        target: &mut BTreeMap<HostKey, T>,
        inside: impl Fn(&mut Keys<'_>, &mut T),
    ) {
        let Some(map) = self.map else {
            let path = self.join("<host>");
            inside(&mut self.below(path, None), &mut T::default());
            return;
        };
        let declared = self.known.clone();
        let mut written: BTreeMap<HostKey, (&str, usize)> = BTreeMap::new();
        for entry in map.entries().iter().filter(|entry| !declared.contains(&entry.key)) {
            let key = HostKey::of(&entry.key);
            let again = |(first, at): &(&str, usize)| {
                format!("is the same registry as `{first}` in line {at}: write both as one")
            };
            match check_host(&entry.key).and_then(|()| written.get(&key).map(again).map_or(Ok(()), Err)) {
                Ok(()) => {
                    let host = target.entry(key.clone()).or_default();
                    self.section(&entry.key, |keys| inside(keys, host));
                    written.insert(key, (&entry.key, entry.line));
                }
                Err(message) => {
                    let path = self.know(&entry.key);
                    self.problem(entry.line, &path, message);
                }
            }
        }
    }

    /// Reports that this level lacks something it cannot do without.
    pub(super) fn require(&mut self, key: &str, present: bool, remedy: &str) {
        let refused = self.find(key).is_some_and(|(_, node)| !is_word(node, ""));
        if let Some(map) = self.map.filter(|_| !present && !refused) {
            let path = self.join(key);
            self.problem(map.line, &path, format!("is missing: {remedy}"));
        }
    }

    /// Reports, at the first of `keys` that the file holds, that values of this level do not go together.
    pub(super) fn refuse_if(&mut self, wrong: bool, keys: &[&str], message: &str) {
        let found = keys.iter().find_map(|key| self.find(key).map(|(_, node)| (key, node.line)));
        if let (true, Some((key, line))) = (wrong, found) {
            let path = self.join(key);
            self.problem(line, &path, message);
        }
    }

    fn take<T: Value>(
        &mut self,
        key: &str,
        shown: &str,
        check: impl Fn(&T) -> Result<(), String>,
        meaning: &'static str,
    ) -> Option<T> {
        let path = self.know(key);
        if self.describe_row(&path, &T::kind(), shown, meaning, T::schema) {
            return None;
        }
        let (_, node) = self.find(key)?;
        self.walk.given.push(path.clone());
        self.checked(&path, node, check)
    }

    fn take_list<T: Value>(
        &mut self,
        key: &str,
        shown: &str,
        check: impl Fn(&T) -> Result<(), String>,
        meaning: &'static str,
    ) -> Option<Vec<T>> {
        let path = self.know(key);
        let kind = format!("list of: {}", T::kind());
        if self.describe_row(&path, &kind, shown, meaning, || schema::list(&T::schema())) {
            return None;
        }
        let (_, items) = self.items(key, &path, &kind)?;
        let read =
            |(index, item): (usize, &Rc<YamlNode>)| self.checked(&format!("{path}[{index}]"), item, &check);
        Some(items.iter().enumerate().filter_map(read).collect())
    }

    fn checked<T: Value>(
        &mut self,
        path: &str,
        node: &YamlNode,
        check: impl Fn(&T) -> Result<(), String>,
    ) -> Option<T> {
        let read = T::read(node).and_then(|value| check(&value).map(|()| value));
        read.map_err(|message| self.problem(node.line, path, message)).ok()
    }

    /// The value of a key of this level, with the line of the key; none if it is absent or empty.
    fn find(&self, key: &str) -> Option<(usize, &'a YamlNode)> {
        let entry = self.map?.entries().iter().find(|entry| entry.key == key)?;
        (!entry.value.is_null()).then_some((entry.line, &*entry.value))
    }

    /// The items of a key that holds a list, with the line of the key.
    fn items(&mut self, key: &str, path: &str, wanted: &str) -> Option<(usize, &'a [Rc<YamlNode>])> {
        let (line, node) = self.find(key)?;
        self.walk.given.push(path.to_owned());
        if let NodeContent::List(items) = &node.content {
            return Some((line, items));
        }
        let message = format!("is {}, but must be a {wanted}: put `- ` before each item", node.what());
        self.problem(node.line, path, message);
        None
    }

    /// Reads the keys below; `false` if there are none because the value is something else.
    fn enter(&mut self, path: String, node: &YamlNode, inside: impl FnOnce(&mut Keys<'_>)) -> bool {
        let is_map = matches!(node.content, NodeContent::Map(_));
        if is_map {
            let mut below = self.below(path, Some(node));
            inside(&mut below);
            below.refuse_unknown();
        } else {
            self.problem(node.line, &path, format!("is {}, but must hold further keys", node.what()));
        }
        is_map
    }

    fn refuse_unknown(&mut self) {
        for entry in self.map.map(YamlNode::entries).unwrap_or_default() {
            if self.known.contains(&entry.key) {
                continue;
            }
            let path = self.join(&entry.key);
            let message = match nearest(&entry.key, self.known.iter().map(String::as_str)) {
                Some(known) => format!("there is no such key; did you mean `{known}`?"),
                None => self.elsewhere(&entry.key),
            };
            self.problem(entry.line, &path, message);
        }
    }

    /// The message for a key that resembles none of its level: perhaps it only stands in the wrong place.
    fn elsewhere(&self, key: &str) -> String {
        let ending = format!(".{key}");
        match reference::rows().iter().find(|row| row.path.ends_with(&ending)) {
            Some(row) => format!("there is no such key here; did you mean `{}`?", row.path),
            None => format!("there is no such key; known here: {}", self.known.join(", ")),
        }
    }

    fn below<'b>(&'b mut self, path: String, map: Option<&'b YamlNode>) -> Keys<'b> {
        Keys { path, map, known: Vec::new(), walk: self.walk }
    }

    fn know(&mut self, key: &str) -> String {
        self.known.push(key.to_owned());
        self.join(key)
    }

    fn join(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    /// Describes a key; `false` while reading.
    fn describe_row(
        &mut self,
        path: &str,
        kind: &str,
        default: &str,
        meaning: &'static str,
        schema: impl FnOnce() -> serde_json::Value,
    ) -> bool {
        let describes = self.map.is_none();
        if describes {
            let (path, kind, default) = (path.to_owned(), kind.to_owned(), default.to_owned());
            self.walk.rows.push(KeyRow { path, kind, default, meaning, schema: schema() });
        }
        describes
    }

    fn problem(&mut self, line: usize, path: &str, message: impl Into<String>) {
        self.walk.problems.push(ConfigProblem::at(line, path, message));
    }
}

fn is_word(node: &YamlNode, word: &str) -> bool {
    matches!(&node.content, NodeContent::Scalar { text, .. } if text.trim() == word)
}
