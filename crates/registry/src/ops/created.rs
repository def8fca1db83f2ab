//! When an image was made, by its configuration.

use serde::Deserialize;

use crate::error::Error;
use crate::manifest::{Content, Selector, is_index};
use crate::repository::RepositoryClient;
use crate::request::context::Context;
use crate::size_limits;

#[derive(Deserialize)]
struct Dated {
    created: Option<String>,
}

impl RepositoryClient {
    /// When an image was made, as its configuration has it; that of an index when its first image was. `None`: it does
    /// not say.
    pub async fn created(&self, selector: &Selector, context: &Context) -> Result<Option<String>, Error> {
        let mut found = self.manifest(selector, context).await?.content()?;
        if let Content::Index(index) = &found {
            let mut images = index.manifests.iter().filter(|manifest| !is_index(&manifest.media_type));
            let Some(first) = images.next() else { return Ok(None) };
            found = self.manifest(&first.digest.into(), context).await?.content()?;
        }
        let Content::Image(image) = found else { return Ok(None) };
        let config = self.small_blob(&image.config, size_limits::CONFIG, context).await;
        let config = config.map_err(|problem| self.during("read the configuration of", selector, problem))?;
        Ok(serde_json::from_slice::<Dated>(&config).ok().and_then(|config| config.created))
    }
}
