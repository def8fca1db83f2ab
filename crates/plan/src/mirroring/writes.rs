//! The order of writes about one mirror object.

use std::time::Duration;

/// A status waits behind parts of the ledger for no longer.
const STATUS_PATIENCE: Duration = Duration::from_secs(5);

/// What is written next about an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextWrite {
    Ledger,
    Status,
    Nothing,
}

/// `status_waits` is for how long the stored status has said something else; none while it is right. `is_unreported`:
/// it is about another generation of the object.
pub fn next_write(ledger_differs: bool, status_waits: Option<Duration>, is_unreported: bool) -> NextWrite {
    // Users look at a new object as soon as they have created it.
    let patience = if is_unreported { Duration::ZERO } else { STATUS_PATIENCE };
    match status_waits {
        Some(waits) if !ledger_differs || waits >= patience => NextWrite::Status,
        _ if ledger_differs => NextWrite::Ledger,
        _ => NextWrite::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_waits_behind_ledgers_but_not_for_long() {
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        for (ledger_differs, status_waits, is_unreported, expected) in [
            (false, None, false, NextWrite::Nothing),
            (true, None, true, NextWrite::Ledger),
            (false, seconds(0), false, NextWrite::Status),
            (true, seconds(4), false, NextWrite::Ledger),
            (true, seconds(5), false, NextWrite::Status),
            (true, seconds(0), true, NextWrite::Status),
        ] {
            assert_eq!(next_write(ledger_differs, status_waits, is_unreported), expected);
        }
    }
}
