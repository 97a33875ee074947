use proptest::prelude::*;

use super::*;
use crate::time::parse_rfc3339;

const DEFAULT: Timing = Timing::DEFAULT;

fn ten_oclock() -> i64 {
    parse_rfc3339("2026-03-10T10:00:00Z").unwrap()
}

/// B43.
#[test]
fn an_event_is_late_one_millisecond_after_the_bound() {
    let minute = Bucket::minute(ten_oclock());
    // The minute ends at 10:01; delay and lateness are 17 minutes.
    let bound = ten_oclock() + 18 * MINUTE_MS;
    assert!(!DEFAULT.is_late(minute, minute.start_ms()));
    assert!(!DEFAULT.is_late(minute, bound));
    assert!(DEFAULT.is_late(minute, bound + 1));
}

#[test]
fn a_bucket_is_closed_two_minutes_after_its_end() {
    let minute = Bucket::minute(ten_oclock());
    let bound = ten_oclock() + 3 * MINUTE_MS;
    assert!(!DEFAULT.is_closed(minute, bound - 1));
    assert!(DEFAULT.is_closed(minute, bound));
}

#[test]
fn a_bucket_is_retired_once_no_record_that_is_on_time_can_come() {
    let minute = Bucket::minute(ten_oclock());
    let bound = ten_oclock() + 18 * MINUTE_MS + 35_000;
    assert_eq!(DEFAULT.retire_after_ms(), bound - minute.end_ms());
    assert!(!DEFAULT.is_retired(minute, bound));
    assert!(DEFAULT.is_retired(minute, bound + 1));
}

#[test]
fn the_width_of_a_dedup_bucket_follows_from_the_window() {
    let cases = [(HOUR_MS, HOUR_MS), (DAY_MS, HOUR_MS), (2 * DAY_MS, DAY_MS), (7 * DAY_MS, DAY_MS)];
    for (window, width) in cases {
        assert_eq!(DedupRule::default_width_ms(window), width);
    }
    assert_eq!(DedupRule::new(7 * DAY_MS, DAY_MS), Ok(DedupRule::DEFAULT));
    assert_eq!(DedupRule::DEFAULT.span(), 7);
}

#[test]
fn a_dedup_rule_that_makes_no_sense_is_refused() {
    let cases = [
        (DAY_MS, 0, DedupRuleError::Width),
        (DAY_MS, -1, DedupRuleError::Width),
        (0, HOUR_MS, DedupRuleError::Window),
        (-DAY_MS, HOUR_MS, DedupRuleError::Window),
        (HOUR_MS, DAY_MS, DedupRuleError::Window),
        (90 * MINUTE_MS, HOUR_MS, DedupRuleError::Window),
    ];
    for (window, width, want) in cases {
        assert_eq!(DedupRule::new(window, width), Err(want), "{window} {width}");
    }
}

#[test]
fn a_repeat_is_recognised_up_to_the_end_of_the_last_bucket_of_the_window() {
    let rule = DedupRule::DEFAULT;
    let midnight = parse_rfc3339("2026-03-10T00:00:00Z").unwrap();
    let cases = [
        // The first copy early in its bucket: the window and almost a day more.
        (midnight, midnight + 7 * DAY_MS, true),
        (midnight, midnight + 8 * DAY_MS - 1, true),
        (midnight, midnight + 8 * DAY_MS, false),
        // The first copy late in its bucket: the window and not much more.
        (midnight + DAY_MS - 1, midnight + 8 * DAY_MS - 1, true),
        (midnight + DAY_MS - 1, midnight + 8 * DAY_MS, false),
        // The second copy was stamped earlier, by a collector whose clock is slow.
        (midnight, midnight - 1, true),
        (midnight, midnight - 30 * DAY_MS, true),
        // Across 1970.
        (-1, 7 * DAY_MS - 1, true),
        (-1, 7 * DAY_MS, false),
    ];
    for (first, copy, want) in cases {
        assert_eq!(rule.is_repeat(rule.bucket(first), rule.bucket(copy)), want, "{first} {copy}");
    }
}

fn timing() -> impl Strategy<Value = Timing> {
    (0..5 * MINUTE_MS, 0..30 * MINUTE_MS, 0..MINUTE_MS).prop_map(
        |(watermark_delay_ms, lateness_ms, append_grace_ms)| Timing {
            watermark_delay_ms,
            lateness_ms,
            append_grace_ms,
        },
    )
}

/// Any rule, also one whose buckets do not end with a minute.
fn rule() -> impl Strategy<Value = DedupRule> {
    let width = prop_oneof![1..200_000_i64, Just(MINUTE_MS), Just(HOUR_MS), Just(DAY_MS)];
    (width, 1_i64..9).prop_map(|(width, span)| DedupRule::new(width * span, width).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// A repeat inside the window is always recognised, one a bucket beyond it never.
    #[test]
    fn the_window_is_kept_to_within_one_bucket(
        rule in rule(), first in -DAY_MS..DAY_MS, gap in 0..20 * DAY_MS,
    ) {
        let repeat = rule.is_repeat(rule.bucket(first), rule.bucket(first + gap));
        if gap <= rule.window_ms() {
            prop_assert!(repeat);
        }
        if gap >= rule.window_ms() + rule.width_ms() {
            prop_assert!(!repeat);
        }
    }

    /// The buckets from `oldest_deciding` on are exactly those that decide.
    #[test]
    fn the_oldest_deciding_bucket_is_the_last_that_decides(rule in rule(), copy in any::<i32>()) {
        let copy = DedupBucket(copy.into());
        let oldest = rule.oldest_deciding(copy);
        prop_assert!(rule.is_repeat(oldest, copy));
        prop_assert!(!rule.is_repeat(DedupBucket(oldest.0 - 1), copy));
    }

    /// While a record can still be counted by streaming, no bucket that decides about it is
    /// dropped: the minute of its event is retired first.
    #[test]
    fn no_bucket_is_dropped_that_still_decides_about_an_on_time_copy(
        rule in rule(),
        timing in timing(),
        received_at in -DAY_MS..DAY_MS,
        age in prop_oneof![0..30 * MINUTE_MS, 0..DAY_MS],
        back in 0_i64..10,
        // Near the watermark at which the last of the deciding buckets goes.
        near in -2 * MINUTE_MS..2 * MINUTE_MS,
    ) {
        let copy = rule.bucket(received_at);
        let first = DedupBucket(copy.0 - back);
        let minute = Bucket::minute(received_at - age);
        let watermark = minute.end_ms() + timing.retire_after_ms() + near;
        let decides = rule.is_repeat(first, copy);
        let counted = !timing.is_late(minute, received_at) && !timing.is_retired(minute, watermark);
        if decides && counted {
            prop_assert!(!rule.is_droppable(first, watermark, &timing));
        }
    }

    /// A bucket goes as soon as that holds for every copy: it is not kept for ever.
    #[test]
    fn a_bucket_is_dropped_once_its_last_possible_repeat_is_retired(
        rule in rule(), timing in timing(), first in -DAY_MS..DAY_MS,
    ) {
        let first = rule.bucket(first);
        let last_repeat_at = (first.0 + rule.span() + 1) * rule.width_ms() - 1;
        prop_assert!(rule.is_repeat(first, rule.bucket(last_repeat_at)));
        let end = Bucket::minute(last_repeat_at).end_ms() + timing.retire_after_ms();
        prop_assert!(!rule.is_droppable(first, end, &timing));
        prop_assert!(rule.is_droppable(first, end + 1, &timing));
    }

    /// Late, closed and retired follow each other for one bucket and one watermark.
    #[test]
    fn a_bucket_closes_before_it_retires(timing in timing(), watermark in -DAY_MS..DAY_MS) {
        let minute = Bucket::minute(0);
        if timing.is_retired(minute, watermark) {
            prop_assert!(timing.is_closed(minute, watermark));
            prop_assert!(timing.is_late(minute, watermark));
        }
    }
}
