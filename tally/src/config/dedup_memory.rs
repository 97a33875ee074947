//! RAM for the ids that were seen: what is expected, and what it may take.

use tally_model::ids::Shards;
use tally_model::rules::DedupRule;
use tally_operators::dedup::{DedupOptions, DirectoryStore};

use super::{Layers, Origin, SettingError};
use crate::process;
use crate::units::show_size;

/// What is taken for the machine's RAM where the system does not tell it.
const RAM_BYTES_UNKNOWN: u64 = 4 << 30;

/// RAM for the ids that were seen.
#[derive(Clone, Debug)]
pub(crate) struct DedupMemory {
    /// Different ids expected at a time.
    pub(crate) ids: u64,
    ids_origin: Origin,
    /// What they may take.
    pub(crate) budget_bytes: u64,
    budget_origin: Origin,
}

impl DedupMemory {
    /// Reads `dedup.expected` and `dedup.memory`.
    ///
    /// # Errors
    /// [`SettingError`] if one of them is no number or size.
    pub(super) fn of(layers: &Layers) -> Result<Self, SettingError> {
        let budget_bytes = if layers.text("dedup.memory")? == "auto" {
            process::machine_ram_bytes().unwrap_or(RAM_BYTES_UNKNOWN) / 4
        } else {
            layers.size("dedup.memory", 1 << 20, 1 << 50)?
        };
        Ok(Self {
            ids: layers.count("dedup.expected", 1, 1 << 50)?,
            ids_origin: layers.origin("dedup.expected"),
            budget_bytes,
            budget_origin: layers.origin("dedup.memory"),
        })
    }

    /// What the expected ids take, in bytes.
    ///
    /// # Errors
    /// [`SettingError::Value`] if that is over the budget.
    pub(crate) fn check(&self, rule: DedupRule, shards: Shards) -> Result<u64, SettingError> {
        let Self { ids, ids_origin, budget_bytes, budget_origin } = self;
        let per_id = DirectoryStore::RAM_BYTES_PER_ID;
        let checked =
            DedupOptions::default().check_budget(rule, shards, *ids, per_id, *budget_bytes);
        checked.map_err(|over| {
            let (budget, needed) = (show_size(over.budget_bytes), show_size(over.needed_bytes));
            // To blame is what somebody has set.
            if *ids_origin == Origin::Default {
                return SettingError::Value {
                    origin: budget_origin.clone(),
                    key: "dedup.memory".to_owned(),
                    given: budget,
                    allowed: format!("at least {needed}, which dedup.expected = {ids} needs"),
                };
            }
            SettingError::Value {
                origin: ids_origin.clone(),
                key: "dedup.expected".to_owned(),
                given: ids.to_string(),
                allowed: format!(
                    "as many as fit into dedup.memory = {budget}; these need {needed}"
                ),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(settings: &[(&str, &str)]) -> DedupMemory {
        let mut layers = Layers::defaults();
        for (key, value) in settings {
            match value.parse::<i64>() {
                Ok(number) => layers.add_flag("--test", key, number).unwrap(),
                Err(_) => layers.add_flag("--test", key, *value).unwrap(),
            }
        }
        DedupMemory::of(&layers).unwrap()
    }

    /// B140: 64 shards by 8 day buckets take what one budget says, or the start is refused.
    #[test]
    fn what_is_expected_must_fit_into_the_budget() {
        let check = |of: &DedupMemory| of.check(DedupRule::DEFAULT, Shards::DEFAULT);
        let needed = check(&memory(&[("dedup.memory", "1GiB")])).unwrap();
        assert!(needed <= 2 * 100_000_000, "two bytes an id: {needed}");
        let few = memory(&[("dedup.memory", "8MiB"), ("dedup.expected", "1000000")]);
        assert!(check(&few).is_ok());
        let refused = |settings| check(&memory(settings)).unwrap_err().to_string();
        let small = ("dedup.memory", "64MiB");
        for (settings, wanted) in [
            (&[small][..], "dedup.memory = 64MiB is not allowed; allowed: at least 184MiB, which"),
            (
                &[small, ("dedup.expected", "100000001")],
                "dedup.expected = 100000001 is not allowed",
            ),
            (&[small, ("dedup.expected", "100000001")], "dedup.memory = 64MiB; these need 184MiB"),
        ] {
            let error = refused(settings);
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn by_default_a_quarter_of_the_machine_may_be_taken() {
        let quarter = process::machine_ram_bytes().unwrap_or(RAM_BYTES_UNKNOWN) / 4;
        assert_eq!(memory(&[]).budget_bytes, quarter);
    }
}
