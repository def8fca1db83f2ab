//! One look at what Harbor holds for an object: observe, plan, act, until there is nothing left to do.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fairlead_api::reef::ProxyCache;
use fairlead_domain::harbor::Endpoint;
use fairlead_harbor::{Class, EndpointUpdate, Error, Harbor, NewEndpoint};
use fairlead_plan::cache::{
    Action, CacheObject, DeletedCache, Desired, Facts, Finalization, Mark, Observed, Outcome, Pair, Plan,
    Removal, Seen, UpstreamLogin, finalization, is_former, plan,
};
use jiff::Timestamp;

use super::access::Access;
use crate::platform::leader::Term;

/// Steps of one look. A pair takes five; more are needed only while something else changes it.
const STEPS: usize = 10;

/// What a look is about.
pub(super) struct Look {
    pub(super) access: Arc<Access>,
    pub(super) term: Term,
    pub(super) object: Arc<ProxyCache>,
    pub(super) mark: Mark,
    pub(super) desired: Arc<Desired>,
    /// Other objects of the cluster that stand for the same pair.
    pub(super) siblings: BTreeSet<String>,
    /// Hash of the login that Harbor took in this term.
    pub(super) taken: Option<u64>,
    /// Harbor is known to hold nothing under a former name of the object.
    pub(super) is_complete: bool,
    /// Nothing is removed.
    pub(super) retain: bool,
}

/// What a look came to.
pub(super) struct Looked {
    /// Of the object that was looked at.
    pub(super) generation: Option<i64>,
    pub(super) outcome: Outcome,
    /// Hash of the login that Harbor has now.
    pub(super) taken: Option<u64>,
    /// What was changed in Harbor.
    pub(super) done: Vec<String>,
}

/// What an attempt to remove everything came to.
pub(super) enum Removed {
    /// The object may go.
    Done {
        left: Option<String>,
    },
    Failed(String),
}

/// What the end of an object depends on besides.
pub(super) struct Deleted {
    pub(super) failing: Option<String>,
    pub(super) deletion: Timestamp,
    pub(super) now: Timestamp,
}

/// The term is over: another replica may act by now.
const TERM_OVER: &str = "this replica does not lead any more";

impl Look {
    pub(super) async fn take(mut self) -> Looked {
        let mut done = Vec::new();
        let outcome = self.outcome(&mut done).await.unwrap_or_else(Outcome::Failed);
        Looked { generation: self.object.metadata.generation, outcome, taken: self.taken, done }
    }

    async fn outcome(&mut self, done: &mut Vec<String>) -> Result<Outcome, String> {
        let harbor = self.access.harbor().await?;
        let login = match &self.desired.secret {
            None => Ok(None),
            Some(keys) => self.access.upstream(keys).await.map(Some),
        };
        let (mut refused, mut failed, mut pushed) = (None, None, None);
        let (mut rejected, mut was_taken, mut former) = (false, None, BTreeMap::new());
        let mut tested = false;
        for step in 0.. {
            let observed = self.observe(&harbor).await?;
            let known = login.as_ref().map(Option::as_ref).map_err(String::as_str);
            let plan = self.plan(&observed, known, tested);
            let is_open = |action: &&Action| match action {
                Action::UpdateEndpoint { .. } => refused.is_none(),
                Action::RemoveFormer(pair) => !former.contains_key(&pair.endpoint.name),
                Action::CreateEndpoint | Action::CreateProject { .. } | Action::SetVisibility { .. } => true,
            };
            let next = plan.actions.iter().find(is_open).filter(|_| failed.is_none()).cloned();
            let Some(action) = next else {
                let former: Vec<_> = former.into_values().collect();
                let former = (!former.is_empty()).then(|| former.join("; "));
                let seen = Seen { observed, plan, failed, former, refused, rejected, taken: pushed };
                return Ok(Outcome::Seen(Box::new(seen)));
            };
            if step == STEPS {
                failed = Some(not_kept(&action));
                continue;
            }
            let known = known.ok().flatten();
            match (self.act(&harbor, &action, known).await, &action) {
                (Ok(()), _) => {
                    if matches!(action, Action::CreateEndpoint | Action::UpdateEndpoint { .. }) {
                        self.taken = known.map(|login| login.hash);
                        pushed = known.map(|login| login.version.clone());
                        tested = true;
                    }
                    done.push(action.to_string());
                }
                // The next plan leaves it where it is.
                (Err(Trouble::Wanted { .. }), _) => {}
                // What the object asks for is there without that.
                (Err(error), Action::RemoveFormer(pair)) => {
                    former.insert(pair.endpoint.name.clone(), error.to_string());
                }
                // Another client was faster; the next observation shows what it made. If it does not, Harbor holds
                // something that it does not show.
                (Err(error), action) if error.class() == Some(Class::Taken) => {
                    if was_taken.as_ref() == Some(action) {
                        failed = Some(not_kept(action));
                    }
                    was_taken = Some(action.clone());
                }
                (Err(error), action) if error.is_refusal_of(action) => refused = Some(error.to_string()),
                (Err(error), _) => {
                    rejected = error.class() == Some(Class::Rejected) && action == Action::CreateEndpoint;
                    failed = Some(error.to_string());
                }
            }
        }
        Err("a look has no end".to_owned())
    }

    async fn observe(&self, harbor: &Arc<Harbor>) -> Result<Observed, String> {
        let noted = |error: Error| {
            self.access.note(harbor, &error);
            error.to_string()
        };
        let name = &self.desired.name;
        let mut former = Vec::new();
        let endpoint = if self.retain || self.is_complete {
            harbor.endpoint(name).await.map_err(noted)?
        } else {
            let all = harbor.endpoints(name).await.map_err(noted)?;
            for endpoint in all.iter().filter(|one| is_former(one, name, &self.mark)) {
                former.push(pair(harbor, endpoint.clone()).await.map_err(noted)?);
            }
            all.into_iter().find(|endpoint| endpoint.name == *name)
        };
        let project = harbor.project(name).await.map_err(noted)?;
        Ok(Observed { endpoint, project, former })
    }

    fn plan(&self, observed: &Observed, login: Result<Option<&UpstreamLogin>, &str>, tested: bool) -> Plan {
        let stands_for_it = |name: &str| self.siblings.contains(name);
        let wanted_by = |pair: &str| self.wanted_by(pair);
        let object = self.planned_for(&stands_for_it, &wanted_by);
        let Self { desired, taken, retain, .. } = self;
        plan(&Facts { object, desired, observed, login, taken: *taken, tested, retain: *retain })
    }

    fn planned_for<'a>(
        &'a self,
        stands_for_it: &'a dyn Fn(&str) -> bool,
        wanted_by: &'a dyn Fn(&str) -> Option<String>,
    ) -> CacheObject<'a> {
        CacheObject { mark: &self.mark, status: self.object.status.as_ref(), stands_for_it, wanted_by }
    }

    /// Another object that asks for a pair.
    fn wanted_by(&self, pair: &str) -> Option<String> {
        self.access.wanted_by(pair, &self.mark.name)
    }

    async fn act(
        &self,
        harbor: &Harbor,
        action: &Action,
        login: Option<&UpstreamLogin>,
    ) -> Result<(), Trouble> {
        if !self.term.holds() {
            return Err(Trouble::TermOver);
        }
        let Desired { name, adapter, url, public, .. } = &*self.desired;
        let login = login.map(|known| known.login.clone());
        match action {
            Action::CreateEndpoint => {
                let (name, adapter, url) = (name.clone(), (*adapter).to_owned(), url.clone());
                let description = self.mark.to_string();
                harbor.create_endpoint(&NewEndpoint { name, adapter, url, login, description }).await?;
            }
            Action::UpdateEndpoint { id, description, .. } => {
                let (url, description) = (url.clone(), description.clone());
                harbor.update_endpoint(*id, &EndpointUpdate { url, login, description }).await?;
            }
            Action::CreateProject { endpoint } => harbor.create_project(name, *endpoint, *public).await?,
            Action::SetVisibility { public } => harbor.set_visibility(name, *public).await?,
            Action::RemoveFormer(pair) => self.remove(harbor, &pair.removals()).await?,
        }
        Ok(())
    }

    async fn remove(&self, harbor: &Harbor, removals: &[Removal]) -> Result<(), Trouble> {
        for removal in removals {
            self.may_remove(removal)?;
            match removal {
                Removal::Repositories { project } => {
                    for repository in harbor.repositories(project).await? {
                        self.may_remove(removal)?;
                        harbor.delete_repository(project, &repository).await?;
                    }
                }
                Removal::Project { name } => drop(harbor.delete_project(name).await?),
                Removal::Endpoint { id, .. } => drop(harbor.delete_endpoint(*id).await?),
            }
        }
        Ok(())
    }

    /// Objects may come to ask for a pair after it was decided to remove it.
    fn may_remove(&self, removal: &Removal) -> Result<(), Trouble> {
        if !self.term.holds() {
            return Err(Trouble::TermOver);
        }
        let pair = removal.pair();
        self.wanted_by(pair).map_or(Ok(()), |by| Err(Trouble::Wanted { pair: pair.to_owned(), by }))
    }

    /// Removes what goes with a deleted object.
    pub(super) async fn remove_pair(self, deleted: Deleted) -> Removed {
        match self.finalization(&deleted, None) {
            Finalization::Done { left } => return Removed::Done { left },
            Finalization::Look | Finalization::Remove { .. } => {}
        }
        self.remove_all(&deleted).await.unwrap_or_else(Removed::Failed)
    }

    async fn remove_all(&self, deleted: &Deleted) -> Result<Removed, String> {
        if self.access.is_unconfigured() {
            return Err(
                "no Harbor is configured: set harbor.url in the configuration, or HARBOR_URL".to_owned()
            );
        }
        let harbor = self.access.harbor().await?;
        let observed = self.observe(&harbor).await?;
        let (removals, left) = match self.finalization(deleted, Some(&observed)) {
            Finalization::Done { left } => return Ok(Removed::Done { left }),
            Finalization::Look => return Err("Harbor could not be looked at".to_owned()),
            Finalization::Remove { removals, left } => (removals, left),
        };
        self.remove(&harbor, &removals).await.map_err(|error| error.to_string())?;
        Ok(Removed::Done { left })
    }

    fn finalization(&self, deleted: &Deleted, observed: Option<&Observed>) -> Finalization {
        let stands_for_it = |name: &str| self.siblings.contains(name);
        let wanted_by = |pair: &str| self.wanted_by(pair);
        finalization(&DeletedCache {
            object: self.planned_for(&stands_for_it, &wanted_by),
            name: &self.desired.name,
            retain: self.retain,
            observed,
            failing: deleted.failing.as_deref(),
            deletion: deleted.deletion,
            now: deleted.now,
        })
    }
}

fn not_kept(next: &Action) -> String {
    format!("Harbor does not keep what is written: the next step is to {next}")
}

async fn pair(harbor: &Harbor, endpoint: Endpoint) -> Result<Pair, Error> {
    let project = harbor.project(&endpoint.name).await?;
    Ok(Pair { endpoint, project })
}

/// Why a step did not succeed.
#[derive(Debug, thiserror::Error)]
enum Trouble {
    #[error("{TERM_OVER}")]
    TermOver,
    #[error("endpoint and project {pair} stay: ProxyCache {by} asks for them now")]
    Wanted { pair: String, by: String },
    #[error(transparent)]
    Harbor(#[from] Error),
}

impl Trouble {
    fn class(&self) -> Option<Class> {
        match self {
            Self::TermOver | Self::Wanted { .. } => None,
            Self::Harbor(error) => Some(error.class()),
        }
    }

    /// Whether Harbor tested an upstream and keeps the endpoint as it was.
    fn is_refusal_of(&self, action: &Action) -> bool {
        self.class() == Some(Class::Rejected) && matches!(action, Action::UpdateEndpoint { .. })
    }
}
