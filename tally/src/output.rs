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
    use super::csv_cell;

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
