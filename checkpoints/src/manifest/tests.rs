use std::path::Path;

use proptest::prelude::*;

use super::*;

/// The manifest that stands in the golden file of version 1.
fn example() -> Manifest {
    let name = |text| ObjectName::parse(text).unwrap();
    let generation = Generation::new(4).unwrap();
    let id = CheckpointId { generation, epoch: 1_700_000_000_123 };
    let segment = DataObject::of(name("data/g0000003-s0000-0000000017"), b"sorted ids");
    let entry = |shard, segments| ShardEntry {
        shard: Shard(shard),
        state: DataObject::of(layout::state(id, Shard(shard)), &[7; 100]),
        segments,
        totals: [("counted".to_owned(), 40), ("late".to_owned(), 2)].into(),
    };
    Manifest {
        deployment: "shop".to_owned(),
        generation,
        cut: Cut {
            epoch: id.epoch,
            watermark_ms: Some(-5),
            created_at_ms: 1_700_000_000_200,
            next_offsets: [(0, 500), (1, 0), (7, u64::MAX)].into(),
            totals: [("control".to_owned(), 3), ("late".to_owned(), 1)].into(),
            global_state: vec![0, 255],
        },
        shards: vec![entry(0, vec![segment]), entry(1, vec![])],
    }
}

#[test]
fn golden_manifests_of_every_version_still_load() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    let bytes = std::fs::read(folder.join("manifest-v1.bin")).unwrap();
    assert_eq!(Manifest::decode(&bytes), Ok(example()));
    assert_eq!(example().encode(), bytes, "what is written changes only with the version");
}

#[test]
fn any_cut_and_any_flipped_bit_is_found() {
    let bytes = example().encode();
    for length in 0..bytes.len() {
        assert_eq!(
            Manifest::decode(&bytes[..length]),
            Err(DecodeError::Damaged),
            "cut to {length}"
        );
    }
    for bit in 0..bytes.len() * 8 {
        let mut bytes = bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Manifest::decode(&bytes), Err(DecodeError::Damaged), "bit {bit}");
    }
}

#[test]
fn a_newer_version_is_named_and_not_called_damaged() {
    let mut bytes = example().encode();
    bytes.truncate(bytes.len() - 4);
    bytes[8..12].copy_from_slice(&2_u32.to_le_bytes());
    let checksum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&checksum.to_le_bytes());
    assert_eq!(Manifest::decode(&bytes), Err(DecodeError::Version(2)));
}

#[test]
fn totals_are_the_sum_over_the_cut_and_the_shards() {
    let want = [("control", 3), ("counted", 80), ("late", 5)];
    assert_eq!(example().totals(), want.map(|(cause, count)| (cause.to_owned(), count)).into());
}

proptest! {
    #[test]
    fn what_is_written_is_read(
        epoch: u64,
        watermark_ms: Option<i64>,
        created_at_ms: i64,
        next_offsets: BTreeMap<u32, u64>,
        totals: BTreeMap<String, u64>,
        global_state: Vec<u8>,
        deployment: String,
        shards in 0_u16..5,
    ) {
        let mut manifest = example();
        let entry = manifest.shards[0].clone();
        manifest.shards = (0..shards).map(|n| ShardEntry { shard: Shard(n), ..entry.clone() }).collect();
        manifest.deployment = deployment;
        manifest.cut = Cut { epoch, watermark_ms, created_at_ms, next_offsets, totals, global_state };
        prop_assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest));
    }
}
