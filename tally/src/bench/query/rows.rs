//! The rows that `tally bench query` asks about.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tally_model::bucket::{Bucket, DAY_MS, Granularity, MINUTE_MS};
use tally_model::clock::Clock;
use tally_model::range::Run;
use tally_model::revision::Revision;
use tally_model::vector::CountVector;
use tally_sinks::counts::{
    CountsStore, PutCondition, Row, RowSource, SmallRow, WriterId, source_digest,
};
use tally_sinks::marks::{self, Advance};
use tally_sinks::meta::MetaStore;
use tally_sinks::redb::RedbStore;
use tally_sinks::registry::{NewType, Registered, Registry};
use tally_sinks::tokens::{Scope, TokenKind, Tokens};

use crate::clock::SystemClock;
use crate::count::bar;
use crate::failure::Failure;

/// The moment of the measurement: the start of a day.
pub(super) const NOW_MS: i64 = 1_773_100_800_000;
/// Days of history.
pub(super) const DAYS: i64 = 3 * 365;
/// Days whose minutes are kept.
pub(super) const MINUTES_DAYS: i64 = 60;
const HOURS_DAYS: i64 = 730;
/// The token that may read everything.
pub(super) const TOKEN: &str = "bench";

/// Rows written by one transaction: some megabytes.
const BATCH_BYTES: usize = 32 << 20;

/// Stands at one moment, but its monotonic reading goes on, and can be made to jump.
#[derive(Debug)]
pub(super) struct BenchClock {
    real: SystemClock,
    skipped_ms: AtomicI64,
}

impl BenchClock {
    pub(super) fn skip_a_second(&self) {
        self.skipped_ms.fetch_add(1_000, Ordering::Relaxed);
    }
}

impl Clock for BenchClock {
    fn now_ms(&self) -> i64 {
        NOW_MS
    }

    fn monotonic_ms(&self) -> i64 {
        self.real.monotonic_ms() + self.skipped_ms.load(Ordering::Relaxed)
    }
}

/// A deployment that has counted three years.
pub(super) struct Rows {
    pub(super) counts: Arc<dyn CountsStore>,
    pub(super) meta: Arc<dyn MetaStore>,
    pub(super) registry: Arc<Registry>,
    pub(super) tokens: Arc<Tokens>,
    pub(super) clock: Arc<BenchClock>,
    /// How many rows there are.
    pub(super) count: u64,
}

impl Rows {
    /// Writes them into a store in `folder`: minutes of 60 days, hours of two years, all days.
    pub(super) fn write(folder: &Path, slots: u16, traffic: u64) -> Result<Self, Failure> {
        let store = RedbStore::open(&folder.join("counts.redb"))?;
        let counts: Arc<dyn CountsStore> = Arc::new(store.counts());
        let meta: Arc<dyn MetaStore> = Arc::new(store.meta());
        let registry = registry(&meta, slots)?;
        let tokens = Arc::new(Tokens::open(Arc::clone(&meta))?);
        tokens.create(TokenKind::Read, "bench", &[Scope::StatsRaw], TOKEN, NOW_MS)?;
        let generation = marks::claim_generation(&*meta, NOW_MS)?;
        marks::set_origin_if_absent(&*meta, NOW_MS - DAYS * DAY_MS)?;
        match marks::advance(&*meta, generation, Some(NOW_MS), Some(NOW_MS))? {
            Advance::Published(_) => {}
            Advance::Fenced { newer } => {
                return Err(anyhow::anyhow!("start {newer} works on a new store").into());
            }
        }
        let mut count = 0;
        for (granularity, days) in [
            (Granularity::Day, DAYS),
            (Granularity::Hour, HOURS_DAYS),
            (Granularity::Minute, MINUTES_DAYS),
        ] {
            count += fill(&*counts, granularity, days, slots, traffic)?;
        }
        let clock = BenchClock { real: SystemClock::new(), skipped_ms: AtomicI64::new(0) };
        Ok(Self { counts, meta, registry, tokens, clock: Arc::new(clock), count })
    }
}

fn registry(meta: &Arc<dyn MetaStore>, slots: u16) -> Result<Arc<Registry>, Failure> {
    let registry = Registry::open(Arc::clone(meta))?;
    for slot in 1..slots {
        match registry.register(NewType::named(format!("type-{slot}")))? {
            Registered::Created(_) | Registered::Same(_) => {}
        }
    }
    Ok(Arc::new(registry))
}

/// Puts every row of a granularity, in batches. Returns how many.
fn fill(
    counts: &dyn CountsStore,
    granularity: Granularity,
    days: i64,
    slots: u16,
    traffic: u64,
) -> Result<u64, Failure> {
    let run = Run { granularity, start_ms: NOW_MS - days * DAY_MS, end_ms: NOW_MS };
    let total = u64::try_from(days * DAY_MS / granularity.width_ms()).unwrap_or(0);
    let bar = bar(total, granularity.name());
    let batch_rows = (BATCH_BYTES / (8 * usize::from(slots))).max(1);
    let mut batch = Vec::with_capacity(batch_rows);
    for bucket in run.buckets() {
        batch.push((row(bucket, slots, traffic)?, PutCondition::Exactly(None)));
        if batch.len() == batch_rows {
            put(counts, &mut batch)?;
            bar.inc(u64::try_from(batch_rows).unwrap_or(0));
        }
    }
    put(counts, &mut batch)?;
    bar.finish_and_clear();
    Ok(total)
}

fn put(counts: &dyn CountsStore, batch: &mut Vec<(Row, PutCondition)>) -> Result<(), Failure> {
    for outcome in counts.put_many(batch) {
        outcome?;
    }
    batch.clear();
    Ok(())
}

/// Counts as of traffic whose types follow Zipf's law: most of them small numbers.
fn row(bucket: Bucket, slots: u16, traffic: u64) -> Result<Row, Failure> {
    let minutes = u64::try_from(bucket.granularity().width_ms() / MINUTE_MS).unwrap_or(1);
    let counts = (0..u64::from(slots)).map(|slot| minutes * traffic * (10_000 / (slot + 1)));
    let mut small = small(bucket, slots)?;
    if bucket.granularity() != Granularity::Minute {
        let children: Vec<SmallRow> =
            bucket.children().map(|child| self::small(child, slots)).collect::<Result<_, _>>()?;
        small.source = RowSource::Rollup;
        small.digest = source_digest(&children);
    }
    Ok(Row { small, vector: CountVector::from_counts(counts.collect()) })
}

fn small(bucket: Bucket, slots: u16) -> Result<SmallRow, Failure> {
    Ok(SmallRow {
        bucket,
        revision: Revision::recomputed(bucket.end_ms())?,
        writer: WriterId(1),
        written_at_ms: bucket.end_ms(),
        source: RowSource::Stream,
        digest: 0,
        width: u32::from(slots),
    })
}
