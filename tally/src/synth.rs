//! A seeded synthetic log: realistic in skew, repeats and disorder, the same for the same seed.
//!
//! Records are written through the log trait with both stamps set, so that days of traffic can be
//! made in seconds. Their sealed part is random bytes: nothing counts it.

use std::sync::mpsc;

use prost::Message;
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use tally_eventlog::{EventLog, NewRecord};
use tally_model::ids::{EventId, IdMixer, Shards};
use tally_model::record::{KIND_EVENT, RECORD_VERSION, Record, finish_encoded};
use tally_model::truth::LoggedEvent;
use tally_model::types::TypeId;

use crate::cli::SynthArgs;
use crate::failure::Failure;

/// How many recent events a repeat is drawn from.
const RECENT: usize = 100_000;
/// Thousandths of the events whose client clock is ahead: they are clamped to receivedAt.
const CLOCKS_AHEAD: u32 = 10;

/// The stream of events, without their bytes.
pub(crate) struct Synth {
    args: SynthArgs,
    rng: StdRng,
    cumulative: Vec<f64>,
    recent: Vec<LoggedEvent>,
    /// Index in `recent` of the event that is forgotten next.
    oldest: usize,
    start_ms: i64,
    made: u64,
}

impl Synth {
    /// A stream whose receivedAt stamps end shortly before `end_ms`.
    pub(crate) fn new(args: &SynthArgs, end_ms: i64) -> Self {
        Self {
            rng: StdRng::seed_from_u64(args.seed),
            cumulative: skew(args.types),
            recent: Vec::with_capacity(RECENT),
            oldest: 0,
            start_ms: end_ms - args.span,
            made: 0,
            args: args.clone(),
        }
    }

    fn received_at_ms(&self) -> i64 {
        let span = u128::from(self.args.span.unsigned_abs());
        let into = span * u128::from(self.made) / u128::from(self.args.events.max(1));
        self.start_ms + i64::try_from(into).unwrap_or(0)
    }

    fn slot(&mut self) -> TypeId {
        let at: f64 = self.rng.random();
        let index = self.cumulative.partition_point(|edge| *edge < at);
        TypeId(u16::try_from(index + 1).unwrap_or(1).min(self.args.types))
    }
}

impl Iterator for Synth {
    type Item = LoggedEvent;

    fn next(&mut self) -> Option<LoggedEvent> {
        if self.made == self.args.events {
            return None;
        }
        let received_at_ms = self.received_at_ms();
        self.made += 1;
        let repeat = self.rng.random_ratio(self.args.repeats.min(1_000), 1_000);
        if repeat && !self.recent.is_empty() {
            let index = self.rng.random_range(0..self.recent.len());
            let first = self.recent.get(index).copied()?;
            return Some(LoggedEvent { received_at_ms, ..first });
        }
        let behind_ms = if self.rng.random_ratio(CLOCKS_AHEAD, 1_000) {
            0
        } else {
            // Mostly seconds, seldom up to the whole disorder.
            let part: f64 = self.rng.random();
            let seconds = part.powi(8) * f64::from(self.args.disorder_seconds);
            ms_of(seconds)
        };
        let event = LoggedEvent {
            id: EventId(self.rng.random()),
            slot: self.slot(),
            event_time_ms: received_at_ms - behind_ms,
            received_at_ms,
        };
        if self.recent.len() < RECENT {
            self.recent.push(event);
        } else if let Some(old) = self.recent.get_mut(self.oldest) {
            self.oldest = (self.oldest + 1) % RECENT;
            *old = event;
        }
        Some(event)
    }
}

#[expect(clippy::cast_possible_truncation, reason = "a few hundred seconds fit")]
fn ms_of(seconds: f64) -> i64 {
    (seconds * 1_000.0) as i64
}

/// Shares of the types, summed up: the first has 40 %, the others follow Zipf.
fn skew(types: u16) -> Vec<f64> {
    let weight = |rank: u16| 1.0 / f64::from(rank);
    let tail: f64 = (2..=types).map(weight).sum();
    let mut sum = 0.0;
    (1..=types)
        .map(|rank| {
            sum += if rank == 1 || tail == 0.0 { 0.4 } else { 0.6 * weight(rank) / tail };
            sum
        })
        .collect()
}

/// Where records go.
pub(crate) struct SynthLog<'a> {
    pub(crate) log: &'a dyn EventLog,
    pub(crate) mixer: &'a IdMixer,
    pub(crate) shards: Shards,
}

impl SynthLog<'_> {
    /// Writes the whole stream; `each` sees every event that was written, in log order.
    ///
    /// # Errors
    /// What the log reports.
    pub(crate) fn write(
        &self,
        args: &SynthArgs,
        end_ms: i64,
        mut each: impl FnMut(&LoggedEvent),
    ) -> Result<u64, Failure> {
        const BATCH: usize = 5_000;
        let mut rng = StdRng::seed_from_u64(args.seed ^ 0x5eed);
        let mut template = template(args.record_bytes, &mut rng);
        let mut events = Synth::new(args, end_ms).fuse().peekable();
        let mut written = 0;
        while events.peek().is_some() {
            let mut batch = Vec::with_capacity(BATCH);
            for event in events.by_ref().take(BATCH) {
                let shard = self.mixer.mix(event.id).shard(self.shards);
                let partition = shard.partition(self.log.partitions());
                if args.empty_partition == Some(partition) {
                    continue;
                }
                each(&event);
                batch.push(encode(&mut template, &event, partition, written));
                written += 1;
            }
            append(self.log, batch)?;
        }
        Ok(written)
    }
}

/// A record of about `bytes` bytes whose head is filled in for each event.
fn template(bytes: usize, rng: &mut StdRng) -> Record {
    const HEAD: usize = 100;
    let mut sealed = vec![0; bytes.saturating_sub(HEAD)];
    rng.fill_bytes(&mut sealed);
    Record {
        version: RECORD_VERSION,
        kind: KIND_EVENT,
        row_tag: vec![7; 16],
        write_key: 1,
        sealed,
        ..Record::default()
    }
}

fn encode(template: &mut Record, event: &LoggedEvent, partition: u32, number: u64) -> NewRecord {
    template.event_id.clear();
    template.event_id.extend_from_slice(&event.id.0);
    template.slot = u32::from(event.slot.0);
    template.event_time_ms = event.event_time_ms;
    template.received_at_ms = event.received_at_ms;
    template.clamped = event.event_time_ms == event.received_at_ms;
    let mut payload = template.encode_to_vec();
    finish_encoded(&mut payload, 1, number);
    NewRecord { partition, key: event.id.0, payload }
}

/// Appends a batch and waits until it is durable.
///
/// # Errors
/// The first record that the log did not take.
pub(crate) fn append(log: &dyn EventLog, records: Vec<NewRecord>) -> Result<(), Failure> {
    if records.is_empty() {
        return Ok(());
    }
    let (tell, told) = mpsc::channel();
    log.append(
        records,
        Box::new(move |outcomes| {
            // The receiver waits below; it is gone only if this thread panicked.
            drop(tell.send(outcomes));
        }),
    )?;
    let outcomes = told.recv().map_err(|_gone| anyhow::anyhow!("the log's writer ended"))?;
    outcomes.into_iter().try_for_each(|outcome| outcome.map(|_offset| ()))?;
    Ok(())
}
