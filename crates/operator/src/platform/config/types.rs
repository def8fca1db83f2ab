//! The configuration as the program uses it: every value parsed, every default filled in.

use std::collections::BTreeSet;

use fairlead_domain::duration::Duration;
use fairlead_domain::platform::PlatformFilter;
use fairlead_domain::reference::HostPattern;
use fairlead_domain::selector::Selector;
use fairlead_plan::exclusions::Exclusions;
use fairlead_plan::owners::ApiGroup;
use fairlead_plan::pinning::Mode;
use fairlead_plan::routing::Rules;
use jiff::SignedDuration;

use super::monitoring::Monitoring;
use super::registries::Registries;
use super::values::choice;

/// The whole configuration. `Default` is what an empty file means.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Config {
    /// Pods that match one of these are left alone by admission and by every controller.
    pub skip_labels: Vec<Selector>,
    pub skip_annotations: Vec<Selector>,
    pub routing: Routing,
    pub registries: Registries,
    pub mirroring: Mirroring,
    pub monitoring: Monitoring,
    pub warm: Warm,
    pub heal: Heal,
    pub harbor: Harbor,
    pub nodes: Nodes,
    pub account: Account,
    pub metrics: Metrics,
}

impl Config {
    /// Which Pods are left alone.
    pub fn exclusions(&self) -> Exclusions {
        Exclusions { labels: self.skip_labels.clone(), annotations: self.skip_annotations.clone() }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Routing {
    pub active_check: ActiveCheck,
    pub probe: Probe,
    pub pull_secrets: PullSecrets,
    /// How long a namespace counts as having access to an image after it has proven it.
    pub access_proof: Duration,
    /// The registries that namespaced policies may name.
    pub namespaced_registries: Vec<HostPattern>,
    pub rewrite_on_never_image_pull_policy: bool,
    pub honor_priorities_on_always_image_pull_policy: bool,
    /// API groups of controllers whose Pods are not rewritten.
    pub skip_owners: Vec<ApiGroup>,
}

impl Default for Routing {
    fn default() -> Self {
        Self {
            active_check: ActiveCheck::default(),
            probe: Probe::default(),
            pull_secrets: PullSecrets::default(),
            access_proof: std::time::Duration::from_hours(720).into(),
            namespaced_registries: vec![HostPattern::everything()],
            rewrite_on_never_image_pull_policy: false,
            honor_priorities_on_always_image_pull_policy: false,
            skip_owners: ApiGroup::known(),
        }
    }
}

impl Routing {
    /// How pull policies count.
    pub fn rules(&self) -> Rules {
        Rules {
            rewrite_on_never: self.rewrite_on_never_image_pull_policy,
            honor_priorities_on_always: self.honor_priorities_on_always_image_pull_policy,
        }
    }

    /// How long proof of access counts.
    pub fn proof_lifetime(&self) -> SignedDuration {
        SignedDuration::try_from(self.access_proof.as_std()).unwrap_or(SignedDuration::MAX)
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct ActiveCheck {
    /// None: only the deadline of the whole request counts.
    pub timeout: Option<Duration>,
    pub resolve_digest: bool,
    pub stale_mirror_cleanup: StaleMirrorCleanup,
}

#[derive(Debug, Clone, PartialEq)]
pub struct StaleMirrorCleanup {
    /// 0 turns it off.
    pub max_concurrent: u32,
    pub timeout: Duration,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Probe {
    pub refresh: Duration,
}

#[derive(Debug, Clone, PartialEq)]
pub struct PullSecrets {
    pub copy: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Mirroring {
    /// None: images are copied as they are, all platforms, same digest.
    pub platforms: Option<Vec<PlatformFilter>>,
    pub workers: u32,
    pub per_registry: u32,
    pub referrers: bool,
    pub cleanup: MirrorCleanup,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct MirrorCleanup {
    /// None: the usage list of a silent cluster counts for ever.
    pub foreign_list_max_age: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Warm {
    /// None: the operator's own.
    pub namespace: Option<String>,
    pub method: WarmMethod,
    pub max_pulls_per_node: u32,
    /// None: no bound.
    pub max_pulls: Option<u32>,
    pub pull_deadline: Duration,
    pub gate_deadline: Duration,
    /// Image of the containers that mount images as volumes. None: images are run.
    pub runner: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WarmMethod {
    /// A Pod on the node runs `true` from the image.
    Run,
    /// The same with one Pod for all images that a node needs and that agree in what concerns the Pod.
    Batch,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Heal {
    pub enabled: bool,
    /// Empty: all.
    pub namespaces: BTreeSet<String>,
    pub evict_unpatchable: bool,
    /// Also those of Jobs.
    pub evict_jobs: bool,
    pub patches_per_second: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Harbor {
    /// None: the `ProxyCache` controller is off.
    pub url: Option<String>,
    /// None: the host of `url`.
    pub pull_host: Option<String>,
    pub admin_secret: String,
    pub admin_secret_key: String,
    pub retain_on_delete: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nodes {
    pub insecure_registries: Vec<String>,
    pub blocked_registries: Vec<String>,
    pub router: bool,
    pub migrate_icsp: MigrateIcsp,
    pub delete_migrated_icsp: bool,
}

/// What happens to `ImageContentSourcePolicy` objects besides being obeyed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MigrateIcsp {
    Off,
    ToImageSourceDigestPolicy,
    ToImageDigestMirrorSet,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    pub pinning: Pinning,
    pub metrics: AccountMetrics,
    pub annotate: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pinning {
    Off,
    OptIn,
    All,
}

impl From<Pinning> for Mode {
    fn from(pinning: Pinning) -> Self {
        match pinning {
            Pinning::Off => Self::Off,
            Pinning::OptIn => Self::OptIn,
            Pinning::All => Self::All,
        }
    }
}

/// The finest thing that has metrics of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccountMetrics {
    Off,
    Namespace,
    Workload,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Metrics {
    pub image_last_monitor_age_minutes: AgeHistogram,
}

/// The histogram of how long ago images were last looked at upstream.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AgeHistogram {
    pub buckets: ClassicBuckets,
}

#[derive(Debug, Clone, PartialEq)]
pub struct ClassicBuckets {
    pub kind: BucketKind,
    pub start: f64,
    pub factor: f64,
    pub count: u32,
    pub min: f64,
    pub max: f64,
    pub custom: Vec<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BucketKind {
    Exponential,
    ExponentialRange,
    Custom,
    Disabled,
}

impl ClassicBuckets {
    /// Upper bounds of the buckets, ascending; empty when they are turned off.
    pub fn bounds(&self) -> Vec<f64> {
        match self.kind {
            BucketKind::Exponential => self.series(self.start, self.factor),
            BucketKind::ExponentialRange => {
                let steps = f64::from(self.count.saturating_sub(1).max(1));
                self.series(self.min, (self.max / self.min).powf(1.0 / steps))
            }
            BucketKind::Custom => self.custom.clone(),
            BucketKind::Disabled => Vec::new(),
        }
    }

    fn series(&self, start: f64, factor: f64) -> Vec<f64> {
        (0..self.count).map(|power| start * factor.powf(f64::from(power))).collect()
    }
}

impl Default for ActiveCheck {
    fn default() -> Self {
        Self {
            timeout: Some(seconds(1)),
            resolve_digest: false,
            stale_mirror_cleanup: StaleMirrorCleanup::default(),
        }
    }
}

impl Default for StaleMirrorCleanup {
    fn default() -> Self {
        Self { max_concurrent: 10, timeout: seconds(5) }
    }
}

impl Default for Probe {
    fn default() -> Self {
        Self { refresh: seconds(30) }
    }
}

impl Default for PullSecrets {
    fn default() -> Self {
        Self { copy: true }
    }
}

impl Default for Mirroring {
    fn default() -> Self {
        Self {
            platforms: None,
            workers: 8,
            per_registry: 4,
            referrers: false,
            cleanup: MirrorCleanup::default(),
        }
    }
}

impl Default for Warm {
    fn default() -> Self {
        Self {
            namespace: None,
            method: WarmMethod::Run,
            max_pulls_per_node: 2,
            max_pulls: None,
            pull_deadline: seconds(30 * 60),
            gate_deadline: seconds(10 * 60),
            runner: None,
        }
    }
}

impl Default for Heal {
    fn default() -> Self {
        Self {
            enabled: true,
            namespaces: BTreeSet::new(),
            evict_unpatchable: false,
            evict_jobs: false,
            patches_per_second: 20,
        }
    }
}

impl Harbor {
    /// Host, and port if it has one, that Pods pull from Harbor by.
    pub fn pull_host(&self) -> Option<&str> {
        let of_url = || {
            let (_, rest) = self.url.as_deref()?.split_once("://")?;
            rest.split(['/', '?', '#']).next().filter(|host| !host.is_empty())
        };
        self.pull_host.as_deref().or_else(of_url)
    }
}

impl Default for Harbor {
    fn default() -> Self {
        Self {
            url: None,
            pull_host: None,
            admin_secret: "harbor-admin-password".to_owned(),
            admin_secret_key: "HARBOR_ADMIN_PASSWORD".to_owned(),
            retain_on_delete: false,
        }
    }
}

impl Default for Nodes {
    fn default() -> Self {
        Self {
            insecure_registries: Vec::new(),
            blocked_registries: Vec::new(),
            router: true,
            migrate_icsp: MigrateIcsp::Off,
            delete_migrated_icsp: false,
        }
    }
}

impl Default for Account {
    fn default() -> Self {
        Self { pinning: Pinning::OptIn, metrics: AccountMetrics::Workload, annotate: true }
    }
}

impl Default for ClassicBuckets {
    fn default() -> Self {
        Self {
            kind: BucketKind::Exponential,
            start: 1.0,
            factor: 1.94,
            count: 12,
            min: 1.0,
            max: 1440.0,
            custom: vec![1.0, 5.0, 10.0, 30.0, 60.0, 120.0, 180.0, 360.0, 720.0, 1440.0],
        }
    }
}

choice!(WarmMethod: "run" is Run, "batch" is Batch);
choice!(MigrateIcsp: "off" is Off, "ImageSourceDigestPolicy" is ToImageSourceDigestPolicy,
    "ImageDigestMirrorSet" is ToImageDigestMirrorSet);
choice!(Pinning: "off" is Off, "opt-in" is OptIn, "all" is All);
choice!(AccountMetrics: "off" is Off, "namespace" is Namespace, "workload" is Workload);
choice!(BucketKind: "exponential" is Exponential, "exponentialRange" is ExponentialRange, "custom" is Custom,
    "disabled" is Disabled);

pub(super) fn seconds(count: u64) -> Duration {
    std::time::Duration::from_secs(count).into()
}
