//! What an admission costs at least: a handler that reads the review into Kubernetes' types and admits the Pod. TLS,
//! connections, threads and allocator are the operator's; all the rest is left out.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use axum::Json;
use axum::http::StatusCode;
use axum::routing::post;
use clap::Args;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use k8s_openapi::api::core::v1::Pod;
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionResponse, AdmissionReview};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

/// The operator's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The operator has no more threads.
const MOST_THREADS: usize = 4;
/// As in the operator.
const STREAMS: u32 = 128;
const IDLE: Duration = Duration::from_mins(3);

#[derive(Args)]
pub(crate) struct Bare {
    /// Directory with tls.crt and tls.key
    #[arg(long)]
    certificates_dir: PathBuf,
}

impl Bare {
    /// Serves until the process is killed.
    pub(crate) async fn run(self) -> Result<()> {
        tokio::task::spawn_blocking(move || {
            // As the operator does, and for all memory that is touched from here on.
            let _ = rustix::thread::disable_transparent_huge_pages(true);
            let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build()?;
            runtime.block_on(serve(&self.certificates_dir))
        })
        .await?
    }
}

async fn serve(certificates: &Path) -> Result<()> {
    let tls = TlsAcceptor::from(Arc::new(server_config(certificates)?));
    let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
    // The line by which the operator tells its address.
    println!(r#"{{"endpoint":"webhook","address":"{}"}}"#, listener.local_addr()?);
    let routes = axum::Router::new().route(super::server::BARE_PATH, post(admit));
    loop {
        let (stream, _) = listener.accept().await?;
        tokio::spawn(connection(stream, tls.clone(), routes.clone()));
    }
}

async fn connection(stream: TcpStream, tls: TlsAcceptor, routes: axum::Router) {
    // A caller that hangs up early finds out by itself.
    drop(stream.set_nodelay(true));
    let Ok(stream) = tls.accept(stream).await else { return };
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(STREAMS);
    drop(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes)).await);
}

async fn admit(
    Json(review): Json<AdmissionReview<Pod>>,
) -> Result<Json<AdmissionReview<DynamicObject>>, (StatusCode, String)> {
    let request: AdmissionRequest<Pod> =
        review.try_into().map_err(|error| (StatusCode::BAD_REQUEST, format!("{error}")))?;
    Ok(Json(AdmissionResponse::from(&request).into_review()))
}

fn server_config(directory: &Path) -> Result<ServerConfig> {
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_file_iter(directory.join("tls.crt"))?.collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_file(directory.join("tls.key"))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .context("certificate and key")?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}
