use tally_model::revision::Revision;
use tally_sinks::counts::{RowSource, SmallRow, WriterId};

use super::*;

const NOW_MS: i64 = 1_000_000;

fn generation(number: u32) -> Generation {
    Generation::new(number).unwrap()
}

fn row(revision: Revision, written_at_ms: i64, counts: &[u64]) -> Option<Row> {
    let vector = CountVector::from_counts(counts.to_vec());
    Some(Row {
        small: SmallRow {
            bucket: Bucket::minute(60_000),
            revision,
            writer: WriterId(1),
            written_at_ms,
            source: RowSource::Stream,
            digest: 0,
            width: u32::try_from(vector.width()).unwrap(),
        },
        vector,
    })
}

fn streamed(by: u32, at_ms: i64, counts: &[u64]) -> Option<Row> {
    row(Revision::streaming(generation(by), at_ms).unwrap(), at_ms, counts)
}

#[test]
fn decisions() {
    use Decision::{Fenced, Hold, PastRetention, Put, Refused, Unchanged, Withhold};
    let put = |revision_ms, written_at_ms| Put { revision_ms, written_at_ms };
    let standing = Standing {
        generation: generation(5),
        retired_at_start_ms: None,
        kept_from_ms: 0,
        caught_up: true,
        now_ms: NOW_MS,
    };
    let behind = Standing { caught_up: false, ..standing };
    let retired = Standing { retired_at_start_ms: Some(120_000), ..standing };
    let almost = Standing { retired_at_start_ms: Some(119_999), ..standing };
    let young = Standing { kept_from_ms: 60_001, ..standing };
    let recomputed = row(Revision::recomputed(7).unwrap(), 7, &[1, 2]);
    // (what the row shows, standing, stored, expected); the vector is [1, 2], the minute 00:01.
    let cases = [
        ("no row", standing, None, put(NOW_MS, NOW_MS)),
        ("no row, behind: put as it closes", behind, None, put(NOW_MS, NOW_MS)),
        ("changed", standing, streamed(4, 9, &[1, 1]), put(NOW_MS, NOW_MS)),
        ("changed, ours", standing, streamed(5, 9, &[1, 1]), put(NOW_MS, NOW_MS)),
        (
            "the clock stepped back: both times still grow",
            standing,
            streamed(5, NOW_MS + 70, &[1, 1]),
            put(NOW_MS + 71, NOW_MS + 71),
        ),
        ("changed, behind: held", behind, streamed(4, 9, &[1, 1]), Hold),
        ("short of the row, behind: held", behind, streamed(4, 9, &[1, 3]), Hold),
        ("ours and grown needs no hold", behind, streamed(5, 9, &[1, 1]), put(NOW_MS, NOW_MS)),
        ("equal, ours", standing, streamed(5, 9, &[1, 2]), Unchanged),
        ("equal but for padding", standing, streamed(5, 9, &[1, 2, 0, 0]), Unchanged),
        ("equal, retired before the start", retired, streamed(4, 9, &[1, 2]), Unchanged),
        ("equal, not quite retired", almost, streamed(4, 9, &[1, 2]), put(NOW_MS, 9)),
        ("equal, of an earlier start: ours now", standing, streamed(4, 9, &[1, 2]), put(NOW_MS, 9)),
        ("the same while behind", behind, streamed(4, 9, &[1, 2]), put(NOW_MS, 9)),
        ("would lower a slot", standing, streamed(4, 9, &[2, 1]), Withhold),
        ("would lower a slot by leaving it out", standing, streamed(4, 9, &[1, 2, 1]), Withhold),
        ("recomputed", standing, recomputed.clone(), Refused),
        ("recomputed, behind", behind, recomputed, Refused),
        ("a later start", standing, streamed(6, 9, &[1, 2]), Fenced(generation(6))),
        ("past retention", young, None, PastRetention),
    ];
    let vector = CountVector::from_counts(vec![1, 2]);
    for (name, standing, stored, want) in cases {
        let got = decide(&standing, Bucket::minute(60_000), &vector, stored.as_ref());
        assert_eq!(got, want, "{name}");
    }
}
