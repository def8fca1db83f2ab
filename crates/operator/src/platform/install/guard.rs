//! What roles cannot say: admission policies that limit the operator's writes to what it has to write, and that let
//! only the operator write its own records.
//!
//! [`limits`] is the table of the first policy: a capability that writes something new adds what exactly it writes.

use fairlead_api::{
    kuik::GROUP,
    names::{drop, fairlead, kubernetes, kuik, reef},
};
use fairlead_plan::pull_secrets::MANAGED_BY;
use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MatchResources, NamedRuleWithOperations, ValidatingAdmissionPolicy,
    ValidatingAdmissionPolicyBinding, ValidatingAdmissionPolicyBindingSpec, ValidatingAdmissionPolicySpec,
    Validation,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use super::{AGENT, AGENT_NAMESPACE, CERTIFICATE_SECRET, PATH_SECRET, metadata::cluster_wide};

/// Name of the policy, and of its binding, that limits the operator.
pub const OPERATOR_POLICY: &str = "fairlead-operator";
/// Name of the policy, and of its binding, that limits which Pods the operator deletes.
pub const DELETIONS_POLICY: &str = "fairlead-deletions";
/// Name of the policy, and of its binding, that protects the operator's records.
pub const RECORDS_POLICY: &str = "fairlead-records";

/// Name of the policy, and of its binding, that protects the reports of agents.
pub const REPORTS_POLICY: &str = "fairlead-reports";

/// What the API server tells of the node that the Pod of a token runs on.
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

/// Annotations that the operator puts onto Pods that exist: the record of containers that are added for debugging, and
/// of those that were healed, and the digests of image volumes.
const OF_PODS: [&str; 7] = [
    fairlead::ROUTES,
    fairlead::VOLUME_DIGESTS,
    fairlead::HEALED,
    kuik::ORIGINAL_IMAGES,
    reef::ORIGINAL_UPSTREAMS,
    reef::PATCHED_CONTAINERS,
    reef::PATCHED,
];

/// Reasons for which a container waits whose image may be changed.
const HEALABLE: [&str; 3] = ["ErrImagePull", "ImagePullBackOff", "RegistryUnavailable"];

/// The kinds in which the operator writes finalizers and conditions only.
const POLICIES: [&str; 5] = [
    "clusterimagesetmirrors",
    "imagesetmirrors",
    "clusterreplicatedimagesets",
    "replicatedimagesets",
    "clusterimagesetavailabilities",
];

/// The kinds in which the operator writes conditions, and which it may create from an older kind.
const MIRROR_POLICIES: [&str; 8] = [
    "imagedigestmirrorsets",
    "imagedigestmirrorsets/*",
    "imagesourcedigestpolicies",
    "imagesourcedigestpolicies/*",
    "imagesourcetagpolicies",
    "imagesourcetagpolicies/*",
    "imagetagmirrorsets",
    "imagetagmirrorsets/*",
];

/// The operator's `ServiceAccount`.
#[derive(Debug, Clone, Copy)]
pub struct Account<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
}

impl Account<'_> {
    /// Who it is to the API server.
    fn user(self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.name)
    }
}

/// A policy and the binding that puts it in force.
#[derive(Debug, Clone)]
pub struct Guard {
    pub policy: ValidatingAdmissionPolicy,
    pub binding: ValidatingAdmissionPolicyBinding,
}

/// What the operator may write of some resources: every rule must hold.
struct Limit {
    group: &'static str,
    resources: Vec<String>,
    operations: &'static [&'static str],
    /// An expression that must be true for each write of the operator, and what is said if it is not.
    rules: Vec<(String, &'static str)>,
}

impl Limit {
    fn new<const COUNT: usize>(group: &'static str, resources: [&str; COUNT]) -> Self {
        let resources = resources.map(str::to_owned).to_vec();
        Self { group, resources, operations: &["CREATE", "UPDATE", "DELETE"], rules: Vec::new() }
    }

    fn on(self, operations: &'static [&'static str]) -> Self {
        Self { operations, ..self }
    }

    fn rule(mut self, expression: impl Into<String>, message: &'static str) -> Self {
        self.rules.push((expression.into(), message));
        self
    }

    fn matches(&self) -> NamedRuleWithOperations {
        rule(self.group, self.resources.clone(), self.operations)
    }

    /// The rules, each for writes of these resources only.
    fn validations(&self) -> Vec<Validation> {
        let plurals = self.resources.iter().filter(|resource| !resource.contains('/'));
        let plurals = plurals.map(|plural| format!("'{plural}'")).collect::<Vec<_>>().join(", ");
        let elsewhere = format!(
            "!(request.resource.group == '{}' && request.resource.resource in [{plurals}])",
            self.group
        );
        let guarded = |(expression, message): &(String, &'static str)| {
            validation(&format!("{elsewhere} || ({expression})"), message)
        };
        self.rules.iter().map(guarded).collect()
    }
}

/// Everything that the operator may write, as far as a role cannot say it.
fn limits(operator: Account<'_>) -> Vec<Limit> {
    let updates_only = "request.operation == 'UPDATE'";
    vec![
        Limit::new("", ["secrets"]).rule(
            format!(
                "(request.namespace == '{}' && request.name in ['{CERTIFICATE_SECRET}', '{PATH_SECRET}']) || \
                 ((object == null || ({})) && (oldObject == null || ({})))",
                operator.namespace,
                copy("object", &[kuik::OWNER_VERSION, kuik::OWNER_KIND, kuik::OWNER_NAME], true),
                copy("oldObject", &[], false),
            ),
            "the operator writes only copies of pull secrets: of a docker type, named kuik-<name>-<16 hexadecimal \
             digits>, with the labels kuik.enix.io/owner-*; and, in its own namespace, the Secrets of its webhook",
        ),
        // Without subresources and deletions: kubelets write statuses all the time, and the API server copies an object
        // several times for every policy that it asks. No role lets the operator write a status, and deletions have a
        // policy of their own, see [`of_deletions`].
        Limit::new("", ["pods"])
            .on(&["CREATE", "UPDATE"])
            .rule(
                format!("oldObject != null || ({})", harmless_pull_pod("object")),
                "the operator creates only Pods that pull images of CachedImages onto nodes, without a token, \
                 privileges, or volumes other than images",
            )
            .rule(
                unless_updated(&same_pod()),
                "of a Pod's spec the operator changes only the images of containers that wait for them in vain",
            )
            .rule(
                unless_updated(&format!("{} && {}", same_metadata(), same_annotations())),
                "of a Pod's metadata the operator changes only its own annotations",
            ),
        Limit::new("", ["nodes"])
            .rule(updates_only, "the operator neither creates nor deletes Nodes")
            .rule(
                unless_updated(&same_node()),
                "of a Node the operator changes only the taint fairlead.dev/warming, which it takes off",
            ),
        Limit::new("drop.corewire.io", ["cachedimages"])
            .rule(
                format!("(object == null || {0}) && (oldObject == null || {1})", of_set("object"), of_set("oldObject")),
                "the operator writes only CachedImages that belong to a CachedImageSet",
            ),
        Limit::new("harbor-reef.nvidia.com", ["proxycaches"])
            .rule(updates_only, "the operator neither creates nor deletes ProxyCaches")
            .rule(
                unless_updated("object.?spec == oldObject.?spec"),
                "the operator changes no field of a ProxyCache's spec",
            ),
        Limit::new(GROUP, POLICIES)
            .rule(updates_only, "the operator neither creates nor deletes policies")
            .rule(
                unless_updated("object.?spec == oldObject.?spec"),
                "the operator changes no field of a policy's spec",
            ),
        Limit::new("fairlead.dev", ["imagepins"])
            .rule(
                "object == null || object.metadata.?ownerReferences.orValue([]).exists(owner, \
                 owner.uid == object.spec.workload.uid)",
                "the operator writes only ImagePins that their workload owns",
            ),
        Limit::new("config.openshift.io", MIRROR_POLICIES)
            .rule("request.operation != 'DELETE'", "the operator deletes no mirror policy but ImageContentSourcePolicies")
            .rule(
                format!(
                    "request.operation != 'CREATE' || object.metadata.?annotations[?'{}'].hasValue()",
                    fairlead::MIGRATED_FROM
                ),
                "the operator creates only mirror policies that are made of an ImageContentSourcePolicy",
            )
            .rule(
                unless_updated("object.?spec == oldObject.?spec"),
                "the operator changes no field of a mirror policy's spec",
            ),
        Limit::new("operator.openshift.io", ["imagecontentsourcepolicies", "imagecontentsourcepolicies/*"])
            .rule("request.operation != 'CREATE'", "the operator creates no ImageContentSourcePolicies")
            .rule(
                unless_updated("object.?spec == oldObject.?spec"),
                "the operator changes no field of a mirror policy's spec",
            ),
        Limit::new("admissionregistration.k8s.io", ["mutatingwebhookconfigurations"])
            .rule(updates_only, "the operator neither creates nor deletes webhook configurations")
            .rule(
                unless_updated(&same_webhooks()),
                "of a webhook configuration the operator changes only the path and the CA bundle",
            ),
    ]
}

/// Whether a Pod pulls images onto a node, by what names and owns it, and can do no harm, whatever it runs.
fn harmless_pull_pod(pod: &str) -> String {
    let label = kubernetes::MANAGED_BY;
    let forbidden = ["hostNetwork", "hostPID", "hostIPC"];
    let forbidden = forbidden.map(|field| format!("!{pod}.spec.?{field}.orValue(false)"));
    let mut parts = vec![
        format!("{pod}.metadata.?labels[?'{label}'].orValue('') == '{}'", drop::MANAGED_BY_DROP),
        format!("{pod}.metadata.?annotations[?'{}'].hasValue()", fairlead::PULLS),
        format!("{pod}.metadata.?ownerReferences.orValue([]).size() > 0"),
        format!("{pod}.metadata.?ownerReferences.orValue([]).all(owner, owner.kind == 'CachedImage')"),
        format!("!{pod}.spec.?automountServiceAccountToken.orValue(true)"),
        format!("{pod}.spec.?initContainers.orValue([]).size() == 0"),
        format!("{pod}.spec.?volumes.orValue([]).all(volume, volume.?image.hasValue())"),
        format!("{pod}.spec.containers.all(one, !one.?securityContext.?privileged.orValue(false))"),
    ];
    parts.extend(forbidden);
    parts.join(" && ")
}

/// A Pod is as before, but for images that could not be pulled. The API server itself lets few other fields change.
fn same_pod() -> String {
    let fields = [
        "activeDeadlineSeconds",
        "tolerations",
        "schedulingGates",
        "terminationGracePeriodSeconds",
        "nodeSelector",
        "affinity",
        "ephemeralContainers",
        "resources",
    ];
    let mut parts = fields.map(|field| format!("object.spec.?{field} == oldObject.spec.?{field}")).to_vec();
    let reasons = HEALABLE.map(|reason| format!("'{reason}'")).join(", ");
    for (list, statuses) in [("containers", "containerStatuses"), ("initContainers", "initContainerStatuses")]
    {
        parts.push(format!(
            "object.spec.?{list}.orValue([]).all(now, oldObject.spec.?{list}.orValue([]).exists(before, \
             now.name == before.name && now.?resources == before.?resources && (now.image == before.image || \
             oldObject.?status.?{statuses}.orValue([]).exists(status, status.name == now.name && \
             status.?state.?waiting.?reason.orValue('') in [{reasons}]))))"
        ));
    }
    format!("object.spec == oldObject.spec || ({})", parts.join(" && "))
}

/// A Node is as before, but for the taint that holds Pods back until it is warm.
fn same_node() -> String {
    let metadata =
        format!("{} && object.metadata.?annotations == oldObject.metadata.?annotations", same_metadata());
    let fields = ["podCIDR", "podCIDRs", "providerID", "unschedulable", "configSource", "externalID"];
    let spec = fields.map(|field| format!("object.spec.?{field} == oldObject.spec.?{field}")).join(" && ");
    let taints = |object: &str| format!("{object}.spec.?taints.orValue([])");
    let (now, before) = (taints("object"), taints("oldObject"));
    let others = format!("filter(taint, taint.key != '{}')", fairlead::WARMING);
    format!(
        "request.?subResource.orValue('') == '' && {metadata} && {spec} && {now}.{others} == {before}.{others} && \
         {now}.all(taint, taint in {before})"
    )
}

fn of_set(image: &str) -> String {
    format!("{image}.metadata.?ownerReferences.orValue([]).exists(owner, owner.kind == 'CachedImageSet')")
}

fn unless_updated(expression: &str) -> String {
    format!("request.operation != 'UPDATE' || ({expression})")
}

/// Whether a Secret is a copy of a pull secret. Those of kube-image-keeper lack some labels.
fn copy(secret: &str, more_labels: &[&str], ours: bool) -> String {
    let label = |key: &str| format!("{secret}.metadata.?labels[?'{key}'].orValue('')");
    let mut parts = vec![
        format!("{secret}.type in ['kubernetes.io/dockerconfigjson', 'kubernetes.io/dockercfg']"),
        format!("{secret}.metadata.name.matches('^{}.+-[0-9a-f]{{16}}$')", kuik::SECRET_NAME_PREFIX),
        format!("{} == '{GROUP}'", label(kuik::OWNER_GROUP)),
        format!("{} != ''", label(kuik::OWNER_UID)),
    ];
    parts.extend(more_labels.iter().map(|key| format!("{} != ''", label(key))));
    if ours {
        parts.push(format!("{} == '{MANAGED_BY}'", label(kubernetes::MANAGED_BY)));
    }
    parts.join(" && ")
}

fn same_metadata() -> String {
    let same = |field| format!("object.metadata.?{field} == oldObject.metadata.?{field}");
    ["labels", "finalizers", "ownerReferences"].map(same).join(" && ")
}

fn same_annotations() -> String {
    let own = OF_PODS.map(|name| format!("'{name}'")).join(", ");
    let of = |object: &str| format!("{object}.metadata.?annotations.orValue({{}})");
    let (now, before) = (of("object"), of("oldObject"));
    let kept = |these: &str, those: &str| {
        format!("{these}.all(key, key in [{own}] || {those}[?key] == {these}[?key])")
    };
    format!("{} && {}", kept(&now, &before), kept(&before, &now))
}

/// Each webhook asks the same server about the same things as before.
fn same_webhooks() -> String {
    let fields = [
        "rules",
        "failurePolicy",
        "matchPolicy",
        "namespaceSelector",
        "objectSelector",
        "sideEffects",
        "timeoutSeconds",
        "admissionReviewVersions",
        "reinvocationPolicy",
        "matchConditions",
        "clientConfig.?service.?name",
        "clientConfig.?service.?namespace",
        "clientConfig.?service.?port",
    ];
    let same = fields.map(|field| format!("now.?{field} == before.?{field}")).join(" && ");
    let host = |webhook: &str| {
        format!("{webhook}.clientConfig.?url.optMap(address, url(address).getHost()).orValue('')")
    };
    format!(
        "object.?webhooks.orValue([]).size() == oldObject.?webhooks.orValue([]).size() && \
         object.?webhooks.orValue([]).all(now, oldObject.?webhooks.orValue([]).exists(before, \
         now.name == before.name && {same} && {} == {}))",
        host("now"),
        host("before"),
    )
}

/// Limits what the operator may write.
pub fn of_operator(operator: Account<'_>) -> Guard {
    let limits = limits(operator);
    let user = operator.user();
    guard(
        OPERATOR_POLICY,
        // Only the operator's own writes are looked at, so a mistake here stops no other writer.
        Some(("is-the-operator", &format!("request.userInfo.username == '{user}'"))),
        limits.iter().map(Limit::matches).collect(),
        limits.iter().flat_map(Limit::validations).collect(),
    )
}

/// Keeps the operator from deleting Pods other than those that pull images. These are known by their label, without
/// asking the policy: the operator deletes one for each image and node, and the API server judges a deletion twice.
pub fn of_deletions(operator: Account<'_>) -> Guard {
    let user = operator.user();
    let mut guard = guard(
        DELETIONS_POLICY,
        Some(("is-the-operator", &format!("request.userInfo.username == '{user}'"))),
        vec![rule("", vec!["pods".to_owned()], &["DELETE"])],
        vec![validation(
            "false",
            "the operator deletes only Pods that pull images of CachedImages onto nodes",
        )],
    );
    let others = LabelSelectorRequirement {
        key: kubernetes::MANAGED_BY.to_owned(),
        operator: "NotIn".to_owned(),
        values: Some(vec![drop::MANAGED_BY_DROP.to_owned()]),
    };
    let selector = LabelSelector { match_expressions: Some(vec![others]), ..LabelSelector::default() };
    if let Some(constraints) = guard.policy.spec.as_mut().and_then(|spec| spec.match_constraints.as_mut()) {
        constraints.object_selector = Some(selector);
    }
    guard
}

/// Lets only the operator write its records. Deleting them and changing their metadata is free, so that namespaces and
/// owners can go.
pub fn of_records(operator: Account<'_>) -> Guard {
    let user = operator.user();
    let records = ["imageledgers", "imagepins", "warmledgers"].map(str::to_owned).to_vec();
    guard(
        RECORDS_POLICY,
        Some(("is-not-the-operator", &format!("request.userInfo.username != '{user}'"))),
        vec![rule("fairlead.dev", records, &["CREATE", "UPDATE"])],
        vec![
            validation(
                "request.operation != 'CREATE'",
                "only the operator creates this kind; declare a mirror, a policy or a CachedImage instead",
            ),
            validation(
                &unless_updated("object.?spec == oldObject.?spec && object.?status == oldObject.?status"),
                "only the operator changes this kind; its metadata may be changed, and it may be deleted",
            ),
        ],
    )
}

/// Lets only the agent on a node report about it: the API server tells the node of a token from the Pod that it was
/// issued to. Others may delete reports and change their metadata, so that nodes can go; agents of other nodes may not.
pub fn of_reports() -> Guard {
    let user = Account { namespace: AGENT_NAMESPACE, name: AGENT }.user();
    let is_on_node = format!(
        "has(request.userInfo.extra) && '{NODE_NAME}' in request.userInfo.extra && \
         request.userInfo.extra['{NODE_NAME}'][0] == object.metadata.name"
    );
    let is_same =
        "oldObject != null && object.?spec == oldObject.?spec && object.?status == oldObject.?status";
    guard(
        REPORTS_POLICY,
        None,
        vec![rule("fairlead.dev", vec!["nodemirrorreports".to_owned()], &["CREATE", "UPDATE"])],
        vec![validation(
            &format!("request.userInfo.username == '{user}' ? ({is_on_node}) : ({is_same})"),
            "only the agent on the node of this name writes this report; others than agents may change its metadata \
             and delete it",
        )],
    )
}

fn guard(
    name: &str,
    condition: Option<(&str, &str)>,
    rules: Vec<NamedRuleWithOperations>,
    validations: Vec<Validation>,
) -> Guard {
    let policy = ValidatingAdmissionPolicy {
        metadata: cluster_wide(name),
        spec: Some(ValidatingAdmissionPolicySpec {
            failure_policy: Some("Fail".to_owned()),
            match_conditions: condition.map(|(condition, expression)| {
                vec![MatchCondition { name: condition.to_owned(), expression: expression.to_owned() }]
            }),
            match_constraints: Some(MatchResources {
                resource_rules: Some(rules),
                ..MatchResources::default()
            }),
            validations: Some(validations),
            ..ValidatingAdmissionPolicySpec::default()
        }),
        ..ValidatingAdmissionPolicy::default()
    };
    let binding = ValidatingAdmissionPolicyBinding {
        metadata: cluster_wide(name),
        spec: ValidatingAdmissionPolicyBindingSpec {
            policy_name: name.to_owned(),
            validation_actions: vec!["Deny".to_owned()],
            ..ValidatingAdmissionPolicyBindingSpec::default()
        },
    };
    Guard { policy, binding }
}

fn rule(group: &str, resources: Vec<String>, operations: &[&str]) -> NamedRuleWithOperations {
    NamedRuleWithOperations {
        api_groups: Some(vec![group.to_owned()]),
        api_versions: Some(vec!["*".to_owned()]),
        operations: Some(operations.iter().map(|operation| (*operation).to_owned()).collect()),
        resources: Some(resources),
        ..NamedRuleWithOperations::default()
    }
}

fn validation(expression: &str, message: &str) -> Validation {
    Validation {
        expression: expression.to_owned(),
        message: Some(message.to_owned()),
        reason: Some("Forbidden".to_owned()),
        ..Validation::default()
    }
}
