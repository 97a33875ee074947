//! Which rows answer a plan: the pure half of reading.
//!
//! A plan names the largest aligned buckets. A coarse bucket that has no row yet (its rollup has
//! not run) is read one tier down, as far down as rows are kept. What then has no row is zero
//! before the deployment's origin, *missing* below the streaming side's retired-up-to mark, and
//! *not closed* above it.
//!
//! Invariant Q-2 of ARCHITECTURE.md.

#[cfg(test)]
mod tests;

use std::sync::Arc;

use sha2::{Digest, Sha256};
use tally_model::bucket::{Bucket, Granularity, Period};
use tally_model::range::{Availability, Run};
use tally_model::revision::Revision;
use tally_sinks::counts::{RowSource, SmallRow};

use crate::manifest::{Manifest, ShortDigest, short};
use crate::spans::Spans;

/// What decides how a bucket without a row is read. All instants in ms since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// When the question was asked.
    pub now_ms: i64,
    /// From when on the finer rows are kept.
    pub availability: Availability,
    /// First minute of the deployment; `None` before anything was counted.
    pub origin_ms: Option<i64>,
    /// Everything below is retired: streaming never touches it again.
    pub retired_up_to_ms: Option<i64>,
    /// Everything below is closed and readable.
    pub readable_up_to_ms: Option<i64>,
}

impl Facts {
    /// No bucket from here on can have a row: streaming closes nothing that has not passed.
    fn horizon_ms(&self) -> i64 {
        self.readable_up_to_ms.map_or(self.now_ms, |readable| readable.max(self.now_ms))
    }

    fn keeps(&self, granularity: Granularity, at_ms: i64) -> bool {
        match granularity {
            Granularity::Minute => at_ms >= self.availability.minutes_from_ms,
            Granularity::Hour => at_ms >= self.availability.hours_from_ms,
            Granularity::Day => true,
        }
    }
}

/// One vector to add: a row, or the sum of all children of a bucket that has no row itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The bucket whose counts it holds.
    pub bucket: Bucket,
    /// Which version of them.
    pub version: Version,
    /// Width of the widest vector read for it.
    pub width: u32,
}

/// Names a version of a bucket's counts; with the bucket it is the key of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// The bucket's own row.
    Row(Revision),
    /// The sum of its children's rows, by the digest of their revisions.
    Children(ShortDigest),
    /// Of a day: the sum of its hours' cells that are not below a threshold.
    Shown {
        /// Digest of the hours, as the day's row names it.
        digest: u64,
        /// The threshold.
        below: u64,
    },
}

/// What answers a plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// The vectors to add, in order of time.
    pub parts: Vec<Part>,
    /// How many rows they are made of.
    pub rows: u64,
    /// When the youngest content among them was written, ms since the Unix epoch.
    pub written_at_ms: Option<i64>,
    /// No row, although streaming has retired the bucket.
    pub missing: Spans,
    /// No row yet.
    pub not_closed: Spans,
    /// A row that was folded, but not from its children as they stand: the rollup will fold it again.
    pub stale: Spans,
    /// Hours whose counts lack something, whatever rows they have. [`resolve`] leaves it empty: the
    /// reader knows them.
    pub dirty: Spans,
    /// How many periods' manifests were consulted.
    pub manifest_reads: u64,
}

impl Resolved {
    /// Digest of every (bucket, revision) that is read: it changes with any of them.
    #[must_use]
    pub fn digest(&self) -> ShortDigest {
        let mut digest = Sha256::new();
        for part in &self.parts {
            digest.update(part.bucket.granularity().name());
            digest.update(part.bucket.start_ms().to_le_bytes());
            match part.version {
                Version::Row(revision) => {
                    digest.update([0]);
                    digest.update(revision.raw().to_le_bytes());
                }
                Version::Children(children) => {
                    digest.update([1]);
                    digest.update(children);
                }
                Version::Shown { digest: hours, below } => {
                    digest.update([2]);
                    digest.update(hours.to_le_bytes());
                    digest.update(below.to_le_bytes());
                }
            }
        }
        short(digest)
    }

    /// Everything that takes wholeness away.
    pub fn lacking(&self) -> impl Iterator<Item = &Spans> {
        [&self.missing, &self.not_closed, &self.stale, &self.dirty].into_iter()
    }

    /// Width of the widest vector that is read.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.parts.iter().map(|part| part.width).max().unwrap_or(0)
    }
}

/// Finds the rows of `runs`, which follow each other in time. `load` gives a period's manifest; it
/// is asked once for each period that matters.
///
/// Work is bounded by the plan and by what retention keeps: a bucket that lies past its finer
/// rows' retention, or after every instant that can have been counted, is not taken apart.
///
/// # Errors
/// Whatever `load` returns.
pub fn resolve<E>(
    runs: &[Run],
    facts: &Facts,
    load: impl FnMut(Period) -> Result<Arc<Manifest>, E>,
) -> Result<Resolved, E> {
    let mut resolver = Resolver { facts, load, current: Vec::new(), out: Resolved::default() };
    for bucket in runs.iter().flat_map(|run| run.buckets()) {
        resolver.bucket(bucket)?;
    }
    Ok(resolver.out)
}

struct Resolver<'a, L> {
    facts: &'a Facts,
    load: L,
    /// The period read last, by granularity: buckets come in order of time, so each period is
    /// asked for once.
    current: Vec<(Period, Arc<Manifest>)>,
    out: Resolved,
}

impl<E, L: FnMut(Period) -> Result<Arc<Manifest>, E>> Resolver<'_, L> {
    fn bucket(&mut self, bucket: Bucket) -> Result<(), E> {
        if bucket.start_ms() >= self.facts.horizon_ms() {
            self.out.not_closed.push(bucket);
            return Ok(());
        }
        // What is past its retention may be there still, or be half gone.
        if !self.facts.keeps(bucket.granularity(), bucket.start_ms()) {
            self.absent(bucket);
            return Ok(());
        }
        if let Some(row) = self.manifest(bucket.period())?.row(bucket).copied() {
            let (version, width) = (Version::Row(row.revision), row.width);
            self.push(Part { bucket, version, width }, 1, row.written_at_ms);
            return self.compare(&row);
        }
        match bucket.granularity().finer() {
            Some(finer) if self.facts.keeps(finer, bucket.start_ms()) => self.below(bucket, finer),
            Some(_) | None => {
                self.absent(bucket);
                Ok(())
            }
        }
    }

    /// Notes a folded row that is out of date, as far as its children are kept. One tier down is
    /// looked at, not two: who changes minutes notes their hour as dirty until it is folded.
    fn compare(&mut self, row: &SmallRow) -> Result<(), E> {
        let bucket = row.bucket;
        let Some(finer) = bucket.granularity().finer() else {
            return Ok(());
        };
        if row.source != RowSource::Rollup || !self.facts.keeps(finer, bucket.start_ms()) {
            return Ok(());
        }
        let children = self.manifest(Period::containing(finer, bucket.start_ms()))?;
        if children.source(bucket) != Some(row.digest) {
            self.out.stale.push(bucket);
        }
        Ok(())
    }

    fn below(&mut self, bucket: Bucket, finer: Granularity) -> Result<(), E> {
        let children = self.manifest(Period::containing(finer, bucket.start_ms()))?;
        if let Some(fold) = children.fold(bucket) {
            let part = Part { bucket, version: Version::Children(fold.digest), width: fold.width };
            self.push(part, u64::from(fold.rows), fold.written_at_ms);
            return Ok(());
        }
        bucket.children().try_for_each(|child| self.bucket(child))
    }

    fn push(&mut self, part: Part, rows: u64, written_at_ms: i64) {
        self.out.parts.push(part);
        self.out.rows += rows;
        self.out.written_at_ms = self.out.written_at_ms.max(Some(written_at_ms));
    }

    fn absent(&mut self, bucket: Bucket) {
        let ends_by = |mark: Option<i64>| mark.is_some_and(|mark| bucket.end_ms() <= mark);
        if ends_by(self.facts.origin_ms) {
            return;
        }
        if ends_by(self.facts.retired_up_to_ms) {
            self.out.missing.push(bucket);
        } else {
            self.out.not_closed.push(bucket);
        }
    }

    fn manifest(&mut self, period: Period) -> Result<Arc<Manifest>, E> {
        if let Some((_, manifest)) = self.current.iter().find(|(current, _)| *current == period) {
            return Ok(Arc::clone(manifest));
        }
        let manifest = (self.load)(period)?;
        self.out.manifest_reads += 1;
        self.current.retain(|(current, _)| current.granularity() != period.granularity());
        self.current.push((period, Arc::clone(&manifest)));
        Ok(manifest)
    }
}
