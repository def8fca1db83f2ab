//! The agent with policies from a directory.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_testkit::fake_registry::{Auth, FakeRegistry};
use fairlead_testkit::{Process, Program, Signal, eventually, images, install_crypto};
use serde_json::Value;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlead");
const SOON: Duration = Duration::from_secs(30);

pub(super) struct Agent {
    pub(super) process: Process,
    pub(super) directory: TempDir,
    pub(super) router: String,
    status: String,
    http: reqwest::Client,
}

impl Agent {
    pub(super) async fn start(policies: &str, arguments: &[&str]) -> Result<Self> {
        install_crypto();
        let directory = TempDir::new()?;
        fs::create_dir(directory.path().join("policies"))?;
        fs::write(directory.path().join("policies/all.yaml"), policies)?;
        // Free a moment ago; the agent waits for an address that is taken.
        let router = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let process = Program::new(PROGRAM)
            .args(["agent", "--log-format=json", "--runtime=containerd", "--status=127.0.0.1:0"])
            .arg(format!("--policies={}", directory.path().join("policies").display()))
            .arg(format!("--config-dir={}", directory.path().join("certs.d").display()))
            .arg(format!("--router={}", Self::router(arguments).unwrap_or(&router)))
            .args(arguments.iter().copied().filter(|argument| !argument.starts_with("--router=")))
            .start()
            .await?;
        let line = process.wait_for_log("\"endpoint\":\"status\"", SOON).await?;
        let status: Value = serde_json::from_str(&line)?;
        let status = status["address"].as_str().with_context(|| line.clone())?.to_owned();
        let http = reqwest::Client::builder().no_proxy().tls_certs_only([]).build()?;
        Ok(Self { process, directory, router, status, http })
    }

    /// The address that a test wants.
    fn router<'a>(arguments: &[&'a str]) -> Option<&'a str> {
        arguments.iter().find_map(|argument| argument.strip_prefix("--router="))
    }

    pub(super) fn policies(&self) -> PathBuf {
        self.directory.path().join("policies/all.yaml")
    }

    pub(super) fn hosts(&self, registry: &str) -> PathBuf {
        self.directory.path().join("certs.d").join(registry).join("hosts.toml")
    }

    pub(super) async fn page(&self, path: &str) -> Result<(u16, String)> {
        let answer = self.http.get(format!("http://{}/{path}", self.status)).send().await?;
        Ok((answer.status().as_u16(), answer.text().await?))
    }

    pub(super) async fn is_ready(&self) -> Result<()> {
        eventually(SOON, || async {
            let (status, text) = self.page("readyz").await?;
            ensure!(status == 200, "{text}");
            Ok(())
        })
        .await
    }

    pub(super) async fn has(&self, path: &Path, text: &str) -> Result<()> {
        eventually(SOON, || async {
            let found = fs::read_to_string(path).unwrap_or_default();
            ensure!(found.contains(text), "{}: {found}", path.display());
            Ok(())
        })
        .await
    }
}

pub(super) fn policy(name: &str, source: &str, mirror: &str, never: bool) -> String {
    let policy = if never { "NeverContactSource" } else { "AllowContactingSource" };
    format!(
        "apiVersion: config.openshift.io/v1\nkind: ImageTagMirrorSet\nmetadata: {{name: {name}}}\nspec:\n  \
         imageTagMirrors:\n  - source: {source}\n    mirrors: ['{mirror}']\n    mirrorSourcePolicy: {policy}\n---\n"
    )
}

#[tokio::test]
async fn policies_in_files_become_files_and_routes_and_change_with_them() -> Result<()> {
    let mirror = FakeRegistry::start().await?;
    mirror.hold("copies/app", "1", &images::empty()?);
    let copies = format!("{}/copies", mirror.host());
    let agent = Agent::start(&policy("team", "hub.test/team", &copies, false), &[]).await?;
    agent.is_ready().await?;
    agent.has(&agent.hosts("hub.test"), &format!("[host.\"http://{}\"]", agent.router)).await?;
    let address = format!("http://{}/v2/team/app/manifests/1?ns=hub.test", agent.router);
    eventually(SOON, || async {
        let answer = agent.http.head(&address).send().await?;
        ensure!(answer.status() == 200, "{}", answer.status());
        Ok(())
    })
    .await?;
    let (_, metrics) = agent.page("metrics").await?;
    let served =
        format!("fairlead_router_requests_total{{outcome=\"served\",registry=\"{}\"}} 1", mirror.host());
    ensure!(metrics.contains(&served) && metrics.contains("fairlead_agent_applied 1"), "{metrics}");

    fs::write(agent.policies(), policy("shut", "shut.test/x", &copies, true))?;
    agent.has(&agent.hosts("shut.test"), &format!("server = \"http://{}\"", agent.router)).await?;
    eventually(SOON, || async {
        ensure!(!agent.hosts("hub.test").exists());
        Ok(())
    })
    .await?;
    // A typing error must not open what is closed.
    fs::write(agent.policies(), "kind: [")?;
    agent.process.wait_for_log("policies stay as they were", SOON).await?;
    ensure!(agent.hosts("shut.test").exists());
    Ok(())
}

#[tokio::test]
async fn files_stay_when_the_agent_ends_and_go_when_they_are_removed() -> Result<()> {
    let agent = Agent::start(&policy("team", "hub.test/team", "m.test/copies", true), &[]).await?;
    agent.is_ready().await?;
    fs::create_dir_all(agent.directory.path().join("certs.d/admin.test"))?;
    let foreign = agent.hosts("admin.test");
    fs::write(&foreign, "server = \"https://admin.test\"\n")?;
    agent.process.signal(Signal::Terminate).await?;
    eventually(SOON, || async {
        ensure!(!agent.process.is_running());
        Ok(())
    })
    .await?;
    ensure!(agent.hosts("hub.test").exists(), "SIGTERM removes nothing");
    let directory = format!("--config-dir={}", agent.directory.path().join("certs.d").display());
    let removed = std::process::Command::new(PROGRAM).args(["agent", "remove", &directory]).output()?;
    let said = String::from_utf8(removed.stdout)?;
    // A registry that is closed is closed under both of its names.
    let names = ["hub.test", "hub.test_443_"].map(|name| agent.hosts(name));
    let all = names.iter().map(|hosts| format!("removed {}", hosts.display()));
    ensure!(said.lines().eq(all), "{said}");
    ensure!(names.iter().all(|hosts| !hosts.exists()) && foreign.exists());
    Ok(())
}

#[tokio::test]
async fn a_file_that_is_changed_or_lost_is_written_again_and_one_of_others_is_named() -> Result<()> {
    let policies = policy("team", "hub.test/team", "m.test/copies", true)
        + &policy("admin", "admin.test/team", "m.test/admin", false);
    let agent = Agent::start(&policies, &[]).await?;
    agent.is_ready().await?;
    let hosts = agent.hosts("hub.test");
    let whole = fs::read_to_string(&hosts)?;
    fs::remove_dir_all(hosts.parent().context("a directory")?)?;
    agent.has(&hosts, &whole).await?;
    fs::write(agent.hosts("admin.test"), "server = \"https://admin.test\"\n")?;
    agent.process.wait_for_log("admin.test/hosts.toml is not Fairlead's", SOON).await?;
    ensure!(fs::read_to_string(agent.hosts("admin.test"))? == "server = \"https://admin.test\"\n");
    Ok(())
}

#[tokio::test]
async fn a_second_agent_takes_over_when_the_first_one_ends() -> Result<()> {
    let policies = policy("team", "hub.test/team", "m.test/copies", true);
    let first = Agent::start(&policies, &[]).await?;
    first.is_ready().await?;
    first.process.wait_for_log("\"endpoint\":\"router\"", SOON).await?;
    let (router, directory) = (first.router.clone(), first.directory.path().join("certs.d"));
    let second = Program::new(PROGRAM)
        .args(["agent", "--log-format=json", "--runtime=containerd", "--status=127.0.0.1:0"])
        .arg(format!("--policies={}", first.policies().display()))
        .arg(format!("--config-dir={}", directory.display()))
        .arg(format!("--router={router}"))
        .start()
        .await?;
    second.wait_for_log("another process listens here", SOON).await?;
    first.process.signal(Signal::Terminate).await?;
    second.wait_for_log("\"endpoint\":\"router\"", SOON).await?;
    Ok(())
}

#[test]
fn a_router_is_not_offered_to_other_machines() -> Result<()> {
    let arguments = ["agent", "--router=0.0.0.0:7780", "--policies=/nowhere"];
    let ended = std::process::Command::new(PROGRAM).args(arguments).output()?;
    let said = String::from_utf8(ended.stderr)?;
    ensure!(!ended.status.success() && said.contains("is not a loopback address"), "{said}");
    Ok(())
}

/// containerd would take its answers for those of a registry.
#[tokio::test]
async fn files_do_not_lead_to_a_stranger_on_the_address_of_the_router() -> Result<()> {
    let stranger = FakeRegistry::start().await?;
    let policies = policy("team", "hub.test/team", "m.test/copies", true);
    let agent = Agent::start(&policies, &[&format!("--router={}", stranger.host())]).await?;
    eventually(SOON, || async {
        let (status, said) = agent.page("readyz").await?;
        ensure!(status == 503 && said.contains("is not an agent"), "{status}: {said}");
        Ok(())
    })
    .await?;
    let (_, page) = agent.page("metrics").await?;
    ensure!(page.contains("fairlead_agent_applied 0"), "{page}");
    ensure!(!agent.hosts("hub.test").exists(), "a file leads there");
    drop(stranger);
    agent.is_ready().await?;
    ensure!(agent.hosts("hub.test").exists());
    Ok(())
}

#[tokio::test]
async fn credentials_that_cannot_be_read_disable_only_themselves() -> Result<()> {
    let directory = TempDir::new()?;
    let file = directory.path().join(".dockerconfigjson");
    fs::write(&file, "[")?;
    let mirror = FakeRegistry::start().await?;
    mirror.hold("copies/app", "1", &images::empty()?);
    mirror.require(Auth::Basic([("robot".to_owned(), "secret".to_owned())].into()));
    let policies = policy("team", "hub.test/team", &format!("{}/copies", mirror.host()), true);
    let agent = Agent::start(&policies, &[&format!("--mirror-credentials={}", file.display())]).await?;
    agent.is_ready().await?;
    let (_, page) = agent.page("metrics").await?;
    ensure!(page.contains("fairlead_agent_credentials_unreadable 1"), "{page}");
    let head = async || {
        let address = format!("http://{}/v2/team/app/manifests/1?ns=hub.test", agent.router);
        anyhow::Ok(agent.http.head(&address).send().await?.status().as_u16())
    };
    eventually(SOON, || async {
        let status = head().await?;
        ensure!(status == 403, "{status}");
        Ok(())
    })
    .await?;
    // The base64 of robot:secret.
    fs::write(&file, format!(r#"{{"auths": {{"{}": {{"auth": "cm9ib3Q6c2VjcmV0"}}}}}}"#, mirror.host()))?;
    eventually(SOON, || async {
        let status = head().await?;
        ensure!(status == 200, "{status}");
        Ok(())
    })
    .await?;
    let (_, page) = agent.page("metrics").await?;
    ensure!(page.contains("fairlead_agent_credentials_unreadable 0"), "{page}");
    Ok(())
}

#[test]
fn a_silent_agent_is_neither_ready_nor_alive_and_one_that_waits_is_alive() -> Result<()> {
    let directory = TempDir::new()?;
    let file = directory.path().join("ready");
    fs::write(&file, "waiting")?;
    let run = |arguments: &[&str]| -> Result<bool> {
        let program = std::process::Command::new(PROGRAM)
            .args(["agent", "ready"])
            .arg(&file)
            .args(arguments)
            .output()?;
        Ok(program.status.success())
    };
    ensure!(!run(&[])? && run(&["--alive"])?);
    let past = std::time::SystemTime::now() - Duration::from_mins(2);
    fs::File::options().write(true).open(&file)?.set_modified(past)?;
    ensure!(!run(&[])? && !run(&["--alive"])?);
    Ok(())
}
