//! Whether a manifest is needed by more than one tag.
//!
//! Registries without deletion of tags delete manifests, and with them whatever else relies on them: other tags of the same
//! image, and indexes of which it is a part. That cannot be asked for in one question; the tags of the repository are
//! gone through, as far as the caller wants to go.

use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Tag;
use futures::{StreamExt as _, TryStreamExt as _, stream};

use crate::error::{Error, Problem};
use crate::manifest::{Content, Selector, is_index};
use crate::repository::RepositoryClient;
use crate::request::context::Context;

/// Tags that are looked at at once.
const AT_ONCE: usize = 4;

/// What relies on a manifest besides one tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TagUsage {
    /// No other tag.
    Unused,
    /// This tag names it, or an index that holds it.
    UsedBy(Tag),
    /// There are too many tags to tell, or indexes in too many layers.
    Unknown,
}

impl RepositoryClient {
    /// Whether another tag of the repository than `except` needs the manifest with this digest. At most `most` other tags
    /// are looked at.
    pub async fn tag_usage(
        &self,
        digest: Digest,
        except: &Tag,
        most: usize,
        context: &Context,
    ) -> Result<TagUsage, Error> {
        let listed = match self.tags(most.saturating_add(1), context).await {
            Ok(listed) => listed,
            // Without a repository there are no tags.
            Err(Error { problem: Problem::NotFound(_), .. }) => return Ok(TagUsage::Unused),
            Err(error) => return Err(error),
        };
        let others: Vec<Tag> = listed.tags.into_iter().filter(|tag| tag != except).collect();
        if !listed.complete || others.len() > most {
            return Ok(TagUsage::Unknown);
        }
        let looks = stream::iter(others).map(|tag| self.relies(tag, digest, context));
        let mut looks = std::pin::pin!(looks.buffer_unordered(AT_ONCE));
        let mut outcome = TagUsage::Unused;
        while let Some(found) = looks.try_next().await? {
            match found {
                TagUsage::UsedBy(_) => return Ok(found),
                TagUsage::Unknown => outcome = TagUsage::Unknown,
                TagUsage::Unused => {}
            }
        }
        Ok(outcome)
    }

    /// Whether a tag needs a manifest.
    async fn relies(&self, tag: Tag, digest: Digest, context: &Context) -> Result<TagUsage, Error> {
        let selector = Selector::from(&tag);
        let found = match self.resolve(&selector, context).await {
            Ok(found) => found,
            Err(Error { problem: Problem::NotFound(_), .. }) => return Ok(TagUsage::Unused),
            Err(error) => return Err(error),
        };
        if found.digest == digest {
            return Ok(TagUsage::UsedBy(tag));
        }
        if !is_index(&found.media_type) {
            return Ok(TagUsage::Unused);
        }
        match self.manifest(&found.digest.into(), context).await?.content()? {
            Content::Index(index) if index.manifests.iter().any(|part| part.digest == digest) => {
                Ok(TagUsage::UsedBy(tag))
            }
            Content::Index(index) if index.manifests.iter().any(|part| is_index(&part.media_type)) => {
                Ok(TagUsage::Unknown)
            }
            Content::Index(_) | Content::Image(_) => Ok(TagUsage::Unused),
        }
    }
}
