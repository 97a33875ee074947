//! Reading a whole log, partition after partition.

use std::time::Duration;

use tally_eventlog::{EventLog, LogRecord, ReadLimits};

use crate::failure::{Exit, Failure};

const LIMITS: ReadLimits = ReadLimits { records: 100_000, bytes: 64 << 20 };
/// How often a read may bring nothing before the end, and the wait after each: a log on a server
/// that is slow to answer looks empty for a moment.
const EMPTY_READS_MAX: u32 = 1_000;
const WAIT: Duration = Duration::from_millis(20);

/// Hands every record to `each`: partition after partition, each in its order.
///
/// # Errors
/// If the log does not hand out what it says that it holds.
pub(super) fn each_record(
    log: &dyn EventLog,
    mut each: impl FnMut(LogRecord<'_>),
) -> Result<(), Failure> {
    let starts = (0..).zip(log.low_offsets()?);
    for (start, end) in starts.zip(log.end_offsets()?) {
        let mut reader = log.reader(&[start])?;
        let mut empty_reads = 0;
        while reader.positions().iter().any(|(_, position)| *position < end) {
            if reader.read(LIMITS, &mut each)?.records > 0 {
                empty_reads = 0;
                continue;
            }
            empty_reads += 1;
            if empty_reads > EMPTY_READS_MAX {
                let partition = start.0;
                return Err(Failure::message(
                    Exit::Failed,
                    format!("partition {partition} does not hand out its records up to {end}"),
                ));
            }
            std::thread::park_timeout(WAIT);
        }
    }
    Ok(())
}
