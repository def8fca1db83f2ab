//! How much a Pod may grow at admission: etcd refuses objects that are too large, and a record must not be what makes
//! one too large.

/// etcd takes requests of this size (its `--max-request-bytes`).
const MOST_OBJECT_BYTES: usize = 1_572_864;

/// Kept for what the API server adds when it stores the Pod, and for the rest of the request to etcd.
const SPARED_FOR_STORING: usize = 4 * 1024;

/// Kept for the status of the Pod, which grows while it runs.
const SPARED_FOR_STATUS: usize = 128 * 1024;

/// What an entry of `imagePullSecrets` takes besides the name.
const PULL_SECRET_BYTES: usize = 12;

/// The room that a Pod has left. Its JSON is counted, which is larger than the form in which the API server stores it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room {
    left: usize,
}

impl Room {
    /// Of a Pod whose JSON has so many bytes.
    pub fn of(object_bytes: usize) -> Self {
        Self { left: MOST_OBJECT_BYTES.saturating_sub(object_bytes) }
    }

    /// What is left for annotations after images got other names and pull secrets joined. `None`: not even these fit.
    pub fn after<'a>(
        self,
        images: impl IntoIterator<Item = (&'a str, &'a str)>,
        pull_secrets: impl IntoIterator<Item = &'a str>,
    ) -> Option<usize> {
        let longer = images.into_iter().map(|(before, after)| after.len().saturating_sub(before.len()));
        let secrets = pull_secrets.into_iter().map(|name| name.len() + PULL_SECRET_BYTES);
        let growth: usize = longer.chain(secrets).sum();
        if growth == 0 {
            return Some(self.left.saturating_sub(SPARED_FOR_STATUS));
        }
        let left = self.left.checked_sub(SPARED_FOR_STORING + growth)?;
        Some(left.saturating_sub(SPARED_FOR_STATUS - SPARED_FOR_STORING))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_first_then_the_record_then_nothing() {
        let image = [("nginx:1", "mirror.example.com/library/nginx:1")];
        for (bytes, expected) in [
            (10_000, Some(1_572_864 - 10_000 - 128 * 1024 - 27)),
            (1_572_864 - 128 * 1024 - 27, Some(0)),
            (1_572_864 - 4096 - 27, Some(0)),
            (1_572_864 - 4096 - 26, None),
            (1_572_864, None),
            (3_000_000, None),
        ] {
            assert_eq!(Room::of(bytes).after(image, []), expected, "{bytes}");
        }
        assert_eq!(Room::of(3_000_000).after([("nginx:1", "nginx:1")], []), Some(0), "nothing grows");
        assert_eq!(Room::of(1_572_864 - 4096 - 20).after([], ["registry"]), Some(0));
        assert_eq!(Room::of(1_572_864 - 4096 - 19).after([], ["registry"]), None);
    }
}
