//! Which image is looked at next, and when: for each registry by itself, one at a time and evenly spread.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::backoff::Backoff;
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use jiff::Timestamp;

/// However long a registry asks to be left alone, it is asked again after this.
const LONGEST_WAIT: Duration = Duration::from_hours(24);

/// How often the watch may look at images of one registry: `most` times in an `interval`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    pub interval: Duration,
    pub most: u32,
}

impl Pace {
    /// The time between two looks.
    pub fn tick(self) -> Duration {
        self.interval / self.most.max(1)
    }
}

/// What a look says about the registry, rather than about the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RegistryAnswer {
    /// It answered, whatever the answer.
    Fine,
    /// It did not, or not in a way that makes sense: it is looked at less often until it does.
    Failed,
    /// It wants to be left alone until then.
    Until(Timestamp),
}

impl From<&Verdict> for RegistryAnswer {
    fn from(verdict: &Verdict) -> Self {
        match verdict {
            Verdict::RateLimited { until: Some(until), .. } => {
                Timestamp::try_from(*until).map_or(Self::Failed, Self::Until)
            }
            Verdict::RateLimited { until: None, .. }
            | Verdict::Unreachable { .. }
            | Verdict::TlsError { .. }
            | Verdict::Malformed { .. } => Self::Failed,
            Verdict::Available { .. }
            | Verdict::NotFound { .. }
            | Verdict::Unauthorised { .. }
            | Verdict::Forbidden { .. }
            | Verdict::OffLimits { .. }
            | Verdict::FailsOnNodes { .. }
            | Verdict::Unknown { .. } => Self::Fine,
        }
    }
}

/// All images that are looked at, by registry.
#[derive(Debug, Default)]
pub struct Looks {
    /// By the key of their host.
    hosts: BTreeMap<Arc<str>, Host>,
    round: u64,
}

/// Milliseconds since 1970; there are tens of thousands of these.
type Moment = i64;
/// Before every other moment, so that what was never looked at comes first.
const NEVER: Moment = Moment::MIN;

#[derive(Debug, Default)]
struct Host {
    images: HashMap<Reference, ImageSchedule>,
    /// The same images by their last look, then by name.
    order: BTreeSet<(Moment, Reference)>,
    /// The round in which it had its first image.
    born: u64,
    /// When the newest of its looks ended, of images that have left since too.
    newest: Option<Moment>,
    under_way: Option<Reference>,
    failures: u32,
    /// Chance of the last failure, in 0..1.
    jitter: f64,
    left_alone_until: Option<Moment>,
    /// As the pace had it when it was last asked for.
    tick: Option<Duration>,
}

#[derive(Debug, Clone, Copy)]
struct ImageSchedule {
    last: Moment,
    /// The oldest record of the last round, and of the one that is being told.
    recorded: Moment,
    told: Moment,
    /// The last round in which it was tracked.
    round: u64,
}

impl Looks {
    /// Makes `tracked` the images that are looked at, each with its last look as recorded. An image that several
    /// objects track counts with its oldest record, so that one which starts to track it learns of it soon. Records may
    /// lag behind what is known here.
    pub fn sync(&mut self, tracked: impl IntoIterator<Item = (Reference, Option<Timestamp>)>) {
        self.round += 1;
        let round = self.round;
        for (image, recorded) in tracked {
            let recorded = recorded.map_or(NEVER, Timestamp::as_millisecond);
            let place = image.place();
            if !self.hosts.contains_key(place.host()) {
                self.hosts.insert(Arc::from(place.host()), Host { born: round, ..Host::default() });
            }
            let host = self.hosts.get_mut(place.host());
            drop(place);
            if let Some(host) = host {
                host.track(image, recorded, round);
            }
        }
        for host in self.hosts.values_mut() {
            host.settle(round);
        }
    }

    /// The images to look at now, at most one of each registry and none of a registry whose look is under way, and when
    /// to ask again unless a look ends before. `pace` is asked with the registry's host.
    pub fn next(
        &mut self,
        pace: &dyn Fn(&str) -> Pace,
        now: Timestamp,
    ) -> (Vec<Reference>, Option<Timestamp>) {
        let now = now.as_millisecond();
        let mut begun = Vec::new();
        let mut wake: Option<Moment> = None;
        self.hosts.retain(|name, host| {
            let pace = pace(name);
            host.tick = Some(pace.tick());
            host.distrust_the_future(now);
            if host.under_way.is_some() {
                return true;
            }
            let due = host.due(pace);
            let Some((_, image)) = host.order.first() else {
                // Remembered for a while, lest images that come and go are looked at more often than agreed.
                return due > now;
            };
            if due <= now {
                host.under_way = Some(image.clone());
                begun.push(image.clone());
            } else {
                wake = Some(wake.map_or(due, |wake| wake.min(due)));
            }
            true
        });
        (begun, wake.map(timestamp))
    }

    /// A look has ended. Every image that [`Self::next`] gave out has to come back here, or its registry is never
    /// looked at again. `jitter` in 0..1 spreads what failed together.
    pub fn looked(&mut self, image: &Reference, outcome: RegistryAnswer, now: Timestamp, jitter: f64) {
        let Some(host) = self.hosts.get_mut(image.place().host()) else { return };
        let now = now.as_millisecond();
        host.under_way.take_if(|under_way| under_way == image);
        host.newest = Some(now);
        if let Some((image, known)) = host.images.get_key_value(image) {
            let (image, last) = (image.clone(), known.last);
            host.place(image, last, now);
        }
        match outcome {
            RegistryAnswer::Fine => host.failures = 0,
            RegistryAnswer::Failed => {
                host.failures = host.failures.saturating_add(1);
                host.jitter = jitter.clamp(0.0, 1.0);
            }
            RegistryAnswer::Until(end) => {
                host.left_alone_until = Some(end.as_millisecond().min(now + millis(LONGEST_WAIT)));
            }
        }
    }

    /// How long a round over all images of a registry takes while it answers. `None`: none of its images is looked at.
    pub fn lap(&self, host: &str) -> Option<Duration> {
        let host = self.hosts.get(host).filter(|host| !host.images.is_empty())?;
        let images = u32::try_from(host.images.len()).unwrap_or(u32::MAX);
        Some(host.tick?.saturating_mul(images))
    }

    /// The registries that have images.
    pub fn hosts(&self) -> impl Iterator<Item = &Arc<str>> {
        self.hosts.iter().filter(|(_, host)| !host.images.is_empty()).map(|(name, _)| name)
    }
}

impl Host {
    fn track(&mut self, image: Reference, recorded: Moment, round: u64) {
        // A new process goes by what it finds. Later records are of its own looks, or of copies that were just made: if
        // those counted, a mirror that is busy would never be looked at.
        if self.born == round && recorded != NEVER {
            self.newest = self.newest.max(Some(recorded));
        }
        match self.images.get_mut(&image) {
            Some(known) if known.round == round => known.told = known.told.min(recorded),
            Some(known) => (known.told, known.round) = (recorded, round),
            None => {
                // All at once, when the first round is over: a tree that grows is half empty.
                if self.born != round {
                    self.order.insert((recorded, image.clone()));
                }
                self.images.insert(image, ImageSchedule { last: recorded, recorded, told: recorded, round });
            }
        }
    }

    /// Draws the conclusions of a round in which all images were tracked that are still wanted.
    fn settle(&mut self, round: u64) {
        let order = &mut self.order;
        self.images.retain(|image, known| {
            let last = known.last;
            if known.round != round {
                order.remove(&(last, image.clone()));
                return false;
            }
            // Where the record has become older, another object tracks the image now.
            known.last = if known.told < known.recorded { known.told } else { last.max(known.told) };
            known.recorded = known.told;
            if known.last != last {
                order.remove(&(last, image.clone()));
                order.insert((known.last, image.clone()));
            }
            true
        });
        if self.born == round {
            self.order = self.images.iter().map(|(image, known)| (known.last, image.clone())).collect();
        }
    }

    fn place(&mut self, image: Reference, last: Moment, wanted: Moment) {
        self.order.remove(&(last, image.clone()));
        if let Some(known) = self.images.get_mut(&image) {
            known.last = wanted;
        }
        self.order.insert((wanted, image));
    }

    /// Clocks are set back, and another replica's may run ahead: a look that is still to come counts as one made now,
    /// for else its image and its registry would wait for that day.
    fn distrust_the_future(&mut self, now: Moment) {
        self.newest = self.newest.map(|newest| newest.min(now));
        self.left_alone_until = self.left_alone_until.map(|end| end.min(now + millis(LONGEST_WAIT)));
        while let Some((last, image)) = self.order.last().filter(|(last, _)| *last > now).cloned() {
            self.place(image, last, now);
        }
    }

    /// When its next look may begin.
    fn due(&self, pace: Pace) -> Moment {
        let tick = pace.tick();
        let pause = match self.failures {
            0 => tick,
            failures => {
                let longer = Backoff::new(tick, pace.interval.max(tick)).plain(failures);
                longer.mul_f64(0.8 + 0.2 * self.jitter).max(tick)
            }
        };
        let spaced = self.newest.map_or(NEVER, |newest| newest.saturating_add(millis(pause)));
        spaced.max(self.left_alone_until.unwrap_or(NEVER))
    }
}

/// Rounded up: a look must not be early.
fn millis(duration: Duration) -> Moment {
    Moment::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(Moment::MAX)
}

fn timestamp(moment: Moment) -> Timestamp {
    Timestamp::from_millisecond(moment).unwrap_or(Timestamp::MAX)
}
