use std::time::SystemTime;

use fairlead_domain::verdict::VerdictKind;

use super::*;

use Availability::{
    Available, InvalidAuth, NotFound, QuotaExceeded, Scheduled, UnavailableSecret, Unreachable,
};

fn verdict(kind: VerdictKind) -> Verdict {
    let reason: Arc<str> = "so it is".into();
    match kind {
        VerdictKind::Available => Verdict::Available { digest: None },
        VerdictKind::NotFound => Verdict::NotFound { reason },
        VerdictKind::Unauthorised => Verdict::Unauthorised { reason },
        VerdictKind::Forbidden => Verdict::Forbidden { reason },
        VerdictKind::RateLimited => Verdict::RateLimited { until: None, reason },
        VerdictKind::Unreachable => Verdict::Unreachable { reason },
        VerdictKind::TlsError => Verdict::TlsError { reason },
        VerdictKind::Malformed => Verdict::Malformed { reason },
        VerdictKind::OffLimits => Verdict::OffLimits { reason },
        VerdictKind::FailsOnNodes => Verdict::FailsOnNodes { reason },
        VerdictKind::Unknown => Verdict::Unknown { reason },
    }
}

fn state_after(kind: VerdictKind, problem: Option<&str>) -> (Availability, String) {
    let mut ledger = ledger_with(&[(NGINX, Scheduled, None)]);
    enter_note(&mut ledger, &reference(NGINX), &verdict(kind), problem, at(7));
    let watch = watch(&ledger, NGINX);
    assert_eq!(watch.last_monitor, Some(at(7)));
    assert!(watch.original, "a look changes nothing about who uses it");
    (watch.status, watch.last_error.as_deref().unwrap_or_default().to_owned())
}

#[test]
fn every_verdict_has_its_state() {
    let problem = "Secret web/regcred does not exist";
    let without = format!("{problem}; asked without it, the registry says ");
    for (kind, plain, with_problem) in [
        (VerdictKind::Available, Available, Available),
        (VerdictKind::NotFound, NotFound, UnavailableSecret),
        (VerdictKind::Unauthorised, InvalidAuth, UnavailableSecret),
        (VerdictKind::Forbidden, InvalidAuth, UnavailableSecret),
        (VerdictKind::RateLimited, QuotaExceeded, QuotaExceeded),
        (VerdictKind::Unreachable, Unreachable, Unreachable),
        (VerdictKind::TlsError, Unreachable, Unreachable),
        (VerdictKind::Malformed, Unreachable, Unreachable),
        (VerdictKind::OffLimits, Scheduled, Scheduled),
        (VerdictKind::FailsOnNodes, Scheduled, Scheduled),
        (VerdictKind::Unknown, Scheduled, Scheduled),
    ] {
        let reason = if kind == VerdictKind::Available { "" } else { "so it is" };
        assert_eq!(state_after(kind, None), (plain, reason.to_owned()), "{kind}");
        let (state, error) = state_after(kind, Some(problem));
        assert_eq!(state, with_problem, "{kind}");
        let expected = match state {
            UnavailableSecret => format!("{without}{kind}: so it is"),
            _ => reason.to_owned(),
        };
        assert_eq!(error, expected, "{kind}");
    }
}

#[test]
fn a_secret_that_was_missing_once_is_not_held_against_later_looks() {
    let mut ledger = ledger_with(&[(NGINX, Available, None)]);
    let mut states = Vec::new();
    for (kind, problem) in [
        (VerdictKind::Unauthorised, Some("Secret web/regcred does not exist")),
        (VerdictKind::Unauthorised, None),
        (VerdictKind::Available, None),
    ] {
        enter_note(&mut ledger, &reference(NGINX), &verdict(kind), problem, at(1));
        states.push(watch(&ledger, NGINX).status);
    }
    assert_eq!(states, [UnavailableSecret, InvalidAuth, Available]);
    assert_eq!(watch(&ledger, NGINX).last_error, None);
}

#[test]
fn only_the_loss_and_the_return_of_an_image_are_news_and_each_once() {
    use VerdictKind as Kind;
    let mut ledger = ledger_with(&[(NGINX, Scheduled, None)]);
    let lost = |was| Some(News::Disappeared { was });
    for (number, (kind, news)) in [
        (Kind::Available, None),
        (Kind::NotFound, lost(Available)),
        (Kind::NotFound, None),
        (Kind::Unknown, None),
        (Kind::Available, Some(News::Returned)),
        (Kind::Available, None),
        (Kind::Unreachable, None),
        (Kind::RateLimited, None),
        (Kind::Forbidden, None),
        (Kind::Available, None),
        (Kind::Unreachable, None),
        (Kind::NotFound, lost(Unreachable)),
    ]
    .into_iter()
    .enumerate()
    {
        let told = enter_note(&mut ledger, &reference(NGINX), &verdict(kind), None, at(0));
        assert_eq!(told, news, "look {number}: {kind}");
    }
    let problem = Some("Secret web/regcred does not exist");
    assert_eq!(
        enter_note(&mut ledger, &reference(NGINX), &verdict(Kind::Available), None, at(0)),
        Some(News::Returned)
    );
    assert_eq!(enter_note(&mut ledger, &reference(NGINX), &verdict(Kind::NotFound), problem, at(0)), None);
}

#[test]
fn an_image_that_was_never_there_is_news_too() {
    let mut ledger = ledger_with(&[(NGINX, Scheduled, None)]);
    let news = enter_note(&mut ledger, &reference(NGINX), &verdict(VerdictKind::NotFound), None, at(0));
    assert_eq!(news, Some(News::Disappeared { was: Scheduled }));
}

#[test]
fn a_look_at_an_image_that_was_dropped_meanwhile_says_nothing() {
    let mut ledger = ledger();
    assert_eq!(
        enter_note(&mut ledger, &reference(NGINX), &verdict(VerdictKind::NotFound), None, at(0)),
        None
    );
    assert!(ledger.is_empty());
}

#[test]
fn only_what_the_registry_does_counts_for_its_pace() {
    for kind in VerdictKind::ALL {
        let expected = match kind {
            VerdictKind::RateLimited
            | VerdictKind::Unreachable
            | VerdictKind::TlsError
            | VerdictKind::Malformed => RegistryAnswer::Failed,
            _ => RegistryAnswer::Fine,
        };
        assert_eq!(RegistryAnswer::from(&verdict(kind)), expected, "{kind}");
    }
    let until = SystemTime::UNIX_EPOCH + Duration::from_secs(1_750_000_090);
    let limited = Verdict::RateLimited { until: Some(until), reason: "".into() };
    assert_eq!(RegistryAnswer::from(&limited), RegistryAnswer::Until(at(90)));
}
