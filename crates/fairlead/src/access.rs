//! How commands reach registries and who they are there: the same flags for every command that talks to one.

use std::collections::HashSet;
use std::fmt::Display;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use anyhow::{Context, Result, anyhow};
use clap::Args;
use fairlead_domain::keyring::{Credential, IdentityKey};
use fairlead_domain::reference::{Host, Repository};
use fairlead_registry::Settings;
use fairlead_registry::transport::tls::Trust;
use parking_lot::Mutex;

use crate::login::{Environment, Logins};
use crate::output::tell;

/// Settings of the operator that a registry's problem may name as what helps, and the flags that do the same here.
const REMEDIES: [(&str, &str); 3] = [
    ("registries.<host>.caFile", "--ca-file HOST=FILE"),
    ("registries.<host>.plainHttp", "--plain-http HOST"),
    ("registries.<host>.tokenHosts", "--token-host HOST=TOKEN-HOST"),
];

/// Which flag helps against a problem, to be added to its text.
pub(crate) fn hint(problem: &str) -> String {
    let remedy = REMEDIES.iter().find(|(setting, _)| problem.contains(setting));
    remedy.map_or_else(String::new, |(_, flag)| format!(" (with this command: {flag})"))
}

#[derive(Debug, Args)]
pub(crate) struct Access {
    /// Speak plain HTTP to this registry; may be given several times. Registries on this machine need no flag
    #[arg(long, value_name = "HOST")]
    plain_http: Vec<Host>,
    /// Trust the certificate authorities in a PEM file for this registry; may be given several times
    #[arg(long = "ca-file", value_name = "HOST=FILE", value_parser = ca_file)]
    ca_files: Vec<CaFile>,
    /// Send logins of this registry also to this token server, which has another domain or speaks plain HTTP; may be
    /// given several times
    #[arg(long = "token-host", value_name = "HOST=TOKEN-HOST", value_parser = token_host)]
    token_hosts: Vec<TokenHost>,
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

#[derive(Clone, Debug)]
struct TokenHost {
    host: Host,
    token_host: Host,
}

fn token_host(text: &str) -> Result<TokenHost> {
    let (host, token_host) = text
        .split_once('=')
        .context("write the registry, '=' and its token server: r.example.com=auth.example.net")?;
    Ok(TokenHost { host: Host::parse(host)?, token_host: Host::parse(token_host)? })
}

impl Access {
    /// Settings of the client, the given ones with what the flags say. A file of authorities that cannot be used is
    /// found out here, before anything is asked.
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
        for TokenHost { host, token_host } in &self.token_hosts {
            change(host, &|own| own.token_hosts.push(token_host.as_str().to_owned()));
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
    /// The credentials for a repository. What was wrong on the way is reported once, however often it is met.
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
            let mut told = self.told.lock();
            if !told.contains(&problem) {
                warn(&problem);
                told.insert(problem);
            }
        }
        found.credentials
    }
}

/// A warning to the person, beside the result and not in it.
pub(crate) fn warn(problem: &impl Display) {
    tell(&warning(problem));
}

/// The words of a warning, for those who print it in their own way.
pub(crate) fn warning(problem: &impl Display) -> String {
    format!("Warning: {problem}")
}

pub(crate) fn identity_key() -> Result<IdentityKey> {
    let mut random = [0; 32];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut random)
        .map_err(|_| anyhow!("the system gives no random numbers"))?;
    Ok(IdentityKey::new(random))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_is_answered_by_the_flag_that_helps() {
        for (problem, flag) in [
            ("named in registries.<host>.caFile", " (with this command: --ca-file HOST=FILE)"),
            ("say it in registries.<host>.plainHttp", " (with this command: --plain-http HOST)"),
            ("list it in registries.<host>.tokenHosts", " (with this command: --token-host HOST=TOKEN-HOST)"),
            ("its certificate has expired", ""),
            ("see registries.<host>.requestsPerSecond", ""),
        ] {
            assert_eq!(hint(problem), flag, "{problem}");
        }
    }
}
