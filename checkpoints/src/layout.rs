//! Under which names a deployment's objects lie.
//!
//! ```text
//! generations/0000004                              a start of the deployment, empty
//! data/g0000004-e00000000000000000123-s0003        state of shard 3 at epoch 123
//! data/g0000004-s0003-0000000017                   a dedup segment, named by its shard
//! manifests/g0000004-e00000000000000000123         a checkpoint
//! savepoints/before-upgrade                        the manifest of a checkpoint that is kept
//! ```
//!
//! Numbers have leading zeros, so that a plain listing orders manifests by (generation, epoch).

use std::fmt;
use std::str::FromStr;

use tally_model::ids::Shard;
use tally_model::revision::Generation;

use crate::objects::ObjectName;

pub(crate) const GENERATIONS: &str = "generations/";
pub(crate) const DATA: &str = "data/";
pub(crate) const MANIFESTS: &str = "manifests/";
pub(crate) const SAVEPOINTS: &str = "savepoints/";

/// Which checkpoint: the deployment start that made it, and the epoch of the cut. Ordered by age.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CheckpointId {
    /// The deployment start that made it.
    pub generation: Generation,
    /// The epoch of the cut, which only grows within a generation.
    pub epoch: u64,
}

impl fmt::Display for CheckpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{:07}-e{:020}", self.generation.number(), self.epoch)
    }
}

impl CheckpointId {
    /// Reads what [`Display`](fmt::Display) wrote; `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let (generation, epoch) = text.strip_prefix('g')?.split_once("-e")?;
        let generation = Generation::new(generation.parse().ok()?)?;
        let id = Self { generation, epoch: epoch.parse().ok()? };
        (id.to_string() == text).then_some(id)
    }
}

/// The name of a checkpoint that is kept until somebody removes it: 1 to 64 lowercase letters,
/// digits and hyphens.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SavepointName(String);

/// The text is no name for a savepoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no savepoint name: 1 to 64 lowercase letters, digits and hyphens")]
pub struct BadSavepointName {
    /// The text.
    pub text: String,
}

impl FromStr for SavepointName {
    type Err = BadSavepointName;

    fn from_str(text: &str) -> Result<Self, BadSavepointName> {
        let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let is_good = (1..=64).contains(&text.len()) && text.bytes().all(fits);
        is_good
            .then(|| Self(text.to_owned()))
            .ok_or_else(|| BadSavepointName { text: text.to_owned() })
    }
}

impl fmt::Display for SavepointName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A name that this module made of checked parts.
fn named(text: String) -> ObjectName {
    ObjectName::parse(&text).expect("names are made of checked parts")
}

pub(crate) fn generation(generation: Generation) -> ObjectName {
    named(format!("{GENERATIONS}{:07}", generation.number()))
}

pub(crate) fn manifest(id: CheckpointId) -> ObjectName {
    named(format!("{MANIFESTS}{id}"))
}

pub(crate) fn savepoint(name: &SavepointName) -> ObjectName {
    named(format!("{SAVEPOINTS}{name}"))
}

pub(crate) fn state(id: CheckpointId, shard: Shard) -> ObjectName {
    named(format!("{DATA}{id}-s{:04}", shard.0))
}

/// The object of a segment; `None` if the name does not say its generation as it has to.
pub(crate) fn segment(name: &str) -> Option<ObjectName> {
    let object = ObjectName::parse(&format!("{DATA}{name}")).ok()?;
    let is_flat = !name.contains('/');
    (is_flat && data_generation(&object).is_some()).then_some(object)
}

/// The generation that is written in the name of a data object.
pub(crate) fn data_generation(name: &ObjectName) -> Option<Generation> {
    let (number, _rest) = name.as_str().strip_prefix(DATA)?.strip_prefix('g')?.split_once('-')?;
    let has_all_digits = number.len() == 7 && number.bytes().all(|byte| byte.is_ascii_digit());
    if has_all_digits { Generation::new(number.parse().ok()?) } else { None }
}

/// The generation that the name of an object of any kind carries.
pub(crate) fn seen_generation(name: &ObjectName) -> Option<Generation> {
    if let Some(number) = name.as_str().strip_prefix(GENERATIONS) {
        return Generation::new(number.parse().ok()?);
    }
    manifest_id(name).map(|id| id.generation)
}

pub(crate) fn manifest_id(name: &ObjectName) -> Option<CheckpointId> {
    CheckpointId::parse(name.as_str().strip_prefix(MANIFESTS)?)
}

pub(crate) fn savepoint_name(name: &ObjectName) -> Option<SavepointName> {
    name.as_str().strip_prefix(SAVEPOINTS)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_order_checkpoints_and_read_back() {
        let id = |generation, epoch| CheckpointId {
            generation: Generation::new(generation).unwrap(),
            epoch,
        };
        let ids = [id(1, 9), id(1, 10), id(2, 0), id(10, 5), id(1 << 19, u64::MAX)];
        let names: Vec<_> = ids.iter().map(|id| manifest(*id)).collect();
        assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
        for (id, name) in ids.iter().zip(&names) {
            assert_eq!(manifest_id(name), Some(*id));
            assert_eq!(seen_generation(name), Some(id.generation));
            assert_eq!(data_generation(&state(*id, Shard(7))), Some(id.generation));
        }
        for text in ["g1-e5", "g0000001", "", "g0000001-e5", "gx-ey"] {
            assert_eq!(CheckpointId::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_segment_name_says_its_generation() {
        let good = segment("g0000004-s0003-0000000017").unwrap();
        assert_eq!(data_generation(&good).map(Generation::number), Some(4));
        for text in
            ["", "s0003", "g4-s0", "g0000004", "g0000004-a/b", "../g0000004-a", "g9999999-a"]
        {
            assert_eq!(segment(text), None, "{text}");
        }
    }

    #[test]
    fn a_savepoint_name_is_plain() {
        assert_eq!("before-2".parse::<SavepointName>().unwrap().to_string(), "before-2");
        for text in ["", "A", "a/b", "..", "a.b", &"a".repeat(65)] {
            assert!(text.parse::<SavepointName>().is_err(), "{text}");
        }
    }
}
