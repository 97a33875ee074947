use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::strategies::record;

const ID: [u8; 16] = [
    0x01, 0x90, 0xb6, 0xa0, 0x1c, 0x3d, 0x7e, 0x4f, 0x8a, 0x5b, 0x6c, 0x7d, 0x8e, 0x9f, 0xa0, 0xb1,
];

fn golden(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn v1_event() -> Record {
    Record {
        version: 1,
        kind: KIND_EVENT,
        event_id: ID.to_vec(),
        slot: 7,
        name_hash: 0,
        event_time_ms: 1_773_136_769_500,
        received_at_ms: 1_773_136_770_123,
        row_tag: (0xa0..0xb0).collect(),
        write_key: 3,
        region: "eu-west".to_owned(),
        clamped: false,
        sealed: (0..48).collect(),
        run: 0x0123_4567_89ab_cdef,
        sequence: 300,
    }
}

fn v1_event_unknown_type() -> Record {
    Record {
        slot: 0,
        name_hash: 0xfedc_ba98_7654_3210,
        event_time_ms: 1_773_136_770_123,
        clamped: true,
        sequence: 301,
        ..v1_event()
    }
}

fn v1_control() -> Record {
    Record {
        version: 1,
        kind: KIND_CONTROL,
        received_at_ms: 1_773_136_770_123,
        region: "eu-west".to_owned(),
        run: 0x0123_4567_89ab_cdef,
        sequence: 302,
        ..Record::default()
    }
}

/// The head that a record which keeps the rules must have.
fn head_of(record: &Record) -> Decoded {
    if record.kind == KIND_CONTROL {
        return Decoded::Control;
    }
    Decoded::Event(RecordHead {
        id: EventId(record.event_id.clone().try_into().unwrap()),
        slot: TypeId(record.slot.try_into().unwrap()),
        event_time_ms: record.event_time_ms,
        received_at_ms: record.received_at_ms,
    })
}

#[test]
fn golden_records_of_every_version_still_load() {
    let later = "v1-event-later-fields.bin";
    let files = [
        ("v1-event.bin", v1_event()),
        ("v1-event-unknown-type.bin", v1_event_unknown_type()),
        (later, v1_event()),
        ("v1-control.bin", v1_control()),
    ];
    for (name, want) in files {
        let bytes = golden(name);
        assert_eq!(Record::decode(&bytes[..]).as_ref(), Ok(&want), "{name}");
        assert_eq!(RecordHead::decode(&bytes), Ok(head_of(&want)), "{name}");
        if name != later {
            assert_eq!(want.encode_to_vec(), bytes, "{name} is no longer written the same way");
        }
    }
}

#[test]
fn the_golden_folder_holds_no_file_that_is_not_tested() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden");
    let count = std::fs::read_dir(folder)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|e| e == "bin"))
        .count();
    assert_eq!(count, 4);
}

#[test]
fn a_record_finished_at_the_append_has_the_golden_bytes() {
    let mut bytes = Record { run: 0, sequence: 0, ..v1_event() }.encode_to_vec();
    finish_encoded(&mut bytes, 0x0123_4567_89ab_cdef, 300);
    assert_eq!(bytes, golden("v1-event.bin"));
}

#[test]
fn a_record_that_breaks_a_rule_is_skipped_under_its_reason() {
    use InvalidReason::{Foreign, Version};
    let good = v1_event();
    let cases = [
        ("no version", Record { version: 0, ..good.clone() }, Foreign),
        ("a later version", Record { version: 2, ..good.clone() }, Version),
        ("an unknown kind", Record { kind: 2, ..good.clone() }, Foreign),
        ("no id", Record { event_id: Vec::new(), ..good.clone() }, Foreign),
        ("a short id", Record { event_id: vec![1; 15], ..good.clone() }, Foreign),
        ("a long id", Record { event_id: vec![1; 17], ..good.clone() }, Foreign),
        ("a slot past the cap", Record { slot: 4_000, ..good.clone() }, Foreign),
        ("a slot past u16", Record { slot: 65_536, ..good.clone() }, Foreign),
        (
            "a future event",
            Record { event_time_ms: good.received_at_ms + 1, ..good.clone() },
            Foreign,
        ),
        ("a time before the year 1", Record { event_time_ms: MIN_MS - 1, ..good.clone() }, Foreign),
        ("a time after the year 9999", Record { received_at_ms: MAX_MS + 1, ..good }, Foreign),
    ];
    for (what, record, want) in cases {
        assert_eq!(RecordHead::decode(&record.encode_to_vec()), Err(want), "{what}");
    }
}

#[test]
fn the_outermost_values_that_keep_the_rules_are_read() {
    let good = v1_event();
    let cases = [
        Record { slot: 3_999, ..good.clone() },
        Record { event_time_ms: good.received_at_ms, ..good.clone() },
        Record { event_time_ms: MIN_MS, received_at_ms: MIN_MS, ..good.clone() },
        Record { event_time_ms: MAX_MS, received_at_ms: MAX_MS, ..good },
    ];
    for record in cases {
        assert_eq!(RecordHead::decode(&record.encode_to_vec()), Ok(head_of(&record)));
    }
}

#[test]
fn bytes_that_are_no_record_are_skipped_under_their_reason() {
    use InvalidReason::{Empty, Foreign, Garbage};
    let cases: [(&str, &[u8], InvalidReason); 13] = [
        ("nothing", b"", Empty),
        ("json", b"{\"events\":[]}", Garbage),
        ("text", b"hello", Garbage),
        ("zeros", &[0; 32], Garbage),
        ("ones", &[0xff; 32], Garbage),
        ("another program's protobuf", &[0xa2, 0x06, 1, b'x'], Foreign),
        ("field 0", &[0x00, 0x01], Garbage),
        ("the version as bytes", &[0x0a, 1, 1], Garbage),
        ("the row tag as a number", &[0x08, 1, 0x40, 1], Garbage),
        ("a region that is not UTF-8", &[0x08, 1, 0x52, 1, 0xff], Garbage),
        ("a length past the end", &[0x08, 1, 0x62, 200, 1, 0], Garbage),
        ("a version of more than 32 bits", &[0x08, 0x81, 0x80, 0x80, 0x80, 0x10], Garbage),
        ("a group", &[0x08, 1, 0x6b, 0x6c], Garbage),
    ];
    for (what, bytes, want) in cases {
        assert_eq!(RecordHead::decode(bytes), Err(want), "{what}");
    }
}

/// Every field in every wire type: a known field has one, any other field may have any.
#[test]
fn a_known_field_of_another_wire_type_is_garbage() {
    let payloads: [(u8, &[u8]); 4] = [(0, &[0]), (1, &[0; 8]), (2, &[0]), (5, &[0; 4])];
    let wire_of = |field| match field {
        1 | 2 | 4 | 9 | 11 | 15 => Some(0),
        5..=7 | 14 => Some(1),
        3 | 8 | 10 | 12 => Some(2),
        _ => None,
    };
    for field in 0_u8..=15 {
        for (wire, payload) in payloads {
            let bytes = [&[(field << 3) | wire], payload].concat();
            let fits = field != 0 && wire_of(field).is_none_or(|own| own == wire);
            assert_eq!(Record::decode(&bytes[..]).is_ok(), fits, "{field} {wire}");
            let head = RecordHead::decode(&bytes);
            assert_eq!(head != Err(InvalidReason::Garbage), fits, "{field} {wire}");
        }
    }
}

#[test]
fn the_last_of_a_field_that_stands_twice_counts() {
    let mut bytes = v1_event().encode_to_vec();
    let mut add_id = |id: &[u8]| {
        bytes.extend(Record { event_id: id.to_vec(), ..Record::default() }.encode_to_vec());
        RecordHead::decode(&bytes)
    };
    assert_eq!(add_id(&[1; 15]), Err(InvalidReason::Foreign));
    let other = Record { event_id: vec![2; 16], ..v1_event() };
    assert_eq!(add_id(&[2; 16]), Ok(head_of(&other)));
}

/// A cut between two fields leaves a shorter message, which only the log's checksum can tell from a
/// whole one; any other cut is found here.
#[test]
fn a_record_cut_inside_a_field_is_garbage() {
    for record in [v1_event(), v1_event_unknown_type(), v1_control()] {
        let bytes = record.encode_to_vec();
        let mut borders = vec![0];
        borders.extend(fields_of(&record).iter().scan(0, |end, field| {
            *end += field.len();
            Some(*end)
        }));
        assert_eq!(borders.last(), Some(&bytes.len()));
        for length in (0..bytes.len()).filter(|length| !borders.contains(length)) {
            let cut = RecordHead::decode(&bytes[..length]);
            assert_eq!(cut, Err(InvalidReason::Garbage), "{length} of {}", bytes.len());
        }
    }
}

/// Splits an encoded record into its fields: every field of [`Record`] is encoded on its own.
fn fields_of(record: &Record) -> Vec<Vec<u8>> {
    let zero = Record::default;
    [
        Record { version: record.version, ..zero() },
        Record { kind: record.kind, ..zero() },
        Record { event_id: record.event_id.clone(), ..zero() },
        Record { slot: record.slot, ..zero() },
        Record { name_hash: record.name_hash, ..zero() },
        Record { event_time_ms: record.event_time_ms, ..zero() },
        Record { received_at_ms: record.received_at_ms, ..zero() },
        Record { row_tag: record.row_tag.clone(), ..zero() },
        Record { write_key: record.write_key, ..zero() },
        Record { region: record.region.clone(), ..zero() },
        Record { clamped: record.clamped, ..zero() },
        Record { sealed: record.sealed.clone(), ..zero() },
        Record { run: record.run, ..zero() },
        Record { sequence: record.sequence, ..zero() },
    ]
    .iter()
    .map(Message::encode_to_vec)
    .collect()
}

/// The rules of collectors, said once more in terms of the whole record.
fn keeps_the_rules(record: &Record) -> bool {
    let times = [record.event_time_ms, record.received_at_ms];
    record.version == RECORD_VERSION
        && (record.kind == KIND_CONTROL
            || record.kind == KIND_EVENT
                && record.event_id.len() == 16
                && record.slot < u32::from(TypeId::CAP)
                && times.is_sorted()
                && times.iter().all(|at| (MIN_MS..=MAX_MS).contains(at)))
}

/// Pieces of protobuf, so that random bytes get past the first key.
fn nearly_a_record() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        3 => record().prop_map(|record| fields_of(&record).concat()),
        2 => (record(), 0_usize..14).prop_map(|(record, at)| fields_of(&record).swap_remove(at)),
        1 => prop::collection::vec(any::<u8>(), 0..8),
        1 => (0_u8..20, 0_u8..8).prop_map(|(field, wire)| vec![(field << 3) | wire]),
    ];
    (prop::collection::vec(piece, 0..4), 0_usize..300).prop_map(|(pieces, length)| {
        let mut bytes = pieces.concat();
        bytes.truncate(length);
        bytes
    })
}

proptest! {
    /// In whatever order the fields stand, and with fields of a later version between them, the
    /// head is the one of the whole record.
    #[test]
    fn the_head_agrees_with_the_whole_record(
        record in record(),
        order in Just((0_usize..14).collect::<Vec<_>>()).prop_shuffle(),
        stranger in 0_usize..14,
    ) {
        let fields = fields_of(&record);
        let mut bytes = Vec::new();
        for (place, index) in order.into_iter().enumerate() {
            if place == stranger {
                bytes.extend([0xc2, 0x0c, 2, b'h', b'i']);
            }
            bytes.extend(&fields[index]);
        }
        prop_assert_eq!(&Record::decode(&bytes[..]).unwrap(), &record);
        let want = keeps_the_rules(&record).then(|| head_of(&record));
        prop_assert_eq!(RecordHead::decode(&bytes).ok(), want);
        prop_assert_eq!(RecordHead::decode(&record.encode_to_vec()).ok(), want);
    }

    /// Run and sequence may be appended to the encoded record, whatever they are.
    #[test]
    fn a_finished_record_is_the_record_with_run_and_sequence(record in record()) {
        let mut bytes = Record { run: 0, sequence: 0, ..record.clone() }.encode_to_vec();
        finish_encoded(&mut bytes, record.run, record.sequence);
        prop_assert_eq!(&Record::decode(&bytes[..]).unwrap(), &record);
    }

    /// No bytes make the reader panic, and what it takes every other reader can decode to the same.
    #[test]
    fn whatever_the_head_takes_decodes_to_the_same_whole_record(
        bytes in prop_oneof![
            nearly_a_record(),
            prop::collection::vec(any::<u8>(), 0..200),
        ],
    ) {
        if let Ok(head) = RecordHead::decode(&bytes) {
            let whole = Record::decode(&bytes[..]).expect("the head was read");
            prop_assert!(keeps_the_rules(&whole));
            prop_assert_eq!(head, head_of(&whole));
        }
    }
}
