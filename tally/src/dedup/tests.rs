use std::collections::BTreeMap;
use std::path::Path;

use clap::Parser;
use tally_model::clock::ManualClock;

use super::*;

const START_MS: i64 = 1_780_000_000_000;
const HOUR_MS: i64 = 3_600_000;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    dedup: DedupArgs,
}

fn args(words: &[&str]) -> DedupArgs {
    Cli::parse_from(["dedup"].iter().chain(words)).dedup
}

/// Runs to the end of the input, at a fixed time long after the data.
fn run(words: &[&str]) -> Result<Run, Failure> {
    let clock = ManualClock::new(START_MS + 10_000 * HOUR_MS);
    let mut session = start::session(&args(words), &clock)?;
    session.run(&clock, &indicatif::ProgressBar::hidden())?;
    Ok(session.run)
}

fn line(id: u64, at_ms: i64) -> String {
    format!("{{\"eventId\":\"event {id}\",\"eventTime\":{at_ms}}}\n")
}

fn write(path: &Path, lines: impl IntoIterator<Item = String>) {
    std::fs::write(path, lines.into_iter().collect::<String>()).unwrap();
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// Lines with a time each, in which many ids come again, sooner or later than a window of 6 hours.
fn repetitive(count: u64, hours: i64) -> Vec<(u64, i64)> {
    let spacing_ms = hours * HOUR_MS / i64::try_from(count).unwrap();
    let mut at_ms = START_MS;
    (0..count)
        .map(|n| {
            at_ms += spacing_ms;
            let mixed = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
            (if n % 3 == 0 { n } else { mixed % (n / 2 + 1) }, at_ms)
        })
        .collect()
}

#[test]
fn the_output_is_that_of_the_naive_model() {
    let folder = tempfile::tempdir().unwrap();
    let (input, out) = (folder.path().join("in"), folder.path().join("out"));
    let records = repetitive(60_000, 48);
    write(&input, records.iter().map(|(id, at_ms)| line(*id, *at_ms)));
    run(&[text(&input), "--out", text(&out), "--window", "6h", "--lateness", "1h"]).unwrap();
    let mut firsts = BTreeMap::new();
    let mut want = String::new();
    for (id, at_ms) in records {
        let bucket = at_ms.div_euclid(HOUR_MS);
        if firsts.get(&id).is_none_or(|first| bucket - first > 6) {
            firsts.insert(id, bucket);
            want.push_str(&line(id, at_ms));
        }
    }
    assert!(want.lines().count() > 25_000);
    assert!(std::fs::read_to_string(&out).unwrap() == want);
}

#[test]
fn what_a_checkpoint_names_survives_later_merges_and_an_end_without_a_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("state");
    let rules = Rules::check(&args(&[])).unwrap();
    let records = |range: std::ops::Range<u64>| -> Vec<(EventId, i64)> {
        range.map(|n| (EventId(u128::from(n + 1).to_le_bytes()), START_MS)).collect()
    };
    let mut verdicts = Vec::new();
    let (mut opened, earlier) = StateFolder::open(&state).unwrap();
    assert!(earlier.is_none());
    let mut table = Table::new(&rules, opened.key(), &opened.store(), &[]).unwrap();
    table.observe(&records(0..500_000), &mut verdicts).unwrap();
    let done = run(&["/dev/null", "--out", text(&folder.path().join("out"))]).unwrap();
    opened.save(&rules, &done, table.snapshots()).unwrap();
    for part in 1..4 {
        table.observe(&records(part * 500_000..(part + 1) * 500_000), &mut verdicts).unwrap();
    }
    drop((table, opened));

    let (opened, earlier) = StateFolder::open(&state).unwrap();
    assert!(earlier.unwrap().rules == rules);
    let (key, store) = (opened.key(), opened.store());
    let mut table = Table::new(&rules, key, &store, opened.snapshots()).unwrap();
    assert_eq!(table.stats().ids, 500_000);
    table.observe(&records(0..500_000), &mut verdicts).unwrap();
    assert!(verdicts.iter().all(|verdict| *verdict == Verdict::Repeat));
    table.observe(&records(500_000..600_000), &mut verdicts).unwrap();
    assert!(verdicts.iter().all(|verdict| *verdict == Verdict::First));
}

#[test]
fn memory_stays_flat_however_long_the_input_is() {
    let folder = tempfile::tempdir().unwrap();
    let (input, out) = (folder.path().join("in"), folder.path().join("out"));
    let held = |hours: i64| {
        let count = u64::try_from(hours).unwrap() * 1_000;
        write(
            &input,
            repetitive(count, hours).iter().map(|(_, at_ms)| line(0, *at_ms)).chain(
                (0..count).zip(repetitive(count, hours)).map(|(n, (_, at_ms))| line(n, at_ms)),
            ),
        );
        let clock = ManualClock::new(START_MS + 10_000 * HOUR_MS);
        let words = [text(&input), "--out", text(&out), "--window", "6h", "--lateness", "1h"];
        let mut session = start::session(&args(&words), &clock).unwrap();
        session.run(&clock, &indicatif::ProgressBar::hidden()).unwrap();
        session.table.stats().ids
    };
    // The second half comes too late for its window: nothing of it may be held either.
    assert!(held(24) < 30_000);
    assert!(held(96) < 30_000);
}

#[test]
fn a_finished_file_is_gone_on_with_where_it_has_grown_and_a_changed_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (input, out) = (folder.path().join("in"), folder.path().join("out"));
    let state = folder.path().join("state");
    let words = [text(&input), "--out", text(&out), "--state", text(&state)];
    let first: Vec<String> = (0..5).map(|n| line(n % 3, START_MS)).collect();
    write(&input, first.clone());
    assert_eq!(run(&words).unwrap().totals.written, 3);
    assert_eq!(run(&words).unwrap().totals.lines, 5, "nothing is read twice");
    write(&input, first.into_iter().chain((0..5).map(|n| line(n, START_MS + 1))));
    let totals = run(&words).unwrap().totals;
    assert_eq!((totals.lines, totals.written, totals.repeats), (10, 5, 5));
    assert_eq!(std::fs::read_to_string(&out).unwrap().lines().count(), 5);

    write(&input, (0..10).map(|n| line(n, START_MS + 2)));
    assert_eq!(run(&words).unwrap_err().exit, Exit::Refused);
    let other = [&words[..], &["--window", "1d"]].concat();
    assert_eq!(run(&other).unwrap_err().exit, Exit::Refused);
    std::fs::write(&out, "").unwrap();
    assert_eq!(run(&words).unwrap_err().exit, Exit::Refused);
}

#[test]
fn a_state_folder_remembers_from_one_input_to_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (folder.path().join("1"), folder.path().join("2"));
    let (out, state) = (folder.path().join("out"), folder.path().join("state"));
    write(&one, (0..3).map(|n| line(n, START_MS)));
    write(&two, (0..5).map(|n| line(n, START_MS + HOUR_MS)));
    for (input, written) in [(&one, 3), (&two, 2)] {
        let words = [text(input), "--out", text(&out), "--state", text(&state)];
        assert_eq!(run(&words).unwrap().totals.written, written);
    }
    let all = std::fs::read_to_string(&out).unwrap();
    assert_eq!(all.lines().count(), 5, "the second input's lines follow the first one's");

    let checkpoint = state.join("checkpoint");
    let mut bytes = std::fs::read(&checkpoint).unwrap();
    bytes[40] ^= 1;
    std::fs::write(&checkpoint, bytes).unwrap();
    let words = [text(&two), "--out", text(&out), "--state", text(&state)];
    assert_eq!(run(&words).unwrap_err().exit, Exit::Refused);
    assert_eq!(std::fs::read_to_string(&out).unwrap(), all, "nothing was touched");
}
