//! Listing of tags.

use std::collections::BTreeSet;

use fairlead_domain::reference::Tag;
use hyper::Method;
use serde::Deserialize;
use url::form_urlencoded;

use crate::error::{Error, Problem};
use crate::repository::RepositoryClient;
use crate::request::ApiRequest;
use crate::request::context::Context;
use crate::size_limits;

/// Tags in lexical order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tags {
    pub tags: BTreeSet<Tag>,
    /// False if there are more than were requested.
    pub complete: bool,
}

#[derive(Deserialize)]
struct Page {
    /// `null` in a repository without tags.
    #[serde(default)]
    tags: Option<Vec<String>>,
}

impl RepositoryClient {
    /// Lists tags, at most `most` of them.
    pub async fn tags(&self, most: usize, context: &Context) -> Result<Tags, Error> {
        self.tags_after(None, most, context).await
    }

    /// The same, of those that come after a text in the order of the registry.
    pub async fn tags_after(
        &self,
        last: Option<&str>,
        most: usize,
        context: &Context,
    ) -> Result<Tags, Error> {
        self.list_tags(last, most, context)
            .await
            .map_err(|problem| problem.during(format!("list the tags of {}", self.repository())))
    }

    async fn list_tags(&self, last: Option<&str>, most: usize, context: &Context) -> Result<Tags, Problem> {
        let path = self.path("tags/list");
        let after = |sign: char| {
            let last = last.map(|last| form_urlencoded::byte_serialize(last.as_bytes()).collect::<String>());
            last.map(|last| format!("{sign}last={last}")).unwrap_or_default()
        };
        let paged =
            ApiRequest::api(Method::GET, format!("{path}?n={}{}", size_limits::TAGS_PER_PAGE, after('&')));
        let mut response = match self.call(&paged, context).await {
            // A registry that allows fewer per page than requested; it may choose.
            Err(Problem::Rejected { status: 400, .. }) => {
                self.call(&ApiRequest::api(Method::GET, path + &after('?')), context).await?
            }
            response => response?,
        };
        let mut found = Tags::default();
        let mut barren = 0;
        for _ in 0..size_limits::PAGES {
            let next = self.next_page(&response)?;
            let body = response.bytes("the list of tags", size_limits::TAGS_PAGE, context).await?;
            let page: Page = serde_json::from_slice(&body)
                .map_err(|error| Problem::malformed(format!("the list of tags cannot be read: {error}")))?;
            let before = found.tags.len();
            for tag in page.tags.unwrap_or_default() {
                if found.tags.len() == most {
                    return Ok(found);
                }
                // An invalid tag cannot be pulled; it is left out.
                found.tags.extend(Tag::parse(&tag));
            }
            let Some(next) = next else {
                found.complete = true;
                return Ok(found);
            };
            barren = if found.tags.len() == before { barren + 1 } else { 0 };
            if barren == size_limits::BARREN_PAGES {
                return Err(Problem::malformed("its list of tags leads on and on without a new one"));
            }
            response = self.follow_page(&ApiRequest::location(Method::GET, next), context).await?;
        }
        Ok(found)
    }
}
