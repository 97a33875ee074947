//! Stretches of time that an answer lacks.

use serde::Serialize;
use tally_model::bucket::{Bucket, MINUTE_MS};
use tally_model::time::format_rfc3339;
use utoipa::ToSchema;

/// How many stretches an answer lists. More are only possible where the store is badly damaged;
/// their extent still shows in the number of minutes, which is never cut.
pub const LISTED_MAX: usize = 100;

/// Stretches of time: ascending, apart from each other, half open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    spans: Vec<Span>,
}

/// One stretch, `[start, end)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// First instant inside, ms since the Unix epoch.
    pub start_ms: i64,
    /// First instant after it, ms since the Unix epoch.
    pub end_ms: i64,
}

/// A stretch as it stands in an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ListedSpan {
    /// First instant inside, RFC 3339.
    pub start: String,
    /// First instant after it, RFC 3339.
    pub end: String,
}

impl Spans {
    /// Adds a bucket that lies after everything added before.
    pub fn push(&mut self, bucket: Bucket) {
        match self.spans.last_mut() {
            Some(last) if last.end_ms == bucket.start_ms() => last.end_ms = bucket.end_ms(),
            Some(_) | None => {
                self.spans.push(Span { start_ms: bucket.start_ms(), end_ms: bucket.end_ms() });
            }
        }
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The stretches in order.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// How many minutes they cover.
    #[must_use]
    pub fn minutes(&self) -> i64 {
        self.spans.iter().map(|span| (span.end_ms - span.start_ms) / MINUTE_MS).sum()
    }

    /// The first [`LISTED_MAX`] of them, for an answer.
    #[must_use]
    pub fn listed(&self) -> Vec<ListedSpan> {
        let listed = |span: &Span| ListedSpan {
            start: format_rfc3339(span.start_ms),
            end: format_rfc3339(span.end_ms),
        };
        self.spans.iter().take(LISTED_MAX).map(listed).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_one_stretch_and_the_list_is_bounded_but_the_minutes_are_not() {
        let mut spans = Spans::default();
        for minute in [0, 1, 2, 5] {
            spans.push(Bucket::minute(minute * MINUTE_MS));
        }
        assert_eq!(spans.spans().len(), 2);
        assert_eq!(spans.minutes(), 4);
        for minute in 0..300 {
            spans.push(Bucket::minute((10 + 2 * minute) * MINUTE_MS));
        }
        assert_eq!(spans.listed().len(), LISTED_MAX);
        assert_eq!(spans.minutes(), 304);
    }
}
