//! Whole lives of certificates in a simulated cluster: replicas and API servers that learn late, leaders that come and
//! go, writes that fail. At every moment every leaf that is served must verify wherever it may be looked at, and every
//! replica must accept the token in every path that an API server may call.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const VALIDITY: Duration = Duration::from_mins(1);
const TICK: Duration = Duration::from_millis(100);
const LEADERS: usize = 2;

/// A leaf as a replica serves it.
#[derive(Clone, Debug)]
struct Served {
    window: Window,
    signed_by: Authority,
}

#[derive(Debug)]
struct Replica {
    serves: Option<Served>,
    accepts: Vec<TokenId>,
    next_look: WallTime,
}

/// An API server sees the bundle as it was some time ago, but never longer than the settling time.
#[derive(Debug)]
struct ApiServer {
    lag: Duration,
}

/// What one process remembers when it leads.
#[derive(Debug, Default)]
struct Memory {
    exact_since: Option<(Vec<AuthorityId>, WallTime)>,
    leaf_since: Option<(WallTime, WallTime)>,
    tokens: Option<(Tokens, WallTime)>,
    registered: Option<(TokenId, WallTime)>,
}

/// What the webhook configuration says.
#[derive(Debug, Clone, Default)]
struct Registered {
    bundle: Vec<Authority>,
    token: Option<TokenId>,
}

struct World {
    now: WallTime,
    settings: Settings,
    secret: Option<Kept>,
    /// The webhook configuration, with the time from which it held.
    history: Vec<(WallTime, Registered)>,
    replicas: Vec<Replica>,
    api_servers: Vec<ApiServer>,
    leader: usize,
    memories: Vec<Memory>,
    next_step: WallTime,
    made: usize,
    authorities: Vec<Authority>,
    swaps: usize,
    /// Tokens that were registered.
    registrations: usize,
}

impl World {
    fn new(lags: &[u64]) -> Self {
        let settings = Settings::new(VALIDITY, BTreeSet::from(["webhook".to_owned()])).unwrap();
        let now = Duration::from_hours(500_000);
        Self {
            now,
            secret: None,
            history: vec![(now, Registered::default())],
            replicas: (0..3).map(|_| Replica { serves: None, accepts: Vec::new(), next_look: now }).collect(),
            api_servers: lags
                .iter()
                .map(|lag| ApiServer {
                    lag: Duration::from_millis(*lag).min(settings.settle.saturating_sub(TICK)),
                })
                .collect(),
            settings,
            leader: 0,
            memories: (0..LEADERS).map(|_| Memory::default()).collect(),
            next_step: now,
            made: 0,
            authorities: Vec::new(),
            swaps: 0,
            registrations: 0,
        }
    }

    fn written(&self) -> Registered {
        self.history.last().map(|(_, written)| written.clone()).unwrap_or_default()
    }

    fn written_at(&self, time: WallTime) -> Registered {
        let held = self.history.iter().rev().find(|(since, _)| *since <= time);
        held.map(|(_, written)| written.clone()).unwrap_or_default()
    }

    fn make_token(&mut self) -> TokenId {
        self.made += 1;
        TokenId(format!("token-{}", self.made))
    }

    /// Leaves differ by their end.
    fn leaf_id(&self) -> Option<LeafId> {
        let leaf = self.secret.as_ref()?.leaf.as_ref()?;
        Some(LeafId(format!("{:?}", leaf.window.not_after)))
    }

    fn make_authority(&mut self) -> Authority {
        self.made += 1;
        let made = Authority {
            id: AuthorityId(format!("authority-{}", self.made)),
            window: self.settings.authority_window(self.now),
        };
        self.authorities.push(made.clone());
        made
    }

    fn make_leaf(&self, issuer: &Authority) -> Leaf {
        Leaf {
            window: self.settings.leaf_window(self.now, &issuer.window),
            names: self.settings.names.clone(),
            signed_by: Some(issuer.id.clone()),
        }
    }

    fn known(&self, keep: &[AuthorityId]) -> Vec<Authority> {
        keep.iter().filter_map(|id| self.authorities.iter().find(|known| known.id == *id).cloned()).collect()
    }

    fn observe(&mut self) -> View {
        let now = self.now;
        let held = self.written().bundle;
        let wanted = self.secret.as_ref().map(|kept| ids(kept.bundle.iter()));
        let leaf = self.secret.as_ref().and_then(|kept| kept.leaf.as_ref()).map(|leaf| leaf.window.not_after);
        let memory = &mut self.memories[self.leader];
        let held_ids = ids(held.iter());
        if wanted.as_ref() == Some(&held_ids) {
            if memory.exact_since.as_ref().map(|(bundle, _)| bundle) != Some(&held_ids) {
                memory.exact_since = Some((held_ids, now));
            }
        } else {
            memory.exact_since = None;
        }
        if memory.leaf_since.map(|(leaf, _)| leaf) != leaf {
            memory.leaf_since = leaf.map(|leaf| (leaf, now));
        }
        View {
            now,
            secret: self.secret.clone(),
            trust: Trust::Held {
                authorities: held,
                exact_for: memory.exact_since.as_ref().map(|(_, since)| now.saturating_sub(*since)),
            },
            leaf_seen_for: memory.leaf_since.map_or(Duration::ZERO, |(_, since)| now.saturating_sub(since)),
        }
    }

    fn observe_path(&mut self) -> PathView {
        let now = self.now;
        let tokens = self.secret.as_ref().map(|kept| kept.tokens.clone()).unwrap_or_default();
        let (token, leaf) = (self.written().token, self.leaf_id());
        let accepted = self.replicas[self.leader].accepts.clone();
        let memory = &mut self.memories[self.leader];
        if memory.tokens.as_ref().map(|(known, _)| known) != Some(&tokens) {
            memory.tokens = Some((tokens.clone(), now));
        }
        if token.is_none() || token != tokens.current {
            memory.registered = None;
        } else if memory.registered.as_ref().map(|(known, _)| known) != token.as_ref() {
            memory.registered = token.clone().map(|token| (token, now));
        }
        let since = |since: WallTime| now.saturating_sub(since);
        PathView {
            seen_for: memory.tokens.as_ref().map_or(Duration::ZERO, |(_, at)| since(*at)),
            registration: Registration::Held {
                token,
                exact_for: memory.registered.as_ref().map(|(_, at)| since(*at)),
            },
            tokens,
            leaf,
            accepted,
        }
    }

    /// One step about the path; returns how long to wait for the next.
    fn lead_path(&mut self, fails: bool) -> Duration {
        let decision = decide_path(&self.observe_path(), &self.settings);
        if let PathStep::Wait { after } = decision.step {
            return after;
        }
        if fails {
            return TICK;
        }
        let made_for = self.leaf_id();
        let mut written = self.written();
        let mut kept = self.secret.clone().unwrap_or_default();
        let tokens = &mut kept.tokens;
        match decision.step {
            PathStep::Begin => {
                *tokens = Tokens { current: Some(self.make_token()), made_for, ..Tokens::default() };
            }
            PathStep::Adopt { previous } => (tokens.current, tokens.previous) = (written.token, previous),
            PathStep::Stage => (tokens.next, tokens.made_for) = (Some(self.make_token()), made_for),
            PathStep::Promote => {
                tokens.previous = tokens.current.take();
                tokens.current = tokens.next.take();
            }
            PathStep::Drop => tokens.previous = None,
            PathStep::Register => {
                written.token.clone_from(&tokens.current);
                self.history.push((self.now, written));
                self.registrations += 1;
                return TICK;
            }
            PathStep::Wait { .. } => {}
        }
        self.secret = Some(kept);
        TICK
    }

    /// One step of the leader; `fails` loses its write.
    fn lead(&mut self, fails: bool) {
        let view = self.observe();
        let decision = decide(&view, &self.settings);
        self.next_step = self.now + TICK;
        if let Step::Wait { after } = decision.step {
            self.next_step = self.now + after.min(self.lead_path(fails));
            return;
        }
        if fails {
            return;
        }
        let mut kept = self.secret.clone().unwrap_or_default();
        match decision.step {
            Step::Begin => {
                let made = self.make_authority();
                kept.leaf = Some(self.make_leaf(&made));
                kept.bundle = vec![made.clone()];
                kept.issuer = Some(made);
            }
            Step::Stage { keep } => {
                let made = self.make_authority();
                kept.bundle = self.known(&keep);
                kept.bundle.push(made.clone());
                kept.staged = Some(made);
                kept.rotation_requested = false;
            }
            Step::Bundle { keep } => kept.bundle = self.known(&keep),
            Step::Trust => {
                let written = Registered { bundle: kept.bundle.clone(), ..self.written() };
                self.history.push((self.now, written));
                return;
            }
            Step::Swap => {
                let staged = kept.staged.take().unwrap();
                kept.leaf = Some(self.make_leaf(&staged));
                kept.issuer = Some(staged);
                self.swaps += 1;
            }
            Step::Renew => kept.leaf = Some(self.make_leaf(kept.issuer.as_ref().unwrap())),
            Step::Wait { .. } => {}
        }
        self.secret = Some(kept);
    }

    fn follow(&mut self, jitter: u32) {
        for replica in &mut self.replicas {
            if self.now < replica.next_look {
                continue;
            }
            let leaf = self.secret.as_ref().and_then(|kept| kept.leaf.clone());
            if let Some(leaf) = leaf {
                let signed_by =
                    self.authorities.iter().find(|known| Some(&known.id) == leaf.signed_by.as_ref());
                replica.serves = Some(Served { window: leaf.window, signed_by: signed_by.unwrap().clone() });
            }
            // A Secret without the current token leaves a replica with those that it has.
            if let Some(tokens) =
                self.secret.as_ref().map(|kept| &kept.tokens).filter(|kept| kept.current.is_some())
            {
                let stored = [&tokens.previous, &tokens.current, &tokens.next];
                replica.accepts = stored.into_iter().flatten().cloned().collect();
            }
            let pause = self.settings.follow(self.secret.as_ref());
            replica.next_look = self.now + pause + pause * (jitter % 26) / 100;
        }
    }

    /// Panics where an API server would refuse a leaf, or a replica the path of an API server.
    fn verify(&self) {
        for (replica, server) in self
            .replicas
            .iter()
            .flat_map(|replica| self.api_servers.iter().map(move |server| (replica, server)))
        {
            let called = self.written_at(self.now.saturating_sub(server.lag)).token;
            assert!(
                called.as_ref().is_some_and(|token| replica.accepts.contains(token)),
                "an API server {:?} behind calls {called:?}, and a replica accepts {:?}",
                server.lag,
                replica.accepts
            );
        }
        for served in self.replicas.iter().filter_map(|replica| replica.serves.as_ref()) {
            assert!(
                served.window.not_before <= self.now && self.now < served.window.not_after,
                "leaf over: {served:?}"
            );
            assert!(self.now < served.signed_by.window.not_after, "authority over: {served:?}");
            for server in &self.api_servers {
                let bundle = self.written_at(self.now.saturating_sub(server.lag)).bundle;
                assert!(
                    bundle.iter().any(|trusted| trusted.id == served.signed_by.id),
                    "{served:?} is not trusted by an API server {:?} behind, which sees {bundle:?}",
                    server.lag
                );
            }
        }
    }

    fn settled(&self) -> bool {
        let Some(kept) = &self.secret else { return false };
        let written = self.written();
        Stage::of(self.secret.as_ref()) == Stage::Settled
            && ids(kept.bundle.iter()) == ids(written.bundle.iter())
            && kept.tokens.current.is_some()
            && kept.tokens.current == written.token
    }
}

/// What happens to the cluster from outside.
#[derive(Debug, Clone)]
enum Disturbance {
    Nothing,
    OtherLeader,
    NoLeaderFor(u64),
    WritesFailFor(u64),
    RotationAsked,
}

fn event() -> impl Strategy<Value = Disturbance> {
    prop_oneof![
        6 => Just(Disturbance::Nothing),
        2 => Just(Disturbance::OtherLeader),
        1 => (1_u64..6).prop_map(Disturbance::NoLeaderFor),
        1 => (1_u64..4).prop_map(Disturbance::WritesFailFor),
        2 => Just(Disturbance::RotationAsked),
    ]
}

/// Runs the world for `span`; leaders rest until `rest` and writes fail until `fail`.
fn run(world: &mut World, span: Duration, rest: WallTime, fail: WallTime, jitter: u32, strict: bool) {
    let end = world.now + span;
    let mut turn = jitter;
    while world.now < end {
        if world.now >= world.next_step && world.now >= rest {
            let fails = world.now < fail;
            world.lead(fails);
        }
        turn = turn.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        world.follow(turn >> 16);
        if strict {
            world.verify();
        }
        world.now += TICK;
    }
}

fn start(lags: &[u64]) -> World {
    let mut world = World::new(lags);
    let now = world.now;
    run(&mut world, Duration::from_secs(10), now, now, 1, false);
    assert!(world.settled(), "{:?}", world.secret);
    world
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Over several lives of the authority, with everything late, no leaf is ever refused.
    #[test]
    fn every_served_leaf_is_trusted_everywhere(
        lags in proptest::collection::vec(0_u64..3_000, 3),
        jitter: u32,
        events in proptest::collection::vec(event(), 60),
    ) {
        let mut world = start(&lags);
        for (turn, event) in events.iter().enumerate() {
            let (mut rest, mut fail) = (world.now, world.now);
            match event {
                Disturbance::Nothing => {}
                Disturbance::OtherLeader => {
                    world.leader = (world.leader + 1) % LEADERS;
                    world.memories[world.leader] = Memory::default();
                }
                Disturbance::NoLeaderFor(seconds) => rest += Duration::from_secs(*seconds),
                Disturbance::WritesFailFor(seconds) => fail += Duration::from_secs(*seconds),
                Disturbance::RotationAsked => {
                    if let Some(kept) = &mut world.secret {
                        kept.rotation_requested = true;
                    }
                }
            }
            let turn = jitter.wrapping_add(u32::try_from(turn).unwrap());
            run(&mut world, Duration::from_secs(20), rest, fail, turn, true);
        }
        prop_assert!(world.swaps >= 2, "the authority changed only {} times", world.swaps);
        let registrations = world.registrations;
        prop_assert!(registrations > world.swaps, "the token changed only {registrations} times");
    }

    /// Whatever is broken, some time later all is well again.
    #[test]
    fn every_damage_heals(lags in proptest::collection::vec(0_u64..3_000, 3), damage in 0_u8..9, jitter: u32) {
        let mut world = start(&lags);
        let now = world.now;
        if damage == 6 {
            // Everything was asleep for longer than any certificate lives.
            world.now += VALIDITY * 20;
        } else if let Some(kept) = &mut world.secret {
            match damage {
                0 => world.secret = None,
                1 => world.secret = Some(Kept::default()),
                2 => kept.leaf = None,
                3 => kept.issuer = None,
                4 => { kept.bundle.clear(); kept.bundle_is_damaged = true; }
                5 => kept.tokens = Tokens::default(),
                7 => kept.tokens.current = Some(TokenId("of somebody else".to_owned())),
                _ => world.history.push((now, Registered::default())),
            }
        }
        let now = world.now;
        run(&mut world, Duration::from_secs(40), now, now, jitter, false);
        prop_assert!(world.settled(), "{:?}\n{:?}", world.secret, world.written());
        world.verify();
    }

    /// Replicas that hold a good leaf go on being trusted when the Secret is lost or mangled.
    #[test]
    fn losing_the_secret_drops_no_request(lags in proptest::collection::vec(0_u64..3_000, 3), emptied: bool, jitter: u32) {
        let mut world = start(&lags);
        world.secret = emptied.then(Kept::default);
        let now = world.now;
        run(&mut world, Duration::from_mins(1), now, now, jitter, true);
        prop_assert!(world.settled());
    }
}

/// The Secret is lost at some moment of the first rotation, when API servers may still call a path that is not
/// registered any more.
#[test]
fn losing_the_secret_amid_a_rotation_drops_no_request() {
    for (lost_after, emptied) in (250..450).map(|tenths| (TICK * tenths, tenths % 2 == 0)) {
        let mut world = start(&[0, 1_000, 3_000]);
        let now = world.now;
        run(&mut world, lost_after, now, now, 3, true);
        world.secret = emptied.then(Kept::default);
        let now = world.now;
        run(&mut world, Duration::from_secs(20), now, now, 5, true);
    }
}

/// Left alone, leaves change about every half life and the authority rarely.
#[test]
fn a_quiet_life() {
    let mut world = start(&[0, 1_000]);
    let now = world.now;
    run(&mut world, VALIDITY * 30, now, now, 7, true);
    assert!((3..=7).contains(&world.swaps), "{}", world.swaps);
    let registrations = world.registrations;
    assert!((30..=60).contains(&registrations), "one token for each leaf, not {registrations}");
    assert!(
        world.history.len() < 2 + 3 * 8 + registrations,
        "the webhook configuration is written on change only"
    );
}
