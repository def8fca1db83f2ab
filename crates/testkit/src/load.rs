//! Many objects at once, with bounded parallelism.

use anyhow::{Context, Result};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client};

/// Creates `count` Pods, `parallel` at a time; `pod` makes the one of each number.
pub async fn create_pods(
    client: Client,
    namespace: &str,
    count: usize,
    parallel: usize,
    pod: impl Fn(usize) -> Pod,
) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(client, namespace);
    let create = |number| {
        let (pods, pod) = (pods.clone(), pod(number));
        async move {
            pods.create(&PostParams::default(), &pod).await.with_context(|| format!("Pod number {number}"))
        }
    };
    let created = stream::iter(0..count).map(create).buffer_unordered(parallel);
    created.try_for_each(|_| async { Ok(()) }).await
}
