//! `tally torture` as users run it: nothing differs, and what does differ is found.

use serde_json::Value;
use tally_tests::tally;

#[test]
fn two_seeds_with_five_kills_each_do_not_differ() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("torture");
    let run = tally(&[
        "torture",
        "--seeds",
        "2",
        "--kills",
        "5",
        "-o",
        "json",
        "--dir",
        dir.to_str().unwrap(),
    ]);
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["differences"].as_array().unwrap().len(), 0);
    assert_eq!(report["kills"], 10);
    assert!(report["restarts"].as_u64().unwrap() >= 2, "{report}");
    assert!(report["recoverySeconds"]["worst"].as_f64().unwrap() <= 10.0);
    for (seed, outcome) in (1..).zip(report["seeds"].as_array().unwrap()) {
        assert_eq!(outcome["seed"], seed);
        assert!(outcome["records"].as_u64().unwrap() > 1_000, "{outcome}");
    }
    assert!(!dir.exists(), "a seed that passed leaves nothing behind");
}

#[test]
fn a_count_that_is_wrong_by_one_is_found_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("torture");
    let run = tally(&[
        "torture",
        "--seeds",
        "1",
        "--first-seed",
        "2",
        "--kills",
        "1",
        "--fault",
        "miscount",
        "--dir",
        dir.to_str().unwrap(),
    ]);
    assert_eq!(run.code, 1, "{}{}", run.stdout, run.stderr);
    let last = run.stdout.lines().last().unwrap();
    let wrong = std::fs::read_to_string(dir.join("seed-2/faults/miscount")).unwrap();
    let minute = tally_tests::time(wrong.parse().unwrap());
    assert!(last.starts_with(&format!("seed 2 differs: {minute} page_view has ")), "{last}");
    assert!(last.ends_with("run it again with tally torture --seeds 1 --first-seed 2 --kills 1"));
    assert!(run.stdout.contains("1 difference\n"), "{}", run.stdout);
}
