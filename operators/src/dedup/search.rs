//! Search in sorted ids that are spread evenly.

use tally_model::ids::MixedId;

/// How many of the sorted ids are at most `id`, looked for from place `guess` outwards.
///
/// Mixed ids are uniform, so a guess by proportion is off by a few places only; ids that are not
/// cost a logarithm of the error.
pub(super) fn count_not_above(sorted: &[u128], guess: usize, id: u128) -> usize {
    let mut low = guess.min(sorted.len());
    let mut high = low;
    let mut stride = 4;
    while high < sorted.len() && sorted[high] <= id {
        low = high + 1;
        high = sorted.len().min(high + stride);
        stride *= 2;
    }
    while low > 0 && sorted[low - 1] > id {
        high = low - 1;
        low = low.saturating_sub(stride);
        stride *= 2;
    }
    low + sorted[low..high].partition_point(|entry| *entry <= id)
}

/// Where `id` stands between `from` and `to`, out of 255 places.
pub(super) fn place_between(id: u128, from: u128, to: u128) -> usize {
    // The top 56 bits, so that the product with 255 fits in 64.
    let top = |id: u128| MixedId(id).halves()[1] >> 8;
    let distance = top(to).saturating_sub(top(from)).max(1);
    let place = top(id).saturating_sub(top(from)).min(distance) * 255 / distance;
    usize::try_from(place).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_count_does_not_depend_on_the_guess(
            mut sorted in prop::collection::vec(0_u128..500, 0..300),
            guess in 0_usize..400,
            id in 0_u128..510,
        ) {
            sorted.sort_unstable();
            let expected = sorted.iter().filter(|entry| **entry <= id).count();
            prop_assert_eq!(count_not_above(&sorted, guess, id), expected);
        }

        #[test]
        fn a_place_lies_on_the_page(id: u128, from: u128, to: u128) {
            prop_assert!(place_between(id, from, to) <= 255);
        }
    }
}
