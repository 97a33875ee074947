//! One shard as it was at a cut, and how that is written down.
//!
//! The state object of a shard is one protobuf message. Segments of ids are not part of it: they
//! are objects of their own, which it names.

use std::collections::BTreeMap;

use prost::Message;
use tally_model::ids::Shard;
use tally_model::rules::DedupBucket;
use tally_operators::dedup::{
    BucketSnapshot, DedupCounters, DedupSnapshot, SegmentHandle, SegmentName, SetSnapshot,
};
use tally_operators::windows::WindowsSnapshot;

use crate::shard::LateCounts;
use crate::totals::Totals;

#[cfg(test)]
mod tests;

/// One shard as it was at a cut.
#[derive(Clone, Debug)]
pub(crate) struct FrozenShard {
    pub(crate) shard: Shard,
    pub(crate) ids: DedupSnapshot,
    pub(crate) windows: WindowsSnapshot,
    /// What is not in the windows, by start of the hour in ms.
    pub(crate) late: BTreeMap<i64, LateCounts>,
    pub(crate) totals: Totals,
}

/// Why a state object cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StateError {
    /// A newer release wrote it.
    #[error("it has version {0}, which this release cannot read")]
    Version(u32),
    /// The bytes say nothing sensible, although their checksum fits.
    #[error("it cannot be decoded: {0}")]
    Garbled(String),
}

const VERSION: u32 = 1;
const ID_BYTES: usize = size_of::<u128>();

/// Numbers are part of the format: never reuse one.
#[derive(Clone, PartialEq, Message)]
struct StateMessage {
    #[prost(uint32, tag = "1")]
    version: u32,
    #[prost(sint64, tag = "2")]
    kept_from: i64,
    #[prost(uint64, tag = "3")]
    next_sequence: u64,
    /// In the order of the fields of [`DedupCounters`].
    #[prost(uint64, repeated, tag = "4")]
    dedup_counters: Vec<u64>,
    #[prost(message, repeated, tag = "5")]
    buckets: Vec<BucketMessage>,
    #[prost(message, repeated, tag = "6")]
    minutes: Vec<MinuteMessage>,
    #[prost(sint64, optional, tag = "7")]
    retired_up_to_ms: Option<i64>,
    #[prost(message, repeated, tag = "8")]
    late: Vec<LateMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct BucketMessage {
    #[prost(sint64, tag = "1")]
    number: i64,
    #[prost(message, required, tag = "2")]
    firsts: SetMessage,
    #[prost(message, required, tag = "3")]
    undecided: SetMessage,
}

#[derive(Clone, PartialEq, Message)]
struct SetMessage {
    /// Ids of 16 bytes, little-endian, ascending.
    #[prost(bytes = "vec", tag = "1")]
    head: Vec<u8>,
    #[prost(string, repeated, tag = "2")]
    segments: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct MinuteMessage {
    #[prost(sint64, tag = "1")]
    start_ms: i64,
    /// By slot.
    #[prost(uint64, repeated, tag = "2")]
    counts: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct LateMessage {
    #[prost(sint64, tag = "1")]
    hour_ms: i64,
    #[prost(uint64, tag = "2")]
    late: u64,
    #[prost(uint64, tag = "3")]
    straggler: u64,
    #[prost(uint64, tag = "4")]
    past_window: u64,
}

impl FrozenShard {
    /// The segments that the state names.
    pub(crate) fn segments(&self) -> impl Iterator<Item = &SegmentHandle> {
        let sets = self.ids.buckets.iter().flat_map(|bucket| [&bucket.firsts, &bucket.undecided]);
        sets.flat_map(|set| &set.segments)
    }

    /// The state object.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let bucket = |bucket: &BucketSnapshot| BucketMessage {
            number: bucket.number.0,
            firsts: encode_set(&bucket.firsts),
            undecided: encode_set(&bucket.undecided),
        };
        let minute = |(start_ms, counts): &(i64, Vec<u64>)| MinuteMessage {
            start_ms: *start_ms,
            counts: counts.clone(),
        };
        let late = |(hour_ms, late): (&i64, &LateCounts)| LateMessage {
            hour_ms: *hour_ms,
            late: late.late,
            straggler: late.straggler,
            past_window: late.past_window,
        };
        StateMessage {
            version: VERSION,
            kept_from: self.ids.kept_from.0,
            next_sequence: self.ids.next_sequence,
            dedup_counters: encode_counters(&self.ids.counters),
            buckets: self.ids.buckets.iter().map(bucket).collect(),
            minutes: self.windows.minutes.iter().map(minute).collect(),
            retired_up_to_ms: self.windows.retired_up_to_ms,
            late: self.late.iter().map(late).collect(),
        }
        .encode_to_vec()
    }

    /// Reads what [`encode`](Self::encode) wrote; `segment` finds each segment that is named.
    ///
    /// # Errors
    /// [`StateError`], or what `segment` says.
    pub(crate) fn decode<E: From<StateError>>(
        shard: Shard,
        bytes: &[u8],
        totals: Totals,
        mut segment: impl FnMut(SegmentName) -> Result<SegmentHandle, E>,
    ) -> Result<Self, E> {
        let garbled = |what: String| StateError::Garbled(what);
        let state = StateMessage::decode(bytes).map_err(|error| garbled(error.to_string()))?;
        if state.version != VERSION {
            return Err(StateError::Version(state.version).into());
        }
        let mut set = |message: SetMessage| -> Result<SetSnapshot, E> {
            let (head, rest) = message.head.as_chunks::<ID_BYTES>();
            if !rest.is_empty() {
                return Err(garbled("a head is cut short".to_owned()).into());
            }
            let mut segments = Vec::with_capacity(message.segments.len());
            for name in message.segments {
                let parsed = SegmentName::parse(&name);
                let name = parsed.ok_or_else(|| garbled(format!("{name:?} is no segment")))?;
                segments.push(segment(name)?);
            }
            let head = head.iter().map(|id| u128::from_le_bytes(*id)).collect();
            Ok(SetSnapshot { head, segments })
        };
        let mut buckets = Vec::with_capacity(state.buckets.len());
        for bucket in state.buckets {
            buckets.push(BucketSnapshot {
                number: DedupBucket(bucket.number),
                firsts: set(bucket.firsts)?,
                undecided: set(bucket.undecided)?,
            });
        }
        let minutes = state.minutes.into_iter().map(|minute| (minute.start_ms, minute.counts));
        let late = state.late.into_iter().map(|of| {
            let LateMessage { hour_ms, late, straggler, past_window } = of;
            (hour_ms, LateCounts { late, straggler, past_window })
        });
        Ok(Self {
            shard,
            ids: DedupSnapshot {
                kept_from: DedupBucket(state.kept_from),
                next_sequence: state.next_sequence,
                counters: decode_counters(&state.dedup_counters),
                buckets,
            },
            windows: WindowsSnapshot {
                minutes: minutes.collect(),
                retired_up_to_ms: state.retired_up_to_ms,
            },
            late: late.collect(),
            totals,
        })
    }
}

fn encode_set(set: &SetSnapshot) -> SetMessage {
    SetMessage {
        head: set.head.iter().flat_map(|id| id.to_le_bytes()).collect(),
        segments: set.segments.iter().map(|segment| segment.name.to_string()).collect(),
    }
}

fn encode_counters(counters: &DedupCounters) -> Vec<u64> {
    let DedupCounters {
        records,
        repeats,
        past_window,
        evicted_ids,
        filter_probes,
        segment_searches,
        vain_searches,
        merged_ids,
    } = *counters;
    vec![
        records,
        repeats,
        past_window,
        evicted_ids,
        filter_probes,
        segment_searches,
        vain_searches,
        merged_ids,
    ]
}

/// Counters that an earlier release did not have are zero.
fn decode_counters(counters: &[u64]) -> DedupCounters {
    let at = |place: usize| counters.get(place).copied().unwrap_or(0);
    DedupCounters {
        records: at(0),
        repeats: at(1),
        past_window: at(2),
        evicted_ids: at(3),
        filter_probes: at(4),
        segment_searches: at(5),
        vain_searches: at(6),
        merged_ids: at(7),
    }
}
