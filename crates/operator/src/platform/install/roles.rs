//! The roles and bindings that hand the table of rights to the operator's `ServiceAccount`.

use k8s_openapi::{
    api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding, RoleRef, Subject},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};

use super::{
    NAME, Settings, WARM_ROLE,
    metadata::{cluster_wide, namespaced},
    rights::{Right, cluster_rights, eviction_rights, explanation, namespaced_rights, warm_rights},
};

pub(super) fn cluster_role(settings: &Settings) -> ClusterRole {
    let mut rights = cluster_rights(settings.pull_secrets());
    if settings.config().heal.evict_unpatchable {
        rights.extend(eviction_rights());
    }
    ClusterRole {
        metadata: explained(cluster_wide(NAME), &rights),
        rules: Some(rights.iter().map(Right::rule).collect()),
        ..ClusterRole::default()
    }
}

pub(super) fn role(settings: &Settings) -> Role {
    let rights = namespaced_rights(settings.certificates);
    Role {
        metadata: explained(namespaced(settings, NAME), &rights),
        rules: Some(rights.iter().map(Right::rule).collect()),
    }
}

pub(super) fn warm_role(settings: &Settings) -> Role {
    let rights = warm_rights();
    Role {
        metadata: explained(in_warm_namespace(settings), &rights),
        rules: Some(rights.iter().map(Right::rule).collect()),
    }
}

pub(super) fn warm_role_binding(settings: &Settings) -> RoleBinding {
    RoleBinding {
        metadata: in_warm_namespace(settings),
        role_ref: RoleRef { name: WARM_ROLE.to_owned(), ..role_ref("Role") },
        subjects: Some(vec![operator(settings)]),
    }
}

fn in_warm_namespace(settings: &Settings) -> ObjectMeta {
    ObjectMeta { namespace: Some(settings.warm_namespace()), ..namespaced(settings, WARM_ROLE) }
}

pub(super) fn cluster_role_binding(settings: &Settings) -> ClusterRoleBinding {
    ClusterRoleBinding {
        metadata: cluster_wide(NAME),
        role_ref: role_ref("ClusterRole"),
        subjects: Some(vec![operator(settings)]),
    }
}

pub(super) fn role_binding(settings: &Settings) -> RoleBinding {
    RoleBinding {
        metadata: namespaced(settings, NAME),
        role_ref: role_ref("Role"),
        subjects: Some(vec![operator(settings)]),
    }
}

fn explained(metadata: ObjectMeta, rights: &[Right]) -> ObjectMeta {
    ObjectMeta { annotations: Some(explanation(rights)), ..metadata }
}

fn role_ref(kind: &str) -> RoleRef {
    RoleRef {
        api_group: Some("rbac.authorization.k8s.io".to_owned()),
        kind: kind.to_owned(),
        name: NAME.to_owned(),
    }
}

fn operator(settings: &Settings) -> Subject {
    Subject {
        kind: "ServiceAccount".to_owned(),
        name: NAME.to_owned(),
        namespace: Some(settings.namespace.clone()),
        ..Subject::default()
    }
}
