//! Tables of plain text.

use std::fmt;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    Left,
    Right,
}

/// Rows under a heading. Columns are as wide as their widest cell.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub fn new(columns: &[(&str, Align)]) -> Self {
        Self {
            columns: columns.iter().map(|(_, align)| *align).collect(),
            rows: vec![columns.iter().map(|(name, _)| (*name).to_owned()).collect()],
        }
    }

    pub fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(|column| width(column).unwrap_or(0)).collect();
        for row in &self.rows {
            let cells = row.iter().zip(&self.columns).zip(&widths);
            let line: String = cells
                .map(|((cell, align), width)| match align {
                    Align::Left => format!("  {cell:<width$}"),
                    Align::Right => format!("  {cell:>width$}"),
                })
                .collect();
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

pub fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

#[allow(clippy::cast_precision_loss, reason = "a tenth of a mebibyte is as exact as it gets")]
pub fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(&[("who", Align::Left), ("time", Align::Right)]);
        table.row(vec!["fairlead".into(), seconds(Duration::from_millis(350))]);
        table.row(vec!["x".into(), seconds(Duration::from_secs(12))]);
        assert_eq!(table.to_string(), "  who          time\n  fairlead   0.35 s\n  x         12.00 s\n");
        assert_eq!(mebibytes(3 << 19), "1.5 MiB");
    }
}
