//! What the double holds.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

use super::PASSWORD;

#[derive(Debug)]
pub(super) struct State {
    pub(super) password: String,
    /// Until when logins of a user are refused.
    pub(super) locked: HashMap<String, Instant>,
    pub(super) read_only: bool,
    pub(super) delay: Duration,
    pub(super) faults: Vec<Fault>,
    pub(super) upstreams: HashMap<String, Upstream>,
    pub(super) registries: BTreeMap<i64, HeldRegistry>,
    pub(super) projects: BTreeMap<i64, HeldProject>,
    pub(super) repositories: BTreeMap<i64, HeldRepository>,
    /// What was pulled, by project and repository.
    pub(super) cached: HashMap<(String, String), Cached>,
    /// By the full name.
    pub(super) robots: BTreeMap<String, Robot>,
    /// Repositories whose record comes late: project and name.
    pub(super) late: Vec<(String, String)>,
    /// Endpoints that a replication policy refers to.
    pub(super) replicated: BTreeSet<i64>,
    /// Repositories with tags that must not go: project and name.
    pub(super) immutable: BTreeSet<(String, String)>,
    /// What plans the clean-up of new proxy projects cannot be reached.
    pub(super) jobs_are_down: bool,
    pub(super) log: Vec<Logged>,
    pub(super) pending: usize,
    registry_sequence: i64,
    project_sequence: i64,
    repository_sequence: i64,
}

impl Default for State {
    fn default() -> Self {
        Self {
            password: PASSWORD.to_owned(),
            locked: HashMap::new(),
            read_only: false,
            delay: Duration::ZERO,
            faults: Vec::new(),
            upstreams: HashMap::new(),
            registries: BTreeMap::new(),
            projects: BTreeMap::new(),
            repositories: BTreeMap::new(),
            cached: HashMap::new(),
            robots: BTreeMap::new(),
            late: Vec::new(),
            replicated: BTreeSet::new(),
            immutable: BTreeSet::new(),
            jobs_are_down: false,
            log: Vec::new(),
            pending: 0,
            registry_sequence: 0,
            // Harbor brings a project named library.
            project_sequence: 1,
            repository_sequence: 0,
        }
    }
}

/// What an upstream answers to Harbor's test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Upstream {
    /// It takes every request, with or without a login.
    Open,
    /// It takes this login. Harbor counts a request without one, which is refused, as healthy.
    Login { user: String, password: String },
    /// It cannot be reached.
    Down,
}

impl Upstream {
    pub fn login(user: &str, password: &str) -> Self {
        Self::Login { user: user.to_owned(), password: password.to_owned() }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credential {
    pub kind: String,
    pub key: String,
    pub secret: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldRegistry {
    pub id: i64,
    pub name: String,
    pub kind: String,
    pub url: String,
    pub credential: Option<Credential>,
    pub insecure: bool,
    pub description: String,
    /// `healthy`, `unhealthy` or empty.
    pub status: String,
    pub created: Timestamp,
    pub updated: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldProject {
    pub id: i64,
    pub name: String,
    pub registry: Option<i64>,
    pub public: bool,
    /// Harbor keeps the row of a deleted project under another name.
    pub deleted: bool,
    pub created: Timestamp,
    pub updated: Timestamp,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct HeldRepository {
    pub(super) id: i64,
    pub(super) project: String,
    pub(super) name: String,
    pub(super) created: Timestamp,
}

/// What Harbor keeps of a repository that was pulled through it.
#[derive(Debug, Default)]
pub(super) struct Cached {
    /// Digests.
    pub(super) tags: HashMap<String, String>,
    /// Manifests and blobs, by digest.
    pub(super) content: HashMap<String, Content>,
}

#[derive(Debug, Clone)]
pub(super) struct Content {
    pub(super) media_type: String,
    pub(super) bytes: Vec<u8>,
}

/// An account for programs.
#[derive(Debug, Clone)]
pub(super) struct Robot {
    pub(super) name: String,
    pub(super) secret: String,
    /// Kind (`system` or `project`), resource and action.
    pub(super) access: BTreeSet<(String, String, String)>,
}

/// What happens to requests instead of their answer.
#[derive(Debug, Clone)]
pub struct Fault {
    pub method: Option<&'static str>,
    /// Part of the path.
    pub path: &'static str,
    /// How often; `None` until it is taken back.
    pub times: Option<usize>,
    pub effect: Effect,
}

#[derive(Debug, Clone)]
pub enum Effect {
    /// An answer of Harbor with this status.
    Status(u16),
    /// A page of a proxy in front of Harbor, whose Harbor is gone.
    BadGateway,
    /// 200 with a page.
    Page,
    /// 200 with half an answer.
    Truncated,
    /// A redirect to this address.
    Redirect(String),
    /// No answer within this time.
    Stall(Duration),
}

/// A request that came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Logged {
    pub method: String,
    /// As it was sent, with the query.
    pub path: String,
    pub status: u16,
    /// It carried a cookie.
    pub cookie: bool,
    /// It said that segments are names.
    pub names: bool,
}

impl State {
    /// The number of the next endpoint. Attempts that are refused later use one up as well.
    pub(super) fn next_registry(&mut self) -> i64 {
        self.registry_sequence += 1;
        self.registry_sequence
    }

    pub(super) fn next_project(&mut self) -> i64 {
        self.project_sequence += 1;
        self.project_sequence
    }

    pub(super) fn project(&self, name: &str) -> Option<&HeldProject> {
        self.projects.values().find(|one| !one.deleted && one.name == name)
    }

    /// Whether an endpoint with these values would work.
    pub(super) fn reaches(&self, kind: &str, url: &str, credential: Option<&Credential>) -> bool {
        if kind == "aws-ecr" && !(url.contains(".dkr.ecr.") && url.contains(".amazonaws.com")) {
            return false;
        }
        match (self.upstreams.get(url), credential) {
            (None | Some(Upstream::Down), _) => false,
            (Some(Upstream::Open), _) | (Some(Upstream::Login { .. }), None) => true,
            (Some(Upstream::Login { user, password }), Some(credential)) => {
                *user == credential.key && *password == credential.secret
            }
        }
    }

    pub(super) fn check_health(&mut self) {
        let verdicts: Vec<_> = self
            .registries
            .values()
            .map(|one| (one.id, self.reaches(&one.kind, &one.url, one.credential.as_ref())))
            .collect();
        for (id, healthy) in verdicts {
            if let Some(one) = self.registries.get_mut(&id) {
                word(healthy).clone_into(&mut one.status);
            }
        }
    }

    pub(super) fn hold_registry(
        &mut self,
        name: &str,
        url: &str,
        change: impl FnOnce(&mut HeldRegistry),
    ) -> i64 {
        let (id, now) = (self.next_registry(), Timestamp::now());
        let mut registry = HeldRegistry {
            id,
            name: name.to_owned(),
            kind: "docker-registry".to_owned(),
            url: stored_url(url),
            credential: None,
            insecure: false,
            description: String::new(),
            status: word(true).to_owned(),
            created: now,
            updated: now,
        };
        change(&mut registry);
        self.registries.insert(id, registry);
        id
    }

    pub(super) fn hold_project(&mut self, name: &str, registry: Option<i64>, public: bool) -> i64 {
        let (id, now) = (self.next_project(), Timestamp::now());
        let (name, created, updated) = (name.to_owned(), now, now);
        self.projects
            .insert(id, HeldProject { id, name, registry, public, deleted: false, created, updated });
        id
    }

    pub(super) fn hold_repository(&mut self, project: &str, name: &str) {
        self.repository_sequence += 1;
        let id = self.repository_sequence;
        let (project, name, created) = (project.to_owned(), name.to_owned(), Timestamp::now());
        self.repositories.insert(id, HeldRepository { id, project, name, created });
    }

    /// Records that come late, of a project whose repositories were just listed.
    pub(super) fn deliver_late(&mut self, project: &str) {
        let (due, late) =
            std::mem::take(&mut self.late).into_iter().partition::<Vec<_>, _>(|(of, _)| of == project);
        self.late = late;
        for (project, name) in due {
            self.hold_repository(&project, &name);
        }
    }
}

pub(super) fn word(healthy: bool) -> &'static str {
    if healthy { "healthy" } else { "unhealthy" }
}

/// An address as Harbor stores it.
pub(super) fn stored_url(url: &str) -> String {
    let url = url.trim().trim_end_matches('/');
    if url.contains("://") || url.is_empty() { url.to_owned() } else { format!("http://{url}") }
}
