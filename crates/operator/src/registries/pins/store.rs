//! Creates pins, or reads those that another replica created first.

use std::{sync::Arc, time::Duration};

use fairlead_api::fairlead::{ImagePin, PinnedImage};
use fairlead_plan::pinning::{PinWrite, Revision, write};
use kube::{
    Api,
    api::{Patch, PatchParams, PostParams},
};
use tokio::time::Instant;

use super::{PinsInner, metrics::Done};
use crate::cluster::state::Key;
use crate::platform::api_error::{Class, within};

/// Whose fields these are.
const FIELD_MANAGER: &str = "fairlead-webhook";

/// One request never takes longer.
const LIMIT: Duration = Duration::from_secs(5);

/// Each is refused only because another replica wrote in between.
const ATTEMPTS: usize = 5;

impl PinsInner {
    /// Sees to it that the pin holds these images, or others of the same tags. The API server decides which replica
    /// was first.
    pub(super) async fn store(
        &self,
        key: &Key,
        revision: &Revision,
        images: &[PinnedImage],
    ) -> Result<Arc<ImagePin>, String> {
        let pins: Api<ImagePin> = Api::namespaced(self.client.clone(), &key.namespace);
        let mut found = self.stored.snapshot().objects.get(key).cloned();
        for _ in 0..ATTEMPTS {
            let is_new = found.is_none();
            let written = match write(revision, found.as_deref(), images)
                .map_err(|error| error.to_string())?
            {
                PinWrite::Nothing => match found {
                    Some(pin) => return Ok(self.remember(key, pin)),
                    None => break,
                },
                PinWrite::Create(pin) => {
                    let params =
                        PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
                    let created = within(LIMIT, pins.create(&params, &pin)).await;
                    created.map(|pin| (pin, Done::Created))
                }
                PinWrite::Add(patch) => {
                    let params = PatchParams {
                        field_manager: Some(FIELD_MANAGER.to_owned()),
                        ..PatchParams::default()
                    };
                    let added = within(LIMIT, pins.patch(&key.name, &params, &Patch::Merge(patch))).await;
                    added.map(|pin| (pin, Done::Extended))
                }
            };
            match written {
                Ok((pin, done)) => {
                    self.metrics.count(done);
                    return Ok(self.remember(key, Arc::new(pin)));
                }
                // What is absent when a pin is created is its kind, or its namespace.
                Err(failure)
                    if failure.class == Class::Conflict || failure.class == Class::Absent && !is_new =>
                {
                    self.metrics.count(Done::Read);
                    let read = within(LIMIT, pins.get_opt(&key.name)).await;
                    let read = read
                        .map_err(|failure| format!("ImagePin {} could not be read: {failure}", key.name))?;
                    found = read.map(Arc::new);
                }
                Err(failure) => return Err(format!("ImagePin {} could not be stored: {failure}", key.name)),
            }
        }
        Err(format!("ImagePin {} is changed all the time", key.name))
    }

    /// The watch shows it a little later.
    fn remember(&self, key: &Key, pin: Arc<ImagePin>) -> Arc<ImagePin> {
        self.recent.lock().insert(key, (Arc::clone(&pin), Instant::now()), 0);
        pin
    }
}
