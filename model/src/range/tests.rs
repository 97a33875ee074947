use proptest::prelude::*;

use super::*;
use crate::bucket::{DAY_MS, HOUR_MS, MINUTE_MS};
use crate::time::parse_rfc3339;

/// Minutes of a day.
const DAY: i64 = 1_440;

fn at(text: &str) -> i64 {
    parse_rfc3339(text).unwrap()
}

fn range(start: &str, end: &str) -> TimeRange {
    TimeRange::new(at(start), at(end)).unwrap()
}

/// How many rows a plan reads, without listing them.
fn rows(range: TimeRange, availability: &Availability) -> i64 {
    let plan = range.plan(availability);
    plan.runs.iter().map(|run| (run.end_ms - run.start_ms) / run.granularity.width_ms()).sum()
}

/// The most rows over all ranges whose start lies `start` minutes into a day and that are
/// `minutes` long, for the given starts and lengths.
fn most_rows(
    lengths: impl Iterator<Item = i64> + Clone,
    availability: impl Fn(i64) -> Availability,
) -> i64 {
    let day = at("2024-01-01T00:00:00Z");
    (0..DAY)
        .flat_map(|start| lengths.clone().map(move |minutes| (start, minutes)))
        .map(|(start, minutes)| {
            let start_ms = day + start * MINUTE_MS;
            let end_ms = start_ms + minutes * MINUTE_MS;
            rows(TimeRange::new(start_ms, end_ms).unwrap(), &availability(end_ms))
        })
        .max()
        .unwrap()
}

fn all(_end_ms: i64) -> Availability {
    Availability::ALL
}

#[test]
fn exactly_30_days_need_at_most_112_rows() {
    assert_eq!(most_rows(std::iter::once(30 * DAY), all), 112);
}

#[test]
fn a_ragged_month_needs_at_most_193_rows() {
    assert_eq!(most_rows(29 * DAY..=31 * DAY, all), 193);
}

#[test]
fn exactly_365_days_need_at_most_447_rows() {
    assert_eq!(most_rows(std::iter::once(365 * DAY), all), 447);
}

#[test]
fn a_ragged_year_needs_at_most_528_rows() {
    assert_eq!(most_rows(364 * DAY..=366 * DAY, all), 528);
}

#[test]
fn a_ragged_year_whose_old_edge_has_no_minutes_needs_at_most_469_rows() {
    let default = |end_ms| Availability::at(end_ms, 60, 730);
    assert_eq!(most_rows(364 * DAY..=366 * DAY, default), 469);
}

#[test]
fn the_edges_never_need_more_than_118_minutes_and_46_hours() {
    let mut most = [0, 0];
    for (start, end) in (0..DAY).flat_map(|start| (0..DAY).map(move |end| (start, 3 * DAY + end))) {
        let plan =
            TimeRange::new(start * MINUTE_MS, end * MINUTE_MS).unwrap().plan(&Availability::ALL);
        for (most, granularity) in most.iter_mut().zip([Granularity::Minute, Granularity::Hour]) {
            let of_this = plan.runs.iter().filter(|run| run.granularity == granularity);
            let ms: i64 = of_this.map(|run| run.end_ms - run.start_ms).sum();
            *most = (*most).max(ms / granularity.width_ms());
        }
    }
    assert_eq!(most, [118, 46]);
}

#[test]
fn ranges_are_cut_into_the_largest_aligned_buckets() {
    use Granularity::{Day, Hour, Minute};
    type Runs = &'static [(Granularity, usize)];
    let cases: [(&str, &str, Runs); 9] = [
        ("2026-03-10T00:00:00Z", "2026-03-11T00:00:00Z", &[(Day, 1)]),
        ("2026-03-10T09:59:00Z", "2026-03-10T10:00:00Z", &[(Minute, 1)]),
        ("2026-03-10T09:01:00Z", "2026-03-10T10:59:00Z", &[(Minute, 118)]),
        ("2026-03-10T09:10:00Z", "2026-03-10T09:50:00Z", &[(Minute, 40)]),
        ("2026-03-10T09:00:00Z", "2026-03-10T12:00:00Z", &[(Hour, 3)]),
        ("2026-03-10T01:00:00Z", "2026-03-11T23:00:00Z", &[(Hour, 46)]),
        ("2026-03-10T23:30:00Z", "2026-03-11T01:15:00Z", &[(Minute, 30), (Hour, 1), (Minute, 15)]),
        (
            "2026-03-10T22:58:00Z",
            "2026-03-13T02:03:00Z",
            &[(Minute, 2), (Hour, 1), (Day, 2), (Hour, 2), (Minute, 3)],
        ),
        // Days are floored, not cut towards 1970.
        ("1969-12-30T23:59:00Z", "1970-01-01T00:01:00Z", &[(Minute, 1), (Day, 1), (Minute, 1)]),
    ];
    for (start, end, want) in cases {
        let plan = range(start, end).plan(&Availability::ALL);
        let runs: Vec<_> =
            plan.runs.iter().map(|run| (run.granularity, run.buckets().count())).collect();
        assert_eq!(runs, want, "{start} to {end}");
        assert!(!plan.widened());
    }
}

#[test]
fn edges_past_retention_widen_to_what_is_kept() {
    // Minutes from 2026-01-09, hours from 2024-03-10.
    let kept = Availability::at(at("2026-03-10T10:00:00Z"), 60, 730);
    let cases = [
        // Everything kept, the first minute included.
        (
            "2026-01-09T00:00:00Z",
            "2026-01-09T00:01:00Z",
            "2026-01-09T00:00:00Z",
            "2026-01-09T00:01:00Z",
        ),
        // The last hour without minutes, and the border itself.
        (
            "2026-01-08T23:59:00Z",
            "2026-01-09T00:01:00Z",
            "2026-01-08T23:00:00Z",
            "2026-01-09T00:01:00Z",
        ),
        (
            "2026-01-08T10:20:00Z",
            "2026-01-08T10:40:00Z",
            "2026-01-08T10:00:00Z",
            "2026-01-08T11:00:00Z",
        ),
        (
            "2026-01-08T10:00:00Z",
            "2026-01-08T11:00:00Z",
            "2026-01-08T10:00:00Z",
            "2026-01-08T11:00:00Z",
        ),
        // The first day with hours, the last without.
        (
            "2024-03-10T00:30:00Z",
            "2024-03-10T01:30:00Z",
            "2024-03-10T00:00:00Z",
            "2024-03-10T02:00:00Z",
        ),
        (
            "2024-03-09T23:00:00Z",
            "2024-03-10T01:30:00Z",
            "2024-03-09T00:00:00Z",
            "2024-03-10T02:00:00Z",
        ),
        (
            "2020-05-05T05:05:00Z",
            "2020-05-05T05:06:00Z",
            "2020-05-05T00:00:00Z",
            "2020-05-06T00:00:00Z",
        ),
    ];
    for (start, end, window_start, window_end) in cases {
        let plan = range(start, end).plan(&kept);
        assert_eq!(plan.window, range(window_start, window_end), "{start} to {end}");
        assert_eq!(plan.requested, range(start, end));
        assert_eq!(plan.widened(), (start, end) != (window_start, window_end));
    }
}

#[test]
fn the_finest_granularity_of_a_plan_is_that_of_its_smallest_bucket() {
    let cases = [
        ("2026-03-10T00:00:00Z", "2026-03-12T00:00:00Z", Granularity::Day),
        ("2026-03-10T00:00:00Z", "2026-03-12T01:00:00Z", Granularity::Hour),
        ("2026-03-10T00:00:00Z", "2026-03-12T00:01:00Z", Granularity::Minute),
    ];
    for (start, end, want) in cases {
        assert_eq!(range(start, end).plan(&Availability::ALL).finest(), want);
    }
}

#[test]
fn a_range_that_cannot_be_asked_for_is_refused() {
    let minute = at("2026-03-10T09:59:00Z");
    assert_eq!(TimeRange::new(minute, minute), Err(RangeError::Empty));
    assert_eq!(TimeRange::new(minute + MINUTE_MS, minute), Err(RangeError::Empty));
    let unaligned =
        |bound| RangeError::Unaligned { bound, below_ms: minute, above_ms: minute + MINUTE_MS };
    assert_eq!(TimeRange::new(minute + 1, minute + HOUR_MS), Err(unaligned("start")));
    assert_eq!(TimeRange::new(minute - DAY_MS, minute + 59_999), Err(unaligned("end")));
    assert_eq!(
        unaligned("start").to_string(),
        "the start is not a whole minute; the nearest are 2026-03-10T09:59:00Z and 2026-03-10T10:00:00Z"
    );
    assert_eq!(TimeRange::new(i64::MIN, 0), Err(RangeError::OutOfRange { bound: "start" }));
    assert_eq!(TimeRange::new(0, i64::MAX), Err(RangeError::OutOfRange { bound: "end" }));
}

#[test]
fn the_longest_range_is_read_in_days() {
    let plan = TimeRange::new(MIN_MS, MAX_MS + 1).unwrap().plan(&Availability::at(0, 60, 730));
    assert_eq!(plan.runs.len(), 1);
    assert!(!plan.widened());
}

/// A count for every minute of the time line that no sum of other minutes gives by chance.
fn count_of(minute: Bucket) -> u128 {
    let mixed = (minute.start_ms() / MINUTE_MS).cast_unsigned().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    u128::from(mixed ^ (mixed >> 29))
}

/// The naive sum of all minutes inside.
fn sum_of_minutes(start_ms: i64, end_ms: i64) -> u128 {
    let minutes = (end_ms - start_ms) / MINUTE_MS;
    (0..minutes).map(|minute| count_of(Bucket::minute(start_ms + minute * MINUTE_MS))).sum()
}

/// A range of up to four days near 1970, and what is kept around it.
fn question() -> impl Strategy<Value = (TimeRange, Availability)> {
    let start = -3 * DAY..3 * DAY;
    let length = prop_oneof![1..3 * 60_i64, 1..4 * DAY];
    (start, length, -4_i64..8, 0_i64..6).prop_map(|(start, length, day, older)| {
        let (start_ms, end_ms) = (start * MINUTE_MS, (start + length) * MINUTE_MS);
        let minutes_from_ms = day * DAY_MS;
        let hours_from_ms = minutes_from_ms - older * DAY_MS;
        let kept = Availability { minutes_from_ms, hours_from_ms };
        (TimeRange::new(start_ms, end_ms).unwrap(), kept)
    })
}

/// The granularity to which a bound must widen, found by asking for every bucket whether it is kept.
fn kept_around(at_ms: i64, kept: &Availability) -> Granularity {
    let is_kept = |bucket: Bucket| match bucket.granularity() {
        Granularity::Minute => bucket.start_ms() >= kept.minutes_from_ms,
        Granularity::Hour => bucket.start_ms() >= kept.hours_from_ms,
        Granularity::Day => true,
    };
    let all_kept = |outer: Granularity| Bucket::containing(outer, at_ms).children().all(is_kept);
    if all_kept(Granularity::Hour) {
        Granularity::Minute
    } else if all_kept(Granularity::Day) {
        Granularity::Hour
    } else {
        Granularity::Day
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    /// The rows that a plan reads add up to the minutes of its window, whatever tier they are of;
    /// none is past retention, they follow each other, and no row can be left out.
    #[test]
    fn a_plan_gives_the_naive_sum_of_minutes((range, kept) in question()) {
        let plan = range.plan(&kept);
        let mut next_ms = plan.window.start_ms();
        let mut sum = 0;
        for bucket in plan.buckets() {
            prop_assert_eq!(bucket.start_ms(), next_ms);
            match bucket.granularity() {
                Granularity::Minute => prop_assert!(bucket.start_ms() >= kept.minutes_from_ms),
                Granularity::Hour => prop_assert!(bucket.start_ms() >= kept.hours_from_ms),
                Granularity::Day => {}
            }
            sum += sum_of_minutes(bucket.start_ms(), bucket.end_ms());
            next_ms = bucket.end_ms();
        }
        prop_assert_eq!(next_ms, plan.window.end_ms());
        prop_assert_eq!(sum, sum_of_minutes(plan.window.start_ms(), plan.window.end_ms()));
    }

    /// Never narrower than asked, and wider only up to the granularity that is kept.
    #[test]
    fn a_window_widens_no_further_than_retention_makes_it((range, kept) in question()) {
        let window = range.plan(&kept).window;
        let [from, to] = [range.start_ms(), range.end_ms()];
        prop_assert_eq!(window.start_ms(), kept_around(from, &kept).floor(from));
        prop_assert_eq!(window.end_ms(), kept_around(to, &kept).ceil(to));
        prop_assert!(window.start_ms() <= from && to <= window.end_ms());
    }

    /// Taking the largest aligned bucket that fits, again and again, never needs fewer rows.
    #[test]
    fn a_plan_has_the_fewest_rows((range, kept) in question()) {
        let plan = range.plan(&kept);
        let mut at_ms = plan.window.start_ms();
        let mut fewest = Vec::new();
        while at_ms < plan.window.end_ms() {
            let fitting = Granularity::ALL.into_iter().rev().map(|g| Bucket::containing(g, at_ms));
            let largest = fitting
                .filter(|bucket| bucket.start_ms() == at_ms)
                .find(|bucket| bucket.end_ms() <= plan.window.end_ms())
                .unwrap();
            fewest.push(largest);
            at_ms = largest.end_ms();
        }
        prop_assert_eq!(plan.buckets().collect::<Vec<_>>(), fewest);
        prop_assert!(plan.runs.len() <= 5);
    }
}
