//! The cut of a checkpoint: one moment in the flow at which every shard is frozen.
//!
//! A cut is announced as an epoch that no source has begun. Each source ends what it is at, says at
//! exactly that epoch how far it has read, and reads nothing more until the cut has passed the
//! dedup stage. So when a worker's inputs have passed the epoch, it has taken in everything before
//! the cut and nothing after it, whatever crossed between workers, and freezes its shards in one
//! step. What all sources and workers gave is handed over for upload, which goes on beside the flow.
//!
//! A source that has nothing more to read leaves: its last positions stand for every later cut.
//!
//! Invariant P-3 of ARCHITECTURE.md.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use tally_eventlog::{Offset, Partition};

use crate::Epoch;
use crate::frozen::FrozenShard;
use crate::savepoints::SavepointRequest;
use crate::totals::Totals;

#[cfg(test)]
mod tests;

/// What a cut is made for.
#[derive(Debug)]
pub(crate) enum Purpose {
    /// Time has passed.
    Regular,
    /// Somebody asked for a savepoint.
    Savepoint(SavepointRequest),
    /// Nothing will be read after it.
    Last,
}

/// What one source says at a cut.
#[derive(Clone, Debug, Default)]
pub(crate) struct SourceCut {
    /// The next offset to read, by partition.
    pub(crate) next_offsets: Vec<(Partition, Offset)>,
    /// What became of the source's records before they reached a shard, since the run started.
    pub(crate) totals: Totals,
}

/// What one worker says at a cut.
#[derive(Debug)]
pub(crate) struct WorkerCut {
    /// The global watermark, which is the same for all workers.
    pub(crate) watermark_ms: Option<i64>,
    /// Its shards.
    pub(crate) shards: Vec<FrozenShard>,
}

/// A cut to be uploaded.
#[derive(Debug)]
pub(crate) struct Frozen {
    pub(crate) epoch: Epoch,
    pub(crate) purpose: Purpose,
    pub(crate) watermark_ms: Option<i64>,
    pub(crate) next_offsets: BTreeMap<Partition, Offset>,
    pub(crate) totals: Totals,
    /// All shards, in ascending order.
    pub(crate) shards: Vec<FrozenShard>,
}

/// The cuts of one run. Shared by its sources, its workers and the thread that uploads.
#[derive(Debug)]
pub(crate) struct Cuts {
    /// Without checkpoints, a source ends when it has nothing more to do.
    enabled: bool,
    every_ms: i64,
    /// The announced epoch; 0 = none.
    announced: AtomicU64,
    /// Before this no regular cut is due, monotonic time. Looked at for each batch that is read.
    due_at_ms: AtomicI64,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    /// No source has begun a later epoch.
    highest: Epoch,
    under_way: Option<UnderWay>,
    /// By worker: what the sources that have left said.
    left: Vec<Option<SourceCut>>,
    ready: VecDeque<Frozen>,
    uploading: bool,
    last_announced: bool,
    ended: bool,
}

#[derive(Debug)]
struct UnderWay {
    epoch: Epoch,
    purpose: Purpose,
    /// By worker.
    sources: Vec<Option<SourceCut>>,
    workers: Vec<Option<WorkerCut>>,
}

impl Cuts {
    /// No cut so far. `now_ms` is monotonic time: the first regular cut comes `every_ms` later.
    pub(crate) fn new(enabled: bool, workers: usize, every_ms: i64, now_ms: i64) -> Self {
        let state = State {
            highest: 0,
            under_way: None,
            left: vec![None; workers],
            ready: VecDeque::new(),
            uploading: false,
            last_announced: false,
            ended: false,
        };
        Self {
            enabled,
            every_ms,
            announced: AtomicU64::new(0),
            due_at_ms: AtomicI64::new(now_ms.saturating_add(every_ms)),
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// Whether there are checkpoints at all.
    pub(crate) const fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// The epoch of a source's next stamp after `last`: exactly that of an announced cut before any
    /// later one.
    pub(crate) fn next_stamp(&self, now: Epoch, last: Epoch) -> Epoch {
        let mut state = self.lock();
        let next = match &state.under_way {
            Some(cut) if last < cut.epoch => cut.epoch,
            Some(_) | None => now.max(last + 1),
        };
        state.highest = state.highest.max(next);
        next
    }

    /// The epoch of the cut under way.
    pub(crate) fn announced(&self) -> Option<Epoch> {
        let epoch = self.announced.load(Ordering::Acquire);
        (epoch != 0).then_some(epoch)
    }

    /// Announces a regular cut if one is due: a period after the last one, and never while an
    /// earlier one is under way or being uploaded.
    pub(crate) fn announce_regular(&self, now_ms: i64) {
        if now_ms < self.due_at_ms.load(Ordering::Relaxed) || self.announced().is_some() {
            return;
        }
        let mut state = self.lock();
        let busy = state.uploading || !state.ready.is_empty() || state.under_way.is_some();
        // Another source may have been faster.
        if !busy && now_ms >= self.due_at_ms.load(Ordering::Relaxed) {
            self.announce(&mut state, Purpose::Regular, now_ms);
        }
    }

    /// Announces the cut of a savepoint; gives the request back while another cut is under way.
    pub(crate) fn announce_savepoint(
        &self,
        request: SavepointRequest,
        now_ms: i64,
    ) -> Option<SavepointRequest> {
        let mut state = self.lock();
        if state.under_way.is_some() || state.last_announced {
            return Some(request);
        }
        self.announce(&mut state, Purpose::Savepoint(request), now_ms);
        None
    }

    /// Announces the last cut as soon as no other is under way; once.
    pub(crate) fn announce_last(&self, now_ms: i64) {
        let mut state = self.lock();
        if state.under_way.is_none() && !state.last_announced {
            state.last_announced = true;
            self.announce(&mut state, Purpose::Last, now_ms);
        }
    }

    /// Whether nothing will be read after the cut under way.
    pub(crate) fn is_last(&self) -> bool {
        self.lock().last_announced
    }

    fn announce(&self, state: &mut State, purpose: Purpose, now_ms: i64) {
        let workers = state.left.len();
        let epoch = state.highest + 1;
        self.due_at_ms.store(now_ms.saturating_add(self.every_ms), Ordering::Relaxed);
        state.under_way = Some(UnderWay {
            epoch,
            purpose,
            sources: state.left.clone(),
            workers: (0..workers).map(|_| None).collect(),
        });
        self.announced.store(epoch, Ordering::Release);
    }

    /// Takes what a source says at the cut under way.
    pub(crate) fn take_source(&self, worker: usize, cut: SourceCut) {
        let mut state = self.lock();
        if let Some(under_way) = &mut state.under_way {
            under_way.sources[worker] = Some(cut);
        }
        self.complete(&mut state);
    }

    /// Takes the last word of a source that has nothing more to read. Returns `false` to the only
    /// one that is left: it has to stay for the last cut.
    pub(crate) fn leave(&self, worker: usize, cut: SourceCut) -> bool {
        let mut state = self.lock();
        let others_left = (0..).zip(&state.left).all(|(of, left)| of == worker || left.is_some());
        if others_left {
            return false;
        }
        if let Some(under_way) = &mut state.under_way {
            under_way.sources[worker] = Some(cut.clone());
        }
        state.left[worker] = Some(cut);
        self.complete(&mut state);
        true
    }

    /// Takes the frozen shards of a worker at the cut under way.
    pub(crate) fn take_worker(&self, worker: usize, cut: WorkerCut) {
        let mut state = self.lock();
        if let Some(under_way) = &mut state.under_way {
            under_way.workers[worker] = Some(cut);
        }
        self.complete(&mut state);
    }

    /// Hands the cut under way over once everybody has given their part.
    fn complete(&self, state: &mut State) {
        let is_whole = state.under_way.as_ref().is_some_and(|cut| {
            cut.sources.iter().all(Option::is_some) && cut.workers.iter().all(Option::is_some)
        });
        if !is_whole {
            return;
        }
        let Some(UnderWay { epoch, purpose, sources, workers }) = state.under_way.take() else {
            return;
        };
        let mut frozen = Frozen {
            epoch,
            purpose,
            watermark_ms: None,
            next_offsets: BTreeMap::new(),
            totals: Totals::default(),
            shards: Vec::new(),
        };
        for source in sources.into_iter().flatten() {
            frozen.next_offsets.extend(source.next_offsets);
            frozen.totals += source.totals;
        }
        for worker in workers.into_iter().flatten() {
            frozen.watermark_ms = frozen.watermark_ms.max(worker.watermark_ms);
            frozen.shards.extend(worker.shards);
        }
        frozen.shards.sort_by_key(|frozen| frozen.shard);
        state.ready.push_back(frozen);
        self.announced.store(0, Ordering::Release);
        self.changed.notify_all();
    }

    /// Waits for the next cut to upload; `None` once the run has ended and all are uploaded.
    pub(crate) fn next(&self) -> Option<Frozen> {
        let mut state = self.lock();
        state.uploading = false;
        let idle = |state: &mut State| state.ready.is_empty() && !state.ended;
        let mut state =
            self.changed.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner);
        let next = state.ready.pop_front();
        state.uploading = next.is_some();
        next
    }

    /// Says that no further cut will come. With `abandon`, those that wait are dropped as well.
    pub(crate) fn end(&self, abandon: bool) {
        let mut state = self.lock();
        state.ended = true;
        state.under_way = None;
        if abandon {
            state.ready.clear();
        }
        drop(state);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
