//! `tally rollup`, and the thread of a node that folds rows and deletes what is past retention.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use clap::Args;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry as Metrics;
use serde_json::json;
use tally_jobs::JobError;
use tally_jobs::retention::{Deleted, Retention};
use tally_jobs::rollup::{
    Rollup, RollupFigures, RollupOptions, RollupParts, RollupProgress, RollupReport, Sweep,
};
use tally_model::bucket::Bucket;
use tally_model::clock::Clock;
use tally_model::time::{format_rfc3339, parse_rfc3339};
use tally_sinks::leases::Owner;

use crate::cli::ConfigArgs;
use crate::clock::SystemClock;
use crate::config::Settings;
use crate::deployment::{Deployment, Missing, random};
use crate::failure::{Exit, Failure};
use crate::output::{self, Format};
use crate::target::load_settings;

pub(crate) const HELP: &str = "Examples:\n  tally rollup --data-dir ./data\n  tally rollup \
                               --data-dir ./data --range 2026-03-01T00:00:00Z/2026-04-01T00:00:00Z \
                               --dry-run\n\nFolds whatever is retired and not folded, or was \
                               restated since: minutes into hours, hours into days. A running \
                               node does this by itself. Exit code 1 if a bucket lacks a child, 4 \
                               if another process works on a day.";

/// Every so many sweeps of the youngest days, all days are looked at.
const WHOLE_EVERY: u32 = 10;

#[derive(Args, Debug)]
pub(crate) struct RollupArgs {
    /// A data folder that no process has open.
    #[arg(long, value_name = "DIR", default_value = "data")]
    pub(crate) data_dir: std::path::PathBuf,
    #[command(flatten)]
    pub(crate) config: ConfigArgs,
    /// Only the days that this range touches: two instants, RFC 3339 with an offset.
    #[arg(long, value_name = "START/END", value_parser = range)]
    pub(crate) range: Option<(i64, i64)>,
    /// List what would be folded and write nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Form of the report.
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Format,
}

fn range(text: &str) -> Result<(i64, i64), String> {
    let (start, end) = text.split_once('/').ok_or("a range is START/END")?;
    let instant = |text: &str| parse_rfc3339(text).map_err(|why| format!("{text:?}: {why}"));
    let (start_ms, end_ms) = (instant(start)?, instant(end)?);
    if start_ms < end_ms { Ok((start_ms, end_ms)) } else { Err("START must lie before END".into()) }
}

/// `tally rollup`.
pub(crate) fn rollup(args: &RollupArgs) -> Result<(), Failure> {
    let settings = load_settings(args.config.config.as_deref(), |_| Ok(()))?;
    crate::logging::start();
    let clock = Arc::new(SystemClock::new());
    let deployment = if settings.counts.is_shared() && settings.log.place.is_shared() {
        Deployment::open_beside_others(&args.data_dir, &settings, clock)?
    } else {
        Deployment::open(&args.data_dir, Missing::Refuse, &settings, clock)?
    };
    let rollup = rollup_of(&deployment, &settings)?;
    let sweep = args.range.map_or(Sweep::All, |(start_ms, end_ms)| Sweep::Within(start_ms..end_ms));
    if args.dry_run {
        let due: Vec<Vec<String>> = rollup.due(&sweep)?.into_iter().map(named).collect();
        return output::rows(args.output, &["granularity", "start"], &due);
    }
    let report = rollup.run(sweep, &|| true)?;
    print(&report, args.output)?;
    if let Some(child) = report.first_lacking {
        return Err(Failure::message(
            Exit::Failed,
            format!(
                "{} retired buckets cannot be folded: a child has no row, first the {} of {}",
                report.lacking,
                child.granularity(),
                format_rfc3339(child.start_ms())
            ),
        ));
    }
    if report.days_busy + report.refused > 0 {
        let message = "another process works on some of the days; run it again later";
        return Err(Failure::message(Exit::NotReady, message));
    }
    Ok(())
}

fn named(bucket: Bucket) -> Vec<String> {
    vec![bucket.granularity().to_string(), format_rfc3339(bucket.start_ms())]
}

fn print(report: &RollupReport, format: Format) -> Result<(), Failure> {
    let fields = [
        ("daysSeen", report.days_seen),
        ("hoursFolded", report.hours_folded),
        ("daysFolded", report.days_folded),
        ("daysSuppressed", report.days_suppressed),
        ("daysBusy", report.days_busy),
        ("lacking", report.lacking),
    ];
    match format {
        Format::Json => {
            let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), json!(value)));
            output::json(&fields.collect::<serde_json::Map<_, _>>())
        }
        Format::Csv => {
            let (names, values): (Vec<&str>, Vec<String>) =
                fields.iter().map(|(name, value)| (*name, value.to_string())).unzip();
            output::rows(format, &names, &[values])
        }
        Format::Table => output::line(format!(
            "looked at {} days; folded {} hours and {} days",
            report.days_seen, report.hours_folded, report.days_folded
        )),
    }
}

/// The rollup of an open deployment.
fn rollup_of(deployment: &Deployment, settings: &Settings) -> Result<Rollup, Failure> {
    let parts = RollupParts {
        counts: Arc::clone(&deployment.counts),
        meta: Arc::clone(&deployment.meta),
        clock: Arc::clone(&deployment.clock),
        owner: Owner(u64::from_le_bytes(random()?)),
    };
    let options = RollupOptions {
        minutes_days: settings.retention.minutes_days,
        hours_days: settings.retention.hours_days,
        suppress_below: settings.query.suppress_below,
        ..RollupOptions::default()
    };
    Ok(Rollup::new(parts, options))
}

/// The thread of a node that folds rows.
pub(crate) struct RollupThread {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl RollupThread {
    /// Starts it; its figures are visible in `metrics`.
    pub(crate) fn start(
        deployment: &Deployment,
        settings: &Settings,
        metrics: &mut Metrics,
    ) -> Result<Self, Failure> {
        let rollup = rollup_of(deployment, settings)?;
        metrics.register_collector(Box::new(RollupMetrics(rollup.progress())));
        let retention = Retention {
            counts: Arc::clone(&deployment.counts),
            meta: Arc::clone(&deployment.meta),
            clock: Arc::clone(&deployment.clock),
            minutes_days: settings.retention.minutes_days,
            hours_days: settings.retention.hours_days,
        };
        let every = Duration::from_millis(settings.jobs.rollup_every_ms);
        let clock = Arc::clone(&deployment.clock);
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("rollup".to_owned()).spawn(move || {
            let go_on = || !stopped.load(Ordering::Relaxed);
            let mut sweeps = 0_u32;
            while go_on() {
                let whole = sweeps.is_multiple_of(WHOLE_EVERY);
                sweep(&rollup, &retention, whole, &go_on);
                sweeps = sweeps.wrapping_add(1);
                pause(every, &*clock, &go_on);
            }
        })?;
        Ok(Self { stop, thread })
    }

    /// Lets it end at the next day of buckets, and waits for that.
    pub(crate) fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
        if self.thread.join().is_err() {
            tracing::error!("the rollup panicked");
        }
    }
}

/// One sweep. What fails is tried again by the next: nothing depends on it but the cost of queries.
fn sweep(rollup: &Rollup, retention: &Retention, whole: bool, go_on: &dyn Fn() -> bool) {
    let of = if whole { Sweep::All } else { Sweep::Recent };
    match rollup.run(of, go_on) {
        Ok(report) => {
            if report.folded() > 0 {
                let RollupReport { hours_folded, days_folded, .. } = report;
                tracing::info!(hours_folded, days_folded, "rows were folded");
            }
            if let Some(child) = report.first_lacking {
                tracing::warn!(
                    lacking = report.lacking,
                    first = ?named(child),
                    "retired buckets cannot be folded: a child has no row"
                );
            }
        }
        Err(error) => {
            rollup.progress().failed();
            failed("rows could not be folded", &error);
        }
    }
    if !whole {
        return;
    }
    match retention.run(go_on) {
        Ok(Deleted { rows, held, .. }) => {
            if rows > 0 {
                tracing::info!(rows, "rows past their retention were deleted");
            }
            if let Some(period) = held {
                tracing::warn!(
                    granularity = %period.granularity(),
                    start = format_rfc3339(period.start_ms()),
                    "rows past their retention stay: the rollup has yet to fold some"
                );
            }
        }
        Err(error) => failed("rows past their retention could not be deleted", &error),
    }
}

fn failed(message: &str, error: &JobError) {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    tracing::error!(error = %error, cause, "{message}");
}

/// Waits so long, or until it is told to stop.
fn pause(every: Duration, clock: &dyn Clock, go_on: &dyn Fn() -> bool) {
    let every_ms = i64::try_from(every.as_millis()).unwrap_or(i64::MAX);
    let until_ms = clock.monotonic_ms().saturating_add(every_ms);
    loop {
        let left_ms = until_ms - clock.monotonic_ms();
        match u64::try_from(left_ms) {
            Ok(left_ms) if left_ms > 0 && go_on() => {
                std::thread::park_timeout(Duration::from_millis(left_ms));
            }
            Ok(_) | Err(_) => return,
        }
    }
}

/// What the rollup reports on `/metrics`.
#[derive(Debug)]
struct RollupMetrics(Arc<RollupProgress>);

impl Collector for RollupMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let RollupFigures {
            runs,
            failed_runs,
            hours_folded,
            days_folded,
            refused_puts,
            lacking,
            busy_days,
            last_run_ms,
        } = self.0.figures();
        for (name, help, value) in [
            ("rollup_runs", "Sweeps that came to their end", runs),
            ("rollup_failed_runs", "Sweeps that an error ended", failed_runs),
            ("rollup_hours_folded", "Hour rows put", hours_folded),
            ("rollup_days_folded", "Day rows put", days_folded),
            ("rollup_refused_puts", "Conditional puts refused", refused_puts),
        ] {
            let metric = ConstCounter::new(value);
            let kind = metric.metric_type();
            metric.encode(encoder.encode_descriptor(name, help, None, kind)?)?;
        }
        let help = "Retired buckets that cannot be folded since a child has no row; should be 0";
        for (name, help, value) in [
            ("rollup_stuck_buckets", help, lacking),
            ("rollup_busy_days", "Days that another process worked on", busy_days),
            (
                "rollup_last_run_timestamp_seconds",
                "When the last sweep ended",
                u64::try_from(last_run_ms / 1_000).unwrap_or(0),
            ),
        ] {
            let metric = ConstGauge::new(value);
            let kind = metric.metric_type();
            metric.encode(encoder.encode_descriptor(name, help, None, kind)?)?;
        }
        Ok(())
    }
}
