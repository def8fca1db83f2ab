//! Sets of ASCII characters, and the character classes of RE2 as such sets.
//!
//! The texts that patterns meet (image references, namespaces, tags) are ASCII by their own grammars. So every class,
//! Unicode ones included, is exactly a subset of 128 characters here. Only two characters beyond ASCII are ever equal
//! to one of ours when case is ignored; they are handled where ranges are folded.

/// A set of ASCII characters, one bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AsciiSet(u128);

/// Folds to `s` when case is ignored.
const LONG_S: u32 = 0x17f;
/// Folds to `k` when case is ignored.
const KELVIN: u32 = 0x212a;

impl AsciiSet {
    pub(super) const EMPTY: Self = Self(0);
    pub(super) const ALL: Self = Self(u128::MAX);
    pub(super) const NEWLINE: Self = Self(1 << b'\n');
    pub(super) const WORD: Self = Self::of(b"0-9A-Z_-_a-z");

    /// Ranges written as `lo-hi` triples.
    const fn of(ranges: &[u8]) -> Self {
        let mut bits = 0;
        let mut rest = ranges;
        while let [low, _, high, tail @ ..] = rest {
            let mut byte = *low;
            while byte <= *high {
                bits |= 1 << byte;
                byte += 1;
            }
            rest = tail;
        }
        Self(bits)
    }

    /// The ASCII characters between two code points, and with `fold` those that equal one of them but for case.
    pub(super) fn range(low: u32, high: u32, fold: bool) -> Self {
        let bits = (low..=high.min(127)).fold(0, |bits, code| bits | 1 << code);
        let mut set = Self(bits);
        if fold {
            for (beyond, letter) in [(LONG_S, b's'), (KELVIN, b'k')] {
                if (low..=high).contains(&beyond) {
                    set = set.union(Self(1 << letter));
                }
            }
            set = set.folded();
        }
        set
    }

    pub(super) fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) fn negated(self) -> Self {
        Self(!self.0)
    }

    /// With both cases of every letter in it.
    pub(super) fn folded(self) -> Self {
        const UPPER: u128 = AsciiSet::of(b"A-Z").0;
        const LOWER: u128 = AsciiSet::of(b"a-z").0;
        Self(self.0 | (self.0 & UPPER) << 32 | (self.0 & LOWER) >> 32)
    }

    pub(super) fn contains(self, byte: u8) -> bool {
        byte < 128 && self.0 >> byte & 1 == 1
    }

    /// The only member, if there is exactly one.
    pub(super) fn single(self) -> Option<u8> {
        self.0.is_power_of_two().then(|| u8::try_from(self.0.trailing_zeros()).ok()).flatten()
    }

    /// The only member but for case, in lower case.
    pub(super) fn letter(self) -> Option<u8> {
        let lower = self.ranges().last()?.1.to_ascii_lowercase();
        (self.folded() == Self(1 << lower).folded()).then_some(lower)
    }

    /// Maximal ranges in ascending order.
    pub(super) fn ranges(self) -> Vec<(u8, u8)> {
        let mut ranges: Vec<(u8, u8)> = Vec::new();
        for byte in (0..128).filter(|byte| self.contains(*byte)) {
            match ranges.last_mut() {
                Some((_, high)) if *high + 1 == byte => *high = byte,
                _ => ranges.push((byte, byte)),
            }
        }
        ranges
    }
}

/// `\d`, `\s`, `\w` and their negations. `\s` has no vertical tab in RE2.
pub(super) fn perl_class(letter: u8, fold: bool) -> Option<AsciiSet> {
    let class = match letter.to_ascii_lowercase() {
        b'd' => AsciiSet::of(b"0-9"),
        b's' => AsciiSet::of(b"\t-\n\x0c-\r - "),
        b'w' => AsciiSet::WORD,
        _ => return None,
    };
    Some(signed(class, letter.is_ascii_uppercase(), fold))
}

/// The name between `[:` and `:]`.
pub(super) fn posix_class(name: &str, fold: bool) -> Option<AsciiSet> {
    let (negated, name) = match name.strip_prefix('^') {
        Some(name) => (true, name),
        None => (false, name),
    };
    let class = match name {
        "alnum" => AsciiSet::of(b"0-9A-Za-z"),
        "alpha" => AsciiSet::of(b"A-Za-z"),
        "ascii" => AsciiSet::ALL,
        "blank" => AsciiSet::of(b"\t-\t - "),
        "cntrl" => AsciiSet::of(b"\0-\x1f\x7f-\x7f"),
        "digit" => AsciiSet::of(b"0-9"),
        "graph" => AsciiSet::of(b"!-~"),
        "lower" => AsciiSet::of(b"a-z"),
        "print" => AsciiSet::of(b" -~"),
        "punct" => AsciiSet::of(b"!-/:-@[-`{-~"),
        "space" => AsciiSet::of(b"\t-\r - "),
        "upper" => AsciiSet::of(b"A-Z"),
        "word" => AsciiSet::WORD,
        "xdigit" => AsciiSet::of(b"0-9A-Fa-f"),
        _ => return None,
    };
    Some(signed(class, negated, fold))
}

/// The name in `\p{name}`, in which case, spaces, `-` and `_` do not count; `^` in front negates.
pub(super) fn unicode_class(name: &str, negated: bool, fold: bool) -> Option<AsciiSet> {
    let (negated, name) = match name.strip_prefix('^') {
        Some(name) => (!negated, name),
        None => (negated, name),
    };
    let plain: String =
        name.chars().filter(|c| !matches!(c, '_' | '-' | ' ')).map(|c| c.to_ascii_lowercase()).collect();
    let class = match plain.as_str() {
        "any" | "assigned" | "ascii" => AsciiSet::ALL,
        "l" | "letter" | "lc" | "casedletter" | "latin" => AsciiSet::of(b"A-Za-z"),
        "ll" | "lowercaseletter" => AsciiSet::of(b"a-z"),
        "lu" | "uppercaseletter" => AsciiSet::of(b"A-Z"),
        "n" | "number" | "nd" | "decimalnumber" | "digit" => AsciiSet::of(b"0-9"),
        "c" | "other" | "cc" | "control" | "cntrl" => AsciiSet::of(b"\0-\x1f\x7f-\x7f"),
        "z" | "separator" | "zs" | "spaceseparator" => AsciiSet::of(b" - "),
        "p" | "punctuation" | "punct" => AsciiSet::of(b"!-#%-*,-/:-;?-@[-]_-_{-{}-}"),
        "pc" | "connectorpunctuation" => AsciiSet::of(b"_-_"),
        "pd" | "dashpunctuation" => AsciiSet::of(b"---"),
        "ps" | "openpunctuation" => AsciiSet::of(b"(-([-[{-{"),
        "pe" | "closepunctuation" => AsciiSet::of(b")-)]-]}-}"),
        "po" | "otherpunctuation" => AsciiSet::of(b"!-#%-'*-*,-,.-/:-;?-@\\-\\"),
        "s" | "symbol" => AsciiSet::of(b"$-$+-+<->^-^`-`|-|~-~"),
        "sc" | "currencysymbol" => AsciiSet::of(b"$-$"),
        "sk" | "modifiersymbol" => AsciiSet::of(b"^-^`-`"),
        "sm" | "mathsymbol" => AsciiSet::of(b"+-+<->|-|~-~"),
        "common" => AsciiSet::of(b"\0-@[-`{-\x7f"),
        other if super::classes::beyond_ascii(other) => AsciiSet::EMPTY,
        _ => return None,
    };
    Some(signed(class, negated, fold))
}

fn signed(class: AsciiSet, negated: bool, fold: bool) -> AsciiSet {
    let class = if fold { class.folded() } else { class };
    if negated { class.negated() } else { class }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folding_reaches_the_two_letters_beyond_ascii() {
        let members = |set: AsciiSet| set.ranges();
        assert_eq!(members(AsciiSet::range(LONG_S, LONG_S, true)), [(b'S', b'S'), (b's', b's')]);
        assert_eq!(members(AsciiSet::range(0x2000, 0x3000, true)), [(b'K', b'K'), (b'k', b'k')]);
        assert_eq!(members(AsciiSet::range(0x100, 0x200, false)), []);
        assert_eq!(members(AsciiSet::range(b'y'.into(), 0x10_ffff, false)), [(b'y', 127)]);
        assert_eq!(AsciiSet::range(b'q'.into(), b'q'.into(), false).single(), Some(b'q'));
        assert_eq!(AsciiSet::ALL.negated(), AsciiSet::EMPTY);
    }

    #[test]
    fn letters_but_for_case() {
        let letter = |low: u8, high: u8, fold: bool| AsciiSet::range(low.into(), high.into(), fold).letter();
        assert_eq!(letter(b'q', b'q', false), Some(b'q'));
        assert_eq!(letter(b'Q', b'Q', false), Some(b'q'));
        assert_eq!(letter(b'Q', b'Q', true), Some(b'q'));
        assert_eq!(letter(b'/', b'/', true), Some(b'/'));
        assert_eq!(letter(b'a', b'b', false), None);
        assert_eq!(AsciiSet::EMPTY.letter(), None);
    }
}
