//! A counts store that fails on order.

use tally_model::bucket::{Bucket, Period};

use super::{CountsStore, PutCondition, PutOutcome, Row, SmallRow};
use crate::error::StoreError;
use crate::faults::{Fault, Script};

/// A [`CountsStore`] around another one, whose calls fail as scripted.
///
/// One step of the script is used up by each call, not by each row: all rows of a failing
/// [`put_many`](CountsStore::put_many) share its fault.
#[derive(Debug)]
pub struct FailingCounts<S> {
    inner: S,
    writes: Script,
    reads: Script,
}

impl<S: CountsStore> FailingCounts<S> {
    /// A store that does not fail before it is told to.
    #[must_use]
    pub fn new(inner: S) -> Self {
        Self { inner, writes: Script::default(), reads: Script::default() }
    }

    /// Appends steps for the next writes; `None` = succeed.
    pub fn script_writes(&self, steps: impl IntoIterator<Item = Option<Fault>>) {
        self.writes.extend(steps);
    }

    /// Appends steps for the next reads; `None` = succeed, any fault = unavailable.
    pub fn script_reads(&self, steps: impl IntoIterator<Item = Option<Fault>>) {
        self.reads.extend(steps);
    }

    /// The store inside, which never fails on order.
    #[must_use]
    pub const fn inner(&self) -> &S {
        &self.inner
    }
}

impl<S: CountsStore> CountsStore for FailingCounts<S> {
    fn put_many(&self, puts: &[(Row, PutCondition)]) -> Vec<Result<PutOutcome, StoreError>> {
        match self.writes.write("put rows", || Ok(self.inner.put_many(puts))) {
            Ok(outcomes) => outcomes,
            Err(error) => StoreError::for_each(error, puts.len()).collect(),
        }
    }

    fn small_rows(
        &self,
        period: Period,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<SmallRow>, StoreError> {
        self.reads.read("read small rows", || self.inner.small_rows(period, from_ms, to_ms))
    }

    fn rows(&self, buckets: &[Bucket]) -> Result<Vec<Option<Row>>, StoreError> {
        self.reads.read("read rows", || self.inner.rows(buckets))
    }

    fn settled_rows(&self, buckets: &[Bucket]) -> Result<Vec<Option<Row>>, StoreError> {
        self.reads.read("read rows back", || self.inner.settled_rows(buckets))
    }

    fn is_empty(&self) -> Result<bool, StoreError> {
        self.reads.read("look for a row", || self.inner.is_empty())
    }

    fn delete_period(&self, period: Period) -> Result<u64, StoreError> {
        self.writes.write("delete a period", || self.inner.delete_period(period))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::counts::contract::{self, row};
    use crate::counts::memory::MemoryCounts;

    #[test]
    fn without_a_script_the_contract_holds() {
        contract::all(&|| Arc::new(FailingCounts::new(MemoryCounts::default())));
    }

    #[test]
    fn each_fault_reports_and_applies_what_it_says() {
        // (fault, whether the row is stored, whether the outcome is called unknown)
        let cases = [
            (Fault::Refused, false, false),
            (Fault::AppliedThenLost, true, true),
            (Fault::LostBeforeApplied, false, true),
        ];
        for (fault, stored, unknown) in cases {
            let store = FailingCounts::new(MemoryCounts::default());
            store.script_writes([Some(fault)]);
            let put = row(0, 1, &[1]);
            let outcomes = store.put_many(&[(put.clone(), PutCondition::Below)]);
            let [Err(error)] = outcomes.as_slice() else { panic!("{fault:?}: {outcomes:?}") };
            assert_eq!(matches!(error, StoreError::Unknown { .. }), unknown, "{fault:?}");
            let read = store.rows(&[put.small.bucket]).unwrap();
            assert_eq!(read[0].is_some(), stored, "{fault:?}");
        }
    }
}
