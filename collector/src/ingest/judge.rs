//! What is taken, and where it counts.
//!
//! Invariant I-3 of ARCHITECTURE.md.

use tally_model::reasons::{RejectReason, WarnReason};
use tally_model::types::TypeId;
use tally_sinks::registry::{RegistrySnapshot, TypeStatus};

use super::{Answer, CLAMP_QUIET_MS, EVENT_AGE_MAX_MS, Preparer, ReceivedAt, Verdict, Warnings};
use crate::limits::ConsentRule;
use crate::parse::{ParsedEvent, SentConsent, SentEvent};

/// A batch whose events are judged but not yet sealed.
#[derive(Debug)]
pub struct Judged<'a> {
    /// One per event, in the order sent; those of taken events may still change.
    pub(super) answers: Vec<Answer<'a>>,
    /// The events to seal, in the order sent.
    pub(super) taken: Vec<Taken<'a>>,
}

/// An event to seal.
#[derive(Debug)]
pub(super) struct Taken<'a> {
    /// Its place among the events sent.
    pub(super) index: usize,
    pub(super) sent: SentEvent<'a>,
    pub(super) slot: TypeId,
    pub(super) times: Times,
}

/// The two stamps of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Times {
    pub(super) event_time_ms: i64,
    pub(super) received_at_ms: i64,
    /// Whether eventTime was set to receivedAt.
    pub(super) is_clamped: bool,
}

impl Judged<'_> {
    /// How many events are taken, repeats included.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.taken.len()
    }
}

impl Preparer {
    /// Decides about each event of a batch by what it says and when it came. Never blocks.
    ///
    /// Repeats and records over the size limit are found later, by [`Preparer::seal`].
    #[must_use]
    pub fn judge<'a>(&self, events: Vec<ParsedEvent<'a>>, stamp: ReceivedAt) -> Judged<'a> {
        let types = self.registry.snapshot();
        let mut judged = Judged {
            answers: Vec::with_capacity(events.len()),
            taken: Vec::with_capacity(events.len()),
        };
        for (index, ParsedEvent { sent_id, event }) in events.into_iter().enumerate() {
            let verdict = match event.and_then(|sent| self.judge_one(index, sent, stamp, &types)) {
                Ok((taken, warnings)) => {
                    judged.taken.push(taken);
                    Verdict::Accepted(warnings)
                }
                Err(reason) => Verdict::Rejected(reason),
            };
            judged.answers.push(Answer { sent_id, verdict });
        }
        judged
    }

    fn judge_one<'a>(
        &self,
        index: usize,
        sent: SentEvent<'a>,
        stamp: ReceivedAt,
        types: &RegistrySnapshot,
    ) -> Result<(Taken<'a>, Warnings), RejectReason> {
        match (sent.consent, self.options.consent) {
            (SentConsent::Denied, _) | (SentConsent::Unstated, ConsentRule::Required) => {
                return Err(RejectReason::NoConsent);
            }
            (SentConsent::Granted, _) | (SentConsent::Unstated, ConsentRule::Optional) => {}
        }
        let times = Times::stamp(sent.event_time_ms, stamp)?;
        // The record holds both in full, so this spares the sealing of what cannot fit.
        if sent.properties.len() + sent.user_id.len() > self.limits.record_bytes {
            return Err(RejectReason::TooLarge);
        }
        let (slot, of_type) = match types.get(&sent.event_type) {
            None => (TypeId::OTHER, Some(WarnReason::UnknownType)),
            Some(entry) => match entry.status {
                TypeStatus::Active => (entry.type_id, None),
                TypeStatus::Deprecated => (entry.type_id, Some(WarnReason::DeprecatedType)),
            },
        };
        let ahead_ms = sent.event_time_ms.saturating_sub(times.event_time_ms);
        let warnings = Warnings { clamped: ahead_ms > CLAMP_QUIET_MS, repeat: false, of_type };
        Ok((Taken { index, sent, slot, times }, warnings))
    }
}

impl Times {
    /// eventTime is never after receivedAt, and at most 90 days before it.
    fn stamp(sent_ms: i64, stamp: ReceivedAt) -> Result<Self, RejectReason> {
        let now_ms = stamp.now_ms();
        let event_time_ms = sent_ms.min(now_ms);
        if now_ms.saturating_sub(event_time_ms) > EVENT_AGE_MAX_MS {
            return Err(RejectReason::TooOld);
        }
        let received_at_ms = match stamp {
            ReceivedAt::Now(now_ms) => now_ms,
            ReceivedAt::EventTime { .. } => event_time_ms,
        };
        Ok(Self { event_time_ms, received_at_ms, is_clamped: sent_ms > now_ms })
    }
}
