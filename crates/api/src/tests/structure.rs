//! Definitions are such that the API server takes them, and such that what it stores can be read back.

use serde_json::{Value, json};

use super::{schemas, walk_all};
use crate::{crds, kuik, names};

#[test]
fn every_schema_is_structural() {
    walk_all(|path, schema| {
        let forms = ["allOf", "anyOf", "oneOf", "not"];
        if path.contains('|') {
            for keyword in ["type", "description", "default", "additionalProperties", "nullable"] {
                assert!(schema.get(keyword).is_none(), "{path}: {keyword} inside {forms:?}");
            }
            return;
        }
        assert!(schema.get("$ref").is_none(), "{path}: reference to another schema");
        assert!(
            !schema["enum"].as_array().is_some_and(|values| values.contains(&Value::Null)),
            "{path}: null is left out, not a choice"
        );
        assert!(schema.get("nullable").is_none(), "{path}: null is left out, not stored");
        let int_or_string = schema["x-kubernetes-int-or-string"] == true;
        let anything = schema["x-kubernetes-preserve-unknown-fields"] == true;
        assert!(schema["type"].is_string() || int_or_string || anything, "{path}: no type");
        if schema["type"] == "array" {
            assert!(schema["items"].is_object(), "{path}: a list of what?");
            let list_type = schema["x-kubernetes-list-type"].as_str();
            assert!(list_type.is_some(), "{path}: how do two writers of this list get along?");
            if list_type == Some("map") {
                for key in schema["x-kubernetes-list-map-keys"].as_array().expect("keys of a map list") {
                    let item = &schema["items"];
                    let key_field = &item["properties"][key.as_str().unwrap()];
                    let required = item["required"].as_array().is_some_and(|required| required.contains(key));
                    assert!(
                        required || key_field.get("default").is_some(),
                        "{path}: key {key} may be absent"
                    );
                }
            }
        }
        for required in schema["required"].as_array().into_iter().flatten() {
            assert!(
                !schema["properties"][required.as_str().unwrap()].is_null(),
                "{path}: requires the unknown {required}"
            );
        }
        if let Some(format) = schema["format"].as_str() {
            let known =
                ["int32", "int64", "float", "double", "date-time", "byte", "uri", "ipv4", "ipv6", "cidr"];
            assert!(known.contains(&format), "{path}: format {format} is unknown to the API server");
        }
        if let Some(default) = schema.get("default") {
            assert_fits(path, schema, default);
        }
    });
}

/// As much of validation as defaults need.
fn assert_fits(path: &str, schema: &Value, value: &Value) {
    let fits = match schema["type"].as_str() {
        Some("string") => value.is_string(),
        Some("integer") => value.is_i64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => true,
    };
    assert!(fits, "{path}: default {value} has another type");
    if let Some(allowed) = schema["enum"].as_array() {
        assert!(allowed.contains(value), "{path}: default {value} is not allowed");
    }
    if let (Some(number), Some(minimum)) = (value.as_f64(), schema["minimum"].as_f64()) {
        assert!(number >= minimum, "{path}: default {value} is below the minimum");
    }
    for required in schema["required"].as_array().into_iter().flatten() {
        assert!(value.get(required.as_str().unwrap()).is_some(), "{path}: default {value} lacks {required}");
    }
    for (name, inner) in value.as_object().into_iter().flatten() {
        assert_fits(&format!("{path}.{name}"), &schema["properties"][name], inner);
    }
}

#[test]
fn every_kind_has_a_status_with_conditions_keyed_by_type() {
    for crd in crds::all() {
        let kind = &crd.spec.names.kind;
        let version =
            crd.spec.versions.iter().find(|version| version.storage).expect("one version is stored");
        // A ledger, or a report, is written in one piece by one writer: its status never waits for a later look at its
        // spec.
        let in_one_piece = ["ImageLedger", "NodeMirrorReport", "WarmLedger"].contains(&kind.as_str());
        let subresource =
            version.subresources.as_ref().is_some_and(|subresources| subresources.status.is_some());
        assert_eq!(subresource, !in_one_piece, "{kind}: status subresource");
        let schema = &schemas(&crd)[0];
        let conditions = &schema["properties"]["status"]["properties"]["conditions"];
        assert_eq!(conditions["x-kubernetes-list-map-keys"], json!(["type"]), "{kind}");
        let observed = schema["properties"]["status"]["properties"].get("observedGeneration").is_some();
        assert_eq!(observed, !in_one_piece, "{kind}: observedGeneration");
    }
}

#[test]
fn every_printer_column_shows_a_field_that_exists() {
    for crd in crds::all() {
        let schema = &schemas(&crd)[0];
        let versions = crd.spec.versions.iter();
        for column in versions.flat_map(|version| version.additional_printer_columns.iter().flatten()) {
            let path = column.json_path.as_str();
            assert!(
                path.starts_with(".metadata.") || !at(schema, path).is_null(),
                "{}: column {path} shows nothing",
                crd.spec.names.kind
            );
        }
    }
}

/// The schema of what a JSON path leads to; `null` if it leads nowhere.
fn at<'a>(schema: &'a Value, path: &str) -> &'a Value {
    // A condition for the items of a list has dots of its own.
    let fields = path.split_once("[?(").map_or(path, |(fields, _)| fields);
    let place = fields.split('.').skip(1).fold(schema, |place, field| &place["properties"][field]);
    match path.split_once(")]") {
        Some((_, rest)) => at(&place["items"], rest),
        None => place,
    }
}

#[test]
fn rules_have_messages_of_one_line() {
    walk_all(|path, schema| {
        for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
            let message = rule["message"].as_str().unwrap_or_else(|| panic!("{path}: no message for {rule}"));
            assert!(!message.contains('\n') && !message.contains("  "), "{path}: {message}");
        }
    });
}

#[test]
fn definitions_are_sorted_and_the_same_each_time() {
    let names: Vec<_> = crds::all().iter().map(crds::file_name).collect();
    assert!(names.is_sorted(), "{names:?}");
    let text = || crds::all().iter().map(|crd| crds::to_yaml(crd).unwrap()).collect::<String>();
    assert_eq!(text(), text());
    let groups = crds::groups();
    assert!(groups.iter().any(|group| group == kuik::GROUP) && groups.is_sorted(), "{groups:?}");
}

#[test]
fn an_object_without_spec_can_be_read_where_the_definition_allows_it() {
    for kind in crds::kinds() {
        let crd = kind.crd();
        for (version, schema) in crd.spec.versions.iter().zip(schemas(&crd)) {
            let object = json!({
                "apiVersion": format!("{}/{}", crd.spec.group, version.name),
                "kind": crd.spec.names.kind,
                "metadata": { "name": "bare" },
            });
            let required =
                schema["required"].as_array().is_some_and(|fields| fields.contains(&json!("spec")));
            assert_eq!(kind.round_trip(object).is_err(), required, "{}", crd.spec.names.kind);
        }
    }
}

#[test]
fn kuik_objects_survive_being_read_and_written() {
    let object = json!({
        "apiVersion": "kuik.enix.io/v1alpha1",
        "kind": "ImageSetMirror",
        "metadata": { "name": "m", "namespace": "n", "finalizers": [names::kuik::MIRROR_CLEANUP] },
        "spec": {
            "priority": -10,
            "imageFilter": { "include": [".*"], "exclude": ["docker.io/.+"] },
            "cleanup": { "enabled": true, "retention": "168h" },
            "mirrors": [{
                "registry": "registry.example.com",
                "path": "/mirror/",
                "priority": 5,
                "credentialSecret": { "name": "s", "namespace": "elsewhere" },
                "cleanup": { "enabled": true, "retention": "1h30m" },
            }],
        },
        "status": { "matchingImages": [
            { "image": "docker.io/library/nginx:1", "unusedSince": kuik::NO_LONGER_MATCHING, "mirrors": [
                { "image": "registry.example.com/mirror/library/nginx:1", "mirroredAt": "2026-02-03T04:05:06Z" },
                { "image": "other.example.com/library/nginx:1", "lastError": "denied" },
            ] },
        ] },
    });
    let kind = crds::kinds().iter().find(|kind| kind.crd().spec.names.kind == "ImageSetMirror").unwrap();
    assert_eq!(kind.round_trip(object.clone()).unwrap(), object);
}

#[test]
fn availability_that_kuik_recorded_survives_too() {
    let status = json!({
        "imageCount": 2,
        "images": [
            {
                "image": "docker.io/library/nginx:1", "status": "QuotaExceeded", "lastError": "429", "original": true,
                "lastMonitor": "2026-02-03T04:05:06Z", "unusedSince": kuik::NO_LONGER_MATCHING,
            },
            { "image": "quay.io/a/b:2", "status": "Scheduled", "original": false },
        ],
    });
    let read: kuik::ClusterImageSetAvailabilityStatus = serde_json::from_value(status.clone()).unwrap();
    assert_eq!(serde_json::to_value(read).unwrap(), status);
}

#[test]
fn durations_have_their_pattern_in_the_definition() {
    let mut found = 0;
    walk_all(|path, schema| {
        if path.ends_with(".retention") || path.ends_with(".unusedImageExpiry") {
            found += 1;
            assert_eq!(schema["pattern"], fairlead_domain::duration::PATTERN, "{path}");
            assert_eq!(schema["maxLength"], fairlead_domain::duration::MAX_TEXT_LENGTH, "{path}");
        }
    });
    assert_eq!(found, 5, "retention of two mirror kinds and of their entries, expiry of the watch");
}

#[test]
fn the_tests_above_look_into_every_corner() {
    let mut reached = Vec::new();
    walk_all(|path, _| reached.push(path.to_owned()));
    for corner in [
        "ClusterImageSetMirror.status.matchingImages[].mirrors[].mirroredAt",
        "ImagePin.status.conditions[].lastTransitionTime",
    ] {
        assert!(reached.iter().any(|path| path == corner), "{corner}");
    }
}
