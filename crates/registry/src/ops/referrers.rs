//! Referrers of an image: signatures, attestations, bills of materials.
//!
//! Registries of the current specification list them. On others, clients that push a referrer keep an index under a tag
//! made of the digest.

use std::collections::HashSet;

use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Tag;
use hyper::Method;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};

use crate::error::{Error, Problem};
use crate::manifest::{Content, Descriptor, OCI_INDEX, Selector};
use crate::repository::RepositoryClient;
use crate::request::ApiRequest;
use crate::request::context::Context;
use crate::request::response::ApiResponse;
use crate::size_limits;

/// The referrers of one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Referrers {
    pub manifests: Vec<Descriptor>,
    /// The tag of their index, where the registry itself does not list them.
    pub fallback_tag: Option<Tag>,
}

/// The tag of the index of referrers on registries that do not list them: `sha256-<hex>`.
pub fn fallback_tag(digest: &Digest) -> Option<Tag> {
    let hex: String = digest.hex().chars().take(64).collect();
    Tag::parse(&format!("{}-{hex}", digest.algorithm().name())).ok()
}

impl RepositoryClient {
    /// The manifests that name this one as their subject.
    pub async fn referrers(&self, digest: &Digest, context: &Context) -> Result<Referrers, Error> {
        self.find_referrers(digest, context)
            .await
            .map_err(|problem| self.during("find what refers to", &(*digest).into(), problem))
    }

    async fn find_referrers(&self, digest: &Digest, context: &Context) -> Result<Referrers, Problem> {
        if let Some(manifests) = self.listed_referrers(digest, context).await? {
            return Ok(Referrers { manifests, fallback_tag: None });
        }
        let Some(tag) = fallback_tag(digest) else {
            return Ok(Referrers { manifests: vec![], fallback_tag: None });
        };
        match self.get(&Selector::from(&tag), context).await {
            Ok((manifest, _)) => match Content::read(&manifest.media_type, &manifest.bytes)? {
                Content::Index(index) => {
                    Ok(Referrers { manifests: index.manifests, fallback_tag: Some(tag) })
                }
                Content::Image(_) => Err(Problem::malformed(format!("the tag {tag} should name an index"))),
            },
            Err(Problem::NotFound(_)) => Ok(Referrers { manifests: vec![], fallback_tag: Some(tag) }),
            Err(problem) => Err(problem),
        }
    }

    /// The registry's own list; `None` if it has none.
    async fn listed_referrers(
        &self,
        digest: &Digest,
        context: &Context,
    ) -> Result<Option<Vec<Descriptor>>, Problem> {
        let list = ApiRequest::api(Method::GET, self.path(&format!("referrers/{digest}")));
        let mut page = match self.call(&for_index(list), context).await {
            Ok(page) => page,
            Err(Problem::NotFound(_) | Problem::Rejected { .. }) => return Ok(None),
            Err(problem) => return Err(problem),
        };
        // Some registries answer unknown addresses with an HTML page.
        if !is_index(&page) {
            return Ok(None);
        }
        let (mut manifests, mut known, mut barren) = (Vec::new(), HashSet::new(), 0);
        for _ in 0..size_limits::PAGES {
            let next = self.next_page(&page)?;
            let body = page.bytes("the list of referrers", size_limits::MANIFEST, context).await?;
            let Content::Index(index) = Content::read(OCI_INDEX, &body)? else { return Ok(None) };
            let before = manifests.len();
            manifests.extend(index.manifests.into_iter().filter(|manifest| known.insert(manifest.digest)));
            let Some(next) = next else { return Ok(Some(manifests)) };
            barren = if manifests.len() == before { barren + 1 } else { 0 };
            if barren == size_limits::BARREN_PAGES {
                return Err(Problem::malformed("its list of referrers leads on and on without a new one"));
            }
            // The registry does list referrers: a failure from here on is no reason to use the tag.
            page = self.follow_page(&for_index(ApiRequest::location(Method::GET, next)), context).await?;
            if !is_index(&page) {
                return Err(Problem::malformed("its list of referrers goes on with something else"));
            }
        }
        Err(Problem::malformed("its list of referrers has no end"))
    }
}

fn for_index(mut request: ApiRequest) -> ApiRequest {
    request.headers.insert(ACCEPT, HeaderValue::from_static(OCI_INDEX));
    request
}

fn is_index(response: &ApiResponse) -> bool {
    response.header(CONTENT_TYPE.as_str()).is_some_and(|kind| kind.starts_with(OCI_INDEX))
}

#[cfg(test)]
mod tests {
    use fairlead_domain::digest::Algorithm;

    use super::*;

    #[test]
    fn the_fallback_tag_follows_the_specification() {
        let tag = fallback_tag(&Digest::sha256(b"")).unwrap();
        assert_eq!(tag.as_str(), "sha256-e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        let long = fallback_tag(&Algorithm::Sha512.digest(b"")).unwrap();
        assert_eq!(long.as_str().len(), "sha512-".len() + 64);
    }
}
