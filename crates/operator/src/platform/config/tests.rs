use std::{collections::BTreeMap, io::Write as _, path::Path};

use fairlead_domain::platform::PlatformFilter;

use super::{
    BucketKind, CheckMethod, Config, ConfigErrors, Loaded, MigrateIcsp, Pinning, reference, types::seconds,
};

fn config(text: &str) -> Config {
    match Config::parse(text) {
        Ok(loaded) => loaded.config,
        Err(errors) => panic!("{text}\n{errors}"),
    }
}

fn errors(text: &str) -> ConfigErrors {
    match Config::parse(text) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(errors) => errors,
    }
}

#[test]
fn nothing_means_the_defaults() {
    for text in [
        "",
        "\n",
        "# only a comment\n",
        "---\n",
        "null",
        "routing:\n",
        "routing:\n  activeCheck: ~\nskipLabels:\n",
    ] {
        assert_eq!(config(text), Config::default(), "{text:?}");
    }
    let config = Config::default();
    assert_eq!(config.routing.active_check.timeout, Some(seconds(1)));
    assert_eq!(config.mirroring.platforms, None);
    let skipped: Vec<_> = config.routing.skip_owners.iter().map(ToString::to_string).collect();
    assert_eq!(skipped, ["postgresql.cnpg.io", "asdb.aerospike.com"]);
    assert_eq!(config.harbor.admin_secret, "harbor-admin-password");
    assert_eq!(config.heal.patches_per_second, 20);
    assert_eq!(config.warm.pull_deadline, seconds(1800));
}

/// Each bad text, with what its single problem must say: line, path and a part of the message.
#[test]
#[expect(clippy::too_many_lines, reason = "one table of all mistakes")]
fn every_problem_names_line_key_and_remedy() {
    let cases: &[(&str, usize, &str, &str)] = &[
        // Unknown keys.
        (
            "routing:\n  activeCheck:\n    timout: 1s\n",
            3,
            "routing.activeCheck.timout",
            "did you mean `timeout`?",
        ),
        ("Routing: {}\n", 1, "Routing", "did you mean `routing`?"),
        ("platforms: []\n", 1, "platforms", "did you mean `mirroring.platforms`?"),
        ("banana: 1\n", 1, "banana", "known here: skipLabels,"),
        (
            "monitoring:\n  registries:\n    items:\n      quay.io:\n        intervall: 1h\n",
            5,
            "monitoring.registries.items.quay.io.intervall",
            "`interval`",
        ),
        (
            "mirroring:\n  platforms:\n  - architecture: arm64\n    varient: v8\n",
            4,
            "mirroring.platforms[0].varient",
            "`variant`",
        ),
        ("registries:\n  quay.io:\n    plainHTTP: true\n", 3, "registries.quay.io.plainHTTP", "`plainHttp`"),
        // Groups of owners.
        ("routing: {skipOwners: [postgresql.cnpg.io/v1]}", 1, "routing.skipOwners[0]", "without its version"),
        ("routing:\n  skipOwners:\n  - a.io\n  - Cluster.a.io\n", 4, "routing.skipOwners[1]", "lower case"),
        ("routing: {skipOwners: a.io}", 1, "routing.skipOwners", "list"),
        ("routing: {skipOwner: [a.io]}", 1, "routing.skipOwner", "`skipOwners`"),
        // Durations.
        ("routing: {activeCheck: {timeout: 7d}}", 1, "routing.activeCheck.timeout", "168h"),
        ("routing:\n  probe:\n    refresh: -1s\n", 3, "routing.probe.refresh", "negative"),
        ("routing:\n  probe:\n    refresh: -1000000\n", 3, "routing.probe.refresh", "negative"),
        ("routing:\n  probe:\n    refresh: 0\n", 3, "routing.probe.refresh", "longer"),
        ("warm: {pullDeadline: soon}", 1, "warm.pullDeadline", "90s"),
        ("warm: {pullDeadline: 1.5}", 1, "warm.pullDeadline", "without a unit"),
        ("warm: {pullDeadline: [1h]}", 1, "warm.pullDeadline", "is a list"),
        ("warm: {pullDeadline: \"5\"}", 1, "warm.pullDeadline", "without a unit"),
        // Booleans of YAML 1.1 are texts.
        ("heal:\n  enabled: yes\n", 2, "heal.enabled", "write true"),
        ("heal:\n  enabled: off\n", 2, "heal.enabled", "write false"),
        ("heal:\n  enabled: \"true\"\n", 2, "heal.enabled", "take the quotes away"),
        ("heal:\n  enabled: 1\n", 2, "heal.enabled", "write true"),
        ("heal:\n  enabled: maybe\n", 2, "heal.enabled", "true or false"),
        // Numbers.
        ("mirroring: {workers: 0}", 1, "mirroring.workers", "at least 1"),
        (
            "mirroring: {cleanup: {foreignListMaxAge: 1h}}",
            1,
            "mirroring.cleanup.foreignListMaxAge",
            "at least 3h, or never",
        ),
        ("mirroring: {workers: -3}", 1, "mirroring.workers", "negative"),
        ("mirroring: {workers: 1.5}", 1, "mirroring.workers", "whole number"),
        ("mirroring: {workers: \"4\"}", 1, "mirroring.workers", "quotes"),
        ("mirroring: {workers: 99999999999}", 1, "mirroring.workers", "above 4294967295"),
        ("mirroring: {workers: many}", 1, "mirroring.workers", "whole number"),
        (
            "routing: {activeCheck: {staleMirrorCleanup: {maxConcurrent: -1}}}",
            1,
            "routing.activeCheck.staleMirrorCleanup.maxConcurrent",
            "negative",
        ),
        (
            "registries: {default: {requestsPerSecond: 0}}",
            1,
            "registries.default.requestsPerSecond",
            "above 0",
        ),
        (
            "registries: {default: {requestsPerSecond: .nan}}",
            1,
            "registries.default.requestsPerSecond",
            "a number",
        ),
        (
            "monitoring: {registries: {default: {maxPerInterval: 0}}}",
            1,
            "monitoring.registries.default.maxPerInterval",
            "at least 1",
        ),
        (
            "monitoring: {registries: {default: {interval: 0s}}}",
            1,
            "monitoring.registries.default.interval",
            "longer",
        ),
        // Choices.
        (
            "monitoring: {registries: {default: {method: PUT}}}",
            1,
            "monitoring.registries.default.method",
            "must be `HEAD` or `GET`",
        ),
        (
            "monitoring: {registries: {items: {quay.io: {method: head}}}}",
            1,
            "monitoring.registries.items.quay.io.method",
            "`HEAD`",
        ),
        ("nodes: {migrateICSP: true}", 1, "nodes.migrateICSP", "`off`, `ImageSourceDigestPolicy` or"),
        ("account: {pinning: always}", 1, "account.pinning", "`off`, `opt-in` or `all`"),
        ("warm: {method: ctr}", 1, "warm.method", "must be `run` or `batch`"),
        // Lists and maps.
        ("mirroring:\n  platforms: []\n", 2, "mirroring.platforms", "at least one"),
        ("mirroring:\n  platforms:\n  - os: linux\n", 3, "mirroring.platforms[0].architecture", "missing"),
        (
            "mirroring:\n  platforms:\n  - os: linux\n    architecture: \"\"\n",
            3,
            "mirroring.platforms[0].architecture",
            "missing",
        ),
        ("mirroring:\n  platforms:\n  - amd64\n", 3, "mirroring.platforms[0]", "further keys"),
        ("mirroring:\n  platforms: amd64\n", 2, "mirroring.platforms", "must be a list"),
        ("routing: 5", 1, "routing", "further keys"),
        ("- routing", 1, "", "a list"),
        ("routing", 1, "", "`routing`"),
        ("skipLabels: app=web", 1, "skipLabels", "put `- ` before each item"),
        // Selectors, names, hosts, URLs.
        ("skipLabels:\n- app=web\n- app===web\n", 3, "skipLabels[1]", "app===web"),
        ("skipAnnotations:\n- example.com/x=a b\n", 2, "skipAnnotations[0]", "label selector"),
        ("skipLabels:\n- ''\n", 2, "skipLabels[0]", "empty"),
        ("heal: {namespaces: [Kube_System]}", 1, "heal.namespaces[0]", "name of a namespace"),
        ("harbor: {url: harbor.example.com}", 1, "harbor.url", "https://"),
        ("harbor: {url: \"https://admin:secret@harbor\"}", 1, "harbor.url", "password"),
        ("harbor: {adminSecret: \"\"}", 1, "harbor.adminSecret", "empty"),
        ("registries: {\"https://quay.io\": {}}", 1, "registries.https://quay.io", "write `quay.io`"),
        ("registries: {quay.io/team: {}}", 1, "registries.quay.io/team", "write `quay.io`"),
        (
            "monitoring: {registries: {items: {index.docker.io: {interval: 2h}}}}",
            1,
            "monitoring.registries.items.index.docker.io",
            "`docker.io`",
        ),
        (
            "registries:\n  reg.local: {burst: 1}\n  REG.local:443: {burst: 2}\n",
            3,
            "registries.REG.local:443",
            "the same registry as `reg.local` in line 2",
        ),
        (
            "routing:\n  namespacedRegistries:\n  - '*.corp.example'\n  - '.*\\.corp'\n",
            4,
            "routing.namespacedRegistries[1]",
            "`*` stands for any characters",
        ),
        (
            "routing: {namespacedRegistries: ['https://reg.corp']}",
            1,
            "routing.namespacedRegistries[0]",
            "write `reg.corp`",
        ),
        (
            "routing: {namespacedRegistries: reg.corp}",
            1,
            "routing.namespacedRegistries",
            "put `- ` before each item",
        ),
        ("registries: {Index.Docker.io: {}}", 1, "registries.Index.Docker.io", "`docker.io`"),
        ("nodes: {blockedRegistries: [\"a b\"]}", 1, "nodes.blockedRegistries[0]", "image reference"),
        (
            "monitoring: {registries: {default: {fallbackCredentialSecret: {name: pull}}}}",
            1,
            "monitoring.registries.default.fallbackCredentialSecret.namespace",
            "missing",
        ),
        // Histogram.
        (
            "metrics: {imageLastMonitorAgeMinutes: {legacy: {factor: 1}}}",
            1,
            "metrics.imageLastMonitorAgeMinutes.legacy.factor",
            "above 1",
        ),
        (
            "metrics: {imageLastMonitorAgeMinutes: {legacy: {start: 0}}}",
            1,
            "metrics.imageLastMonitorAgeMinutes.legacy.start",
            "above 0",
        ),
        (
            "metrics: {imageLastMonitorAgeMinutes: {legacy: {bucketType: exponentialRange, min: 5, max: 5}}}",
            1,
            "metrics.imageLastMonitorAgeMinutes.legacy.max",
            "above `min`",
        ),
        (
            "metrics: {imageLastMonitorAgeMinutes: {legacy: {bucketType: exponentialRange, min: 5000}}}",
            1,
            "metrics.imageLastMonitorAgeMinutes.legacy.min",
            "above `min`",
        ),
        (
            "metrics: {imageLastMonitorAgeMinutes: {legacy: {count: 0}}}",
            1,
            "metrics.imageLastMonitorAgeMinutes.legacy.count",
            "1 to 200",
        ),
        (
            "metrics: {imageLastMonitorAgeMinutes: {legacy: {bucketType: custom, custom: [1, 1]}}}",
            1,
            "metrics.imageLastMonitorAgeMinutes.legacy.custom",
            "above the one before",
        ),
        (
            "metrics: {imageLastMonitorAgeMinutes: {legacy: {bucketType: custom, custom: []}}}",
            1,
            "metrics.imageLastMonitorAgeMinutes.legacy.custom",
            "at least one",
        ),
        (
            "metrics: {imageLastMonitorAgeMinutes: {legacy: {bucketType: linear}}}",
            1,
            "metrics.imageLastMonitorAgeMinutes.legacy.bucketType",
            "`exponential`",
        ),
        // YAML itself.
        ("heal:\n  enabled: true\n  enabled: false\n", 3, "enabled", "first on line 2"),
        ("a: [1\nb: 2\n", 2, "", "not YAML"),
        ("heal: {}\n---\nheal: {}\n", 2, "", "second document"),
        ("heal:\n  enabled: !!bool true\n", 2, "", "tags"),
        ("? [a]\n: b\n", 1, "", "plain word"),
        ("heal: *nowhere\n", 1, "", "not YAML"),
        ("heal: &a\n  namespaces: *a\n", 2, "", "it stands in"),
        ("heal:\n  <<: 5\n", 2, "<<", "merged"),
    ];
    for (text, line, path, part) in cases {
        let errors = errors(text);
        let [problem] = errors.problems() else { panic!("{text}\n{errors}") };
        assert_eq!((problem.line, problem.path.as_str()), (Some(*line), *path), "{text}\n{errors}");
        assert!(problem.message.contains(part), "{text}\n{errors}\nwanted: {part}");
        assert!(errors.to_string().contains(&format!("line {line}: ")), "{errors}");
    }
}

#[test]
fn all_problems_are_told_at_once_in_the_order_of_lines() {
    let errors = errors(
        "heal:\n  enabled: yes\n  enabled: true\nrouting:\n  activeCheck:\n    timeout: 7d\n  prob: {}\nmirroring:\n  platforms:\n  - {os: linux}\n  - {architecture: arm64, os: [linux]}\nskipLabels: ['a b', ok, '=']\n",
    );
    let lines: Vec<_> = errors.problems().iter().map(|problem| problem.line.unwrap()).collect();
    assert_eq!(lines, [2, 3, 6, 7, 10, 11, 12, 12], "{errors}");
    assert!(
        errors.to_string().starts_with("the configuration is not valid:\n  line 2: heal.enabled: is `yes`"),
        "{errors}"
    );
}

#[test]
fn maps_merge_deeply_and_lists_replace() {
    let config = config(
        "monitoring:\n  registries:\n    default:\n      timeout: 10s\n      resolveDigest: true\n      fallbackCredentialSecret: {name: pull, namespace: infra}\n    items:\n      docker.io: {maxPerInterval: 9, resolveDigest: false}\n      quay.io: {method: GET, interval: 0, maxPerInterval: 0, timeout: 0s}\n",
    );
    let docker = config.monitoring.for_registry("docker.io");
    assert_eq!(
        (docker.interval, docker.max_per_interval),
        (seconds(3600), 9),
        "one field changed, the other stays"
    );
    assert!(!docker.resolve_digest, "false is an answer, not an absence");
    assert_eq!(docker.timeout, Some(seconds(10)));
    assert_eq!(docker.fallback_credential_secret.map(|secret| secret.name), Some("pull".to_owned()));
    let quay = config.monitoring.for_registry("quay.io");
    assert_eq!(quay.method, CheckMethod::Get);
    assert_eq!(
        (quay.interval, quay.max_per_interval, quay.timeout),
        (seconds(3 * 3600), 25, Some(seconds(10))),
        "zero inherits"
    );
    assert!(quay.resolve_digest);
    assert_eq!(config.monitoring.for_registry("ghcr.io"), config.monitoring.default);

    let buckets = &super::tests::config(
        "metrics: {imageLastMonitorAgeMinutes: {legacy: {bucketType: custom, custom: [2, 4]}}}",
    )
    .metrics
    .image_last_monitor_age_minutes
    .buckets;
    assert_eq!(buckets.bounds(), [2.0, 4.0]);
}

#[test]
fn values_arrive_as_written() {
    let config = config(
        "skipLabels: ['app in (a,b),!c']\nrouting:\n  activeCheck: {timeout: 0, resolveDigest: true}\n  pullSecrets: {copy: false}\nregistries:\n  default: {requestsPerSecond: 2.5, tokenHosts: [auth.example.com]}\n  'reg.example.com:5000': {plainHttp: true, burst: 1, tokenHosts: []}\nmirroring:\n  platforms: [{architecture: arm64, variant: v8}, {os: linux, architecture: amd64}]\nwarm: {maxPulls: 40, namespace: warm}\nheal: {namespaces: [b, a]}\nharbor: {url: 'https://harbor.example.com/', retainOnDelete: true}\nnodes: {migrateICSP: ImageDigestMirrorSet, blockedRegistries: ['*.example.com', quay.io/team]}\naccount: {pinning: off}\n",
    );
    assert_eq!(config.skip_labels.iter().map(ToString::to_string).collect::<Vec<_>>(), ["app in (a,b),!c"]);
    assert_eq!(config.routing.active_check.timeout, None);
    assert!(config.routing.active_check.resolve_digest);
    assert!(!config.routing.pull_secrets.copy);
    assert_eq!(
        config.registries.for_host("REG.example.com:5000"),
        config.registries.for_host("reg.example.com:5000"),
        "in every spelling"
    );
    let registry = config.registries.for_host("reg.example.com:5000");
    assert!(registry.plain_http && registry.trust_node_credentials);
    assert_eq!((registry.requests_per_second, registry.burst, registry.max_connections), (2.5, 1, 16));
    assert!(registry.token_hosts.is_empty(), "an empty list replaces the default's");
    assert_eq!(config.registries.for_host("quay.io").token_hosts, ["auth.example.com"]);
    let platforms = config.mirroring.platforms.unwrap();
    assert_eq!(
        platforms.first(),
        Some(&PlatformFilter {
            os: String::new(),
            architecture: "arm64".to_owned(),
            variant: "v8".to_owned()
        })
    );
    assert_eq!((config.warm.max_pulls, config.warm.namespace.as_deref()), (Some(40), Some("warm")));
    assert_eq!(config.heal.namespaces.iter().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(config.nodes.migrate_icsp, MigrateIcsp::ToImageDigestMirrorSet);
    assert_eq!(config.account.pinning, Pinning::Off);
}

#[test]
fn a_bare_integer_is_nanoseconds() {
    assert_eq!(config("routing: {probe: {refresh: 5000000000}}").routing.probe.refresh, seconds(5));
}

#[test]
fn anchors_aliases_and_merge_keys_work() {
    let config = config(
        "monitoring:\n  registries:\n    items:\n      quay.io: &slow {interval: 6h, maxPerInterval: 3}\n      ghcr.io: *slow\n      gcr.io:\n        <<: *slow\n        maxPerInterval: 4\n",
    );
    assert_eq!(config.monitoring.for_registry("ghcr.io").max_per_interval, 3);
    let gcr = config.monitoring.for_registry("gcr.io");
    assert_eq!((gcr.interval, gcr.max_per_interval), (seconds(6 * 3600), 4));
}

#[test]
fn what_is_commented_out_may_be_long() {
    let comment = "  # example.com: {plainHttp: true}\n".repeat(200);
    let read = config(&format!("registries:\n{comment}  default: {{burst: 7}}\n"));
    assert_eq!(read, config("registries: {default: {burst: 7}}"));
}

#[test]
fn what_has_no_effect_is_said() {
    let loaded = Config::parse(
        "metrics: {imageLastMonitorAgeMinutes: {bucketFactor: 1.2, maxBucketNumber: 30}}\nregistries: {quay.io: {plainHttp: true, insecureSkipVerify: true}}\n",
    )
    .unwrap();
    let text = loaded.warnings.join("\n");
    assert_eq!(loaded.warnings.len(), 4, "{text}");
    assert!(
        text.contains("bucketFactor has no effect") && text.contains("maxBucketNumber has no effect"),
        "{text}"
    );
    assert!(Config::parse("heal: {enabled: true}").unwrap().warnings.is_empty());
}

#[test]
fn classic_buckets() {
    let buckets = |text: &str| {
        let text = format!("metrics: {{imageLastMonitorAgeMinutes: {{legacy: {{{text}}}}}}}");
        config(&text).metrics.image_last_monitor_age_minutes.buckets
    };
    assert_eq!(buckets("start: 1, factor: 2, count: 4").bounds(), [1.0, 2.0, 4.0, 8.0]);
    let range = buckets("bucketType: exponentialRange, min: 1, max: 1000, count: 4").bounds();
    for (bound, expected) in range.iter().zip([1.0, 10.0, 100.0, 1000.0]) {
        assert!((bound - expected).abs() < 1e-6, "{range:?}");
    }
    assert_eq!(buckets("bucketType: exponentialRange, count: 1").bounds(), [1.0]);
    assert!(buckets("bucketType: disabled").bounds().is_empty());
    assert_eq!(buckets("bucketType: ''").kind, BucketKind::Exponential);
    assert_eq!(
        buckets("bucketType: custom, custom: [3], factor: 0").bounds(),
        [3.0],
        "what is not used is not checked"
    );
}

fn load(path: Option<&Path>, variables: &[(&str, &str)]) -> Result<Loaded, ConfigErrors> {
    let variables: BTreeMap<_, _> = variables.iter().copied().collect();
    Config::load(path, |name| variables.get(name).map(|value| (*value).to_owned()))
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

#[test]
fn the_environment_wins_over_the_file() {
    let file = file(
        "heal: {namespaces: [a]}\nharbor: {url: 'https://file', adminSecret: s, adminSecretKey: k, retainOnDelete: true}\n",
    );
    let plain = load(Some(file.path()), &[("WATCH_NAMESPACE", " "), ("HARBOR_URL", "")]).unwrap().config;
    assert_eq!(plain.heal.namespaces.iter().collect::<Vec<_>>(), ["a"], "blank says nothing");
    assert_eq!(plain.harbor.url.as_deref(), Some("https://file"));

    let loaded = load(
        Some(file.path()),
        &[
            ("WATCH_NAMESPACE", " b, ,c "),
            ("HARBOR_URL", "http://env:8080"),
            ("HARBOR_ADMIN_SECRET", "es"),
            ("HARBOR_ADMIN_SECRET_KEY", "ek"),
            ("HARBOR_RETAIN_ON_DELETE", "yes"),
            ("LEASE_DURATION", "30s"),
        ],
    )
    .unwrap();
    let config = loaded.config;
    assert_eq!(config.heal.namespaces.iter().collect::<Vec<_>>(), ["b", "c"]);
    assert_eq!(config.harbor.url.as_deref(), Some("http://env:8080"));
    assert_eq!((config.harbor.admin_secret.as_str(), config.harbor.admin_secret_key.as_str()), ("es", "ek"));
    assert!(!config.harbor.retain_on_delete, "only `true` is true");
    assert!(
        load(Some(file.path()), &[("HARBOR_RETAIN_ON_DELETE", " TRUE ")])
            .unwrap()
            .config
            .harbor
            .retain_on_delete
    );
    assert_eq!(loaded.warnings.len(), 1, "{:?}", loaded.warnings);
    assert!(loaded.warnings.iter().all(|warning| warning.contains("LEASE_DURATION has no effect")));
    assert_eq!(
        load(Some(file.path()), &[("WATCH_NAMESPACE", " , ")]).unwrap().config.heal.namespaces.len(),
        0
    );
}

/// A Deployment written for harbor-reef-operator goes on healing, and admission goes on in any case.
#[test]
fn a_wrong_variable_is_reported_and_stops_nothing() {
    let file = file("harbor: {url: 'https://file'}\n");
    let loaded =
        load(Some(file.path()), &[("WATCH_NAMESPACE", "Bad!, team"), ("HARBOR_URL", "harbor")]).unwrap();
    let Loaded { config, warnings } = loaded;
    assert_eq!(config.heal.namespaces.iter().collect::<Vec<_>>(), ["Bad!", "team"], "it heals nowhere else");
    assert_eq!(config.harbor.url, None, "the ProxyCache controller is off, whatever the file says");
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0].contains("WATCH_NAMESPACE: `Bad!`"), "{warnings:?}");
    assert!(warnings[1].contains("HARBOR_URL is `harbor`, but must be a URL"), "{warnings:?}");
    let loaded = load(Some(file.path()), &[("HARBOR_URL", "https://u:secret@harbor")]).unwrap();
    assert!(!loaded.warnings[0].contains("secret@"), "{:?}", loaded.warnings);
}

#[test]
fn a_file_that_was_asked_for_must_exist() {
    let directory = tempfile::tempdir().unwrap();
    let errors = load(Some(&directory.path().join("none.yaml")), &[]).unwrap_err();
    assert!(errors.to_string().contains("cannot read the file"), "{errors}");
    assert!(load(Some(directory.path()), &[]).is_err(), "a directory is no file");
    let long = file(&"#".repeat(1024 * 1024 + 1));
    assert!(load(Some(long.path()), &[]).unwrap_err().to_string().contains("longer than"));
    let binary = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(binary.path(), [0xff, 0xfe, 0x00]).unwrap();
    assert!(load(Some(binary.path()), &[]).is_err());
}

#[test]
fn the_reference_lists_every_key_once() {
    let table = reference();
    let keys: Vec<_> = table.lines().skip(2).map(|line| line.split('`').nth(1).unwrap()).collect();
    let mut unique = keys.clone();
    unique.sort_unstable();
    unique.dedup();
    assert_eq!(keys.len(), unique.len());
    for key in [
        "mirroring.platforms[].architecture",
        "registries.<host>.burst",
        "monitoring.registries.items.<host>.timeout",
    ] {
        assert!(keys.contains(&key), "{table}");
    }
    assert!(table.contains("| `routing.activeCheck.timeout` | duration | 1s |"), "{table}");
}

mod properties {
    use proptest::prelude::*;

    use super::Config;

    proptest! {
        /// Whatever the text, there is an answer, never a panic.
        #[test]
        fn any_text_is_answered(text in "(?s).{0,400}") {
            let _ = Config::parse(&text);
        }

        #[test]
        fn any_yaml_like_text_is_answered(lines in proptest::collection::vec("( {0,6})(- )?(routing|heal|enabled|registries|items|quay.io|mirroring|platforms|<<|&a|\\*a)?(: )?(\\{|\\[|1s|yes|~|&x|\\*x|'|\")?", 0..14)) {
            let _ = Config::parse(&lines.join("\n"));
        }
    }
}
