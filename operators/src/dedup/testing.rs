//! What the tests of this module share.

/// `count` uniform ids of a stream, always the same (a Weyl sequence through a strong mixer).
pub(super) fn ids(stream: u64, count: usize) -> Vec<u128> {
    let mut state = stream.wrapping_mul(0xD134_2543_DE82_EF95);
    let mut word = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    };
    (0..count).map(|_| (u128::from(word()) << 64) | u128::from(word())).collect()
}
