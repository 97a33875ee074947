//! The counting pipeline as a thread of a node.
//!
//! A Kafka topic may get more partitions while it is counted. Then the run ends with a checkpoint
//! and the next one begins there with all partitions; new ones are read from their first record.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;

use tally_checkpoints::reader::Origin;
use tally_dataflow::{CountOptions, CountParts, CountProgress, CountReport, StopSignal};
use tally_eventlog::EventLog;
use tokio::sync::oneshot;

use crate::count;
use crate::deployment::Deployment;
use crate::failure::{Exit, Failure};

/// How often the log is asked whether it has more partitions.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A pipeline that counts until it is stopped.
pub(crate) struct Counting {
    thread: JoinHandle<Result<CountReport, Failure>>,
    control: Arc<Control>,
    pub(crate) progress: Arc<CountProgress>,
}

/// Makes the parts of a run over `log`, one of whose stop signal is given.
pub(crate) type MakeParts =
    dyn Fn(Arc<dyn EventLog>, Arc<StopSignal>) -> Result<CountParts, Failure> + Send + Sync;

/// Stops the pipeline, and tells whether it runs.
#[derive(Default)]
struct Control {
    /// Ends the run at hand.
    run: Mutex<Arc<StopSignal>>,
    asked_to_stop: AtomicBool,
    running: AtomicBool,
}

impl Control {
    /// The signal of the next run; already raised if the pipeline is to stop.
    fn next_run(&self) -> Arc<StopSignal> {
        let fresh = Arc::new(StopSignal::default());
        *self.run.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&fresh);
        if self.asked_to_stop.load(Ordering::SeqCst) {
            fresh.stop();
        }
        fresh
    }

    fn is_running(&self) -> bool {
        self.running.load(Ordering::Relaxed)
    }

    fn stop(&self) {
        self.asked_to_stop.store(true, Ordering::SeqCst);
        self.run.lock().unwrap_or_else(PoisonError::into_inner).stop();
    }
}

impl Counting {
    /// Starts the pipeline of `deployment`. The receiver hears of its end.
    ///
    /// # Errors
    /// If the first run cannot be set up.
    pub(crate) fn start(
        deployment: Arc<Deployment>,
        make_parts: Box<MakeParts>,
        options: CountOptions,
        progress: Arc<CountProgress>,
    ) -> Result<(Self, oneshot::Receiver<()>), Failure> {
        let control = Arc::new(Control::default());
        control.running.store(true, Ordering::Relaxed);
        let stop = control.next_run();
        let parts = make_parts(deployment.event_log()?, Arc::clone(&stop))?;
        let (ended, counting_ended) = oneshot::channel();
        let thread = {
            let control = Arc::clone(&control);
            std::thread::Builder::new().name("counting".to_owned()).spawn(move || {
                let outcome = count_all(&deployment, make_parts.as_ref(), parts, options, &control);
                control.running.store(false, Ordering::Relaxed);
                // Nobody waits for this once the node is stopping.
                let _nobody_waits = ended.send(());
                outcome
            })?
        };
        Ok((Self { thread, control, progress }, counting_ended))
    }

    /// Whether the pipeline runs.
    pub(crate) fn is_running(&self) -> bool {
        self.control.is_running()
    }

    /// Whether it is decided from where the pipeline goes on, or that it does not.
    pub(crate) fn has_begun(&self) -> bool {
        self.progress.has_started() || !self.is_running()
    }

    /// What the admin port reports on.
    pub(crate) fn watched(&self) -> Watched {
        Watched { control: Arc::clone(&self.control), progress: Arc::clone(&self.progress) }
    }

    /// Asks the pipeline to write its last checkpoint and to end.
    pub(crate) fn stop(&self) {
        self.control.stop();
    }

    /// Waits for the end.
    pub(crate) fn join(self) -> Result<CountReport, Failure> {
        let joined = self.thread.join();
        joined.map_err(|_panic| Failure::message(Exit::Failed, "the counting pipeline panicked"))?
    }
}

/// How the pipeline is, for whoever asks.
pub(crate) struct Watched {
    control: Arc<Control>,
    pub(crate) progress: Arc<CountProgress>,
}

impl Watched {
    /// Whether the pipeline runs.
    pub(crate) fn is_running(&self) -> bool {
        self.control.is_running()
    }
}

/// Counts; once the log has more partitions, all of them.
fn count_all(
    deployment: &Deployment,
    make_parts: &MakeParts,
    mut parts: CountParts,
    options: CountOptions,
    control: &Control,
) -> Result<CountReport, Failure> {
    loop {
        let log = Arc::clone(&parts.log);
        let watch = Watch::start(Arc::clone(&log), Arc::clone(&parts.stop))?;
        let outcome = tally_dataflow::run(parts, options);
        let grew = watch.end();
        let report = outcome.map_err(count::failure)?;
        if !grew || control.asked_to_stop.load(Ordering::SeqCst) {
            return Ok(report);
        }
        let log = deployment.reopen_log()?;
        tracing::info!(partitions = log.partitions(), "the log has more partitions: counting all");
        parts = make_parts(log, control.next_run())?;
        // Whatever the process was started from, the next run goes on where the last one ended.
        if let Some(kept) = &mut parts.checkpoints {
            kept.origin = Origin::Newest;
        }
    }
}

/// A thread that stops a run when its log has more partitions than the run reads.
struct Watch {
    thread: JoinHandle<bool>,
    wake: Thread,
    ended: Arc<AtomicBool>,
}

impl Watch {
    fn start(log: Arc<dyn EventLog>, stop: Arc<StopSignal>) -> Result<Self, Failure> {
        let ended = Arc::new(AtomicBool::new(false));
        let thread = {
            let ended = Arc::clone(&ended);
            std::thread::Builder::new().name("log-watch".to_owned()).spawn(move || {
                loop {
                    std::thread::park_timeout(LOOK_EVERY);
                    if ended.load(Ordering::SeqCst) {
                        return false;
                    }
                    // A log that does not answer is the readers' concern.
                    if log.partitions_now().is_ok_and(|now| now > log.partitions()) {
                        stop.stop();
                        return true;
                    }
                }
            })?
        };
        Ok(Self { wake: thread.thread().clone(), thread, ended })
    }

    /// Ends the watch. Returns whether it was what stopped the run.
    fn end(self) -> bool {
        self.ended.store(true, Ordering::SeqCst);
        self.wake.unpark();
        self.thread.join().unwrap_or(false)
    }
}
