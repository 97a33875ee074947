//! The late events of the whole deployment by hour, with the positions up to which they were seen.
//!
//! Counts are cumulative state of the shards. They are published only from a checkpoint that is
//! complete, as absolute values, so that a crash neither doubles nor lowers them. A position is the
//! next offset at the first checkpoint that has the hour's counts as they are: an upper bound that a
//! recount has to reach.

use std::collections::BTreeMap;

use prost::Message;
use tally_eventlog::{Offset, Partition};
use tally_sinks::dirty::DirtyHour;

use crate::frozen::{FrozenShard, StateError};

const VERSION: u32 = 1;

/// Late events by start of the hour in ms.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LateHours(pub(crate) BTreeMap<i64, DirtyHour>);

/// Numbers are part of the format: never reuse one.
#[derive(Clone, PartialEq, Message)]
struct LateHoursMessage {
    #[prost(uint32, tag = "1")]
    version: u32,
    #[prost(message, repeated, tag = "2")]
    hours: Vec<HourMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct HourMessage {
    #[prost(sint64, tag = "1")]
    start_ms: i64,
    #[prost(uint64, tag = "2")]
    late: u64,
    #[prost(uint64, tag = "3")]
    straggler: u64,
    #[prost(uint64, tag = "4")]
    past_window: u64,
    #[prost(btree_map = "uint32, uint64", tag = "5")]
    positions: BTreeMap<u32, u64>,
}

impl LateHours {
    /// The hours at the next cut, given the shards and where it cuts the log. An hour whose counts
    /// did not change keeps its positions.
    pub(crate) fn at_cut(
        &self,
        shards: &[FrozenShard],
        next_offsets: &BTreeMap<Partition, Offset>,
    ) -> Self {
        let mut hours: BTreeMap<i64, DirtyHour> = BTreeMap::new();
        for (hour_ms, counts) in shards.iter().flat_map(|shard| &shard.late) {
            let hour = hours.entry(*hour_ms).or_default();
            hour.late += counts.late;
            hour.straggler += counts.straggler;
            hour.past_window += counts.past_window;
        }
        for (hour_ms, hour) in &mut hours {
            let before = self.0.get(hour_ms);
            let same = before.filter(|before| {
                let DirtyHour { late, straggler, past_window, .. } = before;
                (*late, *straggler, *past_window) == (hour.late, hour.straggler, hour.past_window)
            });
            hour.positions = match same {
                Some(before) => before.positions.clone(),
                None => next_offsets.clone(),
            };
        }
        Self(hours)
    }

    /// As part of a manifest.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let hours = self.0.iter().map(|(start_ms, hour)| HourMessage {
            start_ms: *start_ms,
            late: hour.late,
            straggler: hour.straggler,
            past_window: hour.past_window,
            positions: hour.positions.clone(),
        });
        LateHoursMessage { version: VERSION, hours: hours.collect() }.encode_to_vec()
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// [`StateError`].
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, StateError> {
        let message = LateHoursMessage::decode(bytes)
            .map_err(|error| StateError::Garbled(error.to_string()))?;
        if message.version != VERSION {
            return Err(StateError::Version(message.version));
        }
        let hours = message.hours.into_iter().map(|hour| {
            let HourMessage { start_ms, late, straggler, past_window, positions } = hour;
            let dirty =
                DirtyHour { late, straggler, past_window, positions, ..DirtyHour::default() };
            (start_ms, dirty)
        });
        Ok(Self(hours.collect()))
    }
}

#[cfg(test)]
mod tests {
    use tally_model::bucket::HOUR_MS;
    use tally_model::ids::Shard;
    use tally_model::rules::DedupBucket;
    use tally_operators::dedup::{DedupCounters, DedupSnapshot};
    use tally_operators::windows::WindowsSnapshot;

    use super::*;
    use crate::shard::LateCounts;
    use crate::totals::Totals;

    fn shard(late: &[(i64, u64)]) -> FrozenShard {
        let counts = |late| LateCounts { late, ..LateCounts::default() };
        FrozenShard {
            shard: Shard(0),
            ids: DedupSnapshot {
                kept_from: DedupBucket(0),
                next_sequence: 0,
                counters: DedupCounters::default(),
                buckets: Vec::new(),
            },
            windows: WindowsSnapshot::default(),
            late: late.iter().map(|(hour, late)| (hour * HOUR_MS, counts(*late))).collect(),
            totals: Totals::default(),
        }
    }

    #[test]
    fn an_hour_moves_its_positions_only_when_its_counts_change() {
        let at = |offset| BTreeMap::from([(0, offset)]);
        let first = LateHours::default().at_cut(&[shard(&[(1, 2)]), shard(&[(1, 1)])], &at(10));
        assert_eq!(first.0[&HOUR_MS].late, 3);
        let second = first.at_cut(&[shard(&[(1, 2), (2, 5)]), shard(&[(1, 1)])], &at(20));
        assert_eq!(second.0[&HOUR_MS].positions, at(10));
        assert_eq!(second.0[&(2 * HOUR_MS)].positions, at(20));
        let third = second.at_cut(&[shard(&[(1, 3), (2, 5)]), shard(&[(1, 1)])], &at(30));
        assert_eq!(third.0[&HOUR_MS].positions, at(30));
        assert_eq!(third.0[&HOUR_MS].late, 4);
        assert_eq!(LateHours::decode(&third.encode()), Ok(third));
    }

    #[test]
    fn hours_of_a_newer_release_are_refused() {
        let newer = LateHoursMessage { version: 2, hours: Vec::new() }.encode_to_vec();
        assert_eq!(LateHours::decode(&newer), Err(StateError::Version(2)));
        assert!(matches!(LateHours::decode(&[0xff; 5]), Err(StateError::Garbled(_))));
    }
}
