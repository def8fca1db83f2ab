//! Tokens that a real registry believes: signed, with the certificate of the signer in them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rcgen::{CertificateParams, DnType, KeyPair, SigningKey as _};
use serde_json::{Value, json};

/// The name under which tokens are issued, which the registry is told as well.
const NAME: &str = "fairlead-test-tokens";
/// How long a token is good that states no other time.
const USUAL_LIFETIME: Duration = Duration::from_mins(5);
/// Half of an ECDSA signature on P-256.
const HALF: usize = 32;

/// Signs tokens.
#[derive(Debug)]
pub struct Issuer {
    key: KeyPair,
    certificate_der: Vec<u8>,
    certificate: String,
}

impl Issuer {
    pub fn new() -> Result<Self> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, NAME);
        let certificate = params.self_signed(&key)?;
        Ok(Self { certificate_der: certificate.der().to_vec(), certificate: certificate.pem(), key })
    }

    pub fn name(&self) -> &'static str {
        NAME
    }

    /// What a registry checks signatures against, PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// A token that allows what the scopes say.
    pub(super) fn token(
        &self,
        service: &str,
        scopes: &[String],
        lifetime: Option<Duration>,
    ) -> Result<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let header = json!({"alg": "ES256", "typ": "JWT", "x5c": [STANDARD.encode(&self.certificate_der)]});
        let claims = json!({
            "iss": NAME,
            "sub": "",
            "aud": service,
            "iat": now,
            "nbf": now.saturating_sub(10),
            "exp": now + lifetime.unwrap_or(USUAL_LIFETIME).as_secs(),
            "jti": crate::names::unique("token"),
            "access": scopes.iter().filter_map(|scope| access(scope)).collect::<Vec<_>>(),
        });
        let encode = |part: &Value| URL_SAFE_NO_PAD.encode(part.to_string());
        let signed = format!("{}.{}", encode(&header), encode(&claims));
        let signature = fixed(&self.key.sign(signed.as_bytes())?).context("a signature has two numbers")?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

fn access(scope: &str) -> Option<Value> {
    let (resource, actions) = scope.rsplit_once(':')?;
    let (kind, name) = resource.split_once(':')?;
    Some(json!({"type": kind, "name": name, "actions": actions.split(',').collect::<Vec<_>>()}))
}

/// Tokens carry the two numbers of a signature side by side; the signer writes them as an ASN.1 sequence.
fn fixed(der: &[u8]) -> Option<Vec<u8>> {
    let mut rest = der.get(2..)?;
    let mut numbers = Vec::with_capacity(2 * HALF);
    for _ in 0..2 {
        let length = usize::from(*rest.get(1)?);
        let number = rest.get(2..2 + length)?;
        rest = rest.get(2 + length..)?;
        let digits = number.get(number.len().saturating_sub(HALF)..)?;
        numbers.extend(std::iter::repeat_n(0, HALF - digits.len()));
        numbers.extend_from_slice(digits);
    }
    Some(numbers)
}
