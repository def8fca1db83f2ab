//! Removing images.
//!
//! A tag is deleted as a tag where the registry can do that, because deleting its digest takes every other tag of the same
//! image with it. Older registries (distribution 2.8) know only digests and answer 400 or 405 to a tag.

use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Tag;
use hyper::Method;

use crate::error::{Error, Problem};
use crate::manifest::Selector;
use crate::repository::RepositoryClient;
use crate::request::ApiRequest;
use crate::request::context::Context;

/// What a deletion removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// The tag alone.
    Tag,
    /// The manifest, and with it every tag that named it.
    Digest(Digest),
    /// It was not there.
    Nothing,
    /// Nothing, since the registry deletes no tags; the manifest may still be deleted by its digest.
    Unsupported,
}

impl RepositoryClient {
    /// Deletes a tag, or the manifest it names where the registry cannot delete tags.
    pub async fn delete_tag(&self, tag: &Tag, context: &Context) -> Result<Deleted, Error> {
        let selector = Selector::from(tag);
        let deleted = async {
            match self.remove_tag(&selector, context).await? {
                Deleted::Unsupported => {}
                deleted => return Ok(deleted),
            }
            let digest = match self.resolve(&selector, context).await {
                Ok(resolved) => resolved.digest,
                Err(Error { problem: Problem::NotFound(_), .. }) => return Ok(Deleted::Nothing),
                Err(error) => return Err(error.problem),
            };
            self.remove_digest(digest, context).await
        };
        deleted.await.map_err(|problem| self.during("delete", &selector, problem))
    }

    /// Deletes a tag and nothing else, or says that the registry cannot do that.
    pub async fn delete_tag_only(&self, tag: &Tag, context: &Context) -> Result<Deleted, Error> {
        let selector = Selector::from(tag);
        let deleted = self.remove_tag(&selector, context).await;
        deleted.map_err(|problem| self.during("delete", &selector, problem))
    }

    /// Deletes a manifest and every tag that names it.
    pub async fn delete_digest(&self, digest: Digest, context: &Context) -> Result<Deleted, Error> {
        let deleted = self.remove_digest(digest, context).await;
        deleted.map_err(|problem| self.during("delete", &digest.into(), problem))
    }

    async fn remove_tag(&self, selector: &Selector, context: &Context) -> Result<Deleted, Problem> {
        match self.delete(selector, context).await {
            Ok(()) => Ok(Deleted::Tag),
            Err(Problem::NotFound(_)) => Ok(Deleted::Nothing),
            Err(Problem::Rejected { status: 400 | 405 | 501, .. }) => Ok(Deleted::Unsupported),
            Err(problem) => Err(problem),
        }
    }

    async fn remove_digest(&self, digest: Digest, context: &Context) -> Result<Deleted, Problem> {
        match self.delete(&digest.into(), context).await {
            Ok(()) => Ok(Deleted::Digest(digest)),
            Err(Problem::NotFound(_)) => Ok(Deleted::Nothing),
            Err(Problem::Rejected { status: 405, .. }) => {
                Err(Problem::Rejected { status: 405, detail: "deleting is switched off there".into() })
            }
            Err(problem) => Err(problem),
        }
    }

    async fn delete(&self, selector: &Selector, context: &Context) -> Result<(), Problem> {
        let outgoing =
            ApiRequest::api(Method::DELETE, self.path(&format!("manifests/{}", selector.as_str())));
        let answer = self.call(&outgoing, context).await?;
        drop(answer.into_permit(context).await);
        Ok(())
    }
}
