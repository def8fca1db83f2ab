//! `harbor-reef.nvidia.com`: upstream registries that a Harbor caches.

mod proxy_cache;

pub use proxy_cache::{
    EcrUpstream, HEALTHY, ProxyCache, ProxyCacheHealth, ProxyCachePhase, ProxyCacheSpec, ProxyCacheStatus,
    ProxyCacheType, UpstreamCredentials,
};
