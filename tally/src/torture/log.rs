//! Reading a whole log, partition after partition.

use tally_eventlog::{EventLog, LogRecord, ReadLimits};

use crate::failure::Failure;

const LIMITS: ReadLimits = ReadLimits { records: 100_000, bytes: 64 << 20 };

/// Hands every record to `each`: partition after partition, each in its order.
pub(super) fn each_record(
    log: &dyn EventLog,
    mut each: impl FnMut(LogRecord<'_>),
) -> Result<(), Failure> {
    for start in (0..).zip(log.low_offsets()?) {
        let mut reader = log.reader(&[start])?;
        while reader.read(LIMITS, &mut each)?.records > 0 {}
    }
    Ok(())
}
