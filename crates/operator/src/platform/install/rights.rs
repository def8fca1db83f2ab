//! What the operator may do, and why: one table from which both roles, their explanations and the chart's copy are
//! made.
//!
//! A rule of a role has no room for a comment, so each role carries its reasons as an annotation that `kubectl
//! describe` shows. A test runs the operator under these rights and compares the table with the API server's audit log:
//! a right that is missing, and a right that is not used, both fail it.

use std::collections::BTreeMap;

use k8s_openapi::api::rbac::v1::PolicyRule;

use super::{AGENT, CERTIFICATE_SECRET, Certificates, LEASE, NAME, PATH_SECRET, PullSecrets};
use crate::controller::events::INTERNAL_ERRORS;

/// Annotation of a role: the reason of each rule, one line each.
const REASONS: &str = "fairlead.dev/reasons";
/// Annotation of a role: rights that a healthy installation may never come to use, and what they are for.
pub const RARELY_USED: &str = "fairlead.dev/rarely-used";

/// Kinds that say where images may come from.
const POLICIES: [&str; 4] =
    ["clusterimagesetmirrors", "imagesetmirrors", "clusterreplicatedimagesets", "replicatedimagesets"];

/// Kinds that say which mirrors nodes pull from, but for the oldest one.
const MIRROR_POLICIES: [&str; 4] =
    ["imagedigestmirrorsets", "imagesourcedigestpolicies", "imagesourcetagpolicies", "imagetagmirrorsets"];

const WEBHOOKS: (&str, &str) = ("admissionregistration.k8s.io", "mutatingwebhookconfigurations");

/// One rule of a role with its reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Right {
    pub group: String,
    pub resources: Vec<String>,
    /// Empty means every object of the resource.
    pub names: Vec<String>,
    pub verbs: Vec<&'static str>,
    pub reason: &'static str,
    /// Those of the verbs that serve recovery only, each with the case it is for.
    pub rarely: Vec<(&'static str, &'static str)>,
}

/// Rights on objects of the whole cluster.
pub fn cluster_rights(pull_secrets: PullSecrets) -> Vec<Right> {
    let mut rights = vec![Right::following(
        "",
        "pods",
        "which images are in use, and what was recorded at their admission",
    )];
    rights.push(
        Right::new(
            "",
            "pods",
            &["get", "patch"],
            "to give containers whose image cannot be pulled another one, to record what was decided about containers \
             that are added for debugging, and to note digests of image volumes, which admission could not write",
        )
        .rarely(&["get"], "no Pod is debugged with an ephemeral container")
        .rarely(
            &["patch"],
            "every image can be pulled, no Pod is debugged with an ephemeral container, and admission found out the \
             digests of all image volumes",
        ),
    );
    rights.push(Right::following(
        "",
        "namespaces",
        "which of them want tags pinned, which of them the webhook's selector leaves out, so that no pull secret is \
         copied there, and where to look for copies that are no longer needed",
    ));
    rights.push(Right::following(
        "",
        "serviceaccounts",
        "which accounts permit only the pull secrets that they list",
    ));
    rights.push(
        Right::new(
            "",
            "secrets",
            &["get"],
            "to ask registries as the Pods and policies would that name these Secrets, and what discovery policies \
             name with them; none is listed or watched but in the operator's own namespace",
        )
        .rarely(&["get"], "no Pod and no policy names a pull secret"),
    );
    if pull_secrets == PullSecrets::Copied {
        rights.extend(copying_rights());
    }
    rights.push(Right::following("", "nodes", "which nodes there are, and what they hold"));
    rights.push(
        Right::new(
            "",
            "nodes",
            &["patch"],
            "to take the taint fairlead.dev/warming, and nothing else, off nodes whose images are there",
        )
        .rarely(&["patch"], "no node joined with that taint"),
    );
    rights.push(
        Right::new(
            "",
            "namespaces",
            &["get"],
            "to tell this cluster from others that share a mirror, by the UID of this namespace",
        )
        .named("kube-system"),
    );
    rights.push(
        Right::new(
            "",
            "events",
            &["create"],
            "to tell on a Pod what was done to its images, and on its controller when that is paused",
        )
        .rarely(&["create"], "no image was ever given another reference"),
    );
    for (group, resources) in custom_resources() {
        rights.push(Right { resources, ..Right::following(&group, "", reason_of_group(&group)) });
    }
    rights.extend(rights_on_own_kinds());
    rights.extend(pinning_rights());
    rights.push(
        Right::new(
            WEBHOOKS.0,
            WEBHOOKS.1,
            &["get", "patch"],
            "to keep the path of its own webhook, and of no other, in step with its token, and the CA bundle with its \
             certificate unless cert-manager does",
        )
        .named(NAME),
    );
    rights
}

/// What is needed to copy pull secrets to where Pods need them.
fn copying_rights() -> [Right; 2] {
    let reason = "to keep copies of the pull secrets of cluster-scoped policies where Pods need them; see routing.pullSecrets.copy";
    let reached = "which namespaces the selector of its own webhook leaves out";
    [
        Right::new("", "secrets", &["create", "patch", "delete"], reason)
            .rarely(&["create", "patch", "delete"], "no cluster-scoped policy names a pull secret"),
        Right::following(WEBHOOKS.0, WEBHOOKS.1, reached).named(NAME),
    ]
}

/// What is written about the objects of our own kinds, and what is read for it.
fn rights_on_own_kinds() -> Vec<Right> {
    vec![
        Right::following("apps", "daemonsets", "on which nodes agents run").named(AGENT),
        Right::new(
            "kuik.enix.io",
            "",
            &["patch"],
            "to say in each policy whether it is in force, and why not",
        )
        .of(POLICIES.iter().map(|plural| format!("{plural}/status")))
        .rarely(&["patch"], "there is no policy"),
        Right::new(
            "kuik.enix.io",
            "",
            &["patch"],
            "to hold mirrors until the copies of their images are cleaned up, and to let go of policies that kuik left a finalizer on",
        )
        .of(["clusterimagesetmirrors", "imagesetmirrors", "clusterreplicatedimagesets"].map(str::to_owned))
        .rarely(&["patch"], "no mirror cleans up, and no policy of kuik's days is deleted"),
        Right::new(
            "kuik.enix.io",
            "clusterimagesetavailabilities/status",
            &["patch"],
            "to say which of the watched images are available",
        )
        .rarely(&["patch"], "no image is watched"),
        Right::new(
            "drop.corewire.io",
            "discoverypolicies/status",
            &["patch"],
            "to list the images that discovery policies find",
        )
        .rarely(&["patch"], "there is no discovery policy"),
        Right::new(
            "drop.corewire.io",
            "",
            &["patch"],
            "to say in each object how far warming has come",
        )
        .of(["cachedimages", "cachedimagesets", "pullpolicies"].map(|plural| format!("{plural}/status")))
        .rarely(&["patch"], "there is no image to be warmed"),
        Right::new(
            "drop.corewire.io",
            "cachedimages",
            &["create", "patch", "delete"],
            "to keep the children of CachedImageSets",
        )
        .rarely(&["create", "patch", "delete"], "there is no CachedImageSet"),
        Right::new(
            "harbor-reef.nvidia.com",
            "proxycaches/status",
            &["patch"],
            "to say in each ProxyCache what Harbor holds for it",
        )
        .rarely(&["patch"], "there is no ProxyCache"),
        Right::new(
            "harbor-reef.nvidia.com",
            "proxycaches",
            &["patch"],
            "to hold ProxyCaches until their endpoints and projects are removed",
        )
        .rarely(&["patch"], "there is no ProxyCache"),
        Right::new(
            "config.openshift.io",
            "",
            &["patch"],
            "to say in each mirror policy on how many nodes it is in force, and how exactly",
        )
        .of(MIRROR_POLICIES.iter().map(|plural| format!("{plural}/status")))
        .rarely(&["patch"], "there is no mirror policy for nodes"),
        Right::new(
            "operator.openshift.io",
            "imagecontentsourcepolicies/status",
            &["patch"],
            "to say the same in each ImageContentSourcePolicy, and whether it can be done without",
        )
        .rarely(&["patch"], "there is no mirror policy for nodes"),
        Right::new(
            "fairlead.dev",
            "imageledgers",
            &["get", "create", "update", "patch", "delete"],
            "to remember which copies of images were made for whom, and until when they are kept",
        )
        .rarely(
            &["get", "create", "update", "patch", "delete"],
            "no image is mirrored or watched, and no copy is found missing",
        ),
    ]
}

/// What pinning reads and writes.
fn pinning_rights() -> [Right; 4] {
    [
        Right::new(
            "fairlead.dev",
            "imagepins",
            &["get", "create", "patch", "delete"],
            "to hold the Pods of a workload revision to one digest of each tag",
        )
        .rarely(
            &["get", "create", "patch", "delete"],
            "no Pod is pinned, or no revision got another image or went",
        ),
        Right::new(
            "fairlead.dev",
            "imagepins/status",
            &["patch"],
            "to say in each ImagePin whether the Pods of the revision run what is pinned",
        )
        .rarely(&["patch"], "no Pod is pinned"),
        Right::new(
            "apps",
            "controllerrevisions",
            &["get"],
            "to keep the pins of revisions that a workload may be rolled back to",
        )
        .rarely(&["get"], "no revision of a pinned workload has lost its Pods"),
        Right::new("apps", "replicasets", &["get"], "to report drift on the Deployment of a ReplicaSet")
            .rarely(&["get"], "no image of a ReplicaSet's Pods has drifted"),
    ]
}

/// Rights on objects of the operator's own namespace.
pub fn namespaced_rights(certificates: Certificates) -> Vec<Right> {
    let mut rights = vec![
        Right::new(
            "coordination.k8s.io",
            "leases",
            &["create"],
            "to make the Lease below the first time (Kubernetes cannot limit create to a name)",
        ),
        Right::new(
            "coordination.k8s.io",
            "leases",
            &["get", "update"],
            "to agree with the other replicas on who writes to the cluster",
        )
        .named(LEASE),
        Right::new(
            "",
            "events",
            &["get", "patch"],
            "to tell of internal errors in one event, however many there are",
        )
        .named(INTERNAL_ERRORS)
        .rarely(&["get", "patch"], "there was no internal error"),
        Right::new(
            "apps",
            "deployments",
            &["get"],
            "to show that event where `kubectl describe` looks for it",
        )
        .named(NAME)
        .rarely(&["get"], "there was no internal error"),
    ];
    let (secret, reason) = match certificates {
        Certificates::Own => (
            CERTIFICATE_SECRET,
            "to share the webhook's certificate and the token of its path between replicas and to rotate them",
        ),
        Certificates::CertManager => {
            (PATH_SECRET, "to share the token of the webhook's path between replicas and to rotate it")
        }
    };
    rights.push(Right::new(
        "",
        "secrets",
        &["create"],
        "to make the Secret below the first time (Kubernetes cannot limit create to a name)",
    ));
    rights.push(Right::new("", "secrets", &["get", "update"], reason).named(secret));
    rights.push(
        Right::new(
            "",
            "secrets",
            &["list", "watch"],
            "to give Harbor the passwords of ProxyCaches as soon as they change; in this namespace only",
        )
        .rarely(&["list", "watch"], "no Harbor is configured; see harbor.url"),
    );
    rights.push(
        Right::new(
            "fairlead.dev",
            "warmledgers",
            &["get", "create", "update", "delete"],
            "to remember which nodes hold which images",
        )
        .rarely(&["get"], "no such record was changed by another client")
        .rarely(&["create", "update", "delete"], "there is no image to be warmed"),
    );
    rights
}

/// Rights on objects of the whole cluster while `heal.evictUnpatchable` is on.
pub fn eviction_rights() -> Vec<Right> {
    let reason = "to have Pods replaced whose image volumes cannot be pulled; see heal.evictUnpatchable";
    vec![
        Right::new("", "pods/eviction", &["create"], reason)
            .rarely(&["create"], "every image volume can be pulled"),
    ]
}

/// Rights on objects of the whole cluster while `nodes.migrateICSP` names a kind.
pub fn migration_rights() -> Vec<Right> {
    let reason = "to repeat ImageContentSourcePolicy objects in the kind that nodes.migrateICSP names";
    vec![
        Right::new("config.openshift.io", "", &["create"], reason)
            .of(["imagedigestmirrorsets", "imagesourcedigestpolicies"].map(str::to_owned))
            .rarely(&["create"], "every ImageContentSourcePolicy is repeated in a newer kind"),
    ]
}

/// Rights on objects of the whole cluster while `nodes.deleteMigratedICSP` is on.
pub fn deletion_rights() -> Vec<Right> {
    let reason = "to delete ImageContentSourcePolicy objects that a newer kind repeats";
    vec![
        Right::new("operator.openshift.io", "imagecontentsourcepolicies", &["delete"], reason)
            .rarely(&["delete"], "there is no ImageContentSourcePolicy"),
    ]
}

/// Rights of agents, on objects of the whole cluster.
pub fn agent_rights() -> Vec<Right> {
    let policies = "which mirrors the node should pull from";
    vec![
        Right::new("config.openshift.io", "", &["list", "watch"], policies)
            .of(MIRROR_POLICIES.map(str::to_owned)),
        Right::new("operator.openshift.io", "imagecontentsourcepolicies", &["list", "watch"], policies),
        Right::new("", "nodes", &["get"], "which container runtime the node has"),
        Right::new(
            "fairlead.dev",
            "nodemirrorreports",
            &["get", "create", "patch"],
            "to report what is in force on the node; an admission policy limits it to the agent's own",
        )
        .rarely(
            &["create"],
            "a report that is not there is created by a patch, which needs this right as well",
        ),
    ]
}

/// Rights on objects of the namespace of pull Pods.
pub fn warm_rights() -> Vec<Right> {
    let reason = "to have kubelets pull the images of CachedImages onto their nodes";
    let pods = Right::new("", "pods", &["create", "delete"], reason);
    vec![pods.rarely(&["create", "delete"], "there is no image to be warmed")]
}

fn reason_of_group(group: &str) -> &'static str {
    match group {
        "drop.corewire.io" => "which images nodes should hold before they are needed",
        "fairlead.dev" => {
            "its own records: which copies it keeps, which digests it has pinned, which nodes it has warmed, and what \
             nodes report"
        }
        "harbor-reef.nvidia.com" => "which proxy caches there should be",
        "kuik.enix.io" => "where images may come from, where to copy them, and which of them to look after",
        _ => "which mirrors nodes should pull from",
    }
}

/// Plural names by API group.
fn custom_resources() -> BTreeMap<String, Vec<String>> {
    let mut by_group = BTreeMap::<String, Vec<String>>::new();
    for definition in fairlead_api::crds::all() {
        by_group.entry(definition.spec.group).or_default().push(definition.spec.names.plural);
    }
    for plurals in by_group.values_mut() {
        plurals.sort();
    }
    by_group
}

impl Right {
    fn new(group: &str, resource: &str, verbs: &[&'static str], reason: &'static str) -> Self {
        Self {
            group: group.to_owned(),
            resources: vec![resource.to_owned()],
            names: Vec::new(),
            verbs: verbs.to_vec(),
            reason,
            rarely: Vec::new(),
        }
    }

    /// To know all objects of a resource, and every change to them from then on.
    fn following(group: &str, resource: &str, reason: &'static str) -> Self {
        let old_servers = "API servers before 1.34 do not send a list as part of a watch";
        Self { rarely: vec![("list", old_servers)], ..Self::new(group, resource, &["list", "watch"], reason) }
    }

    fn of(mut self, resources: impl IntoIterator<Item = String>) -> Self {
        self.resources = resources.into_iter().collect();
        self
    }

    fn rarely(mut self, verbs: &[&'static str], case: &'static str) -> Self {
        self.rarely.extend(verbs.iter().map(|verb| (*verb, case)));
        self
    }

    fn named(mut self, name: &str) -> Self {
        self.names.push(name.to_owned());
        self
    }

    pub fn rule(&self) -> PolicyRule {
        PolicyRule {
            api_groups: Some(vec![self.group.clone()]),
            resources: Some(self.resources.clone()),
            resource_names: (!self.names.is_empty()).then(|| self.names.clone()),
            verbs: self.verbs.iter().map(|verb| (*verb).to_owned()).collect(),
            ..PolicyRule::default()
        }
    }

    /// What the rule is about, as kubectl writes it: `pods`, `secrets/fairlead-webhook-tls`,
    /// `leases.coordination.k8s.io/fairlead-operator`, `cachedimages,pullpolicies.drop.corewire.io`.
    fn target(&self) -> String {
        let mut target = self.resources.join(",");
        for (mark, part) in [('.', self.group.clone()), ('/', self.names.join(","))] {
            if !part.is_empty() {
                target.push(mark);
                target.push_str(&part);
            }
        }
        target
    }
}

/// The annotations that explain a role made of these rights.
pub fn explanation(rights: &[Right]) -> BTreeMap<String, String> {
    let reasons = rights
        .iter()
        .map(|right| format!("{} {}: {}", right.verbs.join(","), right.target(), right.reason))
        .collect::<Vec<_>>();
    let mut targets = BTreeMap::<_, Vec<_>>::new();
    for right in rights {
        for rare in &right.rarely {
            targets.entry(rare).or_default().push(right.target());
        }
    }
    let rare = targets.iter().map(|((verb, case), targets)| format!("{verb} {}: {case}", targets.join(" ")));
    [(REASONS, reasons), (RARELY_USED, rare.collect())]
        .into_iter()
        .filter(|(_, lines)| !lines.is_empty())
        .map(|(name, lines)| (name.to_owned(), lines.join("\n")))
        .collect()
}
