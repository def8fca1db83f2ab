//! Registries behind a proxy that the environment names.

use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

use anyhow::Result;
use fairlead_testkit::fake_registry::{Effect, FakeRegistry, Fault, Route};
use fairlead_testkit::images;
use fairlead_testkit::pki::Authority;
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::person::{Outcome, Person};

/// A name that cannot be resolved here: only a proxy can know where it is.
const HOST: &str = "registry.invalid";

fn probe(person: &Person, environment: &[(&str, String)], args: &[&str]) -> Result<Outcome> {
    let child = Command::new(env!("CARGO_BIN_EXE_fairlead"))
        .arg("probe")
        .args(args)
        .env_clear()
        .env("HOME", person.path(""))
        .envs(environment.iter().map(|(name, value)| (*name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    Outcome::of(child)
}

/// Plain HTTP goes to the proxy as a whole, so a registry can play both parts.
async fn proxy_and_registry() -> Result<(FakeRegistry, String)> {
    let registry = FakeRegistry::start().await?;
    registry.hold("app", "1", &images::empty()?);
    let url = registry.url();
    Ok((registry, url))
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_http_goes_through_the_proxy_unless_it_is_excepted() -> Result<()> {
    let (proxy, url) = proxy_and_registry().await?;
    let person = Person::new()?;
    let image = format!("{HOST}/app:1");
    let args = ["--plain-http", HOST, image.as_str()];
    for name in ["HTTP_PROXY", "http_proxy", "ALL_PROXY"] {
        proxy.forget_requests();
        let outcome = probe(&person, &[(name, url.clone())], &args)?;
        assert_eq!(outcome.is(0).rows()[0][1], "available", "{name}");
        assert_eq!(proxy.count("HEAD", "/v2/app/manifests/1"), 1, "{name}");
        assert_eq!(proxy.requests()[0].header("host"), HOST, "{name}");
    }
    proxy.forget_requests();
    for excepted in [HOST, ".invalid", "*"] {
        let environment = [("HTTP_PROXY", url.clone()), ("NO_PROXY", excepted.to_owned())];
        let outcome = probe(&person, &environment, &args)?;
        assert_eq!(outcome.is(1).rows()[0][1], "unreachable", "{excepted}");
    }
    assert_eq!(proxy.requests().len(), 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_on_this_machine_is_asked_directly() -> Result<()> {
    let (registry, _) = proxy_and_registry().await?;
    let (proxy, url) = proxy_and_registry().await?;
    let environment = ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"].map(|name| (name, url.clone()));
    let image = format!("{}/app:1", registry.host());
    let outcome = probe(&Person::new()?, &environment, &[&image])?;
    assert_eq!(outcome.is(0).rows()[0][1], "available");
    assert_eq!(proxy.requests().len(), 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn no_redirect_leads_a_proxy_into_the_network() -> Result<()> {
    let (proxy, url) = proxy_and_registry().await?;
    let person = Person::new()?;
    let image = format!("{HOST}/app:1");
    for inside in
        ["http://169.254.169.254/latest/", "http://localhost:10250/", "http://127.0.0.1/", "http://10.0.0.1/"]
    {
        proxy.heal();
        proxy.inject(Fault::new(Effect::Redirect(inside.to_owned())).on(Route::Manifests));
        proxy.forget_requests();
        let outcome = probe(&person, &[("HTTP_PROXY", url.clone())], &["--plain-http", HOST, &image])?;
        let rows = outcome.is(1).rows();
        assert_eq!(rows[0][1], "malformed-answer", "{inside}: {}", outcome.output);
        assert!(outcome.output.contains("not followed"), "{inside}: {}", outcome.output);
        assert!(proxy.requests().iter().all(|request| request.header("host") == HOST), "{inside}");
    }
    Ok(())
}

/// A proxy that opens tunnels, all of them to one address, and remembers who was asked for.
struct Tunnel {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
}

impl Tunnel {
    async fn start(to: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let tunnel = Self { address: listener.local_addr()?, asked: Arc::default() };
        let asked = Arc::clone(&tunnel.asked);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(open(stream, to, Arc::clone(&asked)));
            }
        });
        Ok(tunnel)
    }
}

async fn open(mut client: TcpStream, to: SocketAddr, asked: Arc<Mutex<Vec<String>>>) -> Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(client.read_u8().await?);
    }
    let line = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
    asked.lock().unwrap().push(line);
    let mut server = TcpStream::connect(to).await?;
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_spoken_with_the_registry_and_not_with_the_proxy() -> Result<()> {
    let (right, wrong) = (Authority::new("right")?, Authority::new("wrong")?);
    let registry = FakeRegistry::start_tls(&right.issue(&[HOST])?).await?;
    registry.hold("app", "1", &images::empty()?);
    let tunnel = Tunnel::start(registry.address()).await?;
    let person = Person::new()?;
    let image = format!("{HOST}/app:1");
    for (authority, status, verdict) in [(&right, 0, "available"), (&wrong, 1, "tls-error")] {
        let file = person.write("ca.pem", authority.certificate())?;
        let trust = format!("{HOST}={}", file.display());
        let environment = [("HTTPS_PROXY", format!("http://{}", tunnel.address))];
        let outcome = probe(&person, &environment, &["--ca-file", &trust, &image])?;
        assert_eq!(outcome.is(status).rows()[0][1], verdict);
    }
    let asked = tunnel.asked.lock().unwrap().clone();
    assert!(
        !asked.is_empty() && asked.iter().all(|line| line.starts_with(&format!("CONNECT {HOST}:443 "))),
        "{asked:?}"
    );
    Ok(())
}
