//! What to do with a minute's vector, given what is stored: a pure function.
//!
//! Invariant F-2 of ARCHITECTURE.md.

use tally_model::bucket::Bucket;
use tally_model::revision::{Generation, RevisionClass};
use tally_model::vector::CountVector;
use tally_sinks::counts::Row;

#[cfg(test)]
mod tests;

/// What the decision depends on besides the minute itself. Times in ms since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The generation of this run.
    pub(crate) generation: Generation,
    /// The retired-up-to mark when the run started.
    pub(crate) retired_at_start_ms: Option<i64>,
    /// Minutes that start before this are not kept any more.
    pub(crate) kept_from_ms: i64,
    /// Whether the log has been read to where it ended when the run started.
    pub(crate) caught_up: bool,
    /// The present.
    pub(crate) now_ms: i64,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Put it with a revision of this time.
    Put {
        /// Time of the revision.
        revision_ms: i64,
        /// When the content last changed.
        written_at_ms: i64,
    },
    /// Nothing: the row stands as it should.
    Unchanged,
    /// Wait for the newest vector until the replay has caught up: until then it may be short of
    /// what an earlier run has counted and readers have seen.
    Hold,
    /// Do not put it: it would lower a stored count, so records are missing. An alarm.
    Withhold,
    /// Do not put it: a recomputed row stands there.
    Refused,
    /// Do not put it: minutes that old are not kept.
    PastRetention,
    /// Stop: a later start of the deployment has put this row.
    Fenced(Generation),
}

/// Decides about the vector of `minute` when `stored` is what the store holds.
pub(crate) fn decide(
    standing: &Standing,
    minute: Bucket,
    vector: &CountVector,
    stored: Option<&Row>,
) -> Decision {
    if minute.start_ms() < standing.kept_from_ms {
        return Decision::PastRetention;
    }
    let Some(Row { small, vector: stored }) = stored else {
        return Decision::Put { revision_ms: standing.now_ms, written_at_ms: standing.now_ms };
    };
    match small.revision.class() {
        RevisionClass::Recomputed => return Decision::Refused,
        RevisionClass::Streaming => {}
    }
    let generation = small.revision.generation();
    if generation > standing.generation {
        return Decision::Fenced(generation);
    }
    let ours = generation == standing.generation;
    let revision_ms = standing.now_ms.max(small.revision.time_ms() + 1);
    if vector == stored {
        let retired = standing.retired_at_start_ms.is_some_and(|mark| minute.end_ms() <= mark);
        if ours || retired {
            return Decision::Unchanged;
        }
        return Decision::Put { revision_ms, written_at_ms: small.written_at_ms };
    }
    // Our own earlier vectors only ever grow, so they need not wait.
    if !standing.caught_up && !ours {
        return Decision::Hold;
    }
    if vector.lowers(stored) {
        return Decision::Withhold;
    }
    let written_at_ms = standing.now_ms.max(small.written_at_ms + 1);
    Decision::Put { revision_ms, written_at_ms }
}
