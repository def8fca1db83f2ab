//! Endpoints of which Harbor does not say that they are healthy.

use super::*;

/// Harbor may take the values and go on calling the endpoint unhealthy, or saying nothing of it.
#[test]
fn an_endpoint_that_stays_unhealthy_is_written_once_in_a_look() {
    let (mark, desired, one) = (mark(), Desired::compile(&spec("private")).unwrap(), login("one"));
    let status = taken("uid/one");
    let object =
        CacheObject { mark: &mark, status: Some(&status), stands_for_it: &|_| false, wanted_by: &nobody };
    for health in [Health::Unhealthy, Health::Unknown] {
        let observed = pair(endpoint(|one| one.health = health), Some(project(Some(5), false)));
        let planned = |tested| {
            let login = Ok(Some(&one));
            let (desired, observed) = (&desired, &observed);
            plan(&Facts { object, desired, observed, login, taken: None, tested, retain: false })
        };
        assert!(matches!(&*planned(false).actions, [Action::UpdateEndpoint { .. }]), "{health:?}");
        let plan = planned(true);
        assert_eq!((&*plan.actions, &plan.problem), (&[][..], &None), "{health:?}");
        let seen = Seen {
            observed: observed.clone(),
            plan,
            failed: None,
            former: None,
            refused: None,
            rejected: false,
            taken: None,
        };
        let report = report(Some(&status), Some(1), &Outcome::Seen(Box::new(seen)), 0, Timestamp::UNIX_EPOCH);
        assert_eq!(report.status.phase, Some(ProxyCachePhase::Ready), "it is as declared");
        assert_eq!(report.healthy, (health == Health::Unhealthy).then_some(false));
        assert_eq!(report.again, Duration::from_mins(5));
    }
}
