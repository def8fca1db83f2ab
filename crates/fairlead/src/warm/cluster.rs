//! What a cluster is asked about warming, with the rights of the person who asks.

use anyhow::{Result, anyhow, bail};
use fairlead_api::drop::{CachedImage, CachedImageSet, PullPolicy, PullPolicySpec};
use fairlead_api::fairlead::WarmLedger;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ListMeta, ObjectMeta};
use kube::api::{ApiResource, DynamicObject, ListParams};
use kube::core::Request;
use kube::{Api, Client, Resource};
use serde::Deserialize;
use serde_json::Value;

use super::report::{ImageReport, LedgerLine, SetReport};
use crate::api_server::{FORBIDDEN, NOT_FOUND, code, patiently, told, unknown_kind};
use crate::stored::part;

/// Objects per request. A status may name a thousand nodes.
const PAGE: u32 = 100;

/// Lines of a table per request.
const LINES: u32 = 500;

/// The form in which kubectl asks for lists: printed columns and metadata. A ledger has up to half a mebibyte, of which
/// one number is needed.
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

/// The printed column that counts nodes whose last pull failed.
const FAILED: &str = "Failed";

pub(super) async fn images(client: &Client) -> Result<Vec<ImageReport>> {
    list::<CachedImage, _>(client, ImageReport::of).await?.map_err(|refused| anyhow!(refused))
}

/// Or why they may not be seen.
pub(super) async fn sets(client: &Client) -> Result<Result<Vec<SetReport>, String>> {
    list::<CachedImageSet, _>(client, SetReport::of).await
}

pub(super) async fn image(client: &Client, name: &str) -> Result<DynamicObject> {
    let api = dynamic::<CachedImage>(client);
    match patiently(|| api.get(name)).await {
        Ok(object) => Ok(object),
        Err(error) if code(&error) == NOT_FOUND => bail!("there is no CachedImage {name}"),
        Err(error) => bail!("cannot read CachedImage {name}: {}", told(&error)),
    }
}

/// None: there is none of that name, and the operator uses the defaults.
pub(super) async fn policy(client: &Client, name: &str) -> Result<Option<PullPolicySpec>, String> {
    let api = dynamic::<PullPolicy>(client);
    let problem = |why: &str| {
        format!(
            "PullPolicy {name} cannot be read, so the times of the next tries are those of the defaults: {why}"
        )
    };
    let found = patiently(|| api.get_opt(name)).await.map_err(|error| problem(&told(&error)))?;
    let Some(object) = found else { return Ok(None) };
    let mut problems = Vec::new();
    let spec = part(&object.data, "spec", &mut problems);
    problems.first().map_or(Ok(Some(spec)), |why| Err(problem(why)))
}

/// A line for each `WarmLedger`, or why they may not be seen.
pub(super) async fn ledgers(client: &Client, namespace: &str) -> Result<Result<Vec<LedgerLine>, String>> {
    let url = WarmLedger::url_path(&(), Some(namespace));
    let (mut lines, mut page) = (Vec::new(), ListParams::default().limit(LINES));
    loop {
        let table: Table = match patiently(|| table(client, &url, &page)).await {
            Ok(table) => table,
            Err(error) if matches!(code(&error), FORBIDDEN | NOT_FOUND) => {
                let why = format!(
                    "WarmLedgers of namespace {namespace} cannot be seen, so nothing is known of single nodes: {}",
                    told(&error)
                );
                return Ok(Err(why));
            }
            Err(error) => bail!("cannot list WarmLedgers of namespace {namespace}: {}", told(&error)),
        };
        let failed = table.column_definitions.iter().position(|column| column.name == FAILED);
        lines.extend(table.rows.unwrap_or_default().into_iter().map(|row| {
            let count = failed.and_then(|failed| row.cells.get(failed)).and_then(Value::as_u64);
            LedgerLine {
                name: row.object.metadata.name.unwrap_or_default(),
                owners: row.object.metadata.owner_references.unwrap_or_default(),
                failed: count.and_then(|count| u32::try_from(count).ok()).unwrap_or_default(),
            }
        }));
        match table.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(Ok(lines)),
        }
    }
}

/// The ledgers themselves, and what is wrong with those that are left out.
pub(super) async fn read(
    client: &Client,
    namespace: &str,
    lines: impl Iterator<Item = &LedgerLine>,
) -> Result<(Vec<WarmLedger>, Vec<String>)> {
    let api = Api::<DynamicObject>::namespaced_with(
        client.clone(),
        namespace,
        &ApiResource::erase::<WarmLedger>(&()),
    );
    let (mut ledgers, mut broken) = (Vec::new(), Vec::new());
    for LedgerLine { name, .. } in lines {
        let found = patiently(|| api.get_opt(name)).await;
        let found =
            found.map_err(|error| anyhow!("cannot read WarmLedger {namespace}/{name}: {}", told(&error)))?;
        match found.map(DynamicObject::try_parse) {
            // It was deleted a moment ago.
            None => {}
            Some(Ok(ledger)) => ledgers.push(ledger),
            Some(Err(error)) => {
                broken.push(format!("WarmLedger {namespace}/{name} is left out: it cannot be read: {error}"));
            }
        }
    }
    Ok((ledgers, broken))
}

/// As the API server prints lists.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Table {
    #[serde(default)]
    metadata: ListMeta,
    column_definitions: Vec<Column>,
    rows: Option<Vec<Row>>,
}

#[derive(Debug, Deserialize)]
struct Column {
    name: String,
}

#[derive(Debug, Deserialize)]
struct Row {
    cells: Vec<Value>,
    object: Described,
}

#[derive(Debug, Deserialize)]
struct Described {
    metadata: ObjectMeta,
}

async fn table(client: &Client, url: &str, page: &ListParams) -> kube::Result<Table> {
    let mut request = Request::new(url).list(page).map_err(kube::Error::BuildRequest)?;
    if let Ok(form) = TABLE.parse() {
        request.headers_mut().insert("accept", form);
    }
    client.request(request).await
}

fn dynamic<K: Resource<DynamicType = ()>>(client: &Client) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &ApiResource::erase::<K>(&()))
}

/// What is said of each object of a kind, or why they may not be seen.
async fn list<K: Resource<DynamicType = ()>, T>(
    client: &Client,
    read: impl Fn(&DynamicObject) -> T,
) -> Result<Result<Vec<T>, String>> {
    let (api, kind) = (dynamic::<K>(client), K::kind(&()));
    let (mut items, mut page) = (Vec::new(), ListParams::default().limit(PAGE));
    loop {
        let list = match patiently(|| api.list(&page)).await {
            Ok(list) => list,
            Err(error) if code(&error) == NOT_FOUND => return Ok(Err(unknown_kind(&kind))),
            Err(error) if code(&error) == FORBIDDEN => {
                return Ok(Err(format!("you may not see objects of kind {kind}: {}", told(&error))));
            }
            Err(error) => bail!("cannot list objects of kind {kind}: {}", told(&error)),
        };
        items.extend(list.items.iter().map(&read));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(Ok(items)),
        }
    }
}
