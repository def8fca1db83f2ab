//! The JSON schema of the file, made from the declaration of the keys. The chart checks its value `configuration`
//! with it, so that Helm refuses a misspelt key before a Pod does.
//!
//! It accepts every file that the operator accepts. What a value has to be beyond its type stays with the operator.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::reference::{self, KeyRow};

/// The schema of the whole file.
pub fn schema() -> Value {
    let rows = reference::rows();
    object(rows.iter().map(|row| (row.path.as_str(), row)))
}

pub(super) fn list(items: &Value) -> Value {
    json!({"type": "array", "items": items})
}

pub(super) fn or_blank(schema: &Value) -> Value {
    json!({"anyOf": [schema, {"enum": [""]}]})
}

/// One level of keys, from the rest of the path of each row below it. An empty level is as good as none.
fn object<'a>(rows: impl Iterator<Item = (&'a str, &'a KeyRow)>) -> Value {
    let mut properties = Map::new();
    let mut others = json!(false);
    let mut levels: BTreeMap<&str, Vec<(&str, &KeyRow)>> = BTreeMap::new();
    for (path, row) in rows {
        match path.split_once('.') {
            None => drop(properties.insert(path.to_owned(), leaf(row))),
            Some((key, rest)) => levels.entry(key).or_default().push((rest, row)),
        }
    }
    for (key, rows) in levels {
        let level = object(rows.into_iter());
        if key.starts_with('<') {
            // Names that the author of the file chooses.
            others = level;
        } else if let Some(Value::Object(list)) =
            key.strip_suffix("[]").and_then(|key| properties.get_mut(key))
        {
            list.insert("items".to_owned(), level);
        } else {
            properties.insert(key.to_owned(), level);
        }
    }
    json!({"type": ["object", "null"], "additionalProperties": others, "properties": properties})
}

/// What a key holds. One without a value is as good as none.
fn leaf(row: &KeyRow) -> Value {
    let mut schema = row.schema.clone();
    if let Value::Object(fields) = &mut schema {
        for (field, nothing) in
            [("type", json!("null")), ("enum", json!(null)), ("anyOf", json!({"type": "null"}))]
        {
            match fields.get_mut(field) {
                Some(Value::Array(all)) => all.push(nothing),
                Some(one) => *one = json!([one, nothing]),
                None => {}
            }
        }
        fields.insert("description".to_owned(), json!(row.meaning));
    }
    schema
}
