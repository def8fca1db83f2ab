//! The tokens as the Secret holds them.

use fairlead_plan::certificates::{LeafId, Tokens};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;

use super::token::Token;

const CURRENT: &str = "path-token";
const NEXT: &str = "next-path-token";
const PREVIOUS: &str = "previous-path-token";
/// Fingerprint of the certificate that was served when the newest token was made.
const MADE_FOR: &str = "path-token-certificate";

/// What a Secret says about the webhook's path. What cannot be read counts as missing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct StoredTokens {
    pub(super) current: Option<Token>,
    pub(super) next: Option<Token>,
    pub(super) previous: Option<Token>,
    pub(super) made_for: Option<LeafId>,
}

impl StoredTokens {
    pub(super) fn read(secret: &Secret) -> Self {
        let text = |key| {
            let value = secret.data.as_ref()?.get(key)?;
            std::str::from_utf8(&value.0).ok()
        };
        let token = |key| text(key).and_then(Token::parse);
        Self {
            current: token(CURRENT),
            next: token(NEXT),
            previous: token(PREVIOUS),
            made_for: text(MADE_FOR).map(|text| LeafId(text.to_owned())),
        }
    }

    /// Puts the tokens into the Secret. Everything else that is in it stays.
    pub(super) fn write(&self, secret: &mut Secret) {
        let data = secret.data.get_or_insert_default();
        let texts = [
            (CURRENT, self.current.as_ref().map(Token::secret)),
            (NEXT, self.next.as_ref().map(Token::secret)),
            (PREVIOUS, self.previous.as_ref().map(Token::secret)),
            (MADE_FOR, self.made_for.as_ref().map(|leaf| leaf.0.as_str())),
        ];
        for (key, text) in texts {
            match text {
                Some(text) => data.insert(key.to_owned(), ByteString(text.as_bytes().to_vec())),
                None => data.remove(key),
            };
        }
    }

    pub(super) fn facts(&self) -> Tokens {
        let id = |token: &Option<Token>| token.as_ref().map(Token::id);
        Tokens {
            current: id(&self.current),
            next: id(&self.next),
            previous: id(&self.previous),
            made_for: self.made_for.clone(),
        }
    }

    /// All tokens that a replica accepts. None where the current one is missing: API servers use it, so a replica
    /// then stays with the tokens that it has.
    pub(super) fn accepted(&self) -> Vec<Token> {
        let current = self.current.iter();
        current
            .flat_map(|current| [Some(current), self.next.as_ref(), self.previous.as_ref()])
            .flatten()
            .cloned()
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_and_what_is_none_is_removed() {
        let made = || Some(Token::generate().unwrap());
        let whole = StoredTokens {
            current: made(),
            next: made(),
            previous: made(),
            made_for: Some(LeafId("abc".to_owned())),
        };
        let mut secret = Secret::default();
        secret.data.get_or_insert_default().insert("note".to_owned(), ByteString(b"stays".to_vec()));
        whole.write(&mut secret);
        assert_eq!(StoredTokens::read(&secret), whole);
        assert_eq!(whole.accepted().len(), 3);
        assert!(StoredTokens { current: None, ..whole.clone() }.accepted().is_empty());
        let less = StoredTokens { next: None, previous: None, ..whole };
        less.write(&mut secret);
        assert_eq!(StoredTokens::read(&secret), less);
        assert_eq!(secret.data.unwrap().len(), 3);
    }

    #[test]
    fn a_mangled_token_counts_as_missing() {
        let mut secret = Secret::default();
        let mangled = [(CURRENT, &b"mangled"[..]), (NEXT, b""), (PREVIOUS, b"\xff\xfe")];
        let data = mangled.map(|(key, value)| (key.to_owned(), ByteString(value.to_vec())));
        secret.data = Some(data.into());
        assert_eq!(StoredTokens::read(&secret), StoredTokens::default());
    }
}
