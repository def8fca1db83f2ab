//! Where the tools of a person keep their logins.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use super::file::Shape;

/// What decides which files are read and where helpers are found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    /// A file that the person chose, read before all others: `REGISTRY_AUTH_FILE`, or a flag of a command.
    pub(crate) auth_file: Option<PathBuf>,
    pub(crate) home: Option<PathBuf>,
    /// `DOCKER_CONFIG`, a directory.
    pub(crate) docker_config: Option<PathBuf>,
    /// `XDG_RUNTIME_DIR`
    pub(crate) runtime_directory: Option<PathBuf>,
    /// `XDG_CONFIG_HOME`
    pub(crate) config_home: Option<PathBuf>,
    /// `PATH`
    pub(crate) path: OsString,
    /// For the place that podman uses where there is no runtime directory.
    pub(crate) user_id: Option<u32>,
}

impl Environment {
    /// Reads the variables that docker and podman read. An empty one counts as unset.
    pub(crate) fn from_variables(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let path = |name: &str| set(name).map(PathBuf::from);
        Self {
            auth_file: path("REGISTRY_AUTH_FILE"),
            home: path("HOME"),
            docker_config: path("DOCKER_CONFIG"),
            runtime_directory: path("XDG_RUNTIME_DIR"),
            config_home: path("XDG_CONFIG_HOME"),
            path: set("PATH").unwrap_or_default(),
            user_id: None,
        }
    }

    /// The files to read, in the order in which podman, buildah and skopeo read them; a chosen one takes the place of
    /// the first. Docker's own is among them, so a person who uses docker alone finds the same logins as with docker.
    pub(super) fn files(&self) -> Vec<(PathBuf, Shape)> {
        let below =
            |directory: &Option<PathBuf>, file: &str| directory.as_deref().map(|path| path.join(file));
        let podman = "containers/auth.json";
        let runtime = || {
            let usual = below(&self.runtime_directory, podman);
            usual.or_else(|| {
                Some(Path::new("/run/containers").join(self.user_id?.to_string()).join("auth.json"))
            })
        };
        let first = self.auth_file.clone().or_else(runtime);
        let config = below(&self.config_home, podman)
            .or_else(|| Some(self.home.as_ref()?.join(".config").join(podman)));
        let docker =
            below(&self.docker_config, "config.json").or_else(|| below(&self.home, ".docker/config.json"));
        let old = below(&self.home, ".dockercfg");
        let shaped = |file: Option<PathBuf>, shape| file.map(|file| (file, shape));
        [
            shaped(first, Shape::Config),
            shaped(config, Shape::Config),
            shaped(docker, Shape::Config),
            shaped(old, Shape::Entries),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(variables: &[(&str, &str)], user_id: Option<u32>) -> Vec<String> {
        let find =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
        let environment = Environment { user_id, ..Environment::from_variables(find) };
        environment.files().iter().map(|(path, _)| path.display().to_string()).collect()
    }

    #[test]
    fn files_are_read_in_the_order_of_the_tools() {
        assert_eq!(
            files(
                &[("HOME", "/home/ada"), ("XDG_RUNTIME_DIR", "/run/user/7"), ("DOCKER_CONFIG", "")],
                Some(7)
            ),
            [
                "/run/user/7/containers/auth.json",
                "/home/ada/.config/containers/auth.json",
                "/home/ada/.docker/config.json",
                "/home/ada/.dockercfg"
            ]
        );
        assert_eq!(
            files(&[("DOCKER_CONFIG", "/etc/docker"), ("XDG_CONFIG_HOME", "/etc/xdg")], Some(7)),
            ["/run/containers/7/auth.json", "/etc/xdg/containers/auth.json", "/etc/docker/config.json"]
        );
        assert_eq!(
            files(
                &[("REGISTRY_AUTH_FILE", "/own.json"), ("XDG_RUNTIME_DIR", "/run/user/7"), ("HOME", "/h")],
                None
            )
            .first_chunk(),
            Some(&["/own.json".to_owned(), "/h/.config/containers/auth.json".to_owned()])
        );
        assert!(files(&[], None).is_empty());
    }
}
