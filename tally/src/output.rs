//! What commands print: data on standard output, everything else on standard error.

use std::io::{IsTerminal, Write};

use clap::ValueEnum;

use crate::failure::Failure;

/// Form of a command's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs; its fields are stable.
    Json,
    /// For spreadsheets.
    Csv,
}

/// Writes a line to standard output.
pub(crate) fn line(text: impl AsRef<str>) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match writeln!(out, "{}", text.as_ref()).and_then(|()| out.flush()) {
        // `tally top | head` closes the pipe early: that is no failure.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        other => Ok(other?),
    }
}

/// Writes a JSON value to standard output.
pub(crate) fn json(value: &impl serde::Serialize) -> Result<(), Failure> {
    line(serde_json::to_string_pretty(value)?)
}

/// Writes a note to standard error. A closed standard error is not worth failing for.
pub(crate) fn note(text: impl AsRef<str>) {
    let _closed = writeln!(std::io::stderr().lock(), "{}", text.as_ref());
}

/// Whether people watch standard error.
pub(crate) fn is_watched() -> bool {
    std::io::stderr().is_terminal()
}

/// Rows under headings, as a table, as CSV or as JSON objects.
pub(crate) fn rows(format: Format, headings: &[&str], rows: &[Vec<String>]) -> Result<(), Failure> {
    match format {
        Format::Table => {
            let mut table = comfy_table::Table::new();
            table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED).set_header(headings);
            for row in rows {
                table.add_row(row);
            }
            line(table.to_string())
        }
        Format::Csv => {
            line(headings.join(","))?;
            rows.iter().try_for_each(|row| {
                line(row.iter().map(|cell| csv_cell(cell)).collect::<Vec<_>>().join(","))
            })
        }
        Format::Json => {
            let objects: Vec<serde_json::Map<String, serde_json::Value>> = rows
                .iter()
                .map(|row| {
                    let cells = row.iter().map(|cell| serde_json::Value::String(cell.clone()));
                    headings.iter().map(|heading| (*heading).to_owned()).zip(cells).collect()
                })
                .collect();
            json(&objects)
        }
    }
}

/// Characters of the longest bar.
const BAR_WIDTH: u128 = 30;

/// A bar for `count` beside others of which the greatest is `most`: nothing for 0, and at least a
/// sliver for anything else.
pub(crate) fn bar(count: u64, most: u64) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    if count == 0 || most == 0 {
        return String::new();
    }
    let eighths = (u128::from(count) * BAR_WIDTH * 8 / u128::from(most)).max(1);
    let whole = usize::try_from(eighths / 8).unwrap_or(0);
    let rest = usize::try_from(eighths % 8).ok().and_then(|rest| EIGHTHS.get(rest));
    "█".repeat(whole) + rest.unwrap_or(&"")
}

/// A cell as RFC 4180 wants it; one that a spreadsheet would run as a formula is disarmed.
fn csv_cell(cell: &str) -> String {
    let guarded = if cell.starts_with(['=', '+', '-', '@', '\t', '\r']) {
        format!("'{cell}")
    } else {
        cell.to_owned()
    };
    if guarded.contains(['"', ',', '\n', '\r']) {
        format!("\"{}\"", guarded.replace('"', "\"\""))
    } else {
        guarded
    }
}

#[cfg(test)]
mod tests {
    use super::{bar, csv_cell};

    #[test]
    fn a_bar_is_as_long_as_its_count_and_never_vanishes() {
        let cases = [
            (0, 100, String::new()),
            (0, 0, String::new()),
            (1, u64::MAX, "▏".to_owned()),
            (100, 100, "█".repeat(30)),
            (50, 100, "█".repeat(15)),
            (u64::MAX, u64::MAX, "█".repeat(30)),
            (61, 240, "█".repeat(7) + "▋"),
        ];
        for (count, most, want) in cases {
            assert_eq!(bar(count, most), want, "{count} of {most}");
        }
    }

    #[test]
    fn cells_are_quoted_and_formulas_disarmed() {
        for (cell, want) in [
            ("plain", "plain"),
            ("a,b", "\"a,b\""),
            ("say \"x\"", "\"say \"\"x\"\"\""),
            ("=1+1", "'=1+1"),
            ("@cmd,x", "\"'@cmd,x\""),
        ] {
            assert_eq!(csv_cell(cell), want);
        }
    }
}
