//! The log record: one protobuf message, versioned from the start.
//!
//! Golden files under `model/golden/` hold a record of every released version; each must still
//! be readable. A reader of the counting path does not need the sealed part, so [`RecordHead`]
//! walks the wire format and allocates nothing; [`Record`] is the whole message.

#[cfg(test)]
mod tests;

use prost::Message;

use crate::ids::EventId;
use crate::reasons::InvalidReason;
use crate::time::{MAX_MS, MIN_MS};
use crate::types::TypeId;

/// The record version that this program writes.
pub const RECORD_VERSION: u32 = 1;

/// The whole record, field by field. Numbers are part of the format: never reuse one.
///
/// In the clear stands only what counting, replay and audit need; who did it and what exactly is
/// in `sealed`.
#[derive(Clone, PartialEq, Message)]
pub struct Record {
    /// [`RECORD_VERSION`] of the writer.
    #[prost(uint32, tag = "1")]
    pub version: u32,
    /// What the record is: 0 an event, 1 a control record of a collector run.
    #[prost(uint32, tag = "2")]
    pub kind: u32,
    /// The event id, 16 bytes.
    #[prost(bytes = "vec", tag = "3")]
    pub event_id: Vec<u8>,
    /// The slot that the collector's registry had for the type; 0 if it knew none.
    #[prost(uint32, tag = "4")]
    pub slot: u32,
    /// For slot 0: the first 8 bytes, big-endian, of the HMAC of the type's name.
    #[prost(fixed64, tag = "5")]
    pub name_hash: u64,
    /// Client clock after clamping, ms since the Unix epoch; never after `received_at_ms`.
    #[prost(sfixed64, tag = "6")]
    pub event_time_ms: i64,
    /// Server clock, ms since the Unix epoch.
    #[prost(sfixed64, tag = "7")]
    pub received_at_ms: i64,
    /// HMAC of the UTC date of receivedAt under the user's secret, 16 bytes.
    #[prost(bytes = "vec", tag = "8")]
    pub row_tag: Vec<u8>,
    /// Number of the write key that sent it.
    #[prost(uint32, tag = "9")]
    pub write_key: u32,
    /// Region of the collector; empty where there is only one.
    #[prost(string, tag = "10")]
    pub region: String,
    /// Whether eventTime was set to receivedAt; the client's time is in the sealed part.
    #[prost(bool, tag = "11")]
    pub clamped: bool,
    /// Nonce (12 bytes), ciphertext and tag (16 bytes) of the personal part; associated data is
    /// `event_id` followed by `row_tag`.
    #[prost(bytes = "vec", tag = "12")]
    pub sealed: Vec<u8>,
    /// The collector run that appended it.
    #[prost(fixed64, tag = "14")]
    pub run: u64,
    /// Number of the record among those of its run and partition, from 0 without gaps.
    #[prost(uint64, tag = "15")]
    pub sequence: u64,
}

/// `kind` of an event.
pub const KIND_EVENT: u32 = 0;
/// `kind` of a control record, which says how far a collector run has come and counts as nothing.
pub const KIND_CONTROL: u32 = 1;

/// Appends the fields that are known only at the moment of the append: run and sequence.
///
/// Protobuf lets fields follow in any order, so a record is sealed and encoded in parallel and
/// finished under the short lock that hands out sequence numbers.
pub fn finish_encoded(encoded: &mut Vec<u8>, run: u64, sequence: u64) {
    encoded.push(RUN_KEY);
    encoded.extend_from_slice(&run.to_le_bytes());
    encoded.push(SEQUENCE_KEY);
    prost::encoding::encode_varint(sequence, encoded);
}

/// The encoded keys (number and wire type) of the last two fields, one byte each.
const RUN_KEY: u8 = (14 << 3) | 1;
const SEQUENCE_KEY: u8 = 15 << 3;

/// What the counting path needs of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead {
    /// The event id.
    pub id: EventId,
    /// The slot stamped on the record.
    pub slot: TypeId,
    /// Client clock after clamping, ms since the Unix epoch.
    pub event_time_ms: i64,
    /// Server clock, ms since the Unix epoch.
    pub received_at_ms: i64,
}

/// What a readable record of the log is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoded {
    /// An event to count.
    Event(RecordHead),
    /// A control record of a collector run; not counted.
    Control,
}

impl RecordHead {
    /// Reads the head of an encoded record without touching its sealed part.
    ///
    /// This decides, for every reader of the log, whether a record counts: a reader that needs the
    /// whole [`Record`] asks here first, and decoding what passed here never fails. So two readers
    /// never disagree about a record that some other program wrote.
    ///
    /// # Errors
    /// The [`InvalidReason`] under which the record is skipped and counted.
    pub fn decode(bytes: &[u8]) -> Result<Decoded, InvalidReason> {
        if bytes.is_empty() {
            return Err(InvalidReason::Empty);
        }
        let fields = Fields::read(bytes).ok_or(InvalidReason::Garbage)?;
        if fields.version != RECORD_VERSION {
            // Version 0 means that the field is missing: no collector ever wrote that.
            return Err(if fields.version == 0 {
                InvalidReason::Foreign
            } else {
                InvalidReason::Version
            });
        }
        match fields.kind {
            KIND_EVENT => fields.event().map(Decoded::Event).ok_or(InvalidReason::Foreign),
            KIND_CONTROL => Ok(Decoded::Control),
            _ => Err(InvalidReason::Foreign),
        }
    }
}

#[derive(Default)]
struct Fields {
    version: u32,
    kind: u32,
    id: Option<[u8; 16]>,
    slot: u32,
    event_time_ms: i64,
    received_at_ms: i64,
}

impl Fields {
    /// Walks the fields; `None` if the bytes are no protobuf message of this shape. At least as
    /// strict as the decoding of [`Record`], field by field.
    #[inline]
    fn read(mut bytes: &[u8]) -> Option<Self> {
        let mut fields = Self::default();
        while !bytes.is_empty() {
            let key = uint32(&mut bytes)?;
            match (key >> 3, key & 7) {
                (1, 0) => fields.version = uint32(&mut bytes)?,
                (2, 0) => fields.kind = uint32(&mut bytes)?,
                (3, 2) => fields.id = delimited(&mut bytes)?.try_into().ok(),
                (4, 0) => fields.slot = uint32(&mut bytes)?,
                (6, 1) => fields.event_time_ms = i64::from_le_bytes(fixed64(&mut bytes)?),
                (7, 1) => fields.received_at_ms = i64::from_le_bytes(fixed64(&mut bytes)?),
                (10, 2) => {
                    str::from_utf8(delimited(&mut bytes)?).ok()?;
                }
                // The other fields of this version, and those that a later one may add.
                (9 | 11 | 13 | 15.., 0) => {
                    varint(&mut bytes)?;
                }
                (5 | 13 | 14 | 16.., 1) => {
                    fixed64(&mut bytes)?;
                }
                (8 | 12 | 13 | 16.., 2) => {
                    delimited(&mut bytes)?;
                }
                (13 | 16.., 5) => bytes = bytes.get(4..)?,
                _ => return None,
            }
        }
        Some(fields)
    }

    /// The event, if everything that collectors promise holds.
    fn event(&self) -> Option<RecordHead> {
        let slot = u16::try_from(self.slot).ok().filter(|slot| *slot < TypeId::CAP)?;
        let in_range = (MIN_MS..=MAX_MS).contains(&self.event_time_ms)
            && self.event_time_ms <= self.received_at_ms
            && self.received_at_ms <= MAX_MS;
        in_range.then_some(RecordHead {
            id: EventId(self.id?),
            slot: TypeId(slot),
            event_time_ms: self.event_time_ms,
            received_at_ms: self.received_at_ms,
        })
    }
}

#[inline]
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let (first, rest) = bytes.split_first()?;
    if *first < 0x80 {
        *bytes = rest;
        return Some(u64::from(*first));
    }
    prost::encoding::decode_varint(bytes).ok()
}

/// A varint of 32 bits: a longer one was written by something else.
#[inline]
fn uint32(bytes: &mut &[u8]) -> Option<u32> {
    u32::try_from(varint(bytes)?).ok()
}

#[inline]
fn fixed64(bytes: &mut &[u8]) -> Option<[u8; 8]> {
    let (value, rest) = bytes.split_first_chunk::<8>()?;
    *bytes = rest;
    Some(*value)
}

#[inline]
fn delimited<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let length = usize::try_from(varint(bytes)?).ok()?;
    let (value, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(value)
}
