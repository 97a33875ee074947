//! Memory stores with what tests need beside them.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tally_model::bucket::{Bucket, Period};
use tally_sinks::counts::memory::MemoryCounts;
use tally_sinks::counts::{CountsStore, PutCondition, PutOutcome, Row, SmallRow};
use tally_sinks::error::StoreError;
use tally_sinks::marks::{self, Advance};
use tally_sinks::meta::MetaStore;
use tally_sinks::tokens::{Scope, TokenKind, Tokens};

use super::{ADMIN, PLAIN, READ, WRITE};

type Hook = Box<dyn FnOnce(&MemoryCounts) + Send>;

/// A memory store that counts its calls, can fail, and can do something just before vectors are
/// read.
#[derive(Default)]
pub(crate) struct HookedCounts {
    inner: MemoryCounts,
    before_rows: Mutex<Option<Hook>>,
    /// Periods listed.
    pub(crate) listings: AtomicU64,
    /// Rows read with their vectors.
    pub(crate) rows_read: AtomicU64,
    /// Whether every read fails.
    pub(crate) fails: AtomicBool,
}

impl fmt::Debug for HookedCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HookedCounts")
    }
}

impl HookedCounts {
    /// Runs `hook` just before the next read of vectors.
    pub(crate) fn before_rows(&self, hook: impl FnOnce(&MemoryCounts) + Send + 'static) {
        *self.before_rows.lock().unwrap() = Some(Box::new(hook));
    }

    fn check(&self) -> Result<(), StoreError> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(StoreError::Unavailable { action: "read", source: "it is off".into() });
        }
        Ok(())
    }
}

impl CountsStore for HookedCounts {
    fn put_many(&self, puts: &[(Row, PutCondition)]) -> Vec<Result<PutOutcome, StoreError>> {
        self.inner.put_many(puts)
    }

    fn small_rows(
        &self,
        period: Period,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<SmallRow>, StoreError> {
        self.check()?;
        self.listings.fetch_add(1, Ordering::Relaxed);
        self.inner.small_rows(period, from_ms, to_ms)
    }

    fn rows(&self, buckets: &[Bucket]) -> Result<Vec<Option<Row>>, StoreError> {
        self.check()?;
        let hook = self.before_rows.lock().unwrap().take();
        if let Some(hook) = hook {
            hook(&self.inner);
        }
        self.rows_read.fetch_add(u64::try_from(buckets.len()).unwrap(), Ordering::Relaxed);
        self.inner.rows(buckets)
    }

    fn is_empty(&self) -> Result<bool, StoreError> {
        self.inner.is_empty()
    }

    fn delete_period(&self, period: Period) -> Result<u64, StoreError> {
        self.inner.delete_period(period)
    }
}

/// Publishes origin, retired-up-to and readable-up-to marks.
pub(crate) fn publish(meta: &dyn MetaStore, origin_ms: i64, retired_ms: i64, readable_ms: i64) {
    marks::set_origin_if_absent(meta, origin_ms).expect("sets the origin");
    let generation = marks::claim_generation(meta, origin_ms).expect("claims a generation");
    let advanced = marks::advance(meta, generation, Some(retired_ms), Some(readable_ms));
    assert!(matches!(advanced, Ok(Advance::Published(_))), "{advanced:?}");
}

/// The four tokens of the tests.
pub(crate) fn new_tokens(meta: Arc<dyn MetaStore>) -> Tokens {
    let tokens = Tokens::open(meta).expect("opens");
    let known: [(TokenKind, &[Scope], &str); 4] = [
        (TokenKind::Read, &[Scope::Stats, Scope::StatsRaw], READ),
        (TokenKind::Read, &[Scope::Stats], PLAIN),
        (TokenKind::Write, &[], WRITE),
        (TokenKind::Admin, &[], ADMIN),
    ];
    for (kind, scopes, secret) in known {
        tokens.create(kind, "test", scopes, secret, 0).expect("creates");
    }
    tokens
}
