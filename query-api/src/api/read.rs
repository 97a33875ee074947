//! From a question to sums: the steps that all answers about counts share.

use std::sync::Arc;

use tally_model::bucket::Bucket;
use tally_model::range::{Availability, Run, TimeRange};
use tally_model::types::TypeId;
use tally_model::vector::{CountVector, VectorError};
use tally_sinks::marks::Marks;
use tally_sinks::registry::RegistrySnapshot;

use super::negotiate::KnownTags;
use super::respond::internal;
use super::{QueryApi, store_problem};
use crate::answer::{Envelope, Window};
use crate::ask::Format;
use crate::problem::{Code, Problem};
use crate::reader::{ReadError, Snapshot};
use crate::resolve::{Facts, Resolved, resolve};
use crate::shown::{Cells, View};

/// How often a read is begun before it is given up. A row is put at most every few seconds, so the
/// second attempt nearly always succeeds.
const READS_MAX: usize = 5;

/// A question with everything about it that does not depend on what is stored.
pub(super) struct Question<'a> {
    pub(super) now_ms: i64,
    pub(super) availability: Availability,
    pub(super) window: Window,
    pub(super) answered: TimeRange,
    pub(super) runs: Vec<Run>,
    /// What the asker may see.
    pub(super) view: View,
    /// What shapes the answer beside the window.
    pub(super) shape: &'a [&'a str],
    pub(super) format: Format,
    pub(super) known: &'a KnownTags,
}

/// What was read for a question.
pub(super) enum Outcome<A> {
    /// The client has the answer already.
    Unchanged { tag: String },
    /// The sums, and all that is known about them.
    Read(Box<Reading<A>>),
}

pub(super) struct Reading<A> {
    pub(super) tag: String,
    pub(super) envelope: Envelope,
    pub(super) facts: Facts,
    pub(super) resolved: Resolved,
    pub(super) registry: Arc<RegistrySnapshot>,
    pub(super) sums: A,
}

/// Why one attempt gave nothing.
enum Attempt {
    Read(ReadError),
    /// The question may not be answered as it is.
    Refused(Problem),
}

impl<E: Into<ReadError>> From<E> for Attempt {
    fn from(why: E) -> Self {
        Self::Read(why.into())
    }
}

impl QueryApi {
    /// Reads the rows of a question: again from fresh manifests when a row changed meanwhile.
    pub(super) fn read<A>(
        &self,
        question: &Question<'_>,
        zeros: impl Fn() -> A,
        add: impl Fn(&mut A, Bucket, &CountVector) -> Result<(), VectorError>,
    ) -> Result<Outcome<A>, Problem> {
        for _ in 0..READS_MAX {
            match self.read_once(question, &zeros, &add) {
                Ok(outcome) => return Ok(outcome),
                Err(Attempt::Read(ReadError::Moved { .. })) => self.metrics.rereads.inc(),
                Err(Attempt::Read(ReadError::Store(why))) => return Err(store_problem(&why)),
                Err(Attempt::Read(ReadError::Overflow(why))) => return Err(internal(&why)),
                Err(Attempt::Refused(problem)) => return Err(problem),
            };
        }
        Err(Problem::new(Code::Unavailable, "rows kept changing while they were read; try again"))
    }

    fn read_once<A>(
        &self,
        question: &Question<'_>,
        zeros: impl Fn() -> A,
        add: impl Fn(&mut A, Bucket, &CountVector) -> Result<(), VectorError>,
    ) -> Result<Outcome<A>, Attempt> {
        let snapshot = self.reader.snapshot()?;
        let facts = facts(question, &snapshot.marks);
        question.view.check_final(question.answered, &facts).map_err(Attempt::Refused)?;
        let resolved = self.resolved(question, &facts, &snapshot)?;
        let registry =
            self.registry_for(usize::try_from(resolved.width()).unwrap_or(usize::MAX))?;
        let window = question.window.clone();
        let mut envelope = Envelope::new(window, question.answered, &facts, &resolved);
        envelope.suppressed_below = question.view.below();
        let tag = envelope.entity_tag(question.shape, question.format, registry.version());
        if question.known.has(&tag) {
            return Ok(Outcome::Unchanged { tag });
        }
        let mut sums = zeros();
        let mut cells = Cells::new(question.view);
        let visited = self
            .reader
            .visit(&snapshot, &resolved.parts, |part, vector| {
                cells.add(part, vector, |bucket, vector| add(&mut sums, bucket, vector))
            })
            .inspect_err(|why| {
                if matches!(why, ReadError::Moved { .. }) {
                    self.reader.forget(&snapshot);
                }
            })?;
        cells.finish(|bucket, vector| add(&mut sums, bucket, vector))?;
        self.metrics.rows_read.inc_by(visited.rows_read);
        self.metrics.cache_hits.inc_by(visited.cache_hits);
        self.metrics.cache_misses.inc_by(visited.cache_misses);
        let cache_bytes = i64::try_from(self.reader.cache_bytes()).unwrap_or(i64::MAX);
        self.metrics.cache_bytes.set(cache_bytes);
        Ok(Outcome::Read(Box::new(Reading { tag, envelope, facts, resolved, registry, sums })))
    }

    /// The rows of a question as its view needs them.
    fn resolved(
        &self,
        question: &Question<'_>,
        facts: &Facts,
        snapshot: &Snapshot,
    ) -> Result<Resolved, ReadError> {
        let dirty = self.reader.dirty(snapshot, question.answered)?;
        let load = |period| self.reader.manifest(snapshot, period);
        let resolved = match question.view {
            View::Raw => resolve(&question.runs, facts, load)?,
            View::Shown { below } => {
                let days = self.reader.shown_days(snapshot, &question.runs, below)?;
                days.mark(resolve(&days.split(&question.runs), facts, load)?)
            }
        };
        Ok(Resolved { dirty, ..resolved })
    }

    /// The registry as far as vectors of this width need it: a type that another process has
    /// registered can be counted before this one's timer has read its name.
    fn registry_for(&self, width: usize) -> Result<Arc<RegistrySnapshot>, ReadError> {
        let snapshot = self.registry.snapshot();
        if snapshot.width() >= width {
            return Ok(snapshot);
        }
        self.registry.refresh()?;
        Ok(self.registry.snapshot())
    }
}

const fn facts(question: &Question<'_>, marks: &Marks) -> Facts {
    Facts {
        now_ms: question.now_ms,
        availability: question.availability,
        origin_ms: marks.origin_ms,
        retired_up_to_ms: marks.retired_up_to_ms,
        readable_up_to_ms: marks.readable_up_to_ms,
    }
}

pub(super) fn name_of(registry: &RegistrySnapshot, slot: TypeId) -> Option<&str> {
    registry.by_id(slot).map(|entry| entry.name.as_str())
}
