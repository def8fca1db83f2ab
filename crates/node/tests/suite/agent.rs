//! One node and its files, without a process of its own.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use fairlead_domain::keyring::{IdentityKey, Keyring};
use fairlead_domain::reference::Reference;
use fairlead_node::agent::{AgentSettings, NodeAgent};
use fairlead_node::files::ConfigDir;
use fairlead_node::router::{Router, RouterSettings};
use fairlead_node::{Runtime, RuntimeName};
use fairlead_testkit::fake_registry::FakeRegistry;
use prometheus_client::registry::Registry;
use tempfile::TempDir;

use crate::{both, digest_never, tag_never};

fn agent(root: &Path, runtime: RuntimeName, directory: &str, own_image: Option<&str>) -> NodeAgent {
    agent_at("127.0.0.1:7780".parse().unwrap(), root, runtime, directory, own_image)
}

fn agent_at(
    router_address: SocketAddr,
    root: &Path,
    runtime: RuntimeName,
    directory: &str,
    own_image: Option<&str>,
) -> NodeAgent {
    fairlead_testkit::install_crypto();
    let router = Arc::new(Router::new(RouterSettings::default(), Keyring::new(IdentityKey::new([7; 32]))));
    let settings = AgentSettings {
        directory: ConfigDir::new(root.join(directory), runtime),
        runtime: Runtime { name: runtime, version: None },
        host_root: root.to_owned(),
        router: Some(router_address),
        insecure: [].into(),
        blocked: [].into(),
        own_image: own_image.map(|text| Reference::parse(text).unwrap()),
    };
    NodeAgent::new(settings, router, &mut Registry::default())
}

/// Each source with what is said about it.
fn notes(notes: &[(fairlead_plan::node_config::Scope, String)]) -> Vec<String> {
    notes.iter().map(|(source, message)| format!("{source}: {message}")).collect()
}

/// containerd reads the file of domains only for hosts without a directory.
#[tokio::test]
async fn a_directory_that_hides_a_host_from_the_policy_of_its_domain_is_reported() {
    let node = TempDir::new().unwrap();
    for directory in ["reg.vendor.test_5000_", "elsewhere.test"] {
        fs::create_dir_all(node.path().join("certs.d").join(directory)).unwrap();
        fs::write(node.path().join("certs.d").join(directory).join("hosts.toml"), "server = 'https://x'\n")
            .unwrap();
    }
    let mut agent = agent(node.path(), RuntimeName::Containerd, "certs.d", None);
    agent.follow(vec![tag_never("*.vendor.test", &["m.test/x"]).into()]);
    agent.repair().unwrap();
    assert_eq!(
        notes(&agent.in_force().skipped),
        [
            "*.vendor.test: reg.vendor.test:5000 is left alone, because reg.vendor.test_5000_ in the directory of \
          containerd's files is not Fairlead's"
        ]
    );
    fs::remove_dir_all(node.path().join("certs.d/reg.vendor.test_5000_")).unwrap();
    agent.repair().unwrap();
    assert!(agent.in_force().skipped.is_empty());
    // One without a file hides the file of domains as well.
    fs::create_dir(node.path().join("certs.d/shut.vendor.test")).unwrap();
    agent.repair().unwrap();
    assert!(notes(&agent.in_force().skipped)[0].starts_with("*.vendor.test: shut.vendor.test is left alone"));
}

/// containerd reads the first directory for a registry alone.
#[tokio::test]
async fn a_file_that_takes_the_place_of_an_administrators_for_all_registries_is_reported() {
    let node = TempDir::new().unwrap();
    let default = node.path().join("certs.d/_default");
    fs::create_dir_all(&default).unwrap();
    fs::write(default.join("hosts.toml"), "[host.'https://cache.test']\n").unwrap();
    let mut agent = agent(node.path(), RuntimeName::Containerd, "certs.d", None);
    agent.follow(vec![
        both("hub.test/team", &["m.test/team"]).into(),
        both("whole.test", &["m.test/whole"]).into(),
        digest_never("shut.test", &["m.test/shut"]).into(),
    ]);
    agent.repair().unwrap();
    assert!(node.path().join("certs.d/hub.test/hosts.toml").exists(), "policies hold");
    let about = |agent: &NodeAgent| {
        let notes = notes(&agent.in_force().inexact);
        notes.into_iter().filter(|note| note.contains("_default")).collect::<Vec<_>>()
    };
    let said = about(&agent);
    let expected = "hub.test/team: images of hub.test that no policy names mirrors for do not follow \
                    _default/hosts.toml any more, which is not Fairlead's: ";
    assert!(said.len() == 1 && said[0].starts_with(expected), "{said:?}");
    fs::remove_dir_all(default).unwrap();
    agent.repair().unwrap();
    assert_eq!(about(&agent), Vec::<String>::new());
}

/// A program may take the address between the look before a change and the change itself.
#[tokio::test]
async fn files_that_lead_to_another_program_are_taken_back() {
    let node = TempDir::new().unwrap();
    let stranger = FakeRegistry::start().await.unwrap();
    let mut agent = agent_at(stranger.address(), node.path(), RuntimeName::Containerd, "certs.d", None);
    agent.follow(vec![tag_never("hub.test", &["m.test/x"]).into()]);
    assert!(agent.check_address().await.is_err());
    agent.repair().unwrap();
    let file = node.path().join("certs.d/hub.test/hosts.toml");
    assert!(file.exists());
    let said = agent.verify().await.unwrap_err().to_string();
    assert!(said.contains("is not an agent") && !file.exists(), "{said}");
}

/// A program that takes connections and says nothing would make every pull wait.
#[tokio::test]
async fn a_program_that_says_nothing_on_the_address_of_the_router_is_not_led_to() {
    let node = TempDir::new().unwrap();
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let mut agent = agent_at(address, node.path(), RuntimeName::Containerd, "certs.d", None);
    agent.follow(vec![tag_never("hub.test", &["m.test/x"]).into()]);
    let said = agent.check_address().await.unwrap_err().to_string();
    assert!(said.contains("is not an agent"), "{said}");
    agent.repair().unwrap();
    let file = node.path().join("certs.d/hub.test/hosts.toml");
    assert!(file.exists() && agent.verify().await.is_err() && !file.exists());
    drop(silent);
    assert!(agent.check_address().await.is_ok());
}

/// Readers of `registries.conf` follow the table with the longest name.
#[tokio::test]
async fn a_part_of_a_source_with_a_table_of_an_administrator_is_reported() {
    let node = TempDir::new().unwrap();
    let directory = node.path().join("etc/containers/registries.conf.d");
    fs::create_dir_all(&directory).unwrap();
    let admin = directory.join("10-admin.conf");
    fs::write(&admin, "[[registry]]\nlocation = 'hub.test/team/x/'\n[[registry]]\nlocation = 'else.test'\n")
        .unwrap();
    let mut agent = agent(node.path(), RuntimeName::Crio, "etc/containers/registries.conf.d", None);
    agent.follow(vec![tag_never("hub.test/team", &["m.test/x"]).into()]);
    fs::create_dir_all(node.path().join("etc/crio")).unwrap();
    fs::write(node.path().join("etc/crio/crio.conf"), "[crio.image]\nauto_reload_registries = true\n")
        .unwrap();
    agent.repair().unwrap();
    let part = "hub.test/team: hub.test/team/x is left alone, because another file of registries.conf has a table for it";
    assert_eq!(notes(&agent.in_force().skipped), [part]);
    fs::remove_file(admin).unwrap();
    agent.repair().unwrap();
    assert!(agent.in_force().skipped.is_empty());
}

/// Of two tables whose names are of the same length, readers follow the first by alphabet.
#[tokio::test]
async fn a_host_that_an_administrators_table_for_its_domain_hides_is_reported() {
    let node = TempDir::new().unwrap();
    let directory = node.path().join("etc/containers/registries.conf.d");
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join("10-admin.conf"), "[[registry]]\nprefix = '*.vendor.test'\n").unwrap();
    fs::create_dir_all(node.path().join("etc/crio")).unwrap();
    fs::write(node.path().join("etc/crio/crio.conf"), "[crio.image]\nauto_reload_registries = true\n")
        .unwrap();
    let mut agent = agent(node.path(), RuntimeName::Crio, "etc/containers/registries.conf.d", None);
    let sources = ["r.vendor.test", "reg.vendor.test", "r.vendor.test/team", "r.other.test"];
    agent.follow(sources.iter().map(|source| both(source, &["m.test/x"]).into()).collect());
    agent.repair().unwrap();
    let hidden = "r.vendor.test: another file of registries.conf has a table for *.vendor.test, which is of the same \
                  length and counts before it";
    assert_eq!(notes(&agent.in_force().skipped), [hidden]);
}

#[tokio::test]
async fn an_agent_whose_own_image_it_would_have_to_route_says_so() {
    for (image, policy, is_said) in [
        ("hub.test/fairlead/fairlead:1", digest_never("hub.test/closed", &["m.test/x"]), true),
        ("r.vendor.test/fairlead:1", digest_never("*.vendor.test", &["m.test/x"]), true),
        ("other.test/fairlead:1", digest_never("hub.test/closed", &["m.test/x"]), false),
    ] {
        let node = TempDir::new().unwrap();
        let mut agent = agent(node.path(), RuntimeName::Containerd, "certs.d", Some(image));
        agent.follow(vec![policy.into()]);
        agent.repair().unwrap();
        let notes = notes(&agent.in_force().inexact);
        let named =
            notes.iter().any(|note| note.contains(&format!("the agent's own image, {image}, is pulled")));
        assert_eq!(named, is_said, "{notes:?}");
    }
}

/// With the directories that the `DaemonSet` mounts, and without the processes of the node.
#[tokio::test]
async fn a_crio_that_watches_its_drop_ins_follows_without_being_told() {
    let node = TempDir::new().unwrap();
    let config = node.path().join("etc/crio/crio.conf.d");
    for directory in ["etc/containerd/certs.d", "etc/containers/registries.conf.d", "etc/crio/crio.conf.d"] {
        fs::create_dir_all(node.path().join(directory)).unwrap();
    }
    fs::write(config.join("10-crio.conf"), "[crio.image]\nauto_reload_registries = true\n").unwrap();
    let found = fairlead_node::detect::detect(node.path(), None, Some("1.34.0".parse().unwrap())).unwrap();
    assert_eq!(found.runtime, RuntimeName::Crio);
    let mut agent = agent(node.path(), RuntimeName::Crio, "etc/containers/registries.conf.d", None);
    agent.follow(vec![tag_never("hub.test/team", &["m.test/x"]).into()]);
    agent.repair().unwrap();
    let drop_in =
        fs::read_to_string(node.path().join("etc/containers/registries.conf.d/50-fairlead.conf")).unwrap();
    assert!(drop_in.contains("location = \"hub.test/team\""), "{drop_in}");
}
