//! How commands reach registries and who they are there: the same flags for every command that talks to one.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, anyhow};
use clap::Args;
use fairlead_domain::keyring::{Credential, IdentityKey};
use fairlead_domain::reference::{Host, Repository};
use fairlead_registry::Settings;
use fairlead_registry::login::{Environment, Logins};
use fairlead_registry::transport::tls::Trust;

/// Which of these flags help where a registry's certificate is not trusted.
pub(crate) const TLS_HINT: &str = " (with this command: --ca-file HOST=FILE, or --plain-http HOST)";

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
    /// Settings of the client, the given ones with what the flags say. A file of authorities that cannot be used is found out here, before anything is asked.
    pub(crate) fn settings(&self, mut settings: Settings) -> Result<Settings> {
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

    /// Whether the person chose a file of logins, rather than leaving it to habit.
    pub(crate) fn names_logins(&self) -> bool {
        self.authfile.is_some()
    }

    /// The logins this person has; none for `--anonymous`.
    pub(crate) fn person(&self) -> Result<Person> {
        if self.anonymous {
            return Ok(Person { logins: None, told: Mutex::default() });
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
        Ok(Person { logins: Some(logins), told: Mutex::default() })
    }
}

/// Who runs the command, as registries know them.
pub(crate) struct Person {
    logins: Option<Logins>,
    told: Mutex<HashSet<String>>,
}

impl Person {
    /// The credentials for a repository. What was wrong on the way is told once, however often it is met.
    pub(crate) async fn credentials(
        &self,
        repository: &Repository,
        warn: impl Fn(&String),
    ) -> Vec<Credential> {
        let Some(logins) = &self.logins else {
            return Vec::new();
        };
        let found = logins.find(repository).await;
        for problem in found.problems {
            let problem = problem.to_string();
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            if !told.contains(&problem) {
                warn(&problem);
                told.insert(problem);
            }
        }
        found.credentials
    }
}

/// A warning to the person, beside the result and not in it.
pub(crate) fn warn(problem: &impl std::fmt::Display) {
    eprintln!("Warning: {problem}");
}

pub(crate) fn identity_key() -> Result<IdentityKey> {
    let mut random = [0; 32];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut random)
        .map_err(|_| anyhow!("the system gives no random numbers"))?;
    Ok(IdentityKey::new(random))
}
