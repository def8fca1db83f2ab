//! Files on a node, under every interruption.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use fairlead_node::files::{Applied, ConfigDir, Disk, RealDisk, Step};
use fairlead_node::{File, RuntimeName};
use tempfile::TempDir;

const HEADER: &str = "# Written by Fairlead from mirror policies: edit those, not this file.\n";

fn file(path: &str, content: &str) -> File {
    File { path: path.to_owned(), content: format!("{HEADER}{content}\n") }
}

fn hosts(path: &Path) -> ConfigDir {
    ConfigDir::new(path.to_owned(), RuntimeName::Containerd)
}

fn drop_ins(path: &Path) -> ConfigDir {
    ConfigDir::new(path.to_owned(), RuntimeName::Crio)
}

/// What a runtime finds: for containerd the file of each registry, and whether a directory is there without one.
fn seen(root: &Path) -> BTreeMap<String, Option<String>> {
    let mut seen = BTreeMap::new();
    for entry in fs::read_dir(root).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        if name.starts_with('.') {
            continue;
        }
        let path = if entry.path().is_dir() { entry.path().join("hosts.toml") } else { entry.path() };
        seen.insert(name, fs::read_to_string(path).ok());
    }
    seen
}

/// Stops at a step, as a process does that is killed: what comes after it does not happen.
struct Killed {
    steps_left: usize,
    /// Bytes of a file that were written when it happened.
    torn_after: Option<usize>,
}

impl Disk for Killed {
    fn carry_out(&mut self, step: &Step) -> io::Result<()> {
        if self.steps_left > 0 {
            self.steps_left -= 1;
            return RealDisk.carry_out(step);
        }
        if let (Step::Write(path, content), Some(length)) = (step, self.torn_after) {
            fs::write(path, content.get(..length).unwrap_or(content)).unwrap();
        }
        Err(io::Error::other("killed"))
    }
}

/// Registries `kept` and `gone` with files of ours, and one of an administrator.
fn before(root: &Path) {
    hosts(root)
        .apply(&[file("kept/hosts.toml", "old"), file("gone/hosts.toml", "old")], &mut RealDisk)
        .unwrap();
    fs::create_dir(root.join("admin")).unwrap();
    fs::write(root.join("admin/hosts.toml"), "server = \"https://admin\"\n").unwrap();
}

#[test]
fn a_kill_at_any_step_leaves_the_old_state_or_the_new_one_and_the_next_run_finishes() {
    let wanted = [file("kept/hosts.toml", "new"), file("added/hosts.toml", "new")];
    let text = |content: &str| Some(format!("{HEADER}{content}\n"));
    let mut stops = 0;
    for steps_left in 0.. {
        let mut is_done = false;
        for torn_after in [None, Some(0), Some(1), Some(HEADER.len() + 1)] {
            let directory = TempDir::new().unwrap();
            let root = directory.path();
            before(root);
            is_done = hosts(root).apply(&wanted, &mut Killed { steps_left, torn_after }).is_ok();
            let seen_then = seen(root);
            let states = [("kept", vec![text("old"), text("new")])];
            for (name, allowed) in states {
                assert!(allowed.contains(&seen_then[name]), "{name} at {steps_left}: {seen_then:?}");
            }
            // A directory without a file would hide the file for all registries.
            assert!(seen_then.values().all(Option::is_some), "at {steps_left}: {seen_then:?}");
            assert!(seen_then.get("added").is_none_or(|found| *found == text("new")));
            assert!(seen_then.get("gone").is_none_or(|found| *found == text("old")));
            hosts(root).apply(&wanted, &mut RealDisk).unwrap();
            let expected = BTreeMap::from([
                ("added".to_owned(), text("new")),
                ("admin".to_owned(), Some("server = \"https://admin\"\n".to_owned())),
                ("kept".to_owned(), text("new")),
            ]);
            assert_eq!(seen(root), expected, "at {steps_left}");
            let left: Vec<_> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(left.len(), 3, "{left:?}");
            stops += 1;
        }
        if is_done {
            break;
        }
    }
    assert!(stops > 60, "{stops} stops");
}

#[test]
fn the_previous_version_is_kept_beside_the_file() {
    let directory = TempDir::new().unwrap();
    before(directory.path());
    hosts(directory.path()).apply(&[file("kept/hosts.toml", "new")], &mut RealDisk).unwrap();
    let previous = fs::read_to_string(directory.path().join("kept/.hosts.toml.previous")).unwrap();
    assert_eq!(previous, format!("{HEADER}old\n"));
}

#[test]
fn nothing_is_written_when_nothing_changed() {
    let directory = TempDir::new().unwrap();
    let wanted = [file("kept/hosts.toml", "old"), file("gone/hosts.toml", "old")];
    before(directory.path());
    let applied = hosts(directory.path()).apply(&wanted, &mut RealDisk).unwrap();
    assert_eq!(applied, Applied { of_others: vec!["admin".to_owned()], ..Applied::default() });
}

#[test]
fn files_of_others_are_left_alone_and_named() {
    let directory = TempDir::new().unwrap();
    let root = directory.path();
    before(root);
    // Certificates without a file of hosts, the other spelling of a port, and a file that cannot be a directory.
    fs::create_dir(root.join("certs")).unwrap();
    fs::write(root.join("certs/ca.crt"), "PEM").unwrap();
    fs::create_dir(root.join("port:5000")).unwrap();
    fs::write(root.join("port:5000/hosts.toml"), "# mine").unwrap();
    fs::write(root.join("odd"), "not a directory").unwrap();
    let wanted =
        ["admin", "certs", "port_5000_", "odd"].map(|name| file(&format!("{name}/hosts.toml"), "new"));
    let before = seen(root);
    let applied = hosts(root).apply(&wanted, &mut RealDisk).unwrap();
    let found: Vec<&str> = applied.foreign.iter().map(|one| one.found.as_str()).collect();
    assert_eq!(found, ["admin/hosts.toml", "certs/hosts.toml", "odd/hosts.toml", "port:5000/hosts.toml"]);
    assert_eq!(applied.removed, ["gone/hosts.toml", "kept/hosts.toml"]);
    let mut expected = before;
    expected.retain(|name, _| name != "gone" && name != "kept");
    assert_eq!(seen(root), expected);
}

#[test]
fn removing_leaves_what_others_put_beside_our_files() {
    let directory = TempDir::new().unwrap();
    let root = directory.path();
    before(root);
    fs::write(root.join("kept/ca.crt"), "PEM").unwrap();
    let applied = hosts(root).remove(&mut RealDisk).unwrap();
    assert_eq!(applied.removed, ["gone/hosts.toml", "kept/hosts.toml"]);
    let mut left: Vec<_> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["admin", "kept"]);
    assert!(root.join("kept/ca.crt").exists() && !root.join("kept/hosts.toml").exists());
    assert!(!hosts(root).remove(&mut RealDisk).unwrap().has_changes());
    assert_eq!(hosts(&root.join("missing")).remove(&mut RealDisk).unwrap(), Applied::default());
}

#[test]
fn a_drop_in_is_replaced_and_removed_among_those_of_others() {
    let directory = TempDir::new().unwrap();
    let root = directory.path();
    fs::write(root.join("10-admin.conf"), "# mine").unwrap();
    let wanted = |content| [file("50-fairlead.conf", content)];
    for content in ["old", "new"] {
        drop_ins(root).apply(&wanted(content), &mut RealDisk).unwrap();
        assert_eq!(seen(root)["50-fairlead.conf"], Some(format!("{HEADER}{content}\n")));
    }
    drop_ins(root).remove(&mut RealDisk).unwrap();
    let left: Vec<_> = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["10-admin.conf"]);
    fs::write(root.join("50-fairlead.conf"), "# somebody else's").unwrap();
    let applied = drop_ins(root).apply(&wanted("new"), &mut RealDisk).unwrap();
    assert_eq!(applied.foreign.len(), 1);
    assert_eq!(seen(root)["50-fairlead.conf"].as_deref(), Some("# somebody else's"));
}

/// A small file system of its own.
struct Mounted(TempDir);

impl Mounted {
    fn new() -> Self {
        let directory = TempDir::new().unwrap();
        let mounted = Self(directory);
        mounted.mount(&["-t", "tmpfs", "-o", "size=64k", "tmpfs"]);
        mounted
    }

    fn mount(&self, arguments: &[&str]) {
        let status = Command::new("mount").args(arguments).arg(self.0.path()).status().unwrap();
        assert!(status.success());
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

#[test]
#[ignore = "needs root; `make test` as root runs it"]
fn a_full_disk_and_a_read_only_one_leave_the_files_as_they_were() {
    let mounted = Mounted::new();
    let root = mounted.0.path();
    before(root);
    let state = seen(root);
    let large = file("kept/hosts.toml", &"x".repeat(100 * 1024));
    let error = hosts(root).apply(&[large], &mut RealDisk).unwrap_err().to_string();
    assert!(error.contains("No space left") && error.ends_with("free space on this file system"), "{error}");
    assert_eq!(seen(root), state);
    mounted.mount(&["-o", "remount,ro"]);
    let error = hosts(root).apply(&[file("kept/hosts.toml", "new")], &mut RealDisk).unwrap_err().to_string();
    assert!(error.contains("mount it writable, or name another directory with --config-dir"), "{error}");
    assert_eq!(seen(root), state);
    mounted.mount(&["-o", "remount,rw"]);
    hosts(root).apply(&[file("kept/hosts.toml", "new")], &mut RealDisk).unwrap();
    assert_eq!(seen(root)["kept"], Some(format!("{HEADER}new\n")));
}

/// containerd looks no further than the first directory with a registry, so ours would hide what is in later ones.
#[test]
fn directories_in_later_places_of_config_path_are_not_hidden() {
    let (first, second) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    fs::create_dir(second.path().join("admin.test")).unwrap();
    let directory = ConfigDir { later_roots: vec![second.path().to_owned()], ..hosts(first.path()) };
    let wanted =
        ["_default", "admin.test", "other.test"].map(|name| file(&format!("{name}/hosts.toml"), "new"));
    let applied = directory.apply(&wanted, &mut RealDisk).unwrap();
    assert_eq!(applied.written, ["other.test/hosts.toml"]);
    let foreign: Vec<&str> = applied.foreign.iter().map(|one| one.path.as_str()).collect();
    assert_eq!(foreign, ["_default/hosts.toml", "admin.test/hosts.toml"]);
    assert!(second.path().join("admin.test").exists());
}

/// A directory that holds nothing but what was kept of our file is no other owner's.
#[test]
fn a_lost_file_comes_back_and_so_does_one_that_another_owner_took_the_place_of_for_a_while() {
    let directory = TempDir::new().unwrap();
    let root = directory.path();
    let wanted = [file("kept/hosts.toml", "new")];
    let text = Some(format!("{HEADER}new\n"));
    before(root);
    hosts(root).apply(&wanted, &mut RealDisk).unwrap();
    assert!(root.join("kept/.hosts.toml.previous").exists());
    fs::remove_file(root.join("kept/hosts.toml")).unwrap();
    // Killed at any step, the next run finishes.
    for steps_left in 0..8 {
        let killed = hosts(root).apply(&wanted, &mut Killed { steps_left, torn_after: None });
        assert!(killed.is_err(), "at {steps_left}");
    }
    let applied = hosts(root).apply(&wanted, &mut RealDisk).unwrap();
    assert_eq!((applied.written, &seen(root)["kept"]), (vec!["kept/hosts.toml".to_owned()], &text));

    hosts(root).apply(&[file("kept/hosts.toml", "newer")], &mut RealDisk).unwrap();
    fs::write(root.join("kept/hosts.toml"), "# mine").unwrap();
    assert_eq!(hosts(root).apply(&wanted, &mut RealDisk).unwrap().foreign.len(), 1);
    fs::remove_file(root.join("kept/hosts.toml")).unwrap();
    assert!(hosts(root).apply(&wanted, &mut RealDisk).unwrap().foreign.is_empty());
    assert_eq!(seen(root)["kept"], text);
}

/// containerd takes a directory without a file for a registry without mirrors, also instead of the file for all.
#[test]
fn what_was_kept_of_a_lost_file_goes_with_the_policy_and_on_removal() {
    let directory = TempDir::new().unwrap();
    let root = directory.path();
    let names = |root: &Path| {
        let found =
            fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        found.collect::<std::collections::BTreeSet<_>>()
    };
    before(root);
    hosts(root)
        .apply(&[file("kept/hosts.toml", "new"), file("gone/hosts.toml", "new")], &mut RealDisk)
        .unwrap();
    for name in ["kept", "gone"] {
        fs::remove_file(root.join(name).join("hosts.toml")).unwrap();
    }
    let applied = hosts(root).apply(&[file("kept/hosts.toml", "new")], &mut RealDisk).unwrap();
    assert_eq!(
        (applied.written, applied.removed),
        (vec!["kept/hosts.toml".into()], vec!["gone/hosts.toml".into()])
    );
    assert_eq!(names(root), ["admin", "kept"].map(str::to_owned).into());
    hosts(root).apply(&[file("kept/hosts.toml", "newer")], &mut RealDisk).unwrap();
    fs::remove_file(root.join("kept/hosts.toml")).unwrap();
    hosts(root).remove(&mut RealDisk).unwrap();
    assert_eq!(names(root), ["admin"].map(str::to_owned).into());

    let drop_in = TempDir::new().unwrap();
    for content in ["old", "new"] {
        drop_ins(drop_in.path()).apply(&[file("50-fairlead.conf", content)], &mut RealDisk).unwrap();
    }
    fs::remove_file(drop_in.path().join("50-fairlead.conf")).unwrap();
    drop_ins(drop_in.path()).remove(&mut RealDisk).unwrap();
    assert!(names(drop_in.path()).is_empty());
}

/// Two names of one registry, as an administrator may make them.
#[test]
fn links_to_files_of_ours_are_not_ours() {
    let directory = TempDir::new().unwrap();
    let root = directory.path();
    before(root);
    std::os::unix::fs::symlink("kept", root.join("linked")).unwrap();
    fs::create_dir(root.join("file")).unwrap();
    std::os::unix::fs::symlink("../kept/hosts.toml", root.join("file/hosts.toml")).unwrap();
    let applied = hosts(root).apply(&[file("kept/hosts.toml", "new")], &mut RealDisk).unwrap();
    assert_eq!((applied.removed, applied.of_others.len()), (vec!["gone/hosts.toml".to_owned()], 3));
    assert_eq!(seen(root)["linked"], Some(format!("{HEADER}new\n")));
    let removed = hosts(root).remove(&mut RealDisk).unwrap().removed;
    assert_eq!(removed, ["kept/hosts.toml"]);
    assert!(root.join("linked").is_symlink() && root.join("file/hosts.toml").is_symlink());
}

#[test]
fn an_empty_directory_of_others_is_named_and_left_alone() {
    let directory = TempDir::new().unwrap();
    let root = directory.path();
    fs::create_dir(root.join("empty.test")).unwrap();
    let applied = hosts(root).apply(&[file("_default/hosts.toml", "new")], &mut RealDisk).unwrap();
    assert_eq!((applied.of_others, applied.written.len()), (vec!["empty.test".to_owned()], 1));
    hosts(root).remove(&mut RealDisk).unwrap();
    assert!(root.join("empty.test").is_dir());
}

#[test]
fn nothing_is_written_while_a_later_place_of_config_path_cannot_be_read() {
    let (first, second) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let later = second.path().join("certs.d");
    let directory = ConfigDir { later_roots: vec![later.clone()], ..hosts(first.path()) };
    fs::write(&later, "not a directory").unwrap();
    let error = directory.apply(&[file("a/hosts.toml", "new")], &mut RealDisk).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot list {}", later.display())), "{error}");
    assert!(seen(first.path()).is_empty());
    fs::remove_file(&later).unwrap();
    assert!(directory.apply(&[file("a/hosts.toml", "new")], &mut RealDisk).unwrap().has_changes());
}
