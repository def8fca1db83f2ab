//! `ClusterImageSetAvailability`.

use anyhow::Result;
use serde_json::{Value, json};

use super::{bad_filters, bad_image_filters, good_filters};
use crate::refused::{assert_accepted, assert_refused, change, refusal, without};

fn availability() -> Value {
    json!({
        "apiVersion": "kuik.enix.io/v1alpha1",
        "kind": "ClusterImageSetAvailability",
        "metadata": { "name": "good" },
        "spec": {
            "unusedImageExpiry": "720h",
            "filter": { "include": [{ "image": ".*" }, { "namespace": "prod-.+" }] },
        },
    })
}

#[tokio::test]
async fn cluster_image_set_availability() -> Result<()> {
    let good = availability();
    let mut refusals = bad_filters();
    refusals.extend(bad_image_filters());
    refusals.extend([
        refusal(
            change("/spec/unusedImageExpiry", "30d"),
            "spec.unusedImageExpiry",
            "there is no unit for days",
        ),
        refusal(change("/spec/unusedImageExpiry", "-1s"), "spec.unusedImageExpiry", "not a duration"),
        refusal(change("/spec/unusedImageExpiry", 30), "spec.unusedImageExpiry", "string"),
        refusal(
            change("/spec/filter/include/1/namespace", "prod-["),
            "spec.filter.include[1].namespace",
            "check brackets",
        ),
        refusal(change("/spec/unusedExpiry", "1h"), "spec.unusedExpiry", "unknown field"),
    ]);
    assert_refused(&good, refusals).await?;
    let mut accepted = good_filters();
    accepted.extend([
        without("/spec/unusedImageExpiry"),
        change("/spec/unusedImageExpiry", "0s"),
        without("/spec"),
    ]);
    assert_accepted(&good, accepted).await
}
