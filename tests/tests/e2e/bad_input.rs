//! Wrong flags, settings, folders and ports: a clear message, the right exit code, nothing broken.

use std::net::TcpListener;

use serde_json::json;
use tally_tests::{
    Node, copy_folder, event, fresh_id, now_ms, tally, tally_ok, tally_with, write_lines,
};

#[test]
fn wrong_usage_exits_2_and_names_what_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("tally.toml");
    std::fs::write(&config, "[pipeline]\nlatenes = \"1min\"\n").unwrap();
    let config = config.to_str().unwrap();
    let cases: [(&[&str], &[&str]); 6] = [
        (&["up", "--lisen", "x"], &["--lisen", "--listen"]),
        (&["config", "check", "--config", config], &["tally.toml", "latenes", "lateness"]),
        (&["up", "--config", config], &["tally.toml", "latenes", "lateness"]),
        (&["top", "--last", "soon", "--data-dir", "x"], &["soon", "duration"]),
        (&["top", "--last", "1h"], &["--data-dir", "--url"]),
        (&["import", "x.ndjson", "--received-at", "never"], &["never", "event-time"]),
    ];
    for (args, wanted) in cases {
        let finished = tally(args);
        assert_eq!(finished.code, 2, "{args:?}: {}", finished.stderr);
        for want in wanted {
            assert!(finished.stderr.contains(want), "{args:?}: {} lacks {want}", finished.stderr);
        }
    }
    assert!(tally_ok(&["config", "check"]).contains("valid"));
    assert!(tally_ok(&["config", "show", "-o", "json"]).contains("pipeline.watermark_delay"));
}

#[test]
fn a_foreign_or_damaged_folder_is_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let foreign = folder.path().join("foreign");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("thesis.txt"), "mine").unwrap();
    let finished =
        tally(&["up", "--data-dir", foreign.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    assert_eq!(finished.code, 5, "{}", finished.stderr);
    assert!(finished.stderr.contains("thesis.txt"), "{}", finished.stderr);
    assert_eq!(std::fs::read_dir(&foreign).unwrap().count(), 1, "nothing was added");

    let missing = folder.path().join("missing");
    let finished = tally(&["worker", "--bounded", "--data-dir", missing.to_str().unwrap()]);
    assert_eq!(finished.code, 3, "{}", finished.stderr);

    for file in ["deployment.json", "counts.redb", "master.key"] {
        let dir = folder.path().join(format!("damaged-{file}"));
        assert!(Node::start(&dir, &[], &[]).terminate().success());
        std::fs::write(dir.join(file), "no longer what it was").unwrap();
        let finished = tally(&["worker", "--bounded", "--data-dir", dir.to_str().unwrap()]);
        assert_eq!(finished.code, 5, "{file}: {}", finished.stderr);
        assert!(finished.stderr.contains(file), "{file}: {}", finished.stderr);
    }
}

#[test]
fn a_part_that_is_gone_is_refused_and_not_made_anew() {
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    assert!(Node::start(&whole, &[], &[]).terminate().success());
    for part in ["log", "counts.redb", "keys.redb", "ledger.redb", "master.key"] {
        let dir = folder.path().join(format!("without-{part}"));
        copy_folder(&whole, &dir);
        let gone = dir.join(part);
        if gone.is_dir() {
            std::fs::remove_dir_all(&gone).unwrap();
        } else {
            std::fs::remove_file(&gone).unwrap();
        }
        let finished = tally(&["worker", "--bounded", "--data-dir", dir.to_str().unwrap()]);
        assert_eq!(finished.code, 5, "{part}: {}", finished.stderr);
        assert!(finished.stderr.contains(part), "{part}: {}", finished.stderr);
        assert!(!gone.exists(), "{part} was made anew");
    }
}

#[test]
fn whoever_holds_the_folder_is_not_locked_out_by_revoked_keys_or_a_removed_key_file() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    assert!(Node::start(&dir, &[], &[]).terminate().success());
    let dir_text = dir.to_str().unwrap();
    for number in ["1", "2", "3"] {
        tally_ok(&["keys", "revoke", number, "--data-dir", dir_text]);
    }
    std::fs::remove_file(dir.join("bootstrap.json")).unwrap();
    let secret =
        tally_ok(&["keys", "create", "--kind", "admin", "--name", "new", "--data-dir", dir_text]);
    assert!(secret.starts_with("ta_"), "{secret}");
    let listed = tally_ok(&["keys", "list", "--data-dir", dir_text, "-o", "csv"]);
    assert_eq!(listed.lines().count(), 5, "no key was made besides: {listed}");
    assert!(!dir.join("bootstrap.json").exists());
}

#[test]
fn retention_is_checked_against_the_dedup_window_that_the_folder_was_made_with() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    let long = [("dedup.window", "30d"), ("log.retention", "40d")];
    assert!(Node::start(&dir, &long, &[]).terminate().success());
    let finished = tally(&["worker", "--bounded", "--data-dir", dir.to_str().unwrap()]);
    assert_eq!(finished.code, 5, "{}", finished.stderr);
    assert!(finished.stderr.contains("log.retention"), "{}", finished.stderr);
    let kept = [("TALLY__LOG__RETENTION", "40d")];
    let args = ["worker", "--bounded", "--data-dir", dir.to_str().unwrap()];
    assert_eq!(tally_with(&kept, &args).code, 0);
}

#[test]
fn fixed_settings_cannot_be_changed_later() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    assert!(Node::start(&dir, &[("pipeline.shards", "32")], &[]).terminate().success());
    let config = folder.path().join("tally.toml");
    std::fs::write(&config, "[pipeline]\nshards = 16\n").unwrap();
    let (dir, config) = (dir.to_str().unwrap(), config.to_str().unwrap());
    let finished = tally(&["worker", "--bounded", "--data-dir", dir, "--config", config]);
    assert_eq!(finished.code, 5, "{}", finished.stderr);
    assert!(finished.stderr.contains("pipeline.shards"), "{}", finished.stderr);
    assert!(finished.stderr.contains("32"), "{}", finished.stderr);
    // Who does not ask for a number gets the deployment's.
    tally_ok(&["worker", "--bounded", "--data-dir", dir]);
}

#[test]
fn a_busy_port_and_a_folder_in_use_give_a_clear_error() {
    let folder = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let dir = folder.path().join("data");
    let dir_text = dir.to_str().unwrap();
    let finished = tally(&["up", "--data-dir", dir_text, "--listen", &address]);
    assert_eq!(finished.code, 1, "{}", finished.stderr);
    assert!(finished.stderr.contains(&address), "{}", finished.stderr);
    assert!(finished.stderr.contains("--listen"), "{}", finished.stderr);

    let node = Node::start(&dir, &[], &[]);
    for args in [
        &["worker", "--bounded", "--data-dir", dir_text][..],
        &["top", "--last", "1h", "--data-dir", dir_text],
        &["import", "/dev/null", "--data-dir", dir_text],
    ] {
        let finished = tally(args);
        assert_eq!(finished.code, 5, "{args:?}: {}", finished.stderr);
        assert!(finished.stderr.contains("another process"), "{args:?}: {}", finished.stderr);
    }
    assert!(node.terminate().success());
}

#[test]
fn an_import_by_event_time_needs_an_empty_deployment_and_reports_bad_lines() {
    let folder = tempfile::tempdir().unwrap();
    let (file, dir) = (folder.path().join("events.ndjson"), folder.path().join("data"));
    let good = |at_ms| event(&fresh_id(), "a", at_ms).to_string();
    let now = now_ms();
    let old = now - 91 * 86_400_000;
    write_lines(&file, [good(now - 5_000), "{broken".to_owned(), good(old), good(now - 4_000)]);
    let (file, dir) = (file.to_str().unwrap(), dir.to_str().unwrap());
    let import = ["import", file, "--data-dir", dir, "--received-at", "event-time", "-o", "json"];
    let finished = tally(&import);
    assert_eq!(finished.code, 1, "bad lines are no success: {}", finished.stderr);
    assert!(finished.stderr.contains("line 2"), "{}", finished.stderr);
    let report: serde_json::Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(report["accepted"], 2, "{report}");
    assert_eq!(report["rejected"], json!({"too_old": 1, "unreadable": 1}), "{report}");
    let again = tally(&import);
    assert_eq!(again.code, 5, "{}", again.stderr);
    assert!(again.stderr.contains("empty"), "{}", again.stderr);
}
