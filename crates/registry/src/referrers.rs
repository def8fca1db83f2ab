//! What refers to an image: signatures, attestations, bills of materials.
//!
//! Registries of the current specification answer a question about it. For the others there is an agreement: an index under
//! a tag made of the digest, kept by whoever pushes a referrer.

use fairlead_domain::{digest::Digest, reference::Tag};
use hyper::{
    Method,
    header::{ACCEPT, CONTENT_TYPE, HeaderValue},
};

use crate::{
    bounds,
    context::Context,
    error::{Error, Problem},
    manifest::{Content, Descriptor, OCI_INDEX, Selector},
    outgoing::Outgoing,
    remote::Remote,
};

/// Referrers of one image, and how they were found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Referrers {
    pub manifests: Vec<Descriptor>,
    /// The tag that lists them, where the registry itself does not.
    pub fallback_tag: Option<Tag>,
}

/// The tag under which referrers are listed on registries that do not list them: `sha256-<hex>`.
pub fn fallback_tag(digest: &Digest) -> Option<Tag> {
    let hex: String = digest.hex().chars().take(64).collect();
    Tag::parse(&format!("{}-{hex}", digest.algorithm().name())).ok()
}

impl Remote {
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

    /// The registry's own list; `None` if it keeps none.
    async fn listed_referrers(
        &self,
        digest: &Digest,
        context: &Context,
    ) -> Result<Option<Vec<Descriptor>>, Problem> {
        let mut outgoing = Outgoing::api(Method::GET, self.path(&format!("referrers/{digest}")));
        let mut manifests = Vec::new();
        for _ in 0..bounds::PAGES {
            outgoing.headers_mut().insert(ACCEPT, HeaderValue::from_static(OCI_INDEX));
            let answer = match self.call(&outgoing, context).await {
                Ok(answer) => answer,
                Err(Problem::NotFound(_) | Problem::Rejected { .. }) => return Ok(None),
                Err(problem) => return Err(problem),
            };
            // Some registries answer unknown addresses with a page for people.
            let kind = answer.header(CONTENT_TYPE.as_str()).unwrap_or_default();
            if !kind.starts_with(OCI_INDEX) {
                return Ok(None);
            }
            let next = self.next_page(&answer)?;
            let body = answer.bytes("the list of referrers", bounds::MANIFEST, context).await?;
            let Content::Index(index) = Content::read(OCI_INDEX, &body)? else {
                return Ok(None);
            };
            if index.manifests.is_empty() && next.is_some() {
                return Err(Problem::malformed("its list of referrers leads on and on without a new one"));
            }
            manifests.extend(index.manifests);
            match next {
                Some(next) => outgoing = Outgoing::pointed(Method::GET, next),
                None => return Ok(Some(manifests)),
            }
        }
        Err(Problem::malformed("its list of referrers has no end"))
    }
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
