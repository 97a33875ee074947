//! Reading rows: marks, dirty hours and manifests at most a second old, vectors from the cache.
//!
//! Invariants F-3 and Q-3 of ARCHITECTURE.md.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tally_model::bucket::{Bucket, Granularity, Period};
use tally_model::clock::Clock;
use tally_model::range::{Run, TimeRange};
use tally_model::revision::Revision;
use tally_model::vector::{CountVector, VectorError};
use tally_sinks::counts::CountsStore;
use tally_sinks::dirty::{self, DirtyHour};
use tally_sinks::error::StoreError;
use tally_sinks::marks::{self, Marks};
use tally_sinks::meta::MetaStore;
use tally_sinks::suppressed::{self, SuppressedDay};

use crate::cache::VectorCache;
use crate::manifest::Manifest;
use crate::resolve::{Part, Version};
use crate::shown::ShownDays;
use crate::spans::Spans;

/// How old marks, dirty hours and manifests may be that an answer is made from.
const MANIFEST_AGE_MAX_MS: i64 = 1_000;

/// How many rows one call of the store reads at most, give or take one hour's minutes: bounds
/// the memory of a query that finds nothing in the cache.
const ROWS_PER_READ: usize = 512;

/// Why rows could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// A row is not the one that the manifest named: take a new snapshot and start over.
    #[error("the row of {bucket:?} changed while it was read")]
    Moved {
        /// The bucket.
        bucket: Bucket,
    },
    /// The store failed.
    #[error("cannot read the counts store")]
    Store(#[from] StoreError),
    /// Counts do not fit into 64 bits.
    #[error("cannot add counts")]
    Overflow(#[from] VectorError),
}

/// Marks, dirty hours and manifests that are read together.
///
/// The marks are read before any manifest. So a bucket below the retired-up-to mark whose row the
/// manifest lacks really has none: its last put was acknowledged before the mark was published.
///
/// The dirty hours of a month are read before any manifest that reaches into it. So an hour that
/// is not among them has, in the manifest, the rows that made it clean.
#[derive(Debug)]
pub(crate) struct Snapshot {
    taken_at_ms: i64,
    pub(crate) marks: Marks,
    manifests: Mutex<HashMap<Period, Arc<Manifest>, RandomState>>,
    /// Starts of the dirty hours by month, ascending.
    dirty: Mutex<HashMap<Period, Arc<[i64]>, RandomState>>,
}

/// How the vectors of one answer came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Visited {
    /// Vectors that the cache had.
    pub(crate) cache_hits: u64,
    /// Vectors that it lacked.
    pub(crate) cache_misses: u64,
    /// Rows read from the store for those.
    pub(crate) rows_read: u64,
}

/// Reads the counts store for queries. Its calls block.
#[derive(Debug)]
pub(crate) struct Reader {
    counts: Arc<dyn CountsStore>,
    meta: Arc<dyn MetaStore>,
    clock: Arc<dyn Clock>,
    cache: VectorCache,
    current: Mutex<Option<Arc<Snapshot>>>,
}

impl Reader {
    pub(crate) fn new(
        counts: Arc<dyn CountsStore>,
        meta: Arc<dyn MetaStore>,
        clock: Arc<dyn Clock>,
        cache_bytes: usize,
    ) -> Self {
        let (cache, current) = (VectorCache::new(cache_bytes), Mutex::new(None));
        Self { counts, meta, clock, cache, current }
    }

    /// The current snapshot; a new one if that is older than a second.
    pub(crate) fn snapshot(&self) -> Result<Arc<Snapshot>, StoreError> {
        // Held while the marks are read: all who wait want the same answer.
        let mut current = lock(&self.current);
        let now_ms = self.clock.monotonic_ms();
        if let Some(snapshot) = &*current
            && now_ms - snapshot.taken_at_ms < MANIFEST_AGE_MAX_MS
        {
            return Ok(Arc::clone(snapshot));
        }
        let snapshot = Arc::new(Snapshot {
            taken_at_ms: now_ms,
            marks: marks::read(&*self.meta)?,
            manifests: Mutex::default(),
            dirty: Mutex::default(),
        });
        *current = Some(Arc::clone(&snapshot));
        Ok(snapshot)
    }

    /// Makes the next [`Self::snapshot`] a new one.
    pub(crate) fn forget(&self, snapshot: &Arc<Snapshot>) {
        let mut current = lock(&self.current);
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, snapshot)) {
            *current = None;
        }
    }

    /// The manifest of a period.
    pub(crate) fn manifest(
        &self,
        snapshot: &Snapshot,
        period: Period,
    ) -> Result<Arc<Manifest>, StoreError> {
        if let Some(manifest) = lock(&snapshot.manifests).get(&period) {
            return Ok(Arc::clone(manifest));
        }
        for month in months(period.start_ms(), period.end_ms()) {
            self.dirty_starts(snapshot, month)?;
        }
        let rows = self.counts.small_rows(period, period.start_ms(), period.end_ms())?;
        let manifest = Arc::new(Manifest::new(period, rows));
        // Two readers may both have read it; the first stays, so that a snapshot never changes.
        Ok(Arc::clone(lock(&snapshot.manifests).entry(period).or_insert(manifest)))
    }

    /// The dirty hours that a range touches.
    ///
    /// To be called before the manifests of the range are read.
    pub(crate) fn dirty(&self, snapshot: &Snapshot, range: TimeRange) -> Result<Spans, StoreError> {
        let first_ms = Granularity::Hour.floor(range.start_ms());
        let mut touched = Spans::default();
        for month in months(first_ms, range.end_ms()) {
            let starts = self.dirty_starts(snapshot, month)?;
            let inside = starts.iter().filter(|start| (first_ms..range.end_ms()).contains(start));
            for start_ms in inside {
                touched.push(Bucket::containing(Granularity::Hour, *start_ms));
            }
        }
        Ok(touched)
    }

    /// What is noted of the hours that start in a range, as it stands now.
    pub(crate) fn late_hours(
        &self,
        range: TimeRange,
    ) -> Result<BTreeMap<i64, DirtyHour>, StoreError> {
        dirty::list(&*self.meta, range.start_ms()..range.end_ms())
    }

    /// Starts of the dirty hours of a month.
    fn dirty_starts(&self, snapshot: &Snapshot, month: Period) -> Result<Arc<[i64]>, StoreError> {
        if let Some(starts) = lock(&snapshot.dirty).get(&month) {
            return Ok(Arc::clone(starts));
        }
        let hours = dirty::list(&*self.meta, month.start_ms()..month.end_ms())?;
        let starts = hours.into_keys().collect();
        Ok(Arc::clone(lock(&snapshot.dirty).entry(month).or_insert(starts)))
    }

    /// Shows `visit` the vector of each part once, in no particular order.
    ///
    /// On an error, what was visited before is to be thrown away.
    pub(crate) fn visit(
        &self,
        snapshot: &Snapshot,
        parts: &[Part],
        mut visit: impl FnMut(&Part, &CountVector) -> Result<(), VectorError>,
    ) -> Result<Visited, ReadError> {
        let mut visited = Visited::default();
        let mut lacking = Vec::new();
        for (part, cached) in parts.iter().zip(self.cache.get_all(parts)) {
            match cached {
                Some(vector) => {
                    visited.cache_hits += 1;
                    visit(part, &vector)?;
                }
                None => lacking.push(*part),
            }
        }
        let mut batch = Batch::default();
        for part in lacking {
            visited.cache_misses += 1;
            if let Version::Shown { digest, below } = part.version {
                let day = SuppressedDay { day: part.bucket, below, digest };
                visit(&part, &self.shown(day)?)?;
                visited.rows_read += 1;
                continue;
            }
            batch.add(part, &self.rows_of(snapshot, &part)?);
            if batch.buckets.len() >= ROWS_PER_READ {
                visited.rows_read += self.read(&mut batch, &mut visit)?;
            }
        }
        visited.rows_read += self.read(&mut batch, &mut visit)?;
        Ok(visited)
    }

    /// Bytes that the cached vectors take.
    pub(crate) fn cache_bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// The days of `runs` that have a suppressed sum for the row that they have now. Those sums are
    /// then in the cache.
    pub(crate) fn shown_days(
        &self,
        snapshot: &Snapshot,
        runs: &[Run],
        below: u64,
    ) -> Result<ShownDays, StoreError> {
        let mut asked = Vec::new();
        for day in runs.iter().flat_map(|run| run.buckets()) {
            if day.granularity() == Granularity::Day
                && let Some(row) = self.manifest(snapshot, day.period())?.row(day)
            {
                asked.push(SuppressedDay { day, below, digest: row.digest });
            }
        }
        let parts: Vec<Part> = asked.iter().map(shown_part).collect();
        let cached = self.cache.get_all(&parts);
        let lacking: Vec<SuppressedDay> = (asked.iter().zip(&cached))
            .filter(|(_, cached)| cached.is_none())
            .map(|(day, _)| *day)
            .collect();
        let mut there: Vec<SuppressedDay> = asked
            .iter()
            .zip(&cached)
            .filter(|(_, hit)| hit.is_some())
            .map(|(day, _)| *day)
            .collect();
        for days in lacking.chunks(ROWS_PER_READ) {
            let found = suppressed::read(&*self.meta, days)?;
            for (day, vector) in days.iter().zip(found) {
                if let Some(vector) = vector {
                    self.cache.insert(&shown_part(day), Arc::new(vector));
                    there.push(*day);
                }
            }
        }
        Ok(ShownDays::new(there))
    }

    /// The suppressed sum of a day that [`Self::shown_days`] has found.
    fn shown(&self, day: SuppressedDay) -> Result<CountVector, ReadError> {
        let found = suppressed::read(&*self.meta, &[day])?.into_iter().next().flatten();
        // Gone since then: a rollup has folded the day again.
        found.ok_or(ReadError::Moved { bucket: day.day })
    }

    /// The rows that make up a part, with the revisions that the manifest names.
    fn rows_of(
        &self,
        snapshot: &Snapshot,
        part: &Part,
    ) -> Result<Vec<(Bucket, Revision)>, StoreError> {
        match (part.version, part.bucket.granularity().finer()) {
            (Version::Row(revision), _) => Ok(vec![(part.bucket, revision)]),
            // Read one by one, not from the counts store.
            (Version::Shown { .. }, _) => Ok(Vec::new()),
            (Version::Children(_), finer) => {
                let finer = finer.unwrap_or(Granularity::Minute);
                let period = Period::containing(finer, part.bucket.start_ms());
                let manifest = self.manifest(snapshot, period)?;
                Ok(manifest
                    .inside(part.bucket)
                    .iter()
                    .map(|row| (row.bucket, row.revision))
                    .collect())
            }
        }
    }

    /// Reads a batch, shows and caches its parts, and empties it. Returns the rows read.
    fn read(
        &self,
        batch: &mut Batch,
        visit: &mut impl FnMut(&Part, &CountVector) -> Result<(), VectorError>,
    ) -> Result<u64, ReadError> {
        let Batch { parts, buckets, revisions } = std::mem::take(batch);
        if buckets.is_empty() {
            return Ok(0);
        }
        let read = u64::try_from(buckets.len()).unwrap_or(u64::MAX);
        let rows = self.counts.rows(&buckets)?;
        let mut rows = rows.into_iter().zip(buckets.into_iter().zip(revisions));
        for (part, count) in parts {
            let mut sum: Option<CountVector> = None;
            for (row, (bucket, revision)) in rows.by_ref().take(count) {
                let row = row
                    .filter(|row| row.small.revision == revision)
                    .ok_or(ReadError::Moved { bucket })?;
                match &mut sum {
                    Some(sum) => sum.add(&row.vector)?,
                    None => sum = Some(row.vector),
                }
            }
            let vector = Arc::new(sum.unwrap_or_default());
            visit(&part, &vector)?;
            self.cache.insert(&part, vector);
        }
        Ok(read)
    }
}

/// The part that a suppressed day is.
const fn shown_part(day: &SuppressedDay) -> Part {
    let SuppressedDay { day: bucket, below, digest } = *day;
    Part { bucket, version: Version::Shown { digest, below }, width: 0 }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The months, as hour rows are kept by, that `[start_ms, end_ms)` touches.
fn months(start_ms: i64, end_ms: i64) -> impl Iterator<Item = Period> {
    let mut next_ms = start_ms;
    std::iter::from_fn(move || {
        let month = (next_ms < end_ms).then(|| Period::containing(Granularity::Hour, next_ms))?;
        next_ms = month.end_ms();
        Some(month)
    })
}

/// Parts to read in one call of the store.
#[derive(Debug, Default)]
struct Batch {
    /// Each part with the number of its rows.
    parts: Vec<(Part, usize)>,
    /// All rows, part after part.
    buckets: Vec<Bucket>,
    /// The revision that each of them must have.
    revisions: Vec<Revision>,
}

impl Batch {
    fn add(&mut self, part: Part, rows: &[(Bucket, Revision)]) {
        self.parts.push((part, rows.len()));
        self.buckets.extend(rows.iter().map(|(bucket, _)| bucket));
        self.revisions.extend(rows.iter().map(|(_, revision)| revision));
    }
}
