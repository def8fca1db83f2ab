//! The spellings of one reference that filters see.
//!
//! A filter written for `name:.+` should cover an image without a tag (it is pulled as `latest`) and an image pinned
//! by digest; a filter for `name@sha256:…` should cover an image that carries a tag beside its digest. So a reference
//! has up to three forms, and a match of any of them counts, for include and exclude alike.

use super::{DEFAULT_TAG, Location, Reference};

/// One to three texts, each starting with the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forms {
    texts: Vec<String>,
    host_end: usize,
    /// Where the name ends, which all forms share.
    name_end: usize,
}

impl Forms {
    pub(super) fn of(reference: &Reference) -> Self {
        let (name, normalised) = (reference.name(), reference.as_str().to_owned());
        let texts = match (reference.tag(), reference.digest_text()) {
            (None, None) => vec![format!("{name}:{DEFAULT_TAG}"), normalised],
            (Some(_), None) => vec![normalised],
            (Some(tag), Some(digest)) => {
                vec![normalised, format!("{name}:{tag}"), format!("{name}@{digest}")]
            }
            (None, Some(digest)) => vec![normalised, format!("{name}:{digest}")],
        };
        Self { texts, host_end: reference.host_end, name_end: reference.name_end }
    }

    /// The whole texts, host included.
    pub fn iter(&self) -> impl Iterator<Item = &str> + Clone {
        self.texts.iter().map(String::as_str)
    }

    /// The texts after the host, starting with a slash.
    pub fn paths(&self) -> impl Iterator<Item = &str> + Clone {
        self.after(self.host_end)
    }

    /// The texts after a place, as the filters of replicated upstreams see them; `None` when the image is not there.
    pub fn below(&self, place: &Location) -> Option<impl Iterator<Item = &str> + Clone> {
        let name = self.texts.first()?.get(..self.name_end)?;
        let rest = name.strip_prefix(place.as_str())?;
        (rest.is_empty() || rest.starts_with('/')).then(|| self.after(place.as_str().len()))
    }

    fn after(&self, offset: usize) -> impl Iterator<Item = &str> + Clone {
        self.texts.iter().filter_map(move |text| text.get(offset..))
    }
}
