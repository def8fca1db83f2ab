//! A cluster that outlives its maker, for development: `make cluster` and `make cluster-down`.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::assets::{Assets, Group};
use crate::cluster::node;
use crate::registry::{Registry, RegistryConfig};
use crate::{Cluster, images, installation, workdir};

/// Where its files are, unless the cache is to hold them.
const DIRECTORY: &str = "FAIRLEAD_CLUSTER_DIR";
const REGISTRIES: [&str; 2] = ["registry-1", "registry-2"];

/// A place for one standing cluster.
#[derive(Clone, Debug)]
pub struct Standing {
    directory: PathBuf,
}

/// What there is to be in a standing cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    ControlPlane,
    /// And a node; needs root.
    Node,
    /// And Fairlead of this build, installed on the node.
    Fairlead,
}

/// What [`Standing::up`] found or made.
#[derive(Debug)]
pub enum Up {
    Started { guide: String, cluster: Box<Cluster>, registries: Vec<Registry> },
    AlreadyRunning { guide: String },
}

impl Standing {
    pub fn at(directory: PathBuf) -> Self {
        Self { directory }
    }

    /// The place that `FAIRLEAD_CLUSTER_DIR` names, or the one in the user's cache.
    pub fn from_environment() -> Result<Self> {
        let var = |name| std::env::var_os(name).map(PathBuf::from);
        let cache = || {
            var("FAIRLEAD_CACHE")
                .or_else(|| Some(var("XDG_CACHE_HOME")?.join("fairlead")))
                .or_else(|| Some(var("HOME")?.join(".cache/fairlead")))
        };
        let directory = var(DIRECTORY).or_else(|| Some(cache()?.join("cluster")));
        Ok(Self::at(
            directory
                .with_context(|| format!("HOME is not set: say in {DIRECTORY} where the cluster may live"))?,
        ))
    }

    fn pid_file(&self) -> PathBuf {
        self.directory.join("supervisor.pid")
    }

    fn run_directory(&self) -> PathBuf {
        self.directory.join("run")
    }

    fn guide_file(&self) -> PathBuf {
        self.directory.join("guide.txt")
    }

    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.join("kubeconfig")
    }

    /// Whether the supervisor of this place lives: it holds a lock as long as it does.
    pub fn is_running(&self) -> Result<bool> {
        let path = self.pid_file();
        let file = match File::open(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
            opened => opened.with_context(|| format!("cannot open {}", path.display()))?,
        };
        match file.try_lock() {
            Ok(()) => Ok(false),
            Err(TryLockError::WouldBlock) => Ok(true),
            Err(TryLockError::Error(error)) => Err(error.into()),
        }
    }

    /// How to use the running cluster.
    pub fn guide(&self) -> Result<String> {
        let path = self.guide_file();
        std::fs::read_to_string(&path)
            .with_context(|| format!("cannot read {}; a cluster is just starting?", path.display()))
    }

    /// Starts a cluster and two registries with images in them. It ends with the returned value unless
    /// [`Cluster::detach`] is called.
    pub async fn up(&self, holds: Holds) -> Result<Up> {
        if self.is_running()? {
            return Ok(Up::AlreadyRunning { guide: self.guide()? });
        }
        let with_node = holds != Holds::ControlPlane;
        if with_node && let Some(reason) = node::missing() {
            bail!("{reason}, or leave the node out with --no-node");
        }
        Assets::ensure(&[
            Group::Programs,
            Group::ControlPlane,
            Group::Registry,
            Group::Containerd,
            Group::Kwok,
            Group::Helm,
        ])
        .await?;
        if self.directory.exists() {
            // What a killed supervisor left behind.
            self.clear()?;
        }
        let run = self.run_directory();
        std::fs::create_dir_all(&run).with_context(|| format!("cannot make {}", run.display()))?;
        let cluster = Cluster::builder().node(with_node).start_standing(run, self.pid_file()).await?;
        let mut registries = Vec::new();
        for name in REGISTRIES {
            let registry = cluster.named_registry(RegistryConfig::new().delete(), name).await?;
            registry.endpoint().push("pause", "1", &images::pause()?).await?;
            registry.endpoint().push("succeed", "1", &images::succeed()?).await?;
            registries.push(registry);
        }
        if let (Holds::Fairlead, Some(registry)) = (holds, registries.first()) {
            let program = installation::program()?;
            let image = images::program_with_libraries(&program, "/fairlead")?;
            let config = installation::plain_http(&registries)?;
            installation::install(&cluster, &program, (&image, registry), &config).await?;
        }
        std::fs::copy(cluster.kubeconfig(), self.kubeconfig())?;
        let guide = self.write_guide(&cluster, &registries, holds)?;
        workdir::write(&self.guide_file(), &guide)?;
        Ok(Up::Started { guide, cluster: Box::new(cluster), registries })
    }

    fn write_guide(&self, cluster: &Cluster, registries: &[Registry], holds: Holds) -> Result<String> {
        let kubectl = cluster.kubectl_path()?;
        let programs = kubectl.parent().unwrap_or(Path::new("/")).display().to_string();
        let hosts: Vec<String> = registries.iter().map(Registry::host).collect();
        let first = hosts.first().context("there are no registries")?;
        let image = format!("{first}/pause:1");
        let node = match holds {
            Holds::ControlPlane => {
                "There is no node: Pods stay pending. As root, `make cluster` brings one.".to_owned()
            }
            Holds::Node => format!("Try it:\n{}", try_it(&image)),
            Holds::Fairlead => format!(
                "Fairlead of this build runs in it as a Deployment:\n  \
                 kubectl --namespace fairlead-system get pods -o wide\nTry it:\n{}\n  {} explain pod/hello",
                try_it(&image),
                installation::program()?.display()
            ),
        };
        Ok(format!(
            "A Kubernetes cluster is running. Use it with:\n  export KUBECONFIG={}\n  \
             export PATH={programs}:$PATH   # kubectl, helm\n  kubectl get nodes\n\n\
             Registries, plain HTTP, with the images pause:1 and succeed:1: {}\n\
             Push to one of them, from this machine:\n  \
             skopeo copy --dest-tls-verify=false docker-archive:FILE docker://{first}/NAME:TAG\n{node}\n\n\
             Logs are in {}\nEnd it with `make cluster-down`.\n",
            self.kubeconfig().display(),
            hosts.join(" and "),
            self.run_directory().display(),
        ))
    }

    /// Ends the cluster of this place and removes its files; says whether there was one.
    pub fn down(&self) -> Result<bool> {
        let running = self.is_running()?;
        if self.directory.exists() {
            self.clear()?;
        }
        Ok(running)
    }

    /// Ends what runs, also after its supervisor was killed, and removes our files and nothing else: the place may be a
    /// directory that holds other things.
    fn clear(&self) -> Result<()> {
        let run = self.run_directory();
        let supervisor = Assets::build(&[Group::Programs])?.program("supervisor")?;
        let status = Command::new(&supervisor)
            .arg("stop")
            .arg("--pid-file")
            .arg(self.pid_file())
            .arg("--name")
            .arg(node::name_of(&run))
            .arg("--remove")
            .arg(&run)
            .status()?;
        ensure!(status.success(), "{} stop ended with {status}", supervisor.display());
        let gone = |result: std::io::Result<()>| match result {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            other => other,
        };
        for file in [self.guide_file(), self.kubeconfig(), self.pid_file()] {
            gone(std::fs::remove_file(file))?;
        }
        // Stays when it is not empty.
        drop(std::fs::remove_dir(&self.directory));
        Ok(())
    }
}

fn try_it(image: &str) -> String {
    format!("  kubectl run hello --image={image}\n  kubectl get pods -o wide")
}
