//! Whatever Harbor holds: steps lead to an end, a second look finds nothing to do, and what belongs to others stays.

use proptest::prelude::*;

use super::*;

/// Steps of one look, at most; the operator allows a few more.
const STEPS: usize = 6;

/// Harbor, as far as a pair is concerned. Passwords are not shown to the planner.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Model {
    observed: Observed,
    password: Option<String>,
    /// The upstream takes this password only.
    accepts: String,
}

impl Model {
    /// Carries an action out as Harbor would. `Err`: it refuses.
    fn carry_out(
        &mut self,
        action: &Action,
        desired: &Desired,
        login: Option<&UpstreamLogin>,
    ) -> Result<(), ()> {
        let password = login.map(|login| login.login.password.clone());
        let reached = password.as_ref().is_none_or(|password| *password == self.accepts);
        let Observed { endpoint, project, former } = &mut self.observed;
        match action {
            Action::CreateEndpoint | Action::UpdateEndpoint { .. } if !reached => return Err(()),
            Action::CreateEndpoint => {
                *endpoint = Some(super::endpoint(|one| {
                    one.id = 77;
                    desired.url.clone_into(&mut one.url);
                    one.access_key = login.map(|login| login.login.user.clone());
                }));
                self.password = password;
            }
            Action::UpdateEndpoint { id, description, .. } => {
                let one = endpoint.as_mut().filter(|one| one.id == *id).ok_or(())?;
                desired.url.clone_into(&mut one.url);
                one.access_key = login.map(|login| login.login.user.clone());
                description.clone_into(&mut one.description);
                (one.insecure, one.health) = (false, Health::Healthy);
                self.password = password;
            }
            Action::CreateProject { endpoint } => {
                *project = Some(super::project(Some(*endpoint), desired.public));
            }
            Action::SetVisibility { public } => project.as_mut().ok_or(())?.public = *public,
            Action::RemoveFormer(gone) => former.retain(|one| one != &**gone),
        }
        Ok(())
    }
}

fn any_endpoint() -> impl Strategy<Value = Endpoint> {
    let descriptions = prop_oneof![
        Just(String::new()),
        Just(mark().to_string()),
        Just("Managed by Fairlead: cluster c2, ProxyCache cache".to_owned()),
        Just("Managed by Fairlead: cluster c1, ProxyCache twin".to_owned()),
        Just("Managed by Fairlead: cluster c1, ProxyCache gone".to_owned()),
    ];
    let urls = prop_oneof![Just(QUAY), Just("https://other.example")];
    let adapters = prop_oneof![4 => Just("docker-registry"), 1 => Just("aws-ecr")];
    let health = prop_oneof![Just(Health::Healthy), Just(Health::Unhealthy), Just(Health::Unknown)];
    let user = proptest::option::of(prop_oneof![Just("robot"), Just("person")]);
    (descriptions, urls, adapters, health, user, any::<bool>()).prop_map(
        |(description, url, adapter, health, user, insecure)| {
            endpoint(|one| {
                one.description = description;
                url.clone_into(&mut one.url);
                adapter.clone_into(&mut one.adapter);
                (one.health, one.insecure) = (health, insecure);
                one.access_key = user.map(str::to_owned);
            })
        },
    )
}

fn any_model() -> impl Strategy<Value = Model> {
    let project = (prop_oneof![Just(None), Just(Some(5)), Just(Some(6))], any::<bool>())
        .prop_map(|(id, public)| project(id, public));
    let former = any_endpoint().prop_map(|mut endpoint| {
        (endpoint.id, endpoint.name, endpoint.description) = (3, "old".to_owned(), mark().to_string());
        Pair { endpoint, project: None }
    });
    let parts = (
        proptest::option::of(any_endpoint()),
        proptest::option::of(project),
        proptest::collection::vec(former, 0..2),
        prop_oneof![Just("one"), Just("two")],
    );
    parts.prop_map(|(endpoint, project, former, accepts)| Model {
        observed: Observed { endpoint, project, former },
        password: Some("before".to_owned()),
        accepts: accepts.to_owned(),
    })
}

/// One look: steps until there are none, or one is refused.
fn look(model: &mut Model, kind: &str, status: &ProxyCacheStatus, retain: bool) -> (Plan, bool, usize) {
    let (mark, desired, one) = (mark(), Desired::compile(&spec(kind)).unwrap(), login("one"));
    let login = (kind == "private").then_some(&one);
    let stands_for_it = |name: &str| name == "twin";
    let object =
        CacheObject { mark: &mark, status: Some(status), stands_for_it: &stands_for_it, wanted_by: &nobody };
    let (mut taken, mut tested, mut writes) = (None, false, 0);
    for _ in 0..STEPS {
        let observed = model.observed.clone();
        let (desired, observed) = (&desired, &observed);
        let facts = Facts { object, desired, observed, login: Ok(login), taken, tested, retain };
        let plan = plan(&facts);
        let Some(action) = plan.actions.first() else { return (plan, false, writes) };
        writes += 1;
        if model.carry_out(action, desired, login).is_err() {
            return (plan, true, writes);
        }
        if matches!(action, Action::CreateEndpoint | Action::UpdateEndpoint { .. }) {
            (taken, tested) = (login.map(|login| login.hash), true);
        }
    }
    panic!("no end: {model:?}")
}

proptest! {
    #[test]
    fn steps_end_and_a_second_look_writes_nothing(
        before in any_model(),
        private in any::<bool>(),
        status in prop_oneof![Just(None), Just(Some(5)), Just(Some(3))],
        retain in any::<bool>(),
    ) {
        let kind = if private { "private" } else { "public" };
        let status = ProxyCacheStatus { registry_id: status, ..ProxyCacheStatus::default() };
        let mut model = before.clone();
        let (plan, refused, writes) = look(&mut model, kind, &status, retain);
        if matches!(plan.ownership, Ownership::Foreign(_)) {
            prop_assert_eq!(&model.observed.endpoint, &before.observed.endpoint, "others' endpoints stay");
            prop_assert_eq!(&model.observed.project, &before.observed.project);
        }
        if let Some(project) = &before.observed.project
            && before.observed.endpoint.as_ref().map(|one| Some(one.id)) != Some(project.endpoint)
        {
            prop_assert_eq!(Some(project), model.observed.project.as_ref(), "others' projects stay");
        }
        if model.observed.former != before.observed.former {
            prop_assert!(!retain);
        }
        if refused || plan.problem.is_some() {
            return Ok(());
        }
        // As declared: the status of the first look is stored, and nothing is left to do.
        let endpoint = model.observed.endpoint.clone().unwrap();
        let project = model.observed.project.clone().unwrap();
        prop_assert_eq!((&*endpoint.url, project.endpoint, project.public), (QUAY, Some(endpoint.id), !private));
        let taken = (private && writes > 0).then(|| login("one").version);
        let seen = Seen {
            observed: model.observed.clone(), plan, failed: None, former: None, refused: None, rejected: false, taken,
        };
        let report = report(Some(&status), Some(1), &Outcome::Seen(Box::new(seen)), 0, Timestamp::UNIX_EPOCH);
        let conditions = merge(&[], &report.findings, Some(1), Timestamp::UNIX_EPOCH);
        let stored = ProxyCacheStatus { conditions, ..report.status };
        let (_, _, again) = look(&mut model, kind, &stored, retain);
        prop_assert_eq!(again, 0, "{:?}", model);
    }
}
