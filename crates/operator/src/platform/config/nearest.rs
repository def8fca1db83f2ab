//! Finds the word a person most likely meant.

/// The candidate most like `word`, if one is like enough to be worth a suggestion.
pub(super) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    // One slip in three letters is a misspelling; more is another word.
    let bound = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (distance(&word, &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= bound)
        .min()
        .map(|(_, candidate)| candidate)
}

/// How many letters must be put in, taken out, replaced or swapped with their neighbour to turn one word into the other.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=to.len()).collect();
    let mut letter_before = None;
    for (row, letter) in from.chars().enumerate() {
        let mut current = Vec::with_capacity(last.len());
        current.push(row + 1);
        for (column, other) in to.iter().enumerate() {
            let at = |line: &[usize], column: usize| line.get(column).copied().unwrap_or(usize::MAX / 2);
            let mut cost = (at(&last, column + 1) + 1)
                .min(at(&current, column) + 1)
                .min(at(&last, column) + usize::from(letter != *other));
            let swapped = column > 0 && letter_before == Some(*other) && to.get(column - 1) == Some(&letter);
            if swapped {
                cost = cost.min(at(&before_last, column - 1) + 1);
            }
            current.push(cost);
        }
        before_last = std::mem::replace(&mut last, current);
        letter_before = Some(letter);
    }
    last.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::{distance, nearest};

    #[test]
    fn distances() {
        for (from, to, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("abc", "", 3),
            ("timeout", "timout", 1),
            ("timeout", "timeuot", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(from, to), expected, "{from} -> {to}");
        }
    }

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
