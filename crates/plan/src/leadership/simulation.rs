//! Electors against one simulated API server: messages are late or lost, processes are paused, clocks run at
//! different speeds. Whatever happens, two never lead at once; once the trouble ends, one leads.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const TROUBLE_ENDS: f64 = 300.0;
const END: f64 = 400.0;

/// A small generator, so that a run follows from its seed alone.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        #[expect(clippy::cast_precision_loss, reason = "53 bits are enough of a die")]
        let value = (self.0 >> 11) as f64 / (1_u64 << 53) as f64;
        value
    }

    fn within(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * self.roll()
    }
}

#[derive(Debug, Clone)]
enum Request {
    Read,
    Put(Write),
}

#[derive(Debug, Clone)]
enum Answer {
    Read(Option<Stored>),
    Wrote(Stored),
    Refused,
}

#[derive(Debug)]
enum Disturbance {
    Wake(usize),
    Pause(usize),
    Arrive { process: usize, call: u64, request: Request },
    Answer { process: usize, call: u64, answer: Answer },
    GiveUp { process: usize, call: u64 },
}

struct Process {
    elector: Elector,
    offset: f64,
    rate: f64,
    paused_until: f64,
    /// Number of the call under way and when it was begun on the local clock.
    call: Option<(u64, Moment)>,
}

impl Process {
    fn local(&self, time: f64) -> Moment {
        Duration::from_secs_f64(self.offset + time * self.rate)
    }

    fn global(&self, moment: Moment) -> f64 {
        (moment.as_secs_f64() - self.offset) / self.rate
    }
}

struct World {
    dice: Dice,
    time: f64,
    events: BTreeMap<(u64, u64), Disturbance>,
    serial: u64,
    processes: Vec<Process>,
    stored: Option<Stored>,
    version: u64,
    terms_seen: usize,
}

impl World {
    fn new(seed: u64, replicas: usize) -> Self {
        let mut dice = Dice(seed | 1);
        let processes = (0..replicas)
            .map(|number| Process {
                elector: Elector::new(format!("replica-{number}"), Timing::default()),
                offset: dice.within(0.0, 1000.0),
                rate: dice.within(0.96, 1.04),
                paused_until: 0.0,
                call: None,
            })
            .collect();
        let mut world = Self {
            dice,
            time: 0.0,
            events: BTreeMap::new(),
            serial: 0,
            processes,
            stored: None,
            version: 0,
            terms_seen: 0,
        };
        for process in 0..replicas {
            let start = world.dice.within(0.0, 5.0);
            world.at(start, Disturbance::Wake(process));
            let pause = world.dice.within(5.0, 60.0);
            world.at(pause, Disturbance::Pause(process));
        }
        world
    }

    fn at(&mut self, time: f64, event: Disturbance) {
        self.serial += 1;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a key in nanoseconds")]
        let key = (time.max(self.time) * 1e9).ceil() as u64;
        self.events.insert((key, self.serial), event);
    }

    /// How long a message travels; `None` for one that is lost.
    fn travel(&mut self) -> Option<f64> {
        let calm = self.time > TROUBLE_ENDS;
        match self.dice.roll() {
            _ if calm => Some(self.dice.within(0.001, 0.05)),
            kind if kind < 0.15 => None,
            kind if kind < 0.3 => Some(self.dice.within(0.5, 12.0)),
            _ => Some(self.dice.within(0.001, 0.3)),
        }
    }

    fn run(&mut self) {
        while let Some(((key, _), event)) = self.events.pop_first() {
            #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a short run")]
            let time = key as f64 / 1e9;
            self.time = time;
            if time > END {
                return;
            }
            self.handle(event);
            let leaders: Vec<_> =
                self.processes.iter().filter(|process| process.elector.leads(process.local(time))).collect();
            assert!(
                leaders.len() <= 1,
                "two lead at {time}: {:?}",
                leaders.iter().map(|l| &l.elector).collect::<Vec<_>>()
            );
        }
    }

    fn handle(&mut self, event: Disturbance) {
        // What happens to a paused process reaches it when it goes on.
        let process = match &event {
            Disturbance::Wake(process)
            | Disturbance::Answer { process, .. }
            | Disturbance::GiveUp { process, .. } => Some(*process),
            Disturbance::Pause(_) | Disturbance::Arrive { .. } => None,
        };
        if let Some(process) = process
            && self.processes[process].paused_until > self.time
        {
            return self.at(self.processes[process].paused_until + 1e-6, event);
        }
        match event {
            Disturbance::Wake(process) => self.step(process),
            Disturbance::Pause(process) => {
                if self.time < TROUBLE_ENDS - 40.0 {
                    self.processes[process].paused_until = self.time + self.dice.within(0.1, 25.0);
                    let next = self.time + self.dice.within(5.0, 90.0);
                    self.at(next, Disturbance::Pause(process));
                }
            }
            Disturbance::Arrive { process, call, request } => {
                let answer = self.serve(request);
                if let Some(travel) = self.travel() {
                    self.at(self.time + travel, Disturbance::Answer { process, call, answer });
                }
            }
            Disturbance::Answer { process, call, answer } => {
                let time = self.time;
                let chance = self.dice.roll();
                let replica = &mut self.processes[process];
                let Some((_, begun)) = replica.call.take_if(|(current, _)| *current == call) else {
                    return;
                };
                let now = replica.local(time);
                match answer {
                    Answer::Read(stored) => replica.elector.saw(stored, now, chance),
                    Answer::Wrote(stored) => replica.elector.wrote(stored, begun, now),
                    Answer::Refused => replica.elector.refused(now),
                }
                self.step(process);
            }
            Disturbance::GiveUp { process, call } => {
                let time = self.time;
                let chance = self.dice.roll();
                let replica = &mut self.processes[process];
                if replica.call.take_if(|(current, _)| *current == call).is_some() {
                    let now = replica.local(time);
                    replica.elector.failed(now, chance);
                    self.step(process);
                }
            }
        }
    }

    fn serve(&mut self, request: Request) -> Answer {
        let Request::Put(write) = request else {
            return Answer::Read(self.stored.clone());
        };
        if write.replaces.as_ref() != self.stored.as_ref().map(|stored| &stored.version) {
            return Answer::Refused;
        }
        if self.stored.as_ref().is_none_or(|stored| stored.record.transitions != write.record.transitions) {
            self.terms_seen += 1;
        }
        self.version += 1;
        let stored = Stored { record: write.record, version: self.version.to_string() };
        self.stored = Some(stored.clone());
        Answer::Wrote(stored)
    }

    fn step(&mut self, process: usize) {
        loop {
            let time = self.time;
            let replica = &mut self.processes[process];
            if replica.call.is_some() {
                return;
            }
            let now = replica.local(time);
            self.serial += 1;
            let stamp = Stamp(i64::try_from(self.serial).expect("short run"));
            match replica.elector.decide(now, stamp) {
                Action::Wait { until } => {
                    let wake = replica.global(until) + self.dice.within(0.0001, 0.02);
                    return self.at(wake, Disturbance::Wake(process));
                }
                Action::StepDown { .. } => replica.elector.step_down(),
                Action::Look { limit } => return self.send(process, Request::Read, now, limit),
                Action::Acquire { write, limit } | Action::Renew { write, limit } => {
                    replica.elector.sending(&write, now);
                    return self.send(process, Request::Put(write), now, limit);
                }
            }
        }
    }

    fn send(&mut self, process: usize, request: Request, now: Moment, limit: Duration) {
        self.serial += 1;
        let call = self.serial;
        self.processes[process].call = Some((call, now));
        if let Some(travel) = self.travel() {
            self.at(self.time + travel, Disturbance::Arrive { process, call, request });
        }
        let give_up = self.processes[process].global(now + limit);
        self.at(give_up, Disturbance::GiveUp { process, call });
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn never_two_leaders_and_one_in_the_end(seed in any::<u64>(), replicas in 2_usize..5) {
        let mut world = World::new(seed, replicas);
        world.run();
        let leading = world.processes.iter().filter(|p| p.elector.leads(p.local(world.time))).count();
        prop_assert_eq!(leading, 1);
    }
}

#[test]
fn the_trouble_is_real() {
    let terms: usize = (1..20_u64)
        .map(|seed| {
            let mut world = World::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15), 3);
            world.run();
            world.terms_seen
        })
        .sum();
    assert!(terms > 100, "leadership changed only {terms} times in all runs, so they prove little");
}
