//! Hours that the run has found dirty, until the writer has published them.
//!
//! Late events are not among them: they are told from the last checkpoint, see
//! [`crate::late_hours`].

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tally_eventlog::{Offset, Partition};
use tally_model::bucket::{Granularity, HOUR_MS};
use tally_sinks::dirty::DirtyHour;

/// Hours that wait to be published.
#[derive(Debug, Default)]
pub(crate) struct DirtyNotes {
    hours: Mutex<BTreeMap<i64, DirtyHour>>,
}

impl DirtyNotes {
    /// Notes something about one hour, by any moment of it in ms.
    pub(crate) fn note(&self, at_ms: i64, dirty: &DirtyHour) {
        self.lock().entry(Granularity::Hour.floor(at_ms)).or_default().raise(dirty);
    }

    /// Notes that records received in the given time may be missing up to `position`.
    pub(crate) fn note_hole(&self, time: Range<i64>, position: (Partition, Offset)) {
        let dirty = DirtyHour { hole: true, positions: [position].into(), ..DirtyHour::default() };
        let first_ms = Granularity::Hour.floor(time.start);
        let mut hour_ms = first_ms;
        while hour_ms == first_ms || hour_ms < time.end {
            self.note(hour_ms, &dirty);
            hour_ms += HOUR_MS;
        }
    }

    /// What waits.
    pub(crate) fn waiting(&self) -> BTreeMap<i64, DirtyHour> {
        self.lock().clone()
    }

    /// Forgets what was published, but not what was noted meanwhile.
    pub(crate) fn published(&self, hours: &BTreeMap<i64, DirtyHour>) {
        self.lock().retain(|hour_ms, dirty| hours.get(hour_ms) != Some(dirty));
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<i64, DirtyHour>> {
        self.hours.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hole_marks_every_hour_that_it_touches() {
        let notes = DirtyNotes::default();
        notes.note_hole(HOUR_MS - 1..2 * HOUR_MS + 1, (3, 50));
        notes.note_hole(5 * HOUR_MS..5 * HOUR_MS, (4, 60));
        let waiting = notes.waiting();
        assert_eq!(waiting.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 5].map(|h| h * HOUR_MS));
        assert!(waiting.values().all(|dirty| dirty.hole));
        assert_eq!(waiting[&0].positions, [(3, 50)].into());
    }

    #[test]
    fn what_is_noted_while_the_rest_is_published_waits_on() {
        let notes = DirtyNotes::default();
        notes.note_hole(0..0, (0, 1));
        notes.note_hole(HOUR_MS..HOUR_MS, (0, 1));
        let published = notes.waiting();
        notes.note_hole(0..0, (0, 2));
        notes.published(&published);
        assert_eq!(notes.waiting().keys().collect::<Vec<_>>(), [&0]);
    }
}
