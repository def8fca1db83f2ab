//! A bounded HTTP client for services other than registries, such as Prometheus, Loki and Harbor.
//!
//! Built from the registry client's transport: connections, TLS, proxies and the checks of redirects are the same.
//! Every call has one time limit, and every body one size limit. Credentials, headers and the client certificate go to
//! the service itself only, never to a host that it redirects to.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderValue, LOCATION};
use hyper::{Method, StatusCode};
use thiserror::Error;
use tokio::time::timeout;
use url::Url;
use zeroize::Zeroizing;

use crate::transport::address::Reach;
use crate::transport::connect::CONNECT_TIMEOUT;
use crate::transport::failure::{Failure, NoConnection};
use crate::transport::http::{Request, Response};
use crate::transport::redirect::{self, Target};
use crate::transport::resolver::{Resolve, SystemResolver};
use crate::transport::tls::{Trust, TrustError};
use crate::transport::{Profile, Transport};

/// Connections to one service that are kept for the next call.
const IDLE_CONNECTIONS: usize = 4;

#[derive(Clone)]
pub struct HttpSettings {
    /// Certificate authorities to trust besides the system's, PEM.
    pub ca: Option<Vec<u8>>,
    pub client_certificate: Option<ClientCertificate>,
    /// Accept any certificate of the service itself.
    pub insecure_skip_verify: bool,
    pub auth: ServiceAuth,
    /// Sent with every request to the service.
    pub headers: HeaderMap,
    /// Largest body of an answer.
    pub size_limit: usize,
    /// For a whole call, with its redirects and its body.
    pub time_limit: Duration,
    /// Whether a redirect of a service on a loopback or link-local address may lead to another such address.
    pub local_redirects: bool,
    /// Whether redirects to another origin are followed, without credentials; else they are returned.
    pub follows_elsewhere: bool,
    pub user_agent: HeaderValue,
}

/// How requests are authenticated.
#[derive(Clone, Default)]
pub enum ServiceAuth {
    #[default]
    None,
    Basic {
        user: String,
        password: Zeroizing<String>,
    },
    Bearer(Zeroizing<String>),
}

/// A certificate chain and its key, PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    pub chain: Vec<u8>,
    pub key: Zeroizing<Vec<u8>>,
}

impl Default for HttpSettings {
    fn default() -> Self {
        Self {
            ca: None,
            client_certificate: None,
            insecure_skip_verify: false,
            auth: ServiceAuth::None,
            headers: HeaderMap::new(),
            size_limit: 8 * 1024 * 1024,
            time_limit: Duration::from_secs(30),
            local_redirects: false,
            follows_elsewhere: true,
            user_agent: HeaderValue::from_static(concat!("fairlead/", env!("CARGO_PKG_VERSION"))),
        }
    }
}

impl fmt::Debug for HttpSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Credentials, keys and headers are not printed.
        f.debug_struct("HttpSettings")
            .field("size_limit", &self.size_limit)
            .field("time_limit", &self.time_limit)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ServiceAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Basic { .. } => "Basic",
            Self::Bearer(_) => "Bearer",
        })
    }
}

impl fmt::Debug for ClientCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientCertificate")
    }
}

/// Why a call failed. Statuses of the service are not failures.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum HttpError {
    #[error("the settings of {host} cannot be used: {reason}")]
    Settings { host: String, reason: String },
    #[error("{host} cannot be reached: {reason}")]
    Unreachable { host: String, reason: String, cause: NoConnection },
    #[error("no trusted connection to {host}: {reason}")]
    Tls { host: String, reason: String },
    #[error("{host} did not answer within {limit:?}")]
    TimedOut { host: String, limit: Duration },
    #[error("the answer of {host} is longer than {limit} bytes")]
    TooLarge { host: String, limit: usize },
    #[error("the answer of {host} is not valid: {reason}")]
    Malformed { host: String, reason: String },
    #[error("a redirect of {host} is not followed: {reason}")]
    Redirect { host: String, reason: String },
}

/// An answer with its whole body.
#[derive(Clone, Debug)]
pub struct HttpResponse {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// A client of one service.
#[derive(Debug)]
pub struct HttpClient {
    base: Url,
    transport: Transport,
    authorization: Option<HeaderValue>,
    settings: HttpSettings,
}

impl HttpClient {
    /// `base` is the address of the service, `https://loki.example/` or one with a path.
    pub fn new(base: Url, settings: HttpSettings) -> Result<Self, HttpError> {
        Self::with_resolver(base, settings, Arc::new(SystemResolver))
    }

    /// A client with another resolver of names.
    pub fn with_resolver(
        base: Url,
        settings: HttpSettings,
        resolver: Arc<dyn Resolve>,
    ) -> Result<Self, HttpError> {
        let host = host_of(&base);
        let refuse = |reason: String| HttpError::Settings { host: host.clone(), reason };
        if !matches!(base.scheme(), "http" | "https") || base.host().is_none() {
            return Err(refuse("it is not an http or https address".to_owned()));
        }
        let trusted = |error: TrustError| refuse(error.to_string());
        let trust = Trust::default();
        let away = match &settings.ca {
            Some(pem) => trust.with_pem(pem).map_err(trusted)?,
            None => trust.usual().map_err(trusted)?,
        };
        let mut home =
            if settings.insecure_skip_verify { Trust::blind().map_err(trusted)? } else { away.clone() };
        if let Some(ClientCertificate { chain, key }) = &settings.client_certificate {
            Trust::identify(&mut home, chain, key).map_err(trusted)?;
        }
        let authorization = settings.auth.header();
        let authorization =
            authorization.map_err(|()| refuse("the credentials are not a header".to_owned()))?;
        let transport = Transport::new(Profile {
            home,
            away,
            resolver,
            connections: IDLE_CONNECTIONS,
            connect_timeout: CONNECT_TIMEOUT,
            user_agent: settings.user_agent.clone(),
            direct: redirect::literal_reach(&base) == Some(Reach::Loopback),
            fenced: false,
            fences_redirects: !settings.local_redirects,
        });
        Ok(Self { base, transport, authorization, settings })
    }

    pub fn base(&self) -> &Url {
        &self.base
    }

    /// Sends a GET to a path below the base address; a query may follow it.
    pub async fn get(&self, path: &str) -> Result<HttpResponse, HttpError> {
        self.send(Method::GET, path, None).await
    }

    /// Sends a request to a path below the base address, with a body and its media type. Redirects of GET and HEAD are
    /// followed as the settings say; those of other methods are returned.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<(HeaderValue, Bytes)>,
    ) -> Result<HttpResponse, HttpError> {
        let limit = self.settings.time_limit;
        timeout(limit, self.send_following(method, path, body))
            .await
            .unwrap_or_else(|_| Err(HttpError::TimedOut { host: host_of(&self.base), limit }))
    }

    async fn send_following(
        &self,
        method: Method,
        path: &str,
        body: Option<(HeaderValue, Bytes)>,
    ) -> Result<HttpResponse, HttpError> {
        let mut target = Target { url: self.url(path)?, at_home: true };
        let (mut reach, mut hops) = (None, 0);
        loop {
            let response = self.send_once(&method, &target, reach, body.clone()).await?;
            let follows = response.status().is_redirection() && matches!(method, Method::GET | Method::HEAD);
            let location = response.headers().get(LOCATION).filter(|_| follows);
            let Some(location) = location else { return self.read(response).await };
            let host = host_of(response.url());
            let refuse = |reason: String| HttpError::Redirect { host: host.clone(), reason };
            let location = location.to_str().map_err(|error| refuse(error.to_string()))?;
            reach = response.reach();
            target = redirect::follow(&self.base, response.url(), location, reach, hops)
                .map_err(|refusal| refuse(refusal.to_string()))?;
            if !target.at_home && !self.settings.follows_elsewhere {
                return self.read(response).await;
            }
            let literal = redirect::literal_reach(&target.url).filter(|reach| reach.is_off_limits());
            if let (Some(reach), false, false) = (literal, target.at_home, self.settings.local_redirects) {
                return Err(refuse(format!("{} is {}", host_of(&target.url), reach.described())));
            }
            hops += 1;
        }
    }

    async fn send_once(
        &self,
        method: &Method,
        target: &Target,
        reach: Option<Reach>,
        body: Option<(HeaderValue, Bytes)>,
    ) -> Result<Response, HttpError> {
        let mut request = Request::new(method.clone(), target.url.clone());
        if target.at_home {
            request.headers.clone_from(&self.settings.headers);
            request.headers.extend(self.authorization.clone().map(|header| (AUTHORIZATION, header)));
        }
        if let Some((media_type, bytes)) = body {
            request.headers.insert(CONTENT_TYPE, media_type);
            request.headers.insert(CONTENT_LENGTH, HeaderValue::from(bytes.len()));
            request.body = bytes.into();
        }
        let host = host_of(&target.url);
        let failed = |failure| HttpError::of(failure, host.clone());
        if target.at_home {
            return self.transport.home().send(request).await.map_err(failed);
        }
        self.transport
            .judge(&target.url, reach)
            .await
            .map_err(|forbidden| HttpError::Redirect { host: host.clone(), reason: forbidden.to_string() })?;
        self.transport.away(&target.url, reach).send(request).await.map_err(failed)
    }

    async fn read(&self, mut response: Response) -> Result<HttpResponse, HttpError> {
        let (host, limit) = (host_of(response.url()), self.settings.size_limit);
        let mut body = BytesMut::new();
        while let Some(chunk) =
            response.chunk().await.map_err(|failure| HttpError::of(failure, host.clone()))?
        {
            if body.len() + chunk.len() > limit {
                return Err(HttpError::TooLarge { host, limit });
            }
            body.extend_from_slice(&chunk);
        }
        Ok(HttpResponse {
            status: response.status(),
            headers: response.headers().clone(),
            body: body.freeze(),
        })
    }

    /// The address of a path below the base, whose own path is kept.
    fn url(&self, path: &str) -> Result<Url, HttpError> {
        let base = self.base.as_str().trim_end_matches('/');
        let url = Url::parse(&format!("{base}/{}", path.trim_start_matches('/')));
        url.map_err(|error| HttpError::Settings { host: host_of(&self.base), reason: error.to_string() })
    }
}

impl ServiceAuth {
    fn header(&self) -> Result<Option<HeaderValue>, ()> {
        let text = match self {
            Self::None => return Ok(None),
            Self::Basic { user, password } => {
                let pair = Zeroizing::new(format!("{user}:{}", **password));
                Zeroizing::new(format!("Basic {}", STANDARD.encode(pair.as_bytes())))
            }
            Self::Bearer(token) => Zeroizing::new(format!("Bearer {}", **token)),
        };
        let mut header = HeaderValue::from_str(&text).map_err(|_| ())?;
        header.set_sensitive(true);
        Ok(Some(header))
    }
}

impl HttpError {
    fn of(failure: Failure, host: String) -> Self {
        match failure {
            Failure::Unreachable(reason) | Failure::Unsent(reason) => {
                let cause = NoConnection::of(&reason);
                Self::Unreachable { host, reason, cause }
            }
            Failure::Tls(reason) | Failure::NotTls(reason) => {
                // What follows is advice about the settings of registries.
                let reason = reason.split(';').next().unwrap_or_default().to_owned();
                Self::Tls { host, reason }
            }
            Failure::Malformed(reason) => Self::Malformed { host, reason },
            Failure::Forbidden(forbidden) => Self::Redirect { host, reason: forbidden.to_string() },
            Failure::OffLimits(off_limits) => {
                let reason = format!("{} is {}", off_limits.name, off_limits.reach.described());
                Self::Redirect { host, reason }
            }
        }
    }
}

fn host_of(url: &Url) -> String {
    url.host_str().unwrap_or_default().to_owned()
}
