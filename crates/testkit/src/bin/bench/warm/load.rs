//! How much is warmed, and how.

use std::fmt;
use std::time::Duration;

/// Nodes that pull one image at once, as the policy says.
pub(crate) const NODES_AT_ONCE: usize = 50;
/// Time between the starts of two groups of pulls of one image, as the policy says.
pub(crate) const BETWEEN_STARTS: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) nodes: usize,
    pub(crate) images: usize,
    /// How long a node takes to pull one image.
    pub(crate) pull: Duration,
    /// One Pod for all images of a node.
    pub(crate) batch: bool,
}

impl Load {
    /// Pairs of a node and an image.
    pub(crate) fn pulls(&self) -> usize {
        self.nodes * self.images
    }

    /// Time after which something is wrong, on whatever machine.
    pub(crate) fn deadline(&self) -> Duration {
        let waves = self.nodes.div_ceil(NODES_AT_ONCE);
        let one_after_another = if self.batch { waves * self.images } else { waves };
        let factor = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        Duration::from_mins(2)
            + self.pull * factor(one_after_another) * 2
            + Duration::from_millis(25) * factor(self.pulls())
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nodes, images, pull, batch } = self;
        let together = if *batch { ", in batches" } else { "" };
        write!(f, "{nodes} nodes x {images} images, {} ms each{together}", pull.as_millis())
    }
}
