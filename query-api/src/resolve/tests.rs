use std::collections::BTreeMap;
use std::convert::Infallible;

use proptest::prelude::*;
use tally_model::bucket::{DAY_MS, HOUR_MS, MINUTE_MS};
use tally_model::range::TimeRange;
use tally_model::vector::CountVector;
use tally_sinks::counts::Row;

use super::*;
use crate::testing::row;

const DAYS: i64 = 3;
const MINUTES: i64 = DAYS * 1_440;
/// 2024-12-30, so that the days cross a month and a year, and with them periods.
const BASE_MS: i64 = 1_735_516_800_000;

/// Rows by bucket, as a store would hold them.
#[derive(Clone, Debug, Default)]
struct Rows(BTreeMap<Bucket, Row>);

impl Rows {
    fn put(&mut self, bucket: Bucket, counts: Vec<u64>) {
        let revision = bucket.start_ms() / MINUTE_MS;
        self.0.insert(bucket, row(bucket, revision, counts));
    }

    fn manifest(&self, period: Period) -> Arc<Manifest> {
        let rows = self.0.values().map(|row| row.small);
        Arc::new(Manifest::new(period, rows.filter(|row| row.bucket.period() == period).collect()))
    }

    fn resolve(&self, runs: &[Run], facts: &Facts) -> Resolved {
        let mut manifests = BTreeMap::new();
        let loaded: Result<_, Infallible> = resolve(runs, facts, |period| {
            assert!(!manifests.contains_key(&period), "{period:?} was asked for twice");
            let manifest = self.manifest(period);
            manifests.insert(period, Arc::clone(&manifest));
            Ok(manifest)
        });
        loaded.expect("infallible")
    }

    /// The sum of the parts, read row by row.
    fn sum(&self, parts: &[Part]) -> CountVector {
        let mut sum = CountVector::new();
        for part in parts {
            match part.version {
                Version::Row(_) => sum.add(&self.0[&part.bucket].vector).unwrap(),
                Version::Shown { .. } => unreachable!("resolve knows none"),
                Version::Children(_) => {
                    for child in part.bucket.children() {
                        sum.add(&self.0[&child].vector).unwrap();
                    }
                }
            }
        }
        sum
    }
}

/// A number that looks random, for a place and a purpose.
fn noise(seed: u64, place: i64, purpose: u64) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (seed, place, purpose).hash(&mut hasher);
    hasher.finish()
}

/// The true counts of a minute: up to four slots, often none.
fn truth(seed: u64, minute: i64) -> Vec<u64> {
    let width = noise(seed, minute, 0) % 5;
    (0..width).map(|slot| noise(seed, minute, 1 + slot) % 10).collect()
}

#[derive(Clone, Debug)]
struct World {
    seed: u64,
    /// Percent of the rows there are, by tier: minutes, hours, days.
    present: [u64; 3],
    origin: i64,
    retired: i64,
    now: i64,
}

fn world() -> impl Strategy<Value = World> {
    let percent = prop_oneof![Just(0_u64), Just(50), Just(98), Just(100)];
    let present = prop::array::uniform3(percent);
    (any::<u64>(), present, -10..MINUTES, -10..MINUTES + 10, -10..MINUTES + 10).prop_map(
        |(seed, present, origin, retired, now)| World { seed, present, origin, retired, now },
    )
}

impl World {
    fn ms(minute: i64) -> i64 {
        BASE_MS + minute * MINUTE_MS
    }

    fn facts(&self) -> Facts {
        Facts {
            now_ms: Self::ms(self.now),
            availability: Availability::ALL,
            origin_ms: Some(Self::ms(self.origin)),
            retired_up_to_ms: Some(Self::ms(self.retired)),
            readable_up_to_ms: Some(Self::ms(self.now)),
        }
    }

    /// Nothing that ends in the future has a row; of the rest each tier has its share.
    fn has(&self, bucket: Bucket) -> bool {
        let tier = match bucket.granularity() {
            Granularity::Minute => 0,
            Granularity::Hour => 1,
            Granularity::Day => 2,
        };
        let drawn = noise(self.seed, bucket.start_ms(), 100 + tier) % 100;
        bucket.end_ms() <= Self::ms(self.now)
            && drawn < self.present[usize::try_from(tier).unwrap()]
    }

    fn rows(&self) -> Rows {
        let mut rows = Rows::default();
        for granularity in Granularity::ALL {
            let run = Run { granularity, start_ms: BASE_MS, end_ms: Self::ms(MINUTES) };
            for bucket in run.buckets().filter(|bucket| self.has(*bucket)) {
                let mut sum = CountVector::new();
                let first = (bucket.start_ms() - BASE_MS) / MINUTE_MS;
                for minute in first..first + granularity.width_ms() / MINUTE_MS {
                    sum.add(&CountVector::from_counts(truth(self.seed, minute))).unwrap();
                }
                rows.put(bucket, sum.counts().to_vec());
            }
        }
        rows
    }

    /// What must come out, minute by minute: the sum, the minutes missing and those not closed.
    ///
    /// A minute is covered by its own row, or by that of an hour or day which lies in the range.
    fn naive(&self, range: TimeRange) -> (CountVector, i64, i64) {
        let (mut sum, mut missing, mut not_closed) = (CountVector::new(), 0, 0);
        let whole = |bucket: Bucket| {
            bucket.start_ms() >= range.start_ms() && bucket.end_ms() <= range.end_ms()
        };
        let minutes = Run {
            granularity: Granularity::Minute,
            start_ms: range.start_ms(),
            end_ms: range.end_ms(),
        };
        for bucket in minutes.buckets() {
            let minute = (bucket.start_ms() - BASE_MS) / MINUTE_MS;
            let covered = Granularity::ALL.into_iter().any(|granularity| {
                let holder = Bucket::containing(granularity, bucket.start_ms());
                whole(holder) && self.has(holder)
            });
            if covered {
                sum.add(&CountVector::from_counts(truth(self.seed, minute))).unwrap();
            } else if minute < self.origin && minute < self.now {
                // Zero by definition.
            } else if minute < self.retired && minute < self.now {
                missing += 1;
            } else {
                not_closed += 1;
            }
        }
        (sum, missing, not_closed)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Whatever rows of whatever tier are there, the sum is that of the minutes they cover, and
    /// every other minute is accounted for.
    #[test]
    fn the_sum_is_that_of_the_minutes_and_no_minute_is_lost(
        world in world(),
        start in 0..MINUTES,
        length in prop_oneof![1..180_i64, 1..MINUTES],
    ) {
        let end = (start + length).min(MINUTES);
        let range = TimeRange::new(World::ms(start), World::ms(end)).unwrap();
        let rows = world.rows();
        let facts = world.facts();
        let resolved = rows.resolve(&range.plan(&facts.availability).runs, &facts);
        let (sum, missing, not_closed) = world.naive(range);
        prop_assert_eq!(rows.sum(&resolved.parts), sum);
        prop_assert_eq!(resolved.missing.minutes(), missing);
        prop_assert_eq!(resolved.not_closed.minutes(), not_closed);
    }
}

/// Facts of a deployment that began at [`BASE_MS`] and has retired everything up to now.
fn all_retired(now: i64) -> Facts {
    Facts {
        now_ms: World::ms(now),
        availability: Availability::ALL,
        origin_ms: Some(BASE_MS),
        retired_up_to_ms: Some(World::ms(now)),
        readable_up_to_ms: Some(World::ms(now)),
    }
}

fn one(granularity: Granularity, start_ms: i64) -> Vec<Run> {
    vec![Run { granularity, start_ms, end_ms: start_ms + granularity.width_ms() }]
}

#[test]
fn an_hour_that_is_not_folded_is_read_from_its_minutes_and_counts_sixty_rows() {
    let mut rows = Rows::default();
    for minute in 0..60 {
        rows.put(Bucket::minute(World::ms(minute)), vec![0, 1]);
    }
    let hour = one(Granularity::Hour, BASE_MS);
    let unfolded = rows.resolve(&hour, &all_retired(120));
    assert_eq!((unfolded.rows, unfolded.parts.len(), unfolded.manifest_reads), (60, 1, 2));
    assert_eq!(rows.sum(&unfolded.parts).get(tally_model::types::TypeId(1)), 60);
    assert!(matches!(unfolded.parts[0].version, Version::Children(_)));

    rows.put(Bucket::containing(Granularity::Hour, BASE_MS), vec![0, 60]);
    let folded = rows.resolve(&hour, &all_retired(120));
    assert_eq!((folded.rows, folded.manifest_reads), (1, 1));
    assert_ne!(folded.digest(), unfolded.digest());
}

#[test]
fn the_digest_and_the_version_of_an_hour_change_with_any_minute_below_it() {
    let mut rows = Rows::default();
    for minute in 0..60 {
        rows.put(Bucket::minute(World::ms(minute)), vec![0, 1]);
    }
    let hour = one(Granularity::Hour, BASE_MS);
    let before = rows.resolve(&hour, &all_retired(120));
    let bucket = Bucket::minute(World::ms(17));
    rows.0.insert(bucket, row(bucket, 77, vec![0, 2]));
    let after = rows.resolve(&hour, &all_retired(120));
    assert_ne!(before.digest(), after.digest());
    assert_ne!(before.parts[0].version, after.parts[0].version);
}

#[test]
fn below_the_minutes_retention_an_hour_without_a_row_is_missing_as_a_whole() {
    let mut rows = Rows::default();
    // Minutes that retention has not yet removed are not read: the calendar decides.
    for minute in 0..60 {
        rows.put(Bucket::minute(World::ms(minute)), vec![0, 1]);
    }
    let availability = Availability { minutes_from_ms: BASE_MS + DAY_MS, hours_from_ms: i64::MIN };
    let facts = Facts { availability, ..all_retired(MINUTES) };
    let resolved = rows.resolve(&one(Granularity::Hour, BASE_MS), &facts);
    assert_eq!(resolved.missing.minutes(), 60);
    assert!(resolved.parts.is_empty());
}

#[test]
fn a_future_of_twenty_years_is_one_stretch_found_without_reading_a_period() {
    let start = BASE_MS + 10 * DAY_MS;
    let facts = Facts { now_ms: BASE_MS, ..all_retired(0) };
    let run =
        Run { granularity: Granularity::Day, start_ms: start, end_ms: start + 7_300 * DAY_MS };
    let resolved = Rows::default().resolve(&[run], &facts);
    assert_eq!(resolved.manifest_reads, 0);
    assert_eq!(resolved.not_closed.spans().len(), 1);
    assert_eq!(resolved.not_closed.minutes(), 7_300 * 1_440);
}

#[test]
fn before_anything_was_counted_nothing_is_missing_and_nothing_is_closed() {
    let facts = Facts {
        origin_ms: None,
        retired_up_to_ms: None,
        readable_up_to_ms: None,
        ..all_retired(120)
    };
    let resolved = Rows::default().resolve(&one(Granularity::Hour, BASE_MS), &facts);
    assert!(resolved.missing.is_empty());
    assert_eq!(resolved.not_closed.minutes(), HOUR_MS / MINUTE_MS);
}
