//! Records that no collector of this deployment would write, appended behind its back while no node
//! is up: copies in other partitions, things that are no records, stamps out of order.

use std::collections::{BTreeMap, HashMap};

use prost::Message;
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use tally_eventlog::{NewRecord, Partition};
use tally_model::ids::EventId;
use tally_model::record::{
    Decoded, KIND_CONTROL, KIND_EVENT, RECORD_VERSION, Record, RecordHead, finish_encoded,
};

use super::log::each_record;
use crate::deployment::Deployment;
use crate::failure::Failure;
use crate::synth;

const COPIES: usize = 20;
const DISORDERED: usize = 10;
/// How far the stamps of disordered records lie back at most, in ms; well below the append grace.
const DISORDER_MS: i64 = 1_500;

/// Appends a few records of every kind. `now_ms` is the time of the append.
pub(super) fn meddle(
    deployment: &Deployment,
    rng: &mut StdRng,
    now_ms: i64,
) -> Result<(), Failure> {
    let mut records = copies(deployment, rng, now_ms)?;
    records.extend(disordered(deployment, rng, now_ms));
    let partitions = deployment.partitions;
    records.extend(no_events(rng).into_iter().map(|payload| NewRecord {
        partition: rng.random_range(0..partitions),
        key: rng.random(),
        payload,
    }));
    records.shuffle(rng);
    synth::append(deployment.event_log()?.as_ref(), records)
}

/// Exact copies of recent records in partitions that are not theirs.
///
/// The counts must not depend on which partition is read first. So only events that are in the log
/// once are copied: a copy of a later attempt, with its later stamp, could be the first one read
/// and count by that stamp. They are recent, so that their ids are certainly remembered.
fn copies(
    deployment: &Deployment,
    rng: &mut StdRng,
    now_ms: i64,
) -> Result<Vec<NewRecord>, Failure> {
    let mut times: HashMap<EventId, u32> = HashMap::new();
    let mut recent: Vec<(Partition, EventId, Vec<u8>)> = Vec::new();
    each_record(deployment.event_log()?.as_ref(), |record| {
        let Ok(Decoded::Event(head)) = RecordHead::decode(record.payload) else { return };
        *times.entry(head.id).or_default() += 1;
        if head.received_at_ms >= now_ms - deployment.dedup.window_ms() {
            recent.push((record.partition, head.id, record.payload.to_vec()));
        }
    })?;
    recent.retain(|(_, id, _)| times.get(id) == Some(&1));
    recent.shuffle(rng);
    recent.truncate(COPIES);
    let partitions = deployment.partitions;
    Ok(recent
        .into_iter()
        .map(|(home, id, payload)| NewRecord {
            partition: (home + rng.random_range(1..partitions)) % partitions,
            key: id.0,
            payload,
        })
        .collect())
}

/// New events in their own partitions, with stamps that lie before those of earlier records.
fn disordered(deployment: &Deployment, rng: &mut StdRng, now_ms: i64) -> Vec<NewRecord> {
    let (mixer, run) = (deployment.mixer(), rng.random());
    let mut sequences: BTreeMap<Partition, u64> = BTreeMap::new();
    let partitions = deployment.partitions;
    let mut record = || {
        let id = EventId(uuid::Builder::from_random_bytes(rng.random()).into_uuid().into_bytes());
        let partition = mixer.mix(id).shard(deployment.shards).partition(partitions);
        let received_at_ms = now_ms - rng.random_range(0..DISORDER_MS);
        let mut payload = Record {
            version: RECORD_VERSION,
            kind: KIND_EVENT,
            event_id: id.0.to_vec(),
            slot: rng.random_range(0..=4),
            event_time_ms: received_at_ms - rng.random_range(0..5_000),
            received_at_ms,
            row_tag: vec![0; 16],
            ..Record::default()
        }
        .encode_to_vec();
        let sequence = sequences.entry(partition).or_default();
        finish_encoded(&mut payload, run, *sequence);
        *sequence += 1;
        NewRecord { partition, key: id.0, payload }
    };
    (0..DISORDERED).map(|_| record()).collect()
}

/// Payloads that are no event: nothing, noise, another version, another program's, a control
/// record.
fn no_events(rng: &mut StdRng) -> Vec<Vec<u8>> {
    let noise: [u8; 40] = rng.random();
    let record = |version, kind| Record { version, kind, ..Record::default() }.encode_to_vec();
    vec![
        Vec::new(),
        noise.to_vec(),
        record(RECORD_VERSION + 8, KIND_EVENT),
        record(0, KIND_EVENT),
        record(RECORD_VERSION, KIND_EVENT),
        record(RECORD_VERSION, 77),
        record(RECORD_VERSION, KIND_CONTROL),
    ]
}
