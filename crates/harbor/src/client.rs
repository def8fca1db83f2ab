//! The calls.

use std::time::Duration;

use bytes::Bytes;
use fairlead_domain::harbor::{Endpoint, Login, Project};
use fairlead_registry::http_client::{HttpClient, HttpError, HttpResponse, HttpSettings, ServiceAuth};
use hyper::header::{HeaderMap, HeaderName, HeaderValue, LOCATION};
use hyper::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use url::Url;
use zeroize::Zeroizing;

use crate::encode;
use crate::error::Error;
use crate::wire::{
    CreateCredential, CreateProject, CreateRegistry, ProjectBody, RegistryBody, RepositoryBody,
    UpdateProject, UpdateRegistry,
};

/// Path of the API.
pub(crate) const API: &str = "api/v2.0";
/// Makes Harbor read a path segment of digits as a name.
const IS_NAME: HeaderName = HeaderName::from_static("x-is-resource-name");
/// The most that Harbor gives out at once.
const PAGE: usize = 100;
/// Pages that are read of one list. No list of a working Harbor is that long.
const MOST_PAGES: usize = 1000;
/// After a failed login of whatever client Harbor refuses every login of that user for 1.5 s.
const LOCKED: Duration = Duration::from_millis(1600);

/// How Harbor is reached.
#[derive(Clone, Debug)]
pub struct HarborSettings {
    pub url: Url,
    pub login: Login,
    /// Certificate authorities to trust besides the system's, PEM.
    pub ca: Option<Vec<u8>>,
    pub insecure_skip_verify: bool,
    /// For one call.
    pub time_limit: Duration,
}

/// A client of one Harbor.
#[derive(Debug)]
pub struct Harbor {
    http: HttpClient,
}

/// An endpoint to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewEndpoint {
    pub name: String,
    pub adapter: String,
    pub url: String,
    pub login: Option<Login>,
    pub description: String,
}

/// What an endpoint is made to be. The adapter cannot be changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointUpdate {
    pub url: String,
    /// None takes the login away.
    pub login: Option<Login>,
    pub description: String,
}

/// What a deletion found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Removed {
    Now,
    Before,
}

impl Harbor {
    pub fn new(settings: HarborSettings) -> Result<Self, HttpError> {
        let HarborSettings { url, login, ca, insecure_skip_verify, time_limit } = settings;
        let Login { user, password } = login;
        let auth = ServiceAuth::Basic { user, password: Zeroizing::new(password) };
        let headers = HeaderMap::from_iter([(IS_NAME, HeaderValue::from_static("true"))]);
        let settings = HttpSettings {
            auth,
            headers,
            ca,
            insecure_skip_verify,
            time_limit,
            // Elsewhere the login is not sent, so the answer would be about that.
            follows_elsewhere: false,
            ..HttpSettings::default()
        };
        Ok(Self { http: HttpClient::new(url, settings)? })
    }

    /// The endpoint of exactly this name. The list also shows whether Harbor takes the login: that of projects
    /// does not.
    pub async fn endpoint(&self, name: &str) -> Result<Option<Endpoint>, Error> {
        // A Harbor that does not know this filter lists them all.
        let query = format!("registries?q={}", encode::once(&format!("name={name}")));
        let listed: Vec<RegistryBody> = self.list(&query, &format!("look up endpoint {name}")).await?;
        Ok(listed.into_iter().map(Endpoint::from).find(|endpoint| endpoint.id > 0 && endpoint.name == name))
    }

    /// All endpoints, of every owner. `wanted` is the one to look up among them.
    pub async fn endpoints(&self, wanted: &str) -> Result<Vec<Endpoint>, Error> {
        let listed: Vec<RegistryBody> =
            self.list("registries?", &format!("look up endpoint {wanted}")).await?;
        Ok(listed.into_iter().map(Endpoint::from).filter(|endpoint| endpoint.id > 0).collect())
    }

    /// Whether Harbor takes the login, and lets it see endpoints.
    pub async fn check_login(&self) -> Result<(), Error> {
        self.call(Method::GET, "registries?page=1&page_size=1", None, "log in").await.map(drop)
    }

    /// Makes an endpoint, after Harbor has tested that it reaches the upstream.
    pub async fn create_endpoint(&self, new: &NewEndpoint) -> Result<(), Error> {
        let credential = new.login.as_ref().map(|login| CreateCredential {
            kind: "basic",
            access_key: &login.user,
            access_secret: &login.password,
        });
        let body = CreateRegistry {
            name: &new.name,
            kind: &new.adapter,
            url: &new.url,
            insecure: false,
            description: &new.description,
            credential,
        };
        self.write(Method::POST, "registries", &body, format!("create endpoint {}", new.name)).await
    }

    /// Changes an endpoint, after Harbor has tested that it reaches the upstream; else everything stays as it was.
    pub async fn update_endpoint(&self, id: i64, update: &EndpointUpdate) -> Result<(), Error> {
        let login = update.login.as_ref();
        let body = UpdateRegistry {
            url: &update.url,
            insecure: false,
            description: &update.description,
            credential_type: if login.is_some() { "basic" } else { "" },
            access_key: login.map_or("", |login| &login.user),
            access_secret: login.map_or("", |login| &login.password),
        };
        self.write(Method::PUT, &format!("registries/{id}"), &body, format!("update endpoint {id}")).await
    }

    pub async fn delete_endpoint(&self, id: i64) -> Result<Removed, Error> {
        self.delete(&format!("registries/{id}"), format!("delete endpoint {id}")).await
    }

    pub async fn project(&self, name: &str) -> Result<Option<Project>, Error> {
        let path = format!("projects/{}", encode::once(name));
        let body: Option<ProjectBody> = self.read(&path, &format!("look up project {name}")).await?;
        Ok(body.map(Project::from).filter(|project| project.name == name))
    }

    /// Makes a project that serves from an endpoint.
    pub async fn create_project(&self, name: &str, endpoint: i64, public: bool) -> Result<(), Error> {
        let body =
            CreateProject { project_name: name, public, metadata: public.into(), registry_id: endpoint };
        self.write(Method::POST, "projects", &body, format!("create project {name}")).await
    }

    pub async fn set_visibility(&self, project: &str, public: bool) -> Result<(), Error> {
        let path = format!("projects/{}", encode::once(project));
        let body = UpdateProject { metadata: public.into() };
        self.write(Method::PUT, &path, &body, format!("change the visibility of project {project}")).await
    }

    /// Deletes a project, which has to be empty.
    pub async fn delete_project(&self, name: &str) -> Result<Removed, Error> {
        self.delete(&format!("projects/{}", encode::once(name)), format!("delete project {name}")).await
    }

    /// Names of the repositories of a project, without its own; none if there is no such project.
    pub async fn repositories(&self, project: &str) -> Result<Vec<String>, Error> {
        let path = format!("projects/{}/repositories?", encode::once(project));
        let attempt = format!("list the repositories of project {project}");
        let listed: Vec<RepositoryBody> = match self.list(&path, &attempt).await {
            Err(error) if is_absent(&error) => return Ok(Vec::new()),
            listed => listed?,
        };
        let prefix = format!("{project}/");
        let names = listed.into_iter().map(|one| one.name);
        Ok(names.map(|name| name.strip_prefix(&prefix).map(str::to_owned).unwrap_or(name)).collect())
    }

    /// Deletes a repository with everything in it. `name` is without the project.
    pub async fn delete_repository(&self, project: &str, name: &str) -> Result<Removed, Error> {
        let path = format!("projects/{}/repositories/{}", encode::once(project), encode::repository(name));
        self.delete(&path, format!("delete repository {project}/{name}")).await
    }

    /// Every page of a list; `path` carries the beginning of a query.
    async fn list<T: DeserializeOwned>(&self, path: &str, attempt: &str) -> Result<Vec<T>, Error> {
        let mut all = Vec::new();
        let joint = if path.ends_with('?') { "" } else { "&" };
        for page in 1..=MOST_PAGES {
            let path = format!("{path}{joint}page={page}&page_size={PAGE}");
            let response = self.call(Method::GET, &path, None, attempt).await?;
            let listed: Vec<T> = parse(&response, attempt)?;
            let last = listed.len() < PAGE;
            all.extend(listed);
            if last {
                return Ok(all);
            }
        }
        Err(Error::Malformed { attempt: attempt.to_owned(), reason: "the list does not end".to_owned() })
    }

    async fn read<T: DeserializeOwned>(&self, path: &str, attempt: &str) -> Result<Option<T>, Error> {
        match self.call(Method::GET, path, None, attempt).await {
            Ok(response) => parse(&response, attempt).map(Some),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn write(
        &self,
        method: Method,
        path: &str,
        body: &impl Serialize,
        attempt: String,
    ) -> Result<(), Error> {
        let body = serde_json::to_vec(body);
        let body =
            body.map_err(|error| Error::Malformed { attempt: attempt.clone(), reason: error.to_string() })?;
        self.call(method, path, Some(body.into()), &attempt).await.map(drop)
    }

    async fn delete(&self, path: &str, attempt: String) -> Result<Removed, Error> {
        match self.call(Method::DELETE, path, None, &attempt).await {
            Ok(_) => Ok(Removed::Now),
            Err(error) if is_absent(&error) => Ok(Removed::Before),
            Err(error) => Err(error),
        }
    }

    /// Sends a request. A login that is refused is tried once more, when a lock that another client caused is over.
    async fn call(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
        attempt: &str,
    ) -> Result<HttpResponse, Error> {
        let first = self.call_once(method.clone(), path, body.clone(), attempt).await;
        if !matches!(&first, Err(Error::Refused { status: StatusCode::UNAUTHORIZED, .. })) {
            return first;
        }
        tokio::time::sleep(LOCKED).await;
        self.call_once(method, path, body, attempt).await
    }

    async fn call_once(
        &self,
        method: Method,
        path: &str,
        body: Option<Bytes>,
        attempt: &str,
    ) -> Result<HttpResponse, Error> {
        let body = body.map(|body| (HeaderValue::from_static("application/json"), body));
        let response = self.http.send(method, &format!("{API}/{path}"), body).await;
        let response = response.map_err(|cause| Error::Http { attempt: attempt.to_owned(), cause })?;
        if response.status.is_success() {
            return Ok(response);
        }
        let location = response.headers.get(LOCATION).and_then(|value| value.to_str().ok());
        Err(Error::refused(attempt.to_owned(), response.status, location, &response.body))
    }
}

/// Whether Harbor says that the object is not there. If the path itself is not there, a proxy has changed it, or this
/// is no Harbor: then nothing is known about the object.
fn is_absent(error: &Error) -> bool {
    let Error::Refused { status: StatusCode::NOT_FOUND, code, text, .. } = error else { return false };
    code == "NOT_FOUND" && !text.starts_with("path ")
}

fn parse<T: DeserializeOwned>(response: &HttpResponse, attempt: &str) -> Result<T, Error> {
    serde_json::from_slice(&response.body)
        .map_err(|error| Error::Malformed { attempt: attempt.to_owned(), reason: error.to_string() })
}
