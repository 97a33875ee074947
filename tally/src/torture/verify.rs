//! The end of a seed: what the log says by the naive model against what the deployment counted.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::Value;
use tally_eventlog::EventLog;
use tally_model::bucket::{Bucket, Granularity, MINUTE_MS};
use tally_model::ids::EventId;
use tally_model::record::{Decoded, RecordHead};
use tally_model::rules::{DedupRule, Timing};
use tally_model::truth::{LoggedEvent, Truth};
use tally_model::types::TypeId;
use tally_sinks::{dirty, marks};

use super::compare::{self, Cells, Stored, Totals};
use super::log::each_record;
use crate::deployment::Deployment;
use crate::failure::Failure;

/// What a log holds, by the model.
#[derive(Debug)]
pub(super) struct LogFacts {
    pub(super) totals: Totals,
    /// Counts by (minute, slot) without late events.
    pub(super) counts: Cells,
    /// Late events by the hour of their eventTime.
    pub(super) late_by_hour: BTreeMap<i64, u64>,
    ids: HashSet<EventId>,
    /// The longest that a record took from its receivedAt stamp into the log, in ms.
    held_ms: i64,
}

impl LogFacts {
    /// Reads the whole log.
    ///
    /// Partitions are read one after another. The order between them does not matter, because
    /// copies of an id in several partitions have the same stamps.
    pub(super) fn read(
        log: &dyn EventLog,
        rule: DedupRule,
        timing: Timing,
    ) -> Result<Self, Failure> {
        let mut truth = Truth::new(rule, timing);
        let mut totals = Totals::default();
        let mut late_by_hour: BTreeMap<i64, u64> = BTreeMap::new();
        let mut ids = HashSet::new();
        let mut held: HashMap<(EventId, i64), i64> = HashMap::new();
        each_record(log, |record| {
            totals.records += 1;
            let head = match RecordHead::decode(record.payload) {
                Ok(Decoded::Event(head)) => head,
                Ok(Decoded::Control) => {
                    totals.control += 1;
                    return;
                }
                Err(_reason) => {
                    totals.invalid += 1;
                    return;
                }
            };
            let this_ms = record.appended_at_ms - head.received_at_ms;
            let least_ms = held.entry((head.id, head.received_at_ms)).or_insert(this_ms);
            *least_ms = this_ms.min(*least_ms);
            ids.insert(head.id);
            let RecordHead { id, slot, event_time_ms, received_at_ms } = head;
            let event = LoggedEvent { id, slot, event_time_ms, received_at_ms };
            let minute = Bucket::minute(event_time_ms);
            if truth.append(&event) && timing.is_late(minute, received_at_ms) {
                *late_by_hour.entry(Granularity::Hour.floor(event_time_ms)).or_default() += 1;
            }
        })?;
        // Of a record and its copies in other partitions, the first one tells.
        let held_ms = held.into_values().max().unwrap_or(0);
        let counts = truth.streaming_counts();
        totals.counted = counts.values().sum();
        totals.late = truth.late();
        totals.repeats = truth.repeats();
        Ok(Self { totals, counts, late_by_hour, ids, held_ms })
    }
}

/// Compares everything that a deployment says about its log with the log. `report` is that of the
/// bounded run that closed every minute, `acknowledged` what clients were told was taken.
pub(super) fn verify(
    deployment: &Deployment,
    timing: Timing,
    report: &Value,
    acknowledged: &HashSet<EventId>,
) -> Result<(LogFacts, Vec<String>), Failure> {
    let facts = LogFacts::read(deployment.event_log()?.as_ref(), deployment.dedup, timing)?;
    let mut differences = Vec::new();
    let lost = acknowledged.difference(&facts.ids).count();
    if lost > 0 {
        differences.push(format!(
            "{lost} of {} acknowledged events are not in the log",
            acknowledged.len()
        ));
    }
    let Some(counted) = Totals::of_report(report) else {
        differences.push(format!("the bounded run reported no totals: {report}"));
        return Ok((facts, differences));
    };
    // A record that the machine held for longer than the grace may find its minute retired.
    let excused = if facts.held_ms < timing.append_grace_ms { 0 } else { counted.straggler };
    differences.extend(compare::totals(&facts.totals, &counted, excused));
    let stored = stored(deployment, &facts.counts)?;
    let names = deployment.registry.snapshot();
    let name = |slot: TypeId| {
        names.by_id(slot).map_or_else(|| format!("slot {}", slot.0), |entry| entry.name.clone())
    };
    differences.extend(compare::cells(&facts.counts, &stored, excused, name));
    let published = dirty::list(deployment.meta.as_ref(), i64::MIN..i64::MAX)?;
    let late = published.into_iter().map(|(hour_ms, dirty)| (hour_ms, dirty.late));
    let late: BTreeMap<i64, u64> = late.filter(|(_, late)| *late > 0).collect();
    differences.extend(compare::late_hours(&facts.late_by_hour, &late));
    Ok((facts, differences))
}

/// The rows of every minute from the first to the last that is readable or holds an event.
fn stored(deployment: &Deployment, counts: &Cells) -> Result<Stored, Failure> {
    let marks = marks::read(deployment.meta.as_ref())?;
    let events = counts.keys().map(|(minute, _)| minute.start_ms());
    let starts = events.clone().chain(marks.origin_ms);
    let ends = events.map(|start| start + MINUTE_MS).chain(marks.readable_up_to_ms);
    let (Some(from_ms), Some(to_ms)) = (starts.min(), ends.max()) else {
        return Ok(Stored::default());
    };
    let mut buckets = Vec::new();
    let mut bucket = Bucket::minute(from_ms);
    while bucket.start_ms() < to_ms {
        buckets.push(bucket);
        bucket = Bucket::minute(bucket.end_ms());
    }
    let rows = deployment.counts.rows(&buckets)?;
    let vectors = rows.into_iter().map(|row| row.map(|row| row.vector));
    Ok(buckets.into_iter().zip(vectors).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use prost::Message;
    use tally_eventlog::NewRecord;
    use tally_eventlog::memory::MemoryLog;
    use tally_model::bucket::HOUR_MS;
    use tally_model::clock::ManualClock;
    use tally_model::record::{RECORD_VERSION, Record};

    use super::*;
    use crate::synth;

    const TIMING: Timing =
        Timing { watermark_delay_ms: 1_000, lateness_ms: 2_000, append_grace_ms: 5_000 };

    fn record(partition: u32, id: u8, event_time_ms: i64, received_at_ms: i64) -> NewRecord {
        let payload = Record {
            version: RECORD_VERSION,
            event_id: vec![id; 16],
            slot: 1,
            event_time_ms,
            received_at_ms,
            ..Record::default()
        };
        NewRecord { partition, key: [id; 16], payload: payload.encode_to_vec() }
    }

    #[test]
    fn a_log_is_read_by_the_model_with_all_its_causes() {
        let now_ms = 10 * HOUR_MS;
        let clock = Arc::new(ManualClock::new(now_ms + 40));
        let log = MemoryLog::new(3, Arc::<ManualClock>::clone(&clock));
        let nothing = NewRecord { partition: 2, key: [0; 16], payload: Vec::new() };
        let records = vec![
            record(0, 1, now_ms, now_ms),
            record(1, 2, now_ms - HOUR_MS, now_ms),
            record(2, 3, now_ms - 1, now_ms),
            nothing,
        ];
        synth::append(&log, records).unwrap();
        clock.advance(9_000);
        synth::append(&log, vec![record(1, 1, now_ms, now_ms)]).unwrap();
        let rule = DedupRule::new(10_000, 5_000).unwrap();
        let facts = LogFacts::read(&log, rule, TIMING).unwrap();
        let want =
            Totals { records: 5, counted: 2, repeats: 1, late: 1, invalid: 1, ..Totals::default() };
        assert_eq!(facts.totals, want);
        assert_eq!(facts.late_by_hour, BTreeMap::from([(9 * HOUR_MS, 1)]));
        assert_eq!((facts.ids.len(), facts.held_ms), (3, 40));
        assert_eq!(facts.counts.len(), 2);
    }
}
