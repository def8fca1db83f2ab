//! Days of looks on a clock of its own: registries of all sizes and tempers, images that come and go, a process that is
//! restarted with nothing but what the ledgers hold.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use fairlead_domain::reference::Reference;
use jiff::Timestamp;
use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone, Copy)]
struct Registry {
    images: u32,
    pace: Pace,
    /// Seconds that a look takes at least, and how many more it may take.
    quickness: u64,
    slowness: u64,
    /// Of looks, in percent.
    failures: u64,
}

struct World {
    seed: u64,
    now: i64,
    registries: Vec<Registry>,
    looks: Looks,
    /// What the ledgers hold: last looks as recorded, to the second.
    ledger: BTreeMap<Reference, Option<i64>>,
    under_way: HashMap<Reference, i64>,
    /// Beginnings of all looks, by registry.
    begun: Vec<Vec<i64>>,
    /// The newest look of each registry that the process can know of.
    known: Vec<Option<i64>>,
    history: HashMap<Reference, Vec<i64>>,
}

impl World {
    fn new(seed: u64, registries: Vec<Registry>) -> Self {
        let mut world = Self {
            seed: seed | 1,
            now: 0,
            looks: Looks::default(),
            ledger: BTreeMap::new(),
            under_way: HashMap::new(),
            begun: vec![Vec::new(); registries.len()],
            known: vec![None; registries.len()],
            history: HashMap::new(),
            registries,
        };
        for (number, registry) in world.registries.iter().enumerate() {
            for image in 0..registry.images {
                let image = Reference::parse(&format!("r{number}.io/image/{image:04}:1")).unwrap();
                world.ledger.insert(image, None);
            }
        }
        world.sync();
        world
    }

    fn roll(&mut self, end: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 16) % end
    }

    fn clock(&self) -> Timestamp {
        Timestamp::from_second(1_750_000_000 + self.now).unwrap()
    }

    fn registry_of(image: &Reference) -> usize {
        image.as_str().trim_start_matches('r').split('.').next().unwrap().parse().unwrap()
    }

    fn sync(&mut self) {
        let time = |second: i64| Timestamp::from_second(1_750_000_000 + second).unwrap();
        let tracked = self.ledger.iter().map(|(image, last)| (image.clone(), last.map(time)));
        self.looks.sync(tracked.collect::<Vec<_>>());
    }

    fn restart(&mut self) {
        self.looks = Looks::default();
        self.under_way.clear();
        self.known.fill(None);
        for (image, last) in &self.ledger {
            let known = &mut self.known[Self::registry_of(image)];
            *known = (*known).max(*last);
        }
        self.sync();
    }

    /// Ends what is over, begins what is due; returns the seconds until something happens.
    fn step(&mut self) -> i64 {
        let over = self.under_way.iter().filter(|(_, end)| **end <= self.now);
        let over: Vec<_> = over.map(|(image, _)| image.clone()).collect();
        for image in over {
            self.under_way.remove(&image);
            let registry = self.registries[Self::registry_of(&image)];
            let outcome = match self.roll(100) {
                roll if roll >= registry.failures => RegistryAnswer::Fine,
                roll if roll % 3 == 0 => {
                    RegistryAnswer::Until(self.clock().checked_add(registry.pace.interval).unwrap())
                }
                _ => RegistryAnswer::Failed,
            };
            let jitter = f64::from(u32::try_from(self.roll(100)).unwrap()) / 100.0;
            self.looks.looked(&image, outcome, self.clock(), jitter);
            let now = self.now;
            if let Some(last) = self.ledger.get_mut(&image) {
                *last = Some(now);
            }
            self.sync();
        }
        let registries = self.registries.clone();
        let pace = |host: &str| {
            let number: usize = host.trim_start_matches('r').split('.').next().unwrap().parse().unwrap();
            registries[number].pace
        };
        let (images, wake) = self.looks.next(&pace, self.clock());
        for image in images {
            let registry = Self::registry_of(&image);
            let busy = self.under_way.keys().any(|other| Self::registry_of(other) == registry);
            assert!(!busy, "a look at {image} begins beside another");
            assert!(self.ledger.contains_key(&image), "{image} is not tracked");
            self.check_pace(registry);
            self.begun[registry].push(self.now);
            self.known[registry] = Some(self.now);
            self.history.entry(image.clone()).or_default().push(self.now);
            let Registry { quickness, slowness, .. } = registries[registry];
            let end = self.now + i64::try_from(quickness + self.roll(slowness + 1)).unwrap();
            self.under_way.insert(image, end);
        }
        let whole_seconds = |wake: Timestamp| -(-wake.as_millisecond()).div_euclid(1000);
        let wake = wake.map(|wake| whole_seconds(wake) - 1_750_000_000 - self.now);
        let ends = self.under_way.values().map(|end| end - self.now).min();
        wake.into_iter().chain(ends).min().unwrap_or(60)
    }

    fn run(&mut self, until: i64) {
        while self.now < until {
            let wait = self.step();
            self.now += wait;
        }
    }

    /// Looks never come closer than a tick, so no interval sees too many.
    fn check_pace(&self, registry: usize) {
        let tick = i64::try_from(self.registries[registry].pace.tick().as_secs()).unwrap();
        if let Some(known) = self.known[registry] {
            assert!(self.now - known >= tick, "r{registry}.io was looked at at {known} and {}", self.now);
        }
    }
}

const HOUR: i64 = 3600;

fn default_pace() -> Pace {
    Pace { interval: Duration::from_hours(3), most: 25 }
}

fn docker_hub() -> Pace {
    Pace { interval: Duration::from_hours(1), most: 6 }
}

#[test]
fn looks_are_spread_evenly_and_every_image_gets_its_turn() {
    let steady = |images, pace| Registry { images, pace, quickness: 0, slowness: 0, failures: 0 };
    let mut world = World::new(1, vec![steady(50, default_pace()), steady(7, docker_hub())]);
    world.run(48 * HOUR);
    for (number, ticks) in [(0, 48 * HOUR / 432), (1, 48 * HOUR / 600)] {
        let begun = &world.begun[number];
        assert!((ticks..=ticks + 1).contains(&i64::try_from(begun.len()).unwrap()), "no tick is wasted");
    }
    for (image, times) in &world.history {
        let lap = if World::registry_of(image) == 0 { 50 * 432 } else { 7 * 600 };
        assert!(times[0] < lap, "{image} waited for {} s", times[0]);
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] == lap), "{image}: {times:?}");
    }
    assert_eq!(world.history.len(), 57);
}

#[test]
fn restarts_neither_burst_nor_begin_again() {
    let registry = Registry { images: 30, pace: default_pace(), quickness: 0, slowness: 0, failures: 0 };
    let mut world = World::new(2, vec![registry]);
    // One restart every seven minutes: less than a tick.
    for restart in 1..=600 {
        world.run(restart * 420);
        world.restart();
    }
    let lap = 30 * 432;
    for (image, times) in &world.history {
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] <= lap + 2 * 432), "{image}: {times:?}");
    }
    assert_eq!(world.history.len(), 30);
}

#[test]
fn a_registry_that_hangs_takes_nothing_from_the_others() {
    let steady = Registry { images: 10, pace: docker_hub(), quickness: 0, slowness: 0, failures: 0 };
    let hanging = Registry { quickness: 100_000_000, ..steady };
    let mut world = World::new(3, vec![hanging, steady]);
    world.run(24 * HOUR);
    assert_eq!((world.begun[0].len(), world.begun[1].len()), (1, 144));
}

#[test]
fn a_registry_that_is_down_is_asked_once_in_an_interval() {
    let down = Registry { images: 10, pace: default_pace(), quickness: 1, slowness: 30, failures: 100 };
    let mut world = World::new(4, vec![down]);
    world.run(240 * HOUR);
    let asked = world.begun[0].len();
    assert!((75..=105).contains(&asked), "80 intervals, a few more looks on the way: {asked}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_pace_is_kept_and_no_image_is_forgotten(
        seed in any::<u64>(),
        registries in proptest::collection::vec(
            (1_u32..20, 600_u64..7200, 1_u32..20, 0_u64..60, 0_u64..50).prop_map(
                |(images, interval, most, slowness, failures)| Registry {
                    images, pace: Pace { interval: Duration::from_secs(interval), most }, quickness: 0, slowness, failures,
                },
            ),
            1..4,
        ),
    ) {
        let mut world = World::new(seed, registries);
        let all: Vec<_> = world.ledger.keys().cloned().collect();
        for round in 1..=40 {
            world.run(round * HOUR);
            match world.roll(4) {
                0 => world.restart(),
                1 => {
                    let image = usize::try_from(world.roll(u64::try_from(all.len()).unwrap())).unwrap();
                    world.ledger.remove(&all[image]);
                    world.sync();
                }
                2 => {
                    let image = usize::try_from(world.roll(u64::try_from(all.len()).unwrap())).unwrap();
                    world.ledger.entry(all[image].clone()).or_insert(None);
                    world.sync();
                }
                _ => {}
            }
        }
        // Calm returns: a round over everything, with an interval of grace.
        for registry in &mut world.registries {
            (registry.failures, registry.slowness) = (0, 0);
        }
        let calm = world.now;
        let lap = |registry: &Registry| {
            let tick = registry.pace.tick().as_secs() + 1;
            2 * registry.pace.interval.as_secs() + tick * u64::from(registry.images) + 120
        };
        let longest = world.registries.iter().map(lap).max().unwrap_or_default();
        world.run(calm + i64::try_from(longest).unwrap());
        for image in world.ledger.keys() {
            let last = world.history.get(image).and_then(|times| times.last().copied());
            prop_assert!(last.is_some_and(|last| last >= calm), "{} was forgotten", image);
        }
    }
}
