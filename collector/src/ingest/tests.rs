use proptest::prelude::*;
use serde_json::{Value, json};
use tally_model::types::TypeId;

use super::*;
use crate::limits::ConsentRule;
use crate::parse::parse_batch;
use crate::testing::{PARTITIONS, World, at, event, event_with, id};

const NOW: &str = "2026-03-10T10:00:00Z";

fn prepare(
    world: &World,
    events: &[Value],
    stamp: ReceivedAt,
) -> Result<(Vec<Verdict>, Vec<tally_model::record::Record>), IngestError> {
    let body = json!({ "events": events }).to_string();
    let preparer = world.preparer();
    let events = parse_batch(body.as_bytes(), &preparer.limits).unwrap();
    let mut nonces = Nonces::from_os().unwrap();
    let prepared = preparer.prepare(events, stamp, &Sender::default(), &mut nonces)?;
    let records = prepared
        .records
        .iter()
        .map(|record| prost::Message::decode(record.payload.as_slice()).unwrap());
    Ok((prepared.answers.iter().map(|answer| answer.verdict).collect(), records.collect()))
}

fn now(world: &World, events: &[Value]) -> (Vec<Verdict>, Vec<tally_model::record::Record>) {
    prepare(world, events, ReceivedAt::Now(at(NOW))).unwrap()
}

fn warned(verdict: Verdict) -> Vec<WarnReason> {
    match verdict {
        Verdict::Accepted(warnings) => warnings.iter().collect(),
        Verdict::Rejected(reason) => panic!("rejected: {reason:?}"),
    }
}

#[test]
fn event_time_is_never_after_received_at_and_at_most_90_days_before() {
    let world = World::new();
    let received = at(NOW);
    let clamped = Ok((received, true));
    let age = EVENT_AGE_MAX_MS;
    // (eventTime, (eventTime on the record, clamped) or the reason, whether it is warned)
    let cases = [
        (received, Ok((received, false)), false),
        (received - 1, Ok((received - 1, false)), false),
        (received + 1, clamped, false),
        (received + 1_000, clamped, false),
        (received + 1_001, clamped, true),
        (received + 80_000, clamped, true),
        (1_773_136_800_000_000, clamped, true),
        (i64::MAX, clamped, true),
        (received - age, Ok((received - age, false)), false),
        (received - age - 1, Err(RejectReason::TooOld), false),
        (1_773_136_800, Err(RejectReason::TooOld), false),
        (999_999_999, Err(RejectReason::TooOld), false),
        (-1, Err(RejectReason::TooOld), false),
        (i64::MIN, Err(RejectReason::TooOld), false),
    ];
    for (number, (sent_ms, want, is_warned)) in (0..).zip(cases) {
        let (verdicts, records) = now(&world, &[event_with(number, "eventTime", json!(sent_ms))]);
        match want {
            Err(reason) => {
                assert_eq!(verdicts, [Verdict::Rejected(reason)], "{sent_ms}");
                assert!(records.is_empty());
            }
            Ok((event_time_ms, is_clamped)) => {
                let warning = is_warned.then_some(WarnReason::Clamped);
                assert_eq!(warned(verdicts[0]), Vec::from_iter(warning), "{sent_ms}");
                let record = &records[0];
                assert_eq!(record.received_at_ms, received);
                assert_eq!((record.event_time_ms, record.clamped), (event_time_ms, is_clamped));
                let original =
                    world.personal(record, &format!("user-{number}")).original_event_time;
                assert_eq!(original, if is_clamped { sent_ms.to_string() } else { String::new() });
            }
        }
    }
}

#[test]
fn a_leap_second_stays_in_its_minute() {
    let world = World::new();
    let leap = event_with(1, "eventTime", json!("2016-12-31T23:59:60.9Z"));
    let stamp = ReceivedAt::Now(at("2017-01-01T00:00:00Z"));
    let (_, records) = prepare(&world, &[leap], stamp).unwrap();
    assert_eq!(records[0].event_time_ms, at("2016-12-31T23:59:59.999Z"));
    assert!(!records[0].clamped);
}

#[test]
fn a_clock_80_s_fast_is_clamped_and_both_copies_keep_one_id() {
    let world = World::new();
    let copy = event_with(7, "eventTime", json!("2026-03-10T10:01:20Z"));
    let first = now(&world, std::slice::from_ref(&copy));
    let later = prepare(&world, &[copy], ReceivedAt::Now(at(NOW) + 70_000)).unwrap();
    for (verdicts, _) in [&first, &later] {
        assert_eq!(warned(verdicts[0]), [WarnReason::Clamped]);
    }
    assert_eq!(first.1[0].event_id, later.1[0].event_id);
    assert_ne!(first.1[0].event_time_ms / 60_000, later.1[0].event_time_ms / 60_000);
}

#[test]
fn an_import_is_received_when_it_happened() {
    let world = World::new();
    let now_ms = at(NOW);
    let old = event_with(1, "eventTime", json!("2026-01-02T03:04:05Z"));
    let ancient = event_with(2, "eventTime", json!("2025-12-10T09:59:59.999Z"));
    let future = event_with(3, "eventTime", json!("2026-03-10T11:00:00Z"));
    let stamp = ReceivedAt::EventTime { now_ms };
    let (verdicts, records) = prepare(&world, &[old, ancient, future], stamp).unwrap();
    assert_eq!(verdicts[1], Verdict::Rejected(RejectReason::TooOld));
    assert_eq!(warned(verdicts[2]), [WarnReason::Clamped]);
    let stamps: Vec<_> =
        records.iter().map(|record| (record.event_time_ms, record.received_at_ms)).collect();
    let old_ms = at("2026-01-02T03:04:05Z");
    assert_eq!(stamps, [(old_ms, old_ms), (now_ms, now_ms)]);
}

#[test]
fn types_get_their_slot_and_unknown_ones_slot_0_with_a_hash() {
    let world = World::new();
    let known = event(1);
    let deprecated = event_with(2, "eventType", json!("old_view"));
    let unknown = event_with(3, "eventType", json!("cafe\u{301}"));
    let (verdicts, records) = now(&world, &[known, deprecated, unknown]);
    assert_eq!(warned(verdicts[0]), []);
    assert_eq!(warned(verdicts[1]), [WarnReason::DeprecatedType]);
    assert_eq!(warned(verdicts[2]), [WarnReason::UnknownType]);
    let slots: Vec<_> = records.iter().map(|record| (record.slot, record.name_hash)).collect();
    let name = "caf\u{e9}";
    let hash = world.preparer().secrets.name_hash(name);
    assert_eq!(slots, [(1, 0), (2, 0), (u32::from(TypeId::OTHER.0), hash)]);
    assert_eq!(world.personal(&records[0], "user-1").type_name, "");
    assert_eq!(world.personal(&records[2], "user-3").type_name, name, "in NFC");
}

#[test]
fn the_sealed_part_opens_with_the_users_key_and_holds_the_original() {
    let mut options = CollectorOptions { region: "eu".to_owned(), ..CollectorOptions::default() };
    options.capture.ip = true;
    let world = World::with(Limits::default(), options);
    let properties = "{\"nul\":\"\\u0000\", \"n\": 1.50}";
    let mut event = event_with(1, "deviceId", json!("device-7"));
    event["properties"] = json!("@");
    let body = format!("{{\"events\":[{event}]}}").replace("\"@\"", properties);
    let preparer = world.preparer();
    let events = parse_batch(body.as_bytes(), &preparer.limits).unwrap();
    let sender = Sender {
        write_key: 5,
        ip: Some("2001:db8::7".parse().unwrap()),
        user_agent: Some("agent/1".to_owned()),
    };
    let mut nonces = Nonces::from_os().unwrap();
    let stamp = ReceivedAt::Now(at(NOW));
    let prepared = preparer.prepare(events, stamp, &sender, &mut nonces).unwrap();
    let payload = &prepared.records[0].payload;
    let record: tally_model::record::Record = prost::Message::decode(payload.as_slice()).unwrap();
    let personal = world.personal(&record, "user-1");
    assert_eq!(personal.user_id, "user-1");
    assert_eq!(personal.properties, properties, "byte by byte");
    assert_eq!(personal.device_id, "device-7");
    assert_eq!((personal.ip.as_str(), personal.user_agent.as_str()), ("2001:db8::7", "agent/1"));
    assert_eq!((record.write_key, record.region.as_str(), record.version), (5, "eu", 1));
    for secret in ["user-1", "nul", "1.50", "device-7", "2001:db8", "agent"] {
        let found = payload.windows(secret.len()).any(|window| window == secret.as_bytes());
        assert!(!found, "{secret} stands in the clear");
    }
}

#[test]
fn row_tags_of_a_user_change_with_the_day() {
    let world = World::new();
    let same_user = |number| event_with(number, "userId", json!("u"));
    let (_, today) = now(&world, &[same_user(1), same_user(2)]);
    let tomorrow = ReceivedAt::Now(at("2026-03-11T00:00:00Z"));
    let (_, next) = prepare(&world, &[same_user(3)], tomorrow).unwrap();
    assert_eq!(today[0].row_tag, today[1].row_tag);
    assert_ne!(today[0].row_tag, next[0].row_tag);
    assert_ne!(today[0].sealed[..12], today[1].sealed[..12], "a nonce of its own");
}

/// B48: in whatever spelling.
#[test]
fn a_repeat_in_the_batch_is_accepted_and_not_appended() {
    let world = World::new();
    let other_spelling = event_with(1, "eventId", json!(id(1).to_uppercase()));
    let (verdicts, records) = now(&world, &[event(1), event(2), other_spelling]);
    assert_eq!(records.len(), 2);
    assert_eq!(warned(verdicts[2]), [WarnReason::Repeat]);
}

#[test]
fn a_copy_of_a_rejected_event_is_no_repeat() {
    let world = World::new();
    let too_old = event_with(1, "eventTime", json!(0));
    let limit = world.preparer().limits.record_bytes;
    // One that is too large at once, and one that only its record is too large for.
    let too_large = event_with(2, "properties", json!("x".repeat(limit)));
    let barely = event_with(3, "properties", json!("x".repeat(limit - 50)));
    let events = [too_old, event(1), too_large, event(2), barely, event(3)];
    let (verdicts, records) = now(&world, &events);
    let rejected = [RejectReason::TooOld, RejectReason::TooLarge, RejectReason::TooLarge];
    for (pair, reason) in verdicts.chunks(2).zip(rejected) {
        assert_eq!(pair, [Verdict::Rejected(reason), Verdict::Accepted(Warnings::default())]);
    }
    assert_eq!(records.len(), 3);
}

#[test]
fn rejecting_a_record_later_rejects_its_repeats_too() {
    let world = World::new();
    let body = json!({ "events": [event(1), event(2), event(1)] }).to_string();
    let preparer = world.preparer();
    let events = parse_batch(body.as_bytes(), &preparer.limits).unwrap();
    let mut nonces = Nonces::from_os().unwrap();
    let stamp = ReceivedAt::Now(at(NOW));
    let mut prepared = preparer.prepare(events, stamp, &Sender::default(), &mut nonces).unwrap();
    prepared.reject(0, RejectReason::TooLarge);
    prepared.reject(99, RejectReason::TooLarge);
    let rejected = Verdict::Rejected(RejectReason::TooLarge);
    let verdicts: Vec<_> = prepared.answers.iter().map(|answer| answer.verdict).collect();
    assert_eq!(verdicts, [rejected, Verdict::Accepted(Warnings::default()), rejected]);
}

#[test]
fn the_size_limit_holds_for_the_finished_record() {
    let world = World::new();
    let limit = world.preparer().limits.record_bytes;
    let sized = |bytes: usize| event_with(1, "properties", json!("x".repeat(bytes)));
    let (mut fits, mut over) = (limit / 2, limit);
    while over - fits > 1 {
        let middle = fits.midpoint(over);
        let (_, records) = now(&world, &[sized(middle)]);
        if records.is_empty() { over = middle } else { fits = middle }
    }
    let (verdicts, _) = now(&world, &[sized(over)]);
    assert_eq!(verdicts, [Verdict::Rejected(RejectReason::TooLarge)]);
    let body = json!({ "events": [sized(fits)] }).to_string();
    let events = parse_batch(body.as_bytes(), &world.preparer().limits).unwrap();
    let mut nonces = Nonces::from_os().unwrap();
    let prepared =
        world.preparer().prepare(events, ReceivedAt::Now(at(NOW)), &Sender::default(), &mut nonces);
    let mut payload = prepared.unwrap().records.remove(0).payload;
    tally_model::record::finish_encoded(&mut payload, u64::MAX, u64::MAX);
    assert_eq!(payload.len(), limit, "the longest tail just fits");
}

#[test]
fn consent_decides_whether_anything_is_written() {
    let denied = event_with(1, "consent", json!({"analytics": false}));
    let granted = event_with(2, "consent", json!({"analytics": true}));
    let unstated = event(3);
    let events = [denied, granted, unstated];
    let no_consent = Verdict::Rejected(RejectReason::NoConsent);
    let taken = Verdict::Accepted(Warnings::default());
    for (consent, last) in [(ConsentRule::Optional, taken), (ConsentRule::Required, no_consent)] {
        let options = CollectorOptions { consent, ..CollectorOptions::default() };
        let world = World::with(Limits::default(), options);
        let (verdicts, _) = now(&world, &events);
        assert_eq!(verdicts, [no_consent, taken, last], "{consent:?}");
        assert!(world.preparer().keys.cached("user-1").is_none(), "no key is made for nothing");
    }
}

#[test]
fn no_key_is_used_under_a_stale_ledger() {
    let world = World::new();
    now(&world, &[event(1)]);
    world.clock.advance(59_999);
    now(&world, &[event(1)]);
    world.clock.advance(1);
    let stale = prepare(&world, &[event(1)], ReceivedAt::Now(at(NOW)));
    assert!(matches!(stale, Err(IngestError::StaleLedger { age_ms: 60_000, ttl_ms: 60_000 })));
    world.preparer().ledger.poll().unwrap();
    now(&world, &[event(1)]);
}

#[test]
fn keys_that_cannot_be_had_fail_the_batch() {
    let world = World::new();
    now(&world, &[event(1)]);
    world.user_keys.set_down(true);
    let events = [event(1), event(2)];
    let failed = prepare(&world, &events, ReceivedAt::Now(at(NOW)));
    assert!(matches!(failed, Err(IngestError::Keys { users: 1, .. })), "{failed:?}");
    world.user_keys.set_down(false);
    assert_eq!(now(&world, &events).1.len(), 2, "the next attempt finds the store again");
}

#[test]
fn keys_carry_the_stamp_of_the_first_event_that_they_seal() {
    let world = World::new();
    let stamp_ms = at(NOW) - 25_000;
    prepare(&world, &[event(1)], ReceivedAt::Now(stamp_ms)).unwrap();
    assert_eq!(world.preparer().keys.cached("user-1").unwrap().created_at_ms(), stamp_ms);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn every_event_is_answered_once_and_every_first_copy_is_a_record(
        kinds in prop::collection::vec((0_u8..8, 0_u32..12), 1..40),
    ) {
        let world = World::new();
        let events: Vec<Value> = kinds.iter().map(|(kind, number)| kind_of(*kind, *number)).collect();
        let (verdicts, records) = now(&world, &events);
        prop_assert_eq!(verdicts.len(), events.len());

        // The naive rule: an event is good by its kind alone, and its first good copy is written.
        let mut seen = Vec::new();
        for ((kind, number), verdict) in kinds.iter().zip(&verdicts) {
            let is_good = *kind < 4;
            match verdict {
                Verdict::Accepted(warnings) => {
                    prop_assert!(is_good);
                    prop_assert_eq!(warnings.is_repeat(), seen.contains(number));
                    seen.push(*number);
                }
                Verdict::Rejected(_) => prop_assert!(!is_good),
            }
        }
        let mut firsts = Vec::new();
        for number in seen {
            if !firsts.contains(&number) {
                firsts.push(number);
            }
        }
        let ids: Vec<_> = records.iter().map(|record| record.event_id.clone()).collect();
        let want: Vec<_> = firsts
            .iter()
            .map(|number| tally_model::ids::EventId::parse(&id(*number)).unwrap().0.to_vec())
            .collect();
        prop_assert_eq!(ids, want);
    }
}

/// Kinds 0 to 3 are good.
fn kind_of(kind: u8, number: u32) -> Value {
    match kind {
        0 | 1 => event(number),
        2 => event_with(number, "eventType", json!("never_seen")),
        3 => event_with(number, "eventTime", json!("2026-03-10T12:00:00Z")),
        4 => event_with(number, "eventTime", json!("yesterday")),
        5 => event_with(number, "userId", Value::Null),
        6 => event_with(number, "consent", json!({"analytics": false})),
        _ => json!("no object"),
    }
}

#[test]
fn records_go_to_the_partition_of_their_shard() {
    let world = World::new();
    let body = json!({ "events": (0..50).map(event).collect::<Vec<_>>() }).to_string();
    let preparer = world.preparer();
    let events = parse_batch(body.as_bytes(), &preparer.limits).unwrap();
    let mut nonces = Nonces::from_os().unwrap();
    let stamp = ReceivedAt::Now(at(NOW));
    let prepared = preparer.prepare(events, stamp, &Sender::default(), &mut nonces).unwrap();
    let mut used = std::collections::BTreeSet::new();
    for record in &prepared.records {
        let mixed = preparer.mixer.mix(tally_model::ids::EventId(record.key));
        assert_eq!(record.partition, mixed.shard(preparer.shards).partition(PARTITIONS));
        used.insert(record.partition);
    }
    assert_eq!(used.len(), 4);
}
