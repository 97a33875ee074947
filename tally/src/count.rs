//! Counting the log: what the dataflow works on and how, and `tally worker --bounded`.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tally_checkpoints::writer::WriterOptions;
use tally_dataflow::{
    CheckpointParts, CountError, CountOptions, CountParts, CountProgress, CountReport, Mode,
    Savepoints, Stages, StopSignal,
};
use tally_model::revision::Generation;
use tally_model::time::format_rfc3339;
use tally_operators::dedup::{DirectoryStore, SegmentStore};
use tally_sinks::counts::WriterId;
use tally_sinks::marks;
use tokio::sync::oneshot;

use crate::checkpoints;
use crate::cli::WorkerArgs;
use crate::clock::SystemClock;
use crate::config::Settings;
use crate::counting::Counting;
use crate::deployment::{Deployment, Missing, random};
use crate::failure::{Exit, Failure};
use crate::output::{self, Format};
use crate::process;
use crate::roles;
use crate::start::Start;
use crate::target::load_settings;

/// `tally worker`.
pub(crate) fn worker(args: &WorkerArgs) -> Result<(), Failure> {
    let settings = load_settings(args.process.config.config.as_deref(), |layers| {
        roles::add_workers(layers, args.workers)
    })?;
    if !args.bounded {
        return roles::worker(args, &settings);
    }
    crate::logging::start();
    let clock = Arc::new(SystemClock::new());
    let deployment = Deployment::open(&args.process.data_dir, Missing::Refuse, &settings, clock)?;
    deployment.set_origin()?;
    let report = bounded(&deployment, &settings, &args.start.start()?)?;
    print(&report, args.output)?;
    let totals = &report.totals;
    let left_out = totals.late + totals.straggler + totals.past_window;
    if left_out == 0 {
        return Ok(());
    }
    Err(Failure::message(
        Exit::Failed,
        format!(
            "{left_out} events are not in the counts: {} late, {} stragglers, {} past the dedup \
             window; they wait for a recount",
            totals.late, totals.straggler, totals.past_window
        ),
    ))
}

/// Counts to the present end of the log, with a progress bar where somebody watches.
///
/// # Errors
/// Exit 5 if the deployment was taken over or retention left a hole.
pub(crate) fn bounded(
    deployment: &Deployment,
    settings: &Settings,
    start: &Start,
) -> Result<CountReport, Failure> {
    let progress = Arc::new(CountProgress::default());
    let parts = parts(deployment, settings, start, Arc::clone(&progress), Arc::default())?;
    let options = options(deployment, settings, Mode::Bounded, start);
    let total = records_to_read(deployment)?;
    let bar = bar(total, "counting");
    let outcome = std::thread::scope(|scope| {
        let running = scope.spawn(|| tally_dataflow::run(parts, options));
        while !running.is_finished() {
            bar.set_position(progress.totals().records);
            std::thread::park_timeout(Duration::from_millis(100));
        }
        running.join()
    });
    bar.finish_and_clear();
    match outcome {
        Ok(outcome) => outcome.map_err(failure),
        Err(_panic) => Err(Failure::message(Exit::Failed, "the counting thread panicked")),
    }
}

/// Starts counting for as long as the node runs. The receiver hears of an end before that.
///
/// # Errors
/// If it cannot be set up.
pub(crate) fn start(
    deployment: &Arc<Deployment>,
    settings: &Settings,
    start: &Start,
    savepoints: &Arc<Savepoints>,
) -> Result<(Counting, oneshot::Receiver<()>), Failure> {
    let progress = Arc::new(CountProgress::default());
    let options = options(deployment, settings, Mode::Continuous, start);
    let make_parts = {
        let (deployment, settings, start) =
            (Arc::clone(deployment), settings.clone(), start.clone());
        let (progress, savepoints) = (Arc::clone(&progress), Arc::clone(savepoints));
        move |log, stop| {
            let mut parts = parts(&deployment, &settings, &start, Arc::clone(&progress), stop)?;
            parts.log = log;
            parts.savepoints = Arc::clone(&savepoints);
            Ok(parts)
        }
    };
    Counting::start(Arc::clone(deployment), Box::new(make_parts), options, progress)
}

/// The next generation of this deployment, claimed before anything is put.
pub(crate) fn claim(deployment: &Deployment) -> Result<Generation, Failure> {
    Ok(marks::claim_generation(deployment.meta.as_ref(), deployment.clock.now_ms())?)
}

/// What the dataflow works on.
pub(crate) fn parts(
    deployment: &Deployment,
    settings: &Settings,
    start: &Start,
    progress: Arc<CountProgress>,
    stop: Arc<StopSignal>,
) -> Result<CountParts, Failure> {
    Ok(CountParts {
        log: deployment.event_log()?,
        counts: start.faults.counts(Arc::clone(&deployment.counts)),
        meta: Arc::clone(&deployment.meta),
        segments: dedup_segments(deployment, settings)?,
        checkpoints: Some(CheckpointParts {
            objects: start
                .faults
                .objects(checkpoints::objects_to_write(&deployment.dir, settings)?),
            deployment: deployment.id.clone(),
            origin: start.origin.clone(),
            keep_last: WriterOptions::KEEP_LAST,
        }),
        savepoints: Arc::default(),
        mixer: deployment.mixer(),
        clock: Arc::clone(&deployment.clock),
        writer: WriterId(u64::from_le_bytes(random()?)),
        generation: claim(deployment)?,
        progress,
        stop,
    })
}

/// Where the dedup state keeps its ids. Says what they will take.
fn dedup_segments(
    deployment: &Deployment,
    settings: &Settings,
) -> Result<Arc<dyn SegmentStore>, Failure> {
    let memory = &settings.dedup_memory;
    let needed_bytes = memory
        .check(deployment.dedup, deployment.shards)
        .map_err(|error| Failure::new(Exit::Usage, error))?;
    tracing::info!(
        needed_bytes,
        budget_bytes = memory.budget_bytes,
        expected_ids = memory.ids,
        "memory of the dedup state"
    );
    let open_files = usize::try_from(process::raise_open_files() / 4)
        .unwrap_or(usize::MAX)
        .clamp(DirectoryStore::OPEN_FILES_MAX / 2, 4_096);
    Ok(Arc::new(DirectoryStore::new(deployment.dir.join("dedup"), open_files)?))
}

/// How the dataflow works on it.
pub(crate) fn options(
    deployment: &Deployment,
    settings: &Settings,
    mode: Mode,
    start: &Start,
) -> CountOptions {
    CountOptions {
        workers: settings.pipeline.workers,
        shards: deployment.shards,
        timing: settings.pipeline.timing,
        dedup: deployment.dedup,
        epoch_ms: settings.pipeline.epoch_ms,
        restate_every_ms: settings.pipeline.restate_every_ms,
        checkpoint_every_ms: settings.pipeline.checkpoint_every_ms,
        windows_wait_minutes: settings.pipeline.windows_wait_minutes,
        mode,
        accept_hole: start.accept_hole,
        minutes_kept_days: settings.retention.minutes_days,
        stages: Stages::All,
        ..CountOptions::default()
    }
}

fn records_to_read(deployment: &Deployment) -> Result<u64, Failure> {
    let log = deployment.event_log()?;
    let (low, end) = (log.low_offsets()?, log.end_offsets()?);
    Ok(low.iter().zip(&end).map(|(low, end)| end - low).sum())
}

/// A progress bar on standard error; hidden where nobody watches.
pub(crate) fn bar(total: u64, what: &'static str) -> indicatif::ProgressBar {
    if !output::is_watched() {
        return indicatif::ProgressBar::hidden();
    }
    let style = indicatif::ProgressStyle::with_template(
        "{msg} {wide_bar} {human_pos}/{human_len} {per_sec} eta {eta}",
    );
    let bar = indicatif::ProgressBar::new(total).with_message(what);
    match style {
        Ok(style) => bar.with_style(style),
        Err(_template) => bar,
    }
}

/// The exit code of a pipeline that ended by itself.
pub(crate) fn failure(error: CountError) -> Failure {
    match error {
        CountError::Hole { .. } => {
            let error = anyhow::Error::new(error).context(
                "retention has removed records that stored rows were made from; start with \
                 --accept-hole to go on: rows that stand are never lowered",
            );
            Failure { exit: Exit::Refused, error }
        }
        CountError::Fenced { .. } | CountError::LogShort { .. } | CountError::State { .. } => {
            Failure::new(Exit::Refused, error)
        }
        CountError::Checkpoint(error) => checkpoints::failure(error),
        _ => Failure::from(error),
    }
}

/// The report of a run as JSON: what became of every record read.
pub(crate) fn describe(report: &CountReport) -> Value {
    let totals = &report.totals;
    let invalid: serde_json::Map<String, Value> = tally_model::reasons::InvalidReason::ALL
        .iter()
        .map(|reason| (reason.code().to_owned(), json!(totals.invalid(*reason))))
        .collect();
    json!({
        "records": totals.records,
        "counted": totals.counted,
        "repeats": totals.repeats,
        "late": totals.late,
        "straggler": totals.straggler,
        "pastWindow": totals.past_window,
        "control": totals.control,
        "invalid": invalid,
        "countedByWorker": report.counted_by_worker,
        "rows": {
            "put": report.rows.put,
            "unchanged": report.rows.unchanged,
            "withheld": report.rows.withheld,
            "refused": report.rows.refused,
            "pastRetention": report.rows.past_retention,
        },
        "watermark": report.watermark_ms.map(format_rfc3339),
        "retiredUpTo": report.retired_up_to_ms.map(format_rfc3339),
        "seconds": report.seconds,
    })
}

fn print(report: &CountReport, format: Format) -> Result<(), Failure> {
    let report = describe(report);
    if format == Format::Json {
        return output::json(&report);
    }
    let mut rows = Vec::new();
    for (name, value) in report.as_object().into_iter().flatten() {
        match value {
            Value::Object(inner) => {
                rows.extend(inner.iter().map(|(key, v)| vec![format!("{name}.{key}"), show(v)]));
            }
            other => rows.push(vec![name.clone(), show(other)]),
        }
    }
    output::rows(format, &["what", "value"], &rows)
}

fn show(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}
