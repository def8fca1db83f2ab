//! Every label, annotation and finalizer that Fairlead writes or reads, in one place.
//!
//! Names of the systems that Fairlead takes over from are part of clusters already: they are kept to the letter.

/// Names of our own. All of them begin with `fairlead.dev/`.
pub mod fairlead {
    /// Pod annotation: what was asked for, what is used instead, by which rule and why, per image.
    pub const ROUTES: &str = "fairlead.dev/routes";
    /// Annotation or label of a Pod or namespace, `true` or `false`: whether tags are held to digests.
    pub const PIN: &str = "fairlead.dev/pin";
    /// Pod annotation: JSON object, name of an image volume to the image that is expected in it, as
    /// `repository@digest`.
    pub const VOLUME_DIGESTS: &str = "fairlead.dev/volume-digests";
    /// Pod annotation: alternatives that healing has already tried.
    pub const HEALED: &str = "fairlead.dev/healed";

    /// Annotation on a copied pull secret: when it was last applied.
    pub const APPLIED_AT: &str = "fairlead.dev/applied-at";

    /// Label on a ledger or an `ImagePin`: kind of the object it belongs to.
    pub const OWNER_KIND: &str = "fairlead.dev/owner-kind";
    /// Label on a ledger or an `ImagePin`: UID of the object it belongs to. UIDs fit a label, names may not.
    pub const OWNER_UID: &str = "fairlead.dev/owner-uid";
    /// Annotation on an `ImageLedger`: JSON list of references that a probe saw otherwise than the ledger has them.
    pub const LOOK_AGAIN: &str = "fairlead.dev/look-again";
    /// Label on an `ImagePin`: revision of the workload that the pins hold for.
    pub const REVISION: &str = "fairlead.dev/revision";

    /// Annotation on a pull Pod: which images it pulls, for which objects, and onto which node.
    pub const PULLS: &str = "fairlead.dev/pulls";
    /// Annotation on a mirror policy: the `ImageContentSourcePolicy` that it was made from, by UID.
    pub const MIGRATED_FROM: &str = "fairlead.dev/migrated-from";
    /// Value of [`super::kubernetes::COMPONENT`] on the Pods of agents.
    pub const AGENT: &str = "agent";
    /// Taint of a node that is to get its images before Pods.
    pub const WARMING: &str = "fairlead.dev/warming";
}

/// Names of kube-image-keeper, version 2.
pub mod kuik {
    /// Pod annotation: JSON object, container name to image as the user wrote it.
    pub const ORIGINAL_IMAGES: &str = "kuik.enix.io/original-images";

    /// Finalizer of both mirror kinds: copies are deleted first where cleanup is on.
    pub const MIRROR_CLEANUP: &str = "kuik.enix.io/mirror-cleanup";
    /// Finalizer of the cluster kinds: copied pull secrets are deleted first.
    pub const SECRET_CLEANUP: &str = "kuik.enix.io/secret-cleanup";

    /// Labels on a copied pull secret. Cleanup goes by the UID alone.
    pub const OWNER_GROUP: &str = "kuik.enix.io/owner-group";
    pub const OWNER_VERSION: &str = "kuik.enix.io/owner-version";
    pub const OWNER_KIND: &str = "kuik.enix.io/owner-kind";
    pub const OWNER_NAME: &str = "kuik.enix.io/owner-name";
    pub const OWNER_UID: &str = "kuik.enix.io/owner-uid";

    /// Copied pull secrets are named with this prefix.
    pub const SECRET_NAME_PREFIX: &str = "kuik-";
}

/// Names of Drop.
pub mod drop {
    /// Label on a pull Pod: name of its `CachedImage`. Where it does not fit or there are several, the label holds a
    /// hash and an annotation of the same key the names.
    pub const CACHED_IMAGE: &str = "drop.corewire.io/cachedimage";
    /// Label on a pull Pod: name of the node it warms, or a hash where the name does not fit.
    pub const NODE: &str = "drop.corewire.io/node";
    /// Label on a `CachedImage`: name of the `CachedImageSet` that made it.
    pub const IMAGE_SET: &str = "drop.corewire.io/imageset";
    /// Value of [`super::kubernetes::MANAGED_BY`] on a pull Pod.
    pub const MANAGED_BY_DROP: &str = "drop";
    /// Pull Pods are named with this prefix.
    pub const POD_NAME_PREFIX: &str = "pull-";
}

/// Names of harbor-reef-operator.
pub mod reef {
    /// Pod annotation, written by the program that rewrote the images: JSON object, container name to original image.
    pub const ORIGINAL_UPSTREAMS: &str = "harbor.rewrite/original-upstreams";
    /// Pod annotation: JSON array of the containers that healing has moved.
    pub const PATCHED_CONTAINERS: &str = "harbor-reef/patched-containers";
    /// Pod annotation: time of the last move.
    pub const PATCHED: &str = "harbor-reef/patched";
    /// Finalizer of a `ProxyCache`: its endpoint and project in Harbor are deleted first.
    pub const PROXY_CACHE_FINALIZER: &str = "harbor-reef.nvidia.com/proxycache-finalizer";
}

/// Names that Kubernetes itself gives a meaning.
pub mod kubernetes {
    /// Pod annotation of a static Pod's reflection in the API: such a Pod follows a file on its node, never the API.
    pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
    /// `ServiceAccount` annotation: only secrets listed in the account may be used by its Pods.
    pub const ENFORCE_MOUNTABLE_SECRETS: &str = "kubernetes.io/enforce-mountable-secrets";
    /// Pod label: revision of the Deployment that a Pod belongs to.
    pub const POD_TEMPLATE_HASH: &str = "pod-template-hash";
    /// Pod label: revision of the `StatefulSet` or `DaemonSet` that a Pod belongs to.
    pub const CONTROLLER_REVISION_HASH: &str = "controller-revision-hash";

    pub const NAME: &str = "app.kubernetes.io/name";
    pub const INSTANCE: &str = "app.kubernetes.io/instance";
    pub const COMPONENT: &str = "app.kubernetes.io/component";
    pub const PART_OF: &str = "app.kubernetes.io/part-of";
    pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
    pub const VERSION: &str = "app.kubernetes.io/version";
}
