//! `tally savepoint`, `up --from`, `tally checkpoints`.

use serde_json::Value;
use tally_tests::{Node, tally, tally_ok, wait_for};

use super::traffic::{FAST, Traffic, checkpointed, files, savepoint};

fn listed(data: &str) -> Vec<Value> {
    let json = tally_ok(&["checkpoints", "list", "--data-dir", data, "-o", "json"]);
    serde_json::from_str(&json).unwrap()
}

#[test]
fn a_savepoint_of_a_running_node_is_listed_kept_started_from_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    let data = dir.to_str().unwrap();
    let mut traffic = Traffic::new();
    let node = Node::start(&dir, FAST, &[]);
    traffic.send(&node, 1_000);
    traffic.settle(&node);
    savepoint(&node, "before-upgrade");
    let running = ["--url", &node.url, "--token", &node.admin_token];
    let again = tally(&[&["savepoint", "before-upgrade"], &running[..]].concat());
    assert_eq!(again.code, 5, "{}", again.stderr);
    assert!(again.stderr.contains("exists already"), "{}", again.stderr);
    let odd = tally(&["savepoint", "Before Upgrade", "--data-dir", data]);
    assert_eq!(odd.code, 2, "{}", odd.stderr);
    let reader = ["savepoint", "other", "--url", &node.url, "--token", &node.read_token];
    assert_eq!(tally(&reader).code, 5, "a read token makes no savepoint");

    let is_it = |found: &Value| found["name"] == "before-upgrade" && found["savepoint"] == true;
    let kept = listed(data).into_iter().find(is_it).unwrap();
    // The node goes on, far enough that the savepoint's checkpoint is collected as such.
    traffic.send(&node, 1_000);
    traffic.settle(&node);
    wait_for("newer checkpoints only", || {
        let newer = |found: &Value| found["name"] != kept["checkpoint"];
        listed(data).iter().all(newer).then_some(())
    });
    node.kill();

    let node = Node::start(&dir, FAST, &["--from", "before-upgrade"]);
    traffic.settle(&node);
    let log = node.log();
    let from = log.lines().rfind(|line| line.contains("going on from a checkpoint")).unwrap();
    assert!(from.contains(kept["checkpoint"].as_str().unwrap()), "{from}");
    traffic.repeat(&node);
    traffic.send(&node, 100);
    traffic.settle(&node);
    checkpointed(&node);
    node.kill();
    // Without the flag it is the newest again, which goes on from what came after the savepoint.
    let node = Node::start(&dir, FAST, &[]);
    traffic.settle(&node);
    assert!(node.terminate().success());

    tally_ok(&["checkpoints", "verify", "--data-dir", data]);
    tally_ok(&["checkpoints", "remove", "before-upgrade", "--data-dir", data]);
    assert!(!listed(data).iter().any(is_it));
    let gone = tally(&["checkpoints", "remove", "before-upgrade", "--data-dir", data]);
    assert_eq!(gone.code, 3, "{}", gone.stderr);
    for name in ["before-upgrade", "g0000001-e00000000000000000001"] {
        let shown = tally(&["checkpoints", "show", name, "--data-dir", data]);
        assert_eq!(shown.code, 3, "{}", shown.stderr);
        let (code, said) = Node::refused(&dir, FAST, &["--from", name]);
        assert_eq!(code, Some(3), "{said}");
    }
}

#[test]
fn stop_with_a_savepoint_ends_the_node_with_0_and_a_start_from_it_counts_what_came_after() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    let data = dir.to_str().unwrap();
    let mut traffic = Traffic::new();
    let node = Node::start(&dir, FAST, &[]);
    traffic.send(&node, 1_000);
    let said = tally_ok(&[
        "savepoint",
        "moved",
        "--stop",
        "--url",
        &node.url,
        "--token",
        &node.admin_token,
    ]);
    assert!(said.contains("the node is stopping"), "{said}");
    assert_eq!(node.ended().code(), Some(0));
    let node = Node::start(&dir, FAST, &["--from", "moved"]);
    traffic.settle(&node);
    traffic.repeat(&node);
    traffic.send(&node, 100);
    traffic.settle(&node);
    assert!(node.terminate().success());

    // Of a stopped node: the checkpoint that its end made.
    let newest = files(&dir.join("objects/manifests")).pop().unwrap();
    let said = tally_ok(&["savepoint", "cold", "--data-dir", data]);
    assert!(said.contains(newest.file_name().unwrap().to_str().unwrap()), "{said}");
    // The same checkpoint once more is no other savepoint.
    tally_ok(&["savepoint", "cold", "--data-dir", data]);
    let node = Node::start(&dir, FAST, &["--from", "cold"]);
    // A folder that is in use is asked over HTTP.
    assert_eq!(tally(&["savepoint", "warm", "--data-dir", data]).code, 5);
    traffic.settle(&node);
    assert!(node.terminate().success());
    let again = tally(&["savepoint", "cold", "--data-dir", data]);
    assert_eq!(again.code, 5, "{}", again.stderr);
    assert!(again.stderr.contains("exists already"), "{}", again.stderr);
}
