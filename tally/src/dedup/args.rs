//! What `tally dedup` can be asked for, and its checks.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};
use tally_model::bucket::{DAY_MS, HOUR_MS, MINUTE_MS};
use tally_model::rules::{DedupRule, Timing};

use crate::failure::Failure;
use crate::output::Format;
use crate::units::{duration_argument, show_duration};

/// Buckets of a window at most: each is asked about every record.
const SPAN_MAX: i64 = 1_000;

/// Examples for the help.
pub(crate) const HELP: &str = "Examples:\n  tally dedup events.ndjson.gz --out unique.ndjson\n  \
    cat *.ndjson | tally dedup --key /event/id --time ts > unique.ndjson\n  tally dedup \
    events.ndjson --out unique.ndjson --state ./seen --late late.ndjson\n\nA copy that comes later \
    than the window is a new event. Exit code 1 if lines were neither written nor repeats, and no \
    --late or --rejects kept them.";

#[derive(Args, Debug)]
pub(crate) struct DedupArgs {
    /// NDJSON, plain, .gz or .zst; standard input (plain) if it is left out or `-`.
    pub(crate) file: Option<PathBuf>,
    /// Write the first copies to this file, not to standard output.
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// The field that tells events apart: a name, or a JSON pointer like /event/id. Several --key
    /// count together.
    #[arg(long, value_name = "FIELD", default_value = "eventId")]
    pub(crate) key: Vec<String>,
    /// The field with the event's time: RFC 3339 with an offset, or milliseconds since 1970.
    #[arg(long, value_name = "FIELD", default_value = "eventTime")]
    pub(crate) time: String,
    /// Use the time of arrival instead of a field.
    #[arg(long, conflicts_with = "time")]
    pub(crate) time_now: bool,
    /// A time further ahead of everything before than this does not move the watermark by itself;
    /// one that far ahead of the clock never does.
    #[arg(long, value_name = "DURATION", value_parser = duration_argument, default_value = "1min")]
    pub(crate) max_ahead: i64,
    /// How long an event is remembered: a copy that comes later is a new event.
    #[arg(long, value_name = "DURATION", value_parser = duration_argument, default_value = "7d")]
    pub(crate) window: i64,
    /// Time is cut into buckets of this width; the window is a whole number of them. By default a
    /// day, or an hour for windows of at most a day, or what divides the window.
    #[arg(long, value_name = "DURATION", value_parser = duration_argument)]
    pub(crate) bucket: Option<i64>,
    /// How far behind the watermark a record may come and still be decided. By default the window,
    /// at most a day.
    #[arg(long, value_name = "DURATION", value_parser = duration_argument)]
    pub(crate) lateness: Option<i64>,
    /// Keep what was seen in this folder: an interrupted run goes on, a next one remembers.
    #[arg(long, value_name = "DIR", requires = "out")]
    pub(crate) state: Option<PathBuf>,
    /// How often the state is made safe.
    #[arg(long, value_name = "DURATION", value_parser = duration_argument, default_value = "10s", requires = "state")]
    pub(crate) checkpoint_every: i64,
    /// Write the records that came too late to decide to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) late: Option<PathBuf>,
    /// Write the lines that are no JSON, or lack key or time, to this file.
    #[arg(long, value_name = "FILE")]
    pub(crate) rejects: Option<PathBuf>,
    /// Form of the statistics on standard error.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

/// What decides which lines are written. A state folder belongs to one set of these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Rules {
    pub(super) keys: Vec<String>,
    /// `None`: the time of arrival.
    pub(super) time: Option<String>,
    pub(super) max_ahead_ms: i64,
    pub(super) window_ms: i64,
    pub(super) bucket_ms: i64,
    pub(super) lateness_ms: i64,
}

impl Rules {
    pub(super) fn check(args: &DedupArgs) -> Result<Self, Failure> {
        let bucket_ms = args.bucket.unwrap_or_else(|| default_bucket_ms(args.window));
        let rules = Self {
            keys: args.key.clone(),
            time: (!args.time_now).then(|| args.time.clone()),
            max_ahead_ms: args.max_ahead,
            window_ms: args.window,
            bucket_ms,
            lateness_ms: args.lateness.unwrap_or(args.window.min(DAY_MS)),
        };
        DedupRule::new(args.window, bucket_ms)
            .map_err(|error| Failure::usage(format!("--window and --bucket: {error}")))?;
        if args.window / bucket_ms > SPAN_MAX {
            return Err(Failure::usage(format!(
                "--window {} is more than {SPAN_MAX} buckets of {}; say a longer --bucket",
                show_duration(args.window),
                show_duration(bucket_ms)
            )));
        }
        Ok(rules)
    }

    /// The same rule that the pipeline goes by.
    pub(super) fn dedup(&self) -> Result<DedupRule, Failure> {
        Ok(DedupRule::new(self.window_ms, self.bucket_ms)?)
    }

    /// A record that is no more than the lateness behind the watermark is decided.
    pub(super) fn timing(&self) -> Timing {
        Timing { watermark_delay_ms: 0, lateness_ms: self.lateness_ms, append_grace_ms: 0 }
    }
}

/// The pipeline's default where it divides the window, else the widest usual unit that does.
fn default_bucket_ms(window_ms: i64) -> i64 {
    let most = DedupRule::default_width_ms(window_ms);
    [DAY_MS, HOUR_MS, MINUTE_MS, 1_000]
        .into_iter()
        .find(|width| *width <= most && window_ms >= *width && window_ms % width == 0)
        .unwrap_or(window_ms.max(1))
}

/// Refuses files that would overwrite each other.
pub(super) fn check_files(args: &DedupArgs, input: Option<&Path>) -> Result<(), Failure> {
    let outputs = [&args.out, &args.late, &args.rejects].map(|path| path.as_deref());
    let named: Vec<(&Path, PathBuf)> = [input]
        .into_iter()
        .chain(outputs)
        .flatten()
        .filter_map(|path| Some((path, identity(path)?)))
        .collect();
    for (index, (path, real)) in named.iter().enumerate() {
        if named.iter().skip(index + 1).any(|(_, other)| other == real) {
            return Err(Failure::usage(format!("{} is named twice", path.display())));
        }
    }
    Ok(())
}

/// The one name of a plain file, present or to be made; `None` for devices and pipes.
fn identity(path: &Path) -> Option<PathBuf> {
    match path.metadata() {
        Ok(metadata) if !metadata.is_file() => None,
        Ok(_) => path.canonicalize().ok(),
        Err(_) => std::path::absolute(path).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_divides_the_window_unless_it_was_said_otherwise() {
        for (window_ms, want) in [
            (7 * DAY_MS, DAY_MS),
            (DAY_MS, HOUR_MS),
            (36 * HOUR_MS, HOUR_MS),
            (90 * MINUTE_MS, MINUTE_MS),
            (10 * MINUTE_MS, MINUTE_MS),
            (1_500, 1_500),
        ] {
            let width = default_bucket_ms(window_ms);
            assert_eq!(width, want, "{window_ms}");
            DedupRule::new(window_ms, width).unwrap();
        }
    }
}
