//! How a command ends when it does not end well: a message and an exit code.

use std::fmt;

/// The exit codes that scripts rely on; 0 is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Failed, or found a difference.
    Failed = 1,
    /// Wrong usage or setting.
    Usage = 2,
    /// What was asked for does not exist.
    NotFound = 3,
    /// Not ready or pending: try again later.
    NotReady = 4,
    /// Refused: a fence, a lock or a precondition.
    Refused = 5,
}

/// An error with the exit code that belongs to it.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) error: anyhow::Error,
}

impl Failure {
    pub(crate) fn new(exit: Exit, error: impl Into<anyhow::Error>) -> Self {
        Self { exit, error: error.into() }
    }

    pub(crate) fn message(exit: Exit, message: impl fmt::Display) -> Self {
        Self { exit, error: anyhow::anyhow!("{message}") }
    }

    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::message(Exit::Usage, message)
    }

    pub(crate) fn refused(message: impl fmt::Display) -> Self {
        Self::message(Exit::Refused, message)
    }
}

/// Whatever has no code of its own has failed.
impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self { exit: Exit::Failed, error: error.into() }
    }
}
