//! What stands inside a sealed part.

use std::fmt;

use prost::Message;

/// The version that this program writes.
const VERSION: u32 = 1;

/// The personal part of an event. Numbers are part of the format: never reuse one. Empty text means
/// that the event had nothing there.
///
/// Golden files under `privacy/golden/` hold one of every released version; each must still be
/// readable.
#[derive(Clone, PartialEq, Message)]
#[prost(skip_debug)]
pub struct Personal {
    /// Version of the writer; [`Personal::default`] fills it in.
    #[prost(uint32, required, tag = "1", default = "1")]
    pub version: u32,
    /// The user, as the client named them.
    #[prost(string, tag = "2")]
    pub user_id: String,
    /// The properties: the client's JSON text, byte by byte.
    #[prost(string, tag = "3")]
    pub properties: String,
    /// The address that the event came from, where capture is on.
    #[prost(string, tag = "4")]
    pub ip: String,
    /// The User-Agent header, where capture is on.
    #[prost(string, tag = "5")]
    pub user_agent: String,
    /// The client's device.
    #[prost(string, tag = "6")]
    pub device_id: String,
    /// The client's session.
    #[prost(string, tag = "7")]
    pub session_id: String,
    /// eventTime as sent, if it was clamped.
    #[prost(string, tag = "8")]
    pub original_event_time: String,
    /// The name of the event type, if it was unknown.
    #[prost(string, tag = "9")]
    pub type_name: String,
}

impl fmt::Debug for Personal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Personal(hidden)")
    }
}

/// Why an opened part cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PersonalError {
    /// A newer program wrote it: read it with that one.
    #[error("the personal part has version {version}; this program reads version {VERSION}")]
    Version {
        /// The version found.
        version: u32,
    },
    /// Not what a collector seals.
    #[error("the personal part is not readable")]
    Garbage(#[source] prost::DecodeError),
}

impl Personal {
    /// Appends the encoded form to `out`.
    ///
    /// # Panics
    /// Never: a vector takes any length.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        self.encode(out).expect("a vector takes any length");
    }

    /// Reads the encoded form.
    ///
    /// # Errors
    /// [`PersonalError`].
    pub fn read(bytes: &[u8]) -> Result<Self, PersonalError> {
        let personal = Self::decode(bytes).map_err(PersonalError::Garbage)?;
        match personal.version {
            VERSION => Ok(personal),
            version => Err(PersonalError::Version { version }),
        }
    }
}
