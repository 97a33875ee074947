//! Count vectors: all counts of one bucket.

use crate::types::TypeId;

/// Counts by slot: `counts[i]` belongs to the event type with id `i`. A short vector reads as if
/// it were padded with zeros, so buckets written before a type existed stay valid.
///
/// Stored as u64 little-endian, slot 0 first.
#[derive(Clone, Debug, Default)]
pub struct CountVector {
    counts: Vec<u64>,
}

/// A vector that cannot be read or added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VectorError {
    /// The stored bytes are no whole number of u64, or more than the registry can have slots.
    #[error("{bytes} bytes are no vector of at most {} counts of 8 bytes", TypeId::CAP)]
    Length {
        /// Length of what was read.
        bytes: usize,
    },
    /// A sum passed `u64::MAX`.
    #[error("the count of slot {slot} overflows")]
    Overflow {
        /// The slot whose sum does not fit.
        slot: usize,
    },
}

impl CountVector {
    /// A vector without any count.
    #[must_use]
    pub const fn new() -> Self {
        Self { counts: Vec::new() }
    }

    /// A vector from counts in slot order.
    #[must_use]
    pub const fn from_counts(counts: Vec<u64>) -> Self {
        Self { counts }
    }

    /// The stored counts in slot order, without padding.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Number of slots stored.
    #[must_use]
    pub fn width(&self) -> usize {
        self.counts.len()
    }

    /// The count of a slot; zero beyond the stored width.
    #[must_use]
    pub fn get(&self, slot: TypeId) -> u64 {
        self.counts.get(usize::from(slot.0)).copied().unwrap_or(0)
    }

    /// Sets the count of a slot, widening the vector if needed. Slots lie below [`TypeId::CAP`]:
    /// the registry and the log record let no other one in.
    pub fn set(&mut self, slot: TypeId, count: u64) {
        let index = usize::from(slot.0);
        if index >= self.counts.len() {
            self.counts.resize(index + 1, 0);
        }
        if let Some(cell) = self.counts.get_mut(index) {
            *cell = count;
        }
    }

    /// Adds `other` slot by slot.
    ///
    /// # Errors
    /// [`VectorError::Overflow`] if a sum does not fit; the vector is then unspecified.
    pub fn add(&mut self, other: &Self) -> Result<(), VectorError> {
        if other.counts.len() > self.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (slot, (sum, count)) in self.counts.iter_mut().zip(&other.counts).enumerate() {
            *sum = sum.checked_add(*count).ok_or(VectorError::Overflow { slot })?;
        }
        Ok(())
    }

    /// The sum over all slots.
    ///
    /// # Errors
    /// [`VectorError::Overflow`] naming the slot at which the sum stops fitting.
    pub fn total(&self) -> Result<u64, VectorError> {
        let mut total = 0_u64;
        for (slot, count) in self.counts.iter().enumerate() {
            total = total.checked_add(*count).ok_or(VectorError::Overflow { slot })?;
        }
        Ok(total)
    }

    /// Whether some slot of `self` is lower than the same slot of `other`.
    #[must_use]
    pub fn lowers(&self, other: &Self) -> bool {
        other
            .counts
            .iter()
            .enumerate()
            .any(|(index, theirs)| self.counts.get(index).copied().unwrap_or(0) < *theirs)
    }

    /// The bytes to store.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        self.counts.iter().flat_map(|count| count.to_le_bytes()).collect()
    }

    /// Reads stored bytes.
    ///
    /// # Errors
    /// [`VectorError::Length`] if they are no whole number of counts or more than
    /// [`TypeId::CAP`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, VectorError> {
        let (chunks, rest) = bytes.as_chunks::<8>();
        if !rest.is_empty() || chunks.len() > usize::from(TypeId::CAP) {
            return Err(VectorError::Length { bytes: bytes.len() });
        }
        Ok(Self { counts: chunks.iter().map(|chunk| u64::from_le_bytes(*chunk)).collect() })
    }
}

/// Zero-padded: `[1, 0]` equals `[1]`.
impl PartialEq for CountVector {
    fn eq(&self, other: &Self) -> bool {
        !self.lowers(other) && !other.lowers(self)
    }
}

impl Eq for CountVector {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn counts() -> impl Strategy<Value = Vec<u64>> {
        prop::collection::vec(prop_oneof![Just(0), 0_u64..4, 0..u64::MAX / 64], 0..12)
    }

    #[test]
    fn a_short_vector_reads_as_zero_padded() {
        let short = CountVector::from_counts(vec![1]);
        let long = CountVector::from_counts(vec![1, 0, 0]);
        assert_eq!(short, long);
        assert_eq!(CountVector::new(), CountVector::from_counts(vec![0; 9]));
        assert_ne!(short, CountVector::from_counts(vec![1, 0, 2]));
        assert_eq!((short.get(TypeId(0)), short.get(TypeId(9))), (1, 0));
        assert_eq!((short.width(), long.width()), (1, 3));
    }

    #[test]
    fn a_sum_that_does_not_fit_names_its_slot() {
        let mut sum = CountVector::from_counts(vec![1, u64::MAX]);
        assert_eq!(sum.total(), Err(VectorError::Overflow { slot: 1 }));
        let one_more = CountVector::from_counts(vec![0, 1]);
        assert_eq!(sum.add(&one_more), Err(VectorError::Overflow { slot: 1 }));
        let full = CountVector::from_counts(vec![u64::MAX]);
        assert_eq!(full.total(), Ok(u64::MAX));
    }

    #[test]
    fn bytes_are_counts_little_endian_from_slot_0() {
        let mut vector = CountVector::new();
        vector.set(TypeId(1), 0x0102);
        let bytes = [0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0];
        assert_eq!(vector.to_bytes(), bytes);
        assert_eq!(CountVector::from_bytes(&bytes), Ok(vector));
    }

    #[test]
    fn bytes_that_are_no_vector_are_refused() {
        let cap = usize::from(TypeId::CAP) * 8;
        for (bytes, readable) in [(0, true), (7, false), (9, false), (cap, true), (cap + 8, false)]
        {
            let read = CountVector::from_bytes(&vec![1; bytes]);
            assert_eq!(read.is_ok(), readable, "{bytes} bytes");
            if !readable {
                assert_eq!(read, Err(VectorError::Length { bytes }));
            }
        }
    }

    proptest! {
        #[test]
        fn sums_are_those_of_the_padded_slots(a in counts(), b in counts()) {
            let [left, right] = [&a, &b].map(|counts| CountVector::from_counts(counts.clone()));
            let mut sum = left.clone();
            sum.add(&right).unwrap();
            for slot in 0..20 {
                prop_assert_eq!(sum.get(TypeId(slot)), left.get(TypeId(slot)) + right.get(TypeId(slot)));
            }
            prop_assert_eq!(sum.width(), a.len().max(b.len()));
            prop_assert_eq!(sum.total().unwrap(), a.iter().chain(&b).sum::<u64>());
            prop_assert!(!sum.lowers(&left) && !sum.lowers(&right));
        }

        #[test]
        fn stored_bytes_are_read_back(counts in counts()) {
            let read = CountVector::from_bytes(&CountVector::from_counts(counts.clone()).to_bytes());
            prop_assert_eq!(read.unwrap().counts, counts);
        }

        #[test]
        fn a_set_slot_changes_no_other(counts in counts(), slot in 0_u16..20, count: u64) {
            let before = CountVector::from_counts(counts);
            let mut after = before.clone();
            after.set(TypeId(slot), count);
            for other in 0..25 {
                let want = if other == slot { count } else { before.get(TypeId(other)) };
                prop_assert_eq!(after.get(TypeId(other)), want);
            }
        }

        #[test]
        fn a_vector_lowers_another_where_a_padded_slot_is_less(a in counts(), b in counts()) {
            let pad = |counts: &[u64]| -> Vec<u64> {
                counts.iter().copied().chain(std::iter::repeat(0)).take(20).collect()
            };
            let want = pad(&a).iter().zip(pad(&b)).any(|(ours, theirs)| *ours < theirs);
            let [a, b] = [a, b].map(CountVector::from_counts);
            prop_assert_eq!(a.lowers(&b), want);
            prop_assert_eq!(a == b, !a.lowers(&b) && !b.lowers(&a));
        }
    }
}
