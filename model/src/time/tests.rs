use proptest::prelude::*;

use super::*;
use crate::strategies::instant;

/// 2026-03-10T09:59:30Z.
const HALF_PAST: i64 = 1_773_136_770_000;

#[test]
fn spellings_of_an_instant_are_read() {
    let cases = [
        ("2026-03-10T09:59:30Z", HALF_PAST),
        ("2026-03-10T18:59:30+09:00", HALF_PAST),
        ("2026-03-10T15:44:30+05:45", HALF_PAST),
        ("2026-03-10t06:59:30-03:00", HALF_PAST),
        ("2026-03-10t09:59:30z", HALF_PAST),
        ("2026-03-10 09:59:30Z", HALF_PAST),
        ("2026-03-10T09:59:30+00:00", HALF_PAST),
        ("2026-03-10T09:59:30-00:00", HALF_PAST),
        ("2026-03-11T09:58:30+23:59", HALF_PAST),
        ("2026-03-09T10:00:30-23:59", HALF_PAST),
        ("2026-03-10T09:59:30.1Z", HALF_PAST + 100),
        ("2026-03-10T09:59:30.12Z", HALF_PAST + 120),
        ("2026-03-10T09:59:30.123Z", HALF_PAST + 123),
        ("2026-03-10T09:59:30.007+00:00", HALF_PAST + 7),
        ("2026-03-10T09:59:30.9999999999999999999999Z", HALF_PAST + 999),
        ("2026-03-10T09:59:30.0009Z", HALF_PAST),
        ("1970-01-01T00:00:00Z", 0),
        ("1969-12-31T23:59:59.999Z", -1),
        ("2024-02-29T00:00:00Z", 1_709_164_800_000),
        ("2000-02-29T00:00:00Z", 951_782_400_000),
        ("0001-01-01T00:00:00Z", MIN_MS),
        ("9999-12-31T23:59:59.999Z", MAX_MS),
    ];
    for (text, want) in cases {
        assert_eq!(parse_rfc3339(text), Ok(want), "{text}");
    }
}

#[test]
fn a_leap_second_stays_in_its_minute() {
    let next_year = parse_rfc3339("2017-01-01T00:00:00Z").unwrap();
    for text in ["2016-12-31T23:59:60.9Z", "2016-12-31T23:59:60Z", "2017-01-01T08:59:60.5+09:00"] {
        assert_eq!(parse_rfc3339(text), Ok(next_year - 1), "{text}");
    }
    assert_eq!(parse_rfc3339("2016-12-31T23:59:61Z"), Err(BadTime::Syntax));
}

#[test]
fn a_text_that_is_no_instant_is_refused_and_says_why() {
    use BadTime::{BlankOffset, NoOffset, OutOfRange, Syntax};
    let cases = [
        ("2026-03-10T09:59:30", NoOffset),
        ("2026-03-10T09:59:30.5", NoOffset),
        // A plus sign in a query string that nobody encoded.
        ("2026-03-10T18:59:30 09:00", BlankOffset),
        ("2026-03-10T18:59:30.25 09:00", BlankOffset),
        ("", Syntax),
        ("yesterday", Syntax),
        ("null", Syntax),
        ("1773136770000", Syntax),
        ("2026-03-10", Syntax),
        ("2026-03-10T09:59Z", Syntax),
        ("2026-13-01T00:00:00Z", Syntax),
        ("2026-00-01T00:00:00Z", Syntax),
        ("2026-02-30T10:00:00Z", Syntax),
        ("2025-02-29T10:00:00Z", Syntax),
        ("1900-02-29T10:00:00Z", Syntax),
        ("2026-04-31T10:00:00Z", Syntax),
        ("2026-03-00T10:00:00Z", Syntax),
        ("2026-03-10T24:00:00Z", Syntax),
        ("2026-03-10T09:60:00Z", Syntax),
        ("2026-03-10T09:59:30.Z", Syntax),
        ("2026-03-10T09:59:30,5Z", Syntax),
        ("2026-03-10T09:59:30 Z", Syntax),
        ("2026-03-10T09:59:30Z ", Syntax),
        (" 2026-03-10T09:59:30Z", Syntax),
        ("2026-03-10T09:59:30ZZ", Syntax),
        ("2026-03-10T09:59:30UTC", Syntax),
        ("2026-03-10T09:59:30+09", Syntax),
        ("2026-03-10T09:59:30+0900", Syntax),
        ("2026-03-10T09:59:30+24:00", Syntax),
        ("2026-03-10T09:59:30+09:60", Syntax),
        ("2026-03-10T09:59:30*09:00", Syntax),
        ("2026-03-10X09:59:30Z", Syntax),
        ("2026/03/10T09:59:30Z", Syntax),
        ("20260310T095930Z", Syntax),
        ("+026-03-10T09:59:30Z", Syntax),
        ("12026-03-10T09:59:30Z", Syntax),
        ("2026-03-1\u{661}T09:59:30Z", Syntax),
        ("2026\u{2212}03\u{2212}10T09:59:30Z", Syntax),
        ("0000-12-31T23:59:59Z", OutOfRange),
        ("0001-01-01T00:00:00+00:01", OutOfRange),
        ("9999-12-31T23:59:59-00:01", OutOfRange),
    ];
    for (text, want) in cases {
        assert_eq!(parse_rfc3339(text), Err(want), "{text}");
    }
}

#[test]
fn milliseconds_are_written_only_where_there_are_any() {
    let cases = [
        (HALF_PAST, "2026-03-10T09:59:30Z"),
        (HALF_PAST + 7, "2026-03-10T09:59:30.007Z"),
        (HALF_PAST + 500, "2026-03-10T09:59:30.500Z"),
        (-1, "1969-12-31T23:59:59.999Z"),
        (MIN_MS, "0001-01-01T00:00:00Z"),
        (MAX_MS, "9999-12-31T23:59:59.999Z"),
        (MAX_MS + 1, "253402300800000 ms"),
    ];
    for (at_ms, want) in cases {
        assert_eq!(format_rfc3339(at_ms), want);
    }
}

#[test]
fn an_instant_has_the_utc_date_of_its_day() {
    let cases = [
        (HALF_PAST, 20_260_310),
        (0, 19_700_101),
        (-1, 19_691_231),
        (MIN_MS, 10_101),
        (MAX_MS, 99_991_231),
        (i64::MIN, 10_101),
        (i64::MAX, 99_991_231),
    ];
    for (at_ms, want) in cases {
        assert_eq!(date_number(at_ms), want);
    }
}

#[test]
fn retention_is_cut_at_the_start_of_a_utc_day() {
    let midnight = parse_rfc3339("2026-03-10T00:00:00Z").unwrap();
    let want = parse_rfc3339("2026-01-09T00:00:00Z").unwrap();
    for now_ms in [midnight, midnight + 1, midnight + DAY_MS - 1] {
        assert_eq!(days_before(now_ms, 60), want);
    }
    assert_eq!(days_before(midnight + DAY_MS, 60), want + DAY_MS);
}

proptest! {
    #[test]
    fn what_is_written_is_read_back(at_ms in instant()) {
        prop_assert_eq!(parse_rfc3339(&format_rfc3339(at_ms)), Ok(at_ms));
    }

    /// An independent calendar agrees, also before the year 1, where only the arithmetic goes.
    #[test]
    fn dates_are_those_of_an_independent_calendar(days in -4_371_000_i64..2_932_896) {
        let date = Date::of_day_number(days);
        let epoch = jiff::civil::date(1970, 1, 1);
        let want = epoch.saturating_add(jiff::Span::new().days(days));
        prop_assert_eq!(
            (date.year, date.month, date.day),
            (i64::from(want.year()), i64::from(want.month()), i64::from(want.day()))
        );
        prop_assert_eq!(date.day_number(), days);
    }

    #[test]
    fn exactly_the_dates_of_an_independent_calendar_exist(
        year in 0_i16..=9_999, month in 0_i8..=13, day in 0_i8..=32,
    ) {
        prop_assert_eq!(
            Date::new(year.into(), month.into(), day.into()).is_some(),
            jiff::civil::Date::new(year, month, day).is_ok()
        );
    }

    /// Months and years tile the time line, also past the years that can be written.
    #[test]
    fn months_and_years_follow_each_other_without_gap(
        at_ms in prop_oneof![instant(), MIN_MS * 3..MAX_MS * 3],
    ) {
        for (of, days) in [(month_of as fn(i64) -> (i64, i64), 28..=31), (year_of, 365..=366)] {
            let (start, end) = of(at_ms);
            prop_assert!((start..end).contains(&at_ms));
            prop_assert!(days.contains(&((end - start) / DAY_MS)));
            prop_assert_eq!((end - start) % DAY_MS, 0);
            prop_assert_eq!(of(end).0, end);
            prop_assert_eq!(of(start - 1).1, start);
        }
    }

    /// Nothing that a client sends makes the reader panic.
    #[test]
    fn any_text_is_read_or_refused(text in prop_oneof![
        ".{0,40}",
        r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{0,5})?([Zz]|[+ -][0-9]{2}:[0-9]{2})?",
    ]) {
        if let Ok(at_ms) = parse_rfc3339(&text) {
            prop_assert!((MIN_MS..=MAX_MS).contains(&at_ms));
        }
    }
}
