//! The library by which CRI-O, podman and skopeo read `registries.conf`, on rendered files of random policies: it asks
//! the places that `resolve` says, in that order, or the difference is reported.

use fairlead_domain::reference::Reference;
use fairlead_node::RuntimeName::Crio;
use fairlead_node::{read_as, resolve};
use fairlead_plan::node_config::{Endpoint, EndpointState, Resolution};
use fairlead_testkit::oracle::Oracle;
use fastrand::Rng;
use serde::{Deserialize, Serialize};

use super::*;

const CASES: usize = 3_000;
const CRIO: Runtime = Runtime { name: Crio, version: None };
const DIGEST: &str = "@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const SCOPES: &[&str] = &[
    "*.test",
    "*.v.test",
    "a.v.test",
    "ab.v.test",
    "docker.io",
    "docker.io/library/nginx",
    "hub.test",
    "hub.test/a",
    "hub.test/a/b",
    "hub.test:5000",
    "m.test/a",
];
const MIRRORS: &[&str] = &[
    "docker.io",
    "docker.io/x",
    "hub.test/copy",
    "localhost",
    "m.test",
    "m.test/a",
    "m.test:5000/b",
    "n.v.test/c",
    "registry",
];
const IMAGES: &[&str] = &[
    "a.v.test/x",
    "ab.v.test/x/y",
    "hub.test/a",
    "hub.test/a/b/c",
    "hub.test/x",
    "hub.test:5000/a",
    "m.test/a/x",
    "nginx",
    "b.v.test:5000/y",
    "a.v.test:5000/y",
    "hub.test:443/x",
    "m.test:5000/b/x",
    REPEATED,
];
/// Readers do not find `*.test` in this.
const REPEATED: &str = "b.test.z.test/x";

#[derive(Serialize)]
struct Question {
    file: String,
    images: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct Answer {
    error: String,
    places: Option<Vec<Place>>,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Place {
    image: String,
    insecure: bool,
    blocked: bool,
}

fn config(random: &mut Rng) -> NodeConfig {
    let kinds =
        [PolicyKind::ImageDigestMirrorSet, PolicyKind::ImageTagMirrorSet, PolicyKind::ImageSourceTagPolicy];
    let policies = (0..random.usize(1..6)).map(|_| {
        let kind = kinds[random.usize(..kinds.len())];
        let source = SCOPES[random.usize(..SCOPES.len())];
        let mut mirrors: Vec<&str> = MIRRORS.iter().copied().filter(|_| random.u8(..4) == 0).collect();
        random.shuffle(&mut mirrors);
        policy(kind, source, &mirrors, kind != PolicyKind::ImageSourceTagPolicy && random.u8(..4) == 0)
    });
    let policies: Vec<MirrorPolicy> = policies.collect();
    let mut some = |most: usize| -> Vec<&str> {
        (0..random.usize(..most)).map(|_| SCOPES[random.usize(..SCOPES.len())]).collect()
    };
    let (insecure, blocked) = (some(3), some(2));
    plan(policies, &insecure, &blocked)
}

/// The places that are left in the file, as the library shows them.
fn places(resolution: &Resolution) -> Vec<Place> {
    let in_file = resolution.endpoints.iter().filter(|endpoint| endpoint.state != EndpointState::NoName);
    in_file
        .map(|Endpoint { image, insecure, state, .. }| Place {
            image: image.clone(),
            insecure: *insecure,
            blocked: *state != EndpointState::Asked,
        })
        .collect()
}

#[test]
fn readers_of_the_file_ask_the_places_that_are_resolved_in_their_order() {
    let mut random = Rng::with_seed(17);
    let configs: Vec<NodeConfig> = (0..CASES).map(|_| config(&mut random)).collect();
    let images: Vec<String> =
        IMAGES.iter().flat_map(|image| [format!("{image}:1"), format!("{image}{DIGEST}")]).collect();
    let files: Vec<Rendered> = configs.iter().map(|config| rendered(config, Crio, None)).collect();
    let content =
        |rendered: &Rendered| rendered.files.first().map(|file| file.content.clone()).unwrap_or_default();
    let questions: Vec<Question> =
        files.iter().map(|file| Question { file: content(file), images: images.clone() }).collect();
    let answers: Vec<Vec<Answer>> = Oracle::build("mirrors").unwrap().ask(&["order"], &questions).unwrap();
    let (mut same, mut reported_as_inexact) = (0, 0);
    for ((config, file), answers) in configs.iter().zip(&files).zip(&answers) {
        for (image, answer) in images.iter().zip(answers) {
            let image = Reference::parse(image).unwrap();
            let resolution = config.resolve(&image);
            let ours = places(&resolution);
            let theirs = answer.places.as_deref().unwrap_or_default();
            let told = || format!("{image}: {ours:?}\n{answer:?}\n{}\n{:?}", content(file), file.inexact);
            // What a person is told is what readers do, whatever policies say.
            let shown = resolve(config, &CRIO, None, &image);
            let asked = |places: &[Place]| -> Vec<(String, bool)> {
                let asked = places.iter().filter(|place| !place.blocked);
                asked.map(|place| (place.image.clone(), place.insecure)).collect()
            };
            assert_eq!(asked(&places(&shown)), asked(theirs), "{}", told());
            let source = image.as_str();
            // Whatever else differs: a closed source is not contacted.
            let is_repeated = image.name() == REPEATED && resolution.scope.is_some();
            let is_closed = !is_repeated && ours.iter().any(|place| place.image == source && place.blocked);
            assert!(
                !is_closed || theirs.iter().all(|place| place.image != source || place.blocked),
                "{}",
                told()
            );
            if ours == theirs && answer.error.is_empty() {
                same += 1;
                continue;
            }
            let name =
                |place: &Place| place.image.strip_suffix(&source[image.name().len()..]).unwrap().to_owned();
            let is_read_differently =
                is_repeated || ours.iter().any(|place| read_as(config, &name(place)).is_some());
            let is_reported = resolution.scope.iter().any(|scope| !reported(file, scope.as_str()).is_empty())
                || ours.iter().filter_map(|place| Some(config.entry_for(&name(place))?.0)).any(|scope| {
                    reported(file, scope.as_str()).iter().any(|message| message.contains("is closed"))
                });
            assert!(is_read_differently || is_reported, "{}", told());
            reported_as_inexact += 1;
        }
    }
    eprintln!("{same} images are asked for as resolved; {reported_as_inexact} differ and are reported");
    assert!(same > 3 * reported_as_inexact);
}
