//! Where a registry is, and how to log in.

use std::net::{Ipv4Addr, SocketAddrV4};

use anyhow::Result;
use reqwest::{Certificate, Method, RequestBuilder};

/// Address and credentials of a registry.
#[derive(Clone, Debug)]
pub struct Endpoint {
    address: SocketAddrV4,
    /// User and password, where anonymous access is refused.
    pub credentials: Option<(String, String)>,
    /// PEM certificate of the authority, where it speaks TLS.
    pub authority: Option<String>,
    /// The authority is the certificate of the registry itself.
    pub(super) self_signed: bool,
}

impl Endpoint {
    /// A registry on loopback that was started elsewhere, speaking plain HTTP to every client.
    pub fn plain(port: u16) -> Self {
        Self::at(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))
    }

    /// The same at another address.
    pub fn at(address: SocketAddrV4) -> Self {
        Self { address, credentials: None, authority: None, self_signed: false }
    }

    pub fn address(&self) -> SocketAddrV4 {
        self.address
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// `ADDRESS:PORT`, as in image references.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    pub fn url(&self) -> String {
        let scheme = if self.authority.is_some() { "https" } else { "http" };
        format!("{scheme}://{}", self.host())
    }

    /// A client that trusts the registry's certificate.
    pub fn http(&self) -> Result<reqwest::Client> {
        crate::install_crypto();
        let builder = reqwest::Client::builder().no_proxy();
        let builder = match &self.authority {
            // The TLS library refuses such certificates, and whether ours comes around that is not this client's
            // matter.
            Some(_) if self.self_signed => builder.tls_danger_accept_invalid_certs(true),
            Some(authority) => builder.tls_certs_only([Certificate::from_pem(authority.as_bytes())?]),
            // Reading the certificates of the machine costs more than what is asked by this client.
            None => builder.tls_certs_only([]),
        };
        Ok(builder.build()?)
    }

    /// A request to a path of the registry, logged in.
    pub fn request(&self, client: &reqwest::Client, method: Method, path: &str) -> RequestBuilder {
        self.authorize(client.request(method, format!("{}{path}", self.url())))
    }

    pub(crate) fn authorize(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.credentials {
            Some((user, password)) => request.basic_auth(user, Some(password)),
            None => request,
        }
    }
}
