//! A bill of materials: one component for each image that runs, in the form of `CycloneDX` 1.5.

use std::collections::{BTreeMap, BTreeSet};

use fairlead_domain::digest::{Algorithm, Digest};
use fairlead_domain::reference::Reference;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::report::{ImageReport, Report};

/// What is known of one image.
#[derive(Default)]
struct Component<'a> {
    requested: BTreeSet<&'a str>,
    used: BTreeSet<String>,
    states: BTreeSet<&'static str>,
    sources: BTreeSet<String>,
    image_ids: BTreeSet<&'a str>,
}

pub(super) fn document(report: &Report, now: Timestamp) -> serde_json::Result<String> {
    let mut components: BTreeMap<(String, Option<Digest>), Component<'_>> = BTreeMap::new();
    // A Pod in a file may name no image, and the schema knows no component without a name.
    for image in report.images.iter().filter(|image| !image.routed.is_empty()) {
        let component = components.entry((repository(image), image.digest)).or_default();
        component.requested.insert(&image.requested);
        component.used.insert(format!("{}/{} {}", image.namespace, image.pod, image.used_as()));
        component.states.insert(image.state.as_str());
        component.sources.insert(image.source.as_str().to_owned());
        if image.digest.is_none() {
            // What runs is known by the runtime's own name only.
            component.image_ids.extend(image.image_id.as_deref());
        }
    }
    let components: Vec<_> =
        components.iter().map(|((name, digest), of)| component(name, digest.as_ref(), of)).collect();
    let document = json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "timestamp": now.to_string(),
            "tools": {"components": [{
                "type": "application", "name": "fairlead", "version": env!("CARGO_PKG_VERSION"),
            }]},
        },
        "components": components,
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// The repository that the image is from: what runs need not have the name of what was asked for.
fn repository(image: &ImageReport) -> String {
    let name = |text: &str| Reference::parse(text).map(|image| image.name().to_owned());
    name(&image.routed).unwrap_or_else(|_| image.routed.clone())
}

fn component(name: &str, digest: Option<&Digest>, of: &Component<'_>) -> Value {
    let property = |name: &str, value: &str| json!({"name": format!("fairlead:{name}"), "value": value});
    let mut properties: Vec<Value> = of.requested.iter().map(|image| property("requested", image)).collect();
    properties.extend(of.used.iter().map(|used| property("used", used)));
    properties.extend(of.states.iter().map(|state| property("state", state)));
    properties.extend(of.sources.iter().map(|source| property("source", source)));
    properties.extend(of.image_ids.iter().map(|id| property("imageID", id)));
    let mut component = json!({
        "type": "container",
        "bom-ref": digest.map_or_else(|| name.to_owned(), |digest| format!("{name}@{digest}")),
        "name": name,
        "properties": properties,
    });
    let Some(digest) = digest else { return component };
    let algorithm = match digest.algorithm() {
        Algorithm::Sha256 => "SHA-256",
        Algorithm::Sha384 => "SHA-384",
        Algorithm::Sha512 => "SHA-512",
    };
    if let Some(component) = component.as_object_mut() {
        component.insert("version".to_owned(), json!(digest.to_string()));
        component.insert("hashes".to_owned(), json!([{"alg": algorithm, "content": digest.hex()}]));
        component.insert("purl".to_owned(), json!(purl(name, digest)));
    }
    component
}

/// As the type `oci` of package URLs has it: the last part of the repository, its digest, and where it is.
fn purl(repository: &str, digest: &Digest) -> String {
    let encoded = |text: &str| {
        text.bytes().fold(String::new(), |done, byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                done + &char::from(byte).to_string()
            }
            _ => done + &format!("%{byte:02X}"),
        })
    };
    let name = repository.rsplit('/').next().unwrap_or(repository).to_lowercase();
    format!(
        "pkg:oci/{}@{}?repository_url={}",
        encoded(&name),
        encoded(&digest.to_string()),
        encoded(repository)
    )
}
