//! Finds the word a person most likely meant.

use strsim::osa_distance;

/// The candidate most like `word`, if one is like enough to be worth a suggestion.
pub(super) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    // One slip in three letters is a misspelling; more is another word.
    let bound = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (osa_distance(&word, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= bound)
        .min()
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::nearest;

    #[test]
    fn suggests_misspellings_and_nothing_far_off() {
        let known = ["timeout", "interval", "maxPerInterval", "method"];
        assert_eq!(nearest("timout", known), Some("timeout"));
        assert_eq!(nearest("TIMEOUT", known), Some("timeout"));
        assert_eq!(nearest("maxperinterval", known), Some("maxPerInterval"));
        assert_eq!(nearest("maxPrInterval", known), Some("maxPerInterval"));
        assert_eq!(nearest("credentials", known), None);
        assert_eq!(nearest("x", known), None);
    }
}
