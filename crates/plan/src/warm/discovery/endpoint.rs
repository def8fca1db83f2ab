//! Addresses of backends, and the requests below them.

use url::Url;

use super::compile::SpecError;

/// Reads the address of a backend.
pub(super) fn parse(field: &str, text: &str) -> Result<Url, SpecError> {
    let refuse = |problem: String| SpecError::value(field, problem);
    let url = Url::parse(text).map_err(|error| refuse(format!("not an address: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") || url.host().is_none() {
        return Err(refuse("not an address: write it with http:// or https:// and a host".to_owned()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(refuse("user and password belong into the Secret of secretRef".to_owned()));
    }
    Ok(url)
}

/// A request below an address: its own path stays in front, and its parameters stay unless ours have the same name.
pub(super) fn below(endpoint: &Url, path: &str, parameters: &[(&str, &str)]) -> Url {
    let mut url = endpoint.clone();
    url.set_path(&format!("{}{path}", endpoint.path().trim_end_matches('/')));
    url.set_fragment(None);
    let kept: Vec<(String, String)> = endpoint
        .query_pairs()
        .filter(|(name, _)| parameters.iter().all(|(ours, _)| name != ours))
        .map(|(name, value)| (name.into_owned(), value.into_owned()))
        .collect();
    url.query_pairs_mut().clear().extend_pairs(kept).extend_pairs(parameters);
    url
}
