//! HTTP/2 servers that refuse requests for the moment.

use std::sync::Arc;

use anyhow::Result;
use bytes::Bytes;
use fairlead_testkit::pki::Authority;
use h2::Reason;
use hyper::Response;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::*;
use crate::transport::resolver::SystemResolver;
use crate::transport::tls::Trust;

type Connection = h2::server::Connection<TlsStream<TcpStream>, Bytes>;

/// Lets the test play the server on each connection.
async fn server() -> Result<(Url, mpsc::UnboundedReceiver<Connection>)> {
    let identity = Authority::new("registry")?.issue(&["127.0.0.1"])?;
    let chain = CertificateDer::pem_slice_iter(identity.certificate.as_bytes()).collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = Url::parse(&format!("https://{}/v2/", listener.local_addr()?))?;
    let (connections, accepted) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _ = connections.send(h2::server::handshake(acceptor.accept(stream).await?).await?);
        }
        anyhow::Ok(())
    });
    Ok((url, accepted))
}

fn pool() -> Result<Pool> {
    let connector = Connector::new(Trust::blind()?, Arc::new(SystemResolver), None);
    Ok(Pool::new(connector, HeaderValue::from_static("test"), 1))
}

fn post(url: &Url, body: Body) -> Request {
    Request { body, ..Request::new(Method::POST, url.clone()) }
}

async fn next(connection: &mut Connection) -> Result<h2::server::SendResponse<Bytes>> {
    let request = connection.accept().await.ok_or_else(|| anyhow::anyhow!("no request came"))?;
    Ok(request?.1)
}

/// Answers, and serves the connection until it is no longer used.
async fn answer(mut connection: Connection, mut to: h2::server::SendResponse<Bytes>) -> Result<()> {
    to.send_response(Response::builder().status(204).body(())?, true)?;
    while connection.accept().await.is_some() {}
    Ok(())
}

async fn is_answered(
    asking: impl Future<Output = Result<super::Response, Failure>>,
    serving: impl Future<Output = Result<()>>,
) {
    let answer = tokio::select! {
        answer = asking => answer,
        served = serving => panic!("{served:?}"),
    };
    assert_eq!(answer.map(|answer| answer.status()), Ok(StatusCode::NO_CONTENT));
}

#[tokio::test]
async fn a_request_that_was_refused_is_sent_again() -> Result<()> {
    let (url, mut accepted) = server().await?;
    let pool = pool()?;
    let serving = async {
        let mut connection = accepted.recv().await.ok_or_else(|| anyhow::anyhow!("no connection"))?;
        next(&mut connection).await?.send_reset(Reason::REFUSED_STREAM);
        let again = next(&mut connection).await?;
        answer(connection, again).await
    };
    Box::pin(is_answered(pool.send(post(&url, Bytes::from_static(b"what").into())), serving)).await;
    Ok(())
}

#[tokio::test]
async fn a_server_that_wants_a_new_connection_gets_one() -> Result<()> {
    let (url, mut accepted) = server().await?;
    let pool = pool()?;
    let serving = async {
        let mut first = accepted.recv().await.ok_or_else(|| anyhow::anyhow!("no connection"))?;
        // The end is announced at once, so nothing that comes is looked at.
        first.abrupt_shutdown(Reason::NO_ERROR);
        tokio::spawn(async move { while first.accept().await.is_some() {} });
        let mut second = accepted.recv().await.ok_or_else(|| anyhow::anyhow!("no second connection"))?;
        let again = next(&mut second).await?;
        answer(second, again).await
    };
    Box::pin(is_answered(pool.send(post(&url, Body::default())), serving)).await;
    Ok(())
}

#[tokio::test]
async fn what_may_have_been_seen_is_not_sent_again() -> Result<()> {
    for (reason, body) in [
        (Reason::INTERNAL_ERROR, Body::default()),
        // There is no second of it.
        (Reason::REFUSED_STREAM, Body::stream(futures::stream::iter([Ok(Bytes::from_static(b"what"))]))),
    ] {
        let (url, mut accepted) = server().await?;
        let pool = pool()?;
        let serving = async {
            let mut connection = accepted.recv().await.ok_or_else(|| anyhow::anyhow!("no connection"))?;
            next(&mut connection).await?.send_reset(reason);
            next(&mut connection).await.map(drop)
        };
        tokio::select! {
            answer = pool.send(post(&url, body)) => {
                assert!(matches!(answer, Err(Failure::Unreachable(_))), "{answer:?}");
            }
            served = serving => panic!("{reason:?}: {served:?}"),
        }
    }
    Ok(())
}
