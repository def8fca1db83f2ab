//! One `ClusterImageSetAvailability`, compiled.

use std::sync::Arc;
use std::time::Duration;

use fairlead_api::kuik::ClusterImageSetAvailability;
use fairlead_domain::reference::Reference;
use fairlead_domain::selector::Scope;

use crate::ledger::{Owner, OwnerKind};
use crate::routing::{self, PolicyError, PolicyKind};
use crate::usage::Selection;

/// Which images an object watches, and for how long after their last use.
#[derive(Debug)]
pub struct Watched {
    owner: Owner,
    scope: Scope,
    expiry: Option<Duration>,
}

impl Watched {
    pub fn compile(object: &ClusterImageSetAvailability) -> Result<Self, PolicyError> {
        let (metadata, spec) = (&object.metadata, &object.spec);
        // Its filter has the same items as that of the cluster-wide mirror, and it is named in the same way.
        let like = PolicyKind::ClusterImageSetMirror;
        let id = routing::identity(like, None, metadata.name.as_deref(), metadata.uid.as_deref())?;
        let owner = Owner {
            kind: OwnerKind::ClusterImageSetAvailability,
            namespace: None,
            name: Arc::clone(&id.name),
            uid: Arc::clone(&id.uid),
        };
        let scope = routing::scope(like, &spec.filter, &spec.image_filter)?;
        let expiry = (!spec.unused_image_expiry.is_zero()).then(|| spec.unused_image_expiry.as_std());
        Ok(Self { owner, scope, expiry })
    }

    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// What counts as use of an image.
    pub fn selection(&self) -> Selection<'_> {
        Selection { namespace: None, pods: &self.scope.pods, images: &self.scope.images, proofs: false }
    }

    /// How long an image is watched after its last use. `None`: for ever.
    pub fn expiry(&self) -> Option<Duration> {
        self.expiry
    }

    /// Whether the filter takes an image, regardless of the Pods that use it.
    pub fn takes(&self, image: &Reference) -> bool {
        self.scope.images.matches(image.forms().iter())
    }
}
