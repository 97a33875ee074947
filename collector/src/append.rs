//! Handing records to the log, numbered without gaps.

use std::error::Error;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tally_eventlog::{AppendDone, AppendError, EventLog, NewRecord, Offset, Partition};
use tally_model::clock::Clock;
use tally_model::record::finish_encoded;
use tokio::sync::oneshot;

use crate::health::Health;
use crate::metrics::Metrics;

/// Appends the records of all requests, as one collector run.
///
/// Every record carries the run's number and, per partition, a sequence number. Numbers are handed
/// out under the lock under which the records go to the log, so the order in the log is the order
/// of the numbers: what is missing after a crash can be told from the log alone.
pub struct Appender {
    log: Arc<dyn EventLog>,
    run: u64,
    /// The next sequence number, by partition.
    next: Mutex<Vec<u64>>,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
}

impl fmt::Debug for Appender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Appender").field("log", &self.log).field("run", &self.run).finish()
    }
}

/// Why a batch must not be confirmed to its client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AppendFailure {
    /// Nothing was written because too much waits: try again in a moment.
    #[error("the log has no room for the batch")]
    Overloaded(#[source] AppendError),
    /// The log takes nothing now: some or all of the batch was not written.
    #[error("the log did not take the batch")]
    Refused(#[source] AppendError),
    /// No answer in time, or none any more: the batch may or may not be written.
    #[error("whether the log took the batch is unknown")]
    Unknown,
}

impl AppendFailure {
    const fn code(&self) -> &'static str {
        match self {
            Self::Overloaded(_) => "overloaded",
            Self::Refused(_) => "refused",
            Self::Unknown => "unknown",
        }
    }
}

/// One per record of a batch.
type Outcomes = Vec<Result<Offset, AppendError>>;

/// A batch that the log has not answered yet.
#[derive(Debug)]
pub struct PendingAppend {
    answer: oneshot::Receiver<Outcomes>,
    metrics: Arc<Metrics>,
}

impl Appender {
    /// An appender whose records are numbered from 0 under `run`, a number that no other run of
    /// this log has: draw it at random at each start.
    #[must_use]
    pub fn new(
        log: Arc<dyn EventLog>,
        run: u64,
        clock: Arc<dyn Clock>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let partitions = usize::try_from(log.partitions()).unwrap_or(usize::MAX);
        Self {
            run,
            next: Mutex::new(vec![0; partitions]),
            clock,
            metrics,
            log,
            health: Arc::new(Health::of("the log")),
        }
    }

    /// Whether the log's last answer was no fault of the deployment such as a full disk.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.health.is_good()
    }

    /// Finishes `records` and queues them in the log.
    ///
    /// # Errors
    /// [`AppendFailure`]: nothing was queued.
    pub fn append(&self, records: Vec<NewRecord>) -> Result<PendingAppend, AppendFailure> {
        let (sender, answer) = oneshot::channel();
        let partitions: Vec<Partition> = records.iter().map(|record| record.partition).collect();
        let queued = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let records = number(records, self.run, &mut next);
            let done = self.tell(&records, sender);
            let queued = self.log.append(records, done);
            if queued.is_err() {
                // Nobody else had the lock: the numbers go back and leave no gap.
                for partition in partitions {
                    if let Some(sequence) = next.get_mut(index(partition)) {
                        *sequence -= 1;
                    }
                }
            }
            queued
        };
        queued.map_err(|error| {
            let failure = match error {
                AppendError::Overloaded { .. } => AppendFailure::Overloaded(error),
                fault => {
                    self.health.note(Some(&fault));
                    AppendFailure::Refused(fault)
                }
            };
            self.metrics.append_failure(failure.code());
            failure
        })?;
        Ok(PendingAppend { answer, metrics: Arc::clone(&self.metrics) })
    }

    /// What happens when the log answers for `records`.
    fn tell(&self, records: &[NewRecord], sender: oneshot::Sender<Outcomes>) -> AppendDone {
        let sizes: Vec<usize> = records.iter().map(|record| record.payload.len()).collect();
        let (clock, metrics) = (Arc::clone(&self.clock), Arc::clone(&self.metrics));
        let health = Arc::clone(&self.health);
        let started_ms = clock.monotonic_ms();
        Box::new(move |outcomes: Outcomes| {
            let confirmed = outcomes.iter().zip(&sizes).filter(|(outcome, _)| outcome.is_ok());
            let (count, bytes) =
                confirmed.fold((0, 0), |(count, sum), (_, size)| (count + 1, sum + size));
            metrics.appended(count, bytes, clock.monotonic_ms() - started_ms);
            let fault = outcomes.iter().find_map(|outcome| outcome.as_ref().err().filter(is_fault));
            health.note(fault.map(|fault| fault as &(dyn Error + 'static)));
            if sender.send(outcomes).is_err() {
                // The client went away or the deadline has passed: nobody was told anything.
            }
        })
    }
}

/// Finishes records with their numbers.
fn number(mut records: Vec<NewRecord>, run: u64, next: &mut [u64]) -> Vec<NewRecord> {
    for record in &mut records {
        // A partition that the log does not have is refused by the log itself.
        if let Some(sequence) = next.get_mut(index(record.partition)) {
            finish_encoded(&mut record.payload, run, *sequence);
            *sequence += 1;
        }
    }
    records
}

impl PendingAppend {
    /// Waits until every record is durable. Returns the positions of records that the log can never
    /// take because of their size; all others are confirmed.
    ///
    /// # Errors
    /// [`AppendFailure`]: nothing of the batch may be confirmed, even if parts of it are written.
    pub async fn wait(self, at_most: Duration) -> Result<Vec<usize>, AppendFailure> {
        let answer = tokio::time::timeout(at_most, self.answer).await;
        let confirmed = match answer {
            Ok(Ok(outcomes)) => confirm(outcomes),
            Ok(Err(_lost)) => Err(AppendFailure::Unknown),
            Err(_elapsed) => Err(AppendFailure::Unknown),
        };
        confirmed.inspect_err(|failure| self.metrics.append_failure(failure.code()))
    }

    /// [`PendingAppend::wait`] for callers that are not async, without a deadline.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Panics
    /// On a thread of an async runtime.
    pub fn wait_blocking(self) -> Result<Vec<usize>, AppendFailure> {
        self.answer
            .blocking_recv()
            .map_err(|_lost| AppendFailure::Unknown)
            .and_then(confirm)
            .inspect_err(|failure| self.metrics.append_failure(failure.code()))
    }
}

fn confirm(outcomes: Outcomes) -> Result<Vec<usize>, AppendFailure> {
    let mut too_large = Vec::new();
    for (position, outcome) in outcomes.into_iter().enumerate() {
        match outcome {
            Ok(_offset) => {}
            Err(AppendError::TooLarge { .. }) => too_large.push(position),
            Err(error @ AppendError::Overloaded { .. }) => {
                return Err(AppendFailure::Overloaded(error));
            }
            Err(AppendError::Unknown { .. }) => return Err(AppendFailure::Unknown),
            Err(error) => return Err(AppendFailure::Refused(error)),
        }
    }
    Ok(too_large)
}

/// Whether an error says that the deployment is at fault, not the record or the load.
fn is_fault(error: &&AppendError) -> bool {
    !matches!(error, AppendError::TooLarge { .. } | AppendError::Overloaded { .. })
}

fn index(partition: Partition) -> usize {
    usize::try_from(partition).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests;
