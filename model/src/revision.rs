//! Revisions: the order of the writes of one bucket row.

use std::fmt;

/// Which kind of writer made a row. Recomputed rows always stand above streamed ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RevisionClass {
    /// Put by the streaming path.
    Streaming,
    /// Put by a rollup, backfill, replay or restatement.
    Recomputed,
}

/// Number of a deployment start. A later start has a greater generation, whatever its clock says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(u32);

impl Generation {
    /// The greatest generation that fits into a revision.
    pub const MAX: Self = Self((1 << 20) - 1);

    /// `None` if `number` does not fit into 20 bits.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        (number <= Self::MAX.0).then_some(Self(number))
    }

    /// The number itself.
    #[must_use]
    pub const fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Class, generation and time of a write, packed so that comparing the integers compares the
/// writes: `class:1 | generation:20 | time ms:42` below a zero sign bit.
///
/// A streaming revision carries the generation of its deployment start; a recomputed one carries
/// generation 0. In JSON it is a string, because it does not fit a double.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Revision(i64);

/// A time or an integer that no revision can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RevisionError {
    /// The time is before 1970 or needs more than 42 bits (after the year 2109).
    #[error("time {time_ms} ms does not fit into a revision")]
    Time {
        /// The time that does not fit, ms since the Unix epoch.
        time_ms: i64,
    },
    /// The stored integer is negative.
    #[error("{raw} is not a revision")]
    Raw {
        /// The integer.
        raw: i64,
    },
}

const TIME_BITS: u32 = 42;
const GENERATION_BITS: u32 = 20;
const TIME_MAX: i64 = (1 << TIME_BITS) - 1;

impl Revision {
    /// The revision of a streaming put.
    ///
    /// # Errors
    /// [`RevisionError::Time`] if `time_ms` does not fit.
    pub fn streaming(generation: Generation, time_ms: i64) -> Result<Self, RevisionError> {
        Self::pack(0, generation, time_ms)
    }

    /// The revision of a recomputed put.
    ///
    /// # Errors
    /// [`RevisionError::Time`] if `time_ms` does not fit.
    pub fn recomputed(time_ms: i64) -> Result<Self, RevisionError> {
        Self::pack(1, Generation(0), time_ms)
    }

    fn pack(class: i64, generation: Generation, time_ms: i64) -> Result<Self, RevisionError> {
        if !(0..=TIME_MAX).contains(&time_ms) {
            return Err(RevisionError::Time { time_ms });
        }
        let high = (class << GENERATION_BITS) | i64::from(generation.0);
        Ok(Self((high << TIME_BITS) | time_ms))
    }

    /// Reads a stored revision.
    ///
    /// # Errors
    /// [`RevisionError::Raw`] if it is negative.
    pub fn from_raw(raw: i64) -> Result<Self, RevisionError> {
        if raw < 0 { Err(RevisionError::Raw { raw }) } else { Ok(Self(raw)) }
    }

    /// The packed integer, never negative.
    #[must_use]
    pub const fn raw(self) -> i64 {
        self.0
    }

    /// Which kind of writer made it.
    #[must_use]
    pub const fn class(self) -> RevisionClass {
        if self.0 >> (TIME_BITS + GENERATION_BITS) == 0 {
            RevisionClass::Streaming
        } else {
            RevisionClass::Recomputed
        }
    }

    /// The deployment start that made it; 0 for a recomputed row.
    #[must_use]
    #[expect(
        clippy::cast_sign_loss,
        reason = "the mask leaves the 20 bits of the generation; a revision is not negative"
    )]
    pub const fn generation(self) -> Generation {
        Generation((self.0 >> TIME_BITS) as u32 & Generation::MAX.0)
    }

    /// When it was made by the writer's clock, ms since the Unix epoch.
    #[must_use]
    pub const fn time_ms(self) -> i64 {
        self.0 & TIME_MAX
    }
}

impl fmt::Debug for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}:{}:{}", self.class(), self.generation(), self.time_ms())
    }
}

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn generation() -> impl Strategy<Value = Generation> {
        let number = prop_oneof![0_u32..4, 0..=Generation::MAX.0];
        number.prop_map(|number| Generation::new(number).unwrap())
    }

    fn revision() -> impl Strategy<Value = Revision> {
        let time = || prop_oneof![0_i64..4, 0..=TIME_MAX];
        prop_oneof![
            (generation(), time()).prop_map(|(of, at)| Revision::streaming(of, at).unwrap()),
            time().prop_map(|at| Revision::recomputed(at).unwrap()),
        ]
    }

    #[test]
    fn the_packed_integer_is_class_generation_time() {
        let seven = Generation::new(7).unwrap();
        let cases = [
            (Revision::streaming(Generation::default(), 0), 0),
            (Revision::streaming(seven, 5), (7 << 42) | 5),
            (Revision::streaming(Generation::MAX, TIME_MAX), (1 << 62) - 1),
            (Revision::recomputed(0), 1 << 62),
            (Revision::recomputed(TIME_MAX), (1 << 62) | TIME_MAX),
        ];
        for (revision, raw) in cases {
            let revision = revision.unwrap();
            assert_eq!(revision.raw(), raw);
            assert_eq!(revision.to_string(), raw.to_string());
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let newest = Generation::MAX;
        assert_eq!(Generation::new(newest.number() + 1), None);
        for time_ms in [-1, TIME_MAX + 1, i64::MIN, i64::MAX] {
            let want = Err(RevisionError::Time { time_ms });
            assert_eq!(Revision::streaming(newest, time_ms), want);
            assert_eq!(Revision::recomputed(time_ms), want);
        }
        assert_eq!(Revision::from_raw(-1), Err(RevisionError::Raw { raw: -1 }));
    }

    /// A restart with a slower clock still writes the greater revision, and a recount stands above
    /// both.
    #[test]
    fn a_later_start_outranks_a_later_clock() {
        let at = |generation, time| {
            Revision::streaming(Generation::new(generation).unwrap(), time).unwrap()
        };
        assert!(at(2, 1_000) > at(1, 9_000));
        assert!(Revision::recomputed(0).unwrap() > at(Generation::MAX.0, TIME_MAX));
    }

    proptest! {
        #[test]
        fn packed_order_is_the_order_of_class_generation_and_time(a in revision(), b in revision()) {
            let parts = |of: Revision| (of.class(), of.generation(), of.time_ms());
            prop_assert_eq!(a.raw().cmp(&b.raw()), parts(a).cmp(&parts(b)));
            prop_assert_eq!(a.cmp(&b), a.raw().cmp(&b.raw()));
        }

        #[test]
        fn the_parts_come_back(generation in generation(), time_ms in 0..=TIME_MAX) {
            let streaming = Revision::streaming(generation, time_ms).unwrap();
            prop_assert_eq!(streaming.class(), RevisionClass::Streaming);
            prop_assert_eq!((streaming.generation(), streaming.time_ms()), (generation, time_ms));
            let recomputed = Revision::recomputed(time_ms).unwrap();
            prop_assert_eq!(recomputed.class(), RevisionClass::Recomputed);
            prop_assert_eq!(recomputed.generation().number(), 0);
            prop_assert_eq!(recomputed.time_ms(), time_ms);
            for revision in [streaming, recomputed] {
                prop_assert_eq!(Revision::from_raw(revision.raw()), Ok(revision));
            }
        }
    }
}
