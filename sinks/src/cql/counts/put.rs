//! Puts: judged by what is read, stored if it is still so.
//!
//! Rows of one period go together in one conditional batch, which a server applies whole or not at
//! all. If it is refused, somebody else has written one of the rows meanwhile, and each row is taken
//! by itself.

use std::collections::{BTreeMap, BTreeSet};

use scylla::value::CqlValue;
use tally_model::bucket::{Bucket, Granularity, Period};

use super::Call;
use crate::counts::{PutCondition, PutOutcome, Row, SmallRow, Verdict, judge, small_to_store};
use crate::cql::layout::{key, small_values, vector_values, writer_value};
use crate::cql::parallel::{Unfinished, side_by_side};
use crate::error::StoreError;

/// Bytes of vectors in one batch. ScyllaDB refuses 1 MiB; a larger batch holds up its neighbours.
const BATCH_BYTES: usize = 128 << 10;
/// Rows in one batch.
const BATCH_ROWS: usize = 100;
/// How often a row may change under our hands before the store is called unavailable.
const ATTEMPTS_MAX: u32 = 50;

type Outcome = Result<PutOutcome, StoreError>;

/// One put and its place among the outcomes.
struct Put {
    index: usize,
    row: Row,
    condition: PutCondition,
}

#[derive(Debug, thiserror::Error)]
#[error("the row changed {ATTEMPTS_MAX} times in a row")]
struct Contended;

/// Puts rows. Several puts of one bucket are taken one after another.
pub(super) async fn put_many(call: Call, puts: Vec<(Row, PutCondition)>) -> Vec<Outcome> {
    let mut outcomes: BTreeMap<usize, Outcome> = BTreeMap::new();
    let count = puts.len();
    let mut waiting = Vec::with_capacity(count);
    for (index, (row, condition)) in puts.into_iter().enumerate() {
        match small_to_store(&row) {
            Ok(small) => waiting.push(Put { index, row: Row { small, ..row }, condition }),
            Err(error) => drop(outcomes.insert(index, Err(error))),
        }
    }
    while !waiting.is_empty() {
        let (wave, later) = first_of_each_bucket(waiting);
        waiting = later;
        outcomes.extend(put_wave(&call, wave).await);
    }
    let lost = || Err(StoreError::unknown("put a row", Unfinished));
    (0..count).map(|index| outcomes.remove(&index).unwrap_or_else(lost)).collect()
}

fn first_of_each_bucket(puts: Vec<Put>) -> (Vec<Put>, Vec<Put>) {
    let mut seen = BTreeSet::new();
    puts.into_iter().partition(|put| {
        let bucket = put.row.small.bucket;
        seen.insert((bucket.granularity(), bucket.start_ms()))
    })
}

/// Puts rows of different buckets: periods side by side, the batches of a period in turn, since
/// transactions of one partition get into each other's way.
async fn put_wave(call: &Call, puts: Vec<Put>) -> Vec<(usize, Outcome)> {
    let mut periods: BTreeMap<(Granularity, i64), Vec<Put>> = BTreeMap::new();
    for put in puts {
        let period = put.row.small.bucket.period();
        periods.entry((period.granularity(), period.start_ms())).or_default().push(put);
    }
    let call = call.clone();
    let done = side_by_side(periods.into_values(), move |puts| {
        let call = call.clone();
        async move { Ok(put_period(&call, puts).await) }
    });
    // If a part of it panicked, outcomes are missing, which the caller reports as unknown.
    done.await.unwrap_or_default().into_iter().flatten().collect()
}

async fn put_period(call: &Call, mut puts: Vec<Put>) -> Vec<(usize, Outcome)> {
    puts.sort_unstable_by_key(|put| put.row.small.bucket.start_ms());
    let mut outcomes = Vec::with_capacity(puts.len());
    let mut puts = puts.into_iter().peekable();
    while puts.peek().is_some() {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while batch.len() < BATCH_ROWS
            && bytes < BATCH_BYTES
            && let Some(put) = puts.next()
        {
            bytes += put.row.vector.width() * size_of::<u64>();
            batch.push(put);
        }
        outcomes.extend(put_batch(call, batch).await);
    }
    outcomes
}

/// Puts rows of one period.
async fn put_batch(call: &Call, puts: Vec<Put>) -> Vec<(usize, Outcome)> {
    let stored = match small_rows(call, &puts).await {
        Ok(stored) => stored,
        Err(error) => {
            let errors = StoreError::for_each(error, puts.len());
            return puts.iter().map(|put| put.index).zip(errors).collect();
        }
    };
    let (mut outcomes, mut to_store) = (Vec::new(), Vec::new());
    for put in puts {
        let small = stored.get(&put.row.small.bucket.start_ms()).copied();
        match judge(&put.row.small, put.condition, small) {
            Verdict::Store => to_store.push((put, small)),
            verdict => outcomes.push((put.index, without_storing(call, &put, verdict).await)),
        }
    }
    match store(call, &to_store).await {
        Ok(true) => {
            outcomes
                .extend(to_store.into_iter().map(|(put, _)| (put.index, Ok(PutOutcome::Stored))));
        }
        Ok(false) => {
            for (put, _) in to_store {
                outcomes.push((put.index, put_one(call, &put).await));
            }
        }
        Err(error) => {
            let errors = StoreError::for_each(error, to_store.len());
            outcomes.extend(to_store.iter().map(|(put, _)| put.index).zip(errors));
        }
    }
    outcomes
}

/// Puts one row that somebody else writes as well.
async fn put_one(call: &Call, put: &Put) -> Outcome {
    let settled = Call { settled: true, ..call.clone() };
    let bucket = put.row.small.bucket;
    for _attempt in 0..ATTEMPTS_MAX {
        let small = small_row(&settled, bucket).await?;
        match judge(&put.row.small, put.condition, small) {
            Verdict::Store => {
                if store_one(call, put, small).await? {
                    return Ok(PutOutcome::Stored);
                }
            }
            verdict => return without_storing(&settled, put, verdict).await,
        }
    }
    Err(StoreError::unavailable("put a row", Contended))
}

async fn small_row(call: &Call, bucket: Bucket) -> Result<Option<SmallRow>, StoreError> {
    let start_ms = bucket.start_ms();
    Ok(call.small_rows(bucket.period(), start_ms, start_ms + 1).await?.pop())
}

/// The stored small rows of the buckets of `puts`, by start.
async fn small_rows(call: &Call, puts: &[Put]) -> Result<BTreeMap<i64, SmallRow>, StoreError> {
    let (Some(first), Some(last)) = (puts.first(), puts.last()) else {
        return Ok(BTreeMap::new());
    };
    let period: Period = first.row.small.bucket.period();
    let (from_ms, to_ms) = (first.row.small.bucket.start_ms(), last.row.small.bucket.end_ms());
    let rows = call.small_rows(period, from_ms, to_ms).await?;
    Ok(rows.into_iter().map(|small| (small.bucket.start_ms(), small)).collect())
}

/// The outcome of a put that stores nothing.
async fn without_storing(call: &Call, put: &Put, verdict: Verdict) -> Outcome {
    let stored = match verdict {
        Verdict::Compare(stored) => stored,
        Verdict::Refuse(stored) => return Ok(PutOutcome::Refused { stored }),
        Verdict::Store => return Err(StoreError::unavailable("put a row", Contended)),
    };
    match call.read_again(put.row.small.bucket).await? {
        Some(row) if row.small == stored && row.vector == put.row.vector => {
            Ok(PutOutcome::AlreadyDone)
        }
        row => Ok(PutOutcome::Refused { stored: row.map(|row| row.small) }),
    }
}

async fn store_one(call: &Call, put: &Put, small: Option<SmallRow>) -> Result<bool, StoreError> {
    let statements = call.statements().await?;
    let mut batch = Vec::with_capacity(2);
    push(statements, &mut batch, put, small);
    Ok(call.client.write_if("put a row", batch).await?.is_ok())
}

/// Stores all rows if each of them is still as it was read. Returns whether they were.
async fn store(call: &Call, puts: &[(Put, Option<SmallRow>)]) -> Result<bool, StoreError> {
    if puts.is_empty() {
        return Ok(true);
    }
    let statements = call.statements().await?;
    let mut batch = Vec::with_capacity(2 * puts.len());
    for (put, small) in puts {
        push(statements, &mut batch, put, *small);
    }
    Ok(call.client.write_if("put rows", batch).await?.is_ok())
}

type Batch = Vec<(scylla::statement::prepared::PreparedStatement, Vec<CqlValue>)>;

/// Adds the two rows of a put, under the condition that what is stored is `small`.
fn push(statements: &super::Statements, batch: &mut Batch, put: &Put, small: Option<SmallRow>) {
    let bucket = put.row.small.bucket;
    let small_values = small_values(&put.row.small).into_iter().chain(key(bucket));
    batch.push(match small {
        None => (statements.insert_small.clone(), small_values.collect()),
        Some(read) => {
            let condition = [CqlValue::BigInt(read.revision.raw()), writer_value(read.writer)];
            (statements.update_small.clone(), small_values.chain(condition).collect())
        }
    });
    let vector_values = vector_values(&put.row).into_iter().chain(key(bucket)).collect();
    batch.push((statements.vector.clone(), vector_values));
}
