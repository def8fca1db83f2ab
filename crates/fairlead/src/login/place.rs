//! The names under which logins are stored, made comparable with the names that images have.
//!
//! Docker Hub has several, and the tools disagree about them: docker stores a URL of its first API, podman the name
//! that references have.

use fairlead_domain::reference::Host;

const HUB: &str = "docker.io";
const HUB_NAMES: [&str; 3] = [HUB, "index.docker.io", "registry-1.docker.io"];
/// The name by which docker asks its helpers for Docker Hub's login.
const HUB_SERVER: &str = "https://index.docker.io/v1/";

/// A location for the keyring. All of Docker Hub's names become the one in references: the kubelet's rules would
/// otherwise offer Docker Hub's password to every host whose name has no dot.
pub(super) fn location(written: &str) -> String {
    let (host, path) = split(written);
    if !is_hub(host) {
        return written.to_owned();
    }
    let path = match path.split_once('/').unwrap_or((path, "")) {
        ("v1" | "v2", rest) => rest,
        _ => path,
    };
    if path.is_empty() { HUB.to_owned() } else { format!("{HUB}/{path}") }
}

/// The host of a place as a key to look helpers up by.
pub(super) fn host_key(written: &str) -> String {
    let (host, _) = split(written);
    if is_hub(host) { HUB.to_owned() } else { host.to_ascii_lowercase() }
}

/// The names by which helpers may know a registry, most usual first.
pub(super) fn servers(host: &Host) -> Vec<&str> {
    if host.is_docker_hub() { vec![HUB_SERVER, HUB] } else { vec![host.as_str()] }
}

fn split(written: &str) -> (&str, &str) {
    let address = ["https://", "http://"]
        .into_iter()
        .find_map(|scheme| written.strip_prefix(scheme))
        .unwrap_or(written);
    address.split_once('/').unwrap_or((address, ""))
}

fn is_hub(host: &str) -> bool {
    HUB_NAMES.iter().any(|name| host.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn docker_hub_has_one_name() {
        for (written, expected) in [
            ("https://index.docker.io/v1/", "docker.io"),
            ("https://index.docker.io/v1", "docker.io"),
            ("registry-1.docker.io", "docker.io"),
            ("docker.io", "docker.io"),
            ("docker.io/team", "docker.io/team"),
            ("index.docker.io/v2/team/app", "docker.io/team/app"),
            ("https://r.example.com/v1/", "https://r.example.com/v1/"),
            ("r.example.com:5000/team", "r.example.com:5000/team"),
        ] {
            assert_eq!(location(written), expected, "{written}");
        }
    }

    #[test]
    fn helpers_are_for_hosts() {
        assert_eq!(host_key("https://R.example.com:5000/v2/"), "r.example.com:5000");
        assert_eq!(host_key("https://index.docker.io/v1/"), "docker.io");
    }
}
