//! What was read of Secrets, bounded. `fairlead_plan::secret_ttl` decides how long it is believed.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    sync::Arc,
    time::Duration,
};

use fairlead_plan::routing::SecretName;
use fairlead_plan::secret_ttl::{ReadOutcome, Reading, Standing};
use tokio::time::Instant;

use super::Read;
use crate::controller::backoff::Backoff;

const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30)).with_jitter(0.25);

const MOST_ENTRIES: usize = 4096;
/// Secrets may have a megabyte each.
const MOST_BYTES: usize = 16 << 20;

#[derive(Debug)]
struct CachedSecret {
    read: Read,
    /// When it was read.
    since: Instant,
    /// No attempt to read it before.
    retry: Instant,
    failures: u32,
    distrusted: bool,
    /// The larger, the more recently used.
    used: u64,
}

impl CachedSecret {
    fn weight(&self) -> usize {
        self.read.keys().map_or(0, |keys| keys.weight())
    }

    fn reading(&self, now: Instant) -> Reading {
        Reading {
            outcome: match self.read {
                Read::Keys(_) | Read::Unusable(_) => ReadOutcome::Content,
                Read::Missing => ReadOutcome::Missing,
                Read::Failed(_) => ReadOutcome::Failed,
            },
            age: now.saturating_duration_since(self.since),
            may_retry: now >= self.retry,
            distrusted: self.distrusted,
        }
    }
}

/// What the cache has to say.
#[derive(Debug)]
pub(super) enum CachedRead {
    Fresh(Read),
    /// Good enough to serve now, and due to be read again.
    Aging(Read),
    Nothing,
}

#[derive(Debug, Default)]
pub(super) struct Cache {
    entries: HashMap<SecretName, CachedSecret>,
    bytes: usize,
    uses: u64,
}

impl Cache {
    pub(super) fn find(&mut self, name: &SecretName, now: Instant) -> CachedRead {
        let Some(entry) = self.entries.get_mut(name) else { return CachedRead::Nothing };
        self.uses += 1;
        entry.used = self.uses;
        match entry.reading(now).standing() {
            Standing::Gone => CachedRead::Nothing,
            Standing::Renew => CachedRead::Aging(entry.read.clone()),
            Standing::Good => CachedRead::Fresh(entry.read.clone()),
        }
    }

    /// Takes in what was read and returns what to believe: after a failure that may be what was read before.
    pub(super) fn settle(&mut self, name: &SecretName, read: Read, now: Instant, chance: f64) -> Read {
        self.uses += 1;
        let used = self.uses;
        let before = self.entries.get_mut(name);
        let failures = before.as_ref().map_or(0, |entry| entry.failures);
        let mut entry = CachedSecret { read, since: now, retry: now, failures: 0, distrusted: false, used };
        if matches!(entry.read, Read::Failed(_)) {
            entry.failures = failures.saturating_add(1);
            entry.retry = now + RETRY.pause(failures, chance);
            if let Some(before) = before.filter(|before| before.reading(now).outlives_failure()) {
                (before.retry, before.failures, before.distrusted) = (entry.retry, entry.failures, false);
                return before.read.clone();
            }
        }
        let read = entry.read.clone();
        self.bytes += entry.weight();
        if let Some(before) = self.entries.insert(name.clone(), entry) {
            self.bytes = self.bytes.saturating_sub(before.weight());
        }
        self.shrink();
        read
    }

    /// A registry refused what the Secret holds: it may have changed since.
    pub(super) fn distrust(&mut self, name: &SecretName, now: Instant) {
        if let Some(entry) = self.entries.get_mut(name)
            && entry.reading(now).may_be_outdated()
        {
            entry.distrusted = true;
        }
    }

    /// Drops what was not used for longest, of the namespace that holds most, several at a time so that it need not be
    /// done at every new entry. So a namespace with thousands of Secrets displaces its own.
    fn shrink(&mut self) {
        if self.entries.len() <= MOST_ENTRIES && self.bytes <= MOST_BYTES {
            return;
        }
        let mut namespaces: HashMap<Arc<str>, Holding> = HashMap::new();
        for (name, entry) in &self.entries {
            namespaces.entry(Arc::clone(&name.namespace)).or_default().add(name, entry);
        }
        let mut by_size: BinaryHeap<(usize, Arc<str>)> = BinaryHeap::new();
        for (namespace, holding) in &mut namespaces {
            holding.kept.sort_unstable_by_key(|(used, ..)| Reverse(*used));
            by_size.push((holding.size(), Arc::clone(namespace)));
        }
        let (entries, bytes) = (MOST_ENTRIES - MOST_ENTRIES / 16, MOST_BYTES - MOST_BYTES / 16);
        while self.entries.len() > entries || self.bytes > bytes {
            let Some((_, namespace)) = by_size.pop() else { break };
            let Some(holding) = namespaces.get_mut(&namespace) else { continue };
            let Some((_, weight, name)) = holding.kept.pop() else { continue };
            holding.bytes = holding.bytes.saturating_sub(weight);
            by_size.push((holding.size(), namespace));
            self.entries.remove(&name);
            self.bytes = self.bytes.saturating_sub(weight);
        }
    }
}

/// What one namespace holds of the cache.
#[derive(Debug, Default)]
struct Holding {
    bytes: usize,
    /// Use, weight and name, the least recently used last.
    kept: Vec<(u64, usize, SecretName)>,
}

impl Holding {
    fn add(&mut self, name: &SecretName, entry: &CachedSecret) {
        self.bytes += entry.weight();
        self.kept.push((entry.used, entry.weight(), name.clone()));
    }

    /// In entries, where many bytes count as several.
    fn size(&self) -> usize {
        self.kept.len().max(self.bytes / (MOST_BYTES / MOST_ENTRIES))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{ByteString, api::core::v1::Secret};

    use super::*;
    use crate::registries::secrets::Keys;

    const SECOND: Duration = Duration::from_secs(1);

    fn name(name: &str) -> SecretName {
        SecretName { namespace: "shop".into(), name: name.into() }
    }

    fn keys(size: usize) -> Read {
        let text = format!("{{\"r.io\":{{\"password\":\"{}\"}}}}", "x".repeat(size));
        let data = [(".dockercfg".to_owned(), ByteString(text.into_bytes()))];
        let secret = Secret {
            type_: Some("kubernetes.io/dockercfg".to_owned()),
            data: Some(data.into()),
            ..Secret::default()
        };
        Read::Keys(Arc::new(Keys::of(secret).expect("a configuration")))
    }

    fn failed() -> Read {
        Read::Failed("away".into())
    }

    fn told(found: &CachedRead) -> &'static str {
        match found {
            CachedRead::Fresh(Read::Keys(_)) => "fresh keys",
            CachedRead::Aging(Read::Keys(_)) => "aging keys",
            CachedRead::Fresh(Read::Missing) => "missing",
            CachedRead::Fresh(Read::Failed(_)) => "failed",
            CachedRead::Nothing => "nothing",
            _ => "something else",
        }
    }

    #[tokio::test(start_paused = true)]
    async fn ages() {
        let start = Instant::now();
        let mut cache = Cache::default();
        let mut at = |read: Option<Read>, seconds: u32| {
            let now = start + seconds * SECOND;
            if let Some(read) = read {
                cache.settle(&name("a"), read, now, 0.5);
            }
            told(&cache.find(&name("a"), now))
        };
        assert_eq!(at(None, 0), "nothing");
        assert_eq!(at(Some(keys(1)), 0), "fresh keys");
        assert_eq!((at(None, 59), at(None, 60)), ("fresh keys", "aging keys"));
        // The API server is away: attempts become rare, and what is known serves for five minutes.
        assert_eq!((at(Some(failed()), 60), at(None, 61)), ("fresh keys", "aging keys"));
        assert_eq!(
            (at(Some(failed()), 61), at(None, 62), at(None, 63)),
            ("fresh keys", "fresh keys", "aging keys")
        );
        assert_eq!((at(None, 299), at(None, 300)), ("aging keys", "nothing"));
        assert_eq!((at(Some(failed()), 300), at(None, 303), at(None, 304)), ("failed", "failed", "nothing"));
        assert_eq!(
            (at(Some(Read::Missing), 310), at(None, 314), at(None, 315)),
            ("missing", "missing", "nothing")
        );
        assert_eq!(at(Some(keys(1)), 316), "fresh keys");
        assert_eq!(at(Some(Read::Missing), 317), "missing", "an answer replaces what was known");
    }

    #[tokio::test(start_paused = true)]
    async fn distrust_leads_to_one_read_in_a_while() {
        let start = Instant::now();
        let mut cache = Cache::default();
        cache.settle(&name("a"), keys(1), start, 0.5);
        cache.distrust(&name("a"), start + 9 * SECOND);
        assert_eq!(told(&cache.find(&name("a"), start + 9 * SECOND)), "fresh keys", "it was read just now");
        cache.distrust(&name("a"), start + 10 * SECOND);
        assert_eq!(told(&cache.find(&name("a"), start + 10 * SECOND)), "nothing");
        cache.settle(&name("a"), failed(), start + 10 * SECOND, 0.5);
        assert_eq!(told(&cache.find(&name("a"), start + 10 * SECOND)), "fresh keys");
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_with_many_secrets_displaces_its_own() {
        let now = Instant::now();
        let mut cache = Cache::default();
        let other = SecretName { namespace: "other".into(), name: "only".into() };
        cache.settle(&other, keys(1), now, 0.5);
        for number in 0..3 * MOST_ENTRIES {
            cache.settle(&name(&number.to_string()), Read::Missing, now, 0.5);
        }
        let large = keys(1 << 20);
        for number in 0..64 {
            cache.settle(&name(&format!("large-{number}")), large.clone(), now, 0.5);
        }
        assert!(cache.entries.len() <= MOST_ENTRIES && cache.bytes <= MOST_BYTES);
        assert_eq!(told(&cache.find(&other, now)), "fresh keys", "although it was not used since");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_used_makes_room() {
        let now = Instant::now();
        let mut cache = Cache::default();
        cache.settle(&name("kept"), keys(1), now, 0.5);
        for number in 0..3 * MOST_ENTRIES {
            cache.settle(&name(&number.to_string()), Read::Missing, now, 0.5);
            cache.find(&name("kept"), now);
        }
        assert!(cache.entries.len() <= MOST_ENTRIES, "{}", cache.entries.len());
        assert_eq!(told(&cache.find(&name("kept"), now)), "fresh keys");
        let large = keys(1 << 20);
        for number in 0..64 {
            cache.settle(&name(&format!("large-{number}")), large.clone(), now, 0.5);
        }
        assert!(cache.bytes <= MOST_BYTES, "{}", cache.bytes);
        let weighed: usize = cache.entries.values().map(CachedSecret::weight).sum();
        assert_eq!(cache.bytes, weighed);
    }
}
