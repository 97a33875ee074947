//! Durations and sizes as people write them: `90s`, `15min`, `7d`, `64MiB`.

/// Milliseconds of a duration such as `500ms`, `35s`, `15min`, `24h` or `7d`.
///
/// `None` if the text is not a whole number followed by one of these units.
pub(crate) fn duration_ms(text: &str) -> Option<i64> {
    let (number, unit) = split(text)?;
    let factor = match unit {
        "ms" => 1,
        "s" => 1_000,
        "min" | "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    i64::try_from(number).ok()?.checked_mul(factor)
}

/// Bytes of a size such as `512B`, `256KiB`, `64MiB` or `2GiB`.
///
/// `None` if the text is not a whole number followed by one of these units.
pub(crate) fn size_bytes(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let factor = match unit {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    number.checked_mul(factor)
}

fn split(text: &str) -> Option<(u64, &str)> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at_checked(digits)?;
    Some((number.parse().ok()?, unit.trim_start()))
}

/// The shortest spelling of a duration: `900000` becomes `15min`.
pub(crate) fn show_duration(ms: i64) -> String {
    for (factor, unit) in [(86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")] {
        if ms != 0 && ms % factor == 0 {
            return format!("{}{unit}", ms / factor);
        }
    }
    format!("{ms}ms")
}

/// A size in the greatest unit of which it has at least ten: `204472320` becomes `195MiB`.
pub(crate) fn show_size(bytes: u64) -> String {
    for (factor, unit) in [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")] {
        if bytes >= 10 * factor {
            return format!("{}{unit}", bytes / factor);
        }
    }
    format!("{bytes}B")
}

/// Parses a duration for clap.
pub(crate) fn duration_argument(text: &str) -> Result<i64, String> {
    duration_ms(text).ok_or_else(|| "a duration is a whole number and ms, s, min, h or d".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_sizes_need_a_unit() {
        let cases = [
            ("500ms", Some(500)),
            ("35s", Some(35_000)),
            ("15min", Some(900_000)),
            ("15 min", Some(900_000)),
            ("24h", Some(86_400_000)),
            ("7d", Some(604_800_000)),
            ("7", None),
            ("", None),
            ("-1s", None),
            ("1.5h", None),
            ("99999999999999999d", None),
        ];
        for (text, want) in cases {
            assert_eq!(duration_ms(text), want, "{text}");
        }
        assert_eq!(size_bytes("64MiB"), Some(64 << 20));
        assert_eq!(size_bytes("64MB"), None);
        assert_eq!(
            [9_999, 10 << 10, 195 << 20, (10 << 30) - 1, 64 << 30].map(show_size),
            ["9999B", "10KiB", "195MiB", "10239MiB", "64GiB"]
        );
    }

    #[test]
    fn a_shown_duration_reads_back() {
        for ms in [0, 1, 999, 1_000, 61_000, 900_000, 7_200_000, 604_800_000] {
            assert_eq!(duration_ms(&show_duration(ms)), Some(ms));
        }
    }
}
