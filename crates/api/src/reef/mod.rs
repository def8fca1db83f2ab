//! `harbor-reef.nvidia.com`: upstream registries that a Harbor caches.

mod proxy_cache;

pub use proxy_cache::{
    CacheRouting, EcrUpstream, HEALTHY, OWNED, ProxyCache, ProxyCacheHealth, ProxyCachePhase, ProxyCacheSpec,
    ProxyCacheStatus, ProxyCacheType, SYNCED, UpstreamCredentials,
};
