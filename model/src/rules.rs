//! The rules that decide whether and where an event counts. Pure functions of stamps, so a replay
//! anywhere puts the same event on the same path.
//!
//! Invariant C-3 of ARCHITECTURE.md.

#[cfg(test)]
mod tests;

use crate::bucket::{Bucket, DAY_MS, Granularity, HOUR_MS, MINUTE_MS};

/// How long the streaming path waits for events of a bucket, in ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// From a bucket's end until it is closed (readable).
    pub watermark_delay_ms: i64,
    /// From closing until an arrival counts as late.
    pub lateness_ms: i64,
    /// How long after its receivedAt stamp a record may still reach the log. Longer than the
    /// collector's append deadline, so that an on-time record is never read after retirement.
    pub append_grace_ms: i64,
}

impl Timing {
    /// Two minutes, fifteen minutes, thirty-five seconds.
    pub const DEFAULT: Self = Self {
        watermark_delay_ms: 2 * MINUTE_MS,
        lateness_ms: 15 * MINUTE_MS,
        append_grace_ms: 35_000,
    };

    /// Whether the bucket is readable once the watermark is `watermark_ms`.
    #[must_use]
    pub const fn is_closed(&self, bucket: Bucket, watermark_ms: i64) -> bool {
        watermark_ms >= bucket.end_ms() + self.watermark_delay_ms
    }

    /// Whether the streaming path will never touch the bucket again.
    #[must_use]
    pub const fn is_retired(&self, bucket: Bucket, watermark_ms: i64) -> bool {
        watermark_ms > bucket.end_ms() + self.retire_after_ms()
    }

    /// Whether an event of `bucket` that was received at `received_at_ms` is late. A pure
    /// function of the record: nothing depends on arrival order.
    #[must_use]
    pub const fn is_late(&self, bucket: Bucket, received_at_ms: i64) -> bool {
        received_at_ms > bucket.end_ms() + self.watermark_delay_ms + self.lateness_ms
    }

    /// From a bucket's end until it is retired: delay + lateness + append grace, in ms.
    #[must_use]
    pub const fn retire_after_ms(&self) -> i64 {
        self.watermark_delay_ms + self.lateness_ms + self.append_grace_ms
    }
}

/// What counts as a repeat: a function of the receivedAt stamps of two copies.
///
/// Time is cut into buckets of `width_ms`; a copy is a repeat iff its bucket lies at most
/// `window / width` buckets after the first copy's. So a repeat inside the window is always
/// recognised, and one up to one width beyond it may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DedupRule {
    window_ms: i64,
    width_ms: i64,
}

/// A window or a bucket width that no deployment can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DedupRuleError {
    /// The width is not positive.
    #[error("the dedup bucket must be longer than zero")]
    Width,
    /// The window is not a whole, positive number of buckets.
    #[error("the dedup window must be a whole number of dedup buckets, at least one")]
    Window,
}

/// Number of a dedup bucket: receivedAt divided by the width, rounded down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DedupBucket(pub i64);

impl DedupRule {
    /// Seven days in buckets of one day.
    pub const DEFAULT: Self = Self { window_ms: 7 * DAY_MS, width_ms: DAY_MS };

    /// The rule of this window, cut into buckets of this width.
    ///
    /// # Errors
    /// [`DedupRuleError`] unless the window is a positive whole number of widths.
    pub fn new(window_ms: i64, width_ms: i64) -> Result<Self, DedupRuleError> {
        if width_ms <= 0 {
            return Err(DedupRuleError::Width);
        }
        if window_ms < width_ms || window_ms % width_ms != 0 {
            return Err(DedupRuleError::Window);
        }
        Ok(Self { window_ms, width_ms })
    }

    /// The bucket width that belongs to a window when none is configured: one hour for windows of
    /// at most a day, else one day.
    #[must_use]
    pub const fn default_width_ms(window_ms: i64) -> i64 {
        if window_ms <= DAY_MS { HOUR_MS } else { DAY_MS }
    }

    /// The window, in ms.
    #[must_use]
    pub const fn window_ms(&self) -> i64 {
        self.window_ms
    }

    /// The width of a bucket, in ms.
    #[must_use]
    pub const fn width_ms(&self) -> i64 {
        self.width_ms
    }

    /// How many buckets the window spans: `window / width`.
    #[must_use]
    pub const fn span(&self) -> i64 {
        self.window_ms / self.width_ms
    }

    /// The bucket of a copy received at `received_at_ms`.
    #[must_use]
    pub const fn bucket(&self, received_at_ms: i64) -> DedupBucket {
        DedupBucket(received_at_ms.div_euclid(self.width_ms))
    }

    /// Whether a copy in bucket `copy` repeats a first copy in bucket `first`.
    #[must_use]
    pub const fn is_repeat(&self, first: DedupBucket, copy: DedupBucket) -> bool {
        copy.0 - first.0 <= self.span()
    }

    /// The oldest bucket whose ids decide whether a copy in bucket `copy` is a repeat.
    #[must_use]
    pub const fn oldest_deciding(&self, copy: DedupBucket) -> DedupBucket {
        DedupBucket(copy.0 - self.span())
    }

    /// Whether no on-time copy can repeat an id of `bucket` any more, so that the bucket may be
    /// dropped whole.
    #[must_use]
    pub const fn is_droppable(
        &self,
        bucket: DedupBucket,
        watermark_ms: i64,
        timing: &Timing,
    ) -> bool {
        let last_repeat_end_ms = (bucket.0 + self.span() + 1) * self.width_ms;
        // The last possible repeat may lie in a minute that ends after it.
        let last_minute_end_ms = Granularity::Minute.ceil(last_repeat_end_ms);
        watermark_ms > last_minute_end_ms + timing.retire_after_ms()
    }
}
