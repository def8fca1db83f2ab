//! Every key of the configuration file, declared once: its name, what it may hold, its default, its meaning.

use fairlead_domain::duration::Duration;
use fairlead_domain::platform::PlatformFilter;

use super::checks::{
    above, anything, at_least, check_image, check_namespace, check_scope, check_url, not_zero, text,
};
use super::keys::Keys;
use super::monitoring::{Monitoring, SecretName, WatchOverride};
use super::registries::{RegistryOptions, check_host};
use super::types::{BucketKind, ClassicBuckets, Config, Mirroring, Routing};

const INHERITS: &str = "as `default`";

/// Keys of one level: how each is read ([`Keys`]), its name and the field that takes its value; `or` what its absence
/// means, `is` what the value must be besides well-formed.
macro_rules! keys {
    ($keys:ident: $($how:ident $name:literal $field:expr $(, or $nothing:expr)? $(, is $check:expr)?
        => $meaning:expr;)*) => {
        $($keys.$how($name, &mut $field, $($nothing,)? keys!(@ $($check)?), $meaning);)*
    };
    (@) => { anything };
    (@ $check:expr) => { $check };
}

pub(super) fn declare(keys: &mut Keys<'_>, config: &mut Config) {
    keys! { keys:
        list "skipLabels" config.skip_labels
            => "Pods whose labels match one of these are left alone by everything";
        list "skipAnnotations" config.skip_annotations => "the same for annotations";
    }
    keys.section("routing", |keys| routing(keys, &mut config.routing));
    keys.section("registries", |keys| {
        keys.section("default", |keys| {
            registry(keys, &mut config.registries.default, ["false", "true", "none", "50", "100", "16"]);
        });
        keys.hosts(&mut config.registries.hosts, |keys, host| registry(keys, host, [INHERITS; 6]));
    });
    keys.section("mirroring", |keys| mirroring(keys, &mut config.mirroring));
    keys.section("monitoring", |keys| {
        keys.section("registries", |keys| monitoring(keys, &mut config.monitoring));
    });
    keys.section("warm", |keys| {
        let warm = &mut config.warm;
        keys! { keys:
            optional "namespace" warm.namespace, or "the operator's own", is text(check_namespace)
                => "namespace of the Pods that pull images onto nodes";
            value "method" warm.method
                => "how images are pulled: `run` runs the command `true` from each in a Pod of its own, `batch` in one Pod for all images that a node needs";
            value "maxPullsPerNode" warm.max_pulls_per_node, is at_least(1) => "pulls at once on one node";
            or_nothing "maxPulls" warm.max_pulls, or "no bound" => "pulls at once in the whole cluster";
            value "pullDeadline" warm.pull_deadline, is not_zero => "time after which one pull is given up";
            value "gateDeadline" warm.gate_deadline, is not_zero
                => "time after which a new node loses the taint `fairlead.dev/warming`, whatever it lacks";
            optional "runner" warm.runner, or "none", is text(check_image)
                => "image with a command `true`; its containers mount the images as volumes instead of running them, for images that cannot run";
        }
    });
    keys.section("heal", |keys| {
        let heal = &mut config.heal;
        let mut namespaces: Vec<String> = heal.namespaces.iter().cloned().collect();
        keys! { keys:
            value "enabled" heal.enabled => "move Pods that cannot pull their image to one that can be pulled";
            list "namespaces" namespaces, is text(check_namespace)
                => "namespaces to heal in, none for all; `WATCH_NAMESPACE` wins over it";
            value "evictUnpatchable" heal.evict_unpatchable
                => "evict Pods that have an owner and cannot be patched (image volumes)";
            value "evictJobs" heal.evict_jobs
                => "also Pods of Jobs, which may count an evicted Pod as a failed one";
            value "patchesPerSecond" heal.patches_per_second, is at_least(1) => "Pods patched per second";
        }
        heal.namespaces = namespaces.into_iter().collect();
    });
    keys.section("harbor", |keys| {
        let harbor = &mut config.harbor;
        keys! { keys:
            optional "url" harbor.url, or "none", is text(check_url)
                => "Harbor to manage; without it ProxyCache objects are left alone; `HARBOR_URL` wins over it";
            optional "pullHost" harbor.pull_host, or "the host of `harbor.url`", is text(check_host)
                => "host that Pods pull from Harbor by, with its port; see `spec.routing` of ProxyCache";
            value "adminSecret" harbor.admin_secret
                => "Secret with the administrator's password; `HARBOR_ADMIN_SECRET` wins over it";
            value "adminSecretKey" harbor.admin_secret_key
                => "key of that Secret; `HARBOR_ADMIN_SECRET_KEY` wins over it";
            value "retainOnDelete" harbor.retain_on_delete
                => "leave projects and endpoints in Harbor when a ProxyCache is deleted; \
                    `HARBOR_RETAIN_ON_DELETE` wins over it";
        }
    });
    keys.section("nodes", |keys| {
        let nodes = &mut config.nodes;
        keys! { keys:
            list "insecureRegistries" nodes.insecure_registries, is text(check_scope)
                => "registries or repositories that nodes may pull from without TLS";
            list "blockedRegistries" nodes.blocked_registries, is text(check_scope)
                => "registries or repositories that nodes must not pull from";
            value "router" nodes.router => "answer on the node what the runtime's files cannot express";
            value "migrateICSP" nodes.migrate_icsp
                => "kind that ImageContentSourcePolicy objects are migrated to";
            value "deleteMigratedICSP" nodes.delete_migrated_icsp
                => "delete ImageContentSourcePolicy objects that an object of a newer kind repeats";
        }
    });
    keys.section("account", |keys| {
        let account = &mut config.account;
        keys! { keys:
            value "pinning" account.pinning
                => "pin tags to digests at admission: where a Pod or namespace asks for it, or all but those that do not want it";
            value "metrics" account.metrics => "finest thing that has metrics of its own";
            value "annotate" account.annotate => "record digests on Pods";
        }
    });
    keys.section("metrics", |keys| {
        keys.section("imageLastMonitorAgeMinutes", |keys| {
            let none = "no effect: native histograms are not exported";
            keys! { keys:
                value "bucketFactor" 1.1 => none;
                value "zeroThreshold" 1.0 => none;
                value "maxBucketNumber" 20_u32 => none;
            }
            let buckets = &mut config.metrics.image_last_monitor_age_minutes.buckets;
            keys.section("legacy", |keys| classic_buckets(keys, buckets));
        });
    });
}

fn routing(keys: &mut Keys<'_>, routing: &mut Routing) {
    keys.section("activeCheck", |keys| {
        let check = &mut routing.active_check;
        keys! { keys:
            or_nothing "timeout" check.timeout, or "none"
                => "time for one probe of one alternative; 0 means no limit but the request's own";
            value "resolveDigest" check.resolve_digest
                => "ask for the manifest by its digest too, within the same time";
        }
        keys.section("staleMirrorCleanup", |keys| {
            let cleanup = &mut check.stale_mirror_cleanup;
            keys! { keys:
                value "maxConcurrent" cleanup.max_concurrent
                    => "corrections at once when a copy turns out to be gone; 0 turns them off";
                value "timeout" cleanup.timeout, is not_zero => "time for one correction";
            }
        });
    });
    keys.section("probe", |keys| {
        keys! { keys:
            value "refresh" routing.probe.refresh, is not_zero
                => "age at which a verdict that is in use is looked up again in the background";
        }
    });
    keys.section("pullSecrets", |keys| {
        keys! { keys:
            value "copy" routing.pull_secrets.copy
                => "copy pull secrets of cluster-scoped policies into the namespaces of the Pods that need them";
        }
    });
    keys! { keys:
        value "accessProof" routing.access_proof, is not_zero
            => "how long proof of access to an image counts, for mirrors with `access: Proven`";
        list "namespacedRegistries" routing.namespaced_registries
            => "registries that ImageSetMirrors and ReplicatedImageSets may name; `*` stands for any characters";
        value "rewriteOnNeverImagePullPolicy" routing.rewrite_on_never_image_pull_policy
            => "route containers with the pull policy `Never` too";
        value "honorPrioritiesOnAlwaysImagePullPolicy" routing.honor_priorities_on_always_image_pull_policy
            => "let alternatives with a negative priority come before the original for the pull policy `Always`";
        list "skipOwners" routing.skip_owners
            => "Pods whose controller is of one of these API groups are not rewritten; a list here replaces the \
                default";
    }
}

/// The last argument is what the reference shows as defaults.
fn registry(
    keys: &mut Keys<'_>,
    options: &mut RegistryOptions,
    [off, on, nothing, rate, burst, connections]: [&str; 6],
) {
    keys! { keys:
        optional "plainHttp" options.plain_http, or off => "speak HTTP without TLS";
        optional "caFile" options.ca_file, or nothing => "PEM file with the authorities to trust";
        optional "insecureSkipVerify" options.insecure_skip_verify, or off => "accept any certificate";
        optional_list "tokenHosts" options.token_hosts, or nothing, is text(check_host)
            => "further hosts that may be sent a password to obtain a token";
        optional "trustNodeCredentials" options.trust_node_credentials, or on
            => "count a refusal without credentials of ours as unknown, since nodes may have some";
        optional "requestsPerSecond" options.requests_per_second, or rate, is above(0.0)
            => "requests that all parts together may send";
        optional "burst" options.burst, or burst, is at_least(1)
            => "requests that may be sent at once after a pause";
        optional "maxConnections" options.max_connections, or connections, is at_least(1)
            => "connections at once";
    }
}

fn mirroring(keys: &mut Keys<'_>, mirroring: &mut Mirroring) {
    keys.list_of_sections(
        "platforms",
        &mut mirroring.platforms,
        "all, copied as they are",
        "platforms to keep; any choice changes the digest of multi-platform images",
        platform,
    );
    keys! { keys:
        value "workers" mirroring.workers, is at_least(1) => "copies at once";
        value "perRegistry" mirroring.per_registry, is at_least(1) => "copies at once to one registry";
        value "referrers" mirroring.referrers => "copy signatures and attestations too";
    }
    keys.section("cleanup", |keys| {
        keys! { keys:
            or_nothing "foreignListMaxAge" mirroring.cleanup.foreign_list_max_age, or "never", is hours(3)
                => "age at which the usage list of another cluster that shares a mirror is ignored";
        }
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
    keys! { keys:
        or_nothing "os" os, or "any" => "operating system";
        or_nothing "architecture" architecture, or "required" => "architecture, such as `amd64` or `arm64`";
        or_nothing "variant" variant, or "any" => "variant of the architecture, such as `v7`";
    }
    let remedy = "name the architecture of the platform, such as amd64 or arm64";
    keys.require("architecture", architecture.is_some(), remedy);
    *platform = PlatformFilter {
        os: os.unwrap_or_default(),
        architecture: architecture.unwrap_or_default(),
        variant: variant.unwrap_or_default(),
    };
}

fn monitoring(keys: &mut Keys<'_>, monitoring: &mut Monitoring) {
    keys.section("default", |keys| {
        let rule = &mut monitoring.default;
        keys! { keys:
            value "method" rule.method => METHOD;
            value "interval" rule.interval, is not_zero => INTERVAL;
            value "maxPerInterval" rule.max_per_interval, is at_least(1) => MAX_PER_INTERVAL;
            or_nothing "timeout" rule.timeout, or "none" => TIMEOUT;
            value "resolveDigest" rule.resolve_digest => RESOLVE_DIGEST;
        }
        secret(keys, &mut rule.fallback_credential_secret, "none");
    });
    keys.section("items", |keys| keys.hosts(&mut monitoring.items, watch_override));
}

const METHOD: &str = "how the registry is asked; `GET` is for those that do not answer `HEAD`";
const INTERVAL: &str = "time in which `maxPerInterval` images are looked at";
const MAX_PER_INTERVAL: &str = "images of one registry that are looked at in one interval";
const TIMEOUT: &str = "time for one look";
const RESOLVE_DIGEST: &str = "ask for the manifest by its digest too";

fn watch_override(keys: &mut Keys<'_>, item: &mut WatchOverride) {
    keys! { keys:
        or_nothing "method" item.method, or INHERITS => METHOD;
        or_nothing "interval" item.interval, or "as `default`; 1h for `docker.io`" => INTERVAL;
        or_nothing "maxPerInterval" item.max_per_interval, or "as `default`; 6 for `docker.io`"
            => MAX_PER_INTERVAL;
        or_nothing "timeout" item.timeout, or INHERITS => TIMEOUT;
        optional "resolveDigest" item.resolve_digest, or INHERITS => RESOLVE_DIGEST;
    }
    secret(keys, &mut item.fallback_credential_secret, INHERITS);
}

fn secret(keys: &mut Keys<'_>, target: &mut Option<SecretName>, unset: &str) {
    keys.section("fallbackCredentialSecret", |keys| {
        let (mut name, mut namespace) = (None, None);
        keys! { keys:
            or_nothing "name" name, or unset
                => "pull secret to use where the Pods' own do not open the registry; never used for namespaced \
                    objects";
            or_nothing "namespace" namespace, or unset, is text(check_namespace) => "namespace of that Secret";
        }
        match (name, namespace) {
            (Some(name), Some(namespace)) => *target = Some(SecretName { name, namespace }),
            (None, None) => *target = None,
            (name, namespace) => {
                keys.require("name", name.is_some(), "name the Secret as well as its namespace");
                let remedy = "name the namespace of the Secret as well as its name";
                keys.require("namespace", namespace.is_some(), remedy);
            }
        }
    });
}

fn classic_buckets(keys: &mut Keys<'_>, buckets: &mut ClassicBuckets) {
    let mut kind = Some(buckets.kind);
    keys! { keys:
        or_nothing "bucketType" kind, or "" => "how the classic buckets are spaced";
        value "start" buckets.start => "`exponential`: bound of the first bucket, above 0";
        value "factor" buckets.factor => "`exponential`: each bound is the one before times this, above 1";
        value "count" buckets.count => "`exponential`, `exponentialRange`: number of buckets, from 1 to 200";
        value "min" buckets.min => "`exponentialRange`: bound of the first bucket, above 0";
        value "max" buckets.max => "`exponentialRange`: bound of the last bucket, above `min`";
        list "custom" buckets.custom => "`custom`: the bounds, ascending";
    }
    buckets.kind = kind.unwrap_or(BucketKind::Exponential);
    let ClassicBuckets { kind, start, factor, count, min, max, custom } = buckets;

    // Only what the chosen kind uses is checked: kube-image-keeper ignored the rest, so files with such a rest exist.
    let exponential = *kind == BucketKind::Exponential;
    let range = *kind == BucketKind::ExponentialRange;
    let usable = custom.is_sorted_by(|lower, upper| lower < upper) && !custom.is_empty();
    keys.refuse_if(exponential && *start <= 0.0, &["start"], "must be above 0");
    keys.refuse_if(exponential && *factor <= 1.0, &["factor"], "must be above 1");
    keys.refuse_if((exponential || range) && !(1..=200).contains(count), &["count"], "must be from 1 to 200");
    keys.refuse_if(range && *min <= 0.0, &["min"], "must be above 0");
    keys.refuse_if(range && *max <= *min, &["max", "min"], "`max` must be above `min`");
    let message = "must hold at least one number, and each must be above the one before";
    keys.refuse_if(*kind == BucketKind::Custom && !usable, &["custom"], message);
}
