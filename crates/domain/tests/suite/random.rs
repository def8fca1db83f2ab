//! Reproducible chance: every generated input follows from one seed, which failures print.

use std::env;

/// `SplitMix64`: small, seedable and good enough to choose inputs.
pub(crate) struct Random {
    seed: u64,
    state: u64,
}

impl Random {
    /// The same inputs in every run, unless told otherwise.
    pub(crate) fn new() -> Self {
        let seed =
            env::var("FAIRLEAD_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_261_115);
        Self { seed, state: seed }
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below the bound.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % bound as u64).unwrap()
    }

    /// True once in so many times.
    pub(crate) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(crate) fn pick<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }

    /// A text of up to `most` characters of the alphabet, at least `least`.
    pub(crate) fn text(&mut self, alphabet: &str, least: usize, most: usize) -> String {
        let letters: Vec<char> = alphabet.chars().collect();
        let length = least + self.below(most - least + 1);
        (0..length).map(|_| letters[self.below(letters.len())]).collect()
    }

    /// A few random edits: characters removed, doubled, replaced or added.
    pub(crate) fn mutated(&mut self, text: &str, alphabet: &str) -> String {
        let letters: Vec<char> = alphabet.chars().collect();
        let mut characters: Vec<char> = text.chars().collect();
        for _ in 0..=self.below(2) {
            let at = self.below(characters.len() + 1);
            let letter = letters[self.below(letters.len())];
            match (self.below(4), characters.get(at).copied()) {
                (0, Some(_)) => {
                    characters.remove(at);
                }
                (1, Some(same)) => characters.insert(at, same),
                (2, Some(_)) => characters[at] = letter,
                _ => characters.insert(at, letter),
            }
        }
        characters.into_iter().collect()
    }
}

/// How many inputs to try, given the number for an ordinary run.
pub(crate) fn cases(ordinary: usize) -> usize {
    let factor = env::var("FAIRLEAD_TEST_CASES").ok().and_then(|factor| factor.parse().ok()).unwrap_or(1);
    ordinary * factor
}
