//! Settings: compiled-in defaults, then a file, then the environment, then flags.
//!
//! `default.toml` names every setting that exists; a key that it lacks is refused. Each value is
//! checked once, here, into [`Settings`], which cannot be wrong. Nothing reads the environment
//! later.

mod dedup_memory;
mod layers;
mod places;

pub(crate) use dedup_memory::DedupMemory;
pub(crate) use layers::{Layers, Origin, SettingError};
pub(crate) use places::{CountsPlace, LogPlace};

use std::path::PathBuf;

use tally_collector::limits::Limits;
use tally_model::bucket::{DAY_MS, HOUR_MS, MINUTE_MS};
use tally_model::ids::Shards;
use tally_model::rules::{DedupRule, Timing};

/// Everything that can be set, checked.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) pipeline: Pipeline,
    pub(crate) fixed: Fixed,
    pub(crate) dedup_memory: DedupMemory,
    pub(crate) log: Log,
    pub(crate) counts: CountsPlace,
    /// The folder of checkpoints, unless they are in the data folder.
    pub(crate) objects: Option<PathBuf>,
    pub(crate) retention: Retention,
    pub(crate) privacy: Privacy,
    pub(crate) collector: Collector,
    pub(crate) query: Query,
    pub(crate) jobs: Jobs,
}

/// How the counting pipeline runs.
#[derive(Clone, Debug)]
pub(crate) struct Pipeline {
    pub(crate) timing: Timing,
    pub(crate) epoch_ms: i64,
    pub(crate) restate_every_ms: i64,
    pub(crate) checkpoint_every_ms: i64,
    /// How many closed minutes may wait for the counts store.
    pub(crate) windows_wait_minutes: usize,
    pub(crate) workers: usize,
}

/// What is fixed when a deployment is made; a later setting that differs is refused.
#[derive(Clone, Debug)]
pub(crate) struct Fixed {
    pub(crate) shards: Chosen<Shards>,
    pub(crate) dedup: Chosen<DedupRule>,
    pub(crate) partitions: Chosen<u32>,
}

/// A value, and whether somebody asked for it or it is the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chosen<T> {
    pub(crate) value: T,
    pub(crate) asked_for: bool,
}

/// The event log.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    pub(crate) place: LogPlace,
    /// Settings of a topic that can lose records are warned of instead of refused.
    pub(crate) accept_settings: bool,
    pub(crate) retention_ms: i64,
    pub(crate) retention_origin: Origin,
    pub(crate) segment_bytes: u64,
}

/// How long rows are kept, in whole days.
#[derive(Clone, Debug)]
pub(crate) struct Retention {
    pub(crate) minutes_days: i64,
    pub(crate) hours_days: i64,
}

/// Handling of personal data.
#[derive(Clone, Debug)]
pub(crate) struct Privacy {
    /// The file of the key that wraps all others, unless it is in the data folder.
    pub(crate) master_key: Option<PathBuf>,
    pub(crate) key_cache_ttl_ms: u64,
}

/// The ingest service.
#[derive(Clone, Debug)]
pub(crate) struct Collector {
    pub(crate) capture: bool,
    pub(crate) consent_required: bool,
    pub(crate) limits: Limits,
    pub(crate) header_deadline_ms: u64,
    pub(crate) connections: usize,
}

/// The query service.
#[derive(Clone, Debug)]
pub(crate) struct Query {
    pub(crate) cache_bytes: usize,
    /// Counts of an hour below this are not shown to tokens without the raw scope.
    pub(crate) suppress_below: u64,
    /// The shortest range that such tokens may ask for.
    pub(crate) min_width_ms: i64,
}

/// Work on stored rows.
#[derive(Clone, Debug)]
pub(crate) struct Jobs {
    pub(crate) rollup_every_ms: u64,
}

impl Settings {
    /// Checks merged layers.
    ///
    /// # Errors
    /// [`SettingError`] names the file or variable, the key, the value and what is allowed.
    pub(crate) fn check(layers: &Layers) -> Result<Self, SettingError> {
        let pipeline = pipeline(layers)?;
        let fixed = fixed(layers)?;
        let log = Log {
            place: LogPlace::of(layers)?,
            accept_settings: layers.boolean("log.accept_settings")?,
            retention_ms: layers.duration("log.retention", 60_000, 3_650 * DAY_MS)?,
            segment_bytes: layers.size("log.segment", 1 << 16, 1 << 32)?,
            retention_origin: layers.origin("log.retention"),
        };
        let retention = Retention {
            minutes_days: layers.days("retention.minutes")?,
            hours_days: layers.days("retention.hours")?,
        };
        if retention.hours_days < retention.minutes_days {
            let least = format!("at least retention.minutes = {}d", retention.minutes_days);
            return Err(layers.refuse("retention.hours", least));
        }
        let settings = Self {
            pipeline,
            fixed,
            dedup_memory: DedupMemory::of(layers)?,
            log,
            counts: CountsPlace::of(layers)?,
            objects: places::objects(layers)?,
            retention,
            privacy: Privacy {
                master_key: match layers.text("privacy.master_key")? {
                    "auto" => None,
                    file => Some(PathBuf::from(file)),
                },
                key_cache_ttl_ms: layers.duration_u64("privacy.key_cache_ttl", 6_000, DAY_MS)?,
            },
            collector: collector(layers)?,
            query: Query {
                cache_bytes: layers.size_usize("query.cache", 1 << 20, 1 << 40)?,
                suppress_below: layers.count("query.suppress_below", 1, 1_000_000)?,
                min_width_ms: layers.duration("query.min_width", HOUR_MS, 3_650 * DAY_MS)?,
            },
            jobs: Jobs { rollup_every_ms: layers.duration_u64("jobs.rollup_every", 100, DAY_MS)? },
        };
        settings.check_retention(&settings.fixed.dedup.value)?;
        let fixed = &settings.fixed;
        settings.dedup_memory.check(fixed.dedup.value, fixed.shards.value)?;
        Ok(settings)
    }

    /// Whether the log keeps enough to rebuild the dedup state of `rule`.
    ///
    /// # Errors
    /// [`SettingError::Value`].
    pub(crate) fn check_retention(&self, rule: &DedupRule) -> Result<(), SettingError> {
        let needed_ms = rule.window_ms() + rule.width_ms() + DAY_MS;
        if self.log.retention_ms > needed_ms {
            return Ok(());
        }
        Err(SettingError::Value {
            origin: self.log.retention_origin.clone(),
            key: "log.retention".to_owned(),
            given: crate::units::show_duration(self.log.retention_ms),
            allowed: format!(
                "longer than dedup.window + dedup.bucket + 1d = {}, so that a restart can rebuild \
                 the dedup state",
                crate::units::show_duration(needed_ms)
            ),
        })
    }
}

fn pipeline(layers: &Layers) -> Result<Pipeline, SettingError> {
    let append_deadline_ms = layers.duration("collector.limits.append_deadline", 1, 3_600_000)?;
    let timing = Timing {
        watermark_delay_ms: layers.duration("pipeline.watermark_delay", 0, DAY_MS)?,
        lateness_ms: layers.duration("pipeline.lateness", 0, 7 * DAY_MS)?,
        append_grace_ms: layers.duration("pipeline.append_grace", 0, DAY_MS)?,
    };
    if timing.append_grace_ms <= append_deadline_ms {
        return Err(layers.refuse(
            "pipeline.append_grace",
            format!(
                "longer than collector.limits.append_deadline = {}, so that an on-time record is \
                 never read after its minute is retired",
                crate::units::show_duration(append_deadline_ms)
            ),
        ));
    }
    let windows_wait_ms = layers.duration("pipeline.windows_wait", HOUR_MS, 30 * DAY_MS)?;
    let workers = match layers.count("pipeline.workers", 0, u64::from(Shards::MAX))? {
        0 => std::thread::available_parallelism().map_or(1, |cores| cores.get().min(4)),
        workers => usize::try_from(workers).unwrap_or(1),
    };
    Ok(Pipeline {
        timing,
        epoch_ms: layers.duration("pipeline.epoch", 10, 60_000)?,
        restate_every_ms: layers.duration("pipeline.restate_every", 100, 3_600_000)?,
        checkpoint_every_ms: layers.duration("pipeline.checkpoint_every", 100, DAY_MS)?,
        windows_wait_minutes: usize::try_from(windows_wait_ms / MINUTE_MS).unwrap_or(usize::MAX),
        workers,
    })
}

fn fixed(layers: &Layers) -> Result<Fixed, SettingError> {
    let shards = layers.count("pipeline.shards", 1, u64::from(Shards::MAX))?;
    let shards = u16::try_from(shards).ok().and_then(Shards::new).unwrap_or(Shards::DEFAULT);
    let window_ms = layers.duration("dedup.window", 1_000, 3_650 * DAY_MS)?;
    let width_ms = if layers.text("dedup.bucket")? == "auto" {
        DedupRule::default_width_ms(window_ms)
    } else {
        layers.duration("dedup.bucket", 1_000, 3_650 * DAY_MS)?
    };
    let dedup = DedupRule::new(window_ms, width_ms).map_err(|_not_whole| {
        layers.refuse("dedup.window", "a whole number of dedup.bucket, at least one".to_owned())
    })?;
    let partitions = layers.count("log.partitions", 1, 1_024)?;
    Ok(Fixed {
        shards: Chosen { value: shards, asked_for: layers.is_set("pipeline.shards") },
        dedup: Chosen {
            value: dedup,
            asked_for: layers.is_set("dedup.window") || layers.is_set("dedup.bucket"),
        },
        partitions: Chosen {
            value: u32::try_from(partitions).unwrap_or(8),
            asked_for: layers.is_set("log.partitions"),
        },
    })
}

fn collector(layers: &Layers) -> Result<Collector, SettingError> {
    let limits = Limits {
        events: layers.count_usize("collector.limits.events", 1, 100_000)?,
        wire_bytes: layers.size_usize("collector.limits.wire", 1 << 10, 1 << 30)?,
        inflated_bytes: layers.size_usize("collector.limits.inflated", 1 << 10, 1 << 32)?,
        record_bytes: layers.size_usize("collector.limits.record", 1 << 10, 1 << 20)?,
        depth: layers.count_usize("collector.limits.depth", 1, 1_000)?,
        type_bytes: layers.size_usize("collector.limits.type", 1, 1 << 10)?,
        user_id_bytes: layers.size_usize("collector.limits.user_id", 1, 1 << 16)?,
        append_timeout_ms: layers.duration_u64("collector.limits.append_deadline", 1, 3_600_000)?,
        body_timeout_ms: layers.duration_u64("collector.limits.body_deadline", 100, 3_600_000)?,
        ..Limits::default()
    };
    Ok(Collector {
        capture: layers.boolean("collector.capture")?,
        consent_required: layers.boolean("collector.consent")?,
        limits,
        header_deadline_ms: layers.duration_u64(
            "collector.limits.header_deadline",
            100,
            3_600_000,
        )?,
        connections: layers.count_usize("collector.limits.connections", 1, 1_000_000)?,
    })
}

#[cfg(test)]
mod tests;
