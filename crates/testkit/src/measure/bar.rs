//! Bars: what a measurement must come to.

use std::fmt;

/// One demand on a measurement, and what was measured.
#[derive(Clone, Debug)]
pub struct Bar {
    what: String,
    found: f64,
    limit: Limit,
}

#[derive(Clone, Copy, Debug)]
enum Limit {
    AtMost(f64),
    AtLeast(f64),
}

impl Bar {
    pub fn at_most(what: impl Into<String>, found: f64, limit: f64) -> Self {
        Self { what: what.into(), found, limit: Limit::AtMost(limit) }
    }

    pub fn at_least(what: impl Into<String>, found: f64, limit: f64) -> Self {
        Self { what: what.into(), found, limit: Limit::AtLeast(limit) }
    }

    /// What could not be measured is not held.
    pub fn is_held(&self) -> bool {
        match self.limit {
            Limit::AtMost(limit) => self.found <= limit,
            Limit::AtLeast(limit) => self.found >= limit,
        }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.is_held() { "held    " } else { "NOT HELD" };
        let (words, limit) = match self.limit {
            Limit::AtMost(limit) => ("at most", limit),
            Limit::AtLeast(limit) => ("at least", limit),
        };
        write!(f, "{state}  {}: {:.2} ({words} {limit:.2})", self.what, self.found)
    }
}

/// All bars of a program. Shown again at its end, so that they need not be looked for.
#[derive(Clone, Debug, Default)]
pub struct Bars(Vec<Bar>);

impl Bars {
    /// Takes note of bars, and returns their lines.
    pub fn add(&mut self, bars: Vec<Bar>) -> String {
        let lines = bars.iter().fold(String::new(), |text, bar| text + &format!("  {bar}\n"));
        self.0.extend(bars);
        lines
    }

    pub fn all_held(&self) -> bool {
        self.0.iter().all(Bar::is_held)
    }
}

impl fmt::Display for Bars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let held = self.0.iter().filter(|bar| bar.is_held()).count();
        writeln!(f, "{held} of {} bars are held", self.0.len())?;
        self.0.iter().try_for_each(|bar| writeln!(f, "  {bar}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_says_whether_it_is_held() {
        let mut bars = Bars::default();
        let lines = bars.add(vec![Bar::at_most("a copy", 1.0, 1.1), Bar::at_least("a rate", 0.6, 0.5)]);
        assert_eq!(
            lines,
            "  held      a copy: 1.00 (at most 1.10)\n  held      a rate: 0.60 (at least 0.50)\n"
        );
        assert!(bars.all_held());
        bars.add(vec![Bar::at_most("nothing", f64::NAN, 1.0)]);
        assert!(!bars.all_held());
        let text = bars.to_string();
        assert!(text.starts_with("2 of 3 bars are held\n") && text.contains("NOT HELD  nothing"), "{text}");
    }
}
