//! Turning queued appends into the bytes of one commit.

use crc32c::crc32c;

use super::format::{BLOCK_HEADER_BYTES, BlockHeader, Place, put_record};
use crate::convert::{to_index, to_u64};
use crate::queue::{Job, refusal};
use crate::{AppendError, Offset, Partition};

/// A block is written out when its body has reached this size, which bounds what a reader must hold
/// to check it: so much and one record.
const BLOCK_BYTES: usize = 256 << 10;

/// What was decided about one record.
pub(super) type RecordResult = Result<Offset, AppendError>;

/// Where and when a commit is written.
#[derive(Clone, Copy, Debug)]
pub(super) struct CommitPlace {
    /// Where its first block goes.
    pub(super) start: Place,
    /// The log's clock, ms since the Unix epoch.
    pub(super) appended_at_ms: i64,
}

/// Encodes commits one after another; keeps its buffers.
#[derive(Debug)]
pub(super) struct Encoder {
    record_bytes_max: usize,
    /// The block being filled, by partition.
    filling: Vec<Filling>,
    /// The bytes of the commit.
    pub(super) bytes: Vec<u8>,
    /// The headers of its blocks, in order.
    pub(super) blocks: Vec<BlockHeader>,
}

#[derive(Debug, Default)]
struct Filling {
    body: Vec<u8>,
    record_count: u32,
    base_offset: Offset,
}

impl Encoder {
    pub(super) fn new(partitions: Partition, record_bytes_max: usize) -> Self {
        let filling = (0..partitions).map(|_| Filling::default()).collect();
        Self { record_bytes_max, filling, bytes: Vec::new(), blocks: Vec::new() }
    }

    /// Encodes the records of `jobs` as one commit; `next` are the offsets to give, by partition.
    /// Returns what each record's caller hears if the commit becomes durable.
    pub(super) fn encode(
        &mut self,
        jobs: &[Job],
        next: &[Offset],
        commit: CommitPlace,
    ) -> Vec<Vec<RecordResult>> {
        self.bytes.clear();
        self.blocks.clear();
        for (filling, next) in self.filling.iter_mut().zip(next) {
            filling.start(*next);
        }
        let partitions = Partition::try_from(next.len()).expect("partitions are 32 bits");
        let mut results = Vec::with_capacity(jobs.len());
        for job in jobs {
            let mut of_job = Vec::with_capacity(job.records.len());
            for record in &job.records {
                if let Some(error) = refusal(record, partitions, self.record_bytes_max) {
                    of_job.push(Err(error));
                    continue;
                }
                let filling = &mut self.filling[to_index(record.partition)];
                of_job.push(Ok(filling.base_offset + u64::from(filling.record_count)));
                put_record(&mut filling.body, &record.key, &record.payload);
                filling.record_count += 1;
                if filling.body.len() >= BLOCK_BYTES {
                    self.write_block(record.partition, commit);
                }
            }
            results.push(of_job);
        }
        for partition in 0..partitions {
            if self.filling[to_index(partition)].record_count > 0 {
                self.write_block(partition, commit);
            }
        }
        results
    }

    fn write_block(&mut self, partition: Partition, commit: CommitPlace) {
        let filling = &mut self.filling[to_index(partition)];
        let header = BlockHeader {
            body_crc: crc32c(&filling.body),
            body_bytes: u32::try_from(filling.body.len()).expect("a record is at most 1 GiB"),
            partition,
            record_count: filling.record_count,
            base_offset: filling.base_offset,
            appended_at_ms: commit.appended_at_ms,
            commit_start: commit.start.position,
        };
        let position = commit.start.position + to_u64(self.bytes.len());
        self.bytes.reserve(BLOCK_HEADER_BYTES + filling.body.len());
        header.put(Place { position, ..commit.start }, &mut self.bytes);
        self.bytes.extend_from_slice(&filling.body);
        self.blocks.push(header);
        filling.start(header.end_offset());
    }
}

impl Filling {
    fn start(&mut self, base_offset: Offset) {
        self.body.clear();
        self.record_count = 0;
        self.base_offset = base_offset;
    }
}
