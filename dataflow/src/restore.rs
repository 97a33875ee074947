//! How a run begins: from which checkpoint, at which offsets, with which shards.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tally_checkpoints::CheckpointError;
use tally_checkpoints::manifest::DataObject;
use tally_checkpoints::reader::Restored;
use tally_checkpoints::writer::{Writer, WriterOptions};
use tally_eventlog::Offset;
use tally_model::bucket::{DAY_MS, Granularity};
use tally_model::ids::Shard;
use tally_operators::dedup::{DedupOptions, SegmentError, SegmentName};
use tally_sinks::marks;

use crate::error::{CountError, MissingRange};
use crate::frozen::{FrozenShard, StateError};
use crate::holes::{self, Hole};
use crate::late_hours::LateHours;
use crate::options::{CheckpointParts, CountOptions, CountParts};
use crate::shard::ShardState;
use crate::shared::{Shared, Start};
use crate::totals::Totals;

/// How things stand at the start, and who writes checkpoints from now on.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) start: Start,
    /// The writer, and the late hours of the checkpoint that is restored.
    pub(crate) checkpoints: Option<(Writer, LateHours)>,
    /// Records that are gone and were never counted.
    pub(crate) holes: Vec<Hole>,
}

/// Finds the checkpoint to start from and sees whether the log holds everything from there on.
/// Changes nothing but that earlier starts are stopped, so it can be repeated.
///
/// # Errors
/// [`CountError`].
pub(crate) fn open(parts: &CountParts, options: &CountOptions) -> Result<Opened, CountError> {
    let marks = marks::read(parts.meta.as_ref()).map_err(CountError::Store)?;
    let mut restored = None;
    let mut checkpoints = None;
    if let Some(kept) = &parts.checkpoints {
        let (writer, found) = open_writer(parts, options, kept)?;
        let late_hours = late_hours(found.as_ref())?;
        checkpoints = Some((writer, late_hours));
        restored = found;
    }
    let low = parts.log.low_offsets().map_err(CountError::Log)?;
    let end = parts.log.end_offsets().map_err(CountError::Log)?;
    let (from, missing) = first_offsets(restored.as_ref(), &low, &end)?;
    let has_rows = || parts.counts.is_empty().map(|empty| !empty).map_err(CountError::Store);
    let counted = restored.is_some() || marks.retired_up_to_ms.is_some() || has_rows()?;
    if counted && !missing.is_empty() && !options.accept_hole {
        return Err(CountError::Hole { ranges: missing });
    }
    let watermark_ms = restored.as_ref().and_then(|of| of.manifest().cut.watermark_ms);
    let counted_ms = watermark_ms
        .map(|watermark_ms| watermark_ms - options.timing.retire_after_ms())
        .or(marks.retired_up_to_ms)
        .or(marks.origin_ms);
    let mut holes = Vec::new();
    for range in missing {
        tracing::error!(missing = %range, "records were removed before this run could count them");
        if counted {
            let counted_ms = counted_ms.unwrap_or_else(|| parts.clock.now_ms());
            let received_ms = holes::received(parts, &options.timing, counted_ms, &range)?;
            holes.push(Hole { range, received_ms });
        }
    }
    let now_ms = parts.clock.now_ms();
    let kept_ms = options.minutes_kept_days.saturating_mul(DAY_MS);
    let kept_from_ms = Granularity::Day.floor(now_ms).saturating_sub(kept_ms);
    // The watermark retires minutes before the origin, too: those need no row.
    let first_ms = marks.retired_up_to_ms.max(marks.origin_ms).unwrap_or(now_ms);
    let start = Start {
        from,
        end,
        first_minute_ms: Granularity::Minute.floor(first_ms).max(kept_from_ms),
        retired_up_to_ms: marks.retired_up_to_ms,
        restored,
    };
    Ok(Opened { start, checkpoints, holes })
}

fn open_writer(
    parts: &CountParts,
    options: &CountOptions,
    kept: &CheckpointParts,
) -> Result<(Writer, Option<Restored>), CountError> {
    let writer_options = WriterOptions {
        deployment: kept.deployment.clone(),
        generation: parts.generation,
        shards: options.shards,
        keep_last: kept.keep_last,
    };
    let (writer, restored) = Writer::open(Arc::clone(&kept.objects), writer_options, &kept.origin)?;
    if let Some(restored) = &restored {
        for (id, damage) in restored.passed_over() {
            tracing::error!(checkpoint = %id, %damage, "a newer checkpoint is damaged: passed over");
        }
        tracing::info!(checkpoint = %restored.manifest().id(), "going on from a checkpoint");
    }
    Ok((writer, restored))
}

fn late_hours(restored: Option<&Restored>) -> Result<LateHours, CountError> {
    let Some(manifest) = restored.map(Restored::manifest) else {
        return Ok(LateHours::default());
    };
    LateHours::decode(&manifest.cut.global_state).map_err(|error| CountError::State {
        shard: Shard(0),
        reason: format!("late hours: {error}"),
    })
}

/// Where to begin each partition, and what is no longer there to begin with.
fn first_offsets(
    restored: Option<&Restored>,
    low: &[Offset],
    end: &[Offset],
) -> Result<(Vec<Offset>, Vec<MissingRange>), CountError> {
    let next_offsets = restored.map(|restored| &restored.manifest().cut.next_offsets);
    let (mut from, mut missing, mut short) = (Vec::new(), Vec::new(), Vec::new());
    for (partition, (low, end)) in (0..).zip(low.iter().zip(end)) {
        // A partition that the checkpoint does not know is new: all of it is to be read.
        let next = next_offsets.and_then(|next| next.get(&partition)).copied().unwrap_or(0);
        if next > *end {
            short.push(MissingRange { partition, from: *end, to: next });
        }
        if next < *low {
            missing.push(MissingRange { partition, from: next, to: *low });
        }
        from.push(next.max(*low));
    }
    if short.is_empty() { Ok((from, missing)) } else { Err(CountError::LogShort { ranges: short }) }
}

/// Removes the local segments that the checkpoint does not name: they belong to records that will
/// be read again.
///
/// # Errors
/// [`CountError::Dedup`].
pub(crate) fn clear_segments(shared: &Shared) -> Result<(), CountError> {
    let restored = shared.start.restored.as_ref();
    let objects = restored.into_iter().flat_map(|restored| restored.manifest().objects());
    let names: BTreeSet<SegmentName> =
        objects.filter_map(|object| SegmentName::parse(object.segment_name())).collect();
    shared.parts.segments.keep_only(&names).map_err(CountError::Dedup)?;
    Ok(())
}

/// The shards of a worker, in ascending order: restored, or new.
///
/// # Errors
/// [`CountError`].
pub(crate) fn shards(shared: &Shared, worker: usize) -> Result<Vec<ShardState>, CountError> {
    let options = &shared.options;
    let owned = options.shards.all().filter(|shard| shard.owner(options.workers) == worker);
    owned.map(|shard| load(shared, shard)).collect()
}

fn load(shared: &Shared, shard: Shard) -> Result<ShardState, CountError> {
    let (parts, options) = (&shared.parts, &shared.options);
    let dedup = DedupOptions {
        shard,
        generation: parts.generation.number(),
        store: Arc::clone(&parts.segments),
        ..DedupOptions::default()
    };
    let (Some(restored), Some(kept)) = (&shared.start.restored, &parts.checkpoints) else {
        return Ok(ShardState::new(dedup, options.dedup, options.timing, options.stages));
    };
    let loaded = restored.take(kept.objects.as_ref(), shard)?;
    let objects: BTreeMap<&str, &DataObject> =
        loaded.segments.iter().map(|object| (object.segment_name(), object)).collect();
    let segment = |name: SegmentName| {
        let object = objects.get(name.to_string().as_str()).copied();
        let object = object.ok_or_else(|| StateError::Garbled(format!("{name} is not listed")))?;
        let local = parts.segments.adopt(name, &|content| object.is(content));
        match local.map_err(LoadError::Segment)? {
            Some(segment) => Ok(segment),
            None => {
                let content = restored.segment(kept.objects.as_ref(), object);
                let content = content.map_err(LoadError::Checkpoint)?;
                parts.segments.import(name, &content).map_err(LoadError::Segment)
            }
        }
    };
    let totals = Totals::from_names(&loaded.totals);
    let frozen = FrozenShard::decode(shard, &loaded.state, totals, segment);
    let frozen = frozen.map_err(|error: LoadError| error.of(shard))?;
    ShardState::restore(dedup, options.dedup, options.timing, frozen).map_err(CountError::Dedup)
}

/// Why a shard could not be loaded.
enum LoadError {
    State(StateError),
    Segment(SegmentError),
    Checkpoint(CheckpointError),
}

impl From<StateError> for LoadError {
    fn from(error: StateError) -> Self {
        Self::State(error)
    }
}

impl LoadError {
    fn of(self, shard: Shard) -> CountError {
        match self {
            Self::State(error) => CountError::State { shard, reason: error.to_string() },
            Self::Segment(error) => CountError::Dedup(error),
            Self::Checkpoint(error) => error.into(),
        }
    }
}
