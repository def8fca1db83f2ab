//! What commands for people share when they ask an API server: its refusals, its words, and where the operator is.

use std::error::Error;
use std::time::Duration;

use fairlead_operator::cluster::watch::pod::LeanPod;
use fairlead_operator::platform::install::{DEFAULT_NAMESPACE, WEBHOOK_NAME};
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::core::{ObjectList, Request};
use kube::{Api, Client, Resource};
use tokio::time::sleep;

pub(crate) const FORBIDDEN: u16 = 403;
pub(crate) const NOT_FOUND: u16 = 404;
pub(crate) const TOO_MANY_REQUESTS: u16 = 429;

/// How often a list is asked for again, and after which time. A kind that was installed a moment ago, and an API server
/// that has much to do, ask to come again.
pub(crate) const ATTEMPTS: u32 = 20;
pub(crate) const PAUSE: Duration = Duration::from_millis(250);

/// The webhook of the operator, if the cluster has one.
pub(crate) async fn webhook(client: &Client) -> kube::Result<Option<MutatingWebhook>> {
    let configurations = Api::<MutatingWebhookConfiguration>::all(client.clone());
    let listed = configurations.list(&ListParams::default()).await?;
    let mut webhooks = listed.items.into_iter().flat_map(|one| one.webhooks.unwrap_or_default());
    Ok(webhooks.find(|webhook| webhook.name == WEBHOOK_NAME))
}

/// Where the operator is: where its webhook's Service is, as far as the person may see that.
pub(crate) async fn operator_namespace(client: &Client) -> String {
    let ours = webhook(client).await.ok().flatten();
    let service = ours.and_then(|webhook| webhook.client_config.service);
    service.map_or_else(|| DEFAULT_NAMESPACE.to_owned(), |service| service.namespace)
}

/// Asks, and asks again while the API server wants that.
pub(crate) async fn patiently<T, F>(ask: impl Fn() -> F) -> kube::Result<T>
where
    F: Future<Output = kube::Result<T>>,
{
    let mut again = 0..ATTEMPTS;
    loop {
        match ask().await {
            Err(error) if code(&error) == TOO_MANY_REQUESTS && again.next().is_some() => sleep(PAUSE).await,
            result => return result,
        }
    }
}

/// All items of a list, page by page.
pub(crate) async fn pages<K: Clone, F>(
    mut page: ListParams,
    list: impl Fn(ListParams) -> F,
) -> kube::Result<Vec<K>>
where
    F: Future<Output = kube::Result<ObjectList<K>>>,
{
    let mut items = Vec::new();
    loop {
        let listed = patiently(|| list(page.clone())).await?;
        items.extend(listed.items);
        match listed.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(items),
        }
    }
}

/// The Pods of a namespace, or of all, as far as the operator looks at them.
pub(crate) async fn pods(
    client: &Client,
    namespace: Option<&str>,
    page: ListParams,
) -> kube::Result<Vec<LeanPod>> {
    let request = &Request::new(Pod::url_path(&(), namespace));
    pages(page, |page| async move {
        let request = request.list(&page).map_err(kube::Error::BuildRequest)?;
        client.request::<ObjectList<LeanPod>>(request).await
    })
    .await
}

/// What to say of a kind that the cluster does not know.
pub(crate) fn unknown_kind(kind: &str) -> String {
    format!("the cluster does not know the kind {kind}: install its definition with `fairlead crds`")
}

/// The API server's status code, or 0 where it did not speak.
pub(crate) fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        _ => 0,
    }
}

/// The API server's own words where it spoke, else everything that is known about the failure.
pub(crate) fn told(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => status.message.clone(),
        error => {
            let mut told = error.to_string();
            let mut cause = error.source();
            while let Some(one) = cause {
                let words = one.to_string();
                if !told.ends_with(&words) {
                    told.extend([": ", &words]);
                }
                cause = one.source();
            }
            told
        }
    }
}
