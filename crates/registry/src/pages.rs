//! Listings that come in pages: the `Link` header names the next one.

use crate::{answer::Answer, error::Problem, outgoing::Pointer, remote::Remote};

impl Remote {
    /// Where the next page is, if there is one.
    pub(crate) fn next_page(&self, answer: &Answer) -> Result<Option<Pointer>, Problem> {
        for value in answer.headers().get_all("link") {
            if let Some(address) = value.to_str().ok().and_then(next_link) {
                return self.pointer(answer, address).map(Some);
            }
        }
        Ok(None)
    }
}

/// The address of the `next` relation: `</v2/a/tags/list?last=z>; rel="next"`.
fn next_link(header: &str) -> Option<&str> {
    let mut rest = header;
    while let Some((_, after)) = rest.split_once('<') {
        let (address, after) = after.split_once('>')?;
        let (parameters, following) = match after.find('<') {
            Some(next) => after.split_at_checked(next)?,
            None => (after, ""),
        };
        if parameters.split([';', ',']).any(is_next) {
            return Some(address);
        }
        rest = following;
    }
    None
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
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_next_page_is_found() {
        for (header, expected) in [
            (r#"</v2/a/tags/list?last=b&n=2>; rel="next""#, Some("/v2/a/tags/list?last=b&n=2")),
            (r"</x>;rel=next", Some("/x")),
            (r#"</p>; rel="prev", </n>; title="a"; rel="last next""#, Some("/n")),
            (r#"</p>; rel="prev""#, None),
            ("</n>", None),
            (r"no link", None),
            (r"<unfinished", None),
        ] {
            assert_eq!(next_link(header), expected, "{header}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read(header in "[ -~]{0,100}") {
            prop_assert!(next_link(&header).is_none_or(|address| header.contains(address)));
        }
    }
}
