//! `fairlead convert`: from the oldest kind of mirror policy to those that took its place, and back.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use clap::{Args, ValueEnum};
use fairlead_plan::node_config::migration::{self, check_bounds};
use fairlead_plan::node_config::{MirrorPolicy, PolicyId, PolicyKind, Set};
use serde_json::{Map, Value, json};

use super::{CONFIG, OPERATOR, policy_in_file, read, unreadable};
use crate::access::warn;
use crate::explain::files::{Manifest, title};
use crate::output::{FAILING, write};

/// kubectl's copy of the whole old object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Turn objects of `ImageContentSourcePolicy` in files into the kinds that took their place, or back
///
/// Names, labels and annotations stay. What cannot be said in the other kind is left out and named on standard error.
/// Ends with 0 if everything was converted, with 1 if the files cannot be read, with 2 for wrong arguments, and with 3
/// if an object was left out.
#[derive(Debug, Args)]
pub(crate) struct Convert {
    /// File or directory with the objects; - is standard input; may be given several times
    #[arg(short, long = "filename", value_name = "FILE|DIR", required = true)]
    files: Vec<PathBuf>,
    /// Kind to convert to
    #[arg(long, value_name = "KIND", value_enum, default_value_t = Target::ImageSourceDigestPolicy)]
    to: Target,
    /// Turn objects of `ImageSourceDigestPolicy` and `ImageDigestMirrorSet` into `ImageContentSourcePolicy`
    #[arg(long, conflicts_with = "to")]
    back: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
#[value(rename_all = "PascalCase")]
enum Target {
    ImageSourceDigestPolicy,
    ImageDigestMirrorSet,
}

impl Convert {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        let (objects, mut has_failures) = read(&self.files)?;
        let mut documents = Vec::new();
        let mut names = BTreeMap::new();
        for manifest in objects {
            let converted = match policy_in_file(&manifest.object) {
                Some(Ok(policy)) if self.back && is_for_tags(policy.id.kind) => Err(anyhow!(
                    "Failed: {}: {}: ImageContentSourcePolicy has no mirrors for tags",
                    manifest.place,
                    title(&manifest.object)
                )),
                Some(Ok(policy)) if self.takes(policy.id.kind) => {
                    let converted = self.convert(&manifest, &policy);
                    converted
                        .and_then(|document| is_alone(&manifest, policy.id, &mut names).map(|()| document))
                }
                Some(Err(mismatch)) => Err(anyhow!("{}", unreadable(&manifest, &mismatch))),
                _ => continue,
            };
            match converted {
                Ok(document) => documents.push(document),
                Err(error) => {
                    has_failures = true;
                    warn(&format!("{error:#}; it is left out"));
                }
            }
        }
        ensure!(
            has_failures || !documents.is_empty(),
            "there is nothing to convert: the files hold no {}",
            if self.back {
                "ImageSourceDigestPolicy and no ImageDigestMirrorSet"
            } else {
                "ImageContentSourcePolicy"
            }
        );
        write(&documents.join("---\n"))?;
        Ok(if has_failures { FAILING.into() } else { ExitCode::SUCCESS })
    }

    fn takes(&self, kind: PolicyKind) -> bool {
        match kind {
            PolicyKind::ImageContentSourcePolicy => !self.back,
            PolicyKind::ImageSourceDigestPolicy | PolicyKind::ImageDigestMirrorSet => self.back,
            PolicyKind::ImageSourceTagPolicy | PolicyKind::ImageTagMirrorSet => false,
        }
    }

    fn convert(&self, manifest: &Manifest, policy: &MirrorPolicy) -> Result<String> {
        let place = || format!("Failed: {}: {}", manifest.place, title(&manifest.object));
        let sets = policy
            .sets
            .iter()
            .enumerate()
            .map(|(index, set)| converted_set(set).with_context(|| format!("{}: item {index}", place())));
        let sets = sets.collect::<Result<Vec<_>>>()?;
        if !self.back {
            check_bounds(&sets).map_err(Error::msg).with_context(place)?;
        }
        let sets: Vec<Value> = sets.into_iter().map(shown).collect();
        let (version, kind, list) = match (self.back, self.to) {
            (true, _) => (OPERATOR, "ImageContentSourcePolicy", "repositoryDigestMirrors"),
            (false, Target::ImageSourceDigestPolicy) => {
                (CONFIG, "ImageSourceDigestPolicy", "repositoryDigestMirrors")
            }
            (false, Target::ImageDigestMirrorSet) => (CONFIG, "ImageDigestMirrorSet", "imageDigestMirrors"),
        };
        let object = json!({
            "apiVersion": version,
            "kind": kind,
            "metadata": metadata(&manifest.object),
            "spec": { list: sets },
        });
        serde_saphyr::to_string(&object).with_context(place)
    }
}

fn is_for_tags(kind: PolicyKind) -> bool {
    matches!(kind, PolicyKind::ImageSourceTagPolicy | PolicyKind::ImageTagMirrorSet)
}

/// What a person wrote; the API server fills in the rest again.
fn metadata(object: &Value) -> Value {
    let mut kept = Map::new();
    for field in ["name", "generateName", "labels", "annotations"] {
        if let Some(value) = object.get("metadata").and_then(|metadata| metadata.get(field)) {
            kept.insert(field.to_owned(), value.clone());
        }
    }
    if kept.contains_key("name") {
        kept.remove("generateName");
    }
    if let Some(Value::Object(annotations)) = kept.get_mut("annotations") {
        annotations.remove(LAST_APPLIED);
    }
    kept.retain(|_, value| value.as_object().is_none_or(|map| !map.is_empty()));
    kept.into()
}

/// Two kinds become one, so objects that had the same name beside each other would take each other's place.
fn is_alone(manifest: &Manifest, policy: PolicyId, names: &mut BTreeMap<String, PolicyId>) -> Result<()> {
    match names.entry(policy.name.clone()) {
        Entry::Vacant(free) => {
            free.insert(policy);
            Ok(())
        }
        // The API server finds names for those.
        Entry::Occupied(_) if policy.name.is_empty() => Ok(()),
        Entry::Occupied(taken) => bail!(
            "Failed: {}: {}: it would have the same kind and name as what {} becomes; give one of them another name",
            manifest.place,
            title(&manifest.object),
            taken.get()
        ),
    }
}

fn converted_set(set: &Set) -> Result<Set> {
    if set.never_contact_source {
        bail!(
            "ImageContentSourcePolicy cannot say NeverContactSource, and without it {} would be contacted",
            set.source
        );
    }
    migration::converted_set(set).map_err(Error::msg)
}

fn shown(Set { source, mirrors, .. }: Set) -> Value {
    if mirrors.is_empty() {
        json!({ "source": source })
    } else {
        json!({ "source": source, "mirrors": mirrors })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_keeps_its_name_or_what_it_is_named_after() {
        let kept = |kept: Value| metadata(&json!({"metadata": kept}));
        let rest =
            json!({"uid": "1", "resourceVersion": "2", "labels": {}, "annotations": {LAST_APPLIED: "{}"}});
        assert_eq!(
            kept(json!({"name": "a-x7", "generateName": "a-", "rest": rest})),
            json!({"name": "a-x7"})
        );
        assert_eq!(
            kept(json!({"generateName": "a-", "annotations": rest["annotations"]})),
            json!({"generateName": "a-"})
        );
    }
}
