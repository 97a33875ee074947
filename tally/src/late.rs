//! `tally late …`: what is not in the counts, by hour and cause.

use clap::{Args, Subcommand};
use serde_json::Value;
use tally_model::bucket::{DAY_MS, Granularity};
use tally_model::clock::Clock;
use tally_model::time::format_rfc3339;

use crate::ask::{ask_json, items, raw, text};
use crate::cli::TargetArgs;
use crate::clock::SystemClock;
use crate::failure::Failure;
use crate::output::{self, Format};
use crate::target::{Role, Target, encode};
use crate::units::duration_argument;

/// What is listed when no range is named: older events are not even accepted.
const LAST_MS: i64 = 90 * DAY_MS;

#[derive(Debug, Subcommand)]
pub(crate) enum LateCommand {
    /// List the hours whose counts lack something: how many events, why, and where in the log.
    #[command(after_help = "Examples:\n  tally late list --data-dir ./data\n  tally late list \
                            --last 7d --url http://127.0.0.1:8080 --token tr_... -o csv\n  tally \
                            late list --start 2026-03-01T00:00:00Z --end 2026-03-02T00:00:00Z -o \
                            json\n\nAnswers that touch such an hour are neither complete nor \
                            exact. Positions are PARTITION:OFFSET, the offset after the last such \
                            record. Exit code 0 whether there are such hours or not.")]
    List(LateListArgs),
}

#[derive(Args, Debug)]
pub(crate) struct LateListArgs {
    /// First instant, on a whole hour, RFC 3339 with an offset.
    #[arg(long, requires = "end")]
    pub(crate) start: Option<String>,
    /// First instant after the range.
    #[arg(long, requires = "start")]
    pub(crate) end: Option<String>,
    /// The hours up to now instead, the present one included, like 24h or 7d; 90d if no range is
    /// named.
    #[arg(long, value_name = "DURATION", value_parser = duration_argument, conflicts_with = "start")]
    pub(crate) last: Option<i64>,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Form of the list.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

/// `tally late …`.
pub(crate) fn late(command: &LateCommand) -> Result<(), Failure> {
    match command {
        LateCommand::List(args) => list(args),
    }
}

fn list(args: &LateListArgs) -> Result<(), Failure> {
    let target = Target::open(&args.target, Role::Read)?;
    let (start, end) = range(args, SystemClock::new().now_ms());
    let path = format!("/v1/late-hours?start={}&end={}", encode(&start), encode(&end));
    if let Some(answer) = raw(&target, &path, args.output)? {
        return output::line(answer.trim_end());
    }
    let answer = ask_json(&target, &path)?;
    let hours = items(&answer, "hours");
    if !hours.is_empty() {
        let cells: Vec<Vec<String>> = hours.iter().map(cells).collect();
        output::rows(Format::Table, &HEADINGS, &cells)?;
    }
    output::line(summary(&answer))
}

/// The range to ask for, as text.
fn range(args: &LateListArgs, now_ms: i64) -> (String, String) {
    if let (Some(start), Some(end)) = (&args.start, &args.end) {
        return (start.clone(), end.clone());
    }
    let end_ms = Granularity::Hour.ceil(now_ms);
    let start_ms = Granularity::Hour.floor(now_ms.saturating_sub(args.last.unwrap_or(LAST_MS)));
    (format_rfc3339(start_ms), format_rfc3339(end_ms))
}

const HEADINGS: [&str; 7] =
    ["start", "late", "straggler", "pastWindow", "hole", "superseded", "positions"];

fn cells(hour: &Value) -> Vec<String> {
    let position = |one: &Value| format!("{}:{}", text(one, "partition"), text(one, "nextOffset"));
    let positions: Vec<String> = items(hour, "positions").iter().map(position).collect();
    let (last, others) = (positions.join(" "), HEADINGS.iter().take(HEADINGS.len() - 1));
    others.map(|heading| text(hour, heading)).chain([last]).collect()
}

fn summary(answer: &Value) -> String {
    let hours = items(answer, "hours").len();
    let window = answer.get("window").cloned().unwrap_or_default();
    let total = answer.get("total").cloned().unwrap_or_default();
    format!(
        "{} to {}: {hours} {}; late {}, straggler {}, past the dedup window {}",
        text(&window, "start"),
        text(&window, "end"),
        if hours == 1 { "dirty hour" } else { "dirty hours" },
        text(&total, "late"),
        text(&total, "straggler"),
        text(&total, "pastWindow"),
    )
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: LateListArgs,
    }

    fn asked(flags: &[&str]) -> Result<(String, String), clap::Error> {
        let now_ms = tally_model::time::parse_rfc3339("2026-03-10T12:00:30Z").unwrap();
        let line = Line::try_parse_from(["list"].iter().chain(flags))?;
        Ok(range(&line.args, now_ms))
    }

    #[test]
    fn the_present_hour_is_listed_too_and_without_a_range_the_last_90_days_are() {
        let cases: [(&[&str], &str, &str); 4] = [
            (&[], "2025-12-10T12:00:00Z", "2026-03-10T13:00:00Z"),
            (&["--last", "1min"], "2026-03-10T11:00:00Z", "2026-03-10T13:00:00Z"),
            (&["--last", "7d"], "2026-03-03T12:00:00Z", "2026-03-10T13:00:00Z"),
            (&["--start", "A", "--end", "B"], "A", "B"),
        ];
        for (flags, start, end) in cases {
            assert_eq!(asked(flags).unwrap(), (start.to_owned(), end.to_owned()), "{flags:?}");
        }
        assert!(asked(&["--start", "A"]).is_err(), "half a range");
        assert!(asked(&["--start", "A", "--end", "B", "--last", "1h"]).is_err(), "two ranges");
    }

    #[test]
    fn a_row_of_the_table_says_causes_and_positions() {
        let hour = json!({
            "start": "2026-03-10T08:00:00Z", "late": 2, "straggler": 0, "pastWindow": 1,
            "hole": false, "superseded": true,
            "positions": [
                {"partition": 3, "nextOffset": 17},
                {"partition": 10, "nextOffset": "9007199254740993"},
            ],
        });
        let want =
            ["2026-03-10T08:00:00Z", "2", "0", "1", "false", "true", "3:17 10:9007199254740993"];
        assert_eq!(cells(&hour), want);
        let answer = json!({
            "window": {"start": "A", "end": "B"}, "hours": [hour],
            "total": {"late": 2, "straggler": 0, "pastWindow": 1},
        });
        let want = "A to B: 1 dirty hour; late 2, straggler 0, past the dedup window 1";
        assert_eq!(summary(&answer), want);
    }
}
