//! Answers as Arrow: an IPC stream of one schema and one record batch.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::{
    ArrayRef, BooleanArray, RecordBatch, TimestampMillisecondArray, UInt16Array, UInt32Array,
    UInt64Array,
};
use arrow_ipc::writer::StreamWriter;
use arrow_schema::{DataType, Field, Schema, TimeUnit};
use tally_model::time::parse_rfc3339;

use super::{Envelope, SeriesAnswer, TopAnswer};

pub use arrow_schema::ArrowError;

/// Key of the schema's metadata under which the rest of the answer stands, as JSON.
const ANSWER: &str = "tally";

/// Columns `rank`, `eventType`, `typeId`, `count`, one row a result.
///
/// # Errors
/// [`ArrowError`], which would be a fault of this program.
pub fn top_arrow(answer: &TopAnswer) -> Result<Vec<u8>, ArrowError> {
    let results = &answer.results;
    let mut names = StringBuilder::new();
    results.iter().for_each(|one| names.append_value(&one.event_type));
    let ranks = results.iter().map(|one| u32::try_from(one.rank).unwrap_or(u32::MAX));
    let columns: Vec<(Field, ArrayRef)> = vec![
        (column("rank", DataType::UInt32), Arc::new(ranks.collect::<UInt32Array>())),
        (column("eventType", DataType::Utf8), Arc::new(names.finish())),
        (
            column("typeId", DataType::UInt16),
            Arc::new(results.iter().map(|one| one.type_id.0).collect::<UInt16Array>()),
        ),
        (
            column("count", DataType::UInt64),
            Arc::new(results.iter().map(|one| one.count.0).collect::<UInt64Array>()),
        ),
    ];
    stream(columns, &answer.envelope)
}

/// Columns `start`, `count`, `complete`, one row a point.
///
/// # Errors
/// [`ArrowError`], which would be a fault of this program.
pub fn series_arrow(answer: &SeriesAnswer) -> Result<Vec<u8>, ArrowError> {
    let points = &answer.points;
    let starts = points.iter().map(|point| parse_rfc3339(&point.start).ok());
    let starts: TimestampMillisecondArray = starts.collect();
    let complete: Vec<bool> = points.iter().map(|point| point.complete).collect();
    let instant = DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()));
    let columns: Vec<(Field, ArrayRef)> = vec![
        (column("start", instant), Arc::new(starts.with_timezone("UTC"))),
        (
            column("count", DataType::UInt64),
            Arc::new(points.iter().map(|point| point.count.0).collect::<UInt64Array>()),
        ),
        (column("complete", DataType::Boolean), Arc::new(BooleanArray::from(complete))),
    ];
    stream(columns, &answer.envelope)
}

fn column(name: &str, kind: DataType) -> Field {
    Field::new(name, kind, false)
}

fn stream(columns: Vec<(Field, ArrayRef)>, envelope: &Envelope) -> Result<Vec<u8>, ArrowError> {
    let said =
        serde_json::to_string(envelope).map_err(|why| ArrowError::ExternalError(Box::new(why)))?;
    let (fields, arrays): (Vec<Field>, Vec<ArrayRef>) = columns.into_iter().unzip();
    let metadata = HashMap::from([(ANSWER.to_owned(), said)]);
    let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
    let batch = RecordBatch::try_new(Arc::clone(&schema), arrays)?;
    let mut writer = StreamWriter::try_new(Vec::new(), &schema)?;
    writer.write(&batch)?;
    writer.into_inner()
}

#[cfg(test)]
mod tests {
    use arrow_array::Array as _;
    use arrow_array::cast::AsArray as _;
    use arrow_array::types::{TimestampMillisecondType, UInt64Type};
    use arrow_ipc::reader::StreamReader;
    use tally_model::bucket::Granularity;
    use tally_model::types::TypeId;

    use super::*;
    use crate::answer::tests::envelope;
    use crate::answer::{Count, Point};
    use crate::resolve::Resolved;

    #[test]
    fn a_stream_is_read_back_with_the_rest_of_the_answer_in_its_metadata() {
        let point = |start: &str, count| Point {
            start: start.to_owned(),
            count: Count(count),
            complete: count > 1,
        };
        let answer = SeriesAnswer {
            envelope: envelope(&Resolved::default()),
            event_type: "a".to_owned(),
            type_id: TypeId(1),
            granularity: Granularity::Hour,
            total: Count(u64::MAX),
            points: vec![point("2026-03-10T00:00:00Z", 1), point("2026-03-10T01:00:00Z", u64::MAX)],
        };
        let bytes = series_arrow(&answer).unwrap();
        let mut reader = StreamReader::try_new(bytes.as_slice(), None).unwrap();
        let said: serde_json::Value =
            serde_json::from_str(&reader.schema().metadata()[ANSWER]).unwrap();
        assert_eq!(said["complete"], serde_json::json!(answer.envelope.complete));
        let batch = reader.next().unwrap().unwrap();
        assert_eq!(batch.num_rows(), 2);
        let starts = batch.column(0).as_primitive::<TimestampMillisecondType>();
        assert_eq!(starts.value(1), parse_rfc3339("2026-03-10T01:00:00Z").unwrap());
        assert_eq!(batch.column(1).as_primitive::<UInt64Type>().value(1), u64::MAX);
        assert!(batch.column(2).as_boolean().value(1) && batch.column(2).null_count() == 0);
        assert!(reader.next().is_none());
    }
}
