//! Tables of bytes in CQL.
//!
//! A table is spread over buckets by the first byte of its keys, so that a key store of millions is
//! many partitions and a scan still goes in order. `meta_buckets` names the buckets that a table
//! has, so that the scan of a small table is two reads.

mod batches;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use scylla::frame::types::Consistency;
use scylla::statement::prepared::PreparedStatement;
use scylla::value::CqlValue;
use tokio::sync::OnceCell;

use self::batches::batches;
use super::parallel::{Unfinished, side_by_side};
use super::schema::serial_read;
use super::session::{Client, Columns, Session, Values};
use crate::error::StoreError;
use crate::meta::{CasOutcome, KeyValue, MetaStore, Table};

/// A [`MetaStore`] in a CQL keyspace; made by [`super::CqlStore::meta`].
#[derive(Clone, Debug)]
pub struct CqlMeta {
    session: Arc<Session>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    statements: OnceCell<Statements>,
    /// Buckets that are known to be in `meta_buckets`.
    known: Mutex<HashSet<(Table, i16)>>,
}

#[derive(Debug)]
struct Statements {
    get: PreparedStatement,
    scan: PreparedStatement,
    scan_after: PreparedStatement,
    buckets: PreparedStatement,
    add_bucket: PreparedStatement,
    insert: PreparedStatement,
    update: PreparedStatement,
    delete: PreparedStatement,
}

/// A client with its statements, for one call.
#[derive(Clone)]
struct Call {
    client: Arc<Client>,
    state: Arc<State>,
}

impl CqlMeta {
    pub(super) fn new(session: Arc<Session>) -> Self {
        Self { session, state: Arc::default() }
    }

    fn call<T: Send + 'static, F: Future<Output = Result<T, StoreError>> + Send + 'static>(
        &self,
        action: &'static str,
        work: impl FnOnce(Call) -> F,
    ) -> Result<T, StoreError> {
        let state = Arc::clone(&self.state);
        self.session.wait(action, |client| work(Call { client, state }))?
    }
}

impl MetaStore for CqlMeta {
    fn get(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let key = key.to_vec();
        self.call("read a row", move |call| async move {
            call.get(table, &key, call.client.options.read).await
        })
    }

    fn get_settled(&self, table: Table, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let key = key.to_vec();
        self.call("read a row back", move |call| async move {
            call.get(table, &key, serial_read(&call.client)).await
        })
    }

    fn get_many(&self, table: Table, keys: &[Vec<u8>]) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let keys = keys.to_vec();
        self.call("read rows", move |call| async move { call.get_many(table, keys).await })
    }

    fn scan(
        &self,
        table: Table,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<KeyValue>, StoreError> {
        let after = after.map(<[u8]>::to_vec);
        self.call("read a table", move |call| async move { call.scan(table, after, limit).await })
    }

    fn put_if(
        &self,
        table: Table,
        key: &[u8],
        expected: Option<&[u8]>,
        value: &[u8],
    ) -> Result<CasOutcome, StoreError> {
        let (key, value) = (key.to_vec(), value.to_vec());
        let expected = expected.map(<[u8]>::to_vec);
        self.call("write a row", move |call| async move {
            call.put_if(table, key, expected, value).await
        })
    }

    fn insert_many(&self, table: Table, rows: &[KeyValue]) -> Result<Vec<CasOutcome>, StoreError> {
        let rows = rows.to_vec();
        self.call("insert rows", move |call| async move { call.insert_many(table, rows).await })
    }

    fn delete_if(
        &self,
        table: Table,
        key: &[u8],
        expected: &[u8],
    ) -> Result<CasOutcome, StoreError> {
        let (key, expected) = (key.to_vec(), expected.to_vec());
        self.call("delete a row", move |call| async move {
            let statements = call.statements().await?;
            let mut values = place(table, &key);
            values.push(CqlValue::Blob(expected));
            call.conditional("delete a row", &statements.delete, values).await
        })
    }
}

/// The bucket of a key: its first byte, and one of its own for the empty key, which comes first.
fn bucket(key: &[u8]) -> i16 {
    key.first().map_or(-1, |first| i16::from(*first))
}

/// Table, bucket and key.
fn place(table: Table, key: &[u8]) -> Values {
    let [table, bucket] = partition(table, bucket(key));
    vec![table, bucket, CqlValue::Blob(key.to_vec())]
}

fn partition(table: Table, bucket: i16) -> [CqlValue; 2] {
    [CqlValue::Text(table.to_owned()), CqlValue::SmallInt(bucket)]
}

impl Call {
    async fn statements(&self) -> Result<&Statements, StoreError> {
        self.state.statements.get_or_try_init(|| Statements::prepare(&self.client)).await
    }

    async fn get(
        &self,
        table: Table,
        key: &[u8],
        consistency: Consistency,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let mut statement = self.statements().await?.get.clone();
        statement.set_consistency(consistency);
        let rows = self.client.read("read a row", &statement, place(table, key)).await?;
        rows.first().map(|row| value_of(table, row)).transpose()
    }

    async fn get_many(
        &self,
        table: Table,
        keys: Vec<Vec<u8>>,
    ) -> Result<Vec<Option<Vec<u8>>>, StoreError> {
        let count = keys.len();
        let call = self.clone();
        let found = side_by_side(keys.into_iter().enumerate(), move |(index, key)| {
            let call = call.clone();
            async move { Ok((index, call.get(table, &key, call.client.options.read).await?)) }
        });
        let mut found: BTreeMap<usize, Option<Vec<u8>>> = found.await?.into_iter().collect();
        Ok((0..count).map(|index| found.remove(&index).flatten()).collect())
    }

    async fn scan(
        &self,
        table: Table,
        after: Option<Vec<u8>>,
        limit: usize,
    ) -> Result<Vec<KeyValue>, StoreError> {
        let statements = self.statements().await?;
        let name = vec![CqlValue::Text(table.to_owned())];
        let buckets = self.client.read("list buckets", &statements.buckets, name).await?;
        let first = after.as_deref().map_or(-1, bucket);
        let buckets = buckets.iter().filter_map(|row| row.small("bucket"));
        let mut rows = Vec::new();
        for bucket in buckets.filter(|bucket| *bucket >= first) {
            let left = limit.saturating_sub(rows.len());
            let Some(left) = i32::try_from(left).ok().filter(|left| *left > 0) else { break };
            let mut values = partition(table, bucket).to_vec();
            let statement = match &after {
                Some(after) if bucket == first => {
                    values.push(CqlValue::Blob(after.clone()));
                    &statements.scan_after
                }
                Some(_) | None => &statements.scan,
            };
            values.push(CqlValue::Int(left));
            for row in self.client.read("read a table", statement, values).await? {
                let key = row.blob("key").map(<[u8]>::to_vec);
                rows.push((key.ok_or_else(|| corrupt(table))?, value_of(table, &row)?));
            }
        }
        Ok(rows)
    }

    async fn put_if(
        &self,
        table: Table,
        key: Vec<u8>,
        expected: Option<Vec<u8>>,
        value: Vec<u8>,
    ) -> Result<CasOutcome, StoreError> {
        let statements = self.statements().await?;
        let mut values = vec![CqlValue::Blob(value)];
        values.extend(place(table, &key));
        let statement = match expected {
            None => {
                self.know_bucket(table, bucket(&key)).await?;
                &statements.insert
            }
            Some(expected) => {
                values.push(CqlValue::Blob(expected));
                &statements.update
            }
        };
        self.conditional("write a row", statement, values).await
    }

    async fn conditional(
        &self,
        action: &'static str,
        statement: &PreparedStatement,
        values: Values,
    ) -> Result<CasOutcome, StoreError> {
        Ok(match self.client.write_if(action, vec![(statement.clone(), values)]).await? {
            Ok(()) => CasOutcome::Applied,
            Err(rows) => CasOutcome::Refused {
                current: rows.first().and_then(|row| row.blob("value")).map(<[u8]>::to_vec),
            },
        })
    }

    /// Inserts rows bucket by bucket: all of a bucket at once if their keys are free.
    async fn insert_many(
        &self,
        table: Table,
        rows: Vec<KeyValue>,
    ) -> Result<Vec<CasOutcome>, StoreError> {
        let count = rows.len();
        let mut buckets: BTreeMap<i16, Vec<(usize, KeyValue)>> = BTreeMap::new();
        for (index, row) in rows.into_iter().enumerate() {
            buckets.entry(bucket(&row.0)).or_default().push((index, row));
        }
        let call = self.clone();
        let inserted = side_by_side(buckets.into_iter(), move |(bucket, rows)| {
            let call = call.clone();
            async move { call.insert_in_bucket(table, bucket, rows).await }
        });
        let mut outcomes: BTreeMap<usize, CasOutcome> =
            inserted.await?.into_iter().flatten().collect();
        let lost = || StoreError::unknown("insert rows", Unfinished);
        (0..count).map(|index| outcomes.remove(&index).ok_or_else(lost)).collect()
    }

    async fn insert_in_bucket(
        &self,
        table: Table,
        bucket: i16,
        rows: Vec<(usize, KeyValue)>,
    ) -> Result<Vec<(usize, CasOutcome)>, StoreError> {
        self.know_bucket(table, bucket).await?;
        let statements = self.statements().await?;
        let mut outcomes = Vec::with_capacity(rows.len());
        for rows in batches(rows) {
            let keys: BTreeSet<&Vec<u8>> = rows.iter().map(|(_, (key, _))| key).collect();
            if keys.len() == rows.len() {
                let statement = |(_, (key, value)): &(usize, KeyValue)| {
                    let mut values = vec![CqlValue::Blob(value.clone())];
                    values.extend(place(table, key));
                    (statements.insert.clone(), values)
                };
                let batch = rows.iter().map(statement).collect();
                if self.client.write_if("insert rows", batch).await?.is_ok() {
                    outcomes.extend(rows.iter().map(|(index, _)| (*index, CasOutcome::Applied)));
                    continue;
                }
            }
            for (index, (key, value)) in rows {
                outcomes.push((index, self.put_if(table, key, None, value).await?));
            }
        }
        Ok(outcomes)
    }

    /// Makes sure that a scan finds the bucket, before the first row is in it.
    async fn know_bucket(&self, table: Table, bucket: i16) -> Result<(), StoreError> {
        let known = || self.state.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known().contains(&(table, bucket)) {
            return Ok(());
        }
        let statement = &self.statements().await?.add_bucket;
        // It says the same whoever writes it and however often, so it needs no condition; and if
        // its outcome is unknown, nothing of the row itself has happened yet.
        let written =
            self.client.write("add a bucket", statement, partition(table, bucket).to_vec());
        written.await.map_err(|error| StoreError::unavailable("write a row", error))?;
        known().insert((table, bucket));
        Ok(())
    }
}

fn value_of(table: Table, row: &Columns) -> Result<Vec<u8>, StoreError> {
    row.blob("value").map(<[u8]>::to_vec).ok_or_else(|| corrupt(table))
}

fn corrupt(table: Table) -> StoreError {
    StoreError::corrupt(format!("meta_rows, table {table}"))
}

impl Statements {
    async fn prepare(client: &Client) -> Result<Self, StoreError> {
        const ROW: &str = "tbl = ? AND bucket = ? AND key = ?";
        const IN_BUCKET: &str = "SELECT key, value FROM ks.meta_rows WHERE tbl = ? AND bucket = ?";
        Ok(Self {
            get: client.prepare(&format!("SELECT value FROM ks.meta_rows WHERE {ROW}")).await?,
            scan: client.prepare(&format!("{IN_BUCKET} LIMIT ?")).await?,
            scan_after: client.prepare(&format!("{IN_BUCKET} AND key > ? LIMIT ?")).await?,
            buckets: client.prepare("SELECT bucket FROM ks.meta_buckets WHERE tbl = ?").await?,
            add_bucket: client
                .prepare("INSERT INTO ks.meta_buckets (tbl, bucket) VALUES (?, ?)")
                .await?,
            insert: client
                .prepare(
                    "INSERT INTO ks.meta_rows (value, tbl, bucket, key) VALUES (?, ?, ?, ?) IF NOT \
                     EXISTS",
                )
                .await?,
            update: client
                .prepare(&format!("UPDATE ks.meta_rows SET value = ? WHERE {ROW} IF value = ?"))
                .await?,
            delete: client
                .prepare(&format!("DELETE FROM ks.meta_rows WHERE {ROW} IF value = ?"))
                .await?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_the_order_of_their_keys() {
        let keys: [&[u8]; 5] = [b"", &[0], &[0, 1], &[7, 0], &[0xff, 3]];
        let buckets = keys.map(bucket);
        assert!(buckets.is_sorted());
        assert_eq!(buckets, [-1, 0, 0, 7, 255]);
    }
}
