use tally_model::bucket::{Bucket, HOUR_MS, MINUTE_MS};
use tally_model::range::Availability;

use super::*;

const NOW_MS: i64 = 1_773_136_770_000;

fn facts() -> Facts {
    Facts {
        now_ms: NOW_MS,
        availability: Availability::ALL,
        origin_ms: Some(0),
        retired_up_to_ms: Some(NOW_MS - HOUR_MS),
        readable_up_to_ms: Some(NOW_MS - 3 * MINUTE_MS),
    }
}

#[test]
fn ranks_go_by_count_then_by_the_bytes_of_the_name() {
    let names = ["__other", "b", "B", "a", "é", "z", "zero"];
    let sum = CountVector::from_counts(vec![9, 5, 5, 5, 5, 6, 0]);
    let ranked = rank(&sum, 10, |slot| names.get(usize::from(slot.0)).copied()).unwrap();
    let order: Vec<_> = ranked.iter().map(|one| (one.rank, one.event_type.as_str())).collect();
    assert_eq!(order, [(1, "z"), (2, "B"), (3, "a"), (4, "b"), (5, "é")]);
    let cut = rank(&sum, 3, |slot| names.get(usize::from(slot.0)).copied()).unwrap();
    assert_eq!(cut, ranked[..3]);
}

#[test]
fn a_slot_without_a_name_is_an_error_and_not_left_out() {
    let sum = CountVector::from_counts(vec![0, 1]);
    assert_eq!(rank(&sum, 1, |_| None), Err(UnknownSlot { slot: TypeId(1) }));
}

#[test]
fn a_count_is_a_number_as_long_as_a_double_holds_it_and_then_a_string() {
    let cases = [
        (0, "0"),
        (1 << 53, "9007199254740992"),
        ((1 << 53) + 1, "\"9007199254740993\""),
        (u64::MAX, "\"18446744073709551615\""),
    ];
    for (count, want) in cases {
        assert_eq!(serde_json::to_string(&Count(count)).unwrap(), want);
    }
}

#[test]
fn an_answer_is_complete_only_when_old_enough_and_whole() {
    let day_ago = final_before_ms(&facts());
    // (what the row shows, end, whole, complete, exact)
    let cases = [
        ("a day old and whole", day_ago, true, true, true),
        ("a minute too young", day_ago + MINUTE_MS, true, false, true),
        ("old, but something is missing or dirty", day_ago, false, false, false),
    ];
    for (name, end_ms, whole, complete, exact) in cases {
        let got = Completeness::of(&facts(), end_ms, whole);
        assert_eq!(got, Completeness { complete, exact }, "{name}");
    }
}

pub(super) fn envelope(resolved: &Resolved) -> Envelope {
    let range = TimeRange::new(0, HOUR_MS).unwrap();
    let asked = AskedRange { requested_start_ms: 0, requested_end_ms: HOUR_MS, range };
    let window = Window::new(&asked, range, Granularity::Hour);
    Envelope::new(window, range, &facts(), resolved)
}

#[test]
fn the_entity_tag_changes_with_everything_that_shapes_the_answer_and_with_nothing_else() {
    let base = envelope(&Resolved::default());
    let tag = |envelope: &Envelope| envelope.entity_tag(&["top", "10"], Format::Json, 1);
    type Change = fn(&mut Envelope);
    let changes: [(&str, Change); 10] = [
        ("start", |envelope| envelope.window.start.push('x')),
        ("requested end", |envelope| envelope.window.requested_end.push('x')),
        ("resolution", |envelope| envelope.window.resolution = Granularity::Day),
        ("digest", |envelope| envelope.digest.push('x')),
        ("complete", |envelope| envelope.complete = !envelope.complete),
        ("exact", |envelope| envelope.exact = !envelope.exact),
        ("missing", |envelope| envelope.missing_minutes += 1),
        ("not closed", |envelope| envelope.not_closed_minutes += 1),
        ("dirty", |envelope| envelope.dirty_hours += 1),
        ("data from", |envelope| envelope.data_from = None),
    ];
    for (name, change) in changes {
        let mut changed = base.clone();
        change(&mut changed);
        assert_ne!(tag(&changed), tag(&base), "{name}");
    }
    assert_ne!(base.entity_tag(&["top", "11"], Format::Json, 1), tag(&base), "k");
    assert_ne!(base.entity_tag(&["top", "10"], Format::Csv, 1), tag(&base), "format");
    assert_ne!(base.entity_tag(&["top", "10"], Format::Json, 2), tag(&base), "registry");
    let mut later = base.clone();
    later.readable_until = None;
    later.final_until = None;
    assert_eq!(tag(&later), tag(&base), "the marks move every minute and change no count");
}

#[test]
fn until_when_counts_are_final_follows_the_slower_of_age_and_retirement() {
    let mut facts = facts();
    let range = TimeRange::new(0, HOUR_MS).unwrap();
    let asked = AskedRange { requested_start_ms: 0, requested_end_ms: HOUR_MS, range };
    let final_until = |facts: &Facts| {
        let window = Window::new(&asked, range, Granularity::Hour);
        Envelope::new(window, range, facts, &Resolved::default()).final_until
    };
    assert_eq!(final_until(&facts).as_deref(), Some("2026-03-09T09:59:00Z"));
    facts.retired_up_to_ms = Some(HOUR_MS);
    assert_eq!(final_until(&facts).as_deref(), Some("1970-01-01T01:00:00Z"));
    facts.retired_up_to_ms = None;
    assert_eq!(final_until(&facts), None);
}

#[test]
fn points_know_their_own_completeness() {
    let range = TimeRange::new(0, 4 * HOUR_MS).unwrap();
    let mut sums = PointSums::new(TypeId(1), Granularity::Hour, range);
    sums.add(0, &CountVector::from_counts(vec![0, 5])).unwrap();
    sums.add(HOUR_MS, &CountVector::from_counts(vec![0, 1])).unwrap();
    sums.add(HOUR_MS + MINUTE_MS, &CountVector::from_counts(vec![0, 2])).unwrap();
    sums.add(2 * HOUR_MS, &CountVector::from_counts(vec![7])).unwrap();
    let mut resolved = Resolved::default();
    resolved.missing.push(Bucket::minute(HOUR_MS + 2 * MINUTE_MS));
    resolved.not_closed.push(Bucket::minute(4 * HOUR_MS - MINUTE_MS));
    let points = sums.points(&facts(), &resolved);
    let seen: Vec<_> = points.iter().map(|point| (point.count.0, point.complete)).collect();
    assert_eq!(seen, [(5, true), (3, false), (0, true), (0, false)]);
    assert_eq!(points[3].start, "1970-01-01T03:00:00Z");
    assert_eq!(sums.total(), Ok(8));
}

#[test]
fn points_inside_or_around_a_dirty_hour_are_not_complete() {
    let mut resolved = Resolved::default();
    resolved.dirty.push(Bucket::containing(Granularity::Hour, 0));
    resolved.dirty.push(Bucket::containing(Granularity::Hour, 2 * HOUR_MS));
    let complete = |granularity, start_ms, end_ms| -> Vec<bool> {
        let range = TimeRange::new(start_ms, end_ms).unwrap();
        let points = PointSums::new(TypeId(1), granularity, range).points(&facts(), &resolved);
        points.iter().map(|point| point.complete).collect()
    };
    assert_eq!(complete(Granularity::Hour, 0, 4 * HOUR_MS), [false, true, false, true]);
    assert_eq!(complete(Granularity::Day, 0, 2 * DAY_MS), [false, true]);
    // Both hours reach out of this range.
    let (start_ms, end_ms) = (HOUR_MS - MINUTE_MS, 2 * HOUR_MS + MINUTE_MS);
    let minutes = complete(Granularity::Minute, start_ms, end_ms);
    assert_eq!((minutes[0], minutes[61]), (false, false));
    assert!(minutes[1..61].iter().all(|complete| *complete));
}
