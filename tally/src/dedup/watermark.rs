//! Up to where the input's time has come, safe from clocks that run ahead.

use serde::{Deserialize, Serialize};

/// By so many records those that are far ahead must outnumber the others before time jumps.
const AGREED: u32 = 100;

/// The highest time seen, unless it stands out.
///
/// A stamp at most `max_ahead_ms` ahead of the watermark moves it. Stamps that are further ahead
/// move it only together: once there are [`AGREED`] more of them than of others, the watermark is
/// the least of them. So it starts, and so it passes a gap in the data, but one absurd stamp, or a
/// sender whose clock is wrong, does not close the window for everyone else. Until then more is
/// remembered than need be, which changes no verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct Watermark {
    at_ms: Option<i64>,
    far_ahead: u32,
    /// Means nothing while `far_ahead` is zero.
    least_far_ahead_ms: i64,
}

impl Watermark {
    /// `None` until the first stamps agree.
    pub(super) fn at_ms(&self) -> Option<i64> {
        self.at_ms
    }

    /// Notes the stamp of a record.
    pub(super) fn note(&mut self, stamp_ms: i64, max_ahead_ms: i64) {
        match &mut self.at_ms {
            Some(at_ms) if stamp_ms <= at_ms.saturating_add(max_ahead_ms) => {
                *at_ms = stamp_ms.max(*at_ms);
                self.far_ahead = self.far_ahead.saturating_sub(1);
            }
            Some(_) | None => {
                let earlier = (self.far_ahead > 0).then_some(self.least_far_ahead_ms);
                self.least_far_ahead_ms = earlier.map_or(stamp_ms, |least| least.min(stamp_ms));
                self.far_ahead += 1;
                if self.far_ahead == AGREED {
                    self.at_ms = Some(self.least_far_ahead_ms);
                    self.far_ahead = 0;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_AHEAD_MS: i64 = 60_000;
    const DAY_MS: i64 = 86_400_000;

    fn fed(mut watermark: Watermark, stamps: impl IntoIterator<Item = i64>) -> Watermark {
        stamps.into_iter().for_each(|stamp_ms| watermark.note(stamp_ms, MAX_AHEAD_MS));
        watermark
    }

    #[test]
    fn it_starts_with_the_least_of_the_first_and_follows_the_highest() {
        assert_eq!(fed(Watermark::default(), 0..99).at_ms(), None);
        assert_eq!(fed(Watermark::default(), (0..100).rev()).at_ms(), Some(0));
        assert_eq!(fed(Watermark::default(), (0..50_000).step_by(10)).at_ms(), Some(49_990));
    }

    #[test]
    fn absurd_stamps_do_not_move_it_and_a_gap_that_all_agree_on_does() {
        let before = fed(Watermark::default(), (0..20_000).step_by(10));
        let spoiled = fed(before, (0..20_000).map(|n| if n % 3 == 0 { DAY_MS * n } else { n }));
        assert_eq!(spoiled.at_ms(), Some(19_999));
        let after = fed(before, [9 * DAY_MS].into_iter().chain((0..200).map(|n| DAY_MS + n)));
        assert_eq!(after.at_ms(), Some(DAY_MS + 199));
    }

    #[test]
    fn it_never_falls() {
        let watermark = fed(Watermark::default(), (0..1_000).map(|n| DAY_MS + n));
        assert_eq!(fed(watermark, (0..1_000).rev()).at_ms(), Some(DAY_MS + 999));
    }
}
