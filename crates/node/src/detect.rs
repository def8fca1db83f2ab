//! Which runtime a node has, where it reads its files, and what an administrator has to do first if it reads none.

mod containerd_config;

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use thiserror::Error;
use toml_edit::{DocumentMut, Item, TableLike, Value};

use self::containerd_config::ContainerdConfig;
use crate::DROP_IN;
use crate::files::ConfigDir;
use crate::runtime::{RuntimeName, Version};

const CONTAINERD: &str = "etc/containerd/config.toml";
const CERTS: &str = "etc/containerd/certs.d";
const CRIO: &str = "etc/crio/crio.conf";
const CRIO_DROP_INS: &str = "etc/crio/crio.conf.d";
const REGISTRIES: &str = "etc/containers/registries.conf";
const DROP_INS: &str = "etc/containers/registries.conf.d";
/// Agents see all of these.
const SEEN: [&str; 2] = ["etc/containerd", "etc/docker/certs.d"];
/// Distributions that write the configuration of their containerd at every start.
const DISTRIBUTIONS: [(&str, &str); 2] = [
    ("k3s", "var/lib/rancher/k3s/agent/etc/containerd"),
    ("RKE2", "var/lib/rancher/rke2/agent/etc/containerd"),
];

/// Why there is no directory to write to.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum DetectError {
    #[error(
        "{distribution} writes {} itself: name it with --config-dir to have files written beside its own; registries \
         that registries.yaml names stay as they are", directory.display()
    )]
    Distribution { distribution: &'static str, directory: PathBuf },
    #[error(
        "{distribution} starts containerd with a configuration of its own: set config_path = \"/{CERTS}\" in {place}, \
         restart it once, and name that directory with --config-dir"
    )]
    OwnConfig { distribution: &'static str, place: &'static str },
    #[error(
        "{why}: set config_path = \"/{CERTS}\" in {table} of {}, and restart containerd once; if it reads another file, \
         set it there and name the directory with --config-dir", file.display()
    )]
    NoConfigPath { why: &'static str, file: PathBuf, table: &'static str },
    #[error("cannot read {}: {message}", file.display())]
    Unreadable { file: PathBuf, message: String },
    #[error("there is neither containerd nor CRI-O below {}: mount the node's /etc there, or name the runtime and the \
             directory with --runtime and --config-dir", root.display())]
    Nothing { root: PathBuf },
    #[error(
        "both containerd and CRI-O are configured on this node: name the one that the kubelet uses with --runtime"
    )]
    Both,
}

/// Finds the directory that the runtime reads. `root` is where the file system of the node is mounted.
pub fn detect(
    root: &Path,
    name: Option<RuntimeName>,
    version: Option<Version>,
) -> Result<ConfigDir, DetectError> {
    // The directories themselves are there on every node with an agent.
    let has_crio = root.join(CRIO).is_file()
        || fs::read_dir(root.join(CRIO_DROP_INS)).is_ok_and(|mut entries| entries.next().is_some());
    let containerd = root.join(CONTAINERD);
    let distribution =
        DISTRIBUTIONS.iter().find(|(_, directory)| root.join(directory).join("config.toml").is_file());
    let has_containerd = containerd.is_file() || distribution.is_some();
    let runtime = match name {
        Some(name) => name,
        None if has_containerd && has_crio => return Err(DetectError::Both),
        None if has_containerd => RuntimeName::Containerd,
        None if has_crio => RuntimeName::Crio,
        None => return Err(DetectError::Nothing { root: root.to_owned() }),
    };
    if runtime != RuntimeName::Containerd {
        return Ok(ConfigDir::new(root.join(DROP_INS), runtime));
    }
    if let Some((distribution, directory)) = distribution {
        let directory = root.join(directory).join("certs.d");
        return Err(DetectError::Distribution { distribution, directory });
    }
    let config = ContainerdConfig::read(root, version)?;
    let roots = config.roots().map_err(|why| DetectError::NoConfigPath {
        why,
        file: containerd,
        table: config.table(),
    })?;
    let mut roots = roots.iter().map(|path| path.trim_start_matches('/'));
    let first = root.join(roots.next().unwrap_or(CERTS));
    let later = roots.map(|later| {
        let path = root.join(later);
        if is_seen(root, Path::new(later)) || path.exists() {
            return Ok(path);
        }
        let message = "containerd's config_path names it; let the agent see that directory".to_owned();
        Err(DetectError::Unreadable { file: path, message })
    });
    Ok(ConfigDir { later_roots: later.collect::<Result<_, _>>()?, ..ConfigDir::new(first, runtime) })
}

/// Whether something that is not there for the agent is not there for the runtime either.
fn is_seen(root: &Path, below: &Path) -> bool {
    root == Path::new("/") || SEEN.iter().any(|seen| below.starts_with(seen))
}

/// The prefixes that other files of `registries.conf` have tables for. A drop-in replaces whole tables, so ours would
/// take away what an administrator wrote. A file that cannot be read stops CRI-O as well, and is reported.
pub fn foreign_prefixes(root: &Path) -> Result<BTreeSet<String>, DetectError> {
    let is_foreign = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "conf")
            && path.file_name().is_some_and(|name| name != DROP_IN)
            && !path.is_dir()
    };
    let directory = root.join(DROP_INS);
    let drop_ins = unless_missing(&directory, fs::read_dir(&directory))?.into_iter().flatten();
    let drop_ins = drop_ins.flatten().map(|entry| entry.path()).filter(is_foreign);
    let mut prefixes = BTreeSet::new();
    for file in [root.join(REGISTRIES)].into_iter().chain(drop_ins) {
        let text = unless_missing(&file, fs::read_to_string(&file))?.unwrap_or_default();
        let read = prefixes_of(&text).map_err(|message| DetectError::Unreadable { file, message })?;
        prefixes.extend(read);
    }
    Ok(prefixes)
}

/// What was read, if it is there. A link that leads nowhere may lead to a file that the runtime sees.
fn unless_missing<T>(path: &Path, read: io::Result<T>) -> Result<Option<T>, DetectError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if error.kind() == ErrorKind::NotFound && path.symlink_metadata().is_err() => Ok(None),
        Err(error) => Err(DetectError::Unreadable { file: path.to_owned(), message: error.to_string() }),
    }
}

/// The prefixes of tables, as readers understand them: without slashes at the end. Version 1 of the form lists closed
/// and insecure registries, which readers turn into tables.
fn prefixes_of(text: &str) -> Result<BTreeSet<String>, String> {
    let config: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| error.to_string())?;
    let registry = config.get("registry");
    let tables = registry.and_then(Item::as_array_of_tables).into_iter().flatten();
    let tables = tables.map(|table| table as &dyn TableLike);
    let inline = registry.and_then(Item::as_array).into_iter().flatten().filter_map(Value::as_inline_table);
    let tables = tables.chain(inline.map(|table| table as &dyn TableLike));
    let text = |item: Option<&Item>| {
        let text = item.and_then(Item::as_str).map(|text| text.trim_end_matches('/'));
        text.filter(|text| !text.is_empty()).map(str::to_owned)
    };
    let named = tables.filter_map(|table| text(table.get("prefix")).or_else(|| text(table.get("location"))));
    let listed = ["block", "insecure"]
        .into_iter()
        .filter_map(|list| config.get("registries")?.get(list)?.get("registries").and_then(Item::as_array));
    let listed =
        listed.flatten().filter_map(Value::as_str).map(|place| place.trim_end_matches('/').to_owned());
    Ok(named.chain(listed).collect())
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// A node with these files.
    fn node(files: &[(&str, &str)]) -> TempDir {
        let directory = TempDir::new().unwrap();
        for (path, content) in files {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        directory
    }

    fn found(
        files: &[(&str, &str)],
        name: Option<RuntimeName>,
        version: Option<&str>,
    ) -> Result<String, String> {
        let node = node(files);
        let version = version.map(|text| text.parse().unwrap());
        let found = detect(node.path(), name, version);
        let below = |path: &Path| path.strip_prefix(node.path()).unwrap().display().to_string();
        found
            .map(|found| {
                let roots = [&found.path].into_iter().chain(&found.later_roots);
                format!("{} {}", found.runtime, roots.map(|root| below(root)).collect::<Vec<_>>().join(", "))
            })
            .map_err(|error| error.to_string().replace(&format!("{}/", node.path().display()), "/"))
    }

    /// A configuration of containerd with this in its plugin for images.
    fn version_3(text: &str) -> String {
        format!("version = 3\n[plugins.'io.containerd.cri.v1.images']\n{text}\n")
    }

    fn containerd(text: &str, version: &str) -> Result<String, String> {
        found(&[(CONTAINERD, text)], None, Some(version))
    }

    #[test]
    fn containerd_is_found_with_the_directory_that_it_reads() {
        let one = version_3("registry.config_path = '/etc/certs'");
        assert_eq!(containerd(&one, "2.2.0"), Ok("containerd etc/certs".to_owned()));
        let old = "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.registry]\nconfig_path = '/etc/containerd/certs.d'\n";
        assert_eq!(containerd(old, "2.1.0"), Ok("containerd etc/containerd/certs.d".to_owned()));
    }

    /// As the node's own containerd shows.
    #[test]
    fn a_list_of_directories_counts_where_containerd_reads_it() {
        let list = "registry.config_path = '/etc/certs:/etc/docker/certs.d'";
        let both = Ok("containerd etc/certs, etc/docker/certs.d".to_owned());
        let empty = "registry.config_path = ''";
        let default = Ok("containerd etc/containerd/certs.d, etc/docker/certs.d".to_owned());
        for version in ["1.7.13", "2.0.5"] {
            assert_eq!(containerd(&version_3(list), version), both);
        }
        for local in
            ["use_local_image_pull = true", "discard_unpacked_layers = true", "max_concurrent_downloads = 10"]
        {
            assert_eq!(containerd(&version_3(&format!("{local}\n{list}")), "2.2.0"), both, "{local}");
            assert_eq!(containerd(&version_3(&format!("{local}\n{empty}")), "2.2.0"), default, "{local}");
        }
        for unread in [list, empty, ""] {
            let said = containerd(&version_3(unread), "2.2.0").unwrap_err();
            assert!(
                said.contains("where config_path is a list, as it is by default: set config_path"),
                "{said}"
            );
        }
        assert!(found(&[(CONTAINERD, &version_3(list))], None, None).is_err(), "as for one of today");
    }

    #[test]
    fn imported_files_count_as_they_do_for_containerd() {
        let main = "version = 3\nimports = ['conf.d/*.toml', '/etc/containerd/absent.d/*.toml']\n";
        let (sets, other) =
            (version_3("registry.config_path = '/etc/certs'"), version_3("snapshotter = 'overlayfs'"));
        let files = [
            (CONTAINERD, main),
            ("etc/containerd/conf.d/10-a.toml", sets.as_str()),
            ("etc/containerd/conf.d/20-b.toml", other.as_str()),
            ("etc/containerd/conf.d/30-c.toml.bak", "torn = "),
        ];
        assert_eq!(found(&files, None, Some("2.2.0")), Ok("containerd etc/certs".to_owned()));
        let said = found(&files, None, Some("1.7.13")).unwrap_err();
        assert!(
            said.starts_with("containerd reads no hosts.toml"),
            "the last table replaces the others: {said}"
        );
        for elsewhere in ["/opt/a.toml", "/opt/*.toml"] {
            let said = containerd(&format!("version = 3\nimports = ['{elsewhere}']\n"), "2.2.0").unwrap_err();
            assert!(said.starts_with(&format!("cannot read {elsewhere}: ")), "{said}");
        }
    }

    #[test]
    fn what_an_administrator_has_to_do_is_said() {
        for (text, table) in
            [("version = 3\n", "io.containerd.cri.v1.images"), ("", "io.containerd.grpc.v1.cri")]
        {
            assert_eq!(
                containerd(text, "2.1.4"),
                Err(format!(
                    "containerd reads no hosts.toml: set config_path = \"/etc/containerd/certs.d\" in \
                     [plugins.'{table}'.registry] of /etc/containerd/config.toml, and restart containerd once; if it \
                     reads another file, set it there and name the directory with --config-dir"
                ))
            );
        }
        let k3s =
            found(&[("var/lib/rancher/k3s/agent/etc/containerd/config.toml", "version = 3\n")], None, None);
        assert_eq!(
            k3s,
            Err("k3s writes /var/lib/rancher/k3s/agent/etc/containerd/certs.d itself: name it with --config-dir to \
                 have files written beside its own; registries that registries.yaml names stay as they are"
                .to_owned())
        );
        assert!(
            found(&[], None, None).unwrap_err().starts_with("there is neither containerd nor CRI-O below ")
        );
        let broken = found(&[(CONTAINERD, "version = ")], None, None).unwrap_err();
        assert!(broken.starts_with("cannot read /etc/containerd/config.toml: "), "{broken}");
    }

    #[test]
    fn a_node_with_both_runtimes_is_asked_about() {
        let config = version_3("registry.config_path = '/etc/certs'");
        let both = [(CONTAINERD, config.as_str()), ("etc/crio/crio.conf.d/10-crio.conf", "")];
        assert!(found(&both, None, None).unwrap_err().contains("with --runtime"));
        let crio = Ok("CRI-O etc/containers/registries.conf.d".to_owned());
        assert_eq!(found(&both, Some(RuntimeName::Crio), None), crio);
        assert_eq!(found(&both[1..], None, None), crio);
        // Directories that the installation of agents makes say nothing.
        let node = node(&[("etc/crio/crio.conf.d/10-crio.conf", "")]);
        fs::remove_file(node.path().join("etc/crio/crio.conf.d/10-crio.conf")).unwrap();
        assert!(matches!(detect(node.path(), None, None), Err(DetectError::Nothing { .. })));
    }

    #[test]
    fn prefixes_of_other_files_are_found_and_ours_are_not() {
        let node = node(&[
            (
                REGISTRIES,
                "[[registry]]\nlocation = 'a.test'\n[[registry]]\nprefix = 'b.test/x'\nlocation = 'c.test'\n",
            ),
            ("etc/containers/registries.conf.d/10-admin.conf", "[[registry]]\nprefix = '*.d.test'\n"),
            ("etc/containers/registries.conf.d/50-fairlead.conf", "[[registry]]\nlocation = 'ours.test'\n"),
            ("etc/containers/registries.conf.d/.50-fairlead.conf.new", "[[registry]]\nlocation = 'torn"),
        ]);
        let prefixes: Vec<String> = foreign_prefixes(node.path()).unwrap().into_iter().collect();
        assert_eq!(prefixes, ["*.d.test", "a.test", "b.test/x"]);
        fs::write(node.path().join(REGISTRIES), "[[registry]").unwrap();
        assert!(foreign_prefixes(node.path()).is_err());
    }

    /// As readers of the file understand them.
    #[test]
    fn prefixes_of_other_files_are_found_in_every_form() {
        let found = |text: &str| foreign_prefixes(node(&[(REGISTRIES, text)]).path());
        let prefixes = |text: &str| found(text).unwrap().into_iter().collect::<Vec<_>>();
        assert_eq!(
            prefixes("[[registry]]\nprefix = 'a.test/x//'\n[[registry]]\nlocation = 'b.test/'\n"),
            ["a.test/x", "b.test"]
        );
        assert_eq!(
            prefixes("registry = [{prefix = 'a.test'}, {prefix = '', location = 'b.test'}]"),
            ["a.test", "b.test"]
        );
        let first = "[registries.search]\nregistries = ['s.test']\n[registries.block]\nregistries = ['a.test']\n\
                     [registries.insecure]\nregistries = ['b.test/']\n";
        assert_eq!(prefixes(first), ["a.test", "b.test"]);
    }

    #[test]
    fn a_file_that_cannot_be_read_is_not_taken_for_one_that_is_not_there() {
        let node = node(&[("etc/containers/registries.conf.d/10-admin.conf", "")]);
        // Directories are read by nothing.
        fs::create_dir(node.path().join(DROP_INS).join("20-old.conf")).unwrap();
        assert!(foreign_prefixes(node.path()).unwrap().is_empty());
        let link = node.path().join(DROP_INS).join("30-linked.conf");
        std::os::unix::fs::symlink("/usr/share/on-the-node-alone.conf", &link).unwrap();
        let said = foreign_prefixes(node.path()).unwrap_err().to_string();
        assert!(said.starts_with(&format!("cannot read {}", link.display())), "{said}");
    }

    #[test]
    fn a_later_directory_that_the_agent_does_not_see_is_asked_for() {
        let list = "registry.config_path = '/etc/certs:/opt/certs.d'";
        let said = containerd(&version_3(list), "1.7.13").unwrap_err();
        assert_eq!(
            said,
            "cannot read /opt/certs.d: containerd's config_path names it; let the agent see that directory"
        );
    }
}
