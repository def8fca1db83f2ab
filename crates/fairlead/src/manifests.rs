//! `fairlead manifests`: prints everything an installation needs, for `kubectl apply -f -` or a repository of
//! manifests.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use fairlead_api::crds;
use fairlead_operator::platform::config::Config;
use fairlead_operator::platform::install::{self, Certificates, InstallSettings, Manifest};
use kube::ResourceExt;

use crate::output::tell;

/// Print the Kubernetes objects of an installation, in the order to apply them
#[derive(Debug, Args)]
#[allow(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct Manifests {
    /// Namespace to install into
    #[arg(long, value_name = "NS", default_value = install::DEFAULT_NAMESPACE)]
    namespace: String,
    /// Image of the operator [default: the released image of this version]
    #[arg(long, value_name = "REF")]
    image: Option<String>,
    /// How many Pods answer admission; one of them also writes to the cluster
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(i32).range(1..))]
    replicas: i32,
    /// Who makes the webhook's certificate
    #[arg(long, value_name = "WHO", value_enum, default_value_t = CertificatesArgument::SelfMade)]
    certificates: CertificatesArgument,
    /// Also install agents, which make the container runtime of every node follow mirror policies
    #[arg(long)]
    agents: bool,
    /// Let agents see the processes of their node, to have a CRI-O without `auto_reload_registries` read changed files
    #[arg(long, requires = "agents")]
    crio: bool,
    /// Let agents send containerd to mirrors for layers; it then gives the credentials of an image to a mirror that
    /// asks for some
    #[arg(long, requires = "agents")]
    redirect: bool,
    /// Configuration file to check and to install along
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Leave out the custom resource definitions
    #[arg(long)]
    without_crds: bool,
    /// Leave out the Namespace, for a namespace that something else makes or that must survive `kubectl delete`
    #[arg(long)]
    without_namespace: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum CertificatesArgument {
    /// The operator makes and rotates it
    #[value(name = "self")]
    SelfMade,
    /// cert-manager does, and has to be installed
    CertManager,
}

impl Manifests {
    /// The YAML stream to print.
    pub(crate) fn render(&self) -> Result<String> {
        let settings = self.settings()?;
        let installation = install::objects(&settings)?;
        let mut manifests = Vec::new();
        if !self.without_namespace {
            manifests.push(install::namespace(&settings)?);
        }
        if !self.without_crds {
            for definition in crds::all() {
                // By way of its text, which writes numbers the way people do.
                let object = serde_saphyr::from_str(&crds::to_yaml(&definition)?).with_context(|| {
                    format!("reading back the definition of {} failed", definition.name_any())
                })?;
                manifests.push(Manifest { why: "What people declare.", object });
            }
        }
        manifests.extend(installation);
        Ok(install::render(&manifests)?)
    }

    fn settings(&self) -> Result<InstallSettings> {
        let defaults = InstallSettings::default();
        Ok(InstallSettings {
            namespace: self.namespace.clone(),
            image: self.image.clone().unwrap_or(defaults.image),
            replicas: self.replicas,
            certificates: match self.certificates {
                CertificatesArgument::SelfMade => Certificates::Own,
                CertificatesArgument::CertManager => Certificates::CertManager,
            },
            agents: self.agents,
            agents_signal_crio: self.crio,
            agents_redirect: self.redirect,
            configuration: self.config.as_ref().map(read_configuration).transpose()?,
        })
    }
}

/// The text goes into the cluster as it is, but only if the operator would accept it.
fn read_configuration(path: &PathBuf) -> Result<String> {
    let loaded = Config::load(Some(path), |_| None)?;
    for warning in loaded.warnings {
        tell(&format!("{}: {warning}", path.display()));
    }
    fs::read_to_string(path)
        .with_context(|| format!("reading the configuration file {} failed", path.display()))
}
