//! The minutes that one shard is still counting.
//!
//! [`OpenWindows`] adds up events by minute and slot. A minute is *closed* when the watermark
//! passes it: its counts are emitted whole, for the first time. What arrives afterwards waits as a
//! pending difference until the next restatement. When the minute is *retired*, the last pending
//! difference goes out and then everything is taken back, so that nothing is kept for it downstream.
//! The counts themselves stay, and are part of each snapshot, until the minute is *forgotten*: once
//! its last row is known to be stored.
//!
//! Plain data. What goes out is collected in [`Deltas`], which adds up several shards.

use std::collections::BTreeMap;

use tally_model::bucket::Bucket;
use tally_model::types::TypeId;

#[cfg(test)]
mod tests;

/// Differences of counts by minute and slot, to be emitted at one time. Adding up two shards' is
/// the local combine: one difference for each minute and slot leaves a worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Deltas {
    /// Differences by start of the minute; index = slot.
    by_minute: BTreeMap<i64, Vec<i64>>,
}

impl Deltas {
    /// Whether nothing was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_minute.is_empty()
    }

    /// The differences that are not zero, as (start of the minute in ms, slot, difference), in
    /// ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (i64, TypeId, i64)> {
        self.by_minute.iter().flat_map(|(start_ms, slots)| {
            let slots = (0..).map(TypeId).zip(slots);
            slots.filter(|(_, by)| **by != 0).map(|(slot, by)| (*start_ms, slot, *by))
        })
    }

    /// Adds the differences of one minute, in slot order.
    fn add(&mut self, start_ms: i64, differences: impl ExactSizeIterator<Item = i64>) {
        let sums = self.by_minute.entry(start_ms).or_default();
        if sums.len() < differences.len() {
            sums.resize(differences.len(), 0);
        }
        for (sum, by) in sums.iter_mut().zip(differences) {
            *sum += by;
        }
    }
}

/// The counts of one shard's minutes that are not yet forgotten.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenWindows {
    /// In ascending order of their start.
    windows: Vec<Window>,
    /// So many of them, from the first on, were taken back: they only wait to be forgotten.
    taken_back: usize,
    /// Place of the minute that was added to last: events of one minute come together. Never that
    /// of a retired one.
    last: usize,
    closed_up_to_ms: Option<i64>,
    retired_up_to_ms: Option<i64>,
}

/// No place.
const NOWHERE: usize = usize::MAX;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Window {
    start_ms: i64,
    /// By slot.
    counts: Vec<u64>,
    /// What has gone out of it, by slot; nothing before the minute is closed.
    emitted: Vec<u64>,
    /// Whether something waits to go out although the minute is closed.
    pending: bool,
}

/// What must survive a restart: the counts, but not what was emitted of them, since everything
/// downstream starts anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WindowsSnapshot {
    /// Counts by slot of each minute, by start in ms since the Unix epoch, ascending. Some may be
    /// retired: their last row was not known to be stored.
    pub minutes: Vec<(i64, Vec<u64>)>,
    /// Minutes that end at or before this are retired.
    pub retired_up_to_ms: Option<i64>,
}

impl OpenWindows {
    /// Counts one event of `slot` in the minute that starts at `start_ms`. Returns `false`, and
    /// counts nothing, if that minute has been retired.
    #[inline]
    pub fn add(&mut self, start_ms: i64, slot: TypeId) -> bool {
        if self.windows.get(self.last).is_none_or(|window| window.start_ms != start_ms) {
            match self.find_or_open(start_ms) {
                Some(place) => self.last = place,
                None => return false,
            }
        }
        let window = &mut self.windows[self.last];
        let index = usize::from(slot.0);
        if index >= window.counts.len() {
            window.counts.resize(index + 1, 0);
        }
        window.counts[index] += 1;
        window.pending = true;
        true
    }

    /// Emits, for the first time, the counts of every minute that ends at or before `up_to_ms`.
    pub fn close(&mut self, up_to_ms: i64, out: &mut Deltas) {
        let before = self.closed_up_to_ms;
        self.closed_up_to_ms = before.max(Some(up_to_ms));
        for window in self.held_by(up_to_ms) {
            if !is_by(before, window.start_ms) {
                window.emit(out);
            }
        }
    }

    /// Emits what has arrived in closed minutes since they were last emitted.
    pub fn restate(&mut self, out: &mut Deltas) {
        let Some(closed_up_to_ms) = self.closed_up_to_ms else {
            return;
        };
        for window in self.held_by(closed_up_to_ms) {
            window.emit(out);
        }
    }

    /// Ends the counting of every minute that ends at or before `up_to_ms`: `out` receives what was
    /// still pending, `taken_back` everything that was ever emitted, to be subtracted at a later
    /// time.
    pub fn retire(&mut self, up_to_ms: i64, out: &mut Deltas, taken_back: &mut Deltas) {
        self.retired_up_to_ms = self.retired_up_to_ms.max(Some(up_to_ms));
        self.closed_up_to_ms = self.closed_up_to_ms.max(Some(up_to_ms));
        let retired = self.held_by(up_to_ms);
        let count = retired.len();
        for window in retired {
            window.emit(out);
            taken_back.add(window.start_ms, window.counts.iter().map(|count| -signed(*count)));
            // Nothing will be compared with it any more.
            window.emitted = Vec::new();
        }
        self.taken_back += count;
        self.last = NOWHERE;
    }

    /// Forgets every retired minute that ends at or before `up_to_ms`: its last row is stored.
    pub fn forget(&mut self, up_to_ms: i64) {
        let stored = self.ending_by(up_to_ms).min(self.taken_back);
        if stored > 0 {
            self.windows.drain(..stored);
            self.taken_back -= stored;
            self.last = NOWHERE;
        }
    }

    /// Minutes that end at or before this are retired; `None` before the first one is.
    #[must_use]
    pub const fn retired_up_to_ms(&self) -> Option<i64> {
        self.retired_up_to_ms
    }

    /// How many minutes are held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.windows.len()
    }

    /// Whether no minute is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.windows.is_empty()
    }

    /// What must survive a restart.
    #[must_use]
    pub fn snapshot(&self) -> WindowsSnapshot {
        let minutes = self.windows.iter().map(|w| (w.start_ms, w.counts.clone())).collect();
        WindowsSnapshot { minutes, retired_up_to_ms: self.retired_up_to_ms }
    }

    /// The state of a snapshot, with nothing emitted: every minute goes out anew, and a retired one
    /// is taken back again by the next [`retire`](Self::retire).
    #[must_use]
    pub fn restore(snapshot: WindowsSnapshot) -> Self {
        let windows = snapshot.minutes.into_iter().map(|(start_ms, counts)| Window {
            start_ms,
            counts,
            emitted: Vec::new(),
            pending: true,
        });
        Self {
            windows: windows.collect(),
            taken_back: 0,
            last: NOWHERE,
            closed_up_to_ms: snapshot.retired_up_to_ms,
            retired_up_to_ms: snapshot.retired_up_to_ms,
        }
    }

    /// The place of a minute; `None` if it has been retired.
    fn find_or_open(&mut self, start_ms: i64) -> Option<usize> {
        if is_by(self.retired_up_to_ms, start_ms) {
            return None;
        }
        let place = self.windows.partition_point(|window| window.start_ms < start_ms);
        if self.windows.get(place).is_none_or(|window| window.start_ms != start_ms) {
            let window =
                Window { start_ms, counts: Vec::new(), emitted: Vec::new(), pending: false };
            self.windows.insert(place, window);
        }
        Some(place)
    }

    /// The minutes that end at or before `up_to_ms` and were not taken back.
    fn held_by(&mut self, up_to_ms: i64) -> &mut [Window] {
        let ending = self.ending_by(up_to_ms).max(self.taken_back);
        &mut self.windows[self.taken_back..ending]
    }

    /// How many minutes end at or before `up_to_ms`.
    fn ending_by(&self, up_to_ms: i64) -> usize {
        self.windows.partition_point(|window| is_by(Some(up_to_ms), window.start_ms))
    }
}

impl Window {
    fn emit(&mut self, out: &mut Deltas) {
        if !std::mem::take(&mut self.pending) {
            return;
        }
        self.emitted.resize(self.counts.len(), 0);
        let differences = self.counts.iter().zip(&self.emitted);
        out.add(self.start_ms, differences.map(|(now, then)| signed(now - then)));
        self.emitted.clone_from(&self.counts);
    }
}

/// Whether the minute that starts at `start_ms` ends at or before the mark.
fn is_by(mark_ms: Option<i64>, start_ms: i64) -> bool {
    mark_ms.is_some_and(|mark_ms| Bucket::minute(start_ms).end_ms() <= mark_ms)
}

/// # Panics
/// On a count of 2^63 or more, which no log can hold.
fn signed(count: u64) -> i64 {
    i64::try_from(count).expect("a count is below 2^63")
}
