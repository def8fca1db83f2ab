//! The spellings of one reference that filters see.
//!
//! A filter written for `name:.+` should cover an image without a tag (it is pulled as `latest`) and an image pinned
//! by digest; a filter for `name@sha256:…` should cover an image that carries a tag beside its digest. So a reference
//! has up to three forms, and a match of any of them counts, for include and exclude alike.

use super::{DEFAULT_TAG, Location, Reference};

/// One to three texts, each starting with the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forms {
    /// Its normalised text is always one of them, and mostly the only one.
    reference: Reference,
    others: Vec<String>,
}

impl Forms {
    pub(super) fn of(reference: &Reference) -> Self {
        let name = reference.name();
        let others = match (reference.tag(), reference.digest_text()) {
            (None, None) => vec![format!("{name}:{DEFAULT_TAG}")],
            (Some(_), None) => Vec::new(),
            (Some(tag), Some(digest)) => vec![format!("{name}:{tag}"), format!("{name}@{digest}")],
            (None, Some(digest)) => vec![format!("{name}:{digest}")],
        };
        Self { reference: reference.clone(), others }
    }

    /// The whole texts, host included.
    pub fn iter(&self) -> impl Iterator<Item = &str> + Clone {
        self.after(0)
    }

    /// The texts after the host, starting with a slash.
    pub fn paths(&self) -> impl Iterator<Item = &str> + Clone {
        self.after(self.reference.host_end())
    }

    /// The texts after a place, as the filters of replicated upstreams see them; `None` when the image is not there.
    pub fn below(&self, place: &Location) -> Option<impl Iterator<Item = &str> + Clone> {
        place.prefix_in(&self.reference).map(|end| self.after(end))
    }

    fn after(&self, offset: usize) -> impl Iterator<Item = &str> + Clone {
        let texts = std::iter::once(self.reference.as_str()).chain(self.others.iter().map(String::as_str));
        texts.filter_map(move |text| text.get(offset..))
    }
}
