//! A queue in a world with a clock of its own: owners change their minds, registries go down and come back, copies
//! fail, cancellations take their time. Whatever happens, limits hold, nothing runs twice and nothing is forgotten.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const REGISTRIES: [&str; 4] = ["mirror-a", "mirror-b", "docker.io", "quay.io"];
const OWNERS: [&str; 3] = ["u1", "u2", "u3"];
const DESTINATIONS: u64 = 12;
/// Seconds after which all registries work, no copy fails and no object changes.
const TROUBLE_ENDS: u64 = 900;
const END: u64 = 2400;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    Copy,
    Delete,
}

/// A small generator, so that a run follows from its seed alone.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % end
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    fn jitter(&mut self) -> f64 {
        f64::from(u32::try_from(self.below(1000)).unwrap()) / 1000.0
    }
}

#[derive(Debug)]
struct Running {
    job: Job<Work>,
    ends: u64,
    cancelled: bool,
}

struct World {
    dice: Dice,
    now: u64,
    limits: Limits,
    queue: Queue<Work>,
    down: BTreeSet<&'static str>,
    wanted: BTreeMap<(&'static str, String), Work>,
    running: BTreeMap<Key, Running>,
    done: usize,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed | 1);
        let (workers, per_registry) = (1 + dice.below(6), 1 + dice.below(4));
        let [workers, per_registry] = [workers, per_registry].map(|count| usize::try_from(count).unwrap());
        Self {
            dice,
            now: 0,
            limits: Limits { workers, per_registry },
            queue: Queue::new(|running, wanted| running == wanted),
            down: BTreeSet::new(),
            wanted: BTreeMap::new(),
            running: BTreeMap::new(),
            done: 0,
        }
    }

    fn clock(&self) -> Duration {
        Duration::from_secs(self.now)
    }

    fn trouble(&self) -> bool {
        self.now < TROUBLE_ENDS
    }

    fn step(&mut self) {
        if self.trouble() {
            self.change_minds();
            self.break_and_repair();
        } else {
            self.down.clear();
        }
        self.end_jobs();
        for owner in OWNERS {
            // A controller that looks again at odd moments only, and in the end at all of them.
            if !self.trouble() || self.dice.chance(40) {
                self.sync(owner);
            }
        }
        self.start();
        self.check();
        self.now += 1;
    }

    fn change_minds(&mut self) {
        for owner in OWNERS {
            if self.dice.chance(20) {
                let destination = format!("{}/{}", REGISTRIES[self.below(2)], self.dice.below(DESTINATIONS));
                let work = if self.dice.chance(70) { Work::Copy } else { Work::Delete };
                if self.dice.chance(30) {
                    self.wanted.remove(&(owner, destination));
                } else {
                    self.wanted.insert((owner, destination), work);
                }
            }
        }
    }

    fn below(&mut self, end: u64) -> usize {
        usize::try_from(self.dice.below(end)).unwrap()
    }

    fn break_and_repair(&mut self) {
        let registry = REGISTRIES[self.below(4)];
        if self.dice.chance(3) {
            self.down.insert(registry);
        } else if self.dice.chance(6) {
            self.down.remove(registry);
        }
    }

    fn end_jobs(&mut self) {
        let over: Vec<Key> = self
            .running
            .iter()
            .filter(|(_, running)| running.ends <= self.now)
            .map(|(key, _)| key.clone())
            .collect();
        for key in over {
            let Running { job, cancelled, .. } = self.running.remove(&key).unwrap();
            let outcome = if cancelled && self.dice.chance(80) {
                Ended::Cancelled
            } else if self.trouble() && self.dice.chance(30) {
                let wait = self.dice.chance(20).then(|| Duration::from_secs(30));
                Ended::Failed { wait }
            } else {
                Ended::Done
            };
            if outcome == Ended::Done {
                self.done += 1;
                // What was done is not wanted any more, unless something else is wanted by now.
                let place = OWNERS.iter().find(|owner| **owner == &*key.owner).unwrap();
                let wanted = (*place, key.destination.to_string());
                if self.wanted.get(&wanted) == Some(&job.what) {
                    self.wanted.remove(&wanted);
                }
            }
            let (clock, jitter) = (self.clock(), self.dice.jitter());
            self.queue.ended(&key, outcome, clock, jitter);
        }
    }

    fn sync(&mut self, owner: &'static str) {
        let uid: Arc<str> = owner.into();
        let wanted =
            self.wanted.iter().filter(|((by, _), _)| *by == owner).map(|((_, destination), work)| {
                let registry = destination.split('/').next().unwrap();
                let source = if destination.len() % 2 == 0 { "docker.io" } else { "quay.io" };
                Job {
                    key: Key { owner: Arc::clone(&uid), destination: destination.as_str().into() },
                    hosts: vec![registry.into(), source.into()],
                    what: *work,
                }
            });
        let wanted = wanted.collect();
        let clock = self.clock();
        for key in self.queue.sync(&Tenant::Object(Arc::clone(&uid)), &uid, wanted, clock) {
            let running = self.running.get_mut(&key).expect("only what runs is cancelled");
            assert!(!running.cancelled, "{key:?} is cancelled once");
            running.cancelled = true;
            running.ends = self.now + 1 + self.dice.below(5);
        }
    }

    fn start(&mut self) {
        let (clock, limits, down) = (self.clock(), self.limits, self.down.clone());
        for job in self.queue.start(clock, &limits, &|host| down.contains(host)) {
            assert!(job.hosts.iter().all(|host| !down.contains(&**host)), "{job:?} needs a closed registry");
            let ends = self.now + 1 + self.dice.below(20);
            let before = self.running.insert(job.key.clone(), Running { job, ends, cancelled: false });
            assert!(before.is_none(), "runs twice: {before:?}");
        }
    }

    fn check(&self) {
        let queue = &self.queue;
        assert!(self.running.len() <= self.limits.workers);
        for registry in REGISTRIES {
            let busy = |running: &&Running| running.job.hosts.iter().any(|host| &**host == registry);
            let busy = self.running.values().filter(busy).count();
            assert!(busy <= self.limits.per_registry, "{registry} is given too much");
            assert_eq!(queue.busy.get(registry).copied().unwrap_or_default(), busy);
        }
        assert_eq!(queue.running(), self.running.len());
        let entries = || queue.lines.values().flat_map(|line| line.jobs.values());
        let waits =
            |state: &JobState<Work>| matches!(state, JobState::Ready { .. } | JobState::Resting { .. });
        let rests = |state: &JobState<Work>| matches!(state, JobState::Resting { .. });
        assert_eq!(entries().filter(|entry| waits(&entry.state)).count(), queue.waiting());
        assert_eq!(entries().filter(|entry| rests(&entry.state)).count(), queue.resting.len());
        assert_eq!(queue.waiting_since.values().sum::<usize>(), queue.waiting());
        assert!(queue.lines.values().all(|line| !line.jobs.is_empty()));
    }

    /// Something that could start never waits beside a worker that could do it.
    fn check_that_nothing_idles(&mut self) {
        let (clock, limits) = (self.clock(), self.limits);
        assert!(self.queue.start(clock, &limits, &|_| false).is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn limits_hold_and_no_job_is_lost_or_runs_twice(seed in any::<u64>()) {
        let mut world = World::new(seed);
        while world.now < END {
            world.step();
        }
        prop_assert!(world.done > 0);
        prop_assert!(world.wanted.is_empty(), "left undone: {:?}", world.wanted);
        world.check_that_nothing_idles();
        let Queue { lines, resting, busy, waiting_since, .. } = &world.queue;
        prop_assert!(lines.is_empty() && resting.is_empty() && busy.is_empty() && waiting_since.is_empty());
    }
}

/// Owners with one job now and then, beside one with twenty thousand: no owner waits for longer than until the first
/// worker is free, and the big one loses nothing but those turns.
#[test]
fn a_crowd_delays_nobody_else() {
    const LONGEST: u64 = 30;
    let limits = Limits { workers: 8, per_registry: 8 };
    let mut dice = Dice(7);
    let mut queue: Queue<u64> = Queue::new(|running, wanted| running == wanted);
    let crowd: Arc<str> = "crowd".into();
    let job = |owner: &Arc<str>, number: u64| Job {
        key: Key { owner: Arc::clone(owner), destination: format!("m/{number}").into() },
        hosts: vec!["m".into(), "docker.io".into()],
        what: number,
    };
    let wanted = |owner: &Arc<str>, numbers: std::ops::Range<u64>| numbers.map(|n| job(owner, n)).collect();
    queue.sync(&Tenant::Object(Arc::clone(&crowd)), &crowd, wanted(&crowd, 0..20_000), Duration::ZERO);
    let mut ends: BTreeMap<u64, Vec<Key>> = BTreeMap::new();
    let mut came: HashMap<Arc<str>, u64> = HashMap::new();
    let (mut served, mut by_crowd) = (0, 0);
    for now in 0..3000_u64 {
        let clock = Duration::from_secs(now);
        for key in ends.remove(&now).unwrap_or_default() {
            queue.ended(&key, Ended::Done, clock, 0.5);
        }
        if now % 50 == 7 {
            let visitor: Arc<str> = format!("visitor-{now}").into();
            queue.sync(&Tenant::Object(Arc::clone(&visitor)), &visitor, wanted(&visitor, 0..1), clock);
            came.insert(visitor, now);
        }
        for job in queue.start(clock, &limits, &|_| false) {
            if job.key.owner == crowd {
                by_crowd += 1;
            } else {
                let delay = now - came[&job.key.owner];
                assert!(delay <= LONGEST, "{} waited for {delay} s", job.key.owner);
                served += 1;
            }
            ends.entry(now + 1 + dice.below(LONGEST)).or_default().push(job.key);
        }
        assert_eq!(queue.running(), limits.workers, "no worker idles");
    }
    assert_eq!(served, came.len());
    assert!(by_crowd > 1200, "the crowd was served {by_crowd} times");
}

/// A registry that fails every job costs others no more than the attempts that its back-off allows.
#[test]
fn a_failing_registry_is_tried_rarely() {
    let limits = Limits { workers: 4, per_registry: 2 };
    let mut dice = Dice(11);
    let mut queue: Queue<()> = Queue::new(|(), ()| true);
    let owner: Arc<str> = "u".into();
    let wanted = (0..100).map(|number| Job {
        key: Key { owner: Arc::clone(&owner), destination: format!("bad/{number}").into() },
        hosts: vec!["bad".into()],
        what: (),
    });
    let wanted: Vec<Job<()>> = wanted.collect();
    let mut attempts = 0;
    let hours = 4;
    for now in 0..hours * 3600_u64 {
        let clock = Duration::from_secs(now);
        queue.sync(&Tenant::Object(Arc::clone(&owner)), &owner, wanted.clone(), clock);
        for job in queue.start(clock, &limits, &|_| false) {
            attempts += 1;
            queue.ended(&job.key, Ended::Failed { wait: None }, clock, dice.jitter());
        }
    }
    let each = attempts / wanted.len();
    assert!((26..=40).contains(&each), "ten on the way up, then six an hour: {each}");
}
