//! Instants as text and the calendar. All instants are milliseconds since the Unix epoch, UTC.

mod calendar;
#[cfg(test)]
mod tests;

use crate::bucket::{DAY_MS, Granularity, HOUR_MS, MINUTE_MS};
use calendar::Date;

/// Earliest and latest instant that Tally handles: 0001-01-01 and 9999-12-31. Everything between
/// can be added to a retention or a window without overflow.
pub const MIN_MS: i64 = -62_135_596_800_000;
/// The last millisecond of the year 9999.
pub const MAX_MS: i64 = 253_402_300_799_999;

/// A text that is no instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTime {
    /// A date and a time, but no offset: the instant would have to be guessed.
    #[error("the time has no offset; write Z or an offset like +05:30")]
    NoOffset,
    /// A blank where the offset's sign should stand: a `+` that was not percent-encoded.
    #[error("the time has a blank in place of the offset's sign; encode + as %2B")]
    BlankOffset,
    /// Not RFC 3339, or a date that does not exist.
    #[error("not an RFC 3339 time like 2026-03-10T09:59:30Z")]
    Syntax,
    /// A time before [`MIN_MS`] or after [`MAX_MS`].
    #[error("the time lies outside the years 1 to 9999 in UTC")]
    OutOfRange,
}

/// Reads an RFC 3339 instant with an explicit offset.
///
/// `T`, `t` or a blank separates date and time; `Z`, `z` or `±hh:mm` follows. Second 60 becomes
/// 59.999 of the same minute, so that a leap second stays in its bucket; digits under a
/// millisecond are cut.
///
/// # Errors
/// [`BadTime`], one variant for each thing to tell the sender.
///
/// # Source
/// RFC 3339, section 5.6.
///
/// # Examples
/// ```
/// use tally_model::time::{BadTime, format_rfc3339, parse_rfc3339};
///
/// let at_ms = parse_rfc3339("2026-03-10T15:44:30+05:45")?;
/// assert_eq!(format_rfc3339(at_ms), "2026-03-10T09:59:30Z");
/// assert_eq!(parse_rfc3339("2026-03-10T09:59:30"), Err(BadTime::NoOffset));
/// # Ok::<(), BadTime>(())
/// ```
pub fn parse_rfc3339(text: &str) -> Result<i64, BadTime> {
    let (head, rest) = text.as_bytes().split_first_chunk::<19>().ok_or(BadTime::Syntax)?;
    #[rustfmt::skip]
    let &[
        y1, y2, y3, y4, b'-', m1, m2, b'-', d1, d2, b'T' | b't' | b' ',
        hour1, hour2, b':', minute1, minute2, b':', second1, second2,
    ] = head else {
        return Err(BadTime::Syntax);
    };
    let date = Date::new(number(&[y1, y2, y3, y4])?, number(&[m1, m2])?, number(&[d1, d2])?)
        .ok_or(BadTime::Syntax)?;
    let hour = number(&[hour1, hour2])?;
    let minute = number(&[minute1, minute2])?;
    let second = number(&[second1, second2])?;
    if hour > 23 || minute > 59 || second > 60 {
        return Err(BadTime::Syntax);
    }
    let (fraction_ms, offset) = fraction(rest)?;
    let in_minute_ms = (second * 1_000 + fraction_ms).min(MINUTE_MS - 1);
    let local_ms = date.day_number() * DAY_MS + hour * HOUR_MS + minute * MINUTE_MS + in_minute_ms;
    let at_ms = local_ms - offset_ms(offset)?;
    if (MIN_MS..=MAX_MS).contains(&at_ms) { Ok(at_ms) } else { Err(BadTime::OutOfRange) }
}

/// The whole milliseconds of a fraction of a second, if one stands here, and what follows it.
fn fraction(rest: &[u8]) -> Result<(i64, &[u8]), BadTime> {
    let Some(rest) = rest.strip_prefix(b".") else {
        return Ok((0, rest));
    };
    let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (digits, rest) = rest.split_at(length);
    if digits.is_empty() {
        return Err(BadTime::Syntax);
    }
    let digit_at = |place| digits.get(place).map_or(0, |digit: &u8| i64::from(digit - b'0'));
    Ok((digit_at(0) * 100 + digit_at(1) * 10 + digit_at(2), rest))
}

fn offset_ms(rest: &[u8]) -> Result<i64, BadTime> {
    match *rest {
        [] => Err(BadTime::NoOffset),
        [b'Z' | b'z'] => Ok(0),
        [sign, hour1, hour2, b':', minute1, minute2] => {
            let (hours, minutes) = (number(&[hour1, hour2])?, number(&[minute1, minute2])?);
            if hours > 23 || minutes > 59 {
                return Err(BadTime::Syntax);
            }
            let magnitude = hours * HOUR_MS + minutes * MINUTE_MS;
            match sign {
                b'+' => Ok(magnitude),
                b'-' => Ok(-magnitude),
                b' ' => Err(BadTime::BlankOffset),
                _ => Err(BadTime::Syntax),
            }
        }
        _ => Err(BadTime::Syntax),
    }
}

fn number(digits: &[u8]) -> Result<i64, BadTime> {
    digits.iter().try_fold(0, |value, digit| match digit {
        b'0'..=b'9' => Ok(value * 10 + i64::from(digit - b'0')),
        _ => Err(BadTime::Syntax),
    })
}

/// Writes an instant as RFC 3339 in UTC, with milliseconds only where there are any:
/// `2026-03-10T09:59:30Z`. An instant that RFC 3339 cannot express (outside [`MIN_MS`] to
/// [`MAX_MS`]) is written as a number of milliseconds.
#[must_use]
pub fn format_rfc3339(at_ms: i64) -> String {
    if !(MIN_MS..=MAX_MS).contains(&at_ms) {
        return format!("{at_ms} ms");
    }
    let Date { year, month, day } = date_of(at_ms);
    let in_day_ms = at_ms.rem_euclid(DAY_MS);
    let (hour, minute) = (in_day_ms / HOUR_MS, in_day_ms % HOUR_MS / MINUTE_MS);
    let (second, millis) = (in_day_ms % MINUTE_MS / 1_000, in_day_ms % 1_000);
    let fraction = if millis == 0 { String::new() } else { format!(".{millis:03}") };
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{fraction}Z")
}

const fn date_of(at_ms: i64) -> Date {
    Date::of_day_number(at_ms.div_euclid(DAY_MS))
}

/// The UTC date of an instant as `YYYYMMDD`, for example 20260310. An instant outside [`MIN_MS`]
/// to [`MAX_MS`], which no record carries, has the date of the nearer of the two.
#[must_use]
pub fn date_number(at_ms: i64) -> u32 {
    let Date { year, month, day } = date_of(at_ms.clamp(MIN_MS, MAX_MS));
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "years 1 to 9999 give 00010101 to 99991231"
    )]
    let number = (year * 10_000 + month * 100 + day) as u32;
    number
}

/// Start and end of the UTC calendar month that holds `at_ms`.
#[must_use]
pub const fn month_of(at_ms: i64) -> (i64, i64) {
    let Date { year, month, .. } = date_of(at_ms);
    let (next_year, next_month) = if month == 12 { (year + 1, 1) } else { (year, month + 1) };
    (first_of_month_ms(year, month), first_of_month_ms(next_year, next_month))
}

/// Start and end of the UTC calendar year that holds `at_ms`.
#[must_use]
pub const fn year_of(at_ms: i64) -> (i64, i64) {
    let Date { year, .. } = date_of(at_ms);
    (first_of_month_ms(year, 1), first_of_month_ms(year + 1, 1))
}

const fn first_of_month_ms(year: i64, month: i64) -> i64 {
    Date { year, month, day: 1 }.day_number() * DAY_MS
}

/// The start of the UTC day `days` before the day that holds `now_ms`: what a retention of
/// `days` keeps, by the calendar.
#[must_use]
pub const fn days_before(now_ms: i64, days: i64) -> i64 {
    Granularity::Day.floor(now_ms) - days * DAY_MS
}
