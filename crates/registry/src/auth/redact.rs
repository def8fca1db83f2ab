//! Keeps secrets that a server repeats out of messages.
//!
//! Servers explain refusals, and some repeat what they were sent. Their words end up in logs, events and the status of
//! objects, which more people may read than the Secret that a password came from. Text with a secret in it is left out
//! as a whole: if only the secret were cut out of a well-known sentence, the rest would reveal it.

use std::str::from_utf8;

use fairlead_domain::keyring::Credential;
use hyper::header::HeaderValue;
use zeroize::Zeroizing;

/// The secrets that a server was sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SentSecrets<'a> {
    pub(crate) credential: Option<&'a Credential>,
    /// The `Authorization` header.
    pub(crate) header: Option<&'a HeaderValue>,
}

impl SentSecrets<'_> {
    pub(crate) fn are_in(&self, text: &str) -> bool {
        self.credential.is_some_and(|credential| is_in(credential, text))
            || self.header.and_then(secret_of).is_some_and(|sent| text.contains(sent))
    }
}

/// Whether a text contains the password as it is, or encoded as in a header or a form.
fn is_in(credential: &Credential, text: &str) -> bool {
    // A line end after the password may be missing where it is repeated.
    let password = credential.password().trim_ascii();
    if password.is_empty() {
        return false;
    }
    let in_form = Zeroizing::new(url::form_urlencoded::byte_serialize(password).collect::<String>());
    from_utf8(password).is_ok_and(|password| text.contains(password))
        || text.contains(&**in_form)
        || text.contains(credential.basic().trim_end_matches('='))
}

/// The part of an `Authorization` header after the scheme.
fn secret_of(header: &HeaderValue) -> Option<&str> {
    let (_, secret) = from_utf8(header.as_bytes()).ok()?.split_once(' ')?;
    Some(secret).filter(|secret| !secret.is_empty())
}

#[cfg(test)]
mod tests {
    use fairlead_domain::keyring::{IdentityKey, Keyring};
    use fairlead_domain::reference::Reference;

    use super::*;

    fn credential(user: &[u8], password: &[u8]) -> Credential {
        let mut keyring = Keyring::new(IdentityKey::new([7; 32]));
        assert!(keyring.add_login("r.example.com", user, password));
        let image = Reference::parse("r.example.com/app").unwrap();
        keyring.lookup(&image.repository()).remove(0)
    }

    fn are_in(user: &[u8], password: &[u8], text: &str) -> bool {
        SentSecrets { credential: Some(&credential(user, password)), header: None }.are_in(text)
    }

    #[test]
    fn a_password_is_known_in_every_form_it_is_sent_in() {
        for text in ["bad login bob:hunter2", "Basic Ym9iOmh1bnRlcjI=", "Ym9iOmh1bnRlcjI is wrong"] {
            assert!(are_in(b"bob", b"hunter2", text), "{text}");
            assert!(are_in(b"bob", b"hunter2\n", "hunter2"), "{text}");
        }
        assert!(are_in(b"bob", b"se cret&", "username=bob&password=se+cret%26"));
        assert!(are_in(b"bob", b"caf\xe9", "password=caf%E9"), "no text, but a form can hold it");
        assert!(!are_in(b"bob", b"hunter2", "bob is not allowed to pull"), "a name is no secret");
        assert!(!are_in(b"bob", b"", "anything"));
        assert!(!are_in(b"bob", b" ", "any thing"));
    }

    #[test]
    fn a_token_is_known() {
        let header = HeaderValue::from_static("Bearer abc.def");
        let secrets = SentSecrets { credential: None, header: Some(&header) };
        assert!(secrets.are_in("the token 'abc.def' has ended"));
        assert!(!secrets.are_in("Bearer tokens end"));
        assert!(!SentSecrets::default().are_in("anything"));
        let nothing = HeaderValue::from_static("Bearer ");
        assert!(!SentSecrets { credential: None, header: Some(&nothing) }.are_in("anything"));
    }
}
