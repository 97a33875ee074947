//! The minutes that the writer still has to do with: plain state.

use std::collections::{BTreeMap, BTreeSet};

use tally_model::revision::Revision;
use tally_model::vector::CountVector;

/// Where the newest vector of a minute stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MinuteState {
    /// It waits to be compared and put.
    Waiting,
    /// It waits for the replay to catch up.
    Held,
    /// It is stored, or never will be; the store holds at least this revision.
    Settled(Option<Revision>),
}

#[derive(Debug)]
struct Minute {
    vector: CountVector,
    state: MinuteState,
    /// Whether some vector of it was settled: then readers may look at it.
    readable: bool,
}

/// The newest vector of each minute that is not yet retired and done with. Minutes are named by
/// their start in ms since the Unix epoch.
#[derive(Debug, Default)]
pub(super) struct Minutes {
    by_start: BTreeMap<i64, Minute>,
    waiting: BTreeSet<i64>,
    held: BTreeSet<i64>,
    waiting_bytes: usize,
}

impl Minutes {
    /// Takes the newest vector of a minute, which then waits.
    pub(super) fn insert(&mut self, start_ms: i64, vector: CountVector) {
        let old = self.by_start.remove(&start_ms);
        if let Some(old) = &old {
            self.unlist(start_ms, old);
        }
        let readable = old.is_some_and(|old| old.readable);
        self.list(start_ms, Minute { vector, state: MinuteState::Waiting, readable });
    }

    /// Moves a minute to another state; one that is not there stays away.
    pub(super) fn set(&mut self, start_ms: i64, state: MinuteState) {
        if let Some(mut minute) = self.by_start.remove(&start_ms) {
            self.unlist(start_ms, &minute);
            minute.state = state;
            self.list(start_ms, minute);
        }
    }

    /// Lets every held minute wait to be put.
    pub(super) fn release_held(&mut self) {
        for start_ms in self.held.clone() {
            self.set(start_ms, MinuteState::Waiting);
        }
    }

    /// Forgets a minute.
    pub(super) fn remove(&mut self, start_ms: i64) {
        if let Some(minute) = self.by_start.remove(&start_ms) {
            self.unlist(start_ms, &minute);
        }
    }

    /// The newest vector of a minute.
    pub(super) fn vector(&self, start_ms: i64) -> Option<&CountVector> {
        self.by_start.get(&start_ms).map(|minute| &minute.vector)
    }

    /// The oldest `count` minutes that wait.
    pub(super) fn oldest_waiting(&self, count: usize) -> Vec<i64> {
        self.waiting.iter().copied().take(count).collect()
    }

    /// The settled minutes that start before `up_to_ms`, ascending, with the revision that the
    /// store must hold.
    pub(super) fn settled_before(&self, up_to_ms: i64) -> Vec<(i64, Option<Revision>)> {
        let before = self.by_start.range(..up_to_ms);
        before
            .filter_map(|(start_ms, minute)| match minute.state {
                MinuteState::Settled(revision) => Some((*start_ms, revision)),
                MinuteState::Waiting | MinuteState::Held => None,
            })
            .collect()
    }

    /// The first minute that is still here.
    pub(super) fn first(&self) -> Option<i64> {
        self.by_start.keys().next().copied()
    }

    /// The first minute that no reader may look at yet.
    pub(super) fn first_unreadable(&self) -> Option<i64> {
        let mut minutes = self.by_start.iter();
        minutes.find(|(_, minute)| !minute.readable).map(|(start_ms, _)| *start_ms)
    }

    /// The oldest minute that waits.
    pub(super) fn first_waiting(&self) -> Option<i64> {
        self.waiting.first().copied()
    }

    /// How many minutes wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// How many minutes are held.
    pub(super) fn held(&self) -> usize {
        self.held.len()
    }

    /// Bytes of the vectors that wait. Held ones do not count: they wait for the sources, so the
    /// sources must not wait for them.
    pub(super) const fn waiting_bytes(&self) -> usize {
        self.waiting_bytes
    }

    fn list(&mut self, start_ms: i64, mut minute: Minute) {
        match minute.state {
            MinuteState::Waiting => {
                self.waiting.insert(start_ms);
                self.waiting_bytes += minute.vector.width() * size_of::<u64>();
            }
            MinuteState::Held => {
                self.held.insert(start_ms);
            }
            MinuteState::Settled(_) => minute.readable = true,
        }
        self.by_start.insert(start_ms, minute);
    }

    fn unlist(&mut self, start_ms: i64, minute: &Minute) {
        match minute.state {
            MinuteState::Waiting => {
                self.waiting.remove(&start_ms);
                self.waiting_bytes -= minute.vector.width() * size_of::<u64>();
            }
            MinuteState::Held => {
                self.held.remove(&start_ms);
            }
            MinuteState::Settled(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(count: u64) -> CountVector {
        CountVector::from_counts(vec![0, count])
    }

    #[test]
    fn a_minute_stands_on_one_list_whatever_happens_to_it() {
        use MinuteState::{Held, Settled, Waiting};
        let mut minutes = Minutes::default();
        let shape = |minutes: &Minutes| {
            (minutes.waiting(), minutes.held(), minutes.waiting_bytes(), minutes.first_unreadable())
        };
        minutes.insert(0, vector(1));
        minutes.insert(0, vector(2));
        assert_eq!(shape(&minutes), (1, 0, 16, Some(0)));
        minutes.set(0, Held);
        assert_eq!(shape(&minutes), (0, 1, 0, Some(0)));
        minutes.release_held();
        assert_eq!(shape(&minutes), (1, 0, 16, Some(0)));
        minutes.set(0, Settled(None));
        assert_eq!(shape(&minutes), (0, 0, 0, None));
        minutes.set(0, Waiting);
        assert_eq!(shape(&minutes), (1, 0, 16, None), "what readers have seen stays readable");
        assert_eq!(minutes.settled_before(1), []);
        minutes.set(0, Held);
        minutes.insert(0, vector(3));
        assert_eq!(shape(&minutes), (1, 0, 16, None), "a newer vector need not be held");
        minutes.remove(0);
        assert_eq!(shape(&minutes), (0, 0, 0, None));
        minutes.set(0, Waiting);
        assert_eq!(minutes.first(), None);
    }
}
