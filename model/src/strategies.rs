//! What the property tests of several modules draw from.

use proptest::prelude::*;

use crate::bucket::{Bucket, DAY_MS, Granularity};
use crate::record::Record;
use crate::time::{MAX_MS, MIN_MS};

/// Any instant that a record can carry; half of them within a few days of 1970 or of today.
pub(crate) fn instant() -> impl Strategy<Value = i64> {
    prop_oneof![
        2 => MIN_MS..=MAX_MS,
        1 => -3 * DAY_MS..3 * DAY_MS,
        1 => 1_773_136_800_000 - 3 * DAY_MS..1_773_136_800_000 + 3 * DAY_MS,
    ]
}

/// Any granularity.
pub(crate) fn granularity() -> impl Strategy<Value = Granularity> {
    prop::sample::select(&Granularity::ALL[..])
}

/// Any bucket of any granularity.
pub(crate) fn bucket() -> impl Strategy<Value = Bucket> {
    (granularity(), instant()).prop_map(|(granularity, at)| Bucket::containing(granularity, at))
}

/// Any record that the format can hold, kept to the rules of collectors or not.
pub(crate) fn record() -> impl Strategy<Value = Record> {
    let small = 0_u32..3;
    let id = prop_oneof![3 => prop::collection::vec(any::<u8>(), 16),
                         1 => prop::collection::vec(any::<u8>(), 0..18)];
    let times = prop_oneof![3 => (instant(), instant()).prop_map(|(a, b)| (a.min(b), a.max(b))),
                            1 => any::<(i64, i64)>()];
    let who = (prop::collection::vec(any::<u8>(), 0..18), any::<u32>(), ".{0,6}");
    let slot = prop_oneof![0_u32..4_002, any::<u32>()];
    let rest = (any::<u64>(), any::<bool>(), prop::collection::vec(any::<u8>(), 0..200));
    (small.clone(), small, id, slot, times, who, rest, any::<(u64, u64)>()).prop_map(
        |(version, kind, event_id, slot, times, who, rest, (run, sequence))| Record {
            version,
            kind,
            event_id,
            slot,
            name_hash: rest.0,
            event_time_ms: times.0,
            received_at_ms: times.1,
            row_tag: who.0,
            write_key: who.1,
            region: who.2,
            clamped: rest.1,
            sealed: rest.2,
            run,
            sequence,
        },
    )
}
