//! Accounts for programs, and what they may do.

use axum::http::Method;
use serde_json::json;

use super::http::{Answer, Call};
use super::state::{Robot, State};

/// Who calls.
#[derive(Debug, Clone)]
pub(super) enum Caller {
    Anonymous,
    Admin,
    Robot(Robot),
}

impl Caller {
    /// Whether the caller may do this. On 2.9.5 a robot with any right on the system has none on projects.
    pub(super) fn must(&self, kind: &str, resource: &str, action: &str) -> Result<(), Answer> {
        match self {
            Self::Anonymous => Err(Answer::error(401, "unauthorized")),
            Self::Admin => Ok(()),
            Self::Robot(Robot { name, access, .. }) => {
                let of_system = access.iter().any(|(kind, ..)| kind == "system");
                let wanted = (kind.to_owned(), resource.to_owned(), action.to_owned());
                if access.contains(&wanted) && (kind == "system" || !of_system) {
                    Ok(())
                } else {
                    // The message is the name of the caller, and nothing else.
                    Err(Answer::error(403, name.clone()))
                }
            }
        }
    }
}

pub(super) fn answer(state: &mut State, call: &Call) -> Answer {
    if call.method != Method::POST {
        return Answer::error(405, "method not allowed");
    }
    create(state, call).unwrap_or_else(|refusal| refusal)
}

fn create(state: &mut State, call: &Call) -> Result<Answer, Answer> {
    call.caller.must("system", "robot", "create")?;
    let body = call.json()?;
    let name = body.text("name").filter(|name| !name.is_empty());
    let name = format!("robot${}", name.ok_or_else(|| Answer::error(400, "bad robot name"))?);
    if state.robots.contains_key(&name) {
        return Err(Answer::error(409, format!("robot {name} already exists")));
    }
    let mut access = std::collections::BTreeSet::new();
    for permission in body.list("permissions") {
        let kind = permission["kind"].as_str().unwrap_or_default();
        for one in permission["access"].as_array().into_iter().flatten() {
            let text = |key: &str| one[key].as_str().unwrap_or_default().to_owned();
            access.insert((kind.to_owned(), text("resource"), text("action")));
        }
    }
    let (id, secret) = (state.robots.len() + 1, format!("secret-of-{}", state.robots.len() + 1));
    state.robots.insert(name.clone(), Robot { name: name.clone(), secret: secret.clone(), access });
    // This is the only answer that ever shows the secret.
    let mut answer = Answer::created(format!("/api/v2.0/robots/{id}"));
    answer.body = Some(json!({"id": id, "name": name, "secret": secret, "expires_at": -1}));
    Ok(answer)
}
