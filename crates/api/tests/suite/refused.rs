//! Tables of objects: a good one, and what happens to it when one field is changed.
//!
//! A malformed object must be refused by the API server itself, with a message that names the field and says how to put
//! it right. Requests are made as `kubectl apply` makes them for a new object: unknown fields are errors.

use std::sync::LazyLock;

use anyhow::{Context, Result, bail, ensure};
use fairlead_api::crds::{self, Kind};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, PostParams};
use kube::core::{GroupVersionKind, Request};
use kube::discovery::{self, Scope};
use kube::{Client, Resource};
use serde_json::{Value, json};

/// One change to the good object.
#[derive(Debug)]
pub(crate) struct Change {
    /// Where, as a JSON pointer. Missing objects on the way are made.
    pub(crate) at: &'static str,
    /// What is put there; `null` takes the field away.
    pub(crate) put: Value,
}

pub(crate) fn change(at: &'static str, put: impl Into<Value>) -> Change {
    Change { at, put: put.into() }
}

pub(crate) fn without(at: &'static str) -> Change {
    change(at, Value::Null)
}

/// A change that must be refused.
#[derive(Debug)]
pub(crate) struct Refusal {
    change: Change,
    field: &'static str,
    remedy: &'static str,
}

/// The message must hold both texts: the path of the field, and words of the remedy.
pub(crate) fn refusal(change: Change, field: &'static str, remedy: &'static str) -> Refusal {
    Refusal { change, field, remedy }
}

/// Asserts that the object itself is accepted, and that each change to it is refused as it says.
pub(crate) async fn assert_refused(good: &Value, refusals: Vec<Refusal>) -> Result<()> {
    let client = crate::definitions::client().await?;
    try_create(&client, good).await?.map_err(anyhow::Error::msg).context("the object without any change")?;
    let mut wrong = Vec::new();
    for Refusal { change, field, remedy } in refusals {
        let what = format!("{} = {}", change.at, change.put);
        let mut malformed = good.clone();
        apply(&mut malformed, change)?;
        match try_create(&client, &malformed).await? {
            Ok(()) => wrong.push(format!("{what}: accepted")),
            Err(message) if message.contains(field) && message.contains(remedy) => {}
            Err(message) => {
                wrong.push(format!("{what}: expected {field:?} and {remedy:?}, was told: {message}"));
            }
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Asserts that each change to the object leaves it acceptable.
pub(crate) async fn assert_accepted(good: &Value, changes: Vec<Change>) -> Result<()> {
    let client = crate::definitions::client().await?;
    let mut wrong = Vec::new();
    for change in changes {
        let what = format!("{} = {}", change.at, change.put);
        let mut object = good.clone();
        apply(&mut object, change)?;
        if let Err(message) = try_create(&client, &object).await? {
            wrong.push(format!("{what}: {message}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Creates the object as a dry run. The inner error is what the API server said to a malformed object.
pub(crate) async fn try_create(client: &Client, object: &Value) -> Result<Result<(), String>> {
    let text = |field: &str| object[field].as_str().with_context(|| format!("no {field}"));
    let (group, version) = text("apiVersion")?.split_once('/').context("no group")?;
    let gvk = GroupVersionKind::gvk(group, version, text("kind")?);
    let (resource, capabilities) = discovery::pinned_kind(client, &gvk).await?;
    let namespace = (capabilities.scope == Scope::Namespaced).then_some("default");
    let request = Request::new(DynamicObject::url_path(&resource, namespace));
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let mut request = request.create(&params, serde_json::to_vec(object)?)?;
    *request.uri_mut() = format!("{}&fieldValidation=Strict", request.uri()).parse()?;
    match client.request::<Value>(request).await {
        Ok(created) => {
            read_back(&gvk, created)?;
            Ok(Ok(()))
        }
        // Anything but "your object is wrong" (a missing kind, a missing right) is a fault of the test.
        Err(kube::Error::Api(status)) if [400, 422].contains(&status.code) => Ok(Err(status.message.clone())),
        Err(error) => bail!(error),
    }
}

/// What the API server accepts, the program must be able to read: one object that it cannot would blind a watch.
fn read_back(gvk: &GroupVersionKind, created: Value) -> Result<()> {
    static KINDS: LazyLock<Vec<(&Kind, CustomResourceDefinition)>> =
        LazyLock::new(|| crds::kinds().iter().map(|kind| (kind, kind.crd())).collect());
    let (kind, _) = KINDS
        .iter()
        .find(|(_, crd)| crd.spec.group == gvk.group && crd.spec.names.kind == gvk.kind)
        .with_context(|| format!("{gvk:?} is not one of ours"))?;
    let text = created.to_string();
    kind.round_trip(created)
        .with_context(|| format!("accepted by the API server, but cannot be read: {text}"))?;
    Ok(())
}

fn apply(object: &mut Value, Change { at, put }: Change) -> Result<()> {
    let path = at.trim_start_matches('/');
    let (parents, last) = path.rsplit_once('/').map_or((None, path), |(parents, last)| (Some(parents), last));
    let mut place = object;
    for part in parents.into_iter().flat_map(|parents| parents.split('/')) {
        place = match place {
            Value::Array(items) => {
                let index: usize = part.parse()?;
                if index == items.len() {
                    items.push(json!({}));
                }
                items.get_mut(index).with_context(|| format!("{at}: nothing at {part}"))?
            }
            Value::Object(fields) => fields.entry(part).or_insert_with(|| json!({})),
            other => bail!("{at}: {part} in {other}"),
        };
    }
    match place {
        Value::Array(items) => {
            let index: usize = last.parse()?;
            ensure!(index <= items.len(), "{at}: the list is shorter");
            if index == items.len() {
                items.push(put);
            } else {
                items[index] = put;
            }
        }
        Value::Object(fields) if put.is_null() => {
            fields.remove(last).with_context(|| format!("{at}: nothing to take away"))?;
        }
        Value::Object(fields) => {
            fields.insert(last.to_owned(), put);
        }
        other => bail!("{at}: {last} in {other}"),
    }
    Ok(())
}
