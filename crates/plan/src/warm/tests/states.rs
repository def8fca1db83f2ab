//! How far a pull is.

use fairlead_domain::digest::Digest;

use super::super::pod_state::{PullState, pull_state};
use super::super::record::Pull;
use super::*;

fn pod(phase: Phase, reason: Option<&str>, container: Option<PullContainer>) -> PullPod {
    let pull = Pull { image: "web".into(), uid: "u".into(), reference: "r.io/a:1".into(), attempt: 1 };
    let record = Record { node: "n".into(), volumes: false, pulls: vec![pull] };
    let containers = container.map(|container| PullContainer { name: "pull".into(), ..container });
    PullPod {
        name: record.pod_name().into(),
        created: at(0),
        phase,
        reason: reason.map(Into::into),
        volumes: 0,
        containers: containers.into_iter().collect(),
        record: Arc::new(record),
    }
}

fn state(pod: &PullPod) -> PullState {
    pull_state(pod, &pod.record.pulls[0])
}

fn waiting(reason: &str, message: &str) -> PullContainer {
    let problem = PullFailure::classify(reason, message).map(|failure| (failure, message.into()));
    PullContainer { waiting: Some(reason.into()), problem, ..PullContainer::default() }
}

fn ended(reason: &str) -> PullContainer {
    PullContainer { terminated: Some(reason.into()), ..PullContainer::default() }
}

/// The word for a state, and the reason of a failure.
fn word(state: &PullState) -> (&str, &str) {
    match state {
        PullState::Pulling => ("pulling", ""),
        PullState::Present { .. } => ("present", ""),
        PullState::Stuck(failure) => ("stuck", &failure.reason),
        PullState::Failed(failure) => ("failed", &failure.reason),
    }
}

#[test]
fn an_image_is_there_once_its_container_is_past_the_pull() {
    let created = Some(PullContainer { created: true, ..PullContainer::default() });
    let identified =
        Some(PullContainer { image_id: Some("r.io/a@sha256:1".into()), ..PullContainer::default() });
    let cases = [
        ("no status yet", Phase::Pending, None, None, ("pulling", "")),
        ("creating", Phase::Pending, None, Some(waiting("ContainerCreating", "")), ("pulling", "")),
        ("succeeded", Phase::Succeeded, None, Some(ended("Completed")), ("present", "")),
        ("exit code", Phase::Failed, None, Some(ended("Error")), ("present", "")),
        ("no such program, containerd", Phase::Failed, None, Some(ended("StartError")), ("present", "")),
        (
            "no such program, CRI-O",
            Phase::Pending,
            None,
            Some(waiting("CreateContainerError", "")),
            ("present", ""),
        ),
        ("bad user", Phase::Pending, None, Some(waiting("CreateContainerConfigError", "")), ("present", "")),
        ("before it", Phase::Pending, None, Some(waiting("PreCreateHookError", "")), ("present", "")),
        ("before the start", Phase::Pending, None, Some(waiting("PreStartHookError", "")), ("present", "")),
        ("cannot run", Phase::Pending, None, Some(waiting("RunContainerError", "")), ("present", "")),
        ("killed", Phase::Failed, Some("Evicted"), Some(ended("OOMKilled")), ("present", "")),
        ("running", Phase::Running, None, created, ("present", "")),
        ("identified", Phase::Pending, None, identified, ("present", "")),
        (
            "evicted while pulling",
            Phase::Failed,
            Some("Evicted"),
            Some(ended("ContainerStatusUnknown")),
            ("failed", "Evicted"),
        ),
        ("deadline", Phase::Failed, Some("DeadlineExceeded"), None, ("failed", "DeadlineExceeded")),
        ("no room", Phase::Failed, Some("OutOfpods"), None, ("failed", "OutOfpods")),
        ("failed", Phase::Failed, None, None, ("failed", "PodFailed")),
        ("node lost", Phase::Unknown, None, None, ("pulling", "")),
    ];
    for (what, phase, reason, container, expected) in cases {
        assert_eq!(word(&state(&pod(phase, reason, container))), expected, "{what}");
    }
}

#[test]
fn every_failure_of_a_pull_has_its_consequence() {
    let missing = "rpc error: code = NotFound desc = failed to resolve reference: r.io/a:1: not found";
    for (reason, message, expected) in [
        ("ErrImagePull", missing, "failed"),
        ("ImagePullBackOff", "Back-off pulling image \"r.io/a:1\": ErrImagePull: 401 Unauthorized", "failed"),
        ("ErrImagePull", "dial tcp: connect: connection refused", "failed"),
        ("ErrImagePull", "net/http: TLS handshake timeout", "stuck"),
        ("ErrImagePull", "429 Too Many Requests", "stuck"),
        ("ImagePullBackOff", "Back-off pulling image \"r.io/a:1\"", "stuck"),
        ("ErrImagePull", "pull QPS exceeded", "pulling"),
        ("ErrImagePull", "no space left on device", "failed"),
        ("ErrImagePull", "no match for platform in manifest", "failed"),
        ("InvalidImageName", "", "failed"),
        ("ErrImageNeverPull", "", "failed"),
        ("RegistryUnavailable", "", "failed"),
        ("SignatureValidationFailed", "", "failed"),
        ("ImageInspectError", "", "stuck"),
    ] {
        let found = state(&pod(Phase::Pending, None, Some(waiting(reason, message))));
        let (found, said) = word(&found);
        assert_eq!(found, expected, "{reason} {message}");
        assert!(said == reason || found == "pulling", "{said}");
    }
    let PullState::Failed(failure) =
        state(&pod(Phase::Pending, None, Some(waiting("ErrImagePull", missing))))
    else {
        panic!("it failed");
    };
    assert!(failure.message.starts_with("image not found: ") && failure.of_image, "{failure:?}");
}

#[test]
fn the_digest_is_that_of_the_registry() {
    let digest: Digest = format!("sha256:{}", "0".repeat(64)).parse().unwrap();
    for (id, expected) in [
        (format!("r.io/a@{digest}"), Some(digest)),
        (format!("docker-pullable://r.io/a@{digest}"), Some(digest)),
        (digest.to_string(), None),
        ("nonsense".to_owned(), None),
    ] {
        let container = PullContainer { image_id: Some(id.as_str().into()), ..PullContainer::default() };
        let found = state(&pod(Phase::Pending, None, Some(container)));
        assert_eq!(found, PullState::Present { digest: expected }, "{id}");
    }
}

#[test]
fn a_volume_is_there_only_if_its_container_was_made() {
    let by_volume = |volumes, container| {
        let mut pod = pod(Phase::Pending, None, container);
        Arc::make_mut(&mut pod.record).volumes = true;
        pod.volumes = volumes;
        state(&pod)
    };
    assert_eq!(word(&by_volume(0, None)), ("failed", "ImageVolumeDropped"));
    assert_eq!(word(&by_volume(1, None)), ("pulling", ""));
    assert_eq!(
        word(&by_volume(1, Some(waiting("CreateContainerError", "")))),
        ("failed", "CreateContainerError")
    );
    assert_eq!(word(&by_volume(1, Some(waiting("ErrImagePull", "not found")))), ("failed", "ErrImagePull"));
    assert_eq!(word(&by_volume(1, Some(waiting("PreCreateHookError", "")))), ("pulling", ""));
    assert_eq!(word(&by_volume(1, Some(waiting("PreStartHookError", "")))), ("present", ""));
    assert_eq!(
        word(&by_volume(1, Some(ended("StartError")))),
        ("present", ""),
        "the runner needs no program"
    );
}
