//! On whose behalf an image is looked at, and what the answers come to.

use fairlead_domain::cause::Cause;

use super::*;
use crate::credentials::Principal;
use crate::usage::Holder;

fn look(principal: &Principal) -> MirrorLook {
    MirrorLook {
        reference: reference(NGINX),
        last: at(0),
        holders: Arc::default(),
        access: Arc::new(LookAccess { principal: principal.clone(), secret: None, cause: principal.cause() }),
    }
}

fn namespace(number: usize) -> Principal {
    Principal::Namespace(format!("team-{number:02}").into())
}

#[test]
fn each_principal_asks_for_itself_and_all_have_their_turn() {
    let many = 3 * MOST_PRINCIPALS;
    let looks = std::iter::once(Principal::Cluster).chain((0..many).map(namespace));
    let mirrors = MirrorLooks::new(looks.map(|principal| look(&principal)).collect());
    let mut asked = std::collections::BTreeSet::new();
    for round in 0..4 {
        let question = question(&reference(NGINX), Cause::Tenant, [], &mirrors, round);
        assert!(question.partial && question.wishes.len() == MOST_PRINCIPALS);
        assert_eq!(question.wishes[0].principal, Principal::Cluster, "never left out");
        asked.extend(question.wishes.into_iter().map(|wish| wish.principal));
    }
    assert_eq!(asked.len(), many + 1);
}

#[test]
fn watchers_and_cluster_scoped_mirrors_share_a_wish() {
    let holder = |pod: &str| Holder {
        namespace: "shop".into(),
        pull_secrets: ["pull".into()].into(),
        pod: pod.into(),
    };
    let (one, two) = ([holder("a")], [holder("b")]);
    let mirrors = MirrorLooks::new(vec![look(&Principal::Cluster)]);
    let question = question(&reference(NGINX), Cause::Tenant, [&one[..], &two[..]], &mirrors, 0);
    let [wish] = &*question.wishes else { panic!("{question:?}") };
    assert_eq!((wish.cause, wish.for_mirror), (Cause::Administrator, true));
    assert_eq!(wish.holders, one, "the same pull secrets are tried once");
}

#[test]
fn an_image_is_missing_only_if_no_login_gets_to_see_it() {
    let (there, missing) = (Verdict::Available { digest: None }, Verdict::NotFound { reason: "no".into() });
    let refused = Verdict::Unauthorised { reason: "who".into() };
    let silent = Verdict::Unreachable { reason: "away".into() };
    let sum_up = |answers: &[&Verdict]| {
        let answers = answers.iter().map(|verdict| (*verdict).clone()).collect();
        Looked::sum_up(answers, Some("Secret a/b does not exist".to_owned()))
    };
    assert_eq!(sum_up(&[]), None);
    for (answers, verdict, problem, complete) in [
        (&[&missing, &there][..], &there, false, true),
        (&[&refused, &there], &there, true, true),
        (&[&refused, &missing, &refused], &missing, false, false),
        (&[&refused, &refused], &refused, true, false),
        (&[&refused, &silent], &silent, true, false),
    ] {
        let looked = sum_up(answers).unwrap();
        let found = (&looked.verdict, looked.secret_problem.is_some(), looked.complete);
        assert_eq!(found, (verdict, problem, complete), "{answers:?}");
    }
}

#[test]
fn a_registry_that_was_not_asked_says_nothing_about_the_image() {
    let silent = Verdict::Unreachable { reason: "timed out".into() };
    assert_eq!(about_image(silent.clone(), true), silent);
    assert_eq!(about_image(silent, false), Verdict::Unknown { reason: "timed out".into() });
    let gone = Verdict::NotFound { reason: "404".into() };
    assert_eq!(about_image(gone.clone(), false), gone);
}
