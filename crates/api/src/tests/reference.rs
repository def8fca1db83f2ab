//! The reference for users, written from the types: one page per group, one section per kind, one item per field.

use std::collections::BTreeMap;
use std::fmt::Write;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

use super::golden::assert_committed;
use super::{schemas, walk};
use crate::crds;

#[test]
fn generated_reference_is_up_to_date() {
    let mut pages: BTreeMap<String, String> = BTreeMap::new();
    let mut index = "# Custom resources\n\n\
        Generated from the types; `make bless` writes it again. `kubectl explain KIND.spec` shows the same texts.\n\n"
        .to_owned();
    for crd in crds::all() {
        let names = &crd.spec.names;
        let group = &crd.spec.group;
        let anchor = names.kind.to_lowercase();
        let short_names = names.short_names.iter().flatten().map(|name| format!(" `{name}`,"));
        index += &item(&format!(
            "[{}]({group}.md#{anchor}) (`{group}`,{} {}): {}",
            names.kind,
            short_names.collect::<String>(),
            crd.spec.scope.to_lowercase(),
            schemas(&crd)[0]["description"].as_str().unwrap_or_default(),
        ));
        let page = pages.entry(format!("{group}.md")).or_insert_with(|| format!("# {group}\n"));
        section(page, &crd);
    }
    pages.insert("README.md".to_owned(), index);
    assert_committed("docs/reference", &pages);
}

fn section(page: &mut String, crd: &CustomResourceDefinition) {
    for (version, schema) in crd.spec.versions.iter().zip(schemas(crd)) {
        writeln!(page, "\n## {}\n", crd.spec.names.kind).unwrap();
        let (group, description) = (&crd.spec.group, schema["description"].as_str().unwrap_or_default());
        let head = format!("`apiVersion: {group}/{}`. {description}", version.name);
        writeln!(page, "{}", wrapped(&head, "", "")).unwrap();
        for part in ["spec", "status"] {
            let (mut fields, mut rules) = (String::new(), Vec::new());
            let top = &schema["properties"][part];
            walk(top, part, &mut |path, field| {
                if path != part && !path.ends_with("[]") && !path.ends_with(".*") && !path.contains('|') {
                    let meaning = explanation(field);
                    let sign = if meaning.is_empty() { "" } else { ":" };
                    fields += &item(&format!("`{path}` ({}){sign} {meaning}", kind_of(field)));
                }
                for rule in field["x-kubernetes-validations"].as_array().into_iter().flatten() {
                    if let Some(message) = rule["message"].as_str() {
                        rules.push(item(&format!("`{path}`: {message}")));
                    }
                }
            });
            if !fields.is_empty() {
                writeln!(page, "### {} of {}\n\n{fields}", title(part), crd.spec.names.kind).unwrap();
            }
            rules.sort();
            rules.dedup();
            if !rules.is_empty() {
                writeln!(page, "Refused when these do not hold:\n\n{}", rules.concat()).unwrap();
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
    let mut text = field["description"].as_str().unwrap_or_default().to_owned();
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

fn title(part: &str) -> &'static str {
    if part == "spec" { "Spec" } else { "Status" }
}

fn item(text: &str) -> String {
    wrapped(text, "- ", "  ")
}

/// One paragraph in lines of at most 120 columns, each ended, with what the first and all others begin with.
fn wrapped(text: &str, first: &str, others: &str) -> String {
    let (mut lines, mut line) = (String::new(), first.to_owned());
    for word in text.split_whitespace() {
        if line.chars().count() + word.chars().count() >= 120 {
            writeln!(lines, "{}", line.trim_end()).unwrap();
            others.clone_into(&mut line);
        }
        line.extend([word, " "]);
    }
    writeln!(lines, "{}", line.trim_end()).unwrap();
    lines
}
