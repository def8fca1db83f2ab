//! Tokens in use, shared by all callers with the same credential.
//!
//! Single-flight by key: callers that need the same token wait for one request. It has admission's rank, so that no Pod
//! waits behind background work for a token. If the caller that sends it gives up, the next one takes over. A refusal
//! is returned to all callers that waited, and to none that come later.

use std::sync::Arc;

use fairlead_domain::cause::Cause;
use fairlead_domain::keyring::CredentialId;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::token::Token;
use crate::error::Problem;
use crate::lru::LruCache;

const MOST_TOKENS: usize = 8192;

/// What makes two tokens interchangeable.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TokenKey {
    pub(crate) realm: String,
    pub(crate) service: Option<String>,
    pub(crate) scope: String,
    pub(crate) credential: Option<CredentialId>,
    /// A tenant's request for a token may fail where an administrator's does not.
    pub(crate) cause: Cause,
}

/// A token and whether it was issued just now.
#[derive(Debug)]
pub(crate) struct CachedToken {
    pub(crate) token: Token,
    pub(crate) is_new: bool,
}

#[derive(Debug)]
pub(crate) struct TokenCache(LruCache<TokenKey, Arc<Mutex<TokenState>>>);

#[derive(Debug, Default)]
struct TokenState {
    token: Option<Token>,
    refused: Option<(Instant, Problem)>,
}

impl Default for TokenCache {
    fn default() -> Self {
        Self(LruCache::new(MOST_TOKENS))
    }
}

impl TokenCache {
    /// The token for a key: a fresh one from the cache, else the one that `fetch` returns. `rejected` is a token that
    /// the registry did not accept, which is therefore not returned again.
    pub(crate) async fn get(
        &self,
        key: &TokenKey,
        rejected: Option<&Token>,
        fetch: impl Future<Output = Result<Token, Problem>>,
    ) -> Result<CachedToken, Problem> {
        let asked = Instant::now();
        let slot = self.0.get_or_insert_with(key, Arc::default);
        let mut state = slot.lock().await;
        if let Some(token) = &state.token
            && token.is_fresh(Instant::now())
            && rejected.is_none_or(|rejected| rejected.header != token.header)
        {
            return Ok(CachedToken { token: token.clone(), is_new: false });
        }
        if let Some((when, problem)) = &state.refused
            && *when >= asked
        {
            return Err(problem.clone());
        }
        match fetch.await {
            Ok(token) => {
                *state = TokenState { token: Some(token.clone()), refused: None };
                Ok(CachedToken { token, is_new: true })
            }
            Err(problem) => {
                // One caller's deadline says nothing to the others: the next one tries for itself.
                let is_shared = !matches!(problem, Problem::TimedOut(_));
                let refused = is_shared.then(|| (Instant::now(), problem.clone()));
                *state = TokenState { token: None, refused };
                Err(problem)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use super::*;

    fn key() -> TokenKey {
        TokenKey {
            realm: "https://r.example/token".into(),
            service: None,
            scope: "repository:a:pull".into(),
            credential: None,
            cause: Cause::default(),
        }
    }

    fn token(text: &str, seconds: u64) -> Token {
        let body = format!(r#"{{"token":"{text}","expires_in":{seconds}}}"#);
        Token::read(body.as_bytes(), Instant::now()).unwrap()
    }

    async fn get(
        cache: &TokenCache,
        used: Option<&Token>,
        fetch: impl Future<Output = Result<Token, Problem>>,
    ) -> Result<CachedToken, Problem> {
        cache.get(&key(), used, fetch).await
    }

    async fn slow(calls: &AtomicUsize, answer: Result<Token, Problem>) -> Result<Token, Problem> {
        calls.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(100)).await;
        answer
    }

    #[tokio::test(start_paused = true)]
    async fn a_hundred_callers_cost_one_request() {
        let (cache, calls) = (TokenCache::default(), AtomicUsize::new(0));
        let callers = (0..100).map(|_| get(&cache, None, slow(&calls, Ok(token("t", 300)))));
        let tokens = futures::future::join_all(callers).await;
        assert!(tokens.iter().all(Result::is_ok));
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        tokio::time::advance(Duration::from_secs(291)).await;
        get(&cache, None, slow(&calls, Ok(token("t", 300)))).await.unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), 2, "an old token is replaced");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refusal_reaches_callers_that_waited_and_none_that_come_later() {
        let (cache, calls) = (TokenCache::default(), AtomicUsize::new(0));
        let refusal = Problem::Unauthorised("no".into());
        let callers = (0..100).map(|_| get(&cache, None, slow(&calls, Err(refusal.clone()))));
        let refused = futures::future::join_all(callers).await;
        assert!(refused.iter().all(|answer| answer.as_ref().unwrap_err() == &refusal));
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        tokio::time::advance(Duration::from_millis(1)).await;
        get(&cache, None, slow(&calls, Ok(token("t", 300)))).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_gives_up_hands_over() {
        let (cache, calls) = (Arc::new(TokenCache::default()), Arc::new(AtomicUsize::new(0)));
        let hasty = {
            let (cache, calls) = (Arc::clone(&cache), Arc::clone(&calls));
            tokio::spawn(async move { get(&cache, None, slow(&calls, Ok(token("t", 300)))).await })
        };
        tokio::time::sleep(Duration::from_millis(10)).await;
        hasty.abort();
        get(&cache, None, slow(&calls, Ok(token("t", 300)))).await.unwrap();
        assert_eq!(calls.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_that_was_refused_is_not_offered_again() {
        let (cache, calls) = (TokenCache::default(), AtomicUsize::new(0));
        let old = get(&cache, None, slow(&calls, Ok(token("old", 300)))).await.unwrap().token;
        let new = get(&cache, Some(&old), slow(&calls, Ok(token("new", 300)))).await.unwrap().token;
        assert_ne!(old.header, new.header);
        let again = get(&cache, Some(&old), slow(&calls, Ok(token("newer", 300)))).await.unwrap();
        assert_eq!(again.token.header, new.header, "it was replaced already");
    }
}
