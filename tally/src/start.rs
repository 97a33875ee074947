//! How a start of the pipeline differs from the usual one.

use clap::Args;
use tally_checkpoints::reader::Origin;
use tally_checkpoints::{CheckpointId, SavepointName};

use crate::failure::Failure;
use crate::torture::{FaultArgs, Faults};

/// What `tally up` and `tally worker` take to start otherwise than from the last checkpoint.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct StartArgs {
    /// Start from this checkpoint (its id) or savepoint (its name) instead of the newest checkpoint;
    /// `tally checkpoints list` shows both.
    #[arg(long, value_name = "NAME", value_parser = origin)]
    from: Option<Origin>,
    /// Start although retention has removed records that were never counted; their hours are
    /// marked.
    #[arg(long)]
    accept_hole: bool,
    #[command(flatten)]
    faults: FaultArgs,
}

/// How the pipeline is to start.
#[derive(Clone, Debug, Default)]
pub(crate) struct Start {
    pub(crate) origin: Origin,
    pub(crate) accept_hole: bool,
    pub(crate) faults: Faults,
}

impl StartArgs {
    /// # Errors
    /// If the faults of a torture cannot be read.
    pub(crate) fn start(&self) -> Result<Start, Failure> {
        Ok(Start {
            origin: self.from.clone().unwrap_or_default(),
            accept_hole: self.accept_hole,
            faults: Faults::read(&self.faults)?,
        })
    }
}

/// Reads the id of a checkpoint or the name of a savepoint.
pub(crate) fn origin(text: &str) -> Result<Origin, String> {
    if let Some(id) = CheckpointId::parse(text) {
        return Ok(Origin::Checkpoint(id));
    }
    let name = text.parse::<SavepointName>();
    name.map(Origin::Savepoint).map_err(|error| format!("no checkpoint id, and {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_and_a_name_are_told_apart() {
        let id = CheckpointId { epoch: 7, ..CheckpointId::default() };
        assert_eq!(origin(&id.to_string()), Ok(Origin::Checkpoint(id)));
        let name = "before-upgrade".parse().unwrap();
        assert_eq!(origin("before-upgrade"), Ok(Origin::Savepoint(name)));
        assert!(origin("Before Upgrade").unwrap_err().contains("lowercase letters"));
    }
}
