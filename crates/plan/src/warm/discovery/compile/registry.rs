//! Registries to list tags of.

use fairlead_api::drop::{RegistryQuery, RegistrySource};
use fairlead_domain::reference::{Host, Reference, Repository};
use regex::{Regex, RegexBuilder};
use url::{Position, Url};

use super::{SpecError, endpoint, search};
use crate::warm::discovery::tags::TagQuery;
use crate::warm::discovery::template::Template;

/// Tags to read per repository where the policy does not say.
const SCANNED: usize = 1000;
/// The same for sources, which cannot say.
const SCANNED_BY_SOURCE: usize = 10_000;
/// Largest compiled pattern, in bytes.
const PATTERN_SIZE: usize = 256 << 10;

pub(super) fn of_query(field: &str, block: &RegistryQuery) -> Result<TagQuery, SpecError> {
    let (registry, plain_http) = registry(&format!("{field}.url"), &block.url)?;
    Ok(TagQuery {
        repositories: repositories(field, &registry, &block.repositories)?,
        registry,
        plain_http,
        seek: block.tag_seek.clone().filter(|seek| !seek.is_empty()),
        most: positive(block.max_scan).unwrap_or(SCANNED),
        filter: search(&format!("{field}.tagFilter"), block.tag_filter.as_deref())?,
        version: version(&format!("{field}.versionPattern"), block.version_pattern.as_deref())?,
        top: positive(block.top_x).unwrap_or(usize::MAX),
        template: template(field, block.image_template.as_deref())?,
        by_date: false,
    })
}

pub(super) fn of_source(field: &str, block: &RegistrySource) -> Result<TagQuery, SpecError> {
    let (registry, plain_http) = registry(&format!("{field}.url"), &block.url)?;
    Ok(TagQuery {
        repositories: repositories(field, &registry, &block.repositories)?,
        registry,
        plain_http,
        seek: None,
        most: SCANNED_BY_SOURCE,
        filter: search(&format!("{field}.tagFilter"), block.tag_filter.as_deref())?,
        version: None,
        top: positive(block.top_x).unwrap_or(usize::MAX),
        template: template(field, block.image_template.as_deref())?,
        by_date: true,
    })
}

fn positive(number: Option<i32>) -> Option<usize> {
    number.and_then(|number| usize::try_from(number).ok()).filter(|number| *number > 0)
}

fn registry(field: &str, text: &str) -> Result<(Host, bool), SpecError> {
    let url: Url = endpoint::parse(field, text)?;
    if url.path() != "/" || url.query().is_some() {
        return Err(SpecError::value(field, "is followed by a path: paths belong into repositories"));
    }
    let host = Host::parse(&url[Position::BeforeHost..Position::AfterPort]);
    let host = host.map_err(|error| SpecError::value(field, error.to_string()))?;
    Ok((host, url.scheme() == "http"))
}

fn repositories(field: &str, registry: &Host, paths: &[String]) -> Result<Vec<Repository>, SpecError> {
    super::read_all(&format!("{field}.repositories"), paths, |field, path| {
        let reference = Reference::parse(&format!("{registry}/{path}"));
        let repository = reference.map_err(|error| SpecError::value(field, error.to_string()))?.repository();
        if repository.host() != *registry {
            // Runtimes take such a name for a part of a path on Docker Hub.
            let problem = format!("{registry} is no host of images: write it with a dot or a port");
            return Err(SpecError::value(field, problem));
        }
        Ok(repository)
    })
}

fn version(field: &str, pattern: Option<&str>) -> Result<Option<Regex>, SpecError> {
    let Some(pattern) = pattern.filter(|pattern| !pattern.is_empty()) else { return Ok(None) };
    let built = RegexBuilder::new(pattern).size_limit(PATTERN_SIZE).build();
    let built = built.map_err(|error| SpecError::filter(field, &error))?;
    if built.captures_len() < 2 {
        return Err(SpecError::filter(
            field,
            &"no part of it is in parentheses, and that part is the version",
        ));
    }
    Ok(Some(built))
}

fn template(field: &str, text: Option<&str>) -> Result<Template, SpecError> {
    match text.filter(|text| !text.is_empty()) {
        Some(text) => Template::parse(&format!("{field}.imageTemplate"), text),
        None => Ok(Template::default()),
    }
}
