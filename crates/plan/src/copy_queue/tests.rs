use std::cell::Cell;

use super::*;

const LIMITS: Limits = Limits { workers: 4, per_registry: 100 };

type Texts = Queue<&'static str>;

/// Payloads are words and a remark: `copy`, `copy again`. The first word is what the job does.
fn queue() -> Texts {
    fn word(text: &str) -> Option<&str> {
        text.split(' ').next()
    }
    Queue::new(|running, wanted| word(running) == word(wanted))
}

fn key(owner: &str, destination: &str) -> Key {
    Key { owner: owner.into(), destination: destination.into() }
}

/// Of a destination `registry/name`, copied from `source`.
fn job(owner: &str, destination: &str, source: &str, what: &'static str) -> Job<&'static str> {
    let registry = destination.split('/').next().unwrap();
    Job { key: key(owner, destination), hosts: vec![registry.into(), source.into()], what }
}

fn copies(owner: &str, destinations: &[&str]) -> Vec<Job<&'static str>> {
    destinations.iter().map(|destination| job(owner, destination, "docker.io", "copy")).collect()
}

fn many(owner: &str, registry: &str, count: usize) -> Vec<Job<&'static str>> {
    (0..count).map(|number| job(owner, &format!("{registry}/{number:05}"), "docker.io", "copy")).collect()
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn nothing_closed(_: &str) -> bool {
    false
}

impl Texts {
    /// The owner is a cluster-scoped object, or one of a namespace: `namespace/name`.
    fn want(&mut self, owner: &str, wanted: Vec<Job<&'static str>>, now: u64) -> Vec<String> {
        let tenant = match owner.split_once('/') {
            Some((namespace, _)) => Tenant::Namespace(namespace.into()),
            None => Tenant::Object(owner.into()),
        };
        let cancelled = self.sync(&tenant, &owner.into(), wanted, secs(now));
        cancelled.into_iter().map(|key| key.destination.to_string()).collect()
    }

    fn begin(&mut self, now: u64, limits: Limits) -> Vec<String> {
        let started = self.start(secs(now), &limits, &nothing_closed);
        started.into_iter().map(|job| format!("{}:{}", job.key.owner, job.key.destination)).collect()
    }

    fn end(&mut self, owner: &str, destination: &str, outcome: Ended, now: u64) {
        self.ended(&key(owner, destination), outcome, secs(now), 0.5);
    }
}

const FAILED: Ended = Ended::Failed { wait: None };

#[test]
fn twenty_thousand_jobs_of_one_owner_delay_nobody() {
    let mut queue = queue();
    queue.want("big", many("big", "mirror", 20_000), 0);
    assert_eq!(queue.begin(0, LIMITS).len(), 4);
    queue.want("small", copies("small", &["mirror/only"]), 1);
    assert_eq!(queue.begin(1, LIMITS), [""; 0], "no worker is free");
    queue.end("big", "mirror/00000", Ended::Done, 2);
    assert_eq!(queue.begin(2, LIMITS), ["small:mirror/only"]);
}

#[test]
fn workers_are_shared_evenly() {
    let mut queue = queue();
    for owner in ["a", "b", "c"] {
        queue.want(owner, many(owner, "mirror", 10), 0);
    }
    let started = queue.begin(0, Limits { workers: 7, ..LIMITS });
    let of = |owner: &str| started.iter().filter(|job| job.starts_with(owner)).count();
    assert_eq!([of("a"), of("b"), of("c")], [3, 2, 2]);
    queue.end("a", "mirror/00000", Ended::Done, 1);
    assert_eq!(queue.begin(1, Limits { workers: 7, ..LIMITS }), ["b:mirror/00002"], "served longest ago");
}

#[test]
fn a_namespace_with_a_thousand_objects_gets_one_share() {
    let mut queue = queue();
    for number in 0..1000 {
        let owner = format!("crowd/{number:03}");
        queue.want(&owner, many(&owner, "mirror", 3), 0);
    }
    for owner in ["shop/only", "cluster-a", "cluster-b"] {
        queue.want(owner, many(owner, "mirror", 10), 0);
    }
    let of = |started: &[String], owner: &str| started.iter().filter(|job| job.starts_with(owner)).count();
    let eight = Limits { workers: 8, ..LIMITS };
    let started = queue.begin(0, eight);
    let shares = ["crowd", "shop", "cluster-a", "cluster-b"].map(|owner| of(&started, owner));
    assert_eq!(shares, [2, 2, 2, 2], "{started:?}");
    assert_ne!(
        started[0].split(':').next(),
        started[4].split(':').next(),
        "within the crowd it goes round too"
    );
    queue.end("shop/only", "mirror/00000", Ended::Done, 1);
    queue.end("crowd/000", "mirror/00000", Ended::Done, 1);
    let next = queue.begin(1, eight);
    assert_eq!([of(&next, "crowd"), of(&next, "shop")], [1, 1], "{next:?}");
    let mut alone = self::queue();
    for number in 0..10 {
        let owner = format!("crowd/{number}");
        alone.want(&owner, many(&owner, "mirror", 1), 0);
    }
    assert_eq!(alone.begin(0, eight).len(), 8, "what the others do not use is not left idle");
}

#[test]
fn one_worker_goes_round() {
    let mut queue = queue();
    let alone = Limits { workers: 1, ..LIMITS };
    queue.want("a", copies("a", &["m/1", "m/2", "m/3"]), 0);
    queue.want("b", copies("b", &["m/4", "m/5"]), 0);
    let mut order = Vec::new();
    for now in 0..5 {
        let started = queue.begin(now, alone);
        let (owner, destination) = started[0].split_once(':').unwrap();
        queue.end(owner, destination, Ended::Done, now);
        order.push(destination.to_owned());
    }
    assert_eq!(order, ["m/1", "m/4", "m/2", "m/5", "m/3"]);
}

#[test]
fn leaving_and_coming_back_gains_nothing() {
    let mut queue = queue();
    let alone = Limits { workers: 1, ..LIMITS };
    queue.want("a", many("a", "m", 10), 0);
    let mut served = Vec::new();
    for now in 0..6 {
        queue.want("b", copies("b", &["m/b"]), now);
        let started = queue.begin(now, alone);
        let (owner, destination) = started[0].split_once(':').unwrap();
        queue.end(owner, destination, Ended::Done, now);
        served.push(owner.to_owned());
    }
    assert_eq!(served, ["a", "b", "a", "b", "a", "b"]);
}

#[test]
fn a_closed_registry_holds_up_its_own_jobs_only() {
    let mut queue = queue();
    let mut wanted = many("a", "down", 60_000);
    wanted.extend(copies("a", &["up/1"]));
    wanted.push(job("a", "up/2", "down-source", "copy"));
    queue.want("a", wanted, 0);
    let asked = Cell::new(0);
    let closed = |host: &str| {
        asked.set(asked.get() + 1);
        host.starts_with("down")
    };
    let started = queue.start(secs(0), &LIMITS, &closed);
    assert_eq!(started.iter().map(|job| &*job.key.destination).collect::<Vec<_>>(), ["up/1"]);
    assert!(asked.get() <= 4, "each registry is asked about once, not for each job: {}", asked.get());
    assert_eq!(queue.begin(1, LIMITS), ["a:down/00000", "a:down/00001", "a:down/00002"]);
}

#[test]
fn a_registry_is_full_as_source_and_as_destination() {
    let mut queue = queue();
    let two = Limits { workers: 10, per_registry: 2 };
    queue.want("a", copies("a", &["one/1", "one/2", "one/3", "two/1"]), 0);
    let mut moved = vec![job("b", "docker.io/x", "docker.io", "copy"), job("b", "two/x", "quay.io", "copy")];
    moved.push(job("b", "two/y", "quay.io", "copy"));
    queue.want("b", moved, 0);
    assert_eq!(queue.begin(0, two), ["a:one/1", "b:docker.io/x", "b:two/x", "b:two/y"]);
    queue.end("b", "docker.io/x", Ended::Done, 1);
    assert_eq!(queue.begin(1, two), ["a:one/2"]);
    queue.end("b", "two/x", Ended::Done, 2);
    assert_eq!(queue.begin(2, two), [""; 0], "docker.io has two");
}

#[test]
fn a_copy_within_a_registry_counts_once() {
    let mut queue = queue();
    let within = |number| job("a", &format!("m/{number}"), "m", "copy");
    queue.want("a", (0..3).map(within).collect(), 0);
    assert_eq!(queue.begin(0, Limits { workers: 10, per_registry: 2 }), ["a:m/0", "a:m/1"]);
}

#[test]
fn limits_that_were_lowered_are_kept_as_jobs_end() {
    let mut queue = queue();
    queue.want("a", many("a", "m", 10), 0);
    queue.begin(0, LIMITS);
    let two = Limits { workers: 2, ..LIMITS };
    for ended in 0..3 {
        assert_eq!(queue.begin(1, two), [""; 0]);
        queue.end("a", &format!("m/{ended:05}"), Ended::Done, 1);
    }
    assert_eq!(queue.begin(1, two), ["a:m/00004"]);
    assert_eq!(queue.begin(1, Limits { workers: 0, ..LIMITS }), [""; 0]);
    assert_eq!(queue.begin(1, Limits { per_registry: 0, ..LIMITS }), [""; 0]);
}

#[test]
fn back_off_doubles_to_ten_minutes() {
    let rounded = |rest: Duration| (rest + Duration::from_millis(500)).as_secs();
    let plain = |failures| rounded(backoff(failures, None, 0.5));
    assert_eq!([1, 2, 3, 4, 9, 10, 11, 1000].map(plain), [2, 4, 8, 16, 512, 600, 600, 600]);
    let spread = |jitter| rounded(backoff(10, None, jitter));
    assert_eq!([spread(0.0), spread(1.0)], [480, 720]);
}

#[test]
fn a_registry_that_names_a_time_is_left_alone_until_then() {
    let after = |wait| backoff(1, Some(secs(wait)), 0.5);
    assert_eq!([after(1), after(90), after(1_000_000)], [secs(2), secs(90), LONGEST_WAIT]);
}

#[test]
fn what_failed_is_tried_again_when_its_time_comes() {
    let mut queue = queue();
    queue.want("a", copies("a", &["m/1"]), 0);
    assert_eq!(queue.next_due(secs(0)), None, "it waits for a worker, not for time");
    for (at, due) in [(10, 12), (12, 16), (16, 24), (24, 40)] {
        assert_eq!(queue.begin(at, LIMITS), ["a:m/1"]);
        queue.end("a", "m/1", FAILED, at);
        assert_eq!(queue.next_due(secs(at)), Some(secs(due)));
        assert_eq!(queue.begin(due - 1, LIMITS), [""; 0]);
        // The controller looks at the world again meanwhile and finds the job still to be done.
        assert_eq!(queue.want("a", copies("a", &["m/1"]), at), [""; 0]);
    }
    assert_eq!(queue.failures(&key("a", "m/1")), 4);
    assert_eq!(queue.next_due(secs(50)), Some(secs(50)), "overdue means now");
    assert_eq!(queue.begin(50, LIMITS), ["a:m/1"]);
    queue.end("a", "m/1", Ended::Done, 51);
    assert_eq!((queue.failures(&key("a", "m/1")), queue.waiting(), queue.running()), (0, 0, 0));
}

#[test]
fn what_keeps_failing_does_not_come_before_what_was_never_tried() {
    let mut queue = queue();
    let alone = Limits { workers: 1, ..LIMITS };
    queue.want("a", copies("a", &["m/bad", "m/good", "m/fine"]), 0);
    assert_eq!(queue.begin(0, alone), ["a:m/bad"]);
    queue.end("a", "m/bad", FAILED, 0);
    let mut order = Vec::new();
    for now in [10, 20, 30] {
        let started = queue.begin(now, alone);
        queue.end("a", started[0].strip_prefix("a:").unwrap(), Ended::Done, now);
        order.extend(started);
    }
    assert_eq!(order, ["a:m/good", "a:m/fine", "a:m/bad"]);
}

#[test]
fn news_end_a_back_off_but_do_not_forget_failures() {
    let mut queue = queue();
    queue.want("a", copies("a", &["m/1"]), 0);
    for _ in 0..5 {
        queue.begin(0, LIMITS);
        queue.end("a", "m/1", FAILED, 0);
        queue.hurry(&key("a", "m/1"));
        assert_eq!(queue.next_due(secs(0)), None);
    }
    queue.hurry(&key("a", "m/1"));
    queue.hurry(&key("b", "m/1"));
    assert_eq!(queue.failures(&key("a", "m/1")), 5);
    assert_eq!(queue.begin(0, LIMITS), ["a:m/1"]);
    queue.hurry(&key("a", "m/1"));
    assert_eq!(queue.begin(0, LIMITS), [""; 0], "it runs already");
}

#[test]
fn what_is_not_wanted_any_more_leaves() {
    let mut queue = queue();
    queue.want("a", copies("a", &["m/1", "m/2", "m/3"]), 0);
    queue.begin(0, Limits { workers: 2, ..LIMITS });
    queue.end("a", "m/1", FAILED, 0);
    assert_eq!(queue.want("a", copies("a", &["m/4"]), 1), ["m/2"], "only a running one has to be cancelled");
    assert_eq!(queue.want("a", copies("a", &["m/4"]), 2), [""; 0], "once");
    assert_eq!((queue.waiting(), queue.running(), queue.next_due(secs(2))), (1, 1, None));
    assert_eq!(queue.begin(2, Limits { workers: 1, ..LIMITS }), [""; 0], "it keeps its worker to the end");
    queue.end("a", "m/2", Ended::Cancelled, 3);
    assert_eq!(queue.begin(3, Limits { workers: 1, ..LIMITS }), ["a:m/4"]);
    assert_eq!((queue.waiting(), queue.running()), (0, 1));
}

#[test]
fn a_cancelled_job_that_is_wanted_again_starts_after_its_end() {
    for (outcome, again) in [(Ended::Cancelled, true), (FAILED, true), (Ended::Done, false)] {
        let mut queue = queue();
        queue.want("a", copies("a", &["m/1"]), 0);
        queue.begin(0, LIMITS);
        assert_eq!(queue.want("a", Vec::new(), 1), ["m/1"]);
        assert_eq!(queue.want("a", copies("a", &["m/1"]), 2), [""; 0]);
        assert_eq!(queue.begin(2, LIMITS), [""; 0], "never twice at once");
        queue.end("a", "m/1", outcome, 3);
        let expected: &[&str] = if again { &["a:m/1"] } else { &[] };
        assert_eq!(queue.begin(3, LIMITS), expected, "{outcome:?}");
    }
}

#[test]
fn a_cancelled_job_that_is_dropped_again_is_gone_after_its_end() {
    let mut queue = queue();
    queue.want("a", copies("a", &["m/1"]), 0);
    queue.begin(0, LIMITS);
    queue.want("a", Vec::new(), 1);
    queue.want("a", copies("a", &["m/1"]), 2);
    queue.want("a", Vec::new(), 3);
    queue.end("a", "m/1", FAILED, 4);
    assert_eq!((queue.begin(1000, LIMITS), queue.waiting()), (vec![], 0));
}

#[test]
fn a_waiting_job_that_became_another_is_replaced() {
    let mut queue = queue();
    queue.want("a", copies("a", &["m/1"]), 0);
    queue.begin(0, LIMITS);
    queue.end("a", "m/1", FAILED, 0);
    queue.want("a", vec![job("a", "m/1", "docker.io", "delete")], 1);
    assert_eq!(queue.failures(&key("a", "m/1")), 0);
    let started = queue.start(secs(1), &LIMITS, &nothing_closed);
    assert_eq!(started, [job("a", "m/1", "docker.io", "delete")], "a copy's back-off is not a deletion's");
}

#[test]
fn a_running_job_that_became_another_is_cancelled_first() {
    for outcome in [Ended::Cancelled, Ended::Done, FAILED] {
        let mut queue = queue();
        queue.want("a", copies("a", &["m/1"]), 0);
        queue.begin(0, LIMITS);
        let delete = || vec![job("a", "m/1", "docker.io", "delete")];
        assert_eq!(queue.want("a", delete(), 1), ["m/1"]);
        assert_eq!(queue.want("a", delete(), 2), [""; 0]);
        assert_eq!(queue.begin(2, LIMITS), [""; 0]);
        queue.end("a", "m/1", outcome, 3);
        assert_eq!(queue.start(secs(3), &LIMITS, &nothing_closed), delete(), "{outcome:?}");
    }
}

#[test]
fn details_change_for_the_next_attempt() {
    let mut queue = queue();
    queue.want("a", copies("a", &["m/1"]), 0);
    queue.begin(0, LIMITS);
    let other = || vec![job("a", "m/1", "quay.io", "copy from elsewhere")];
    assert_eq!(queue.want("a", other(), 1), [""; 0], "a copy under way goes on");
    let none_left = Limits { workers: 4, per_registry: 1 };
    queue.want("b", copies("b", &["n/1"]), 1);
    assert_eq!(queue.begin(1, none_left), [""; 0], "and still keeps the registry that it began with");
    queue.end("a", "m/1", FAILED, 1);
    assert_eq!(queue.begin(1, none_left), ["b:n/1"]);
    assert_eq!(queue.start(secs(3), &none_left, &nothing_closed), other());

    let beside = |source| vec![job("b", "n/1", "docker.io", "copy"), job("b", "o/1", source, "copy")];
    queue.want("b", beside("docker.io"), 4);
    assert_eq!(queue.begin(4, none_left), [""; 0]);
    queue.want("b", beside("ghcr.io"), 4);
    assert_eq!(queue.begin(4, none_left), ["b:o/1"], "what waits moves to the registry that is free");
}

#[test]
fn of_equal_destinations_the_first_counts() {
    let mut queue = queue();
    let both = || vec![job("a", "m/1", "x", "copy"), job("a", "m/1", "y", "delete")];
    queue.want("a", both(), 0);
    assert_eq!(queue.waiting(), 1);
    assert_eq!(queue.start(secs(0), &LIMITS, &nothing_closed), [job("a", "m/1", "x", "copy")]);
    assert_eq!(queue.want("a", both(), 1), [""; 0]);
}

#[test]
fn an_owner_is_forgotten_as_a_whole() {
    let mut queue = queue();
    queue.want("a", many("a", "m", 3), 0);
    queue.want("b", copies("b", &["m/b"]), 0);
    queue.begin(0, Limits { workers: 2, ..LIMITS });
    assert_eq!(queue.forget(&"a".into()), [key("a", "m/00000")]);
    assert_eq!(queue.forget(&"nobody".into()), []);
    assert_eq!((queue.waiting(), queue.running()), (0, 2));
    queue.end("a", "m/00000", Ended::Cancelled, 1);
    queue.end("b", "m/b", Ended::Done, 1);
    assert_eq!(queue.running(), 0);
}

#[test]
fn says_how_long_things_have_waited() {
    let mut queue = queue();
    assert_eq!(queue.oldest(secs(5)), None);
    queue.want("a", copies("a", &["m/1"]), 10);
    queue.want("b", copies("b", &["m/2"]), 20);
    assert_eq!(queue.oldest(secs(25)), Some(secs(15)));
    queue.begin(25, Limits { workers: 1, ..LIMITS });
    assert_eq!(queue.oldest(secs(25)), Some(secs(5)), "what runs does not wait");
    queue.end("a", "m/1", FAILED, 30);
    assert_eq!(queue.oldest(secs(30)), Some(secs(20)), "what failed has been wanted all the time");
    queue.want("a", Vec::new(), 30);
    assert_eq!(queue.oldest(secs(30)), Some(secs(10)));
}

#[test]
fn the_end_of_what_never_ran_says_nothing() {
    let mut queue = queue();
    queue.want("a", copies("a", &["m/1"]), 0);
    for outcome in [Ended::Done, Ended::Cancelled, FAILED] {
        queue.end("a", "m/1", outcome, 0);
        queue.end("a", "m/2", outcome, 0);
        queue.end("b", "m/1", outcome, 0);
    }
    assert_eq!(queue.begin(0, LIMITS), ["a:m/1"]);
}
