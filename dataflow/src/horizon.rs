//! How far counting has come, as the sink needs to know it.

use serde::{Deserialize, Serialize};
use tally_model::bucket::{Granularity, MINUTE_MS};
use tally_model::rules::Timing;

/// What holds for all minutes at once, from some epoch on. All times in ms since the Unix epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Horizon {
    /// Every minute that ends at or before this is closed by the watermark.
    pub(crate) closed_up_to_ms: Option<i64>,
    /// Every minute that ends at or before this is retired.
    pub(crate) retired_up_to_ms: Option<i64>,
    /// Everything is counted that the log held when the run started.
    pub(crate) caught_up: bool,
}

impl Horizon {
    /// What the watermark closes and retires.
    pub(crate) fn at(timing: &Timing, watermark_ms: Option<i64>, caught_up: bool) -> Self {
        let minute = |at_ms| Granularity::Minute.floor(at_ms);
        Self {
            closed_up_to_ms: watermark_ms.map(|w| minute(w - timing.watermark_delay_ms)),
            retired_up_to_ms: watermark_ms.map(|w| minute(w - timing.retire_after_ms() - 1)),
            caught_up,
        }
    }

    /// What two workers have both reached.
    pub(crate) fn min(self, other: Self) -> Self {
        Self {
            closed_up_to_ms: self.closed_up_to_ms.min(other.closed_up_to_ms),
            retired_up_to_ms: self.retired_up_to_ms.min(other.retired_up_to_ms),
            caught_up: self.caught_up && other.caught_up,
        }
    }
}

/// The end of the minute that holds `at_ms`.
pub(crate) const fn minute_end(at_ms: i64) -> i64 {
    Granularity::Minute.floor(at_ms) + MINUTE_MS
}

#[cfg(test)]
mod tests {
    use tally_model::bucket::Bucket;

    use super::*;

    #[test]
    fn the_horizon_agrees_with_the_rules_at_every_border() {
        let timing = Timing::DEFAULT;
        let start = 100 * MINUTE_MS;
        let borders = [timing.watermark_delay_ms, timing.retire_after_ms()];
        for border in borders.map(|after_ms| start + MINUTE_MS + after_ms) {
            for watermark_ms in border - 2..=border + 2 {
                let horizon = Horizon::at(&timing, Some(watermark_ms), false);
                for minute in 98..103 {
                    let bucket = Bucket::minute(minute * MINUTE_MS);
                    let is_by = |mark: Option<i64>| mark.is_some_and(|m| bucket.end_ms() <= m);
                    assert_eq!(
                        is_by(horizon.closed_up_to_ms),
                        timing.is_closed(bucket, watermark_ms),
                        "closed: {minute} at {watermark_ms}"
                    );
                    assert_eq!(
                        is_by(horizon.retired_up_to_ms),
                        timing.is_retired(bucket, watermark_ms),
                        "retired: {minute} at {watermark_ms}"
                    );
                }
            }
        }
    }
}
