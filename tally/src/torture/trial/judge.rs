//! The end of a trial: every minute is closed, and everything compared.

use std::collections::HashSet;
use std::sync::Arc;

use tally_model::ids::EventId;

use super::{Stop, Trial};
use crate::config::{Layers, Settings};
use crate::deployment::{Deployment, Missing};
use crate::torture::faults::CRASH_AT;
use crate::torture::verify::verify;

/// From the end of a process until the next one has acknowledged an event.
const RESTART_MS_MAX: i64 = 10_000;

impl Trial<'_> {
    /// Closes every minute with a bounded run and compares.
    pub(super) fn judge(&mut self, acknowledged: &HashSet<EventId>) -> Result<(), Stop> {
        let [_, workers] = self.schedule.last_workers;
        self.site.faults.set(CRASH_AT, None)?;
        let (report, code) = self.site.count(workers)?;
        // 1 says that there were late events, which is as it should be.
        if !matches!(code, Some(0 | 1)) {
            return Err(self.by_itself(&format!("the bounded run ended with {code:?}")));
        }
        let deployment = self.open()?;
        let (facts, differences) =
            verify(&deployment, self.schedule.timing, &report, acknowledged)?;
        self.outcome.records = facts.totals.records;
        self.outcome.differences.extend(differences);
        for restart_ms in self.outcome.restarts_ms.iter().filter(|ms| **ms > RESTART_MS_MAX) {
            let seconds = restart_ms / 1_000;
            self.outcome.differences.push(format!("a restart took {seconds} s"));
        }
        Ok(())
    }

    /// Opens the data folder here; no other process has it. No death of a node may prevent that.
    pub(super) fn open(&self) -> Result<Deployment, Stop> {
        let mut layers = Layers::defaults();
        layers.add_environment(self.site.variables().iter().cloned())?;
        let settings = Settings::check(&layers)?;
        let clock = Arc::clone(self.clock);
        Deployment::open(&self.site.data_dir(), Missing::Refuse, &settings, clock).map_err(
            |failure| {
                let life = self.life;
                Stop::Differs(format!("no folder to open after life {life}: {:#}", failure.error))
            },
        )
    }
}
