//! What the registry holds.

use std::collections::{BTreeMap, HashMap};

use bytes::{Bytes, BytesMut};
use sha2::{Digest as _, Sha256, Sha512};

#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) media_type: String,
    pub(super) bytes: Bytes,
}

#[derive(Debug, Default)]
struct Repository {
    blobs: HashMap<String, Bytes>,
    manifests: HashMap<String, Stored>,
    tags: BTreeMap<String, String>,
}

#[derive(Debug, Default)]
pub(super) struct Store {
    repositories: HashMap<String, Repository>,
    uploads: HashMap<String, BytesMut>,
    opened: usize,
}

impl Store {
    fn repository(&mut self, name: &str) -> &mut Repository {
        self.repositories.entry(name.to_owned()).or_default()
    }

    pub(super) fn put_blob(&mut self, repository: &str, digest: &str, bytes: Bytes) {
        self.repository(repository).blobs.insert(digest.to_owned(), bytes);
    }

    pub(super) fn blob(&self, repository: &str, digest: &str) -> Option<Bytes> {
        self.repositories.get(repository)?.blobs.get(digest).cloned()
    }

    pub(super) fn delete_blob(&mut self, repository: &str, digest: &str) -> bool {
        self.repository(repository).blobs.remove(digest).is_some()
    }

    /// Stores a manifest under its digest and, if the reference is a tag, under that. Returns the digest.
    pub(super) fn put_manifest(
        &mut self,
        repository: &str,
        reference: &str,
        media_type: &str,
        bytes: Bytes,
    ) -> String {
        let digest = if reference.starts_with("sha512:") { sha512(&bytes) } else { sha256(&bytes) };
        let repository = self.repository(repository);
        repository.manifests.insert(digest.clone(), Stored { media_type: media_type.to_owned(), bytes });
        if !reference.contains(':') {
            repository.tags.insert(reference.to_owned(), digest.clone());
        }
        digest
    }

    pub(super) fn manifest(&self, repository: &str, reference: &str) -> Option<(String, Stored)> {
        let repository = self.repositories.get(repository)?;
        let digest = repository.tags.get(reference).map_or(reference, String::as_str);
        repository.manifests.get(digest).map(|stored| (digest.to_owned(), stored.clone()))
    }

    pub(super) fn manifests(&self, repository: &str) -> Vec<(String, Stored)> {
        let repository = self.repositories.get(repository);
        let manifests = repository.into_iter().flat_map(|repository| &repository.manifests);
        let mut all: Vec<_> = manifests.map(|(digest, stored)| (digest.clone(), stored.clone())).collect();
        all.sort_by(|one, other| one.0.cmp(&other.0));
        all
    }

    pub(super) fn lose_manifest(&mut self, repository: &str, digest: &str) {
        self.repository(repository).manifests.remove(digest);
    }

    pub(super) fn delete_tag(&mut self, repository: &str, tag: &str) -> bool {
        self.repository(repository).tags.remove(tag).is_some()
    }

    pub(super) fn delete_manifest(&mut self, repository: &str, digest: &str) -> bool {
        let repository = self.repository(repository);
        repository.tags.retain(|_, named| named != digest);
        repository.manifests.remove(digest).is_some()
    }

    /// The tags of a repository, if there is one.
    pub(super) fn tags(&self, repository: &str) -> Option<Vec<String>> {
        Some(self.repositories.get(repository)?.tags.keys().cloned().collect())
    }

    pub(super) fn open_upload(&mut self) -> String {
        self.opened += 1;
        let name = format!("upload-{}", self.opened);
        self.uploads.insert(name.clone(), BytesMut::new());
        name
    }

    pub(super) fn upload(&mut self, name: &str) -> Option<&mut BytesMut> {
        self.uploads.get_mut(name)
    }

    pub(super) fn close_upload(&mut self, name: &str) -> Option<Bytes> {
        self.uploads.remove(name).map(BytesMut::freeze)
    }

    pub(super) fn open_uploads(&self) -> usize {
        self.uploads.len()
    }
}

pub(super) fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

fn sha512(bytes: &[u8]) -> String {
    format!("sha512:{}", hex(&Sha512::digest(bytes)))
}

/// Whether content has this digest.
pub(super) fn matches(digest: &str, bytes: &[u8]) -> bool {
    if digest.starts_with("sha512:") { digest == sha512(bytes) } else { digest == sha256(bytes) }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}
