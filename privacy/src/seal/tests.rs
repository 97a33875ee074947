use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const ID: EventId = EventId([1; 16]);
const TAG: [u8; 16] = [2; 16];
const NONCE: [u8; 12] = [3; 12];

fn keys(byte: u8) -> UserKeys {
    UserKeys::new(0, [byte; 32], [byte; 32])
}

fn sealed(plaintext: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    seal(&keys(1), ID, &TAG, plaintext, NONCE, &mut out).unwrap();
    out
}

fn personal() -> Personal {
    Personal {
        version: 1,
        user_id: "u-1".to_owned(),
        properties: r#"{"plan":"pro","n":1.0}"#.to_owned(),
        ip: "192.0.2.7".to_owned(),
        user_agent: "curl/8.5".to_owned(),
        device_id: "device-1".to_owned(),
        session_id: "session-1".to_owned(),
        original_event_time: "2031-01-01T00:00:00Z".to_owned(),
        type_name: "checkout_v9".to_owned(),
    }
}

proptest! {
    /// Whatever is sealed opens again, and what stood in the buffer before stays there.
    #[test]
    fn what_is_sealed_opens(
        before in prop::collection::vec(any::<u8>(), 0..20),
        plaintext in prop::collection::vec(any::<u8>(), 0..2_000),
        nonce: [u8; 12],
    ) {
        let mut out = before.clone();
        seal(&keys(1), ID, &TAG, &plaintext, nonce, &mut out).unwrap();
        prop_assert_eq!(&out[..before.len()], &before);
        prop_assert_eq!(out.len(), before.len() + plaintext.len() + SEALING_BYTES);
        prop_assert_eq!(open(&keys(1), ID, &TAG, &out[before.len()..]), Ok(plaintext));
    }

    /// A flipped bit anywhere is noticed.
    #[test]
    fn changed_bytes_do_not_open(at: prop::sample::Index, bit in 0_u8..8) {
        let mut changed = sealed(b"what exactly");
        let at = at.index(changed.len());
        changed[at] ^= 1_u8 << bit;
        prop_assert_eq!(open(&keys(1), ID, &TAG, &changed), Err(OpenError::Forged));
    }
}

#[test]
fn a_sealed_part_opens_only_in_its_own_record_and_for_its_own_user() {
    let sealed = sealed(b"what exactly");
    // (what the row shows, the user's keys, event id, row tag, whether it opens)
    let cases = [
        ("its own", keys(1), ID, TAG, Ok(b"what exactly".to_vec())),
        ("another user", keys(2), ID, TAG, Err(OpenError::Forged)),
        ("another event", keys(1), EventId([9; 16]), TAG, Err(OpenError::Forged)),
        ("another day", keys(1), ID, [9; 16], Err(OpenError::Forged)),
        ("id and tag swapped", keys(1), EventId(TAG), ID.0, Err(OpenError::Forged)),
    ];
    for (name, keys, id, tag, want) in cases {
        assert_eq!(open(&keys, id, &tag, &sealed), want, "{name}");
    }
}

#[test]
fn a_part_without_room_for_nonce_and_tag_is_short() {
    for bytes in 0..SEALING_BYTES {
        assert_eq!(open(&keys(1), ID, &TAG, &vec![0; bytes]), Err(OpenError::Short { bytes }));
    }
    assert_eq!(open(&keys(1), ID, &TAG, &[0; SEALING_BYTES]), Err(OpenError::Forged));
}

#[test]
fn equal_plaintexts_have_different_ciphertexts() {
    let mut nonces = Nonces::from_os().unwrap();
    let ciphertexts: HashSet<Vec<u8>> = (0..100)
        .map(|_| {
            let mut out = Vec::new();
            seal(&keys(1), ID, &TAG, b"the same", nonces.next(), &mut out).unwrap();
            out.split_off(NONCE.len())
        })
        .collect();
    assert_eq!(ciphertexts.len(), 100);
}

#[test]
fn no_two_generators_draw_the_same_nonces() {
    let mut both = [Nonces::from_os().unwrap(), Nonces::from_os().unwrap()];
    let mut seen = HashSet::new();
    for _ in 0..10_000 {
        for nonces in &mut both {
            assert!(seen.insert(nonces.next()));
        }
    }
}

/// The golden files come from another implementation of the same algorithms.
#[test]
fn personal_parts_of_version_1_are_readable() {
    let golden = include_bytes!("../../golden/personal-1.bin");
    assert_eq!(Personal::read(golden), Ok(personal()));
    let mut encoded = Vec::new();
    personal().append_to(&mut encoded);
    assert_eq!(encoded, golden);
}

#[test]
fn sealed_parts_of_version_1_open() {
    let golden = include_bytes!("../../golden/sealed-1.bin");
    let keys = UserKeys::new(0, [7; 32], [8; 32]);
    let noon_of_20260310_ms = 1_773_144_000_000;
    let opened = open(&keys, ID, &keys.row_tag(noon_of_20260310_ms), golden).unwrap();
    assert_eq!(Personal::read(&opened), Ok(personal()));
}

#[test]
fn a_default_personal_part_carries_its_version() {
    let mut encoded = Vec::new();
    Personal::default().append_to(&mut encoded);
    assert_eq!(encoded, [1 << 3, 1]);
}

#[test]
fn personal_parts_of_other_versions_and_garbage_are_told_apart() {
    let newer = [1 << 3, 2];
    assert_eq!(Personal::read(&newer), Err(PersonalError::Version { version: 2 }));
    assert!(matches!(Personal::read(&[0xff; 3]), Err(PersonalError::Garbage(_))));
    let no_text = [2 << 3 | 2, 1, 0xff];
    assert!(matches!(Personal::read(&no_text), Err(PersonalError::Garbage(_))));
}

#[test]
fn nothing_personal_is_shown() {
    assert_eq!(format!("{:?}", personal()), "Personal(hidden)");
    assert_eq!(format!("{:?}", Nonces::from_os().unwrap()), "Nonces(state hidden)");
}
