//! Preparing lines in batches and appending them, a few batches ahead of the log.

use std::collections::VecDeque;
use std::sync::Arc;

use tally_collector::append::{Appender, PendingAppend};
use tally_collector::ingest::{Prepared, Preparer, ReceivedAt, Sender, Verdict};
use tally_collector::parse::parse_event;
use tally_model::reasons::RejectReason;
use tally_privacy::seal::Nonces;

use super::{Report, UNREADABLE};
use crate::config::Settings;
use crate::deployment::Deployment;
use crate::failure::Failure;
use crate::services;

/// Events that are prepared and appended together, at most.
const BATCH: usize = 2_000;
/// Bytes of their lines, about at most.
const BATCH_BYTES: usize = 4 << 20;
/// Bytes of records that may wait for the log while the next batch is prepared.
const IN_FLIGHT_BYTES: usize = 32 << 20;

/// Prepares lines in batches and appends them, a few batches ahead of the log.
pub(super) struct Importer {
    preparer: Arc<Preparer>,
    appender: Appender,
    nonces: Nonces,
    lines: Vec<(u64, String)>,
    line_bytes: usize,
    in_flight: VecDeque<Waiting>,
    in_flight_bytes: usize,
    report: Report,
}

/// A batch that the log has not confirmed yet.
struct Waiting {
    pending: PendingAppend,
    /// The lines of its answers, in their order.
    numbers: Vec<u64>,
    prepared: Prepared<'static>,
    bytes: usize,
}

impl Importer {
    pub(super) fn new(deployment: &Deployment, settings: &Settings) -> Result<Self, Failure> {
        let metrics = Arc::new(tally_collector::metrics::Metrics::default());
        let preparer = services::preparer(deployment, settings)?;
        // One process, one look: the ledger cannot change while this folder is locked.
        preparer.ledger.poll()?;
        Ok(Self {
            appender: services::appender(deployment, metrics)?,
            preparer,
            nonces: Nonces::from_os()?,
            lines: Vec::with_capacity(BATCH),
            line_bytes: 0,
            in_flight: VecDeque::new(),
            in_flight_bytes: 0,
            report: Report::default(),
        })
    }

    pub(super) fn push(
        &mut self,
        number: u64,
        text: Option<&str>,
        stamp: &dyn Fn() -> ReceivedAt,
    ) -> Result<(), Failure> {
        match text {
            Some(text) => {
                self.line_bytes += text.len();
                self.lines.push((number, text.to_owned()));
            }
            None => self.report.reject(number, UNREADABLE),
        }
        let full = self.lines.len() >= BATCH || self.line_bytes >= BATCH_BYTES;
        if full { self.flush(stamp()) } else { Ok(()) }
    }

    fn flush(&mut self, stamp: ReceivedAt) -> Result<(), Failure> {
        let lines = std::mem::take(&mut self.lines);
        self.line_bytes = 0;
        let mut numbers = Vec::with_capacity(lines.len());
        let mut events = Vec::with_capacity(lines.len());
        for (number, text) in &lines {
            match parse_event(text, &self.preparer.limits) {
                Ok(event) => {
                    numbers.push(*number);
                    events.push(event);
                }
                Err(_syntax) => self.report.reject(*number, UNREADABLE),
            }
        }
        if events.is_empty() {
            return Ok(());
        }
        // The copy of the ledger grows old during a long import; this folder is locked, so that a
        // fresh look costs nothing and finds what it found before.
        self.preparer.ledger.poll()?;
        let prepared =
            self.preparer.prepare(events, stamp, &Sender::default(), &mut self.nonces)?;
        self.queue(prepared.without_ids(), numbers)
    }

    /// Appends a batch once there is room: the log's queue is bounded in bytes, and so is this one.
    fn queue(&mut self, mut prepared: Prepared<'static>, numbers: Vec<u64>) -> Result<(), Failure> {
        let records = std::mem::take(&mut prepared.records);
        let bytes = records.iter().map(|record| record.payload.len()).sum();
        while !self.in_flight.is_empty() && self.in_flight_bytes + bytes > IN_FLIGHT_BYTES {
            self.confirm_oldest()?;
        }
        let pending = self.appender.append(records)?;
        self.in_flight_bytes += bytes;
        self.in_flight.push_back(Waiting { pending, numbers, prepared, bytes });
        Ok(())
    }

    fn confirm_oldest(&mut self) -> Result<(), Failure> {
        let Some(waiting) = self.in_flight.pop_front() else { return Ok(()) };
        self.in_flight_bytes -= waiting.bytes;
        let mut prepared = waiting.prepared;
        for position in waiting.pending.wait_blocking()? {
            prepared.reject(position, RejectReason::TooLarge);
        }
        let verdicts = prepared.answers.iter().map(|answer| answer.verdict);
        for (number, verdict) in waiting.numbers.into_iter().zip(verdicts) {
            match verdict {
                Verdict::Rejected(reason) => self.report.reject(number, reason.code()),
                Verdict::Accepted(warnings) => {
                    self.report.accepted += 1;
                    self.report.repeats += u64::from(warnings.is_repeat());
                    for reason in warnings.iter() {
                        let code = reason.code().to_owned();
                        *self.report.warned.entry(code).or_default() += 1;
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn finish(mut self, stamp: &dyn Fn() -> ReceivedAt) -> Result<Report, Failure> {
        self.flush(stamp())?;
        while !self.in_flight.is_empty() {
            self.confirm_oldest()?;
        }
        Ok(self.report)
    }
}
