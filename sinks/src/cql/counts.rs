//! Counts in CQL: the reads. The puts are in `put`.

mod put;

use std::collections::BTreeMap;
use std::sync::Arc;

use scylla::frame::types::Consistency;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlValue;
use tally_model::bucket::{Bucket, Period};
use tokio::sync::OnceCell;

use super::layout::{SMALL, StoredVector, VECTOR, corrupt_vector, partition, read_small};
use super::parallel::side_by_side;
use super::schema::serial_read;
use super::session::{Client, Session, Values};
use crate::counts::{CountsStore, PutCondition, PutOutcome, Row, SmallRow};
use crate::error::StoreError;

/// Vectors read by one request: with 4,000 slots that is 16 MB.
const SLICE_ROWS: usize = 512;
/// How often a row that changes while it is read is read again.
const READS_MAX: u32 = 20;

/// A [`CountsStore`] in a CQL keyspace; made by [`super::CqlStore::counts`].
#[derive(Clone, Debug)]
pub struct CqlCounts {
    session: Arc<Session>,
    statements: Arc<OnceCell<Statements>>,
}

/// The statements, prepared once.
#[derive(Debug)]
struct Statements {
    small_slice: PreparedStatement,
    vector_slice: PreparedStatement,
    any: PreparedStatement,
    insert_small: PreparedStatement,
    update_small: PreparedStatement,
    vector: PreparedStatement,
    delete_period: PreparedStatement,
}

/// A client with its statements, for one call.
#[derive(Clone)]
struct Call {
    client: Arc<Client>,
    statements: Arc<OnceCell<Statements>>,
    /// Reads see, and finish, every write that is under way.
    settled: bool,
}

impl CqlCounts {
    pub(super) fn new(session: Arc<Session>) -> Self {
        Self { session, statements: Arc::default() }
    }

    fn call<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        action: &'static str,
        settled: bool,
        work: impl FnOnce(Call) -> F,
    ) -> Result<T, StoreError> {
        let statements = Arc::clone(&self.statements);
        self.session.wait(action, |client| work(Call { client, statements, settled }))
    }
}

impl CountsStore for CqlCounts {
    fn put_many(&self, puts: &[(Row, PutCondition)]) -> Vec<Result<PutOutcome, StoreError>> {
        if puts.is_empty() {
            return Vec::new();
        }
        let (count, puts) = (puts.len(), puts.to_vec());
        match self.call("put rows", false, |call| put::put_many(call, puts)) {
            Ok(outcomes) => outcomes,
            Err(error) => StoreError::for_each(error, count).collect(),
        }
    }

    fn small_rows(
        &self,
        period: Period,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<SmallRow>, StoreError> {
        let (from_ms, to_ms) = (from_ms.max(period.start_ms()), to_ms.min(period.end_ms()));
        if from_ms >= to_ms {
            return Ok(Vec::new());
        }
        self.call("read revisions", false, move |call| async move {
            call.small_rows(period, from_ms, to_ms).await
        })?
    }

    fn rows(&self, buckets: &[Bucket]) -> Result<Vec<Option<Row>>, StoreError> {
        let buckets = buckets.to_vec();
        self.call("read rows", false, |call| rows(call, buckets))?
    }

    fn settled_rows(&self, buckets: &[Bucket]) -> Result<Vec<Option<Row>>, StoreError> {
        let buckets = buckets.to_vec();
        self.call("read rows back", true, |call| rows(call, buckets))?
    }

    fn is_empty(&self) -> Result<bool, StoreError> {
        self.call("look for rows", false, |call| async move {
            let statements = call.statements().await?;
            let rows = call.client.read("look for rows", &statements.any, Values::new()).await?;
            Ok(rows.is_empty())
        })?
    }

    fn delete_period(&self, period: Period) -> Result<u64, StoreError> {
        self.call("delete a period", false, move |call| async move {
            let rows = call.small_rows(period, period.start_ms(), period.end_ms()).await?;
            if !rows.is_empty() {
                let statements = call.statements().await?;
                let values = partition(period).to_vec();
                call.client.write("delete a period", &statements.delete_period, values).await?;
            }
            Ok(u64::try_from(rows.len()).unwrap_or(u64::MAX))
        })?
    }
}

impl Call {
    async fn statements(&self) -> Result<&Statements, StoreError> {
        self.statements.get_or_try_init(|| Statements::prepare(&self.client)).await
    }

    /// The consistency at which this call reads small rows.
    fn small_consistency(&self) -> Consistency {
        if self.settled { serial_read(&self.client) } else { self.client.options.read }
    }

    async fn small_rows(
        &self,
        period: Period,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<SmallRow>, StoreError> {
        let mut statement = self.statements().await?.small_slice.clone();
        statement.set_consistency(self.small_consistency());
        let values = slice(period, SMALL, from_ms, to_ms);
        let rows = self.client.read("read revisions", &statement, values).await?;
        rows.iter().map(|row| read_small(period.granularity(), row)).collect()
    }

    async fn vectors(
        &self,
        period: Period,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<StoredVector>, StoreError> {
        let statement = &self.statements().await?.vector_slice;
        let values = slice(period, VECTOR, from_ms, to_ms);
        let rows = self.client.read("read vectors", statement, values).await?;
        rows.iter().map(|row| StoredVector::read(period.granularity(), row)).collect()
    }

    /// The rows of `period` that start in `[from_ms, to_ms)`, each with the vector of the same write.
    async fn whole_rows(
        &self,
        period: Period,
        from_ms: i64,
        to_ms: i64,
    ) -> Result<Vec<Row>, StoreError> {
        let (small, vectors) = if self.settled {
            // The serial read first: it finishes the write whose vector is then read.
            let small = self.small_rows(period, from_ms, to_ms).await?;
            (small, self.vectors(period, from_ms, to_ms).await?)
        } else {
            tokio::try_join!(
                self.small_rows(period, from_ms, to_ms),
                self.vectors(period, from_ms, to_ms)
            )?
        };
        let vectors: BTreeMap<i64, &StoredVector> =
            vectors.iter().map(|vector| (vector.start_ms, vector)).collect();
        let mut rows = Vec::with_capacity(small.len());
        for small in small {
            let vector = vectors.get(&small.bucket.start_ms());
            match vector.filter(|vector| vector.belongs_to(&small)) {
                Some(vector) => rows.push(vector.join(small)?),
                // It was put between the two reads, or its vector is gone.
                None => rows.extend(self.read_again(small.bucket).await?),
            }
        }
        Ok(rows)
    }

    /// Reads one row until small row and vector are of one write.
    async fn read_again(&self, bucket: Bucket) -> Result<Option<Row>, StoreError> {
        let (period, start_ms) = (bucket.period(), bucket.start_ms());
        for _attempt in 0..READS_MAX {
            // One after the other: the vector is never older than its small row.
            let Some(small) = self.small_rows(period, start_ms, start_ms + 1).await?.pop() else {
                return Ok(None);
            };
            let Some(vector) = self.vectors(period, start_ms, start_ms + 1).await?.pop() else {
                return Err(corrupt_vector(bucket));
            };
            if vector.belongs_to(&small) {
                return vector.join(small).map(Some);
            }
        }
        // Nobody puts one row that fast: the two do not belong together.
        Err(corrupt_vector(bucket))
    }
}

fn slice(period: Period, kind: i8, from_ms: i64, to_ms: i64) -> Values {
    let [granularity, period] = partition(period);
    let bounds = [CqlValue::BigInt(from_ms), CqlValue::BigInt(to_ms)];
    [granularity, period, CqlValue::TinyInt(kind)].into_iter().chain(bounds).collect()
}

/// Neighbouring buckets of one period, read as a slice.
#[derive(Clone, Copy, Debug)]
struct Run {
    period: Period,
    from_ms: i64,
    to_ms: i64,
}

/// The fewest slices that hold `buckets` and nothing else.
fn runs(buckets: &[Bucket]) -> Vec<Run> {
    let mut sorted = buckets.to_vec();
    sorted.sort_unstable_by_key(|bucket| (bucket.granularity(), bucket.start_ms()));
    let mut runs: Vec<Run> = Vec::new();
    for bucket in sorted {
        let (period, width_ms) = (bucket.period(), bucket.granularity().width_ms());
        let rows_max = i64::try_from(SLICE_ROWS).unwrap_or(i64::MAX);
        match runs.last_mut() {
            Some(run)
                if run.period == period
                    && run.to_ms >= bucket.start_ms()
                    && run.to_ms - run.from_ms < rows_max * width_ms =>
            {
                run.to_ms = run.to_ms.max(bucket.end_ms());
            }
            _ => runs.push(Run { period, from_ms: bucket.start_ms(), to_ms: bucket.end_ms() }),
        }
    }
    runs
}

/// The rows of `buckets` in their order, read slice by slice, several at a time.
async fn rows(call: Call, buckets: Vec<Bucket>) -> Result<Vec<Option<Row>>, StoreError> {
    let slices = side_by_side(runs(&buckets).into_iter(), move |run| {
        let call = call.clone();
        async move { call.whole_rows(run.period, run.from_ms, run.to_ms).await }
    });
    let slices = slices.await?;
    let found: BTreeMap<(_, i64), Row> = slices
        .into_iter()
        .flatten()
        .map(|row| ((row.small.bucket.granularity(), row.small.bucket.start_ms()), row))
        .collect();
    let row = |bucket: &Bucket| found.get(&(bucket.granularity(), bucket.start_ms())).cloned();
    Ok(buckets.iter().map(row).collect())
}

impl Statements {
    async fn prepare(client: &Client) -> Result<Self, StoreError> {
        const SLICE: &str = "FROM ks.counts WHERE granularity = ? AND period = ? AND kind = ? AND \
                             start >= ? AND start < ?";
        const SMALL_COLUMNS: &str = "revision, writer, written_at, source, digest, width";
        let small_slice = format!("SELECT start, {SMALL_COLUMNS} {SLICE}");
        let vector_slice = format!("SELECT start, revision, writer, vector {SLICE}");
        let insert_small = format!(
            "INSERT INTO ks.counts ({SMALL_COLUMNS}, granularity, period, start, kind) VALUES (?, ?, ?, \
             ?, ?, ?, ?, ?, ?, 0) IF NOT EXISTS"
        );
        let update_small = "UPDATE ks.counts SET revision = ?, writer = ?, written_at = ?, source = ?, digest = ?, width \
             = ? WHERE granularity = ? AND period = ? AND start = ? AND kind = 0 IF revision = ? AND \
             writer = ?";
        // Only ever a part of a batch whose condition stands on the small row.
        let vector = "INSERT INTO ks.counts (revision, writer, vector, granularity, period, start, kind) \
                      VALUES (?, ?, ?, ?, ?, ?, 1)";
        Ok(Self {
            small_slice: client.prepare(&small_slice).await?,
            vector_slice: client.prepare(&vector_slice).await?,
            any: client.prepare("SELECT start FROM ks.counts LIMIT 1").await?,
            insert_small: client.prepare(&insert_small).await?,
            update_small: client.prepare(update_small).await?,
            vector: client.prepare(vector).await?,
            delete_period: client
                .prepare("DELETE FROM ks.counts WHERE granularity = ? AND period = ?")
                .await?,
        })
    }
}

#[cfg(test)]
mod tests {
    use tally_model::bucket::{DAY_MS, Granularity, HOUR_MS, MINUTE_MS};

    use super::*;

    #[test]
    fn neighbours_of_a_period_are_one_slice() {
        let minute = |at_ms| Bucket::minute(at_ms);
        let hour = |at_ms| Bucket::containing(Granularity::Hour, at_ms);
        // (what the row shows, buckets, slices)
        let cases: [(&str, Vec<Bucket>, usize); 6] = [
            ("none", vec![], 0),
            ("three neighbours", vec![minute(MINUTE_MS), minute(0), minute(2 * MINUTE_MS)], 1),
            ("one twice", vec![minute(0), minute(0)], 1),
            ("a gap", vec![minute(0), minute(2 * MINUTE_MS)], 2),
            ("two days", vec![minute(DAY_MS - MINUTE_MS), minute(DAY_MS)], 2),
            ("two granularities", vec![minute(0), hour(HOUR_MS), hour(0)], 2),
        ];
        for (name, buckets, want) in cases {
            assert_eq!(runs(&buckets).len(), want, "{name}");
        }
        let day: Vec<Bucket> = (0..1_440).map(|number| minute(number * MINUTE_MS)).collect();
        assert_eq!(runs(&day).len(), 3, "a slice has its bound");
    }
}
