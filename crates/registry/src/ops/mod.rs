//! Registry operations, one file each. All are methods of [`RepositoryClient`](crate::RepositoryClient).

pub(crate) mod artifact;
pub(crate) mod blob;
pub(crate) mod created;
pub(crate) mod delete;
pub(crate) mod manifest;
pub(crate) mod probe;
pub(crate) mod referrers;
pub(crate) mod tag_usage;
pub(crate) mod tags;
pub(crate) mod upload;
