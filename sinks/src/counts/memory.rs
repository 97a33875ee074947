//! The counts store as a map, for tests and as the model of the others.

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use tally_model::bucket::{Bucket, Granularity, Period};

use super::{CountsStore, PutCondition, PutOutcome, Row, SmallRow, Verdict, judge, small_to_store};
use crate::error::StoreError;

/// Every row by granularity and start.
type Rows = BTreeMap<(Granularity, i64), Row>;

/// A [`CountsStore`] that forgets everything when it is dropped.
#[derive(Debug, Default)]
pub struct MemoryCounts {
    rows: RwLock<Rows>,
}

impl MemoryCounts {
    fn read(&self) -> RwLockReadGuard<'_, Rows> {
        self.rows.read().unwrap_or_else(PoisonError::into_inner)
    }
}

const fn key(bucket: Bucket) -> (Granularity, i64) {
    (bucket.granularity(), bucket.start_ms())
}

impl CountsStore for MemoryCounts {
    fn put_many(&self, puts: &[(Row, PutCondition)]) -> Vec<Result<PutOutcome, StoreError>> {
        let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
        puts.iter().map(|(row, condition)| put(&mut rows, row, *condition)).collect()
    }

    fn small_rows(
        &self,
        period: Period,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<SmallRow>, StoreError> {
        let from_ms = from_ms.max(period.start_ms());
        let to_ms = to_ms.min(period.end_ms());
        if from_ms >= to_ms {
            return Ok(Vec::new());
        }
        let granularity = period.granularity();
        let rows = self.read();
        let slice = rows.range((granularity, from_ms)..(granularity, to_ms));
        Ok(slice.map(|(_, row)| row.small).collect())
    }

    fn rows(&self, buckets: &[Bucket]) -> Result<Vec<Option<Row>>, StoreError> {
        let rows = self.read();
        Ok(buckets.iter().map(|bucket| rows.get(&key(*bucket)).cloned()).collect())
    }

    fn is_empty(&self) -> Result<bool, StoreError> {
        Ok(self.read().is_empty())
    }

    fn delete_period(&self, period: Period) -> Result<u64, StoreError> {
        let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
        let granularity = period.granularity();
        let slice = (granularity, period.start_ms())..(granularity, period.end_ms());
        let gone = rows.extract_if(slice, |_, _| true).count();
        Ok(u64::try_from(gone).unwrap_or(u64::MAX))
    }
}

fn put(rows: &mut Rows, row: &Row, condition: PutCondition) -> Result<PutOutcome, StoreError> {
    let small = small_to_store(row)?;
    let stored = rows.get(&key(small.bucket));
    match judge(&small, condition, stored.map(|stored| stored.small)) {
        Verdict::Store => {
            rows.insert(key(small.bucket), Row { small, vector: row.vector.clone() });
            Ok(PutOutcome::Stored)
        }
        Verdict::Compare(_) if stored.is_some_and(|stored| stored.vector == row.vector) => {
            Ok(PutOutcome::AlreadyDone)
        }
        Verdict::Compare(stored) => Ok(PutOutcome::Refused { stored: Some(stored) }),
        Verdict::Refuse(stored) => Ok(PutOutcome::Refused { stored }),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::counts::contract;

    #[test]
    fn the_map_keeps_the_contract() {
        contract::all(&|| Arc::new(MemoryCounts::default()));
    }
}
