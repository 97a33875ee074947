//! Why a store did not do what it was asked.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// One variant for each thing the caller can do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// It did not happen: the same call may be repeated.
    #[error("the store did not {action}")]
    Unavailable {
        /// What was tried.
        action: &'static str,
        /// What the store reported.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// It may or may not have happened: read back before anything else.
    #[error("whether the store did {action} is unknown")]
    Unknown {
        /// What was tried.
        action: &'static str,
        /// What the store reported.
        #[source]
        source: Box<dyn Error + Send + Sync>,
    },
    /// What was read is not what this program writes: stop and say so.
    #[error("the store holds something unreadable in {what}")]
    Corrupt {
        /// Which table and key.
        what: String,
    },
    /// No store takes what was given, because it could not be read back: a fault of this program.
    #[error("the store takes no {what}")]
    Unstorable {
        /// What was given.
        what: String,
    },
}

impl StoreError {
    pub(crate) fn unavailable(
        action: &'static str,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::Unavailable { action, source: source.into() }
    }

    pub(crate) fn unknown(
        action: &'static str,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> Self {
        Self::Unknown { action, source: source.into() }
    }

    pub(crate) fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt { what: what.into() }
    }

    /// The same error once for each of `count` rows that were tried together.
    pub(crate) fn for_each<T>(error: Self, count: usize) -> impl Iterator<Item = Result<T, Self>> {
        let shared = Shared::from(error);
        (0..count).map(move |_row| Err(shared.to_error()))
    }
}

/// An error that can be told several times.
enum Shared {
    Unavailable(&'static str, Arc<dyn Error + Send + Sync>),
    Unknown(&'static str, Arc<dyn Error + Send + Sync>),
    Corrupt(String),
    Unstorable(String),
}

impl From<StoreError> for Shared {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable { action, source } => Self::Unavailable(action, source.into()),
            StoreError::Unknown { action, source } => Self::Unknown(action, source.into()),
            StoreError::Corrupt { what } => Self::Corrupt(what),
            StoreError::Unstorable { what } => Self::Unstorable(what),
        }
    }
}

impl Shared {
    fn to_error(&self) -> StoreError {
        match self {
            Self::Unavailable(action, source) => {
                StoreError::unavailable(action, Cause(Arc::clone(source)))
            }
            Self::Unknown(action, source) => StoreError::unknown(action, Cause(Arc::clone(source))),
            Self::Corrupt(what) => StoreError::Corrupt { what: what.clone() },
            Self::Unstorable(what) => StoreError::Unstorable { what: what.clone() },
        }
    }
}

/// A cause with several effects; shows itself as the cause does.
#[derive(Debug)]
struct Cause(Arc<dyn Error + Send + Sync>);

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}
