//! A double of Harbor: its API of registries, projects, repositories and robots, and pulls through proxy projects, with
//! the manners that a client meets in a real one. Observed on Harbor 2.9.5: upstreams are tested when an endpoint is
//! made or changed, a ping stores nothing, names are matched as parts, digits are numbers, lists are cut at a hundred,
//! a failed login locks its user, and a request with a cookie needs a CSRF token.
//!
//! The test says what real upstreams would answer to Harbor's own check: see [`Upstream`]. Pulls go to their addresses.

mod http;
mod projects;
mod pull;
mod registries;
mod robots;
mod state;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::Result;
use axum::Router;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

pub use state::{Credential, Effect, Fault, HeldProject, HeldRegistry, Logged, Upstream};

use self::state::State;

/// The administrator's password of a new Harbor.
pub const PASSWORD: &str = "Harbor12345";

/// A Harbor on a free port. It lives on the runtime that started it and ends when dropped.
#[derive(Debug)]
pub struct FakeHarbor {
    address: SocketAddr,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Speaks to upstreams.
    http: reqwest::Client,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FakeHarbor {
    pub async fn start() -> Result<Self> {
        Self::start_at(Ipv4Addr::LOCALHOST.into()).await
    }

    /// The same at another address, such as one that a node reaches.
    pub async fn start_at(address: IpAddr) -> Result<Self> {
        crate::install_crypto();
        let listener = TcpListener::bind((address, 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let routes = Router::new().fallback(http::answer).with_state(shared.clone());
        let serving = tokio::spawn(async move { drop(axum::serve(listener, routes).await) });
        Ok(Self { address, shared, serving })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Changes the administrator's password.
    pub fn set_password(&self, password: &str) {
        password.clone_into(&mut self.shared.lock().password);
    }

    /// What an upstream answers from now on. Others cannot be reached.
    pub fn upstream(&self, url: &str, upstream: Upstream) {
        self.shared.lock().upstreams.insert(state::stored_url(url), upstream);
    }

    /// Harbor's own check of all endpoints, which a real one makes every five minutes.
    pub fn check_health(&self) {
        self.shared.lock().check_health();
    }

    /// Whether logins of a user are refused for the moment.
    pub fn is_locked(&self, user: &str) -> bool {
        self.shared.lock().locked.get(user).is_some_and(|until| tokio::time::Instant::now() < *until)
    }

    pub fn set_read_only(&self, read_only: bool) {
        self.shared.lock().read_only = read_only;
    }

    /// Lets every answer take so long.
    pub fn delay(&self, delay: Duration) {
        self.shared.lock().delay = delay;
    }

    pub fn inject(&self, fault: Fault) {
        self.shared.lock().faults.push(fault);
    }

    /// Takes every fault and every delay back.
    pub fn heal(&self) {
        let mut state = self.shared.lock();
        state.faults.clear();
        state.delay = Duration::ZERO;
    }

    pub fn endpoint(&self, name: &str) -> Option<HeldRegistry> {
        self.shared.lock().registries.values().find(|one| one.name == name).cloned()
    }

    pub fn endpoints(&self) -> Vec<HeldRegistry> {
        self.shared.lock().registries.values().cloned().collect()
    }

    /// Puts an endpoint there, as a person would, and returns its number.
    pub fn hold_endpoint(&self, name: &str, url: &str, change: impl FnOnce(&mut HeldRegistry)) -> i64 {
        self.shared.lock().hold_registry(name, url, change)
    }

    /// Changes an endpoint, as a person would.
    pub fn edit_endpoint(&self, name: &str, change: impl FnOnce(&mut HeldRegistry)) {
        if let Some(one) = self.shared.lock().registries.values_mut().find(|one| one.name == name) {
            change(one);
        }
    }

    pub fn project(&self, name: &str) -> Option<HeldProject> {
        self.shared.lock().project(name).cloned()
    }

    pub fn hold_project(&self, name: &str, registry: Option<i64>, public: bool) -> i64 {
        self.shared.lock().hold_project(name, registry, public)
    }

    pub fn edit_project(&self, name: &str, change: impl FnOnce(&mut HeldProject)) {
        if let Some(one) =
            self.shared.lock().projects.values_mut().find(|one| !one.deleted && one.name == name)
        {
            change(one);
        }
    }

    /// Puts a repository into a project, as a pull does.
    pub fn hold_repository(&self, project: &str, name: &str) {
        self.shared.lock().hold_repository(project, name);
    }

    /// A pull whose record appears only after the repositories of the project were listed once.
    pub fn hold_late_repository(&self, project: &str, name: &str) {
        self.shared.lock().late.push((project.to_owned(), name.to_owned()));
    }

    /// Repositories of a project, without its name.
    pub fn repositories(&self, project: &str) -> Vec<String> {
        let state = self.shared.lock();
        let names = state.repositories.values().filter(|one| one.project == project);
        names.map(|one| one.name.clone()).collect()
    }

    /// Whether a replication policy refers to an endpoint, which then cannot be deleted.
    pub fn replicate(&self, endpoint: i64, refers: bool) {
        let mut state = self.shared.lock();
        if refers {
            state.replicated.insert(endpoint);
        } else {
            state.replicated.remove(&endpoint);
        }
    }

    /// Whether a rule keeps the tags of a repository, which then cannot be deleted.
    pub fn keep_repository(&self, project: &str, name: &str, keeps: bool) {
        let (mut state, key) = (self.shared.lock(), (project.to_owned(), name.to_owned()));
        if keeps {
            state.immutable.insert(key);
        } else {
            state.immutable.remove(&key);
        }
    }

    /// Whether Harbor's job service is gone, without which no proxy project can be made.
    pub fn lose_jobs(&self, gone: bool) {
        self.shared.lock().jobs_are_down = gone;
    }

    /// Every request since the start or the last [`Self::forget_requests`].
    pub fn requests(&self) -> Vec<Logged> {
        self.shared.lock().log.clone()
    }

    /// How many requests have come and are not answered yet.
    pub fn pending(&self) -> usize {
        self.shared.lock().pending
    }

    /// Requests that would change something.
    pub fn writes(&self) -> Vec<Logged> {
        let mut all = self.requests();
        all.retain(|request| request.method != "GET" && request.method != "HEAD");
        all
    }

    pub fn forget_requests(&self) {
        self.shared.lock().log.clear();
    }
}

impl Drop for FakeHarbor {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
