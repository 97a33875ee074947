//! What happens in one seed, drawn from the seed alone.

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use tally_model::bucket::Granularity;
use tally_model::rules::{DedupRule, Timing};

use super::faults::{CrashAt, Point};
use crate::config::Layers;

/// How long the counts store is away once in each seed: about ten checkpoints.
pub(super) const AWAY_MS: i64 = 10_000;
/// How long a node may run on when its crash point does not come.
const PATIENCE_MS: i64 = 4_000;

/// A life that is to be shorter than this may be cut short within its start.
pub(super) const EARLY_MS: i64 = 1_000;

/// From the end of a minute until its counts are readable.
const WATERMARK_DELAY_MS: i64 = 1_000;
/// How long a record may take to the log. Generous, because busy machines stop for seconds.
const APPEND_GRACE_MS: i64 = 5_000;

/// A life of the node and how it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Life {
    /// Worker threads of the dataflow.
    pub(super) workers: u16,
    /// Where the node is to end itself; `None` = killed from outside.
    pub(super) crash: Option<CrashAt>,
    /// How long after its start it is killed, in ms; with a crash point the least time it is given.
    pub(super) run_ms: i64,
    /// Whether records are appended behind its back once it is dead.
    pub(super) meddle: bool,
    /// Whether the object store goes away once it works, so that its last checkpoints fail.
    pub(super) objects_away: bool,
}

/// What happens in one seed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Schedule {
    pub(super) seed: u64,
    /// Partitions of the log: 8 divide the 64 shards, so that a worker that reads a shard's records
    /// also keeps its state; 5 and 7 do not.
    pub(super) partitions: u32,
    pub(super) dedup: DedupRule,
    pub(super) timing: Timing,
    /// One life for each kill, in order.
    pub(super) lives: Vec<Life>,
    /// Index of the life from which on the counts store goes away when the next minute closes.
    pub(super) away_from: usize,
    /// Workers of the last life, which is ended with SIGTERM, and of the bounded run after it.
    pub(super) last_workers: [u16; 2],
}

impl Schedule {
    /// The schedule of `seed` with `kills` kills.
    pub(super) fn of(seed: u64, kills: u16) -> Self {
        let mut rng = StdRng::seed_from_u64(seed);
        let partitions =
            if seed.is_multiple_of(2) { 8 } else { [5, 7][rng.random_range(0..2_usize)] };
        let width_ms = [1_000, 2_000, 5_000][rng.random_range(0..3_usize)];
        let dedup =
            DedupRule::new(10_000, width_ms).expect("every width drawn from divides the window");
        // A short lateness makes late events, a long one restatements.
        let lateness_ms = [2_000, 10_000, 30_000][rng.random_range(0..3_usize)];
        let timing = Timing {
            watermark_delay_ms: WATERMARK_DELAY_MS,
            lateness_ms,
            append_grace_ms: APPEND_GRACE_MS,
        };
        let mut workers = rng.random_range(1..=4);
        let mut points = Points::new(&mut rng);
        let lives: Vec<Life> = (0..kills)
            .map(|_| {
                workers = other_workers(workers, &mut rng);
                life(workers, &mut points, &mut rng)
            })
            .collect();
        let away_from = rng.random_range(0..=lives.len() / 2);
        let last = other_workers(workers, &mut rng);
        let last_workers = [last, other_workers(last, &mut rng)];
        Self { seed, partitions, dedup, timing, lives, away_from, last_workers }
    }

    /// How long a node that starts at `now_ms` may live beyond its time, in ms, because its crash
    /// point has not come. Rows are put when a minute closes, at the latest.
    pub(super) fn patience_ms(&self, life: &Life, now_ms: i64) -> i64 {
        match life.crash.map(|crash| crash.point) {
            None => 0,
            Some(Point::BetweenPutAndAck) => {
                (self.next_close_ms(now_ms) - now_ms - life.run_ms).max(0) + PATIENCE_MS
            }
            Some(_) => PATIENCE_MS,
        }
    }

    /// How long after `now_ms` the counts store goes away, in ms, so that it is away when a minute
    /// closes.
    pub(super) fn away_in_ms(&self, now_ms: i64) -> i64 {
        (self.next_close_ms(now_ms) - now_ms - AWAY_MS / 3).max(0)
    }

    /// When the next minute closes.
    pub(super) fn next_close_ms(&self, now_ms: i64) -> i64 {
        let delay_ms = self.timing.watermark_delay_ms;
        Granularity::Minute.ceil(now_ms - delay_ms) + delay_ms
    }

    /// The settings of the deployment.
    pub(super) fn settings(&self) -> Vec<(&'static str, String)> {
        let ms = |ms: i64| format!("{ms}ms");
        let mut settings = vec![
            ("pipeline.watermark_delay", ms(self.timing.watermark_delay_ms)),
            ("pipeline.lateness", ms(self.timing.lateness_ms)),
            ("pipeline.append_grace", ms(self.timing.append_grace_ms)),
            ("pipeline.epoch", ms(100)),
            ("pipeline.restate_every", ms(1_000)),
            ("collector.limits.append_deadline", ms(1_000)),
            ("dedup.window", ms(self.dedup.window_ms())),
            ("dedup.bucket", ms(self.dedup.width_ms())),
            ("log.partitions", self.partitions.to_string()),
        ];
        let every = "pipeline.checkpoint_every";
        if Layers::defaults().all().any(|(key, _, _)| key == every) {
            settings.push((every, ms(1_000)));
        }
        settings
    }
}

/// Settings as variables of a process's environment.
pub(super) fn variables(settings: Vec<(&'static str, String)>) -> Vec<(String, String)> {
    let variable = |key: &str| format!("TALLY__{}", key.to_uppercase().replace('.', "__"));
    settings.into_iter().map(|(key, value)| (variable(key), value)).collect()
}

/// The crash points in an order of their own, each once before any comes again.
struct Points {
    order: [Point; Point::ALL.len()],
    next: usize,
}

impl Points {
    fn new(rng: &mut StdRng) -> Self {
        let mut order = Point::ALL;
        order.shuffle(rng);
        Self { order, next: 0 }
    }

    fn draw(&mut self) -> Point {
        let point = self.order[self.next % self.order.len()];
        self.next += 1;
        point
    }
}

/// Two thirds of the lives end at a named point, the others at a random moment; some of these still
/// within their start.
fn life(workers: u16, points: &mut Points, rng: &mut StdRng) -> Life {
    let crash = rng.random_bool(2.0 / 3.0).then(|| {
        let point = points.draw();
        // There is a checkpoint a second, of one data object for each of 64 shards and some more. A
        // node puts rows once a minute and has little to collect.
        let most = match point {
            Point::BetweenPutAndAck | Point::DuringCollection => 1,
            Point::BeforeUpload | Point::BeforeManifest | Point::AfterManifest => 4,
            Point::DuringRestore => 30,
            Point::BetweenObjects => 100,
        };
        CrashAt { point, occurrence: rng.random_range(1..=most) }
    });
    let run_ms = match crash {
        Some(_) => 5_000,
        None if rng.random_bool(0.2) => rng.random_range(20..EARLY_MS),
        None => rng.random_range(5_000..10_000),
    };
    let objects_away = crash.is_none() && run_ms > EARLY_MS && rng.random_bool(0.5);
    Life { workers, crash, run_ms, meddle: rng.random_bool(0.5), objects_away }
}

/// A number of workers from 1 to 4, another one than before.
fn other_workers(before: u16, rng: &mut StdRng) -> u16 {
    let drawn = rng.random_range(1..=3);
    if drawn >= before { drawn + 1 } else { drawn }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::config::Settings;

    #[test]
    fn a_seed_gives_the_same_schedule_again_and_another_seed_another_one() {
        assert_eq!(Schedule::of(7, 10), Schedule::of(7, 10));
        assert_ne!(Schedule::of(7, 10), Schedule::of(8, 10));
    }

    #[test]
    fn twenty_seeds_try_everything() {
        let schedules: Vec<Schedule> = (1..=20).map(|seed| Schedule::of(seed, 10)).collect();
        let all = |of: fn(&Schedule) -> i64| schedules.iter().map(of).collect::<BTreeSet<_>>();
        assert_eq!(all(|schedule| i64::from(schedule.partitions)), [5, 7, 8].into());
        assert_eq!(all(|schedule| schedule.dedup.width_ms()), [1_000, 2_000, 5_000].into());
        assert_eq!(all(|schedule| schedule.timing.lateness_ms), [2_000, 10_000, 30_000].into());
        let lives = || schedules.iter().flat_map(|schedule| &schedule.lives);
        assert_eq!(lives().count(), 200);
        assert_eq!(lives().map(|life| life.workers).collect::<BTreeSet<_>>(), [1, 2, 3, 4].into());
        let points: BTreeSet<Point> = lives().filter_map(|life| Some(life.crash?.point)).collect();
        assert_eq!(points, Point::ALL.into());
        assert!(lives().any(|life| life.crash.is_none() && life.run_ms < EARLY_MS));
        assert!(lives().any(|life| life.objects_away));
        assert!(lives().any(|life| life.meddle) && lives().any(|life| !life.meddle));
    }

    #[test]
    fn the_workers_change_at_every_start() {
        for schedule in (1..=50).map(|seed| Schedule::of(seed, 10)) {
            let workers = schedule.lives.iter().map(|life| life.workers);
            let workers: Vec<u16> = workers.chain(schedule.last_workers).collect();
            assert!(workers.iter().all(|workers| (1..=4).contains(workers)), "{workers:?}");
            assert!(workers.windows(2).all(|pair| pair[0] != pair[1]), "{workers:?}");
        }
    }

    #[test]
    fn a_crash_at_a_put_waits_for_the_next_minute_to_close() {
        let schedule = Schedule::of(1, 1);
        let life = |point: Option<Point>| Life {
            workers: 1,
            crash: point.map(|point| CrashAt { point, occurrence: 1 }),
            run_ms: 5_000,
            meddle: false,
            objects_away: false,
        };
        for (point, now_ms, want) in [
            (None, 0, 0),
            (Some(Point::BeforeUpload), 0, PATIENCE_MS),
            // The minute before closes in a second, the next one in half a minute.
            (Some(Point::BetweenPutAndAck), 0, PATIENCE_MS),
            (Some(Point::BetweenPutAndAck), 31_000, 25_000 + PATIENCE_MS),
        ] {
            assert_eq!(schedule.patience_ms(&life(point), now_ms), want, "{point:?} {now_ms}");
        }
    }

    #[test]
    fn the_store_is_away_when_a_minute_closes() {
        let schedule = Schedule::of(1, 1);
        for now_ms in (0..120_000).step_by(500) {
            let from_ms = now_ms + schedule.away_in_ms(now_ms);
            let closes_ms = schedule.next_close_ms(now_ms);
            assert!((from_ms..from_ms + AWAY_MS / 2).contains(&closes_ms), "{now_ms}");
        }
    }

    #[test]
    fn the_settings_of_every_schedule_are_valid() {
        for schedule in (1..=50).map(|seed| Schedule::of(seed, 1)) {
            let mut layers = Layers::defaults();
            layers.add_environment(variables(schedule.settings())).unwrap();
            let settings = Settings::check(&layers).unwrap();
            assert_eq!(settings.fixed.dedup.value, schedule.dedup);
            assert_eq!(settings.pipeline.timing, schedule.timing);
            assert_eq!(settings.fixed.partitions.value, schedule.partitions);
        }
    }
}
