use proptest::prelude::*;

use super::*;

const ID: [u8; 16] = [
    0x55, 0x0e, 0x84, 0x00, 0xe2, 0x9b, 0x41, 0xd4, 0xa7, 0x16, 0x44, 0x66, 0x55, 0x44, 0x00, 0xab,
];

/// B48.
#[test]
fn all_spellings_of_a_uuid_are_the_same_16_bytes() {
    let spellings = [
        "550e8400-e29b-41d4-a716-4466554400ab",
        "550E8400-E29B-41D4-A716-4466554400AB",
        "550e8400-E29B-41d4-a716-4466554400aB",
        "550e8400e29b41d4a7164466554400ab",
        "550E8400E29B41D4A7164466554400AB",
        "{550e8400-e29b-41d4-a716-4466554400ab}",
        "{550E8400-E29B-41D4-A716-4466554400AB}",
        "urn:uuid:550e8400-e29b-41d4-a716-4466554400ab",
        "URN:UUID:550E8400-E29B-41D4-A716-4466554400AB",
    ];
    for text in spellings {
        assert_eq!(EventId::parse(text), Ok(EventId(ID)), "{text}");
    }
    assert_eq!(EventId(ID).to_string(), "550e8400-e29b-41d4-a716-4466554400ab");
}

#[test]
fn a_text_that_is_no_uuid_is_refused() {
    let texts = [
        "",
        "not-a-uuid",
        "00000000-0000-0000-0000-000000000000",
        "00000000000000000000000000000000",
        "{00000000-0000-0000-0000-000000000000}",
        "urn:uuid:00000000-0000-0000-0000-000000000000",
        "550e8400-e29b-41d4-a716-4466554400a",
        "550e8400-e29b-41d4-a716-4466554400ab0",
        "550e8400-e29b-41d4-a716-4466554400ag",
        " 550e8400-e29b-41d4-a716-4466554400ab",
        "550e8400-e29b-41d4-a716-4466554400ab\n",
        "550e840-0e29b-41d4-a716-4466554400ab",
        "550e8400_e29b_41d4_a716_4466554400ab",
        "{550e8400e29b41d4a7164466554400ab}",
        "{550e8400-e29b-41d4-a716-4466554400ab",
        "(550e8400-e29b-41d4-a716-4466554400ab)",
        "uuid:550e8400-e29b-41d4-a716-4466554400ab",
        "urn:guid:550e8400-e29b-41d4-a716-4466554400ab",
        "\u{665}50e8400-e29b-41d4-a716-4466554400a",
    ];
    for text in texts {
        assert_eq!(EventId::parse(text), Err(BadEventId), "{text:?}");
    }
}

/// The example of FIPS 197, appendix C.1: the mixed id is AES-128 and stays so, because state
/// on disk is sorted by it.
#[test]
fn an_id_is_mixed_by_aes_128() {
    let key = std::array::from_fn(|index| u8::try_from(index).unwrap());
    let id = std::array::from_fn(|index| u8::try_from(index * 0x11).unwrap());
    let want = [
        0x69, 0xc4, 0xe0, 0xd8, 0x6a, 0x7b, 0x04, 0x30, 0xd8, 0xcd, 0xb7, 0x80, 0x70, 0xb4, 0xc5,
        0x5a,
    ];
    let mixed = IdMixer::new(key).mix(EventId(id));
    assert_eq!(mixed, MixedId(u128::from_le_bytes(want)));
    assert_eq!(mixed.halves(), [0x3004_7b6a_d8e0_c469, 0x5ac5_b470_80b7_cdd8]);
}

/// Ids that count up, as time-ordered UUIDs do, in shard counts that are a power of two and not.
#[test]
fn ids_that_count_up_fall_evenly_into_shards() {
    let mixer = IdMixer::new([7; 16]);
    for count in [64, 48, 1_000] {
        let shards = Shards::new(count).unwrap();
        let (each, mut held) = (2_000, vec![0_i32; count.into()]);
        for number in 0..u128::from(count) * 2_000 {
            let id = EventId((number | (0x0190_b6a0 << 96)).to_be_bytes());
            held[usize::from(mixer.mix(id).shard(shards).0)] += 1;
        }
        // Five standard deviations of a uniform choice.
        let uneven = held.iter().filter(|held| (**held - each).abs() > 5 * 45).count();
        assert_eq!(uneven, 0, "{count} shards: {held:?}");
    }
}

#[test]
fn a_deployment_has_1_to_1024_shards() {
    for (count, valid) in [(0, false), (1, true), (1_024, true), (1_025, false)] {
        assert_eq!(Shards::new(count).is_some(), valid, "{count}");
    }
    let all: Vec<_> = Shards::DEFAULT.all().collect();
    assert_eq!(all.len(), 64);
    assert_eq!((all[0], all[63]), (Shard(0), Shard(63)));
}

#[test]
fn the_key_of_a_mixer_is_not_shown() {
    assert_eq!(format!("{:?}", IdMixer::new([7; 16])), "IdMixer(key hidden)");
}

proptest! {
    #[test]
    fn mixing_is_a_bijection(key in any::<[u8; 16]>(), id in any::<[u8; 16]>(), mixed: u128) {
        let mixer = IdMixer::new(key);
        prop_assert_eq!(mixer.unmix(mixer.mix(EventId(id))), EventId(id));
        prop_assert_eq!(mixer.mix(mixer.unmix(MixedId(mixed))), MixedId(mixed));
    }

    #[test]
    fn a_batch_is_mixed_as_its_ids_one_by_one(
        key in any::<[u8; 16]>(), ids in prop::collection::vec(any::<[u8; 16]>(), 0..40),
    ) {
        let mixer = IdMixer::new(key);
        let mut blocks = ids.clone();
        mixer.mix_blocks(&mut blocks);
        let batch: Vec<_> = blocks.into_iter().map(|b| MixedId(u128::from_le_bytes(b))).collect();
        let singly: Vec<_> = ids.into_iter().map(|id| mixer.mix(EventId(id))).collect();
        prop_assert_eq!(batch, singly);
    }

    #[test]
    fn an_id_that_is_written_is_read_back(id in any::<[u8; 16]>()) {
        prop_assume!(id != [0; 16]);
        prop_assert_eq!(EventId::parse(&EventId(id).to_string()), Ok(EventId(id)));
    }

    #[test]
    fn every_id_has_one_of_the_shards(mixed: u128, count in 1..=Shards::MAX) {
        let shards = Shards::new(count).unwrap();
        let shard = MixedId(mixed).shard(shards);
        prop_assert!(shards.all().any(|one| one == shard));
    }

    /// Where the workers divide the partitions, no record has to leave the worker that read it.
    #[test]
    fn a_shard_is_owned_by_the_reader_of_its_partition(
        shard in 0_u16..1_024, workers in 1_usize..9, times in 1_usize..9,
    ) {
        let partitions = u32::try_from(workers * times).unwrap();
        let partition = usize::try_from(Shard(shard).partition(partitions)).unwrap();
        prop_assert_eq!(Shard(shard).owner(workers), partition % workers);
    }
}
