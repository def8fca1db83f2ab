use std::sync::LazyLock;

use fairlead_domain::cause::Cause;
use fairlead_domain::keyring::{IdentityKey, Keyring};
use fairlead_domain::reference::Host;
use proptest::prelude::*;

use super::refresh::RefreshOutcome;
use super::*;

const SETTINGS: VerdictSettings = VerdictSettings {
    refresh: Duration::from_secs(30),
    timeout: Some(Duration::from_secs(1)),
    resolve_digest: false,
    capacity: 16_384,
};

fn cache(capacity: usize) -> Cache {
    Cache::new(capacity, SETTINGS.ages())
}

fn image(text: &str) -> Reference {
    Reference::parse(text).unwrap()
}

fn logins(users: &[&str]) -> Vec<Credential> {
    let mut keyring = Keyring::new(IdentityKey::new([7; 32]));
    for user in users {
        assert!(keyring.add_login("r.example", user.as_bytes(), b"secret"));
    }
    keyring.lookup(&image("r.example/app").repository())
}

fn available() -> Verdict {
    Verdict::Available { digest: None }
}

fn absent() -> Verdict {
    Verdict::NotFound { reason: "it is not there".into() }
}

/// Of a registry that was never asked.
fn health() -> Option<RegistryHealth> {
    static CLIENT: LazyLock<Client> = LazyLock::new(|| Client::new(fairlead_registry::Settings::default()));
    CLIENT.health(&image("r.example/app").host())
}

fn at(verdict: Verdict, at: Instant) -> FoundVerdict {
    FoundVerdict { verdict, health: health(), at, wall_clock: SystemTime::UNIX_EPOCH, jitter: 0.0 }
}

fn known(cache: &Cache, text: &str, credentials: &[Credential], now: Instant) -> Option<Verdict> {
    match cache.look(&cache.asked(&image(text), credentials, Cause::Administrator), now) {
        CacheLookup::Known(verdict) | CacheLookup::Ageing(verdict) | CacheLookup::Unproven(verdict) => {
            Some(verdict)
        }
        CacheLookup::Down(_) | CacheLookup::Outdated | CacheLookup::Absent => None,
    }
}

fn keep(cache: &Cache, text: &str, credentials: &[Credential], found: FoundVerdict) {
    cache.keep(cache.asked(&image(text), credentials, Cause::Administrator).own(), found);
}

#[test]
fn what_is_pulled_counts_however_it_was_written() {
    let (cache, now) = (cache(100), Instant::now());
    let pinned = format!("app@sha256:{}", "a".repeat(64));
    keep(&cache, "docker.io/library/app:latest", &[], at(available(), now));
    keep(&cache, &pinned, &[], at(absent(), now));
    assert_eq!(known(&cache, "app", &[], now), Some(available()));
    assert_eq!(known(&cache, &pinned.replace('@', ":7@"), &[], now), Some(absent()));
    assert_eq!(known(&cache, "app:7", &[], now), None);
    keep(&cache, "REG.local/app:1", &[], at(available(), now));
    for spelling in ["reg.local/app:1", "reg.local:443/app:1", "Reg.local:443/app:1"] {
        assert_eq!(known(&cache, spelling, &[], now), Some(available()), "{spelling}");
    }
    assert_eq!(known(&cache, "reg.local:80/app:1", &[], now), None, "another registry");
}

#[test]
fn a_verdict_on_one_account_does_not_serve_another() {
    let (cache, now) = (cache(100), Instant::now());
    let asked = |cause| cache.asked(&image("r.example/app:1"), &[], cause);
    for (knows, asks) in [(Cause::Administrator, Cause::Tenant), (Cause::Tenant, Cause::Administrator)] {
        cache.keep(asked(knows).own(), at(available(), now));
        assert!(matches!(cache.look(&asked(knows), now), CacheLookup::Known(_) | CacheLookup::Unproven(_)));
        let later = now + Duration::from_hours(1);
        cache.tidy(later, 0);
        cache.keep(asked(knows).own(), at(available(), later));
        assert!(
            matches!(cache.look(&asked(asks), later), CacheLookup::Absent | CacheLookup::Outdated),
            "{asks:?}"
        );
        let ProbeTicket::First(image, telling) = cache.join(&asked(asks), later) else {
            panic!("{asks:?} asks for itself")
        };
        cache.probe_ended(&image, &telling.subscribe());
        cache.tidy(later + Duration::from_hours(1), 0);
    }
}

#[test]
fn a_verdict_serves_only_the_same_credentials_in_the_same_order() {
    let (cache, now) = (cache(100), Instant::now());
    let (ada, bob) = (logins(&["ada"]), logins(&["bob"]));
    let (both, turned) = (logins(&["ada", "bob"]), logins(&["bob", "ada"]));
    assert_ne!(both, turned);
    keep(&cache, "r.example/app:1", &ada, at(available(), now));
    keep(&cache, "r.example/app:1", &both, at(absent(), now));
    assert_eq!(known(&cache, "r.example/app:1", &ada, now), Some(available()));
    assert_eq!(known(&cache, "r.example/app:1", &both, now), Some(absent()));
    for others in [&bob, &turned, &Vec::new()] {
        assert_eq!(known(&cache, "r.example/app:1", others, now), None);
    }
}

#[test]
fn only_what_is_in_use_is_refreshed_and_once_at_a_time() {
    let (cache, start) = (cache(100), Instant::now());
    let after = |seconds| start + Duration::from_secs(seconds);
    for name in ["used:1", "unused:1"] {
        keep(&cache, name, &[], at(available(), start));
    }
    known(&cache, "used:1", &[], after(10));
    assert!(cache.tidy(after(29), 10).images.is_empty());
    let due = cache.tidy(after(30), 10).images;
    assert_eq!(due.iter().map(|image| image.reference().clone()).collect::<Vec<_>>(), [image("used:1")]);
    assert!(cache.tidy(after(31), 10).images.is_empty(), "it is under way");
    assert_eq!(known(&cache, "used:1", &[], after(31)), Some(available()), "and the old one serves");

    assert_eq!(cache.renew(&due[0], at(absent(), after(32)), false, false), RefreshOutcome::Changed);
    assert_eq!(known(&cache, "used:1", &[], after(32)), Some(absent()));
    let tidied = cache.tidy(after(61), 10);
    assert_eq!((tidied.images.len(), tidied.kept), (0, 0), "what nobody asks for is forgotten");
    assert_eq!(cache.renew(&due[0], at(available(), after(62)), false, false), RefreshOutcome::Forgotten);
}

#[test]
fn a_refresh_that_found_nothing_out_is_not_repeated_at_once() {
    let (cache, start) = (cache(100), Instant::now());
    let after = |seconds| start + Duration::from_secs(seconds);
    keep(&cache, "app:1", &[], at(available(), start));
    known(&cache, "app:1", &[], start);
    let due = cache.tidy(after(30), 10).images;
    let limited = Verdict::RateLimited { until: None, reason: "later".into() };
    assert_eq!(cache.renew(&due[0], at(limited, after(30)), false, false), RefreshOutcome::Kept);
    known(&cache, "app:1", &[], after(59));
    assert!(cache.tidy(after(59), 10).images.is_empty());
    assert_eq!(known(&cache, "app:1", &[], after(60)), Some(available()));
    assert_eq!(known(&cache, "app:1", &[], after(61)), None, "then somebody with a right to know asks");
}

#[test]
fn a_refresh_that_ended_without_an_answer_is_lined_up_again() {
    let (cache, start) = (cache(100), Instant::now());
    let after = |seconds| start + Duration::from_secs(seconds);
    keep(&cache, "app:1", &[], at(available(), start));
    known(&cache, "app:1", &[], start);
    let due = cache.tidy(after(30), 10).images;
    let begun = cache.begin_refresh(&due[0]).expect("it is due");
    assert!(cache.tidy(after(31), 10).images.is_empty(), "it is under way");
    cache.probe_ended(&due[0], &begun.telling.subscribe());
    assert_eq!(cache.tidy(after(32), 10).images.len(), 1);
}

#[test]
fn the_last_digest_outlives_its_verdict() {
    let (cache, start) = (cache(100), Instant::now());
    let after = |seconds| start + Duration::from_secs(seconds);
    let there = Verdict::Available { digest: Some(Digest::sha256(b"there")) };
    keep(&cache, "app:1", &[], at(there.clone(), start));
    let asked = || cache.asked(&image("app:1"), &[], Cause::Administrator);
    assert_eq!(cache.digest(&asked(), after(60)), there.digest());
    assert_eq!(cache.digest(&asked(), after(61)), None);
    cache.tidy(after(3600), 10);
    assert_eq!(cache.last_digest(&asked()), there.digest().map(|digest| (digest, start)));
}

#[test]
fn those_who_ask_the_same_share_a_probe() {
    let (cache, now) = (cache(100), Instant::now());
    let ada = logins(&["ada"]);
    let join = |credentials| {
        cache.join(&cache.asked(&image("r.example/app:1"), credentials, Cause::Administrator), now)
    };
    let ProbeTicket::First(first, telling) = join(&[]) else { panic!("nobody asked before") };
    let ProbeTicket::Joined(told) = join(&[]) else { panic!("a probe is under way") };
    assert!(matches!(join(&ada), ProbeTicket::First(..)), "with other credentials it is another question");
    cache.keep(first.clone(), at(available(), now));
    assert!(matches!(join(&[]), ProbeTicket::Known(_)));
    cache.probe_ended(&first, &told);
    telling.send_replace(Progress::Told(available()));
    assert!(matches!(&*told.borrow(), Progress::Told(verdict) if *verdict == available()));
    assert!(matches!(join(&ada), ProbeTicket::Joined(_)), "the other one is still under way");
}

#[test]
fn a_refresh_gives_way_until_it_is_sent_and_is_joined_then() {
    let (cache, start) = (cache(100), Instant::now());
    let after = |seconds| start + Duration::from_secs(seconds);
    let join = |name, now| cache.join(&cache.asked(&image(name), &[], Cause::Administrator), now);
    for name in ["early:1", "late:1", "anew:1"] {
        keep(&cache, name, &[], at(available(), start));
        known(&cache, name, &[], after(10));
    }
    let due = cache.tidy(after(30), 10).images;
    let refresh = |name: &str| {
        let image = due.iter().find(|due| *due.reference() == image(name)).unwrap();
        (image, cache.begin_refresh(image))
    };

    let (early, Some(waits)) = refresh("early:1") else { panic!("it is due") };
    let ProbeTicket::First(hurried, telling) = join("early:1", after(61)) else { panic!("nothing is sent") };
    assert!(waits.gives_way.is_cancelled(), "so that the registry is asked once");
    cache.probe_ended(early, &waits.telling.subscribe());
    assert!(matches!(join("early:1", after(61)), ProbeTicket::Joined(_)), "the one in a hurry is under way");
    assert!(refresh("early:1").1.is_none(), "and is as good as a refresh");
    cache.keep(hurried.clone(), at(available(), after(62)));
    cache.probe_ended(&hurried, &telling.subscribe());
    assert!(refresh("early:1").1.is_none(), "what was found a moment ago is not asked for again");

    let (late, Some(sent)) = refresh("late:1") else { panic!("it is due") };
    sent.sending.send_replace(Some(after(60)));
    let ProbeTicket::Joined(told) = join("late:1", after(61)) else { panic!("its answer is on the way") };
    assert!(!sent.gives_way.is_cancelled());
    assert!(told.same_channel(&sent.telling.subscribe()));

    cache.tidy(after(62), 0);
    assert!(refresh("anew:1").1.is_none(), "nobody asked for it in time");
    let outcome = cache.renew(late, at(available(), after(62)), false, false);
    assert_eq!(outcome, RefreshOutcome::Same, "an answer that was on the way is kept");
    cache.probe_ended(late, &told);
    assert_eq!(known(&cache, "late:1", &[], after(100)), Some(available()));
}

#[test]
fn a_burst_stays_within_the_bound_and_what_is_in_use_survives_it() {
    let (cache, start) = (cache(1600), Instant::now());
    keep(&cache, "steady:1", &[], at(available(), start));
    for count in 0..20_000_u64 {
        let now = start + Duration::from_micros(count);
        keep(&cache, &format!("burst:{count}"), &[], at(available(), now));
        assert_eq!(known(&cache, "steady:1", &[], now), Some(available()), "after {count}");
    }
    let kept = cache.tidy(start, 0).kept;
    assert!((1000..=1600).contains(&kept), "{kept}");
}

#[test]
fn node_credentials_are_trusted_as_configured() {
    let config = |text: &str| crate::platform::config::Config::parse(text).unwrap().config;
    let trust = |text: &str, host: &str| {
        NodeTrust::from(&config(text)).trust_node_credentials(&Host::parse(host).unwrap())
    };
    assert!(trust("{}", "quay.io"));
    let one = "registries: {quay.io: {trustNodeCredentials: false}}";
    assert!(!trust(one, "QUAY.io") && !trust(one, "quay.io:443") && trust(one, "docker.io"));
    let all = "registries: {default: {trustNodeCredentials: false}, quay.io: {trustNodeCredentials: true}}";
    assert!(trust(all, "quay.io") && !trust(all, "docker.io"));
}

#[test]
fn labels_are_bounded() {
    let mut registry = prometheus_client::registry::Registry::default();
    let client = Client::new(fairlead_registry::Settings::default());
    let metrics = Metrics::register(&mut registry, &client);
    let found = |host: &str, namespace: &str| {
        metrics.name(host, namespace);
        metrics.probed(host, metrics::ProbeCause::Admission, absent().kind(), Duration::ZERO);
    };
    for count in 0..1000 {
        found(&format!("R{count}.example"), "greedy");
    }
    found("modest.example", "modest");
    let page = || crate::platform::telemetry::page::text(&registry).unwrap();
    let series = |page: &str| page.lines().filter(|line| line.starts_with("fairlead_probes_total{")).count();
    assert_eq!(series(&page()), 22, "20 of one namespace, one of the other, and all that is left");
    assert!(page().contains(r#"registry="modest.example""#) && page().contains(r#"registry="other""#));
    metrics.free("r0.example");
    assert!(!page().contains(r#"registry="r0.example""#), "a forgotten registry takes its series along");
}

proptest! {
    #[test]
    fn a_clock_that_runs_on_never_brings_a_verdict_back(steps in proptest::collection::vec(0_u64..20_000, 1..60)) {
        let (cache, start) = (cache(100), Instant::now());
        keep(&cache, "app:1", &[], at(available(), start));
        let (mut now, mut gone) = (start, false);
        for step in steps {
            now += Duration::from_millis(step);
            let there = known(&cache, "app:1", &[], now).is_some();
            prop_assert!(!(there && gone));
            prop_assert_eq!(there, now - start < Duration::from_secs(61));
            gone |= !there;
        }
    }
}
