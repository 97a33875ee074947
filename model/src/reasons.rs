//! The closed lists of reasons: what a collector says about an event, and what a reader of the log
//! says about a record.

use serde::{Deserialize, Serialize};

macro_rules! reasons {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $code:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $code)] $variant,)+
        }

        impl $name {
            /// Every reason of the list, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The code used in answers, metrics and logs.
            #[must_use]
            pub const fn code(self) -> &'static str {
                match self { $(Self::$variant => $code,)+ }
            }
        }
    };
}

reasons! {
    /// Why an event was not taken. Malformed is rejected, unfamiliar is not.
    RejectReason {
        /// The element of `events` is no JSON object.
        NotAnObject = "not_an_object",
        /// No eventId, no UUID, or the nil UUID.
        BadEventId = "bad_event_id",
        /// No eventType, or one that breaks the rules for names.
        BadType = "bad_type",
        /// No userId, an empty one, or one over the limit.
        BadUserId = "bad_user_id",
        /// No eventTime, or neither RFC 3339 with an offset nor whole epoch milliseconds.
        BadEventTime = "bad_event_time",
        /// More than 90 days before receivedAt.
        TooOld = "too_old",
        /// The log record would be over the limit.
        TooLarge = "too_large",
        /// Nested deeper than the limit.
        TooDeep = "too_deep",
        /// A field of the event stands twice.
        DuplicateField = "duplicate_field",
        /// The properties break the type's schema.
        Schema = "schema",
        /// Consent was denied, or it is required and missing.
        NoConsent = "no_consent",
    }
}

reasons! {
    /// What is worth knowing about an event that was taken.
    WarnReason {
        /// eventTime lay more than a second after receivedAt and was set to it.
        Clamped = "clamped",
        /// The registry does not know the type: counted as `__other`.
        UnknownType = "unknown_type",
        /// A copy of an event that was already taken: not appended again.
        Repeat = "repeat",
        /// The type is deprecated: still counted.
        DeprecatedType = "deprecated_type",
    }
}

reasons! {
    /// Why a record of the log was skipped. Skipped records are counted, never guessed at.
    InvalidReason {
        /// No bytes at all.
        Empty = "empty",
        /// Not a record of this format.
        Garbage = "garbage",
        /// A record of a version that this program does not know.
        Version = "version",
        /// A record that lacks a field or breaks a rule that every collector keeps.
        Foreign = "foreign",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Codes stand in clients' code and in dashboards: the lists are closed.
    #[test]
    fn codes_are_the_documented_ones() {
        let rejected: Vec<_> = RejectReason::ALL.iter().map(|reason| reason.code()).collect();
        assert_eq!(
            rejected,
            [
                "not_an_object",
                "bad_event_id",
                "bad_type",
                "bad_user_id",
                "bad_event_time",
                "too_old",
                "too_large",
                "too_deep",
                "duplicate_field",
                "schema",
                "no_consent",
            ]
        );
        let warned: Vec<_> = WarnReason::ALL.iter().map(|reason| reason.code()).collect();
        assert_eq!(warned, ["clamped", "unknown_type", "repeat", "deprecated_type"]);
        let invalid: Vec<_> = InvalidReason::ALL.iter().map(|reason| reason.code()).collect();
        assert_eq!(invalid, ["empty", "garbage", "version", "foreign"]);
    }

    #[test]
    fn a_reason_is_written_and_read_as_its_code() {
        for reason in RejectReason::ALL {
            let json = serde_json::to_string(reason).unwrap();
            assert_eq!(json, format!("\"{}\"", reason.code()));
            assert_eq!(serde_json::from_str::<RejectReason>(&json).unwrap(), *reason);
        }
    }
}
