//! What became of the lines.

use serde::{Deserialize, Serialize};
use serde_json::json;
use tally_model::time::format_rfc3339;
use tally_operators::dedup::DedupStats;

use super::fields::Refusal;
use crate::failure::Failure;
use crate::output::{self, Format};

/// How many lines are named one by one.
const NAMED: u64 = 10;

/// Lines by what became of them. Every line is in exactly one of `blank`, `written`, `repeats`,
/// `late` and the rejected.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Totals {
    pub(super) lines: u64,
    pub(super) blank: u64,
    pub(super) written: u64,
    pub(super) repeats: u64,
    pub(super) late: u64,
    pub(super) unreadable: u64,
    pub(super) no_key: u64,
    pub(super) no_time: u64,
    /// Of all, lines whose time lies in the future.
    pub(super) ahead: u64,
}

impl Totals {
    pub(super) fn rejected(&self) -> u64 {
        self.unreadable + self.no_key + self.no_time
    }

    /// Counts a rejected line; the first ones are named unless they go to a file.
    pub(super) fn reject(&mut self, line: u64, refusal: Refusal, is_kept: bool) {
        if !is_kept && self.rejected() < NAMED {
            output::note(format!("line {line}: {}", refusal.code()));
        }
        match refusal {
            Refusal::Unreadable => self.unreadable += 1,
            Refusal::Key => self.no_key += 1,
            Refusal::Time => self.no_time += 1,
        }
    }

    /// Counts a line past the window; the first ones are named unless they go to a file.
    pub(super) fn past_window(&mut self, line: u64, is_kept: bool) {
        if !is_kept && self.late < NAMED {
            output::note(format!("line {line}: late, past the window"));
        }
        self.late += 1;
    }
}

/// The statistics at the end.
pub(super) struct Report<'a> {
    pub(super) totals: &'a Totals,
    pub(super) stats: DedupStats,
    pub(super) watermark_ms: Option<i64>,
    /// Lines of this process; the totals are of the whole run.
    pub(super) lines_here: u64,
    pub(super) elapsed_ms: i64,
}

impl Report<'_> {
    /// Prints to standard error: standard output belongs to the lines.
    pub(super) fn print(&self, format: Format) -> Result<(), Failure> {
        let Totals { lines, blank, written, repeats, late, ahead, .. } = self.totals;
        let per_second =
            u128::from(self.lines_here) * 1_000 / u128::from(self.elapsed_ms.max(1).unsigned_abs());
        let values = [
            ("lines", json!(lines)),
            ("written", json!(written)),
            ("repeats", json!(repeats)),
            ("late", json!(late)),
            (Refusal::Unreadable.code(), json!(self.totals.unreadable)),
            (Refusal::Key.code(), json!(self.totals.no_key)),
            (Refusal::Time.code(), json!(self.totals.no_time)),
            ("blank", json!(blank)),
            ("ahead", json!(ahead)),
            ("watermark", json!(self.watermark_ms.map(format_rfc3339))),
            ("idsHeld", json!(self.stats.ids)),
            ("ramBytes", json!(self.stats.ram_bytes)),
            ("diskBytes", json!(self.stats.disk_bytes)),
            ("milliseconds", json!(self.elapsed_ms)),
            ("linesPerSecond", json!(u64::try_from(per_second)?)),
        ];
        match format {
            Format::Json => {
                let object: serde_json::Map<_, _> =
                    values.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
                output::note(serde_json::to_string(&object)?);
            }
            Format::Csv => {
                output::note("what,value");
                values
                    .iter()
                    .for_each(|(name, value)| output::note(format!("{name},{}", show(value))));
            }
            Format::Table => values.iter().for_each(|(name, value)| {
                output::note(format!("{name:<15} {}", show(value)));
            }),
        }
        Ok(())
    }
}

fn show(value: &serde_json::Value) -> String {
    match value {
        serde_json::Value::String(text) => text.clone(),
        serde_json::Value::Null => "none".to_owned(),
        other => other.to_string(),
    }
}
