//! The token in the webhook's path: random, compared in constant time, and kept out of every log.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use fairlead_plan::certificates::TokenId;
use rustls::crypto::ring;
use sha2::{Digest, Sha256};
use subtle::{Choice, ConstantTimeEq};
use tokio::sync::watch;
use zeroize::Zeroizing;

use super::MaterialError;
use super::authority::hexadecimal;

/// What precedes the token in the path.
const PREFIX: &str = "/mutate/";
/// 256 bits.
const BYTES: usize = 32;

/// A secret that only API servers know, and those who may read what the operator keeps. In the path of a Service, API
/// servers accept lower-case letters and digits only.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Zeroizing<String>);

impl Token {
    pub fn generate() -> Result<Self, MaterialError> {
        let mut bytes = Zeroizing::new([0; BYTES]);
        let random = ring::default_provider().secure_random;
        random.fill(&mut *bytes).map_err(|_| MaterialError::Random)?;
        Ok(Self(Zeroizing::new(hexadecimal(&*bytes))))
    }

    /// None if the text is not one that [`Token::generate`] could have made.
    pub fn parse(text: &str) -> Option<Self> {
        let legal = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        (legal && text.len() == 2 * BYTES).then(|| Self(Zeroizing::new(text.to_owned())))
    }

    /// The token in a path of the form `/mutate/<token>`.
    pub(super) fn in_path(path: &str) -> Option<Self> {
        Self::parse(path.strip_prefix(PREFIX)?)
    }

    /// The path to register.
    pub fn path(&self) -> String {
        format!("{PREFIX}{}", self.secret())
    }

    pub(super) fn secret(&self) -> &str {
        &self.0
    }

    /// Tells this token from others. Nothing can be learnt from it, since the token is random.
    pub(super) fn id(&self) -> TokenId {
        TokenId(hexadecimal(&Sha256::digest(self.secret())))
    }

    fn is(&self, text: &str) -> Choice {
        self.secret().as_bytes().ct_eq(text.as_bytes())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The paths on which this replica answers.
#[derive(Debug)]
pub struct Paths {
    accepted: ArcSwap<Vec<Token>>,
    read: watch::Sender<bool>,
}

impl Paths {
    /// Answers on the paths of these tokens.
    pub fn new(tokens: Vec<Token>) -> Arc<Self> {
        Arc::new(Self { accepted: ArcSwap::from_pointee(tokens), read: watch::Sender::new(false) })
    }

    /// Whether the path carries an accepted token. Takes the same time whichever it is, however much of it is right.
    pub fn admits(&self, path: &str) -> bool {
        let Some(text) = path.strip_prefix(PREFIX) else { return false };
        let none = Choice::from(0);
        self.accepted.load().iter().fold(none, |found, token| found | token.is(text)).into()
    }

    pub(super) fn accepted(&self) -> Arc<Vec<Token>> {
        self.accepted.load_full()
    }

    /// Whether the tokens were read. A replica that never read them would turn API servers away.
    pub fn read(&self) -> watch::Receiver<bool> {
        self.read.subscribe()
    }

    /// Takes over the tokens of the Secret. Where there are none, those at hand stay, since API servers still use them.
    pub(super) fn accept(&self, tokens: Vec<Token>) {
        if !tokens.is_empty() && **self.accepted.load() != tokens {
            self.accepted.store(Arc::new(tokens));
        }
        self.read.send_if_modified(|read| !std::mem::replace(read, true));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_read_back_from_its_path_and_nothing_else_is_a_token() {
        let token = Token::generate().unwrap();
        assert_eq!(Token::in_path(&token.path()), Some(token.clone()));
        assert_eq!(token.secret().len(), 64);
        assert_ne!(Token::generate().unwrap(), token);
        let (path, more) = (token.path(), format!("{}0", token.path()));
        let less = path.trim_end_matches(|end: char| path.ends_with(end));
        for other in
            ["", "/", "/mutate/", "/mutate/pods", "/mutate/../secret", &more, less, &path.to_uppercase()]
        {
            assert_eq!(Token::in_path(other), None, "{other}");
        }
    }

    #[test]
    fn neither_debug_nor_the_id_discloses_a_token() {
        let token = Token::generate().unwrap();
        let paths = Paths::new(vec![token.clone()]);
        for shown in [format!("{token:?}"), format!("{paths:?}"), format!("{:?}", token.id())] {
            assert!(!shown.contains(token.secret()), "{shown}");
        }
    }

    #[test]
    fn accepted_are_the_tokens_that_were_read_last_and_no_other_path() {
        let (old, new) = (Token::generate().unwrap(), Token::generate().unwrap());
        let paths = Paths::new(Vec::new());
        assert!(!paths.admits(&old.path()) && !*paths.read().borrow());
        paths.accept(Vec::new());
        assert!(*paths.read().borrow(), "that there is no token yet is known, too");
        paths.accept(vec![old.clone(), new.clone()]);
        assert!(paths.admits(&old.path()) && paths.admits(&new.path()));
        paths.accept(Vec::new());
        assert!(paths.admits(&old.path()), "a Secret that is lost locks no API server out");
        paths.accept(vec![new.clone()]);
        assert!(!paths.admits(&old.path()) && paths.admits(&new.path()));
        for other in
            ["/", "/mutate/", "/mutate/pods", &new.path().to_uppercase(), &format!("{}/", new.path())]
        {
            assert!(!paths.admits(other), "{other}");
        }
    }
}
