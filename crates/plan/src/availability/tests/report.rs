use fairlead_api::conditions::ConditionStatus;

use super::*;

use Availability::{
    Available, InvalidAuth, NotFound, QuotaExceeded, Scheduled, UnavailableSecret, Unreachable,
};

fn listed(report: &WatchReport) -> Vec<&str> {
    report.status.images.iter().map(|image| image.image.as_str()).collect()
}

fn counts(report: &WatchReport) -> [Option<u32>; 3] {
    [report.status.image_count, report.status.available_count, report.status.unavailable_count]
}

#[test]
fn what_is_wrong_comes_first() {
    let ledger = ledger_with(&[
        ("a.io/available:1", Available, None),
        ("b.io/unseen:1", Scheduled, None),
        ("c.io/gone-but-unused:1", NotFound, Some(at(0))),
        ("d.io/unreachable:1", Unreachable, None),
        ("e.io/gone:1", NotFound, None),
        ("f.io/denied:1", InvalidAuth, None),
    ]);
    let report = report(&ledger);
    assert_eq!(
        listed(&report),
        [
            "e.io/gone:1",
            "d.io/unreachable:1",
            "f.io/denied:1",
            "c.io/gone-but-unused:1",
            "b.io/unseen:1",
            "a.io/available:1"
        ]
    );
    assert_eq!(counts(&report), [Some(6), Some(1), Some(4)]);
    assert_eq!(report.ready.status, ConditionStatus::False);
    assert_eq!(report.ready.reason, "ImageNotFound");
    assert_eq!(
        report.ready.message,
        "4 of 6 images are not available: e.io/gone:1 is not in its registry: push it again, or let Pods use another \
         image (as the registry says); and 3 more"
    );
}

#[test]
fn a_status_lists_a_hundred_images_and_counts_all() {
    let mut ledger = ledger();
    for number in 0..250 {
        let status = if number % 50 == 49 { Unreachable } else { Available };
        let watch = Some(Box::new(Watch { status, ..Watch::default() }));
        ledger.insert(reference(&format!("quay.io/a/{number:03}:1")), Entry { watch, ..Entry::default() });
    }
    let report = report(&ledger);
    let listed = listed(&report);
    assert_eq!(listed.len(), 100);
    assert_eq!(listed[..2], ["quay.io/a/049:1", "quay.io/a/099:1"]);
    assert_eq!(listed[5..7], ["quay.io/a/000:1", "quay.io/a/001:1"]);
    assert_eq!(counts(&report), [Some(250), Some(245), Some(5)]);
}

#[test]
fn an_image_is_told_with_all_that_is_known() {
    let ledger = ledger_with(&[(QUAY, QuotaExceeded, Some(at(5)))]);
    let image = &report(&ledger).status.images[0];
    assert_eq!((image.image.as_str(), image.status, image.original), (QUAY, QuotaExceeded, true));
    assert_eq!(image.last_error, "as the registry says");
    assert_eq!(image.last_monitor.as_ref().unwrap().0, at(0));
    assert_eq!(image.unused_since.as_ref().unwrap().0, at(5));
}

#[test]
fn ready_says_how_it_stands() {
    use ConditionStatus::{False, True, Unknown};
    let cases: &[(&[Availability], ConditionStatus, &str, &str)] = &[
        (&[], True, "Ready", "no image is watched: no Pod uses one that the filter takes"),
        (&[Available], True, "Ready", "1 image, available at the last look"),
        (&[Available, Available], True, "Ready", "2 images, all available at the last look"),
        (
            &[Available, Scheduled],
            Unknown,
            "Progressing",
            "1 of 2 images is still to be looked at for the first time; all others are available",
        ),
        (
            &[Scheduled],
            Unknown,
            "Progressing",
            "1 of 1 images is still to be looked at for the first time; all others are available",
        ),
        (
            &[Scheduled, InvalidAuth],
            False,
            "AccessDenied",
            "1 of 2 images is not available: r.io/1:1 is not given out to the credentials of the Pods that use it: \
             correct their pull secrets, or name a fallbackCredentialSecret for the registry (as the registry says)",
        ),
        (
            &[Unreachable],
            False,
            "RegistryUnreachable",
            "1 of 1 images is not available: r.io/0:1 cannot be asked for, because its registry does not answer as it \
             should (as the registry says)",
        ),
        (
            &[UnavailableSecret],
            False,
            "SecretUnavailable",
            "1 of 1 images is not available: r.io/0:1 needs a Secret that cannot be used (as the registry says)",
        ),
        (
            &[QuotaExceeded],
            False,
            "QuotaExceeded",
            "1 of 1 images is not available: r.io/0:1 is not given out for now, because the quota of its registry is \
             used up (as the registry says)",
        ),
    ];
    for (states, status, reason, message) in cases {
        let names: Vec<String> = (0..states.len()).map(|number| format!("r.io/{number}:1")).collect();
        let images: Vec<_> =
            names.iter().zip(*states).map(|(name, state)| (name.as_str(), *state, None)).collect();
        let ready = report(&ledger_with(&images)).ready;
        assert_eq!((ready.status, ready.reason.as_str()), (*status, *reason), "{states:?}");
        assert_eq!(ready.message, *message);
    }
}

#[test]
fn a_broken_object_says_which_field_to_correct() {
    let error = Watched::compile(&object("{imageFilter: {include: ['(']}}")).unwrap_err();
    let finding = refused(&error);
    assert_eq!((finding.status, finding.reason.as_str()), (ConditionStatus::False, "InvalidFilter"));
    assert!(finding.message.contains("spec.imageFilter.include[0]"), "{}", finding.message);
    let error = Watched::compile(&object("{filter: {include: [{}]}}")).unwrap_err();
    assert_eq!(refused(&error).reason, "InvalidSpec");
}
