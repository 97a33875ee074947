//! Suppressed days: what of a day may be shown to those who must not see small counts.
//!
//! Such readers see cells: the count of one event type in one hour. A cell below a threshold is
//! dropped before anything is added, whatever tier is read, so the difference of two answers is
//! made of cells that may be shown. A day row does not tell its hours' cells apart, so the rollup
//! keeps beside it the sum of those that may be shown.
//!
//! The sum is stored under the day, the threshold and the digest of the hour rows that it was made
//! from. A reader asks with the digest of the day row in hand: it gets the sum that belongs to that
//! very row, or none. So nothing has to be written together with the day row, and what two rollups
//! write at once cannot be mixed up.

use tally_model::bucket::Bucket;
use tally_model::vector::CountVector;

use crate::error::StoreError;
use crate::meta::{CasOutcome, MetaStore, Table};

const SUPPRESSED: Table = "suppressed_days";

/// Most rows of one day that are looked at when old ones are deleted.
const ROWS_OF_A_DAY_MAX: usize = 100;

/// Names one suppressed day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SuppressedDay {
    /// The day.
    pub day: Bucket,
    /// The smallest count that is shown.
    pub below: u64,
    /// The day row's digest of the hours that it was folded from.
    pub digest: u64,
}

impl SuppressedDay {
    /// Day, threshold, digest: big-endian, so that the rows of a day stand together.
    fn key(&self) -> [u8; 24] {
        let mut key = [0; 24];
        let fields = ((self.day.start_ms() ^ i64::MIN).to_be_bytes().into_iter())
            .chain(self.below.to_be_bytes())
            .chain(self.digest.to_be_bytes());
        key.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
        key
    }
}

/// The cells of one hour that may be shown: those of at least `below`.
#[must_use]
pub fn shown(hour: &CountVector, below: u64) -> CountVector {
    let cell = |count: &u64| if *count < below { 0 } else { *count };
    CountVector::from_counts(hour.counts().iter().map(cell).collect())
}

/// The sums that are stored, in the order asked for; `None` where there is none.
///
/// # Errors
/// [`StoreError`].
pub fn read(
    store: &dyn MetaStore,
    days: &[SuppressedDay],
) -> Result<Vec<Option<CountVector>>, StoreError> {
    let keys: Vec<Vec<u8>> = days.iter().map(|day| day.key().to_vec()).collect();
    let rows = store.get_many(SUPPRESSED, &keys)?;
    rows.iter()
        .zip(days)
        .map(|(row, day)| row.as_deref().map(|bytes| decode(day, bytes)).transpose())
        .collect()
}

/// Stores the sum of a day. What is there already stays: equal names mean equal sums.
///
/// # Errors
/// [`StoreError`]; the same call may be repeated.
pub fn write(
    store: &dyn MetaStore,
    day: &SuppressedDay,
    sum: &CountVector,
) -> Result<(), StoreError> {
    match store.put_if(SUPPRESSED, &day.key(), None, &sum.to_bytes())? {
        CasOutcome::Applied | CasOutcome::Refused { .. } => Ok(()),
    }
}

/// Deletes the sums of a day that belong to other digests or thresholds.
///
/// # Errors
/// [`StoreError`]; the same call may be repeated.
pub fn forget_others(store: &dyn MetaStore, keep: &SuppressedDay) -> Result<(), StoreError> {
    let kept = keep.key();
    let first = SuppressedDay { below: 0, digest: 0, ..*keep }.key();
    let day = kept.first_chunk::<8>();
    let rows = store.scan(SUPPRESSED, Some(&first), ROWS_OF_A_DAY_MAX)?;
    for (key, value) in rows {
        if key.first_chunk::<8>() != day {
            break;
        }
        if key != kept {
            match store.delete_if(SUPPRESSED, &key, &value)? {
                CasOutcome::Applied | CasOutcome::Refused { .. } => {}
            }
        }
    }
    Ok(())
}

fn decode(day: &SuppressedDay, bytes: &[u8]) -> Result<CountVector, StoreError> {
    CountVector::from_bytes(bytes).map_err(|why| {
        StoreError::corrupt(format!("table {SUPPRESSED}, day {} ({why})", day.day.start_ms()))
    })
}

#[cfg(test)]
mod tests {
    use tally_model::bucket::{DAY_MS, Granularity};

    use super::*;
    use crate::meta::memory::MemoryMeta;

    fn day(start_ms: i64, below: u64, digest: u64) -> SuppressedDay {
        SuppressedDay { day: Bucket::containing(Granularity::Day, start_ms), below, digest }
    }

    #[test]
    fn a_cell_below_the_threshold_is_dropped_and_one_at_it_is_shown() {
        let hour = CountVector::from_counts(vec![9, 10, 11, 0]);
        assert_eq!(shown(&hour, 10).counts(), [0, 10, 11, 0]);
        assert_eq!(shown(&hour, 0).counts(), hour.counts());
    }

    #[test]
    fn a_sum_is_found_under_its_own_digest_and_threshold_only() {
        let store = MemoryMeta::default();
        let sum = CountVector::from_counts(vec![12, 0, 40]);
        write(&store, &day(0, 10, 7), &sum).unwrap();
        write(&store, &day(0, 10, 7), &CountVector::new()).unwrap();
        let asked = [day(0, 10, 7), day(0, 10, 8), day(0, 11, 7), day(DAY_MS, 10, 7)];
        let found = read(&store, &asked).unwrap();
        assert_eq!(found, [Some(sum), None, None, None], "what is there stays");
    }

    #[test]
    fn forgetting_leaves_the_kept_row_and_other_days() {
        let store = MemoryMeta::default();
        let rows = [day(0, 10, 1), day(0, 10, 2), day(0, 5, 2), day(DAY_MS, 10, 1), day(-1, 10, 1)];
        for row in &rows {
            write(&store, row, &CountVector::from_counts(vec![row.digest])).unwrap();
        }
        forget_others(&store, &rows[1]).unwrap();
        let left = read(&store, &rows).unwrap();
        let there: Vec<bool> = left.iter().map(Option::is_some).collect();
        assert_eq!(there, [false, true, false, true, true]);
    }
}
