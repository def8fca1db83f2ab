//! A connection as an API server keeps it to a webhook: TLS, HTTP/1.1, one request at a time. API servers choose that
//! over HTTP/2 for webhooks behind a Service.
//!
//! It blocks and does nothing that is not needed, because it shares the machine with what it measures.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// An API server waits no longer for a webhook.
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Room for the longest answer.
const ROOM: usize = 256 << 10;

/// Trusts the one authority in a file.
pub(crate) fn trusting(authority: &Path) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    let file = CertificateDer::from_pem_file(authority)
        .with_context(|| format!("reading {}", authority.display()))?;
    roots.add(file)?;
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// The bytes of a whole request, ready to be sent many times.
pub(crate) fn request(address: SocketAddr, path: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path}?timeout=5s HTTP/1.1\r\nHost: {address}\r\nUser-Agent: kube-apiserver-admission\r\n\
         Content-Length: {}\r\nAccept: application/json, */*\r\nContent-Type: application/json\r\n\
         Accept-Encoding: gzip\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

pub(crate) struct Connection {
    stream: StreamOwned<ClientConnection, TcpStream>,
    buffer: Vec<u8>,
}

impl Connection {
    /// Connects and finishes the handshake.
    pub(crate) fn open(address: SocketAddr, config: Arc<ClientConfig>) -> Result<Self> {
        let socket = TcpStream::connect(address).with_context(|| format!("connecting to {address}"))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(LONGEST_WAIT))?;
        socket.set_write_timeout(Some(LONGEST_WAIT))?;
        let tls = ClientConnection::new(config, ServerName::IpAddress(address.ip().into()))?;
        let mut stream = StreamOwned::new(tls, socket);
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock).context("TLS handshake")?;
        }
        Ok(Self { stream, buffer: vec![0; ROOM] })
    }

    /// Sends a request and returns the body of the answer, which must be a success.
    pub(crate) fn ask(&mut self, request: &[u8]) -> Result<&[u8]> {
        self.stream.write_all(request)?;
        self.stream.flush()?;
        let mut filled = 0;
        let (begin, end) = loop {
            let room = self.buffer.get_mut(filled..).unwrap_or_default();
            let count = self.stream.read(room).context("waiting for an answer")?;
            ensure!(count > 0, "the connection was closed, or the answer is longer than {ROOM} bytes");
            filled += count;
            if let Some(whole) = extent(self.buffer.get(..filled).unwrap_or_default())? {
                break whole;
            }
        };
        Ok(self.buffer.get(begin..end).unwrap_or_default())
    }
}

/// Where the body of an answer begins and ends, when all of it is there.
fn extent(answer: &[u8]) -> Result<Option<(usize, usize)>> {
    let Some(begin) = answer.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4) else {
        return Ok(None);
    };
    let head = std::str::from_utf8(answer.get(..begin).unwrap_or_default())?;
    ensure!(
        head.starts_with("HTTP/1.1 200 "),
        "the answer is {:?}",
        String::from_utf8_lossy(answer.get(..answer.len().min(400)).unwrap_or_default())
    );
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let end = begin + length.context("the answer does not say its length")?;
    Ok((answer.len() >= end).then_some((begin, end)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_whole_when_its_length_is_there() {
        let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nx: y\r\n\r\nbody";
        let (begin, end) = extent(answer).unwrap().unwrap();
        assert_eq!(&answer[begin..end], b"body");
        assert_eq!(extent(&answer[..answer.len() - 1]).unwrap(), None);
        assert_eq!(extent(&answer[..20]).unwrap(), None);
        assert!(extent(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").is_err());
        assert!(extent(b"HTTP/1.1 200 OK\r\n\r\n").is_err());
    }
}
