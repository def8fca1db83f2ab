//! How commands reach registries and who they are there: the same flags for every command that talks to one.

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use fairlead_domain::keyring::IdentityKey;
use fairlead_domain::reference::Host;
use fairlead_registry::Settings;
use fairlead_registry::login::{Environment, Logins};
use fairlead_registry::transport::tls::Trust;

#[derive(Debug, Args)]
pub(crate) struct Access {
    /// Speak plain HTTP to this registry; may be given several times. Registries on this machine need no flag
    #[arg(long, value_name = "HOST")]
    plain_http: Vec<Host>,
    /// Trust the certificate authorities in a PEM file for this registry; may be given several times
    #[arg(long = "ca-file", value_name = "HOST=FILE", value_parser = ca_file)]
    ca_files: Vec<CaFile>,
    /// Look for logins in this file before the usual ones of docker and podman; it must be there
    #[arg(long, value_name = "FILE")]
    authfile: Option<PathBuf>,
    /// Use no logins at all
    #[arg(long, conflicts_with = "authfile")]
    anonymous: bool,
}

#[derive(Clone, Debug)]
struct CaFile {
    host: Host,
    file: PathBuf,
}

fn ca_file(text: &str) -> Result<CaFile> {
    let (host, file) =
        text.split_once('=').context("write the registry, '=' and the file: r.example.com=ca.pem")?;
    Ok(CaFile { host: Host::parse(host)?, file: file.into() })
}

impl Access {
    /// Settings of the client. A file of authorities that cannot be used is found out here, before anything is asked.
    pub(crate) fn settings(&self) -> Result<Settings> {
        let mut settings = Settings::default();
        let mut change = |host: &Host, change: &dyn Fn(&mut fairlead_registry::RegistrySettings)| {
            let mut own = settings.of(host).clone();
            change(&mut own);
            settings.set(host, own);
        };
        for host in &self.plain_http {
            change(host, &|own| own.plain_http = true);
        }
        for CaFile { host, file } in &self.ca_files {
            Trust::default().with_authorities(file).with_context(|| format!("--ca-file {host}=…"))?;
            change(host, &|own| own.ca_file = Some(file.clone()));
        }
        Ok(settings)
    }

    /// The logins this person has; none for `--anonymous`.
    pub(crate) fn logins(&self) -> Result<Option<Logins>> {
        if self.anonymous {
            return Ok(None);
        }
        let mut environment = Environment::from_variables(|name| std::env::var_os(name));
        environment.user_id = std::fs::metadata("/proc/self").ok().map(|process| process.uid());
        if self.authfile.is_some() {
            environment.auth_file.clone_from(&self.authfile);
        }
        let logins = Logins::load(&environment, identity_key()?)?;
        for problem in logins.problems() {
            warn(problem);
        }
        Ok(Some(logins))
    }
}

/// A warning to the person, beside the result and not in it.
pub(crate) fn warn(problem: &impl std::fmt::Display) {
    eprintln!("Warning: {problem}");
}

fn identity_key() -> Result<IdentityKey> {
    let mut random = [0; 32];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut random)
        .map_err(|_| anyhow!("the system gives no random numbers"))?;
    Ok(IdentityKey::new(random))
}
