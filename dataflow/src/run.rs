//! Starts a run, waits for its end, and says what it did.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use timely::dataflow::operators::Probe;
use timely::dataflow::operators::probe::Handle;
use timely::scheduling::Activator;
use timely::worker::Worker;

use crate::combine::combine;
use crate::error::CountError;
use crate::global::vectors;
use crate::holes;
use crate::local::LocalCounts;
use crate::options::{CountOptions, CountParts, Stages};
use crate::outbox::Finish;
use crate::progress::RowTotals;
use crate::reading::Reading;
use crate::restore::{self, Opened};
use crate::shared::Shared;
use crate::sink::sink;
use crate::source::source;
use crate::totals::Totals;
use crate::uploader::Uploader;
use crate::writer::{LAST_ATTEMPTS, Writer};

#[cfg(test)]
mod tests;

/// What a run did.
#[derive(Clone, Debug, PartialEq)]
pub struct CountReport {
    /// What became of the records.
    pub totals: Totals,
    /// Events counted by each worker.
    pub counted_by_worker: Vec<u64>,
    /// What became of the rows.
    pub rows: RowTotals,
    /// The global watermark at the end, in ms since the Unix epoch.
    pub watermark_ms: Option<i64>,
    /// How far minutes are readable, in ms since the Unix epoch.
    pub readable_up_to_ms: Option<i64>,
    /// How far minutes are retired, in ms since the Unix epoch.
    pub retired_up_to_ms: Option<i64>,
    /// How long it took.
    pub seconds: f64,
}

/// Counts. Blocks until [`StopSignal::stop`](crate::StopSignal::stop), or until the present end of
/// the log in [`Mode::Bounded`](crate::Mode::Bounded).
///
/// # Errors
/// [`CountError`], one variant for each thing that the caller can do about it.
pub fn run(parts: CountParts, options: CountOptions) -> Result<CountReport, CountError> {
    run_with_patience(parts, options, LAST_ATTEMPTS)
}

/// The same, with another number of attempts to put what is left when the flow has ended.
pub(crate) fn run_with_patience(
    parts: CountParts,
    options: CountOptions,
    last_attempts: u32,
) -> Result<CountReport, CountError> {
    if options.workers == 0 {
        return Err(CountError::Start { reason: "there must be a worker".to_owned() });
    }
    let started_ms = parts.clock.monotonic_ms();
    let Opened { start, checkpoints, holes } = restore::open(&parts, &options)?;
    parts.progress.start(options.workers, &start.totals());
    let shared = Arc::new(Shared::new(parts, options, start));
    restore::clear_segments(&shared)?;
    for hole in holes {
        holes::note(&shared, &hole);
    }
    let writer = Writer::new(Arc::clone(&shared), last_attempts);
    let writer = thread(&shared, "the writer", move || writer.run())?;
    let uploader = match checkpoints {
        Some((checkpoints, late_hours)) => {
            let uploader = Uploader::new(Arc::clone(&shared), checkpoints, late_hours);
            Some(thread(&shared, "the uploader", move || uploader.run())?)
        }
        None => None,
    };
    let flowed = flow(&shared);
    let finish = match (&flowed, shared.is_aborted()) {
        (Ok(()), false) if shared.parts.stop.is_stopped() => Finish::PutOnce,
        (Ok(()), false) => Finish::PutAll,
        (Ok(()) | Err(_), _) => Finish::Abandon,
    };
    shared.outbox.finish(finish);
    shared.cuts.end(finish == Finish::Abandon);
    let uploaded = uploader.map_or(Ok(()), JoinHandle::join);
    shared.parts.savepoints.end();
    let written = writer.join();
    if let Some(error) = shared.take_failure() {
        return Err(error);
    }
    flowed?;
    written.map_err(|_panic| panicked("the writer"))?;
    uploaded.map_err(|_panic| panicked("the uploader"))?;
    let progress = &shared.parts.progress;
    let elapsed_ms = shared.parts.clock.monotonic_ms() - started_ms;
    Ok(CountReport {
        totals: progress.totals(),
        counted_by_worker: progress.counted_by_worker(),
        rows: progress.rows(),
        watermark_ms: progress.watermark_ms(),
        readable_up_to_ms: progress.readable_up_to_ms(),
        retired_up_to_ms: progress.retired_up_to_ms(),
        seconds: Duration::from_millis(elapsed_ms.unsigned_abs()).as_secs_f64(),
    })
}

fn panicked(thread: &str) -> CountError {
    CountError::Panicked { thread: thread.to_owned() }
}

/// Runs a part beside the flow; if it fails, so does the run.
fn thread(
    shared: &Arc<Shared>,
    name: &'static str,
    body: impl FnOnce() -> Result<(), CountError> + Send + 'static,
) -> Result<JoinHandle<()>, CountError> {
    let shared = Arc::clone(shared);
    let body = move || match std::panic::catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => {}
        Ok(Err(error)) => shared.fail(error),
        Err(_panic) => shared.fail(panicked(name)),
    };
    let thread = std::thread::Builder::new().name(name.replace("the ", "tally-"));
    thread.spawn(body).map_err(|error| CountError::Start { reason: error.to_string() })
}

/// Runs the workers to their end.
fn flow(shared: &Arc<Shared>) -> Result<(), CountError> {
    let config = timely::Config::process(shared.options.workers);
    let on_worker = {
        let shared = Arc::clone(shared);
        move |worker: &mut Worker| {
            let index = worker.index();
            let body = AssertUnwindSafe(|| count(worker, &shared));
            if std::panic::catch_unwind(body).is_err() {
                shared.fail(panicked(&format!("worker {index}")));
            }
            // Whatever is left is of no use to anyone any more.
            for dataflow in worker.installed_dataflows() {
                worker.drop_dataflow(dataflow);
            }
        }
    };
    let workers =
        timely::execute(config, on_worker).map_err(|reason| CountError::Start { reason })?;
    for (index, joined) in workers.join().into_iter().enumerate() {
        joined.map_err(|_panic| panicked(&format!("worker {index}")))?;
    }
    Ok(())
}

/// What one worker does.
fn count(worker: &mut Worker, shared: &Arc<Shared>) {
    let stop = &shared.parts.stop;
    stop.register();
    let reading = match Reading::open(shared, worker.index()) {
        Ok(reading) => reading,
        Err(error) => return shared.fail(CountError::Log(error)),
    };
    let shards = match restore::shards(shared, worker.index()) {
        Ok(shards) => shards,
        Err(error) => return shared.fail(error),
    };
    let source = worker.dataflow(|scope| {
        let done = Handle::new();
        let source = source(scope, shared, reading, done.clone());
        if shared.options.stages == Stages::Decode {
            return source.activator;
        }
        let start = &shared.start;
        let (first_minute_ms, watermark_ms) = (start.first_minute_ms, start.watermark_ms());
        let index = scope.index();
        let counts =
            LocalCounts::new(index, &shared.options, shards, first_minute_ms, watermark_ms);
        let combined = combine(source.batches, source.reports, counts, Arc::clone(shared));
        let partials = combined.partials.probe_with(&done);
        if shared.options.stages == Stages::All {
            sink(vectors(partials), combined.horizons, Arc::clone(shared));
        }
        source.activator
    });
    drive(worker, shared, &source);
}

/// Steps until the dataflow has ended or the run is aborted.
fn drive(worker: &mut Worker, shared: &Shared, source: &Activator) {
    let mut told = false;
    while !shared.is_aborted() {
        if !told && shared.parts.stop.is_stopped() {
            told = true;
            source.activate();
        }
        if !worker.step_or_park(None) {
            return;
        }
    }
}
