//! The two uses of the declaration of all keys: reading a file by it, and describing every key for the reference.

use std::{collections::BTreeMap, rc::Rc};

use fairlead_domain::reference::HostKey;

use super::{
    nearest::nearest,
    problem::{Problem, Problems},
    reference::{self, Row},
    registries::check_host,
    schema,
    tree::{Content, Node},
    values::{Value, show_list, show_or},
};

/// One level of keys, being read or described.
pub(super) struct Keys<'a> {
    path: String,
    /// The keys of this level in the file. None while describing.
    map: Option<&'a Node>,
    known: Vec<String>,
    sink: &'a mut Sink,
}

/// What the walk over all keys is for.
enum Sink {
    Reading { problems: Problems, given: Vec<String> },
    Describing(Vec<Row>),
}

impl Keys<'_> {
    /// Reads a document; returns the paths of all keys that were given a value.
    pub(super) fn read(
        root: &Node,
        problems: &mut Problems,
        inside: impl FnOnce(&mut Keys<'_>),
    ) -> Vec<String> {
        if root.is_null() {
            return Vec::new();
        }
        if !matches!(root.content, Content::Map(_)) {
            let message = format!("the file holds {}, but must hold keys, such as `routing:`", root.what());
            problems.push(Problem::at(root.line, "", message));
            return Vec::new();
        }
        let mut sink = Sink::Reading { problems: std::mem::take(problems), given: Vec::new() };
        let mut keys = Keys { path: String::new(), map: Some(root), known: Vec::new(), sink: &mut sink };
        inside(&mut keys);
        keys.refuse_unknown();
        match sink {
            Sink::Reading { problems: found, given } => {
                *problems = found;
                given
            }
            Sink::Describing(_) => Vec::new(),
        }
    }

    pub(super) fn describe(inside: impl FnOnce(&mut Keys<'_>)) -> Vec<Row> {
        let mut sink = Sink::Describing(Vec::new());
        inside(&mut Keys { path: String::new(), map: None, known: Vec::new(), sink: &mut sink });
        match sink {
            Sink::Describing(rows) => rows,
            Sink::Reading { .. } => Vec::new(),
        }
    }

    /// A key that holds further keys.
    pub(super) fn section(&mut self, key: &str, inside: impl FnOnce(&mut Keys<'_>)) {
        let path = self.know(key);
        if self.describes() {
            inside(&mut self.below(path, None));
        } else if let Some((_, node)) = self.find(key) {
            if matches!(node.content, Content::Map(_)) {
                let mut below = self.below(path, Some(&node));
                inside(&mut below);
                below.refuse_unknown();
            } else {
                self.problem(node.line, &path, format!("is {}, but must hold further keys", node.what()));
            }
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
        let shown = target.show();
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
        let shown = show_or(target.as_ref(), nothing);
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
        if self.find(key).is_some_and(|(_, node)| is_blank(&node) || is_word(&node, nothing)) {
            self.know(key);
            *target = None;
        } else {
            let allowed = |value: &T| if value.is_nothing() { Ok(()) } else { check(value) };
            self.optional(key, target, nothing, allowed, meaning);
            self.allow_blank();
            if target.as_ref().is_some_and(Value::is_nothing) {
                *target = None;
            }
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
        let path = self.know(key);
        let kind = format!("list of: {}", T::kind());
        if self.describe_row(&path, &kind, &show_list(target), meaning, schema::list(&T::schema())) {
            return;
        }
        let Some((_, node)) = self.find(key) else { return };
        self.given(key);
        let Some(items) = self.items(&path, &node, &kind) else {
            return;
        };
        target.clear();
        for (index, item) in items.iter().enumerate() {
            match T::read(item).and_then(|value| check(&value).map(|()| value)) {
                Ok(value) => target.push(value),
                Err(message) => self.problem(item.line, &format!("{path}[{index}]"), message),
            }
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
        if self.describes() {
            let path = self.know(key);
            let schema = schema::list(&T::schema());
            self.describe_row(&path, &format!("list of: {}", T::kind()), nothing, meaning, schema);
        } else if self.find(key).is_some() {
            self.list(key, target.get_or_insert_default(), check, meaning);
        } else {
            self.know(key);
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
        if self.describe_row(&path, "list", nothing, meaning, schema::list(&serde_json::json!({}))) {
            inside(&mut self.below(format!("{path}[]"), None), &mut T::default());
            return;
        }
        let Some((line, node)) = self.find(key) else {
            return;
        };
        self.given(key);
        let Some(items) = self.items(&path, &node, "list") else {
            return;
        };
        if items.is_empty() {
            self.problem(
                line,
                &path,
                format!("is an empty list: name at least one, or leave the key out ({nothing})"),
            );
        }
        let mut values = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let path = format!("{path}[{index}]");
            if !matches!(item.content, Content::Map(_)) {
                self.problem(item.line, &path, format!("is {}, but must hold further keys", item.what()));
                continue;
            }
            let mut value = T::default();
            let mut below = self.below(path, Some(item));
            inside(&mut below, &mut value);
            below.refuse_unknown();
            values.push(value);
        }
        *target = Some(values);
    }

    /// All keys of this level that were not declared before: registries, each once, in whatever spelling of its host.
    pub(super) fn hosts<T: Default>(
        &mut self,
        target: &mut BTreeMap<HostKey, T>,
        inside: impl Fn(&mut Keys<'_>, &mut T),
    ) {
        if self.describes() {
            let path = self.join("<host>");
            inside(&mut self.below(path, None), &mut T::default());
            return;
        }
        let names: Vec<(String, usize)> = self
            .map
            .map(Node::entries)
            .unwrap_or_default()
            .iter()
            .filter(|entry| !self.known.contains(&entry.key))
            .map(|entry| (entry.key.clone(), entry.line))
            .collect();
        let mut written: BTreeMap<HostKey, (String, usize)> = BTreeMap::new();
        for (name, line) in names {
            let key = HostKey::of(&name);
            let again = |(first, at): &(String, usize)| {
                format!("is the same registry as `{first}` in line {at}: write both as one")
            };
            match check_host(&name).and_then(|()| written.get(&key).map(again).map_or(Ok(()), Err)) {
                Ok(()) => {
                    let entry = target.entry(key.clone()).or_default();
                    self.section(&name, |keys| inside(keys, entry));
                    written.insert(key, (name, line));
                }
                Err(message) => {
                    let path = self.know(&name);
                    self.problem(line, &path, message);
                }
            }
        }
    }

    /// Reports that this level lacks something it cannot do without.
    pub(super) fn require(&mut self, key: &str, present: bool, remedy: &str) {
        let Some(line) = self.map.map(|map| map.line) else {
            return;
        };
        let refused = self.find(key).is_some_and(|(_, node)| !is_blank(&node));
        if !present && !refused {
            let path = self.join(key);
            self.problem(line, &path, format!("is missing: {remedy}"));
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
        if self.describe_row(&path, &T::kind(), shown, meaning, T::schema()) {
            return None;
        }
        let (_, node) = self.find(key)?;
        self.given(key);
        match T::read(&node).and_then(|value| check(&value).map(|()| value)) {
            Ok(value) => Some(value),
            Err(message) => {
                self.problem(node.line, &path, message);
                None
            }
        }
    }

    /// The value of a key of this level, with the line of the key; none if it is absent or empty.
    fn find(&self, key: &str) -> Option<(usize, Rc<Node>)> {
        let entry = self.map?.entries().iter().find(|entry| entry.key == key)?;
        (!entry.value.is_null()).then(|| (entry.line, Rc::clone(&entry.value)))
    }

    fn items(&mut self, path: &str, node: &Node, wanted: &str) -> Option<Vec<Rc<Node>>> {
        if let Content::List(items) = &node.content {
            Some(items.clone())
        } else {
            self.problem(
                node.line,
                path,
                format!("is {}, but must be a {wanted}: put `- ` before each item", node.what()),
            );
            None
        }
    }

    fn refuse_unknown(&mut self) {
        let Some(map) = self.map else { return };
        for entry in map.entries() {
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
        let rows = reference::rows();
        let ending = format!(".{key}");
        if let Some(row) = rows.iter().find(|row| row.path.ends_with(&ending)) {
            return format!("there is no such key here; did you mean `{}`?", row.path);
        }
        format!("there is no such key; known here: {}", self.known.join(", "))
    }

    fn below<'b>(&'b mut self, path: String, map: Option<&'b Node>) -> Keys<'b> {
        Keys { path, map, known: Vec::new(), sink: self.sink }
    }

    fn know(&mut self, key: &str) -> String {
        self.known.push(key.to_owned());
        self.join(key)
    }

    fn join(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }

    fn describes(&self) -> bool {
        matches!(self.sink, Sink::Describing(_))
    }

    fn describe_row(
        &mut self,
        path: &str,
        kind: &str,
        default: &str,
        meaning: &'static str,
        schema: serde_json::Value,
    ) -> bool {
        match self.sink {
            Sink::Describing(rows) => {
                rows.push(Row {
                    path: path.to_owned(),
                    kind: kind.to_owned(),
                    default: default.to_owned(),
                    meaning,
                    schema,
                });
                true
            }
            Sink::Reading { .. } => false,
        }
    }

    /// The key that was described last may hold an empty text, too.
    fn allow_blank(&mut self) {
        if let Sink::Describing(rows) = self.sink
            && let Some(row) = rows.last_mut()
        {
            row.schema = schema::or_blank(&row.schema);
        }
    }

    fn given(&mut self, key: &str) {
        let path = self.join(key);
        if let Sink::Reading { given, .. } = self.sink {
            given.push(path);
        }
    }

    fn problem(&mut self, line: usize, path: &str, message: impl Into<String>) {
        if let Sink::Reading { problems, .. } = self.sink {
            problems.push(Problem::at(line, path, message));
        }
    }
}

fn is_word(node: &Node, word: &str) -> bool {
    matches!(&node.content, Content::Scalar { text, .. } if text.trim() == word)
}

/// An empty text.
fn is_blank(node: &Node) -> bool {
    is_word(node, "")
}
