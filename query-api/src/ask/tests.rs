use super::*;

fn pairs(query: &str) -> Vec<(String, String)> {
    let decode = |text: &str| text.replace('+', " ").replace("%2B", "+").replace("%3A", ":");
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
        .map(|(name, value)| (decode(name), decode(value)))
        .collect()
}

fn top(query: &str) -> Result<TopAsk, Problem> {
    TopAsk::parse(&pairs(query), Rules::RAW)
}

fn series(query: &str) -> Result<SeriesAsk, Problem> {
    SeriesAsk::parse(&pairs(query), Rules::RAW)
}

const HOUR: &str = "start=2026-03-10T09:00:00Z&end=2026-03-10T10:00:00Z";

/// The bad parameters and all that is said about them.
fn refusal<T: std::fmt::Debug>(answer: Result<T, Problem>) -> (Vec<String>, String) {
    let errors = answer.expect_err("refused").into_errors();
    let messages = errors.iter().map(|error| error.message.as_str()).collect::<Vec<_>>().join("; ");
    (errors.into_iter().map(|error| error.parameter).collect(), messages)
}

#[test]
fn k_outside_its_bounds_or_no_integer_is_refused_by_name_and_a_missing_k_is_ten() {
    let bad = [
        "0",
        "-1",
        "1.5",
        "abc",
        "",
        "+5",
        " 5",
        "4001",
        "2147483648",
        "18446744073709551616",
        "99999999999999999999999999",
    ];
    for k in bad {
        let (parameters, message) = refusal(top(&format!("{HOUR}&k={}", k.replace('+', "%2B"))));
        assert_eq!(parameters, ["k"], "k={k}");
        assert_eq!(message, "must be an integer from 1 to 4000", "k={k}");
    }
    assert_eq!(top(HOUR).unwrap().k, 10);
    assert_eq!(top(&format!("{HOUR}&k=4000")).unwrap().k, 4_000);
    assert_eq!(top(&format!("{HOUR}&k=1")).unwrap().k, 1);
}

#[test]
fn a_range_that_cannot_be_answered_is_refused_and_says_why() {
    let cases = [
        ("start=2026-03-10T10:00:00Z&end=2026-03-10T10:00:00Z", "start", "must lie before end"),
        ("start=2026-03-10T11:00:00Z&end=2026-03-10T10:00:00Z", "start", "must lie before end"),
        ("end=2026-03-10T10:00:00Z", "start", "required"),
        ("start=2026-03-10T10:00:00Z", "end", "required"),
        ("start=2026-03-10T09:00:00&end=2026-03-10T10:00:00Z", "start", "no offset"),
        ("start=2026-03-10T09:00:00+05:30&end=2026-03-10T10:00:00Z", "start", "encode + as %2B"),
        ("start=yesterday&end=2026-03-10T10:00:00Z", "start", "RFC 3339"),
        ("start=1970-01-01T00:00:00Z&end=9999-12-31T00:00:00Z", "end", "20 years"),
        ("start=1970-01-01T00:00:00Z&end=10000-01-01T00:00:00Z", "end", "RFC 3339"),
        ("start=0&end=9223372036854775808", "end", "outside the years 1 to 9999"),
        ("start=-99999999999999999&end=0", "start", "outside the years 1 to 9999"),
    ];
    for (query, parameter, said) in cases {
        let (parameters, message) = refusal(top(query));
        assert_eq!(parameters, [parameter], "{query}");
        assert!(message.contains(said), "{query}: {message}");
    }
}

#[test]
fn a_bound_finer_than_a_minute_is_refused_with_the_nearest_or_widened_on_request() {
    let query = "start=2026-03-10T10:00:10Z&end=2026-03-10T10:00:40Z";
    let (parameters, message) = refusal(top(query));
    assert_eq!(parameters, ["start", "end"]);
    assert!(message.contains("2026-03-10T10:00:00Z and 2026-03-10T10:01:00Z"), "{message}");
    assert!(message.contains("snap=true"), "{message}");

    let asked = top(&format!("{query}&snap=true")).unwrap().asked;
    assert_eq!(format_rfc3339(asked.range.start_ms()), "2026-03-10T10:00:00Z");
    assert_eq!(format_rfc3339(asked.range.end_ms()), "2026-03-10T10:01:00Z");
    assert_eq!(format_rfc3339(asked.requested_start_ms), "2026-03-10T10:00:10Z");

    let over_a_boundary = "start=2026-03-10T17:46:30Z&end=2026-03-10T17:49:30Z&snap=true";
    let range = top(over_a_boundary).unwrap().asked.range;
    assert_eq!(range.end_ms() - range.start_ms(), 4 * 60_000);
}

#[test]
fn times_are_read_with_any_offset_and_as_milliseconds() {
    let zulu = top(HOUR).unwrap();
    let same = [
        "start=2026-03-10T14:30:00%2B05:30&end=2026-03-10T15:30:00%2B05:30",
        "start=2026-03-10T05:00:00-04:00&end=2026-03-10T06:00:00-04:00",
        "start=1773133200000&end=1773136800000",
    ];
    for query in same {
        assert_eq!(top(query).unwrap(), zulu, "{query}");
    }
}

#[test]
fn the_local_day_with_25_hours_has_25_hours() {
    let query = "start=2026-11-01T00:00:00-04:00&end=2026-11-02T00:00:00-05:00";
    let range = top(query).unwrap().asked.range;
    assert_eq!(range.end_ms() - range.start_ms(), 25 * 3_600_000);
    let hours = series(&format!("{query}&type=a&granularity=hour")).unwrap();
    assert_eq!(hours.run().buckets().count(), 25);
}

#[test]
fn all_errors_of_a_request_are_told_at_once_and_name_what_is_allowed() {
    let (parameters, message) = refusal(top("limit=5&k=0&snap=yes&format=xml&start=1&start=2"));
    assert_eq!(parameters, ["limit", "start", "snap", "end", "k", "format"]);
    assert!(message.contains("allowed are start, end, k, snap, format"), "{message}");
    assert!(message.contains("given more than once"), "{message}");
    assert!(message.contains("true or false"), "{message}");
    assert!(message.contains("one of json, csv, arrow"), "{message}");
}

#[test]
fn a_series_has_bounds_of_its_granularity_and_at_most_ten_thousand_points() {
    let cases = [
        ("start=0&end=600000000&granularity=minute", Ok(10_000)),
        ("start=0&end=600060000&granularity=minute", Err(("granularity", "10001 points"))),
        ("start=0&end=5400000&granularity=hour", Err(("end", "whole hour"))),
        ("start=0&end=5400000&granularity=hour&snap=true", Ok(2)),
        ("start=0&end=7200000&granularity=day", Err(("end", "whole day"))),
        ("start=0&end=7200000&granularity=week", Err(("granularity", "minute, hour or day"))),
        ("start=0&end=7200000", Err(("granularity", "required"))),
        ("start=0&end=631152000000&granularity=day", Ok(7_305)),
        ("start=0&end=631238400000&granularity=day", Err(("end", "20 years"))),
        (
            "start=1970-01-01T00:00:00Z&end=9999-12-31T00:00:00Z&granularity=minute",
            Err(("end", "20 years")),
        ),
    ];
    for (query, want) in cases {
        let asked = series(&format!("type=a&{query}"));
        match want {
            Ok(points) => assert_eq!(asked.unwrap().run().buckets().count(), points, "{query}"),
            Err((parameter, said)) => {
                let (parameters, message) = refusal(asked);
                assert_eq!(parameters, [parameter], "{query}");
                assert!(message.contains(said), "{query}: {message}");
            }
        }
    }
    assert_eq!(refusal(series("start=0&end=60000&granularity=minute")).0, ["type"]);
}

#[test]
fn a_granularity_whose_rows_are_past_retention_is_refused_with_the_finest_there_is() {
    let availability = Availability { minutes_from_ms: 10 * DAY_MS, hours_from_ms: 5 * DAY_MS };
    // (start in days, granularity, the finest that is named)
    let cases = [
        (10, "minute", None),
        (9, "minute", Some("hour")),
        (5, "hour", None),
        (4, "hour", Some("day")),
        (4, "minute", Some("day")),
        (0, "day", None),
    ];
    for (day, granularity, finest) in cases {
        let start = day * DAY_MS;
        let query =
            format!("type=a&granularity={granularity}&start={start}&end={}", start + DAY_MS);
        let checked = series(&query).unwrap().check_kept(&availability);
        match finest {
            None => assert_eq!(checked, Ok(()), "{query}"),
            Some(finest) => {
                let (parameters, message) = refusal(checked);
                assert_eq!(parameters, ["granularity"], "{query}");
                assert!(message.ends_with(&format!("for this start is {finest}")), "{message}");
            }
        }
    }
}
