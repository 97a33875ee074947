//! The source operator: reads the worker's partitions and hands them out under epochs.
//!
//! Routing: none; batches go to their shard's owner in the next operator. Time: the *stamp* at
//! hand, an epoch that lasts one tick or [`STAMP_RECORDS_MAX`] records and is always above the
//! last one. Emits: batches as they are read; one watermark report at each stamp's end. Holds: one
//! capability, for the stamp at hand; lets go of it when there is nothing more to read or the run
//! is stopped. At a cut (see [`crate::cuts`]) it takes exactly the announced epoch as a stamp, and
//! reads nothing from then on until the cut has passed the dedup stage.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tally_eventlog::LogError;
use tally_operators::watermark::WatermarkReport;
use timely::container::CapacityContainerBuilder;
use timely::dataflow::operators::Capability;
use timely::dataflow::operators::generic::builder_rc::OperatorBuilder;
use timely::dataflow::operators::generic::{OutputBuilder, OutputBuilderSession};
use timely::dataflow::operators::probe::Handle;
use timely::dataflow::{Scope, StreamVec};
use timely::scheduling::Activator;

use crate::Epoch;
use crate::cuts::{Cuts, SourceCut};
use crate::error::CountError;
use crate::holes;
use crate::options::Stages;
use crate::reading::{EVENT_BYTES, Reading, ShardBatch};
use crate::shared::Shared;
use crate::totals::Totals;

/// A stamp ends after so many records, however fast they come.
const STAMP_RECORDS_MAX: usize = 65_536;
/// How long the source waits before it looks again whether there is room.
const FULL_PAUSE: Duration = Duration::from_millis(1);
/// How long it waits, at most, before it looks again for new records.
const IDLE_PAUSE_MAX: Duration = Duration::from_millis(100);

type Session<'a, D> = OutputBuilderSession<'a, Epoch, CapacityContainerBuilder<Vec<D>>>;

/// What a source is made of.
pub(crate) struct Source<'scope> {
    /// Decoded events.
    pub(crate) batches: StreamVec<'scope, Epoch, ShardBatch>,
    /// What the worker says about its watermark.
    pub(crate) reports: StreamVec<'scope, Epoch, WatermarkReport>,
    /// Wakes the source.
    pub(crate) activator: Activator,
}

/// Makes the source of this worker. `done` must be attached where records are done with.
pub(crate) fn source<'scope>(
    scope: Scope<'scope, Epoch>,
    shared: &Arc<Shared>,
    reading: Reading,
    done: Handle<Epoch>,
) -> Source<'scope> {
    let mut builder = OperatorBuilder::new("Source".to_owned(), scope);
    let activator = scope.activator_for(Rc::clone(&builder.operator_info().address));
    let wake = activator.clone();
    let (batches_out, batches) = builder.new_output();
    let (reports_out, reports) = builder.new_output();
    let mut batches_out = OutputBuilder::<_, CapacityContainerBuilder<_>>::from(batches_out);
    let mut reports_out = OutputBuilder::<_, CapacityContainerBuilder<_>>::from(reports_out);
    let mut state = SourceState::new(Arc::clone(shared), reading, done);
    builder.build(move |capabilities| {
        let mut held = Some(capabilities);
        move |_frontiers| {
            let Some(capabilities) = &mut held else {
                return;
            };
            let (mut batches, mut reports) = (batches_out.activate(), reports_out.activate());
            state.begin_stamp(capabilities);
            let next = state.step(
                |read| send(&mut batches, &capabilities[0], read),
                |report| reports.session(&capabilities[1]).give(report),
            );
            state.begin_stamp(capabilities);
            match next {
                Ok(Next::Now) => wake.activate(),
                Ok(Next::After(pause)) => wake.activate_after(pause),
                Ok(Next::Never) => held = None,
                Err(error) => {
                    held = None;
                    state.shared.fail(error);
                }
            }
        }
    });
    Source { batches, reports, activator }
}

fn send(
    out: &mut Session<'_, ShardBatch>,
    capability: &Capability<Epoch>,
    batches: &mut dyn Iterator<Item = ShardBatch>,
) {
    out.session(capability).give_iterator(batches);
}

/// When the source wants to run again.
enum Next {
    Now,
    After(Duration),
    Never,
}

struct SourceState {
    shared: Arc<Shared>,
    reading: Reading,
    stamp: Stamp,
    on_the_way: OnTheWay,
    /// The cut that has to pass before more is read.
    waiting_for: Option<Epoch>,
    /// What became of its records before they reached a shard, since the run started.
    totals: Totals,
    done: Handle<Epoch>,
    idle_pause: Duration,
}

impl SourceState {
    fn new(shared: Arc<Shared>, reading: Reading, done: Handle<Epoch>) -> Self {
        let tick = u64::try_from(shared.options.epoch_ms).unwrap_or(0).max(1);
        Self {
            shared,
            reading,
            stamp: Stamp::default(),
            on_the_way: OnTheWay::default(),
            waiting_for: None,
            totals: Totals::default(),
            done,
            idle_pause: Duration::from_millis(tick).min(IDLE_PAUSE_MAX),
        }
    }

    /// Begins the next stamp if the last one has ended: from then on that one can pass.
    fn begin_stamp(&mut self, capabilities: &mut [Capability<Epoch>]) {
        self.stamp.begin(self.shared.epochs.now(), &self.shared.cuts);
        for capability in capabilities {
            capability.downgrade(&self.stamp.epoch);
        }
    }

    /// Takes part in the cut at hand, or reads once if there is room; ends the stamp if it is due.
    fn step(
        &mut self,
        send: impl FnOnce(&mut dyn Iterator<Item = ShardBatch>),
        report: impl FnOnce(WatermarkReport),
    ) -> Result<Next, CountError> {
        let stopped = self.shared.parts.stop.is_stopped();
        if stopped && !self.shared.cuts.is_enabled() {
            return Ok(Next::Never);
        }
        self.on_the_way.settle(|epoch| self.done.less_equal(&epoch));
        self.announce(stopped);
        if let Some(cut) = self.shared.cuts.announced().filter(|cut| self.stamp.epoch <= *cut) {
            report(self.reading.report()?);
            self.stamp.ended = true;
            return Ok(if self.stamp.epoch == cut { self.take_part(cut) } else { Next::Now });
        }
        self.waiting_for = self.waiting_for.filter(|cut| self.done.less_equal(cut));
        let full = self.is_full() || self.waiting_for.is_some();
        let may_read = !full && !stopped && !self.shared.outbox.is_full();
        let records = if may_read { self.read(send)? } else { 0 };
        let exhausted = self.reading.is_exhausted();
        // A full source must end its stamp, or nothing of it would ever be done with.
        let must_end = self.stamp.records > 0 && self.is_full();
        if exhausted || must_end || self.stamp.is_due(&self.shared) {
            report(self.reading.report()?);
            self.stamp.ended = true;
        }
        Ok(match (exhausted, records, full) {
            (true, _, _) => self.leave(),
            (false, 0, true) => Next::After(FULL_PAUSE),
            (false, 0, false) => Next::After(self.idle_pause),
            (false, _, _) => Next::Now,
        })
    }

    /// Reads once and sends what was read. Returns how many records there were; none if retention
    /// was faster and reading goes on behind what is gone.
    fn read(
        &mut self,
        send: impl FnOnce(&mut dyn Iterator<Item = ShardBatch>),
    ) -> Result<usize, CountError> {
        let read = self.reading.read();
        // Also what came before a failure is read.
        let tally = self.reading.take_tally();
        self.totals += tally;
        self.shared.parts.progress.add(self.reading.worker(), &tally);
        let sent = self.hand_out(send);
        self.on_the_way.add(self.stamp.epoch, sent);
        let records = match read {
            Err(error @ LogError::OutOfRange { .. }) => {
                holes::pass_over(&self.shared, &mut self.reading, error)?;
                0
            }
            read => read?,
        };
        self.stamp.records += records;
        Ok(records)
    }

    /// Announces a cut if one is due. Whichever source sees it first does.
    fn announce(&self, stopped: bool) {
        let (cuts, parts) = (&self.shared.cuts, &self.shared.parts);
        if !cuts.is_enabled() {
            return;
        }
        let now_ms = parts.clock.monotonic_ms();
        if stopped {
            cuts.announce_last(now_ms);
        } else if let Some(request) = parts.savepoints.take() {
            if let Some(request) = cuts.announce_savepoint(request, now_ms) {
                parts.savepoints.put_back(request);
            }
        } else {
            cuts.announce_regular(now_ms);
        }
    }

    /// Says at the cut how far this source has read.
    fn take_part(&mut self, cut: Epoch) -> Next {
        let is_last = self.shared.cuts.is_last();
        self.shared.cuts.take_source(self.reading.worker(), self.cut());
        self.waiting_for = Some(cut);
        if is_last { Next::Never } else { Next::Now }
    }

    /// Ends the source, which has nothing more to read; the last one stays for the last cut.
    fn leave(&self) -> Next {
        let cuts = &self.shared.cuts;
        if !cuts.is_enabled() || cuts.leave(self.reading.worker(), self.cut()) {
            return Next::Never;
        }
        cuts.announce_last(self.shared.parts.clock.monotonic_ms());
        Next::After(FULL_PAUSE)
    }

    fn cut(&self) -> SourceCut {
        SourceCut { next_offsets: self.reading.next_offsets(), totals: self.totals }
    }

    /// Sends what was read; returns the number of events sent.
    fn hand_out(&mut self, send: impl FnOnce(&mut dyn Iterator<Item = ShardBatch>)) -> usize {
        let mut events = 0;
        let mut batches = self.reading.take_batches().inspect(|batch| events += batch.ids.len());
        match self.shared.options.stages {
            Stages::All | Stages::Dedup => {
                send(&mut batches);
                drop(batches);
                events
            }
            Stages::Decode => {
                batches.for_each(drop);
                0
            }
        }
    }

    fn is_full(&self) -> bool {
        let options = &self.shared.options;
        self.on_the_way.events >= options.budget_records
            || self.on_the_way.events.saturating_mul(EVENT_BYTES) >= options.budget_bytes
    }
}

/// The stamp at hand.
#[derive(Debug, Default)]
struct Stamp {
    epoch: Epoch,
    records: usize,
    ended: bool,
}

impl Stamp {
    /// Begins the next stamp if the one at hand has ended or none has begun.
    fn begin(&mut self, now: Epoch, cuts: &Cuts) {
        if self.ended || self.epoch == 0 {
            *self = Self { epoch: cuts.next_stamp(now, self.epoch), records: 0, ended: false };
        }
    }

    fn is_due(&self, shared: &Shared) -> bool {
        let tick = Epoch::try_from(shared.options.epoch_ms).unwrap_or(0);
        self.records >= STAMP_RECORDS_MAX || shared.epochs.now() >= self.epoch + tick
    }
}

/// Events that were sent and are not yet done with, by stamp.
#[derive(Debug, Default)]
struct OnTheWay {
    by_stamp: VecDeque<(Epoch, usize)>,
    events: usize,
}

impl OnTheWay {
    fn add(&mut self, epoch: Epoch, events: usize) {
        self.events += events;
        match self.by_stamp.back_mut() {
            Some((last, sum)) if *last == epoch => *sum += events,
            Some(_) | None => self.by_stamp.push_back((epoch, events)),
        }
    }

    /// Forgets what is done with.
    fn settle(&mut self, is_under_way: impl Fn(Epoch) -> bool) {
        while let Some((epoch, events)) = self.by_stamp.front()
            && !is_under_way(*epoch)
        {
            self.events -= events;
            self.by_stamp.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_is_always_above_the_last_even_when_time_stands_still() {
        let cuts = Cuts::new(true, 1, 0, 0);
        let mut stamp = Stamp::default();
        stamp.begin(500, &cuts);
        assert_eq!(stamp.epoch, 500);
        stamp.begin(900, &cuts);
        assert_eq!(stamp.epoch, 500, "a stamp lasts until it is ended");
        stamp.ended = true;
        stamp.begin(500, &cuts);
        assert_eq!(stamp.epoch, 501);
    }

    #[test]
    fn what_is_on_the_way_is_counted_until_its_stamp_is_done_with() {
        let mut on_the_way = OnTheWay::default();
        for (epoch, events) in [(1, 10), (1, 5), (2, 7)] {
            on_the_way.add(epoch, events);
        }
        assert_eq!(on_the_way.events, 22);
        on_the_way.settle(|epoch| epoch >= 2);
        assert_eq!(on_the_way.events, 7);
        on_the_way.settle(|_| false);
        assert_eq!(on_the_way.events, 0);
    }
}
