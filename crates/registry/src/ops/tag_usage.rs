//! Whether another tag of a repository uses a manifest.
//!
//! Registries that cannot delete tags delete manifests, and with them other tags of the same image and indexes that
//! contain it. No request answers that, so the tags of the repository are resolved, up to a limit.

use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Tag;
use futures::{StreamExt as _, TryStreamExt as _, stream};

use crate::error::{Error, Problem};
use crate::manifest::{Content, Selector, is_index};
use crate::repository::RepositoryClient;
use crate::request::context::Context;

/// Tags resolved at once.
const AT_ONCE: usize = 4;

/// Whether a manifest is used besides by one tag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TagUsage {
    /// By no other tag.
    Unused,
    /// By this tag, which names it or an index that contains it.
    UsedBy(Tag),
    /// There are too many tags, or nested indexes.
    Unknown,
}

impl RepositoryClient {
    /// Whether a tag of the repository other than `except` uses this manifest. At most `most` other tags are resolved.
    pub async fn tag_usage(
        &self,
        digest: Digest,
        except: &Tag,
        most: usize,
        context: &Context,
    ) -> Result<TagUsage, Error> {
        let listed = match self.tags(most.saturating_add(1), context).await {
            Ok(listed) => listed,
            Err(Error { problem: Problem::NotFound(_), .. }) => return Ok(TagUsage::Unused),
            Err(error) => return Err(error),
        };
        let others: Vec<Tag> = listed.tags.into_iter().filter(|tag| tag != except).collect();
        if !listed.complete || others.len() > most {
            return Ok(TagUsage::Unknown);
        }
        let usages = stream::iter(others).map(|tag| self.usage_by(tag, digest, context));
        let mut usages = std::pin::pin!(usages.buffer_unordered(AT_ONCE));
        let mut usage = TagUsage::Unused;
        while let Some(next) = usages.try_next().await? {
            match next {
                TagUsage::UsedBy(_) => return Ok(next),
                TagUsage::Unknown => usage = next,
                TagUsage::Unused => {}
            }
        }
        Ok(usage)
    }

    async fn usage_by(&self, tag: Tag, digest: Digest, context: &Context) -> Result<TagUsage, Error> {
        let selector = Selector::from(&tag);
        let resolved = match self.resolve(&selector, context).await {
            Ok(resolved) => resolved,
            Err(Error { problem: Problem::NotFound(_), .. }) => return Ok(TagUsage::Unused),
            Err(error) => return Err(error),
        };
        if resolved.digest == digest {
            return Ok(TagUsage::UsedBy(tag));
        }
        if !is_index(&resolved.media_type) {
            return Ok(TagUsage::Unused);
        }
        match self.manifest(&resolved.digest.into(), context).await?.content()? {
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
