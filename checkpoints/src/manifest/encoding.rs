//! The bytes of a manifest.

use std::collections::BTreeMap;

use prost::Message;
use tally_model::ids::Shard;
use tally_model::revision::Generation;

use super::{Cut, DataObject, Manifest, ShardEntry, Totals};
use crate::objects::ObjectName;

const MAGIC: [u8; 8] = *b"tallyckp";
const VERSION: u32 = 1;
const HEAD_BYTES: usize = MAGIC.len() + size_of::<u32>();
const CRC_BYTES: usize = size_of::<u32>();

/// Why bytes are no manifest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecodeError {
    /// They are not what was written.
    Damaged,
    /// A newer release wrote them.
    Version(u32),
}

/// Numbers are part of the format: never reuse one.
#[derive(Clone, PartialEq, Message)]
struct ManifestMessage {
    #[prost(string, tag = "1")]
    deployment: String,
    #[prost(uint32, tag = "2")]
    generation: u32,
    #[prost(uint64, tag = "3")]
    epoch: u64,
    #[prost(sint64, optional, tag = "4")]
    watermark_ms: Option<i64>,
    #[prost(sint64, tag = "5")]
    created_at_ms: i64,
    #[prost(btree_map = "uint32, uint64", tag = "6")]
    next_offsets: BTreeMap<u32, u64>,
    #[prost(btree_map = "string, uint64", tag = "7")]
    totals: Totals,
    #[prost(bytes = "vec", tag = "8")]
    global_state: Vec<u8>,
    #[prost(message, repeated, tag = "9")]
    shards: Vec<ShardMessage>,
}

/// The shard's number is its place in the list.
#[derive(Clone, PartialEq, Message)]
struct ShardMessage {
    #[prost(message, required, tag = "1")]
    state: ObjectMessage,
    #[prost(message, repeated, tag = "2")]
    segments: Vec<ObjectMessage>,
    #[prost(btree_map = "string, uint64", tag = "3")]
    totals: Totals,
}

#[derive(Clone, PartialEq, Message)]
struct ObjectMessage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(uint64, tag = "2")]
    bytes: u64,
    #[prost(fixed32, tag = "3")]
    crc32c: u32,
}

impl Manifest {
    /// The bytes to store.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let Cut { epoch, watermark_ms, created_at_ms, .. } = self.cut;
        let message = ManifestMessage {
            deployment: self.deployment.clone(),
            generation: self.generation.number(),
            epoch,
            watermark_ms,
            created_at_ms,
            next_offsets: self.cut.next_offsets.clone(),
            totals: self.cut.totals.clone(),
            global_state: self.cut.global_state.clone(),
            shards: self.shards.iter().map(shard_message).collect(),
        };
        let mut bytes = Vec::with_capacity(HEAD_BYTES + message.encoded_len() + CRC_BYTES);
        bytes.extend_from_slice(&MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&message.encode_to_vec());
        let checksum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// Reads what [`Manifest::encode`] wrote.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (content, checksum) =
            bytes.split_last_chunk::<CRC_BYTES>().ok_or(DecodeError::Damaged)?;
        if u32::from_le_bytes(*checksum) != crc32c::crc32c(content) {
            return Err(DecodeError::Damaged);
        }
        let rest = content.strip_prefix(&MAGIC).ok_or(DecodeError::Damaged)?;
        let (version, body) = rest.split_first_chunk().ok_or(DecodeError::Damaged)?;
        match u32::from_le_bytes(*version) {
            VERSION => {}
            newer if newer > VERSION => return Err(DecodeError::Version(newer)),
            _zero => return Err(DecodeError::Damaged),
        }
        ManifestMessage::decode(body).ok().and_then(manifest).ok_or(DecodeError::Damaged)
    }
}

fn shard_message(entry: &ShardEntry) -> ShardMessage {
    ShardMessage {
        state: object_message(&entry.state),
        segments: entry.segments.iter().map(object_message).collect(),
        totals: entry.totals.clone(),
    }
}

fn object_message(object: &DataObject) -> ObjectMessage {
    let DataObject { name, bytes, crc32c } = object;
    ObjectMessage { name: name.to_string(), bytes: *bytes, crc32c: *crc32c }
}

fn manifest(message: ManifestMessage) -> Option<Manifest> {
    let shards = (0..).map(Shard).zip(message.shards).map(|(shard, entry)| {
        Some(ShardEntry {
            shard,
            state: object(&entry.state)?,
            segments: entry.segments.iter().map(object).collect::<Option<_>>()?,
            totals: entry.totals,
        })
    });
    Some(Manifest {
        deployment: message.deployment,
        generation: Generation::new(message.generation)?,
        cut: Cut {
            epoch: message.epoch,
            watermark_ms: message.watermark_ms,
            created_at_ms: message.created_at_ms,
            next_offsets: message.next_offsets,
            totals: message.totals,
            global_state: message.global_state,
        },
        shards: shards.collect::<Option<_>>()?,
    })
}

fn object(message: &ObjectMessage) -> Option<DataObject> {
    let name = ObjectName::parse(&message.name).ok()?;
    Some(DataObject { name, bytes: message.bytes, crc32c: message.crc32c })
}
