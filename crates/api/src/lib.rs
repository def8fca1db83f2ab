//! The custom resources of every API group that Fairlead speaks, as types and as definitions for the API server.
//!
//! Rules that can be checked when a manifest is applied are checked there, with messages that name the field and the
//! remedy, so that controllers meet only values they can act on. There is no behaviour here beyond that.

#![expect(
    unreachable_pub,
    reason = "`KubeSchema` copies each type into the body of a function, `pub` included"
)]

pub mod conditions;
pub mod crds;
pub mod drop;
pub mod fairlead;
pub mod kuik;
pub mod names;
pub mod openshift;
pub mod reef;
pub mod schema;

/// For `#[serde(skip_serializing_if = "…")]` on objects whose empty form says nothing.
pub(crate) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[cfg(test)]
mod tests;
