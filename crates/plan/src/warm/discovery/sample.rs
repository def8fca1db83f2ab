//! What queries return, whatever backend they went to: values of images over time.

use std::collections::BTreeMap;

use fairlead_domain::reference::{AnyReference, ImageKey, Reference, Repository};
use jiff::Timestamp;

use super::failure::Failure;

/// A finite number and when it was true.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    pub at: Timestamp,
    pub value: f64,
}

/// Values of one image.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    pub image: Reference,
    pub values: Vec<Sample>,
    /// Sizes in bytes, which only events tell.
    pub sizes: Vec<f64>,
}

/// What a query returned. The same image may come several times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    pub series: Vec<Series>,
    /// What a person should know although the query succeeded.
    pub notes: Vec<String>,
    /// Why a part of what was asked for is missing.
    pub partial: Option<Failure>,
    /// Repositories of images of which nothing is known for that reason.
    pub missing: Vec<Repository>,
}

/// The values of every image that a query returned.
pub(super) type Samples = BTreeMap<ImageKey, Series>;

/// Joins the series of each image. Values of the same moment add up where several series count the same thing in
/// different places, as Prometheus does; log lines of the same moment are different lines.
pub(super) fn by_image(series: Vec<Series>, adds_up: bool) -> Samples {
    let mut joined = Samples::new();
    for one in series {
        let Some(known) = joined.get_mut(&one.image.key()) else {
            joined.insert(one.image.key(), one);
            continue;
        };
        known.sizes.extend(one.sizes);
        known.values.extend(one.values);
        // Of several spellings one is shown, whatever order they come in.
        if one.image.written() < known.image.written() {
            known.image = one.image;
        }
    }
    if adds_up {
        for series in joined.values_mut() {
            series.values.sort_by_key(|sample| sample.at);
            series.values.dedup_by(|next, kept| {
                let same = next.at == kept.at;
                kept.value = if same { bounded(kept.value + next.value) } else { kept.value };
                same
            });
        }
    }
    joined
}

/// The image that a backend names. Identifiers without a name, and texts that no kubelet could pull, name none.
pub(super) fn image(text: &str) -> Option<Reference> {
    match AnyReference::parse(text) {
        Ok(AnyReference::Named(reference)) => Some(reference),
        Ok(AnyReference::Digest(_)) | Err(_) => None,
    }
}

/// Keeps arithmetic on finite numbers finite, so that every score has a place in the order.
pub(super) fn bounded(value: f64) -> f64 {
    if value.is_nan() { 0.0 } else { value.clamp(f64::MIN, f64::MAX) }
}

/// How many, as a number to calculate with.
pub(super) fn count(number: usize) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}
