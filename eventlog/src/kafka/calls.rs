//! Calls of `append` that wait for their delivery reports.
//!
//! Every record has a report of its own; a call is answered when it has them all. The table of open
//! calls is what guarantees that `done` is called exactly once: whatever librdkafka loses, a call
//! that is still in the table when the producer ends is answered from there.
//!
//! Invariant L-4 of ARCHITECTURE.md.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tally_model::clock::Clock;

use super::client::reason;
use crate::convert::to_u64;
use crate::queue::{Job, Queue};
use crate::stats::LogStats;
use crate::{AppendError, NewRecord, Offset};

type Outcome = Result<Offset, AppendError>;

/// The calls that are not answered yet.
pub(super) struct Calls {
    open: Mutex<BTreeMap<u64, Arc<Call>>>,
    next: AtomicU64,
    queue: Arc<Queue>,
    stats: Arc<LogStats>,
    clock: Arc<dyn Clock>,
}

/// One call: its records' outcomes, by place.
pub(super) struct Call {
    number: u64,
    started_ms: i64,
    state: Mutex<CallState>,
}

struct CallState {
    outcomes: Vec<Option<Outcome>>,
    missing: usize,
    /// Payload bytes of the confirmed records.
    bytes: u64,
    job: Option<Job>,
}

/// A record of a call, as it travels through librdkafka.
pub(super) struct Ticket {
    pub(super) call: Arc<Call>,
    pub(super) place: usize,
    pub(super) bytes: usize,
}

impl Calls {
    pub(super) fn new(queue: Arc<Queue>, stats: Arc<LogStats>, clock: Arc<dyn Clock>) -> Self {
        Self { open: Mutex::default(), next: AtomicU64::new(0), queue, stats, clock }
    }

    /// Opens a call. Returns its records, which it does not need to keep.
    pub(super) fn open(&self, mut job: Job) -> (Arc<Call>, Vec<NewRecord>) {
        let records = std::mem::take(&mut job.records);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let state = CallState {
            outcomes: vec![None; records.len()],
            missing: records.len(),
            bytes: 0,
            job: Some(job),
        };
        let started_ms = self.clock.monotonic_ms();
        let call = Arc::new(Call { number, started_ms, state: Mutex::new(state) });
        lock(&self.open).insert(number, Arc::clone(&call));
        if records.is_empty() {
            self.answer(&call);
        }
        (call, records)
    }

    /// Takes the outcome of one record, of `bytes` bytes. The first one counts.
    pub(super) fn report(&self, call: &Call, place: usize, bytes: usize, outcome: Outcome) {
        let mut state = lock(&call.state);
        let Some(slot @ None) = state.outcomes.get_mut(place) else {
            return;
        };
        let confirmed = outcome.is_ok();
        *slot = Some(outcome);
        state.missing -= 1;
        if confirmed {
            state.bytes += to_u64(bytes);
        }
        let is_whole = state.missing == 0;
        drop(state);
        if is_whole {
            self.answer(call);
        }
    }

    /// Answers everything that is still open: nobody will report any more.
    pub(super) fn give_up(&self, reason: &str) {
        let open: Vec<_> = lock(&self.open).values().cloned().collect();
        for call in open {
            tracing::error!(reason, "an append ends without a report");
            self.answer_with(&call, &AppendError::Unknown { reason: reason.to_owned() });
        }
    }

    fn answer(&self, call: &Call) {
        let lost = "the Kafka client gave no report".to_owned();
        self.answer_with(call, &AppendError::Unknown { reason: lost });
    }

    /// Answers a call; `missing` is the outcome of every record that has none.
    fn answer_with(&self, call: &Call, missing: &AppendError) {
        lock(&self.open).remove(&call.number);
        let mut state = lock(&call.state);
        let Some(job) = state.job.take() else {
            return;
        };
        let outcomes: Vec<Outcome> = std::mem::take(&mut state.outcomes)
            .into_iter()
            .map(|outcome| outcome.unwrap_or_else(|| Err(missing.clone())))
            .collect();
        let bytes = state.bytes;
        drop(state);
        let confirmed = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
        if confirmed > 0 {
            self.stats.committed(to_u64(confirmed), bytes);
            let took_ms = self.clock.monotonic_ms().saturating_sub(call.started_ms);
            self.stats.synced(u64::try_from(took_ms).unwrap_or(0).saturating_mul(1_000_000));
        }
        // Whoever appends again in its completion finds the room.
        self.queue.release(job.bytes);
        job.finish(outcomes);
    }
}

/// What became of a record that librdkafka did not deliver.
///
/// A refusal is sure only for errors after which librdkafka does not try again. Before any other an
/// attempt may have been written whose answer was lost, also before `NotEnoughReplicas` and before
/// a record is purged from the queue, where it may wait for its second attempt.
pub(super) fn outcome_of(error: &KafkaError, bytes: usize, bytes_max: usize) -> AppendError {
    match error.rdkafka_error_code() {
        Some(
            RDKafkaErrorCode::MessageSizeTooLarge
            | RDKafkaErrorCode::InvalidMessageSize
            | RDKafkaErrorCode::MessageBatchTooLarge,
        ) => AppendError::TooLarge { bytes, bytes_max },
        Some(
            RDKafkaErrorCode::QueueFull
            | RDKafkaErrorCode::UnknownTopic
            | RDKafkaErrorCode::UnknownPartition
            | RDKafkaErrorCode::UnknownTopicOrPartition
            | RDKafkaErrorCode::InvalidTopic
            | RDKafkaErrorCode::TopicAuthorizationFailed
            | RDKafkaErrorCode::ClusterAuthorizationFailed
            | RDKafkaErrorCode::InvalidRequiredAcks
            | RDKafkaErrorCode::InvalidTimestamp
            | RDKafkaErrorCode::UnsupportedCompressionType
            | RDKafkaErrorCode::InvalidRecord
            | RDKafkaErrorCode::PolicyViolation,
        ) => AppendError::Unavailable { reason: reason(error) },
        Some(_) | None => AppendError::Unknown { reason: reason(error) },
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use tally_model::clock::ManualClock;

    use super::*;
    use crate::queue::Next;

    fn open_call(records: u64) -> (Calls, Arc<Call>, mpsc::Receiver<Vec<Outcome>>) {
        let stats = Arc::new(LogStats::default());
        let queue = Arc::new(Queue::new(1 << 20, Arc::clone(&stats)));
        let (sender, receiver) = mpsc::channel();
        let records = (0..records).map(|number| crate::contract::record(0, number)).collect();
        queue.push(records, Box::new(move |results| sender.send(results).unwrap())).unwrap();
        let Next::Commit(mut jobs) = queue.take(1, Duration::ZERO) else { panic!("one job") };
        let calls = Calls::new(queue, stats, Arc::new(ManualClock::new(0)));
        let (call, _records) = calls.open(jobs.remove(0));
        (calls, call, receiver)
    }

    fn queued(calls: &Calls) -> u64 {
        calls.stats.queued_bytes.load(Ordering::Relaxed)
    }

    #[test]
    fn a_call_is_answered_once_with_each_outcome_at_its_place() {
        let (calls, call, receiver) = open_call(3);
        let unknown = AppendError::Unknown { reason: "x".to_owned() };
        calls.report(&call, 2, 5, Ok(9));
        calls.report(&call, 2, 5, Ok(10));
        calls.report(&call, 0, 5, Err(unknown.clone()));
        assert!(receiver.try_recv().is_err() && queued(&calls) > 0);
        calls.report(&call, 1, 5, Ok(8));
        assert_eq!(receiver.try_recv(), Ok(vec![Err(unknown), Ok(8), Ok(9)]));
        assert_eq!(queued(&calls), 0);
        calls.report(&call, 1, 5, Ok(8));
        calls.give_up("test");
        assert!(receiver.try_recv().is_err());
        assert_eq!(calls.stats.records.load(Ordering::Relaxed), 2);
        assert_eq!(calls.stats.bytes.load(Ordering::Relaxed), 10);
    }

    #[test]
    fn a_call_without_reports_ends_unknown_when_the_producer_does() {
        let (calls, call, receiver) = open_call(2);
        calls.report(&call, 0, 5, Ok(1));
        calls.give_up("closed");
        let unknown = AppendError::Unknown { reason: "closed".to_owned() };
        assert_eq!(receiver.try_recv(), Ok(vec![Ok(1), Err(unknown)]));
        assert_eq!(queued(&calls), 0);
    }

    #[test]
    fn a_call_of_no_records_is_answered_at_once() {
        let (_calls, _call, receiver) = open_call(0);
        assert_eq!(receiver.try_recv(), Ok(vec![]));
    }

    #[test]
    fn what_may_have_been_written_is_never_called_refused() {
        use RDKafkaErrorCode as Code;
        let outcome = |code| outcome_of(&KafkaError::MessageProduction(code), 7, 5);
        for code in [
            Code::MessageTimedOut,
            Code::RequestTimedOut,
            Code::BrokerTransportFailure,
            Code::NetworkException,
            Code::NotEnoughReplicas,
            Code::NotEnoughReplicasAfterAppend,
            Code::PurgeQueue,
            Code::PurgeInflight,
            Code::Fatal,
            Code::OutOfOrderSequenceNumber,
            Code::KafkaStorageError,
            Code::Unknown,
        ] {
            assert!(matches!(outcome(code), AppendError::Unknown { .. }), "{code:?}");
        }
        for code in [Code::QueueFull, Code::TopicAuthorizationFailed, Code::UnknownTopic] {
            assert!(matches!(outcome(code), AppendError::Unavailable { .. }), "{code:?}");
        }
        let too_large = AppendError::TooLarge { bytes: 7, bytes_max: 5 };
        assert_eq!(outcome(Code::MessageSizeTooLarge), too_large);
    }
}
