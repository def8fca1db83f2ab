//! From custom resources to policies.
//!
//! A filter that does not compile disables its whole object, because what it was meant to leave out is unknown. A
//! mirror or upstream that does not work is left out alone, and reported.

use std::sync::Arc;

use fairlead_api::kuik::{
    self, Cleanup, ClusterImageSetMirror, ClusterReplicatedImageSet, CredentialSecret, ImageSetMirror,
    MirrorAccess, ReplicatedImageSet,
};
use fairlead_api::reef::{ProxyCache, ProxyCacheHealth, ProxyCachePhase, ProxyCacheStatus};
use fairlead_domain::{
    duration::Duration,
    reference::Location,
    selector::{FilterError, FilterItem, ImageFilter, PodMatcher, Rules, Scope},
};

use super::{
    identity::{PolicyId, PolicyKind, SecretName},
    policy::{Mirror, Offer, Policy, PolicyError, PolicyProblem, Upstream},
};
use crate::cache::Desired;

/// Name, namespace and UID of an object, without naming the type that holds them.
macro_rules! identity {
    ($kind:ident, $object:expr) => {
        identity(
            PolicyKind::$kind,
            $object.metadata.namespace.as_deref(),
            $object.metadata.name.as_deref(),
            $object.metadata.uid.as_deref(),
        )
    };
}

impl Policy {
    pub fn cluster_mirror(object: &ClusterImageSetMirror) -> Result<Self, PolicyError> {
        let (id, spec) = (identity!(ClusterImageSetMirror, object)?, &object.spec);
        mirrors(
            id,
            spec.priority,
            (&spec.filter, &spec.image_filter),
            &spec.cleanup,
            spec.access,
            &spec.mirrors,
        )
    }

    pub fn mirror(object: &ImageSetMirror) -> Result<Self, PolicyError> {
        let (id, spec) = (identity!(ImageSetMirror, object)?, &object.spec);
        mirrors(
            id,
            spec.priority,
            (&spec.filter, &spec.image_filter),
            &spec.cleanup,
            spec.access,
            &spec.mirrors,
        )
    }

    pub fn cluster_replicated(object: &ClusterReplicatedImageSet) -> Result<Self, PolicyError> {
        let (id, spec) = (identity!(ClusterReplicatedImageSet, object)?, &object.spec);
        upstreams(id, spec.priority, &spec.filter, &spec.upstreams)
    }

    pub fn replicated(object: &ReplicatedImageSet) -> Result<Self, PolicyError> {
        let (id, spec) = (identity!(ReplicatedImageSet, object)?, &object.spec);
        upstreams(id, spec.priority, &spec.filter, &spec.upstreams)
    }

    /// A cache that serves images of its upstream, while it is healthy. `pull_host` is what Pods know Harbor by.
    pub fn proxy_cache(object: &ProxyCache, pull_host: Option<&str>) -> Result<Self, PolicyError> {
        let id = identity!(ProxyCache, object)?;
        let refuse =
            |field: &str, message: String| PolicyError { field: field.to_owned(), message, filter: false };
        let routing = object.spec.routing.as_ref();
        let routing = routing.ok_or_else(|| refuse("spec.routing", "is missing".to_owned()))?;
        let desired = Desired::compile(&object.spec).map_err(|error| refuse("spec", error.to_string()))?;
        if !desired.public && routing.credential_secret.is_none() {
            let message = "is missing: the project is private, so Pods need a Secret to pull from it";
            return Err(refuse("spec.routing.credentialSecret", message.to_owned()));
        }
        let host = pull_host.ok_or_else(|| {
            refuse("spec.routing", "no Harbor is configured: set harbor.url, or harbor.pullHost".to_owned())
        })?;
        let place = |field: &str, registry: &str, path: &str| {
            location("spec", registry, path).map_err(|problem| refuse(field, problem.message))
        };
        let upstream = desired.upstream().unwrap_or_default();
        if upstream.contains('/') {
            let message = "has a path: Harbor looks for the registry below it, so what the cache serves is not what \
                           Pods name by that host; take the path away, or spec.routing";
            return Err(refuse("spec.url", message.to_owned()));
        }
        let (registry, source) = place("spec.url", &upstream, "")?;
        let (harbor, cache) = place("harbor.pullHost", host, &desired.name)?;
        let everything = ImageFilter::legacy(&[".*"], &[""; 0]).map_err(|error| broken_filter(&error))?;
        let secret = secret("spec.routing", "credentialSecret", &id, routing.credential_secret.as_ref());
        let secret = secret.map_err(|problem| refuse(&problem.field, problem.message))?;
        let entry = |entry, registry, place, images, secret| Upstream {
            entry,
            registry,
            place,
            images,
            priority: 0,
            discarded: false,
            secret,
        };
        let upstreams = vec![
            entry(0, registry, source, everything, None),
            // Pods that name the cache itself get no other place from it.
            entry(1, harbor, cache, ImageFilter::nothing(), secret),
        ];
        // The upstream is what Pods ask for: it keeps its own place in the list, and only the cache is added.
        let (mut order, mut problems) = (vec![1], Vec::new());
        if !serves(object) {
            order.clear();
            let message = "Harbor does not say that the upstream is healthy, so the cache is not offered";
            problems.push(PolicyProblem { field: "spec.routing".to_owned(), message: message.to_owned() });
        }
        let pods = PodMatcher::compile(Rules { include: &[], exclude: &[] })
            .map_err(|error| broken_filter(&error))?;
        let (offer, access) = (Offer::Upstreams(upstreams), MirrorAccess::Shared);
        Ok(Self { id, priority: routing.priority, pods, offer, order, access, problems })
    }
}

/// Whether Harbor, when it was last looked at, had everything as the object is now, and called the upstream healthy.
pub fn serves(object: &ProxyCache) -> bool {
    let is_current = |status: &&ProxyCacheStatus| status.observed_generation == object.metadata.generation;
    object.status.as_ref().filter(is_current).is_some_and(is_serving)
}

/// The same of a status that was found for the object as it is now.
pub(crate) fn is_serving(status: &ProxyCacheStatus) -> bool {
    status.phase == Some(ProxyCachePhase::Ready) && status.health == Some(ProxyCacheHealth::Healthy)
}

pub(crate) fn identity(
    kind: PolicyKind,
    namespace: Option<&str>,
    name: Option<&str>,
    uid: Option<&str>,
) -> Result<Arc<PolicyId>, PolicyError> {
    let missing = |field: &str, remedy: &str| PolicyError {
        field: format!("metadata.{field}"),
        message: format!("is missing: {remedy}"),
        filter: false,
    };
    let given = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(Arc::<str>::from);
    let name = given(name).ok_or_else(|| missing("name", "give the object a name"))?;
    let namespace = if kind.is_cluster_scoped() {
        None
    } else {
        Some(given(namespace).ok_or_else(|| {
            missing("namespace", &format!("every {kind} lives in the namespace whose Pods it serves"))
        })?)
    };
    Ok(Arc::new(PolicyId { kind, namespace, name, uid: uid.unwrap_or_default().into() }))
}

fn mirrors(
    id: Arc<PolicyId>,
    priority: i64,
    (filter, image_filter): (&kuik::Filter, &kuik::ImageFilter),
    cleanup: &Cleanup,
    access: MirrorAccess,
    entries: &[kuik::Mirror],
) -> Result<Policy, PolicyError> {
    let scope = scope(id.kind, filter, image_filter)?;
    let mut problems = Vec::new();
    let mut mirrors = Vec::with_capacity(entries.len());
    for (entry, written) in entries.iter().enumerate() {
        let at = format!("spec.mirrors[{entry}]");
        let compiled = location(&at, &written.registry, &written.path).and_then(|(_, place)| {
            let push_secret = secret(&at, "credentialSecret", &id, written.credential_secret.as_ref())?;
            let pull_secret = secret(&at, "pullSecret", &id, written.pull_secret.as_ref())?;
            let cleanup = retention(written.cleanup.as_ref().unwrap_or(cleanup));
            Ok(Mirror { entry, place, priority: written.priority, push_secret, pull_secret, cleanup })
        });
        keep(compiled, &mut mirrors, &mut problems);
    }
    let order = in_order(mirrors.iter().map(|mirror| mirror.priority));
    let offer = Offer::Mirrors { images: scope.images, mirrors, cleanup: retention(cleanup) };
    Ok(Policy { id, priority, pods: scope.pods, offer, order, access, problems })
}

/// Which images an object that selects images itself is about, and whose.
pub(crate) fn scope(
    kind: PolicyKind,
    filter: &kuik::Filter,
    image_filter: &kuik::ImageFilter,
) -> Result<Scope, PolicyError> {
    let items = Items::read(kind, filter)?;
    Scope::decide(items.rules(), &image_filter.include, &image_filter.exclude)
        .map_err(|error| broken_filter(&error))
}

fn retention(cleanup: &Cleanup) -> Option<Duration> {
    cleanup.enabled.then(|| cleanup.retention.clone())
}

fn upstreams(
    id: Arc<PolicyId>,
    priority: i64,
    filter: &kuik::Filter,
    entries: &[kuik::Upstream],
) -> Result<Policy, PolicyError> {
    let items = Items::read(id.kind, filter)?;
    let pods = PodMatcher::compile(items.rules()).map_err(|error| broken_filter(&error))?;
    let mut problems = Vec::new();
    let mut upstreams = Vec::with_capacity(entries.len());
    for (entry, written) in entries.iter().enumerate() {
        let at = format!("spec.upstreams[{entry}]");
        let compiled = location(&at, &written.registry, &written.path).and_then(|(registry, place)| {
            let images = ImageFilter::legacy(&written.image_filter.include, &written.image_filter.exclude)
                .map_err(|error| PolicyProblem {
                    field: format!("{at}.{}", error.field()),
                    message: error.problem().to_string(),
                })?;
            let secret = secret(&at, "credentialSecret", &id, written.credential_secret.as_ref())?;
            let (priority, discarded) = (written.priority, written.discard_alternative);
            Ok(Upstream { entry, registry, place, images, priority, discarded, secret })
        });
        keep(compiled, &mut upstreams, &mut problems);
    }
    let order = in_order(upstreams.iter().map(|upstream| upstream.priority));
    let (offer, access) = (Offer::Upstreams(upstreams), MirrorAccess::Shared);
    Ok(Policy { id, priority, pods, offer, order, access, problems })
}

/// Positions by priority, equal ones as declared.
fn in_order(priorities: impl Iterator<Item = u64>) -> Vec<usize> {
    let mut order: Vec<_> = priorities.zip(0..).collect();
    order.sort_unstable();
    order.into_iter().map(|(_, position)| position).collect()
}

fn keep<T>(compiled: Result<T, PolicyProblem>, entries: &mut Vec<T>, problems: &mut Vec<PolicyProblem>) {
    match compiled {
        Ok(entry) => entries.push(entry),
        Err(problem) => problems.push(problem),
    }
}

/// The registry alone, and the registry with the path.
fn location(at: &str, registry: &str, path: &str) -> Result<(Location, Location), PolicyProblem> {
    let alone = Location::new(registry, "")
        .map_err(|error| PolicyProblem { field: format!("{at}.registry"), message: error.to_string() })?;
    let place = Location::new(registry, path)
        .map_err(|error| PolicyProblem { field: format!("{at}.path"), message: error.to_string() })?;
    Ok((alone, place))
}

/// The Secret of an entry. A namespaced object can name Secrets of its own namespace only, whatever is written.
fn secret(
    at: &str,
    key: &str,
    id: &PolicyId,
    written: Option<&CredentialSecret>,
) -> Result<Option<SecretName>, PolicyProblem> {
    let Some(written) = written else {
        return Ok(None);
    };
    let missing = |field: &str, remedy: &str| PolicyProblem {
        field: format!("{at}.{key}.{field}"),
        message: format!("is missing: {remedy}"),
    };
    if written.name.is_empty() {
        return Err(missing("name", &format!("name the Secret, or take {key} out")));
    }
    let namespace = match &id.namespace {
        Some(own) => Arc::clone(own),
        None => match written.namespace.as_deref() {
            Some(namespace) if !namespace.is_empty() => namespace.into(),
            _ => {
                return Err(missing(
                    "namespace",
                    "name the namespace of the Secret, because a cluster-wide object has none of its own",
                ));
            }
        },
    };
    Ok(Some(SecretName { namespace, name: written.name.as_str().into() }))
}

fn broken_filter(error: &FilterError) -> PolicyError {
    PolicyError {
        field: format!("spec.{}", error.field()),
        message: error.problem().to_string(),
        filter: true,
    }
}

/// The items of a unified filter, each with its one key.
struct Items<'a> {
    include: Vec<FilterItem<'a>>,
    exclude: Vec<FilterItem<'a>>,
}

impl<'a> Items<'a> {
    fn read(kind: PolicyKind, filter: &'a kuik::Filter) -> Result<Self, PolicyError> {
        let list = |name: &str, items: &'a [kuik::FilterItem]| {
            let read = |(index, item)| single_key(kind, &format!("spec.filter.{name}[{index}]"), item);
            items.iter().enumerate().map(read).collect::<Result<Vec<_>, _>>()
        };
        Ok(Self { include: list("include", &filter.include)?, exclude: list("exclude", &filter.exclude)? })
    }

    fn rules(&self) -> Rules<'_> {
        Rules { include: &self.include, exclude: &self.exclude }
    }
}

/// The schema demands all of this too; manifests in files and objects from before the schema have not met it.
fn single_key<'a>(
    kind: PolicyKind,
    at: &str,
    item: &'a kuik::FilterItem,
) -> Result<FilterItem<'a>, PolicyError> {
    let refuse = |key: &str, message: &str| PolicyError {
        field: format!("{at}{key}"),
        message: message.to_owned(),
        filter: false,
    };
    let mut keys = [
        item.image.as_deref().map(FilterItem::Image),
        item.label.as_deref().map(FilterItem::Label),
        item.annotation.as_deref().map(FilterItem::Annotation),
        item.namespace.as_deref().map(FilterItem::Namespace),
    ]
    .into_iter()
    .flatten();
    let (Some(item), None) = (keys.next(), keys.next()) else {
        return Err(refuse(
            "",
            "an item sets exactly one of image, label, annotation and namespace: write one item for each",
        ));
    };
    match (item, kind) {
        (FilterItem::Image(_), PolicyKind::ClusterReplicatedImageSet | PolicyKind::ReplicatedImageSet) => {
            Err(refuse(
                ".image",
                "this kind chooses images by upstream: move the pattern to spec.upstreams[].imageFilter",
            ))
        }
        (FilterItem::Namespace(_), PolicyKind::ImageSetMirror | PolicyKind::ReplicatedImageSet) => {
            Err(refuse(
                ".namespace",
                "an object that lives in a namespace serves that namespace only: take the item out",
            ))
        }
        _ => Ok(item),
    }
}
