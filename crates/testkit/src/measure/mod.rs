//! What measurements share: the cost of a run, the middle of several, tables, and bars that hold or do not.
//!
//! Times say little on machines that differ and are shared. So everything is measured beside something else in the same
//! run, the runs take turns, and what counts is the ratio of medians.

mod bar;
mod cost;
mod table;

pub use bar::{Bar, Bars};
pub use cost::{Cost, cost_of};
pub use table::{Align, Table, mebibytes, seconds};

/// The middle of several values; of an even number the higher of the two in the middle. Not a number if there are none.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_is_found_whatever_the_order() {
        assert!((median([9.0, 1.0, 4.0]) - 4.0).abs() < f64::EPSILON);
        assert!((median([2.0, 1.0]) - 2.0).abs() < f64::EPSILON);
        assert!(median([]).is_nan());
    }
}
