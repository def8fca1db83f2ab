//! Bodies of requests and answers. Harbor leaves out empty texts, false and zero.

use fairlead_domain::harbor::{Endpoint, Health, Project};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
pub(crate) struct RegistryBody {
    id: i64,
    #[serde(default)]
    name: String,
    #[serde(default, rename = "type")]
    kind: String,
    #[serde(default)]
    url: String,
    #[serde(default)]
    credential: Option<CredentialBody>,
    #[serde(default)]
    insecure: bool,
    #[serde(default)]
    description: String,
    #[serde(default)]
    status: String,
}

#[derive(Default, Deserialize)]
struct CredentialBody {
    #[serde(default)]
    access_key: String,
}

impl From<RegistryBody> for Endpoint {
    fn from(body: RegistryBody) -> Self {
        let access_key = body.credential.map(|credential| credential.access_key);
        Self {
            id: body.id,
            name: body.name,
            adapter: body.kind,
            url: body.url,
            access_key: access_key.filter(|key| !key.is_empty()),
            insecure: body.insecure,
            description: body.description,
            health: Health::parse(&body.status),
        }
    }
}

#[derive(Deserialize)]
pub(crate) struct ProjectBody {
    project_id: i64,
    #[serde(default)]
    name: String,
    #[serde(default)]
    registry_id: Option<i64>,
    #[serde(default)]
    metadata: Option<MetadataBody>,
}

#[derive(Default, Deserialize)]
struct MetadataBody {
    #[serde(default)]
    public: Option<String>,
}

impl From<ProjectBody> for Project {
    fn from(body: ProjectBody) -> Self {
        Self {
            id: body.project_id,
            name: body.name,
            endpoint: body.registry_id.filter(|id| *id > 0),
            public: body.metadata.and_then(|metadata| metadata.public).is_some_and(|public| public == "true"),
        }
    }
}

#[derive(Deserialize)]
pub(crate) struct RepositoryBody {
    pub(crate) name: String,
}

#[derive(Serialize)]
pub(crate) struct CreateRegistry<'a> {
    pub(crate) name: &'a str,
    #[serde(rename = "type")]
    pub(crate) kind: &'a str,
    pub(crate) url: &'a str,
    pub(crate) insecure: bool,
    pub(crate) description: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) credential: Option<CreateCredential<'a>>,
}

#[derive(Serialize)]
pub(crate) struct CreateCredential<'a> {
    #[serde(rename = "type")]
    pub(crate) kind: &'static str,
    pub(crate) access_key: &'a str,
    pub(crate) access_secret: &'a str,
}

/// Flat, unlike the body of a creation: Harbor ignores a nested credential here.
#[derive(Serialize)]
pub(crate) struct UpdateRegistry<'a> {
    pub(crate) url: &'a str,
    pub(crate) insecure: bool,
    pub(crate) description: &'a str,
    pub(crate) credential_type: &'static str,
    pub(crate) access_key: &'a str,
    pub(crate) access_secret: &'a str,
}

#[derive(Serialize)]
pub(crate) struct CreateProject<'a> {
    pub(crate) project_name: &'a str,
    pub(crate) public: bool,
    pub(crate) metadata: Visibility,
    pub(crate) registry_id: i64,
}

#[derive(Serialize)]
pub(crate) struct UpdateProject {
    pub(crate) metadata: Visibility,
}

#[derive(Serialize)]
pub(crate) struct Visibility {
    pub(crate) public: &'static str,
}

impl From<bool> for Visibility {
    fn from(public: bool) -> Self {
        Self { public: if public { "true" } else { "false" } }
    }
}
