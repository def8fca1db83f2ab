//! Everything that is watched: Pods, `ServiceAccount`s, `Namespace`s, the webhook configuration, the operator's own
//! Secrets, and every custom kind that Fairlead speaks.

use std::borrow::Cow;
use std::fmt::{self, Debug, Formatter};
use std::marker::PhantomData;
use std::sync::Arc;

use fairlead_api::drop::{CachedImage, CachedImageSet, DiscoveryPolicy, PullPolicy};
use fairlead_api::fairlead::{ImagePin, NodeMirrorReport};
use fairlead_api::kuik::{
    ClusterImageSetAvailability, ClusterImageSetMirror, ClusterReplicatedImageSet, ImageSetMirror,
    ReplicatedImageSet,
};
use fairlead_api::openshift::{
    ImageContentSourcePolicy, ImageDigestMirrorSet, ImageSourceDigestPolicy, ImageSourceTagPolicy,
    ImageTagMirrorSet,
};
use fairlead_api::reef::ProxyCache;
use futures::FutureExt;
use futures::future::BoxFuture;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use tokio::sync::watch;

use super::discovery::{Discovery, KindNames};
use super::follow::{Followed, Follower};
use super::pod::LeanPod;
use super::sink::{ObjectSink, PodSink, Sink};
use super::{Board, Metrics, Tolerant};
use crate::cluster::agents::LeanDaemonSet;
use crate::cluster::ledgers::{Claims, LeanLedger, LeanWarmLedger, LedgerSink};
use crate::cluster::namespaces::{LeanNamespace, LeanWebhooks, NamespaceSink, Namespaces, WebhookSink};
use crate::cluster::nodes::{LeanNode, NodeSink, Nodes};
use crate::cluster::own_secrets::{LeanSecret, OwnSecrets};
use crate::cluster::service_accounts::{AccountSink, Accounts, LeanAccount};
use crate::cluster::state::{Pods, Store};
use crate::platform::install::AGENT;

/// Objects per request where lists come in pages. A page is held in memory several times while it is read.
const PAGE: u32 = 100;
/// A ledger may have half a megabyte.
const PAGE_OF_LEDGERS: u32 = 8;

macro_rules! resources {
    ($($field:ident: $kind:ty,)+) => {
        /// What the cluster holds of every kind that is watched.
        #[derive(Debug, Clone, Default)]
        pub struct Resources {
            pub pods: Pods,
            pub accounts: Accounts,
            pub claims: Claims,
            pub namespaces: Namespaces,
            pub nodes: Nodes,
            pub own_secrets: OwnSecrets,
            pub warm_ledgers: Store<LeanWarmLedger>,
            /// The `DaemonSet` of agents, if there is one.
            pub agents: Store<LeanDaemonSet>,
            $(pub $field: Store<$kind>,)+
        }

        impl Resources {
            fn custom_kinds() -> Vec<KindNames> {
                vec![kind_of::<LeanLedger>(), kind_of::<LeanWarmLedger>(), $(kind_of::<$kind>(),)+]
            }

            fn follow_custom(&self, starter: &Starter) -> Vec<Watch> {
                vec![$(starter.custom(ObjectSink::new(kind_of::<$kind>().name, self.$field.clone()), PAGE),)+]
            }
        }
    };
}

resources! {
    cluster_image_set_mirrors: ClusterImageSetMirror,
    image_set_mirrors: ImageSetMirror,
    cluster_replicated_image_sets: ClusterReplicatedImageSet,
    replicated_image_sets: ReplicatedImageSet,
    cluster_image_set_availabilities: ClusterImageSetAvailability,
    cached_images: CachedImage,
    cached_image_sets: CachedImageSet,
    discovery_policies: DiscoveryPolicy,
    pull_policies: PullPolicy,
    proxy_caches: ProxyCache,
    image_source_digest_policies: ImageSourceDigestPolicy,
    image_source_tag_policies: ImageSourceTagPolicy,
    image_digest_mirror_sets: ImageDigestMirrorSet,
    image_tag_mirror_sets: ImageTagMirrorSet,
    image_content_source_policies: ImageContentSourcePolicy,
    image_pins: ImagePin,
    node_mirror_reports: NodeMirrorReport,
}

/// A watch that runs until it is dropped, with the name of its kind.
pub(super) type Watch = (&'static str, BoxFuture<'static, ()>);

/// All watches, ready to be spawned.
pub struct Watches {
    pub board: Arc<Board>,
    pub all: Vec<(&'static str, BoxFuture<'static, ()>)>,
}

impl Debug for Watches {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watches").field("board", &self.board).finish_non_exhaustive()
    }
}

impl Watches {
    /// Ledgers of cluster-scoped objects are in the operator's namespace. `webhook` is the webhook configuration that
    /// says to which namespaces pull secrets may be copied; without it none are.
    pub fn new(
        client: Client,
        operator_namespace: &str,
        resources: &Resources,
        webhook: Option<&str>,
        metrics: Metrics,
    ) -> Self {
        let (pod, account, node) = (kind_of::<LeanPod>(), kind_of::<LeanAccount>(), kind_of::<LeanNode>());
        let (namespace, webhooks) = (kind_of::<LeanNamespace>(), kind_of::<LeanWebhooks>());
        let kinds = Resources::custom_kinds();
        let secret = kind_of::<LeanSecret>();
        let agents = kind_of::<LeanDaemonSet>();
        let core = [pod.name, account.name, node.name, secret.name, namespace.name, agents.name];
        let names = kinds.iter().map(|kind| kind.name).chain(core);
        let names = names.chain(webhook.map(|_| webhooks.name));
        let board = Arc::new(Board::new(names, metrics));
        let discovery = Arc::new(Discovery::new(client.clone(), kinds));
        let starter = Starter { client, board: board.clone(), discovery };
        let ledgers = LedgerSink::new(operator_namespace, resources.claims.clone());
        let mut all = resources.follow_custom(&starter);
        all.push(starter.custom(ledgers, PAGE_OF_LEDGERS));
        let ledgers = ObjectSink::new(kind_of::<LeanWarmLedger>().name, resources.warm_ledgers.clone());
        all.push(starter.custom(ledgers, PAGE_OF_LEDGERS));
        all.push(starter.core(PodSink::new(pod.name, resources.pods.clone())));
        all.push(starter.core(AccountSink::new(resources.accounts.clone())));
        all.push(starter.needed(NodeSink::new(node.name, resources.nodes.clone()), resources.nodes.needed()));
        let secrets = ObjectSink::new(secret.name, resources.own_secrets.store().clone());
        all.push(starter.needed_within(operator_namespace, secrets, resources.own_secrets.needed()));
        all.push(starter.core(NamespaceSink::new(resources.namespaces.clone())));
        all.push(starter.one(ObjectSink::new(agents.name, resources.agents.clone()), AGENT));
        if let Some(webhook) = webhook {
            all.push(starter.one(WebhookSink::new(resources.namespaces.clone()), webhook));
        }
        Self { board, all }
    }
}

struct Starter {
    client: Client,
    board: Arc<Board>,
    discovery: Arc<Discovery>,
}

impl Starter {
    fn custom<K: Followed>(&self, sink: impl Sink<K>, page: u32) -> Watch {
        self.follow(self.all(), sink, Some(self.discovery.clone()), page, None, None)
    }

    /// Of a kind that every API server serves.
    fn core<K: Followed>(&self, sink: impl Sink<K>) -> Watch {
        self.follow(self.all(), sink, None, PAGE, None, None)
    }

    /// The one object of a kind that every API server serves.
    fn one<K: Followed>(&self, sink: impl Sink<K>, name: &str) -> Watch {
        self.follow(self.all(), sink, None, PAGE, Some(name.to_owned()), None)
    }

    /// Of a kind that every API server serves, while it is needed.
    fn needed<K: Followed>(&self, sink: impl Sink<K>, needed: watch::Receiver<usize>) -> Watch {
        self.follow(self.all(), sink, None, PAGE, None, Some(needed))
    }

    /// Of one namespace and of a kind that every API server serves, while it is needed.
    fn needed_within<K: Followed + Resource<Scope = NamespaceResourceScope>>(
        &self,
        namespace: &str,
        sink: impl Sink<K>,
        needed: watch::Receiver<usize>,
    ) -> Watch {
        let api = Api::namespaced(self.client.clone(), namespace);
        self.follow(api, sink, None, PAGE, None, Some(needed))
    }

    fn all<K: Followed>(&self) -> Api<Tolerant<K>> {
        Api::all(self.client.clone())
    }

    fn follow<K: Followed>(
        &self,
        api: Api<Tolerant<K>>,
        sink: impl Sink<K>,
        discovery: Option<Arc<Discovery>>,
        page: u32,
        only: Option<String>,
        needed: Option<watch::Receiver<usize>>,
    ) -> Watch {
        let kind = kind_of::<K>();
        let follower = Follower {
            api,
            kind,
            sink,
            board: self.board.clone(),
            discovery,
            page,
            only,
            needed,
            object: PhantomData,
        };
        (kind.name, follower.run().boxed())
    }
}

fn kind_of<K: Resource<DynamicType = ()>>() -> KindNames {
    KindNames {
        name: lasting(K::kind(&())),
        plural: lasting(K::plural(&())),
        group: lasting(K::group(&())),
        version: lasting(K::version(&())),
    }
}

/// Names are constants in all kinds; the other case would be a few bytes once per process.
fn lasting(name: Cow<'static, str>) -> &'static str {
    match name {
        Cow::Borrowed(name) => name,
        Cow::Owned(name) => name.leak(),
    }
}

#[cfg(test)]
mod tests {
    use fairlead_plan::capability::Capability;

    use super::*;

    #[test]
    fn every_kind_that_is_installed_is_watched() {
        let mut installed: Vec<_> =
            fairlead_api::crds::all().into_iter().map(|crd| (crd.spec.group, crd.spec.names.kind)).collect();
        let mut watched: Vec<_> = Resources::custom_kinds()
            .into_iter()
            .map(|kind| (kind.group.to_owned(), kind.name.to_owned()))
            .collect();
        installed.sort();
        watched.sort();
        assert_eq!(installed, watched);
    }

    #[test]
    fn capabilities_look_for_kinds_that_exist() {
        let kinds = Resources::custom_kinds();
        for wanted in Capability::ALL.into_iter().flat_map(Capability::kinds) {
            assert!(kinds.iter().any(|kind| kind.name == wanted), "{wanted} is no kind of ours");
        }
    }
}
