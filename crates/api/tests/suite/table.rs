//! Tables of changes as text, for kinds with so many fields that one line per case is what keeps them readable.

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::refused::{Change, Refusal, change, refusal, without};

/// Lines of `pointer | JSON value | field | remedy`; `-` in place of a value takes the field away.
pub(crate) fn refusals(table: &'static str) -> Result<Vec<Refusal>> {
    rows(table)
        .map(|row| match row.splitn(4, " | ").collect::<Vec<_>>()[..] {
            [at, put, field, remedy] => Ok(refusal(parse(at, put)?, field, remedy)),
            _ => bail!("not four columns: {row}"),
        })
        .collect()
}

/// Lines of `pointer | JSON value`; `-` in place of a value takes the field away.
pub(crate) fn changes(table: &'static str) -> Result<Vec<Change>> {
    rows(table)
        .map(|row| {
            let (at, put) = row.split_once(" | ").with_context(|| format!("not two columns: {row}"))?;
            parse(at, put)
        })
        .collect()
}

fn rows(table: &'static str) -> impl Iterator<Item = &'static str> {
    table.lines().map(str::trim).filter(|row| !row.is_empty())
}

fn parse(at: &'static str, put: &str) -> Result<Change> {
    if put == "-" {
        return Ok(without(at));
    }
    let value: Value = serde_json::from_str(put).with_context(|| format!("not JSON: {put}"))?;
    Ok(change(at, value))
}
