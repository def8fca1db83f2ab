//! Two replicas, a tag that moves, and any order of their steps: the Pods of a revision get one digest.

use proptest::prelude::*;

use super::*;

/// The API server's copy of the one pin, with its version.
#[derive(Debug, Default)]
struct Server {
    pin: Option<ImagePin>,
    version: u64,
}

impl Server {
    /// Whether the write was accepted.
    fn accept(&mut self, write: PinWrite) -> bool {
        match write {
            PinWrite::Nothing => return true,
            PinWrite::Create(pin) if self.pin.is_none() => self.pin = Some(*pin),
            PinWrite::Create(_) => return false,
            PinWrite::Add(patch) => {
                let Some(pin) = &mut self.pin else { return false };
                if patch["metadata"]["resourceVersion"].as_str() != Some(&*self.version.to_string()) {
                    return false;
                }
                pin.spec.images = serde_json::from_value(patch["spec"]["images"].clone()).expect("images");
            }
        }
        self.version += 1;
        let version = Some(self.version.to_string());
        if let Some(pin) = &mut self.pin {
            pin.metadata.resource_version = version;
        }
        true
    }
}

/// A Pod on its way through a replica.
#[derive(Debug, Clone)]
struct Admission {
    replica: usize,
    asked: Reference,
    step: Step,
}

#[derive(Debug, Clone)]
enum Step {
    Look,
    Resolve,
    Write { found: Option<Box<ImagePin>>, image: PinnedImage },
    Read { image: PinnedImage },
    Admitted(Digest),
}

fn run(admissions: &mut [Admission], order: &[(usize, bool, bool)]) -> Server {
    let revision = of_set("web-5d4", "u", "5d4");
    let (mut server, mut moves) = (Server::default(), 0);
    // What each replica's watch has shown.
    let mut seen: [Option<ImagePin>; 2] = [None, None];
    let rest = (0..admissions.len()).cycle().map(|at| (at, false, true)).take(admissions.len() * 20);
    for (at, moved, shown) in order.iter().copied().chain(rest) {
        moves += u32::from(moved);
        let number = at % admissions.len();
        let admission = &mut admissions[number];
        if shown {
            seen[admission.replica] = server.pin.clone();
        }
        let known =
            |pin: Option<&ImagePin>| pin.and_then(|pin| digest_in(&pin.spec.images, &admission.asked));
        admission.step = match admission.step.clone() {
            Step::Look => known(seen[admission.replica].as_ref()).map_or(Step::Resolve, Step::Admitted),
            Step::Resolve => {
                let image = image(admission.asked.as_str(), &format!("{} {moves}", admission.asked), 1);
                Step::Write { found: seen[admission.replica].clone().map(Box::new), image }
            }
            Step::Write { found, image } => {
                let write =
                    write(&revision, found.as_deref(), std::slice::from_ref(&image)).expect("it is ours");
                let is_known = matches!(write, PinWrite::Nothing);
                if server.accept(write) {
                    let stored = if is_known { found.as_deref() } else { server.pin.as_ref() };
                    Step::Admitted(known(stored).expect("it is pinned"))
                } else {
                    Step::Read { image }
                }
            }
            Step::Read { image } => Step::Write { found: server.pin.clone().map(Box::new), image },
            admitted @ Step::Admitted(_) => admitted,
        };
    }
    server
}

proptest! {
    #[test]
    fn all_pods_of_a_revision_get_one_digest(
        pods in prop::collection::vec((0..2usize, prop::sample::select(vec!["nginx:1", "redis:1"])), 1..12),
        order in prop::collection::vec((0..64usize, prop::bool::weighted(0.2), any::<bool>()), 0..200),
    ) {
        let mut admissions: Vec<_> = pods
            .into_iter()
            .map(|(replica, asked)| Admission { replica, asked: reference(asked), step: Step::Look })
            .collect();
        let server = run(&mut admissions, &order);
        let pin = server.pin.expect("there is one pin");
        for Admission { asked, step, .. } in &admissions {
            let Step::Admitted(digest) = step else { panic!("{asked} was not admitted: {step:?}") };
            prop_assert_eq!(Some(*digest), digest_in(&pin.spec.images, asked));
        }
    }
}
