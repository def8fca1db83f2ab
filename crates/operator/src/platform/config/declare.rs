//! Every key of the configuration file, declared once: its name, what it may hold, its default, its meaning.

use std::collections::BTreeSet;

use fairlead_domain::{duration::Duration, platform::PlatformFilter};

use super::{
    checks::{above, anything, at_least, check_namespace, check_scope, check_url, not_zero, text},
    keys::Keys,
    monitoring::{CheckMethod, Monitoring, RegistryWatch, SecretName, WatchOverride},
    registries::{Registries, RegistryOptions, check_host},
    types::{
        Account, ActiveCheck, BucketKind, ClassicBuckets, Config, Harbor, Heal, Metrics, Mirroring, Nodes,
        Routing, Warm,
    },
};

const INHERITS: &str = "as `default`";

pub(super) fn declare(keys: &mut Keys<'_>, config: &mut Config) {
    keys.list(
        "skipLabels",
        &mut config.skip_labels,
        anything,
        "Pods whose labels match one of these are left alone by everything",
    );
    keys.list("skipAnnotations", &mut config.skip_annotations, anything, "the same for annotations");
    keys.section("routing", |keys| routing(keys, &mut config.routing));
    keys.section("registries", |keys| registries(keys, &mut config.registries));
    keys.section("mirroring", |keys| mirroring(keys, &mut config.mirroring));
    keys.section("monitoring", |keys| {
        keys.section("registries", |keys| monitoring(keys, &mut config.monitoring));
    });
    keys.section("warm", |keys| warm(keys, &mut config.warm));
    keys.section("heal", |keys| heal(keys, &mut config.heal));
    keys.section("harbor", |keys| harbor(keys, &mut config.harbor));
    keys.section("nodes", |keys| nodes(keys, &mut config.nodes));
    keys.section("account", |keys| account(keys, &mut config.account));
    keys.section("metrics", |keys| metrics(keys, &mut config.metrics));
}

fn routing(keys: &mut Keys<'_>, routing: &mut Routing) {
    keys.section("activeCheck", |keys| active_check(keys, &mut routing.active_check));
    keys.section("probe", |keys| {
        let refresh = &mut routing.probe.refresh;
        keys.value(
            "refresh",
            refresh,
            not_zero,
            "age at which a verdict that is in use is looked up again in the background",
        );
    });
    keys.section("pullSecrets", |keys| {
        let copy = &mut routing.pull_secrets.copy;
        keys.value(
            "copy",
            copy,
            anything,
            "copy pull secrets of cluster-scoped policies into the namespaces of the Pods that need them",
        );
    });
    keys.list(
        "namespacedRegistries",
        &mut routing.namespaced_registries,
        anything,
        "registries that ImageSetMirrors and ReplicatedImageSets may name; `*` stands for any characters",
    );
    keys.value(
        "rewriteOnNeverImagePullPolicy",
        &mut routing.rewrite_on_never_image_pull_policy,
        anything,
        "route containers with the pull policy `Never` too",
    );
    keys.value(
        "honorPrioritiesOnAlwaysImagePullPolicy",
        &mut routing.honor_priorities_on_always_image_pull_policy,
        anything,
        "let alternatives with a negative priority come before the original for the pull policy `Always`",
    );
    keys.list(
        "skipOwners",
        &mut routing.skip_owners,
        anything,
        "Pods whose controller is of one of these API groups are not rewritten; a list here replaces the default",
    );
}

fn active_check(keys: &mut Keys<'_>, check: &mut ActiveCheck) {
    keys.or_nothing(
        "timeout",
        &mut check.timeout,
        "none",
        anything,
        "time for one probe of one alternative; 0 means no limit but the request's own",
    );
    keys.value(
        "resolveDigest",
        &mut check.resolve_digest,
        anything,
        "ask for the manifest by its digest too, within the same time",
    );
    keys.section("staleMirrorCleanup", |keys| {
        let cleanup = &mut check.stale_mirror_cleanup;
        keys.value(
            "maxConcurrent",
            &mut cleanup.max_concurrent,
            anything,
            "corrections at once when a copy turns out to be gone; 0 turns them off",
        );
        keys.value("timeout", &mut cleanup.timeout, not_zero, "time for one correction");
    });
}

fn registries(keys: &mut Keys<'_>, registries: &mut Registries) {
    keys.section("default", |keys| registry(keys, &mut registries.default, &Built::IN));
    keys.hosts(&mut registries.hosts, |keys, host| {
        registry(keys, host, &Built::INHERITED);
    });
}

/// What the reference shows as defaults of a registry's options.
struct Built {
    off: &'static str,
    on: &'static str,
    nothing: &'static str,
    rate: &'static str,
    burst: &'static str,
    connections: &'static str,
}

impl Built {
    const IN: Self =
        Self { off: "false", on: "true", nothing: "none", rate: "50", burst: "100", connections: "16" };
    const INHERITED: Self = Self {
        off: INHERITS,
        on: INHERITS,
        nothing: INHERITS,
        rate: INHERITS,
        burst: INHERITS,
        connections: INHERITS,
    };
}

fn registry(keys: &mut Keys<'_>, options: &mut RegistryOptions, built: &Built) {
    keys.optional("plainHttp", &mut options.plain_http, built.off, anything, "speak HTTP without TLS");
    keys.optional(
        "caFile",
        &mut options.ca_file,
        built.nothing,
        anything,
        "PEM file with the authorities to trust",
    );
    keys.optional(
        "insecureSkipVerify",
        &mut options.insecure_skip_verify,
        built.off,
        anything,
        "accept any certificate",
    );
    keys.optional_list(
        "tokenHosts",
        &mut options.token_hosts,
        built.nothing,
        text(check_host),
        "further hosts that may be sent a password to obtain a token",
    );
    keys.optional(
        "trustNodeCredentials",
        &mut options.trust_node_credentials,
        built.on,
        anything,
        "count a refusal without credentials of ours as unknown, since nodes may have some",
    );
    keys.optional(
        "requestsPerSecond",
        &mut options.requests_per_second,
        built.rate,
        above(0.0),
        "requests that all parts together may send",
    );
    keys.optional(
        "burst",
        &mut options.burst,
        built.burst,
        at_least(1),
        "requests that may be sent at once after a pause",
    );
    keys.optional(
        "maxConnections",
        &mut options.max_connections,
        built.connections,
        at_least(1),
        "connections at once",
    );
}

fn mirroring(keys: &mut Keys<'_>, mirroring: &mut Mirroring) {
    let unset = "all, copied as they are";
    keys.list_of_sections(
        "platforms",
        &mut mirroring.platforms,
        unset,
        "platforms to keep; any choice changes the digest of multi-platform images",
        platform,
    );
    keys.value("workers", &mut mirroring.workers, at_least(1), "copies at once");
    keys.value("perRegistry", &mut mirroring.per_registry, at_least(1), "copies at once to one registry");
    keys.value("referrers", &mut mirroring.referrers, anything, "copy signatures and attestations too");
    keys.section("cleanup", |keys| {
        keys.or_nothing(
            "foreignListMaxAge",
            &mut mirroring.cleanup.foreign_list_max_age,
            "never",
            hours(3),
            "age at which the usage list of another cluster that shares a mirror is ignored",
        );
    });
}

/// Lists are written once an hour: a shorter age would ignore clusters that are there.
fn hours(least: u64) -> impl Fn(&Duration) -> Result<(), String> {
    move |age| {
        let enough = age.as_std() >= std::time::Duration::from_hours(least);
        enough.then_some(()).ok_or_else(|| format!("is {age}, but must be at least {least}h, or never"))
    }
}

fn platform(keys: &mut Keys<'_>, platform: &mut PlatformFilter) {
    let (mut os, mut architecture, mut variant) = (None, None, None);
    keys.or_nothing("os", &mut os, "any", anything, "operating system");
    keys.or_nothing(
        "architecture",
        &mut architecture,
        "required",
        anything,
        "architecture, such as `amd64` or `arm64`",
    );
    keys.require(
        "architecture",
        architecture.is_some(),
        "name the architecture of the platform, such as amd64 or arm64",
    );
    keys.or_nothing("variant", &mut variant, "any", anything, "variant of the architecture, such as `v7`");
    *platform = PlatformFilter {
        os: os.unwrap_or_default(),
        architecture: architecture.unwrap_or_default(),
        variant: variant.unwrap_or_default(),
    };
}

fn monitoring(keys: &mut Keys<'_>, monitoring: &mut Monitoring) {
    keys.section("default", |keys| {
        let RegistryWatch {
            method,
            interval,
            max_per_interval,
            timeout,
            resolve_digest,
            fallback_credential_secret,
        } = &mut monitoring.default;
        keys.value("method", method, anything, METHOD);
        keys.value("interval", interval, not_zero, INTERVAL);
        keys.value("maxPerInterval", max_per_interval, at_least(1), MAX_PER_INTERVAL);
        keys.or_nothing("timeout", timeout, "none", anything, TIMEOUT);
        keys.value("resolveDigest", resolve_digest, anything, RESOLVE_DIGEST);
        secret(keys, fallback_credential_secret, "none");
    });
    keys.section("items", |keys| {
        keys.hosts(&mut monitoring.items, watch_override);
    });
}

const METHOD: &str = "how the registry is asked; `GET` is for those that do not answer `HEAD`";
const INTERVAL: &str = "time in which `maxPerInterval` images are looked at";
const MAX_PER_INTERVAL: &str = "images of one registry that are looked at in one interval";
const TIMEOUT: &str = "time for one look";
const RESOLVE_DIGEST: &str = "ask for the manifest by its digest too";

fn watch_override(keys: &mut Keys<'_>, item: &mut WatchOverride) {
    let WatchOverride {
        method,
        interval,
        max_per_interval,
        timeout,
        resolve_digest,
        fallback_credential_secret,
    } = item;
    keys.or_nothing::<CheckMethod>("method", method, INHERITS, anything, METHOD);
    keys.or_nothing("interval", interval, "as `default`; 1h for `docker.io`", anything, INTERVAL);
    keys.or_nothing(
        "maxPerInterval",
        max_per_interval,
        "as `default`; 6 for `docker.io`",
        anything,
        MAX_PER_INTERVAL,
    );
    keys.or_nothing("timeout", timeout, INHERITS, anything, TIMEOUT);
    keys.optional("resolveDigest", resolve_digest, INHERITS, anything, RESOLVE_DIGEST);
    secret(keys, fallback_credential_secret, INHERITS);
}

fn secret(keys: &mut Keys<'_>, target: &mut Option<SecretName>, unset: &str) {
    keys.section("fallbackCredentialSecret", |keys| {
        let (mut name, mut namespace) = (None, None);
        keys.or_nothing(
            "name",
            &mut name,
            unset,
            anything,
            "pull secret to use where the Pods' own do not open the registry; never used for namespaced objects",
        );
        keys.or_nothing(
            "namespace",
            &mut namespace,
            unset,
            text(check_namespace),
            "namespace of that Secret",
        );
        match (name, namespace) {
            (Some(name), Some(namespace)) => *target = Some(SecretName { name, namespace }),
            (None, None) => *target = None,
            (name, namespace) => {
                keys.require("name", name.is_some(), "name the Secret as well as its namespace");
                keys.require(
                    "namespace",
                    namespace.is_some(),
                    "name the namespace of the Secret as well as its name",
                );
            }
        }
    });
}

fn warm(keys: &mut Keys<'_>, warm: &mut Warm) {
    keys.optional(
        "namespace",
        &mut warm.namespace,
        "the operator's own",
        text(check_namespace),
        "namespace of the Pods that pull images onto nodes",
    );
    keys.value(
        "method",
        &mut warm.method,
        anything,
        "how an image is pulled: `run` runs the command `true` from it",
    );
    keys.value("maxPullsPerNode", &mut warm.max_pulls_per_node, at_least(1), "pulls at once on one node");
    keys.or_nothing(
        "maxPulls",
        &mut warm.max_pulls,
        "no bound",
        anything,
        "pulls at once in the whole cluster",
    );
    keys.value("pullDeadline", &mut warm.pull_deadline, not_zero, "time after which one pull is given up");
}

fn heal(keys: &mut Keys<'_>, heal: &mut Heal) {
    keys.value(
        "enabled",
        &mut heal.enabled,
        anything,
        "move Pods that cannot pull their image to one that can be pulled",
    );
    let mut namespaces: Vec<String> = heal.namespaces.iter().cloned().collect();
    keys.list(
        "namespaces",
        &mut namespaces,
        text(check_namespace),
        "namespaces to heal in, none for all; `WATCH_NAMESPACE` wins over it",
    );
    heal.namespaces = namespaces.into_iter().collect::<BTreeSet<_>>();
    keys.value(
        "evictUnpatchable",
        &mut heal.evict_unpatchable,
        anything,
        "evict Pods that have an owner and cannot be patched (image volumes)",
    );
    keys.value("patchesPerSecond", &mut heal.patches_per_second, at_least(1), "Pods patched per second");
}

fn harbor(keys: &mut Keys<'_>, harbor: &mut Harbor) {
    keys.optional(
        "url",
        &mut harbor.url,
        "none",
        text(check_url),
        "Harbor to manage; without it ProxyCache objects are left alone; `HARBOR_URL` wins over it",
    );
    keys.value(
        "adminSecret",
        &mut harbor.admin_secret,
        anything,
        "Secret with the administrator's password; `HARBOR_ADMIN_SECRET` wins over it",
    );
    keys.value(
        "adminSecretKey",
        &mut harbor.admin_secret_key,
        anything,
        "key of that Secret; `HARBOR_ADMIN_SECRET_KEY` wins over it",
    );
    keys.value("retainOnDelete", &mut harbor.retain_on_delete, anything, "leave projects and endpoints in Harbor when a ProxyCache is deleted; `HARBOR_RETAIN_ON_DELETE` wins over it");
}

fn nodes(keys: &mut Keys<'_>, nodes: &mut Nodes) {
    keys.list(
        "insecureRegistries",
        &mut nodes.insecure_registries,
        text(check_scope),
        "registries or repositories that nodes may pull from without TLS",
    );
    keys.list(
        "blockedRegistries",
        &mut nodes.blocked_registries,
        text(check_scope),
        "registries or repositories that nodes must not pull from",
    );
    keys.value(
        "router",
        &mut nodes.router,
        anything,
        "answer on the node what the runtime's files cannot express",
    );
    keys.value(
        "migrateICSP",
        &mut nodes.migrate_icsp,
        anything,
        "kind that ImageContentSourcePolicy objects are migrated to",
    );
}

fn account(keys: &mut Keys<'_>, account: &mut Account) {
    keys.value(
        "pinning",
        &mut account.pinning,
        anything,
        "pin tags to digests at admission where a namespace or Pod asks for it",
    );
    keys.value("metrics", &mut account.metrics, anything, "finest thing that has metrics of its own");
    keys.value("annotate", &mut account.annotate, anything, "record digests on Pods");
}

fn metrics(keys: &mut Keys<'_>, metrics: &mut Metrics) {
    keys.section("imageLastMonitorAgeMinutes", |keys| {
        let none = "no effect: native histograms are not exported";
        keys.value("bucketFactor", &mut 1.1, anything, none);
        keys.value("zeroThreshold", &mut 1.0, anything, none);
        keys.value("maxBucketNumber", &mut 20_u32, anything, none);
        keys.section("legacy", |keys| buckets(keys, &mut metrics.image_last_monitor_age_minutes.buckets));
    });
}

fn buckets(keys: &mut Keys<'_>, buckets: &mut ClassicBuckets) {
    let mut kind = Some(buckets.kind);
    keys.or_nothing("bucketType", &mut kind, "", anything, "how the classic buckets are spaced");
    buckets.kind = kind.unwrap_or(BucketKind::Exponential);
    let ClassicBuckets { kind, start, factor, count, min, max, custom } = buckets;
    keys.value("start", start, anything, "`exponential`: bound of the first bucket, above 0");
    keys.value("factor", factor, anything, "`exponential`: each bound is the one before times this, above 1");
    keys.value(
        "count",
        count,
        anything,
        "`exponential`, `exponentialRange`: number of buckets, from 1 to 200",
    );
    keys.value("min", min, anything, "`exponentialRange`: bound of the first bucket, above 0");
    keys.value("max", max, anything, "`exponentialRange`: bound of the last bucket, above `min`");
    keys.list("custom", custom, anything, "`custom`: the bounds, ascending");

    // Only what the chosen kind uses is checked: kube-image-keeper ignored the rest, so files with such a rest exist.
    let exponential = *kind == BucketKind::Exponential;
    let range = *kind == BucketKind::ExponentialRange;
    keys.refuse_if(exponential && *start <= 0.0, &["start"], "must be above 0");
    keys.refuse_if(exponential && *factor <= 1.0, &["factor"], "must be above 1");
    keys.refuse_if((exponential || range) && !(1..=200).contains(count), &["count"], "must be from 1 to 200");
    keys.refuse_if(range && *min <= 0.0, &["min"], "must be above 0");
    keys.refuse_if(range && *max <= *min, &["max", "min"], "`max` must be above `min`");
    let ascending = custom.iter().zip(custom.iter().skip(1)).all(|(lower, upper)| lower < upper);
    let usable = ascending && !custom.is_empty();
    keys.refuse_if(
        *kind == BucketKind::Custom && !usable,
        &["custom"],
        "must hold at least one number, and each must be above the one before",
    );
}
