//! Rows of one bucket in batches.

use crate::meta::KeyValue;

/// Bytes and rows of one conditional batch.
const BATCH_BYTES: usize = 64 << 10;
const BATCH_ROWS: usize = 100;

/// The rows in their order, in as few batches as their bounds allow.
pub(super) fn batches(rows: Vec<(usize, KeyValue)>) -> Vec<Vec<(usize, KeyValue)>> {
    let mut batches: Vec<Vec<(usize, KeyValue)>> = Vec::new();
    let mut bytes = usize::MAX;
    for row in rows {
        let row_bytes = row.1.0.len() + row.1.1.len();
        let full = batches.last().is_none_or(|batch| batch.len() >= BATCH_ROWS);
        if full || bytes.saturating_add(row_bytes) > BATCH_BYTES {
            batches.push(Vec::new());
            bytes = 0;
        }
        bytes += row_bytes;
        if let Some(batch) = batches.last_mut() {
            batch.push(row);
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_bounded_in_rows_and_bytes() {
        let row = |index, bytes| (index, (vec![1], vec![0; bytes]));
        let sizes = |rows| batches(rows).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes((0..201).map(|index| row(index, 1)).collect()), [100, 100, 1]);
        assert_eq!(sizes((0..3).map(|index| row(index, 40 << 10)).collect()), [1, 1, 1]);
        assert_eq!(sizes(Vec::new()), Vec::<usize>::new());
    }
}
