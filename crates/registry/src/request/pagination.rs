//! Listings in pages: the `Link` header names the next one.

use std::str;

use hyper::HeaderMap;
use hyper::header::LINK;

use crate::error::Problem;
use crate::repository::RepositoryClient;
use crate::request::context::Context;
use crate::request::response::ApiResponse;
use crate::request::{ApiRequest, CheckedLocation};

impl RepositoryClient {
    /// The address of the next page, if there is one.
    pub(crate) fn next_page(&self, response: &ApiResponse) -> Result<Option<CheckedLocation>, Problem> {
        match next_in(response.headers())? {
            Some(address) => self.checked(response, address).map(Some),
            None => Ok(None),
        }
    }

    /// Requests a page that another one named. A 404 here does not mean that the listing is empty.
    pub(crate) async fn follow_page(
        &self,
        page: &ApiRequest,
        context: &Context,
    ) -> Result<ApiResponse, Problem> {
        self.call(page, context).await.map_err(|problem| match problem {
            Problem::NotFound(why) => {
                Problem::malformed(format!("its list leads to a page that is not there{why}"))
            }
            problem => problem,
        })
    }
}

fn next_in(headers: &HeaderMap) -> Result<Option<&str>, Problem> {
    for value in headers.get_all(LINK) {
        // If it were ignored, the first page would pass for the whole listing.
        let header = str::from_utf8(value.as_bytes())
            .map_err(|_| Problem::malformed("where its list goes on is no text"))?;
        if let Some(address) = next_link(header) {
            return Ok(Some(address));
        }
    }
    Ok(None)
}

/// The address of the `next` relation: `</v2/a/tags/list?last=z>; rel="next"`.
fn next_link(header: &str) -> Option<&str> {
    let mut rest = header;
    loop {
        let (_, link) = rest.split_once('<')?;
        let (address, after) = link.split_once('>')?;
        let (mut parameters, following) = cut(after, ',');
        while !parameters.is_empty() {
            let (parameter, others) = cut(parameters, ';');
            if is_next(parameter) {
                return Some(address);
            }
            parameters = others;
        }
        rest = following;
    }
}

/// Splits at a separator outside quotes.
fn cut(text: &str, sign: char) -> (&str, &str) {
    let (mut quoted, mut escaped) = (false, false);
    let separates = |letter: char| {
        let is_literal = escaped;
        escaped = quoted && !is_literal && letter == '\\';
        quoted ^= letter == '"' && !is_literal;
        letter == sign && !quoted
    };
    text.split_once(separates).unwrap_or((text, ""))
}

fn is_next(parameter: &str) -> bool {
    let Some((name, value)) = parameter.split_once('=') else {
        return false;
    };
    name.trim().eq_ignore_ascii_case("rel")
        && value
            .trim()
            .trim_matches('"')
            .split_ascii_whitespace()
            .any(|relation| relation.eq_ignore_ascii_case("next"))
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_link_is_not_overlooked_because_of_its_letters() {
        let mut headers = HeaderMap::new();
        let mut add = |line: &'static [u8]| {
            headers.append(LINK, HeaderValue::from_bytes(line).unwrap());
            next_in(&headers).map(|address| address.map(str::to_owned))
        };
        assert_eq!(add(b"</p>; rel=prev"), Ok(None));
        assert!(matches!(add(b"</n\xe4>; rel=next"), Err(Problem::Malformed(_))));

        let mut headers = HeaderMap::new();
        headers.append(LINK, HeaderValue::from_bytes("</nä>; rel=next".as_bytes()).unwrap());
        assert_eq!(next_in(&headers), Ok(Some("/nä")));
    }

    #[test]
    fn the_next_page_is_found() {
        for (header, expected) in [
            (r#"</v2/a/tags/list?last=b&n=2>; rel="next""#, Some("/v2/a/tags/list?last=b&n=2")),
            (r"</x>;rel=next", Some("/x")),
            (r#"</p>; rel="prev", </n>; title="a"; rel="last next""#, Some("/n")),
            (r#"</p>; rel="prev""#, None),
            (r#"</n>; title="<a>, \"</b>\"; rel=prev"; rel="next""#, Some("/n")),
            (r#"</p>; title=", </q>; rel=next", </n>; rel=next"#, Some("/n")),
            ("</ä>; rel=next", Some("/ä")),
            ("</n>", None),
            (r"no link", None),
            (r"<unfinished", None),
        ] {
            assert_eq!(next_link(header), expected, "{header}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read(header in "\\PC{0,50}|[<>;,=\" a-z]{0,50}") {
            prop_assert!(next_link(&header).is_none_or(|address| header.contains(address)));
        }
    }
}
