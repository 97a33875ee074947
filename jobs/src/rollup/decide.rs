//! Whether a coarse bucket is to be folded: the pure half of the rollup.

use tally_model::bucket::{Bucket, Granularity};
use tally_model::range::Availability;
use tally_sinks::counts::{RowSource, SmallRow, source_digest};

/// What a decision rests on beside the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// From when on rows are kept, by the calendar.
    pub kept: Availability,
    /// First minute of the deployment: children before it are zero. `None` = nothing was counted.
    pub origin_ms: Option<i64>,
    /// Everything below is retired: streaming never touches it again.
    pub retired_up_to_ms: Option<i64>,
}

impl Bounds {
    /// Whether streaming has done with a bucket.
    #[must_use]
    pub fn is_retired(&self, bucket: Bucket) -> bool {
        self.retired_up_to_ms.is_some_and(|retired| bucket.end_ms() <= retired)
    }

    /// Whether the children of a coarse bucket are kept.
    fn keeps_children(&self, parent: Bucket) -> bool {
        match parent.granularity() {
            Granularity::Minute => false,
            Granularity::Hour => parent.start_ms() >= self.kept.minutes_from_ms,
            Granularity::Day => parent.start_ms() >= self.kept.hours_from_ms,
        }
    }

    /// Whether rows of the bucket's own tier are kept.
    fn keeps(&self, bucket: Bucket) -> bool {
        match bucket.granularity() {
            Granularity::Minute => bucket.start_ms() >= self.kept.minutes_from_ms,
            Granularity::Hour => bucket.start_ms() >= self.kept.hours_from_ms,
            Granularity::Day => true,
        }
    }

    /// Whether a bucket that has no row may still get one.
    fn may_come(&self, child: Bucket) -> bool {
        child.granularity() == Granularity::Minute || self.keeps_children(child)
    }

    /// Whether a bucket without a row lacks it. Before the origin it is zero.
    fn needs(&self, child: Bucket) -> bool {
        self.origin_ms.is_none_or(|origin| child.end_ms() > origin)
    }
}

/// How a coarse bucket stands to its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its row was folded from the children as they are.
    Current,
    /// It is to be folded from the children as they are.
    Due {
        /// Their digest.
        digest: u64,
    },
    /// A child has no row although it is retired: something is wrong one tier down.
    Lacking {
        /// The first such child.
        child: Bucket,
    },
    /// Streaming may still touch a child.
    Open,
    /// It stays as it is: what it would be folded from is past its retention, or its row was not
    /// folded but recounted.
    Kept,
    /// It lies before the origin and has no children: no row is needed.
    Zero,
}

/// How `parent` stands, given its stored row and the rows of its children, ascending by start.
#[must_use]
pub fn standing(
    parent: Bucket,
    row: Option<&SmallRow>,
    children: &[SmallRow],
    bounds: &Bounds,
) -> Standing {
    if !bounds.is_retired(parent) {
        return Standing::Open;
    }
    if row.is_some_and(|row| row.source != RowSource::Rollup) {
        return Standing::Kept;
    }
    // Children past their retention may be half gone, so no row is folded from them again. What
    // never was folded still is, as long as every one of them is there.
    let kept = bounds.keeps_children(parent);
    if !kept && (row.is_some() || !bounds.keeps(parent)) {
        return Standing::Kept;
    }
    let mut there = children.iter().map(|child| child.bucket).peekable();
    let lacking =
        parent.children().find(|child| there.next_if_eq(child).is_none() && bounds.needs(*child));
    match lacking {
        // A minute that is past its retention, or an hour whose minutes are: none will ever come.
        Some(child) if !kept || !bounds.may_come(child) => return Standing::Kept,
        Some(child) => return Standing::Lacking { child },
        None => {}
    }
    if children.is_empty() && row.is_none() {
        return Standing::Zero;
    }
    let digest = source_digest(children);
    if row.is_some_and(|row| row.digest == digest) {
        Standing::Current
    } else {
        Standing::Due { digest }
    }
}

#[cfg(test)]
mod tests {
    use tally_model::bucket::{DAY_MS, HOUR_MS, MINUTE_MS};
    use tally_model::revision::Revision;
    use tally_sinks::counts::WriterId;

    use super::*;

    const ALL: Bounds =
        Bounds { kept: Availability::ALL, origin_ms: Some(0), retired_up_to_ms: Some(DAY_MS) };

    fn small(bucket: Bucket, source: RowSource, digest: u64) -> SmallRow {
        SmallRow {
            bucket,
            revision: Revision::recomputed(1).unwrap(),
            writer: WriterId(0),
            written_at_ms: 1,
            source,
            digest,
            width: 1,
        }
    }

    fn hour() -> Bucket {
        Bucket::containing(Granularity::Hour, HOUR_MS)
    }

    fn minutes() -> Vec<SmallRow> {
        hour().children().map(|minute| small(minute, RowSource::Stream, 0)).collect()
    }

    #[test]
    fn an_hour_is_due_when_its_row_is_not_that_of_its_minutes() {
        let minutes = minutes();
        let digest = source_digest(&minutes);
        let of = |row: Option<&SmallRow>| standing(hour(), row, &minutes, &ALL);
        assert_eq!(of(None), Standing::Due { digest });
        assert_eq!(of(Some(&small(hour(), RowSource::Rollup, digest))), Standing::Current);
        let stale = small(hour(), RowSource::Rollup, digest - 1);
        assert_eq!(of(Some(&stale)), Standing::Due { digest });
        for source in [RowSource::Lake, RowSource::Log] {
            let recounted = small(hour(), source, 0);
            assert_eq!(of(Some(&recounted)), Standing::Kept, "{source:?}");
        }
    }

    #[test]
    fn only_what_is_retired_and_kept_is_folded() {
        let minutes = minutes();
        let of = |bounds: &Bounds| standing(hour(), None, &minutes, bounds);
        let open = Bounds { retired_up_to_ms: Some(2 * HOUR_MS - 1), ..ALL };
        assert_eq!(of(&open), Standing::Open);
        assert_eq!(of(&Bounds { retired_up_to_ms: None, ..ALL }), Standing::Open);
    }

    #[test]
    fn what_was_never_folded_is_folded_from_old_children_if_they_are_all_there() {
        let minutes = minutes();
        let past = Availability { minutes_from_ms: DAY_MS, hours_from_ms: 0 };
        let bounds = Bounds { kept: past, ..ALL };
        let of = |row, rows: &[SmallRow], bounds| standing(hour(), row, rows, bounds);
        let digest = source_digest(&minutes);
        assert_eq!(of(None, &minutes, &bounds), Standing::Due { digest });
        assert_eq!(of(None, &minutes[1..], &bounds), Standing::Kept, "one is gone");
        let stale = small(hour(), RowSource::Rollup, digest - 1);
        assert_eq!(of(Some(&stale), &minutes, &bounds), Standing::Kept, "never again");
        let older = Availability { hours_from_ms: DAY_MS, ..past };
        let bounds = Bounds { kept: older, ..ALL };
        assert_eq!(of(None, &minutes, &bounds), Standing::Kept, "its own tier is not kept");
    }

    #[test]
    fn a_child_without_a_row_is_zero_before_the_origin_and_lacking_after_it() {
        let from_ms = HOUR_MS + 7 * MINUTE_MS;
        let later: Vec<SmallRow> = minutes().split_off(7);
        let origin = |origin_ms| Bounds { origin_ms: Some(origin_ms), ..ALL };
        let of = |rows: &[SmallRow], bounds: &Bounds| standing(hour(), None, rows, bounds);
        let digest = source_digest(&later);
        assert_eq!(of(&later, &origin(from_ms)), Standing::Due { digest });
        let lacking = Standing::Lacking { child: Bucket::minute(from_ms - MINUTE_MS) };
        assert_eq!(of(&later, &origin(from_ms - 1)), lacking);
        let mut holed = minutes();
        let gone = holed.remove(30).bucket;
        assert_eq!(of(&holed, &ALL), Standing::Lacking { child: gone });
        assert_eq!(of(&[], &origin(2 * HOUR_MS)), Standing::Zero);
    }

    #[test]
    fn a_day_is_folded_from_its_hours() {
        let day = Bucket::containing(Granularity::Day, 0);
        let mut hours: Vec<SmallRow> =
            day.children().map(|hour| small(hour, RowSource::Rollup, 5)).collect();
        let digest = source_digest(&hours);
        assert_eq!(standing(day, None, &hours, &ALL), Standing::Due { digest });
        let gone = hours.pop().map(|row| row.bucket);
        let child = gone.unwrap();
        assert_eq!(standing(day, None, &hours, &ALL), Standing::Lacking { child });
        let past = Availability { minutes_from_ms: DAY_MS, hours_from_ms: 0 };
        let never = Bounds { kept: past, ..ALL };
        assert_eq!(
            standing(day, None, &hours, &never),
            Standing::Kept,
            "the hour cannot be folded"
        );
    }
}
