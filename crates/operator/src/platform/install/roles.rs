//! The roles and bindings that hand the table of rights to the operator's `ServiceAccount`.

use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::metadata::{cluster_wide, namespaced};
use super::rights::{
    Right, cluster_rights, deletion_rights, eviction_rights, explanation, migration_rights,
    namespaced_rights, warm_rights,
};
use super::{InstallSettings, NAME, WARM_ROLE};
use crate::platform::config::MigrateIcsp;

pub(super) fn cluster_role(settings: &InstallSettings) -> ClusterRole {
    let mut rights = cluster_rights(settings.pull_secrets());
    if settings.config().heal.evict_unpatchable {
        rights.extend(eviction_rights());
    }
    let nodes = settings.config().nodes;
    if nodes.migrate_icsp != MigrateIcsp::Off {
        rights.extend(migration_rights());
    }
    if nodes.delete_migrated_icsp {
        rights.extend(deletion_rights());
    }
    ClusterRole {
        metadata: explained(cluster_wide(NAME), &rights),
        rules: Some(rights.iter().map(Right::rule).collect()),
        ..ClusterRole::default()
    }
}

pub(super) fn role(settings: &InstallSettings) -> Role {
    let rights = namespaced_rights(settings.certificates);
    Role {
        metadata: explained(namespaced(settings, NAME), &rights),
        rules: Some(rights.iter().map(Right::rule).collect()),
    }
}

pub(super) fn warm_role(settings: &InstallSettings) -> Role {
    let rights = warm_rights();
    Role {
        metadata: explained(in_warm_namespace(settings), &rights),
        rules: Some(rights.iter().map(Right::rule).collect()),
    }
}

pub(super) fn warm_role_binding(settings: &InstallSettings) -> RoleBinding {
    RoleBinding {
        metadata: in_warm_namespace(settings),
        role_ref: RoleRef { name: WARM_ROLE.to_owned(), ..role_ref("Role") },
        subjects: Some(vec![operator(settings)]),
    }
}

fn in_warm_namespace(settings: &InstallSettings) -> ObjectMeta {
    ObjectMeta { namespace: Some(settings.warm_namespace()), ..namespaced(settings, WARM_ROLE) }
}

pub(super) fn cluster_role_binding(settings: &InstallSettings) -> ClusterRoleBinding {
    ClusterRoleBinding {
        metadata: cluster_wide(NAME),
        role_ref: role_ref("ClusterRole"),
        subjects: Some(vec![operator(settings)]),
    }
}

pub(super) fn role_binding(settings: &InstallSettings) -> RoleBinding {
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

fn operator(settings: &InstallSettings) -> Subject {
    Subject {
        kind: "ServiceAccount".to_owned(),
        name: NAME.to_owned(),
        namespace: Some(settings.namespace.clone()),
        ..Subject::default()
    }
}
