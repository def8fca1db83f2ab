//! Proxies, played by a few lines each.

use std::io;

use anyhow::Result;
use fairlead_testkit::fake_registry::FakeRegistry;
use fairlead_testkit::pki::Authority;
use hyper::header::HeaderValue;
use hyper::{Method, StatusCode};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use url::Url;

use super::*;
use crate::transport::failure::Failure;
use crate::transport::http::{Pool, Request};
use crate::transport::resolver::SystemResolver;
use crate::transport::tls::Trust;

/// The header of `ada:secret`.
const ADA: &str = "Basic YWRhOnNlY3JldA==";

/// Listens like a proxy: reports the head of each request, sends `answer`, and then forwards bytes to `to`, if set.
async fn proxy(
    answer: &'static str,
    to: Option<SocketAddr>,
) -> Result<(SocketAddr, mpsc::UnboundedReceiver<Vec<String>>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    let (heads, asked) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let heads = heads.clone();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                let mut head = Vec::new();
                loop {
                    let mut line = String::new();
                    stream.read_line(&mut line).await?;
                    match line.trim_end() {
                        "" => break,
                        line => head.push(line.to_owned()),
                    }
                }
                let _ = heads.send(head);
                stream.write_all(answer.as_bytes()).await?;
                if let Some(to) = to {
                    copy_bidirectional(&mut stream, &mut TcpStream::connect(to).await?).await?;
                }
                io::Result::Ok(())
            });
        }
    });
    Ok((address, asked))
}

fn pool(proxy: &str) -> Result<Pool> {
    let proxies = Matcher::builder().all(proxy).build();
    let connector = Connector::new(Trust::blind()?, Arc::new(SystemResolver), Some(Arc::new(proxies)));
    Ok(Pool::new(connector, HeaderValue::from_static("test"), 1))
}

fn get(url: &str) -> Result<Request> {
    Ok(Request::new(Method::GET, Url::parse(url)?))
}

#[tokio::test]
async fn plain_http_is_forwarded() -> Result<()> {
    let (address, mut asked) = proxy("HTTP/1.1 204 No Content\r\n\r\n", None).await?;
    let answer =
        pool(&format!("http://ada:secret@{address}"))?.send(get("http://registry.example/v2/")?).await;
    let answer = answer.map_err(|failure| anyhow::anyhow!("{failure}"))?;
    assert_eq!(answer.status(), StatusCode::NO_CONTENT);
    assert_eq!(answer.reach(), None, "where the proxy is says nothing about the registry");
    let head = asked.recv().await.unwrap_or_default();
    assert_eq!(head[0], "GET http://registry.example/v2/ HTTP/1.1");
    assert!(head.contains(&format!("proxy-authorization: {ADA}")), "{head:?}");
    assert!(head.contains(&"host: registry.example".to_owned()), "{head:?}");
    Ok(())
}

#[tokio::test]
async fn tls_goes_through_a_tunnel() -> Result<()> {
    let identity = Authority::new("registry")?.issue(&["registry.example"])?;
    let registry = FakeRegistry::start_tls(&identity).await?;
    let (address, mut asked) = proxy("HTTP/1.1 200 OK\r\n\r\n", Some(registry.address())).await?;
    let pool = pool(&format!("http://ada:secret@{address}"))?;
    for _ in 0..2 {
        let answer = pool.send(get("https://registry.example/v2/")?).await;
        let answer = answer.map_err(|failure| anyhow::anyhow!("{failure}"))?;
        assert_eq!((answer.status(), answer.reach()), (StatusCode::OK, None));
    }
    let head = asked.recv().await.unwrap_or_default();
    assert_eq!(head[0], "CONNECT registry.example:443 HTTP/1.1");
    assert!(head.contains(&format!("Proxy-Authorization: {ADA}")), "{head:?}");
    assert!(asked.try_recv().is_err(), "the tunnel is used again");
    for request in registry.requests() {
        assert_eq!(request.version, hyper::Version::HTTP_2);
        assert_eq!(request.headers.get("proxy-authorization"), None, "it is the proxy's business");
    }
    Ok(())
}

/// A liveness check is to prove that a new connection comes about all the way.
#[tokio::test]
async fn without_reuse_each_request_has_a_tunnel_of_its_own() -> Result<()> {
    let identity = Authority::new("registry")?.issue(&["registry.example"])?;
    let registry = FakeRegistry::start_tls(&identity).await?;
    let (address, mut asked) = proxy("HTTP/1.1 200 OK\r\n\r\n", Some(registry.address())).await?;
    let pool = pool(&format!("http://{address}"))?;
    let unpooled = pool.unpooled();
    for pool in [&pool, &unpooled, &unpooled, &pool] {
        let begun = Instant::now();
        let answer = pool.send(get("https://registry.example/v2/")?).await;
        let answer = answer.map_err(|failure| anyhow::anyhow!("{failure}"))?;
        assert_eq!(answer.status(), StatusCode::OK);
        let is_new = answer.opened().is_some_and(|opened| opened >= begun);
        assert_eq!(is_new, asked.try_recv().is_ok(), "a tunnel for each new connection, and no other");
    }
    assert_eq!(registry.connections(), 3);
    Ok(())
}

#[tokio::test]
async fn a_proxy_that_fails_is_named_and_its_password_is_not() -> Result<()> {
    let (nameless, _asked) = proxy("HTTP/1.1 407 Who Are You\r\n\r\n", None).await?;
    let (refusing, _asked) = proxy("HTTP/1.1 403 No\r\n\r\n", None).await?;
    let (closing, _asked) = proxy("", None).await?;
    let dead = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
    for (scheme, address, why) in [
        ("http", nameless, "it wants a user name and password"),
        ("http", refusing, "it refuses"),
        ("http", closing, "it closes the connection"),
        ("http", dead, "the connection was refused"),
        // What it does not speak must not be taken for what the registry does not speak.
        ("https", refusing, "during the TLS handshake"),
        ("socks5", dead, "socks5 are not known"),
    ] {
        let pool = pool(&format!("{scheme}://ada:secret@{address}"))?;
        let Err(Failure::Unreachable(told)) = pool.send(get("https://registry.example/v2/")?).await else {
            panic!("{scheme} {why}");
        };
        assert!(told.contains(&format!("the proxy {address}")) && told.contains(why), "{told}");
        assert!(!told.contains("secret"), "{told}");
    }
    Ok(())
}
