//! Tokens in use, shared by everybody with the same credential.
//!
//! Callers that need the same token at the same moment wait for one request. It is as urgent as the most urgent of them, so
//! that nothing in the background keeps a Pod waiting. A caller that gives up hands the task to the next in line; a refusal
//! is told to all who were waiting, and to nobody who comes later.

use std::pin::pin;
use std::sync::Arc;

use fairlead_domain::cause::Cause;
use fairlead_domain::keyring::CredentialId;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use super::token::Token;
use crate::error::Problem;
use crate::limits::rate::Class;
use crate::lru::LruMap;
use crate::request::context::Context;

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

/// A token and whether it was given just now.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) token: Token,
    pub(crate) is_new: bool,
}

#[derive(Debug)]
pub(crate) struct TokenCache {
    slots: Mutex<LruMap<TokenKey, Arc<Slot>>>,
}

#[derive(Debug, Default)]
struct Slot {
    state: tokio::sync::Mutex<State>,
    callers: Callers,
}

#[derive(Debug, Default)]
struct State {
    token: Option<Token>,
    refused: Option<(Instant, Problem)>,
}

/// Those who want a token, as far as their urgency is concerned.
#[derive(Debug)]
struct Callers {
    urgent: Mutex<usize>,
    class: watch::Sender<Class>,
}

/// One of them, until it has what it wants or gives up.
struct Caller<'a> {
    all: &'a Callers,
    urgent: bool,
}

impl Default for Callers {
    fn default() -> Self {
        Self { urgent: Mutex::default(), class: watch::Sender::new(Class::Background) }
    }
}

impl Callers {
    fn join(&self, class: Class) -> Caller<'_> {
        let mut caller = Caller { all: self, urgent: false };
        if class == Class::Admission {
            caller.hurry();
        }
        caller
    }

    fn count(&self, change: impl FnOnce(usize) -> usize) {
        let mut urgent = self.urgent.lock();
        *urgent = change(*urgent);
        // Told under the lock, so that the last word is the right one.
        let class = if *urgent > 0 { Class::Admission } else { Class::Background };
        self.class.send_if_modified(|told| std::mem::replace(told, class) != class);
    }
}

impl Caller<'_> {
    fn hurry(&mut self) {
        if !std::mem::replace(&mut self.urgent, true) {
            self.all.count(|urgent| urgent + 1);
        }
    }
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        if self.urgent {
            self.all.count(|urgent| urgent.saturating_sub(1));
        }
    }
}

impl Default for TokenCache {
    fn default() -> Self {
        Self { slots: Mutex::new(LruMap::new(MOST_TOKENS)) }
    }
}

impl TokenCache {
    /// The token for a key: a fresh one from the cache, else the one that `fetch` brings. `used` is a token that the
    /// registry did not accept, which is therefore not returned again.
    pub(crate) async fn get<F, A>(
        &self,
        key: &TokenKey,
        used: Option<&Token>,
        context: &Context,
        fetch: F,
    ) -> Result<Held, Problem>
    where
        F: FnOnce(Context) -> A,
        A: Future<Output = Result<Token, Problem>>,
    {
        let slot = self.slot(key);
        let mut caller = slot.callers.join(context.class());
        let for_all = context.shared(slot.callers.class.subscribe());
        let mut token = pin!(slot.token(used, || fetch(for_all)));
        loop {
            tokio::select! {
                held = &mut token => return held,
                () = context.raised() => caller.hurry(),
            }
        }
    }

    fn slot(&self, key: &TokenKey) -> Arc<Slot> {
        let mut slots = self.slots.lock();
        if let Some(slot) = slots.get(key) {
            return Arc::clone(slot);
        }
        let slot = Arc::new(Slot::default());
        slots.insert(key.clone(), Arc::clone(&slot));
        slot
    }
}

impl Slot {
    async fn token<A>(&self, used: Option<&Token>, fetch: impl FnOnce() -> A) -> Result<Held, Problem>
    where
        A: Future<Output = Result<Token, Problem>>,
    {
        let asked = Instant::now();
        let mut state = self.state.lock().await;
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
        match fetch().await {
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

    fn context(class: Class) -> Context {
        Context::new(class, Instant::now() + Duration::from_mins(1))
    }

    async fn get(
        cache: &TokenCache,
        used: Option<&Token>,
        fetch: impl Future<Output = Result<Token, Problem>>,
    ) -> Result<Held, Problem> {
        cache.get(&key(), used, &context(Class::Admission), |_| fetch).await
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
    async fn a_refusal_is_told_to_those_who_waited_and_not_to_those_who_come_later() {
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
        assert_eq!(again.token.header, new.header, "somebody else has replaced it already");
    }

    /// A token that is given when it has become urgent, as one is for which the line is long.
    async fn when_urgent(context: Context) -> Result<Token, Problem> {
        context.raised().await;
        Ok(token("t", 300))
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_background_asks_for_becomes_urgent_when_a_pod_waits_for_it() {
        let cache = TokenCache::default();
        let (key, class) = (key(), watch::Sender::new(Class::Background));
        let raised = context(Class::Background).shared(class.subscribe());
        for (second, raises) in [(context(Class::Admission), false), (raised, true)] {
            let cache = TokenCache::default();
            let background = context(Class::Background);
            let started = Instant::now();
            let (first, second, ()) = tokio::join!(
                cache.get(&key, None, &background, when_urgent),
                cache.get(&key, None, &second, when_urgent),
                async {
                    if raises {
                        class.send_replace(Class::Admission);
                    }
                }
            );
            assert!(first.unwrap().is_new && !second.unwrap().is_new, "one request for both");
            assert_eq!(started.elapsed(), Duration::ZERO);
        }
        let urgent = context(Class::Admission);
        let hasty = cache.get(&key, None, &urgent, |_| std::future::pending());
        assert!(tokio::time::timeout(Duration::from_millis(10), hasty).await.is_err());
        let background = context(Class::Background);
        let fetch = |context: Context| async move {
            assert_eq!(context.class(), Class::Background, "the one in a hurry is gone");
            Ok(token("t", 300))
        };
        cache.get(&key, None, &background, fetch).await.unwrap();
    }
}
