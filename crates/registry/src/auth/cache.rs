//! Tokens in use, shared by everybody with the same credential.
//!
//! Callers that need the same token at the same moment wait for one request. A caller that gives up hands the task to
//! the next in line; a refusal is told to all who were waiting, and to nobody who comes later.

use std::sync::{Arc, Mutex, PoisonError};

use fairlead_domain::keyring::CredentialId;
use tokio::time::Instant;

use super::token::Token;
use crate::{error::Problem, recent::Recent};

const MOST_TOKENS: usize = 8192;

/// What makes two tokens interchangeable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TokenKey {
    pub(crate) realm: String,
    pub(crate) service: Option<String>,
    pub(crate) scope: String,
    pub(crate) credential: Option<CredentialId>,
}

/// A token and whether it was given just now.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) token: Token,
    pub(crate) is_new: bool,
}

#[derive(Debug)]
pub(crate) struct TokenCache {
    slots: Mutex<Recent<TokenKey, Arc<Slot>>>,
}

#[derive(Debug, Default)]
struct Slot {
    state: tokio::sync::Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    token: Option<Token>,
    refused: Option<(Instant, Problem)>,
}

impl Default for TokenCache {
    fn default() -> Self {
        Self { slots: Mutex::new(Recent::new(MOST_TOKENS)) }
    }
}

impl TokenCache {
    /// The token for a key: a fresh one from the cache, else the one that `fetch` brings. `used` is a token that the
    /// registry did not accept, which is therefore not returned again.
    pub(crate) async fn get<F>(&self, key: &TokenKey, used: Option<&Token>, fetch: F) -> Result<Held, Problem>
    where
        F: Future<Output = Result<Token, Problem>>,
    {
        let asked = Instant::now();
        let slot = self.slot(key);
        let mut state = slot.state.lock().await;
        if let Some(token) = &state.token
            && token.is_fresh(Instant::now())
            && used.is_none_or(|used| used.header != token.header)
        {
            return Ok(Held { token: token.clone(), is_new: false });
        }
        if let Some((when, problem)) = &state.refused
            && *when >= asked
        {
            return Err(problem.clone());
        }
        match fetch.await {
            Ok(token) => {
                *state = State { token: Some(token.clone()), refused: None };
                Ok(Held { token, is_new: true })
            }
            Err(problem) => {
                // One caller's deadline says nothing to the others: the next in line tries for itself.
                let told = !matches!(problem, Problem::TimedOut(_));
                *state = State { token: None, refused: told.then(|| (Instant::now(), problem.clone())) };
                Err(problem)
            }
        }
    }

    fn slot(&self, key: &TokenKey) -> Arc<Slot> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get(key) {
            return Arc::clone(slot);
        }
        let slot = Arc::new(Slot::default());
        slots.insert(key.clone(), Arc::clone(&slot));
        slot
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use super::*;

    fn key() -> TokenKey {
        TokenKey {
            realm: "https://r.example/token".into(),
            service: None,
            scope: "repository:a:pull".into(),
            credential: None,
        }
    }

    fn token(text: &str, seconds: u64) -> Token {
        let body = format!(r#"{{"token":"{text}","expires_in":{seconds}}}"#);
        Token::read(body.as_bytes(), Instant::now()).unwrap()
    }

    async fn slow(calls: &AtomicUsize, answer: Result<Token, Problem>) -> Result<Token, Problem> {
        calls.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(100)).await;
        answer
    }

    #[tokio::test(start_paused = true)]
    async fn a_hundred_callers_cost_one_request() {
        let (cache, calls, key) = (TokenCache::default(), AtomicUsize::new(0), key());
        let callers = (0..100).map(|_| cache.get(&key, None, slow(&calls, Ok(token("t", 300)))));
        let tokens = futures::future::join_all(callers).await;
        assert!(tokens.iter().all(Result::is_ok));
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        tokio::time::advance(Duration::from_secs(291)).await;
        cache.get(&key, None, slow(&calls, Ok(token("t", 300)))).await.unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), 2, "an old token is replaced");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_is_told_to_those_who_waited_and_not_to_those_who_come_later() {
        let (cache, calls, key) = (TokenCache::default(), AtomicUsize::new(0), key());
        let refusal = Problem::Unauthorised("no".into());
        let callers = (0..100).map(|_| cache.get(&key, None, slow(&calls, Err(refusal.clone()))));
        let refused = futures::future::join_all(callers).await;
        assert!(refused.iter().all(|answer| answer.as_ref().unwrap_err() == &refusal));
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        tokio::time::advance(Duration::from_millis(1)).await;
        cache.get(&key, None, slow(&calls, Ok(token("t", 300)))).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_gives_up_hands_over() {
        let (cache, calls, key) = (Arc::new(TokenCache::default()), Arc::new(AtomicUsize::new(0)), key());
        let hasty = {
            let (cache, calls, key) = (Arc::clone(&cache), Arc::clone(&calls), key.clone());
            tokio::spawn(async move { cache.get(&key, None, slow(&calls, Ok(token("t", 300)))).await })
        };
        tokio::time::sleep(Duration::from_millis(10)).await;
        hasty.abort();
        cache.get(&key, None, slow(&calls, Ok(token("t", 300)))).await.unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_that_was_refused_is_not_offered_again() {
        let (cache, calls, key) = (TokenCache::default(), AtomicUsize::new(0), key());
        let old = cache.get(&key, None, slow(&calls, Ok(token("old", 300)))).await.unwrap().token;
        let new = cache.get(&key, Some(&old), slow(&calls, Ok(token("new", 300)))).await.unwrap().token;
        assert_ne!(old.header, new.header);
        let again = cache.get(&key, Some(&old), slow(&calls, Ok(token("newer", 300)))).await.unwrap();
        assert_eq!(again.token.header, new.header, "somebody else has replaced it already");
    }
}
