//! The next step towards what an object asks for, or why there is none.

use std::fmt;

use fairlead_domain::harbor::{Endpoint, Health, Project};

use super::desired::Desired;
use super::ownership::{CacheObject, Ownership, ownership};
use super::{Observed, Pair, UpstreamLogin};

/// What a step is decided on.
#[derive(Clone, Copy)]
#[allow(missing_debug_implementations, reason = "a function has no form to print")]
pub struct Facts<'a> {
    pub object: CacheObject<'a>,
    pub desired: &'a Desired,
    pub observed: &'a Observed,
    /// The login of the upstream, none if it needs none, or why it is not known.
    pub login: Result<Option<&'a UpstreamLogin>, &'a str>,
    /// Hash of the login that Harbor took in this term.
    pub taken: Option<u64>,
    /// The endpoint was written in this look, so Harbor has just tested it.
    pub tested: bool,
    /// Pairs of former names stay.
    pub retain: bool,
}

/// One step, with its reasons.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    CreateEndpoint,
    UpdateEndpoint {
        id: i64,
        drifts: Vec<Drift>,
        description: String,
    },
    CreateProject {
        endpoint: i64,
    },
    SetVisibility {
        public: bool,
    },
    /// The object has another name now.
    RemoveFormer(Box<Pair>),
}

/// Why an endpoint is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drift {
    Url,
    User,
    /// The Secret holds another password than Harbor took.
    Password,
    Insecure,
    /// It does not say whose it is.
    Mark,
    /// Harbor says that the upstream cannot be reached: what it has may not be what it was given.
    Unhealthy,
}

/// Why an object cannot be as it asks to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem(pub String);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    pub ownership: Ownership,
    /// In order; each is planned anew when the one before it is done.
    pub actions: Vec<Action>,
    pub problem: Option<Problem>,
}

/// What to do next. Objects of others are compared and never changed.
pub fn plan(facts: &Facts<'_>) -> Plan {
    let ownership = ownership(facts.observed.endpoint.as_ref(), facts.object);
    let (mut actions, mut problem) = match (&ownership, &facts.observed.endpoint) {
        (Ownership::Absent, _) | (_, None) => create(facts),
        (Ownership::Foreign(_), Some(endpoint)) => (Vec::new(), differences(facts, endpoint, &ownership)),
        (Ownership::Ours | Ownership::Adoptable, Some(endpoint)) => keep(facts, endpoint),
    };
    if let (Err(missing), true, None) = (facts.login, ownership != Ownership::Absent, &problem) {
        problem = Some(Problem(missing.to_owned()));
    }
    // The new pair comes first, so that nothing is without a cache for longer than it takes to be cached anew.
    if problem.is_none() && actions.is_empty() && !facts.retain {
        actions.extend(former_to_remove(facts));
    }
    Plan { ownership, actions, problem }
}

fn create(facts: &Facts<'_>) -> (Vec<Action>, Option<Problem>) {
    if let Some(project) = &facts.observed.project {
        return (Vec::new(), Some(Problem(of_project(project, &facts.desired.name))));
    }
    match facts.login {
        Err(missing) => (Vec::new(), Some(Problem(missing.to_owned()))),
        Ok(_) => (vec![Action::CreateEndpoint], None),
    }
}

fn keep(facts: &Facts<'_>, endpoint: &Endpoint) -> (Vec<Action>, Option<Problem>) {
    let Facts { desired, observed, .. } = facts;
    if endpoint.adapter != desired.adapter {
        let problem = format!(
            "endpoint {} has type {} and should have {}, which Harbor cannot change: give spec.name another value, or \
             delete this object and create it again",
            desired.name, endpoint.adapter, desired.adapter
        );
        return (Vec::new(), Some(Problem(problem)));
    }
    let mut actions = Vec::new();
    let drifts = drifts(facts, endpoint);
    if !drifts.is_empty() && facts.login.is_ok() {
        let description = facts.object.mark.put_into(&endpoint.description);
        actions.push(Action::UpdateEndpoint { id: endpoint.id, drifts, description });
    }
    let mut problem = None;
    match &observed.project {
        None => actions.push(Action::CreateProject { endpoint: endpoint.id }),
        Some(project) if project.endpoint != Some(endpoint.id) => {
            problem = Some(Problem(of_project(project, &desired.name)));
        }
        Some(project) if project.public != desired.public => {
            actions.push(Action::SetVisibility { public: desired.public });
        }
        Some(_) => {}
    }
    (actions, problem)
}

fn drifts(facts: &Facts<'_>, endpoint: &Endpoint) -> Vec<Drift> {
    let Facts { desired, object, tested, .. } = facts;
    let login = facts.login.ok().flatten();
    let found = [
        (endpoint.url != desired.url, Drift::Url),
        (endpoint.access_key.as_deref() != login.map(|login| &*login.login.user), Drift::User),
        (login.is_some_and(|login| !is_taken(login, facts)), Drift::Password),
        (endpoint.insecure, Drift::Insecure),
        (object.mark.put_into(&endpoint.description) != endpoint.description, Drift::Mark),
        // What Harbor says after a test is its last word for now: the same values would be tested alike.
        (endpoint.health != Health::Healthy && !tested, Drift::Unhealthy),
    ];
    found.into_iter().filter(|(drifted, _)| *drifted).map(|(_, drift)| drift).collect()
}

/// Whether Harbor has taken this password. Another version of the Secret may hold the same one.
fn is_taken(login: &UpstreamLogin, facts: &Facts<'_>) -> bool {
    let stored = facts.object.status.and_then(|status| status.credentials_version.as_deref());
    stored == Some(&*login.version) || facts.taken == Some(login.hash)
}

/// In what a pair of others differs from what the object asks for.
fn differences(facts: &Facts<'_>, endpoint: &Endpoint, ownership: &Ownership) -> Option<Problem> {
    let Facts { desired, observed, .. } = facts;
    let mut found = Vec::new();
    let mut compare = |what: &str, is: &str, should: &str| {
        if is != should {
            found.push(format!("{what} is {is} and should be {should}"));
        }
    };
    compare("the endpoint's type", &endpoint.adapter, desired.adapter);
    compare("its address", &endpoint.url, &desired.url);
    if let Ok(login) = facts.login {
        let user =
            |user: Option<&str>| user.map_or_else(|| "no user".to_owned(), |user| format!("user {user}"));
        let wanted = user(login.map(|login| &*login.login.user));
        compare("its login", &user(endpoint.access_key.as_deref()), &wanted);
    }
    match &observed.project {
        None => found.push("there is no project of this name".to_owned()),
        Some(project) if project.endpoint != Some(endpoint.id) => {
            found.push("the project of this name does not serve from it".to_owned());
        }
        Some(project) => {
            let word = |public: bool| if public { "public" } else { "private" };
            compare("the project", word(project.public), word(desired.public));
        }
    }
    (!found.is_empty()).then(|| {
        Problem(format!(
            "Harbor has an endpoint named {}, and {ownership}: {}; give spec.name another value, or remove what is there",
            desired.name,
            found.join("; ")
        ))
    })
}

fn of_project(project: &Project, name: &str) -> String {
    let what = match project.endpoint {
        None => "is not a proxy cache".to_owned(),
        Some(endpoint) => format!("serves from endpoint {endpoint}"),
    };
    format!(
        "Harbor has a project named {name} that {what}, which cannot be changed: give spec.name another value, or remove \
         the project"
    )
}

/// Pairs of former names that no other object asks for. Where one does, it takes the pair over.
fn former_to_remove(facts: &Facts<'_>) -> impl Iterator<Item = Action> {
    let former = facts.observed.former.iter();
    let unwanted = former.filter(|pair| (facts.object.wanted_by)(&pair.endpoint.name).is_none());
    unwanted.map(|pair| Action::RemoveFormer(Box::new(pair.clone())))
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Url => "another address",
            Self::User => "another user",
            Self::Password => "another version of the Secret",
            Self::Insecure => "certificates were not checked",
            Self::Mark => "not marked yet",
            Self::Unhealthy => "unhealthy",
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CreateEndpoint => f.write_str("create the endpoint"),
            Self::UpdateEndpoint { drifts, .. } => {
                let why: Vec<_> = drifts.iter().map(ToString::to_string).collect();
                write!(f, "update the endpoint ({})", why.join(", "))
            }
            Self::CreateProject { .. } => f.write_str("create the project"),
            Self::SetVisibility { public: true } => f.write_str("make the project public"),
            Self::SetVisibility { public: false } => f.write_str("make the project private"),
            Self::RemoveFormer(pair) => write!(f, "remove {}, the former name", pair.endpoint.name),
        }
    }
}
