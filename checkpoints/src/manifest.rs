//! What a checkpoint consists of, and how that is written down.
//!
//! A manifest is `tallyckp`, the format version (4 bytes, little-endian), a protobuf message, and
//! the CRC-32C of all before it (4 bytes, little-endian). Golden files under `checkpoints/golden/`
//! hold one of every released version; each must still load.

mod encoding;

use std::collections::BTreeMap;

use tally_model::ids::Shard;
use tally_model::revision::Generation;

use crate::layout::{self, CheckpointId};
use crate::objects::ObjectName;

pub(crate) use encoding::DecodeError;

/// Numbers of records by what became of them, such as `counted` or `late`. The names are the
/// caller's: a new cause needs no new format.
pub type Totals = BTreeMap<String, u64>;

/// What holds for the whole deployment at a cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// The announced epoch at which every shard was frozen.
    pub epoch: u64,
    /// The global watermark, ms since the Unix epoch; `None` before the first record.
    pub watermark_ms: Option<i64>,
    /// When the cut was made, ms since the Unix epoch. For people; nothing is decided by it.
    pub created_at_ms: i64,
    /// Offset of the first record after the cut, by partition.
    pub next_offsets: BTreeMap<u32, u64>,
    /// What became of records before they reached a shard.
    pub totals: Totals,
    /// Further state that belongs to no shard, as the caller encodes it. Keep it small.
    pub global_state: Vec<u8>,
}

/// One complete checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The deployment whose state it is.
    pub deployment: String,
    /// The deployment start that made it.
    pub generation: Generation,
    /// What holds for the whole deployment.
    pub cut: Cut,
    /// Every shard once, in ascending order from shard 0.
    pub shards: Vec<ShardEntry>,
}

/// One shard of a [`Manifest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardEntry {
    /// Which one.
    pub shard: Shard,
    /// The object that holds its state apart from segments.
    pub state: DataObject,
    /// The objects of its segments, in the caller's order.
    pub segments: Vec<DataObject>,
    /// What became of its records.
    pub totals: Totals,
}

/// A data object as it was written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DataObject {
    /// Its name.
    pub name: ObjectName,
    /// Its length.
    pub bytes: u64,
    /// The CRC-32C of its content.
    pub crc32c: u32,
}

impl DataObject {
    /// The entry of an object with this content.
    pub(crate) fn of(name: ObjectName, content: &[u8]) -> Self {
        Self { name, bytes: length(content), crc32c: crc32c::crc32c(content) }
    }

    /// Whether `content` is what was written.
    #[must_use]
    pub fn is(&self, content: &[u8]) -> bool {
        self.bytes == length(content) && self.crc32c == crc32c::crc32c(content)
    }

    /// The name that the caller gave the segment; for a state object, a name of the same kind.
    #[must_use]
    pub fn segment_name(&self) -> &str {
        let name = self.name.as_str();
        name.strip_prefix(layout::DATA).unwrap_or(name)
    }
}

fn length(content: &[u8]) -> u64 {
    u64::try_from(content.len()).unwrap_or(u64::MAX)
}

impl Manifest {
    /// Which checkpoint it is.
    #[must_use]
    pub fn id(&self) -> CheckpointId {
        CheckpointId { generation: self.generation, epoch: self.cut.epoch }
    }

    /// Every data object that it names, by shard, a shard's state before its segments.
    pub fn objects(&self) -> impl Iterator<Item = &DataObject> {
        self.shards.iter().flat_map(|entry| std::iter::once(&entry.state).chain(&entry.segments))
    }

    /// What became of all records: the cut's totals and those of all shards.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let mut sums = self.cut.totals.clone();
        for (cause, count) in self.shards.iter().flat_map(|entry| &entry.totals) {
            *sums.entry(cause.clone()).or_default() += count;
        }
        sums
    }
}

#[cfg(test)]
mod tests;
