//! `harbor-reef.nvidia.com`: upstream registries that a Harbor caches.

mod proxy_cache;

/// The API group.
pub const GROUP: &str = "harbor-reef.nvidia.com";

pub use proxy_cache::{
    CacheRouting, EcrUpstream, HEALTHY, OFFERED, OWNED, ProxyCache, ProxyCacheHealth, ProxyCachePhase,
    ProxyCacheSpec, ProxyCacheStatus, ProxyCacheType, SYNCED, UpstreamCredentials,
};
