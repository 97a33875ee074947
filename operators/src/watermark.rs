//! Watermarks: up to which moment of the servers' clock the log has been read.
//!
//! A watermark follows the receivedAt stamps and never passes the present: no client stamp and no
//! collector with a fast clock can move it ahead of the time. [`PartitionWatermark`] belongs to
//! one log partition, [`WatermarkReport`] is what one worker says about its partitions, and
//! [`GlobalWatermark`] is the minimum over all workers, which never falls.
//!
//! All times are in milliseconds since the Unix epoch.
//!
//! Invariants W-1, W-2 of ARCHITECTURE.md.

use serde::{Deserialize, Serialize};

#[cfg(test)]
mod tests;

/// How far one partition has been read: the least of the present and the highest receivedAt read,
/// or, at the partition's end, the time at which that end was asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartitionWatermark {
    highest_stamp_ms: Option<i64>,
    reached_ms: Option<i64>,
}

impl PartitionWatermark {
    /// Notes the receivedAt stamp of a record that was read.
    #[inline]
    pub fn read(&mut self, received_at_ms: i64) {
        if self.highest_stamp_ms.is_none_or(|highest| highest < received_at_ms) {
            self.highest_stamp_ms = Some(received_at_ms);
        }
    }

    /// Notes that everything has been read that the partition held at `asked_at_ms`. This is what
    /// idle means: no timer can tell an idle partition from a slow reader.
    pub fn read_to_end(&mut self, asked_at_ms: i64) {
        self.reached_ms = self.reached_ms.max(Some(asked_at_ms));
    }

    /// The watermark at `now_ms`; `None` while nothing was read and the end was not reached.
    pub fn at(&mut self, now_ms: i64) -> Option<i64> {
        let stamp_ms = self.highest_stamp_ms.map(|highest| highest.min(now_ms));
        self.reached_ms = self.reached_ms.max(stamp_ms);
        self.reached_ms
    }
}

/// What a partition, a worker or the whole log allows the watermark to be; the least of several is
/// what they allow together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Hold {
    /// Nothing is known yet: the watermark stays where it is.
    Unknown,
    /// The watermark may be this.
    At(i64),
    /// There is nothing left to read: it does not hold anything back.
    Nothing,
}

impl From<Option<i64>> for Hold {
    fn from(watermark_ms: Option<i64>) -> Self {
        watermark_ms.map_or(Self::Unknown, Self::At)
    }
}

/// What one worker says about its partitions at the end of a stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatermarkReport {
    /// The worker, from 0.
    pub worker: usize,
    /// The least watermark of the partitions that are still being read; [`Hold::Nothing`] if the
    /// worker has no such partition.
    pub hold: Hold,
    /// The greatest watermark of all its partitions.
    pub greatest_ms: Option<i64>,
    /// Whether it has read all that the log held when the run started.
    pub caught_up: bool,
}

/// What all workers together have reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    /// The global watermark; `None` before every partition has one.
    pub watermark_ms: Option<i64>,
    /// Every partition was read to the end of the run: nothing more will come.
    pub all_read: bool,
    /// Every worker has read all that the log held when the run started.
    pub caught_up: bool,
}

/// The minimum over the workers' latest reports. Plain data; each worker keeps one and feeds it the
/// same reports epoch by epoch, so all of them see the same watermark at the same epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GlobalWatermark {
    /// The latest report of each worker.
    latest: Vec<Option<WatermarkReport>>,
    watermark_ms: Option<i64>,
}

impl GlobalWatermark {
    /// Nothing reported yet by any of `workers` workers.
    #[must_use]
    pub fn new(workers: usize) -> Self {
        Self::restored(workers, None)
    }

    /// The same, but the watermark has been at `watermark_ms` before and never falls below it.
    #[must_use]
    pub fn restored(workers: usize, watermark_ms: Option<i64>) -> Self {
        Self { latest: vec![None; workers], watermark_ms }
    }

    /// Takes a worker's next report.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn take(&mut self, report: WatermarkReport) {
        self.latest[report.worker] = Some(report);
    }

    /// What the reports taken so far amount to.
    ///
    /// While some partition is being read, the watermark is the least of those. Once every
    /// partition is exhausted it is the greatest stamp of all, so a partition that has had no
    /// record for long does not hold it back for ever.
    pub fn reached(&mut self) -> Reached {
        let holds = self.latest.iter().map(|report| report.map_or(Hold::Unknown, |r| r.hold));
        let allowed_ms = match holds.min().unwrap_or(Hold::Unknown) {
            Hold::Unknown => None,
            Hold::At(watermark_ms) => Some(watermark_ms),
            Hold::Nothing => self.latest.iter().flatten().filter_map(|r| r.greatest_ms).max(),
        };
        self.watermark_ms = self.watermark_ms.max(allowed_ms);
        let all = |is: fn(&WatermarkReport) -> bool| {
            self.latest.iter().all(|report| report.as_ref().is_some_and(is))
        };
        Reached {
            watermark_ms: self.watermark_ms,
            all_read: all(|report| report.hold == Hold::Nothing),
            caught_up: all(|report| report.caught_up),
        }
    }
}
