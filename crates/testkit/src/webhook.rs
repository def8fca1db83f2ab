//! An admission webhook that answers as a test wants: it refuses with any status, or holds a write back while the test
//! changes the object that is written. No real policy does either on demand.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::Result;
use axum::extract::State;
use axum::routing::post;
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::pki::{Authority, Identity};

/// What becomes of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    Allow,
    /// It is refused with this status.
    Refuse(u16),
    /// It waits for another answer; see [`Webhook::set`].
    Hold,
}

type Decide = Box<dyn Fn(&Value) -> Answer + Send + Sync>;

/// A webhook on a free port. It lives on the runtime that started it and ends when dropped.
#[derive(Debug)]
pub struct Webhook {
    address: SocketAddr,
    authority: String,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

struct Shared {
    decide: watch::Sender<Decide>,
    asked: AtomicUsize,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("asked", &self.asked).finish_non_exhaustive()
    }
}

impl Webhook {
    /// Listens where an API server reaches it, and allows everything.
    pub async fn start(address: IpAddr) -> Result<Self> {
        let authority = Authority::new("webhook under test")?;
        let tls = server_config(&authority.issue(&[&address.to_string()])?)?;
        let listener = TcpListener::bind((address, 0)).await?;
        let address = listener.local_addr()?;
        let decide = watch::Sender::new(Box::new(|_: &Value| Answer::Allow) as Decide);
        let shared = Arc::new(Shared { decide, asked: AtomicUsize::default() });
        let routes = Router::new().route("/", post(review)).with_state(shared.clone());
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(connection(stream, tls.clone(), routes.clone()));
            }
        });
        Ok(Self { address, authority: authority.certificate().to_owned(), shared, serving })
    }

    /// Decides from now on by the `request` of a review; what is held is decided anew.
    pub fn set(&self, decide: impl Fn(&Value) -> Answer + Send + Sync + 'static) {
        drop(self.shared.decide.send_replace(Box::new(decide)));
    }

    /// How many reviews have come.
    pub fn asked(&self) -> usize {
        self.shared.asked.load(Ordering::Relaxed)
    }

    /// Where and with whose certificate an API server finds it, for a webhook configuration.
    pub fn client_config(&self) -> Value {
        json!({"url": format!("https://{}/", self.address), "caBundle": STANDARD.encode(&self.authority)})
    }
}

impl Drop for Webhook {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn review(State(shared): State<Arc<Shared>>, Json(review): Json<Value>) -> Json<Value> {
    shared.asked.fetch_add(1, Ordering::Relaxed);
    let request = review.get("request").unwrap_or(&Value::Null);
    let mut decisions = shared.decide.subscribe();
    let answer = loop {
        let answer = (*decisions.borrow_and_update())(request);
        if answer != Answer::Hold || decisions.changed().await.is_err() {
            break answer;
        }
    };
    let status = match answer {
        Answer::Refuse(code) => json!({"code": code, "message": "refused by a test"}),
        Answer::Allow | Answer::Hold => Value::Null,
    };
    let response = json!({"uid": request.get("uid"), "allowed": answer == Answer::Allow, "status": status});
    Json(json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}))
}

async fn connection(stream: TcpStream, tls: TlsAcceptor, routes: Router) {
    let Ok(stream) = tls.accept(stream).await else { return };
    let builder = auto::Builder::new(TokioExecutor::new());
    drop(builder.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes)).await);
}

fn server_config(identity: &Identity) -> Result<TlsAcceptor> {
    let chain = CertificateDer::pem_slice_iter(identity.certificate.as_bytes()).collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
