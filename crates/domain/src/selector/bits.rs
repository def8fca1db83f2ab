//! Small whole numbers as one bit each: what many patterns, filters and policies are held against at once.

/// Words that a set holds in itself. Sets of up to 1,024 numbers then need no memory of their own, and a Pod that no
/// policy concerns is judged without allocating.
const INLINE: usize = 16;

/// A set of numbers below a length that is fixed when it is made. Others are never members.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bits {
    inline: [u64; INLINE],
    /// All words, where they do not fit into `inline`.
    spilled: Vec<u64>,
    words: usize,
}

impl Bits {
    /// Without members.
    pub fn new(length: usize) -> Self {
        let words = length.div_ceil(64);
        let spilled = if words > INLINE { vec![0; words] } else { Vec::new() };
        Self { inline: [0; INLINE], spilled, words }
    }

    fn words(&self) -> &[u64] {
        if self.words > INLINE { &self.spilled } else { self.inline.get(..self.words).unwrap_or_default() }
    }

    fn words_mut(&mut self) -> &mut [u64] {
        if self.words > INLINE {
            &mut self.spilled
        } else {
            self.inline.get_mut(..self.words).unwrap_or_default()
        }
    }

    /// `true` if the member is new.
    pub fn insert(&mut self, member: usize) -> bool {
        let Some(word) = self.words_mut().get_mut(member / 64) else {
            return false;
        };
        let bit = 1 << (member % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    pub fn remove(&mut self, member: usize) {
        if let Some(word) = self.words_mut().get_mut(member / 64) {
            *word &= !(1 << (member % 64));
        }
    }

    pub fn contains(&self, member: usize) -> bool {
        self.words().get(member / 64).is_some_and(|word| word >> (member % 64) & 1 == 1)
    }

    pub fn is_empty(&self) -> bool {
        self.words().iter().all(|word| *word == 0)
    }

    pub fn clear(&mut self) {
        self.words_mut().fill(0);
    }

    /// Adds the members of another set of the same length.
    pub fn add(&mut self, others: &Self) {
        self.words_mut().iter_mut().zip(others.words()).for_each(|(word, other)| *word |= other);
    }

    /// Keeps what is also a member of another set of the same length.
    pub fn keep(&mut self, others: &Self) {
        self.words_mut().iter_mut().zip(others.words()).for_each(|(word, other)| *word &= other);
    }

    /// Takes out the members of another set of the same length.
    pub fn take_out(&mut self, others: &Self) {
        self.words_mut().iter_mut().zip(others.words()).for_each(|(word, other)| *word &= !other);
    }

    /// In ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.words().iter().enumerate().flat_map(|(index, word)| {
            let mut left = *word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                (left != 0).then(|| {
                    left &= left - 1;
                    index * 64 + bit as usize
                })
            })
        })
    }
}

/// Numbers to be added to a set together: a list while they are few, a set of their own once that is cheaper.
#[derive(Debug, Clone)]
pub(super) enum Numbers {
    Few(Box<[usize]>),
    Many(Box<Bits>),
}

impl Numbers {
    /// Numbers below `length`.
    pub(super) fn new(numbers: Vec<usize>, length: usize) -> Self {
        if numbers.len() <= 1 + length.div_ceil(64) {
            return Self::Few(numbers.into());
        }
        let mut bits = Bits::new(length);
        for number in numbers {
            bits.insert(number);
        }
        Self::Many(Box::new(bits))
    }

    pub(super) fn add_to(&self, bits: &mut Bits) {
        match self {
            Self::Few(numbers) => {
                for number in numbers {
                    bits.insert(*number);
                }
            }
            Self::Many(others) => bits.add(others),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn bits(length: usize, members: &BTreeSet<usize>) -> Bits {
        let mut bits = Bits::new(length);
        for member in members {
            assert!(bits.insert(*member));
        }
        bits
    }

    proptest! {
        #[test]
        fn is_a_set(
            (length, one, other) in (1usize..3000).prop_flat_map(|length| {
                let members = || prop::collection::btree_set(0..length, 0..60);
                (Just(length), members(), members())
            }),
            probe in 0usize..4000,
        ) {
            let (mut union, mut common, mut rest) =
                (bits(length, &one), bits(length, &one), bits(length, &one));
            let second = bits(length, &other);
            union.add(&second);
            common.keep(&second);
            rest.take_out(&second);
            prop_assert!(union.iter().eq(one.union(&other).copied()));
            prop_assert!(common.iter().eq(one.intersection(&other).copied()));
            prop_assert!(rest.iter().eq(one.difference(&other).copied()));
            prop_assert_eq!(union.contains(probe), one.contains(&probe) || other.contains(&probe));
            prop_assert_eq!(rest.is_empty(), one.is_subset(&other));
            let mut grouped = second.clone();
            Numbers::new(one.iter().copied().collect(), length).add_to(&mut grouped);
            prop_assert_eq!(&grouped, &union);
            union.remove(probe);
            prop_assert!(!union.contains(probe));
            union.clear();
            prop_assert!(union.is_empty());
        }
    }

    #[test]
    fn numbers_beyond_the_length_are_never_members() {
        let mut small = Bits::new(10);
        assert!(!small.insert(64) && !small.contains(64));
        small.remove(64);
        assert!(Bits::new(0).is_empty());
    }
}
