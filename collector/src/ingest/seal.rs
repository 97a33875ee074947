//! Sealing the personal part of events and encoding the records around it.
//!
//! Invariant E-1 of ARCHITECTURE.md.

use std::collections::HashMap;
use std::sync::Arc;

use prost::Message;
use tally_eventlog::NewRecord;
use tally_model::ids::{EventId, MixedId};
use tally_model::reasons::RejectReason;
use tally_model::record::{KIND_EVENT, RECORD_VERSION, Record};
use tally_model::types::TypeId;
use tally_privacy::keys::UserKeys;
use tally_privacy::seal::{Nonces, Personal, seal};

use super::judge::Taken;
use super::{IngestError, Judged, Prepared, Preparer, Sender, Verdict};

/// Most bytes that run and sequence add to a record: two keys, 8 bytes, and a varint.
pub(crate) const TAIL_BYTES_MAX: usize = 2 + 8 + 10;

impl Preparer {
    /// Seals and encodes the events of `judged`; `keys` holds one key per taken event. Never
    /// blocks.
    ///
    /// # Errors
    /// [`IngestError`]: nothing of the batch may be written.
    pub fn seal<'a>(
        &self,
        judged: Judged<'a>,
        keys: &[Arc<UserKeys>],
        sender: &Sender,
        nonces: &mut Nonces,
    ) -> Result<Prepared<'a>, IngestError> {
        let Judged { answers, taken } = judged;
        if keys.len() < taken.len() {
            return Err(IngestError::KeysIncomplete { wanted: taken.len(), got: keys.len() });
        }
        let mut prepared = Prepared {
            answers,
            records: Vec::with_capacity(taken.len()),
            indexes: Vec::with_capacity(taken.len()),
            repeats: Vec::new(),
        };
        let mut firsts: HashMap<MixedId, usize> = HashMap::with_capacity(taken.len());
        let mut writer = RecordWriter::new(self, sender);
        for (taken, keys) in taken.iter().zip(keys) {
            let mixed = self.mixer.mix(taken.sent.id);
            if let Some(first) = firsts.get(&mixed) {
                prepared.repeats.push((taken.index, *first));
                prepared.mark_repeat(taken.index);
                continue;
            }
            match writer.write(taken, keys, nonces)? {
                Some(payload) => {
                    firsts.insert(mixed, taken.index);
                    prepared.indexes.push(taken.index);
                    prepared.records.push(NewRecord {
                        partition: mixed.shard(self.shards).partition(self.partitions),
                        key: taken.sent.id.0,
                        payload,
                    });
                }
                // A smaller copy of the same id later in the batch is still a first one.
                None => prepared.reject_index(taken.index, RejectReason::TooLarge),
            }
        }
        Ok(prepared)
    }
}

impl Prepared<'_> {
    fn mark_repeat(&mut self, index: usize) {
        if let Some(answer) = self.answers.get_mut(index)
            && let Verdict::Accepted(warnings) = &mut answer.verdict
        {
            warnings.repeat = true;
        }
    }
}

/// Writes records one after another, in buffers that are made once per batch.
struct RecordWriter<'p> {
    preparer: &'p Preparer,
    personal: Personal,
    plaintext: Vec<u8>,
    record: Record,
}

impl<'p> RecordWriter<'p> {
    fn new(preparer: &'p Preparer, sender: &Sender) -> Self {
        let personal = Personal {
            ip: sender.ip.map(|ip| ip.to_string()).unwrap_or_default(),
            user_agent: sender.user_agent.clone().unwrap_or_default(),
            ..Personal::default()
        };
        let record = Record {
            version: RECORD_VERSION,
            kind: KIND_EVENT,
            write_key: sender.write_key,
            region: preparer.options.region.clone(),
            ..Record::default()
        };
        Self { preparer, personal, plaintext: Vec::new(), record }
    }

    /// The encoded record, with room for its tail; `None` if it would be over the limit.
    fn write(
        &mut self,
        taken: &Taken<'_>,
        keys: &UserKeys,
        nonces: &mut Nonces,
    ) -> Result<Option<Vec<u8>>, IngestError> {
        let Taken { sent, slot, times, .. } = taken;
        let is_unknown = *slot == TypeId::OTHER;
        let personal = &mut self.personal;
        refill(&mut personal.user_id, &sent.user_id);
        refill(&mut personal.properties, sent.properties);
        refill(&mut personal.device_id, sent.device_id.as_deref().unwrap_or_default());
        refill(&mut personal.session_id, sent.session_id.as_deref().unwrap_or_default());
        let original = if times.is_clamped { sent.event_time_text.as_ref() } else { "" };
        refill(&mut personal.original_event_time, original);
        refill(&mut personal.type_name, if is_unknown { &sent.event_type } else { "" });
        self.plaintext.clear();
        personal.append_to(&mut self.plaintext);

        let EventId(id) = sent.id;
        let row_tag = keys.row_tag(times.received_at_ms);
        let record = &mut self.record;
        record.event_id.clear();
        record.event_id.extend_from_slice(&id);
        record.slot = u32::from(slot.0);
        record.name_hash =
            if is_unknown { self.preparer.secrets.name_hash(&sent.event_type) } else { 0 };
        record.event_time_ms = times.event_time_ms;
        record.received_at_ms = times.received_at_ms;
        record.row_tag.clear();
        record.row_tag.extend_from_slice(&row_tag);
        record.clamped = times.is_clamped;
        record.sealed.clear();
        seal(keys, sent.id, &row_tag, &self.plaintext, nonces.next(), &mut record.sealed)
            .map_err(IngestError::Seal)?;

        // The sequence number is not known yet. The longest one counts, so that the same event is
        // always judged alike.
        let bytes = record.encoded_len() + TAIL_BYTES_MAX;
        if bytes > self.preparer.limits.record_bytes {
            return Ok(None);
        }
        let mut payload = Vec::with_capacity(bytes);
        record.encode(&mut payload).expect("a vector has room for any message");
        Ok(Some(payload))
    }
}

fn refill(buffer: &mut String, text: &str) {
    buffer.clear();
    buffer.push_str(text);
}
