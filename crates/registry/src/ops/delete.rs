//! Deletion of tags and manifests.
//!
//! A tag is deleted as a tag where the registry supports it, because deleting its digest deletes every other tag of the
//! same image. Older registries (distribution 2.8) only delete by digest and answer 400 or 405 to a tag.

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
    /// The registry does not delete tags; the manifest may still be deleted by its digest.
    Unsupported,
}

impl RepositoryClient {
    /// Deletes a tag and nothing else.
    pub async fn delete_tag(&self, tag: &Tag, context: &Context) -> Result<Deleted, Error> {
        let selector = Selector::from(tag);
        match self.delete(&selector, context).await {
            Ok(()) => Ok(Deleted::Tag),
            Err(Problem::NotFound(_)) => Ok(Deleted::Nothing),
            Err(Problem::Rejected { status: 400 | 405 | 501, .. }) => Ok(Deleted::Unsupported),
            Err(problem) => Err(self.during("delete", &selector, problem)),
        }
    }

    /// Deletes a manifest and every tag that names it.
    pub async fn delete_digest(&self, digest: Digest, context: &Context) -> Result<Deleted, Error> {
        let problem = match self.delete(&digest.into(), context).await {
            Ok(()) => return Ok(Deleted::Digest(digest)),
            Err(Problem::NotFound(_)) => return Ok(Deleted::Nothing),
            Err(Problem::Rejected { status: 405, .. }) => {
                Problem::Rejected { status: 405, detail: "deleting is switched off there".into() }
            }
            Err(problem) => problem,
        };
        Err(self.during("delete", &digest.into(), problem))
    }

    async fn delete(&self, selector: &Selector, context: &Context) -> Result<(), Problem> {
        let request = ApiRequest::api(Method::DELETE, self.path(&format!("manifests/{}", selector.as_str())));
        let response = self.call(&request, context).await?;
        drop(response.into_permit(context).await);
        Ok(())
    }
}
