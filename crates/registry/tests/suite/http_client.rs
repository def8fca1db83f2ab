//! The client for services other than registries, against servers of a few lines.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use fairlead_registry::http_client::{ClientCertificate, HttpClient, HttpError, HttpSettings, ServiceAuth};
use fairlead_registry::transport::resolver::{Resolve, Resolving};
use fairlead_testkit::pki::Authority;
use hyper::header::HeaderValue;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use url::Url;
use zeroize::Zeroizing;

/// The lines of a request's head.
type Head = Vec<String>;

/// Answers every request with these bytes, then keeps the connection open.
async fn server(
    answer: impl Fn(&Head) -> String + Send + Sync + 'static,
    tls: Option<TlsAcceptor>,
) -> Result<(SocketAddr, mpsc::UnboundedReceiver<Head>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (heads, asked) = mpsc::unbounded_channel();
    let answer = Arc::new(answer);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (heads, answer, tls) = (heads.clone(), Arc::clone(&answer), tls.clone());
            tokio::spawn(async move {
                match tls {
                    Some(tls) => converse(tls.accept(stream).await?, &heads, &*answer).await,
                    None => converse(stream, &heads, &*answer).await,
                }
            });
        }
    });
    Ok((address, asked))
}

async fn converse(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    heads: &mpsc::UnboundedSender<Head>,
    answer: &(dyn Fn(&Head) -> String + Send + Sync),
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await? == 0 {
                return Ok(());
            }
            match line.trim_end() {
                "" => break,
                line => head.push(line.to_owned()),
            }
        }
        let answer = answer(&head);
        let _ = heads.send(head);
        stream.write_all(answer.as_bytes()).await?;
        stream.flush().await?;
    }
}

fn ok(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

fn redirect(location: &str) -> String {
    format!("HTTP/1.1 302 Found\r\nlocation: {location}\r\ncontent-length: 0\r\n\r\n")
}

fn url(scheme: &str, address: SocketAddr, path: &str) -> Result<Url> {
    Ok(Url::parse(&format!("{scheme}://{address}{path}"))?)
}

fn with_secrets() -> HttpSettings {
    let mut settings = HttpSettings { auth: ServiceAuth::Bearer(token()), ..HttpSettings::default() };
    settings.headers.insert("x-scope-orgid", HeaderValue::from_static("tenant"));
    settings
}

fn token() -> Zeroizing<String> {
    Zeroizing::new("secret".to_owned())
}

#[tokio::test]
async fn credentials_headers_and_the_path_of_the_service_are_sent() -> Result<()> {
    let (address, mut asked) = server(|_| ok("{}"), None).await?;
    let basic = ServiceAuth::Basic { user: "ada".into(), password: token() };
    for (auth, expected) in [
        (ServiceAuth::None, None),
        (ServiceAuth::Bearer(token()), Some("authorization: Bearer secret")),
        (basic, Some("authorization: Basic YWRhOnNlY3JldA==")),
    ] {
        let settings = HttpSettings { auth, ..with_secrets() };
        let client = HttpClient::new(url("http", address, "/loki")?, settings)?;
        let answer = client.get("/api/v1/query?query=up").await?;
        assert_eq!((answer.status.as_u16(), &answer.body[..]), (200, &b"{}"[..]));
        let head = asked.recv().await.context("a request")?;
        assert_eq!(head[0], "GET /loki/api/v1/query?query=up HTTP/1.1");
        assert!(head.contains(&"x-scope-orgid: tenant".to_owned()), "{head:?}");
        let sent = head.iter().find(|line| line.starts_with("authorization"));
        assert_eq!(sent.map(String::as_str), expected);
    }
    Ok(())
}

#[tokio::test]
async fn tls_needs_the_authority_and_the_client_certificate() -> Result<()> {
    let authority = Authority::new("Service")?;
    let identity = authority.issue(&["127.0.0.1"])?;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(authority.certificate().as_bytes())?)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build()?;
    let chain = CertificateDer::pem_slice_iter(identity.certificate.as_bytes()).collect::<Result<_, _>>()?;
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, PrivateKeyDer::from_pem_slice(identity.key.as_bytes())?)?;
    let (address, _asked) = server(|_| ok("{}"), Some(TlsAcceptor::from(Arc::new(config)))).await?;

    let own = authority.issue_to_client("fairlead", "operators")?;
    let certificate =
        ClientCertificate { chain: own.certificate.into(), key: Zeroizing::new(own.key.into_bytes()) };
    let ca = Some(authority.certificate().as_bytes().to_vec());
    let get = async |ca: Option<Vec<u8>>, client_certificate| {
        let settings = HttpSettings { ca, client_certificate, ..HttpSettings::default() };
        HttpClient::new(url("https", address, "/")?, settings)?.get("/").await.map_err(anyhow::Error::from)
    };
    assert_eq!(get(ca.clone(), Some(certificate.clone())).await?.status.as_u16(), 200);
    let failure = |outcome: Result<_>| {
        outcome.map(|_: fairlead_registry::http_client::HttpResponse| ()).unwrap_err().to_string()
    };
    let untrusted = failure(get(None, Some(certificate)).await);
    assert!(untrusted.contains("no trusted connection") && !untrusted.contains("registries"), "{untrusted}");
    let unknown = failure(get(ca, None).await);
    assert!(unknown.contains("certificate"), "{unknown}");
    Ok(())
}

#[tokio::test]
async fn large_and_slow_bodies_are_given_up() -> Result<()> {
    let (address, _asked) = server(|_| ok(&"x".repeat(100)), None).await?;
    for (size_limit, fits) in [(100, true), (99, false)] {
        let settings = HttpSettings { size_limit, ..HttpSettings::default() };
        let answer = HttpClient::new(url("http", address, "/")?, settings)?.get("/").await;
        assert_eq!(answer.is_ok(), fits, "{answer:?}");
        assert!(fits || matches!(answer, Err(HttpError::TooLarge { limit: 99, .. })), "{answer:?}");
    }
    let (address, _asked) =
        server(|_| "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx".to_owned(), None).await?;
    let settings = HttpSettings { time_limit: Duration::from_millis(300), ..HttpSettings::default() };
    let begun = Instant::now();
    let answer = HttpClient::new(url("http", address, "/")?, settings)?.get("/").await;
    assert!(matches!(answer, Err(HttpError::TimedOut { .. })), "{answer:?}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    Ok(())
}

/// A service that redirects `/away` to this address, and `/home` to itself.
async fn redirecting(away: String) -> Result<(SocketAddr, mpsc::UnboundedReceiver<Head>)> {
    let path =
        |head: &Head| head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
    let answer = move |head: &Head| match path(head).as_str() {
        "/away" => redirect(&away),
        "/home" => redirect("/there"),
        _ => ok("home"),
    };
    server(answer, None).await
}

fn has_secrets(head: &Head) -> bool {
    head.iter().any(|line| line.starts_with("authorization") || line.starts_with("x-scope"))
}

#[tokio::test]
async fn credentials_do_not_follow_a_redirect_to_another_host() -> Result<()> {
    let (other, mut asked_of_other) = server(|_| ok("away"), None).await?;
    let (service, mut asked) = redirecting(format!("http://{other}/x")).await?;
    let settings = HttpSettings { local_redirects: true, ..with_secrets() };
    let client = HttpClient::new(url("http", service, "/")?, settings)?;
    assert_eq!(&client.get("/home").await?.body[..], b"home");
    for _ in 0..2 {
        assert!(has_secrets(&asked.recv().await.context("a request")?), "the service itself gets them");
    }
    assert_eq!(&client.get("/away").await?.body[..], b"away");
    assert!(!has_secrets(&asked_of_other.recv().await.context("a request")?));

    let settings = HttpSettings { follows_elsewhere: false, ..with_secrets() };
    let client = HttpClient::new(url("http", service, "/")?, settings)?;
    assert_eq!(&client.get("/home").await?.body[..], b"home");
    assert!(client.get("/away").await?.status.is_redirection(), "that is for the caller to judge");
    assert!(asked_of_other.try_recv().is_err(), "it is not asked");
    Ok(())
}

/// Every name is this machine.
struct Here;

impl Resolve for Here {
    fn resolve(&self, _: &str) -> Resolving {
        Box::pin(async { Ok(vec![SocketAddr::from(([127, 0, 0, 1], 0))]) })
    }
}

#[tokio::test]
async fn redirects_to_local_addresses_are_refused_unless_allowed() -> Result<()> {
    let (other, mut asked_of_other) = server(|_| ok("away"), None).await?;
    let port = other.port();
    for (away, local_redirects, follows) in [
        (format!("http://{other}/"), false, false),
        (format!("http://localhost:{port}/"), false, false),
        (format!("http://other.example:{port}/"), false, false),
        (format!("http://other.example:{port}/"), true, true),
        ("http://169.254.169.254/".to_owned(), false, false),
        ("http://169.254.169.254/".to_owned(), true, false),
    ] {
        let (service, _asked) = redirecting(away.clone()).await?;
        let settings = HttpSettings { local_redirects, ..with_secrets() };
        let client = HttpClient::with_resolver(url("http", service, "/")?, settings, Arc::new(Here))?;
        let answer = client.get("/away").await;
        assert_eq!(answer.is_ok(), follows, "{away}: {answer:?}");
        assert!(follows || matches!(answer, Err(HttpError::Redirect { .. })), "{away}: {answer:?}");
        assert_eq!(asked_of_other.try_recv().is_ok(), follows, "{away}");
    }
    Ok(())
}
