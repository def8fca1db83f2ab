use super::*;

use Availability::{Available, NotFound, Scheduled, Unreachable};

const DAY: i64 = 24 * 3600;

fn unused_since(ledger: &Ledger, image: &str) -> Option<i64> {
    let since = ledger.get(&reference(image)).unwrap().unused_since?;
    Some(since.as_second() - at(0).as_second())
}

#[test]
fn the_filter_is_that_of_a_cluster_wide_mirror() {
    let takes = |spec: &str, image: &str| watched(spec).takes(&reference(image));
    assert!(takes("{imageFilter: {include: ['docker[.]io/.*']}}", NGINX));
    assert!(!takes("{imageFilter: {include: ['docker[.]io/.*']}}", QUAY));
    assert!(takes("{filter: {include: [{image: '.*nginx.*'}]}}", NGINX));
    assert!(takes("{filter: {exclude: [{namespace: kube-system}]}}", NGINX));
    assert!(!takes("{}", NGINX), "without any filter nothing is watched");
    assert!(takes("{imageFilter: {include: ['.*:.+']}}", &format!("quay.io/a@sha256:{}", "a".repeat(64))));
}

#[test]
fn what_makes_no_sense_is_refused_with_the_field() {
    let refused = |spec: &str| Watched::compile(&object(spec)).unwrap_err();
    let broken = refused("{imageFilter: {include: ['a', '(']}}");
    assert!(broken.is_filter() && broken.field == "spec.imageFilter.include[1]", "{broken}");
    let selector = refused("{filter: {exclude: [{label: 'a in'}]}}");
    assert!(selector.is_filter() && selector.field == "spec.filter.exclude[0].label", "{selector}");
    let shape = refused("{filter: {include: [{image: 'a', namespace: 'b'}]}}");
    assert!(!shape.is_filter() && shape.field == "spec.filter.include[0]", "{shape}");
    let mut nameless = object("{}");
    nameless.metadata.name = None;
    assert_eq!(Watched::compile(&nameless).unwrap_err().field, "metadata.name");
}

#[test]
fn an_object_knows_its_owner_and_expiry() {
    assert_eq!(everything("0s").expiry(), None);
    assert_eq!(everything("720h").expiry(), Some(Duration::from_hours(720)));
    let owner = everything("0s").owner().clone();
    assert_eq!(owner.to_string(), "ClusterImageSetAvailability/all");
    assert_eq!(&*owner.uid, "11112222-3333");
    let watched = watched("{filter: {include: [{image: '.*'}, {label: app=web}]}}");
    let selection = watched.selection();
    assert!(selection.namespace.is_none() && selection.images.matches([NGINX]));
}

#[test]
fn images_in_use_are_tracked() {
    let mut ledger = ledger();
    assert_eq!(
        enter_used(&mut ledger, &everything("0s"), &used(&[(REDIS, true), (NGINX, false)]), at(0)),
        None
    );
    assert_eq!(images(&ledger), [NGINX, REDIS]);
    assert_eq!(*watch(&ledger, NGINX), Watch { original: false, ..Watch::default() });
    assert_eq!(*watch(&ledger, REDIS), Watch { original: true, ..Watch::default() });
    assert_eq!(unused_since(&ledger, NGINX), None);
}

#[test]
fn what_comes_of_an_image_that_is_not_in_use() {
    let mark = "0001-01-01T01:00:00Z".parse().unwrap();
    let gone = None;
    // Expiry, state, unused since; unused since afterwards, or gone; when to look again.
    let cases = [
        ("0s", Available, None, Some(DAY), None),
        ("0s", Available, Some(at(5)), Some(5), None),
        ("0s", Scheduled, None, Some(DAY), None),
        ("0s", NotFound, Some(mark), Some(DAY), None),
        ("48h", Available, None, Some(DAY), Some(3 * DAY)),
        ("48h", Unreachable, Some(at(0)), Some(0), Some(2 * DAY)),
        ("48h", NotFound, Some(at(-DAY + 1)), Some(-DAY + 1), Some(DAY + 1)),
        ("48h", NotFound, Some(at(-DAY)), gone, None),
        ("48h", Available, Some(mark), Some(DAY), Some(3 * DAY)),
        ("48h", Available, Some(at(9 * DAY)), Some(DAY), Some(3 * DAY)),
        ("48h", Scheduled, None, gone, None),
        ("48h", Scheduled, Some(at(0)), gone, None),
        ("2562047h", Available, Some(at(0)), Some(0), Some(2_562_047 * 3600)),
    ];
    for (expiry, status, since, expected, again) in cases {
        let mut ledger = ledger_with(&[(NGINX, status, since)]);
        let next = enter_used(&mut ledger, &everything(expiry), &[], at(DAY));
        let left = ledger.get(&reference(NGINX)).map(|_| unused_since(&ledger, NGINX).unwrap());
        let case = format!("expiry {expiry}, {status:?} since {since:?}");
        assert_eq!(left, expected, "{case}");
        assert_eq!(next.map(|next| next.as_second() - at(0).as_second()), again, "{case}");
    }
}

#[test]
fn an_image_that_the_filter_takes_no_longer_is_dropped_whatever_the_expiry() {
    for expiry in ["0s", "720h"] {
        let mut ledger = ledger_with(&[(NGINX, Available, None), (QUAY, NotFound, Some(at(0)))]);
        let narrow = watched(&format!(
            "{{unusedImageExpiry: {expiry}, filter: {{include: [{{image: 'docker[.]io/.*'}}]}}}}"
        ));
        enter_used(&mut ledger, &narrow, &used(&[(NGINX, true)]), at(1));
        assert_eq!(images(&ledger), [NGINX], "{expiry}");
    }
}

#[test]
fn an_image_that_is_used_again_keeps_what_is_known() {
    let mut ledger = ledger_with(&[(NGINX, NotFound, Some(at(0)))]);
    assert_eq!(enter_used(&mut ledger, &everything("1h"), &used(&[(NGINX, true)]), at(3600)), None);
    assert_eq!(unused_since(&ledger, NGINX), None);
    assert_eq!(watch(&ledger, NGINX).status, NotFound);
}

#[test]
fn the_first_to_expire_says_when_to_look_again() {
    let day = |unused| Some(at(unused));
    let mut ledger =
        ledger_with(&[(NGINX, Available, day(20)), (QUAY, Available, day(10)), (REDIS, Available, day(30))]);
    let next = enter_used(&mut ledger, &everything("1h"), &used(&[(REDIS, true)]), at(60));
    assert_eq!(next, Some(at(3610)));
    assert_eq!(enter_used(&mut ledger, &everything("1h"), &used(&[(REDIS, true)]), at(3610)), Some(at(3620)));
    assert_eq!(images(&ledger), [NGINX, REDIS]);
}

#[test]
fn who_asked_for_it_is_as_of_now() {
    let mut ledger = ledger();
    let everything = everything("0s");
    for (original, unused_later) in [(false, false), (true, true), (false, false)] {
        enter_used(&mut ledger, &everything, &used(&[(NGINX, original)]), at(0));
        assert_eq!(watch(&ledger, NGINX).original, original);
        enter_used(&mut ledger, &everything, &[], at(1));
        assert_eq!(watch(&ledger, NGINX).original, unused_later, "as of its last use");
    }
}

#[test]
fn nothing_is_written_where_nothing_changed() {
    let mut ledger = ledger_with(&[(NGINX, Available, None), (QUAY, NotFound, Some(at(0)))]);
    for expiry in ["0s", "720h"] {
        enter_used(&mut ledger, &everything(expiry), &used(&[(NGINX, true)]), at(77));
        assert!(ledger.dirty().is_empty(), "{expiry}");
    }
}

#[test]
fn an_entry_of_which_the_watch_knows_nothing_is_one_to_look_at() {
    let mut ledger = ledger();
    ledger.insert(reference(NGINX), Entry::default());
    enter_used(&mut ledger, &everything("0s"), &used(&[(NGINX, true)]), at(0));
    assert_eq!(*watch(&ledger, NGINX), Watch { original: true, ..Watch::default() });
}

#[test]
fn the_status_of_kuik_is_taken_over() {
    let status = "
imageCount: 4
images:
- {image: 'docker.io/library/nginx:1.29', status: Available, lastMonitor: '2025-06-15T15:06:40Z', original: true}
- {image: 'quay.io/org/app:1', status: NotFound, lastError: gone, unusedSince: '2025-06-15T15:06:45Z'}
- {image: redis:8}
- {image: 'not an image'}
";
    let status = serde_saphyr::from_str(status).unwrap();
    let mut ledger = ledger();
    let changes = adopt(&ledger, &status);
    ledger.apply(changes);
    assert_eq!(images(&ledger), [NGINX, REDIS, QUAY]);
    assert_eq!(
        *watch(&ledger, NGINX),
        Watch { status: Available, last_monitor: Some(at(0)), last_error: None, original: true }
    );
    let quay = Watch { status: NotFound, last_error: Some("gone".into()), ..Watch::default() };
    assert_eq!((watch(&ledger, QUAY), unused_since(&ledger, QUAY)), (&quay, Some(5)));
    assert_eq!(*watch(&ledger, REDIS), Watch::default());
    assert_eq!(adopt(&ledger, &status), [], "what is known here is newer");
}
