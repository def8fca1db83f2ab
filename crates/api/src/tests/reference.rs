//! The reference for users, written from the types: one page per group, one section per kind, one row per field.

use std::{collections::BTreeMap, fmt::Write};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

use super::{golden::assert_committed, schemas, walk};
use crate::crds;

#[test]
fn generated_reference_is_up_to_date() {
    let mut pages: BTreeMap<String, String> = BTreeMap::new();
    let mut index = "# Custom resources\n\n\
        Generated from the types; `make bless` writes it again. `kubectl explain KIND.spec` shows the same texts.\n\n\
        | kind | group | short | scope | what it is for |\n| --- | --- | --- | --- | --- |\n"
        .to_owned();
    for crd in crds::all() {
        let names = &crd.spec.names;
        let group = &crd.spec.group;
        let anchor = names.kind.to_lowercase();
        writeln!(
            index,
            "| [{}]({group}.md#{anchor}) | `{group}` | {} | {} | {} |",
            names.kind,
            names.short_names.iter().flatten().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" "),
            crd.spec.scope,
            cell(schemas(&crd)[0]["description"].as_str().unwrap_or_default()),
        )
        .unwrap();
        let page = pages.entry(format!("{group}.md")).or_insert_with(|| format!("# {group}\n"));
        section(page, &crd);
    }
    pages.insert("README.md".to_owned(), index);
    assert_committed("docs/reference", &pages);
}

fn section(page: &mut String, crd: &CustomResourceDefinition) {
    for (version, schema) in crd.spec.versions.iter().zip(schemas(crd)) {
        writeln!(page, "\n## {}\n", crd.spec.names.kind).unwrap();
        writeln!(
            page,
            "`apiVersion: {}/{}`. {}\n",
            crd.spec.group,
            version.name,
            schema["description"].as_str().unwrap_or_default()
        )
        .unwrap();
        for part in ["spec", "status"] {
            let (mut fields, mut rules) = (String::new(), Vec::new());
            let top = &schema["properties"][part];
            walk(top, part, &mut |path, field| {
                if path != part && !path.ends_with("[]") && !path.ends_with(".*") && !path.contains('|') {
                    writeln!(fields, "| `{path}` | {} | {} |", kind_of(field), explanation(field)).unwrap();
                }
                for rule in field["x-kubernetes-validations"].as_array().into_iter().flatten() {
                    if let Some(message) = rule["message"].as_str() {
                        rules.push(format!("- `{path}`: {message}"));
                    }
                }
            });
            if !fields.is_empty() {
                writeln!(page, "| {part} | type | meaning |\n| --- | --- | --- |\n{fields}").unwrap();
            }
            rules.sort();
            rules.dedup();
            if !rules.is_empty() {
                writeln!(page, "Refused when these do not hold:\n\n{}\n", rules.join("\n")).unwrap();
            }
        }
    }
}

fn kind_of(field: &Value) -> String {
    if field["x-kubernetes-int-or-string"] == true {
        return "integer or string".to_owned();
    }
    let name = field["type"].as_str().unwrap_or("any");
    match name {
        "array" => format!("list of {}", kind_of(&field["items"])),
        "object" if field["additionalProperties"].is_object() => {
            format!("map to {}", kind_of(&field["additionalProperties"]))
        }
        "string" if field["format"] == "date-time" => "time".to_owned(),
        other => other.to_owned(),
    }
}

fn explanation(field: &Value) -> String {
    let mut text = cell(field["description"].as_str().unwrap_or_default());
    let mut add = |words: String| {
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(&words);
    };
    let limits = if field["items"]["enum"].is_array() { &field["items"] } else { field };
    if let Some(values) = limits["enum"].as_array() {
        let values: Vec<_> = values.iter().map(|value| format!("`{}`", plain(value))).collect();
        add(format!("One of {}.", values.join(", ")));
    }
    if !field["default"].is_null() && field["default"] != Value::Object(serde_json::Map::new()) {
        add(format!("Default `{}`.", plain(&field["default"])));
    }
    text
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(
        || value.to_string(),
        |text| {
            if text.is_empty() { "\"\"".to_owned() } else { text.to_owned() }
        },
    )
}

/// Text that can stand in one cell of a table.
fn cell(text: &str) -> String {
    text.replace("\n\n", " ").replace('\n', " ").replace('|', "\\|")
}
