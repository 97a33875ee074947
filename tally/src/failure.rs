//! How a command ends when it does not end well: a message and an exit code.

use std::fmt;

use tally_eventlog::LogError;
use tally_sinks::error::StoreError;

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

    /// The failure that an error stands for: not ready if a server did not answer, else `exit`.
    pub(crate) fn unless_away(exit: Exit, error: impl Into<anyhow::Error>) -> Self {
        let error = error.into();
        let exit = if error.chain().any(is_about_absence) { Exit::NotReady } else { exit };
        Self { exit, error }
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

/// Whatever has no code of its own has failed, unless only a server was away.
impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::unless_away(Exit::Failed, error)
    }
}

/// Whether the log or the store did not answer, so that the same may work later.
fn is_about_absence(error: &(dyn std::error::Error + 'static)) -> bool {
    matches!(
        error.downcast_ref(),
        Some(StoreError::Unavailable { .. } | StoreError::Unknown { .. })
    ) || matches!(error.downcast_ref(), Some(LogError::Unavailable { .. }))
}

#[cfg(test)]
mod tests {
    use tally_sinks::marks::GenerationError;

    use super::*;

    #[test]
    fn whoever_does_not_find_a_server_is_told_to_try_again_however_deep_that_lies() {
        let source = || "connection refused".into();
        let away = StoreError::Unavailable { action: "read a row", source: source() };
        let open = StoreError::Unknown { action: "write a row", source: source() };
        let broken = StoreError::Corrupt { what: "marks".to_owned() };
        let log = LogError::Unavailable { action: "ask for the ends", reason: String::new() };
        for (error, want) in [
            (anyhow::Error::new(GenerationError::Store(away)).context("no start"), Exit::NotReady),
            (anyhow::Error::new(GenerationError::Store(open)), Exit::NotReady),
            (anyhow::Error::new(GenerationError::Store(broken)), Exit::Failed),
            (anyhow::Error::new(log), Exit::NotReady),
            (anyhow::anyhow!("something else"), Exit::Failed),
        ] {
            let text = format!("{error:#}");
            assert_eq!(Failure::from(error).exit, want, "{text}");
        }
    }
}
