//! Which cluster this is, for what is shared between clusters: mirrors, and Harbor.

use fairlead_domain::reference::Tag;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client};

use crate::controller::Broken;
use crate::platform::api_error::{LIMIT, within};

/// The UID of the namespace `kube-system`, which lives as long as its cluster and tells it from others.
pub async fn of_cluster(client: &Client) -> Result<Tag, Broken> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let read = within(LIMIT, namespaces.get_metadata("kube-system")).await?;
    Ok(Tag::parse(&read.metadata.uid.unwrap_or_default())?)
}
