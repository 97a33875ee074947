//! Objects that are flipped, cut, deleted or refused.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use tally_tests::{Node, note, tally, tally_ok, wait_for};

use super::traffic::{
    FAST, ON_REQUEST, SEGMENTS, Traffic, checkpointed, files, savepoint, written,
};

fn flip_a_byte(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

/// The dedup segments in the object store.
fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut files = files(&dir.join("objects/data"));
    files.retain(|path| !path.to_str().unwrap().contains("-e"));
    files
}

/// Makes two checkpoints with segments, kills the node, lets `damage` spoil the second one, and
/// insists that the next start goes on from the first one as if nothing had happened.
fn falls_back_after(damage: impl Fn(&Path, &[PathBuf]) -> PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    let data = dir.to_str().unwrap();
    let mut traffic = Traffic::new();
    let node = Node::start(&dir, ON_REQUEST, &[]);
    traffic.send(&node, SEGMENTS);
    traffic.settle(&node);
    savepoint(&node, "first");
    let old = segments(&dir);
    assert!(!old.is_empty());
    traffic.send(&node, SEGMENTS);
    traffic.settle(&node);
    savepoint(&node, "second");
    let mut new = segments(&dir);
    new.retain(|segment| !old.contains(segment));
    node.kill();
    tally_ok(&["checkpoints", "remove", "second", "--data-dir", data]);
    tally_ok(&["checkpoints", "verify", "--data-dir", data]);

    let damaged = damage(&dir, &new);
    let verified = tally(&["checkpoints", "verify", "--data-dir", data]);
    assert_eq!(verified.code, 1, "{}{}", verified.stdout, verified.stderr);
    let manifests = files(&dir.join("objects/manifests"));
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let newest = name(manifests.last().unwrap());
    let of_newest = verified.stdout.lines().find(|line| line.contains(&newest)).unwrap();
    let is_named = of_newest.contains(&name(&damaged)) || of_newest.contains("its manifest");
    assert!(is_named && of_newest.contains("is "), "{of_newest}");
    assert!(!of_newest.contains(" ok "), "{of_newest}");

    let node = Node::start(&dir, FAST, &[]);
    traffic.settle(&node);
    let log = node.log();
    let passed_over = log.lines().find(|line| line.contains("passed over")).unwrap();
    assert!(passed_over.contains(&newest) && passed_over.contains("ERROR"), "{passed_over}");
    traffic.repeat(&node);
    traffic.send(&node, 100);
    traffic.settle(&node);
    checkpointed(&node);
    assert!(node.terminate().success());
    // What nobody needs any more is gone, so that all is well again.
    let verified = tally(&["checkpoints", "verify", "--data-dir", data]);
    assert_eq!(verified.code, 0, "{}{}", verified.stdout, verified.stderr);
}

#[test]
fn after_a_flipped_byte_in_the_newest_manifest_the_one_before_is_restored_and_counts_are_equal() {
    falls_back_after(|dir, _segments| {
        let newest = files(&dir.join("objects/manifests")).pop().unwrap();
        flip_a_byte(&newest);
        newest
    });
}

#[test]
fn after_a_cut_state_object_the_checkpoint_before_is_restored_and_counts_are_equal() {
    falls_back_after(|dir, _segments| {
        let newest = files(&dir.join("objects/manifests")).pop().unwrap();
        let name = format!("{}-s0002", newest.file_name().unwrap().to_str().unwrap());
        let state = dir.join("objects/data").join(name);
        let bytes = fs::read(&state).unwrap();
        fs::write(&state, &bytes[..bytes.len() - 10]).unwrap();
        state
    });
}

#[test]
fn after_a_deleted_segment_object_the_checkpoint_before_is_restored_and_counts_are_equal() {
    falls_back_after(|_dir, segments| {
        let segment = segments.first().unwrap();
        fs::remove_file(segment).unwrap();
        segment.clone()
    });
}

#[test]
fn with_every_manifest_damaged_up_refuses_and_what_it_tells_to_do_brings_all_counts_back() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    let mut traffic = Traffic::new();
    let node = Node::start(&dir, FAST, &[]);
    traffic.send(&node, 2_000);
    traffic.settle(&node);
    checkpointed(&node);
    node.kill();
    let manifests = files(&dir.join("objects/manifests"));
    for manifest in &manifests {
        flip_a_byte(manifest);
    }
    // Twice: a start that was refused changes nothing.
    for _ in 0..2 {
        let (code, said) = Node::refused(&dir, FAST, &[]);
        assert_eq!(code, Some(5), "{said}");
        assert!(said.contains("every checkpoint is damaged"), "{said}");
        assert!(said.contains("remove all under manifests/"), "{said}");
        assert_eq!(files(&dir.join("objects/manifests")), manifests);
    }
    for manifest in &manifests {
        fs::remove_file(manifest).unwrap();
    }
    let node = Node::start(&dir, FAST, &[]);
    traffic.settle(&node);
    traffic.repeat(&node);
    traffic.send(&node, 100);
    traffic.settle(&node);
    assert!(node.terminate().success());
}

#[test]
fn without_any_checkpoint_object_the_log_is_read_from_its_start_and_no_row_goes_down_or_doubles() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    let mut traffic = Traffic::new();
    let node = Node::start(&dir, FAST, &[]);
    traffic.send(&node, SEGMENTS);
    traffic.repeat(&node);
    traffic.settle(&node);
    checkpointed(&node);
    node.kill();
    fs::remove_dir_all(dir.join("objects")).unwrap();
    let node = Node::start(&dir, FAST, &[]);
    traffic.settle(&node);
    traffic.repeat(&node);
    traffic.send(&node, 100);
    traffic.settle(&node);
    checkpointed(&node);
    assert!(node.terminate().success());
}

/// A small disk that is full when a test says so.
struct SmallDisk {
    folder: PathBuf,
    is_mounted: bool,
}

impl SmallDisk {
    fn new(folder: PathBuf) -> Self {
        fs::create_dir_all(&folder).unwrap();
        let mount = Command::new("mount")
            .args(["-t", "tmpfs", "-o", "size=8m", "tmpfs"])
            .arg(&folder)
            .output();
        let is_mounted = mount.is_ok_and(|output| output.status.success());
        if !is_mounted {
            note("no right to mount a small disk: a folder that takes no file stands in for it");
        }
        Self { folder, is_mounted }
    }

    fn fill(&self) {
        if !self.is_mounted {
            // Every object begins as a file in this folder.
            fs::rename(self.folder.join(".tmp"), self.folder.join("away")).unwrap();
            return fs::write(self.folder.join(".tmp"), "no folder").unwrap();
        }
        let mut filler = fs::File::create(self.folder.join("filler")).unwrap();
        // Collection may make room once more, so go on until some time after the first refusal.
        let mut refusals = 0;
        while refusals < 50 {
            if filler.write_all(&[0; 4_096]).is_err() {
                refusals += 1;
            }
        }
    }

    fn make_room(&self) {
        if !self.is_mounted {
            fs::remove_file(self.folder.join(".tmp")).unwrap();
            return fs::rename(self.folder.join("away"), self.folder.join(".tmp")).unwrap();
        }
        fs::remove_file(self.folder.join("filler")).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        if self.is_mounted {
            drop(Command::new("umount").arg("-l").arg(&self.folder).status());
        }
    }
}

fn failures_in_a_row(node: &Node) -> f64 {
    node.metric("tally_checkpoint_failures_in_a_row")
}

/// Counting goes on while no checkpoint can be written; once one can, it covers everything.
fn counts_without_checkpoints(
    dir: &Path,
    settings: &[(&str, &str)],
    stop: impl Fn(),
    go_on: impl Fn(),
) {
    let mut traffic = Traffic::new();
    let node = Node::start(dir, settings, &[]);
    traffic.send(&node, 1_000);
    traffic.settle(&node);
    checkpointed(&node);
    stop();
    wait_for("a checkpoint that fails", || (failures_in_a_row(&node) >= 1.0).then_some(()));
    traffic.send(&node, 3_000);
    traffic.repeat(&node);
    traffic.settle(&node);
    wait_for("more that fail", || (failures_in_a_row(&node) >= 3.0).then_some(()));
    assert!(node.metric("tally_checkpoints_total{outcome=\"failed\"}") >= 3.0);
    assert!(node.log().contains("a checkpoint was not written"), "{}", node.log());
    let before = written(&node);
    go_on();
    wait_for("the next checkpoint", || {
        (failures_in_a_row(&node) == 0.0 && written(&node) > before).then_some(())
    });
    checkpointed(&node);
    node.kill();
    let node = Node::start(dir, settings, &[]);
    traffic.settle(&node);
    assert!(node.log().contains("going on from a checkpoint"), "{}", node.log());
    traffic.repeat(&node);
    traffic.settle(&node);
    assert!(node.terminate().success());
}

#[test]
fn a_full_disk_stops_checkpoints_but_not_counting_and_with_room_they_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let disk = SmallDisk::new(folder.path().join("disk"));
    let url = format!("file:{}", disk.folder.display());
    let settings = [FAST, &[("objects.url", &url)]].concat();
    let dir = folder.path().join("data");
    counts_without_checkpoints(&dir, &settings, || disk.fill(), || disk.make_room());
    assert!(!dir.join("objects").exists(), "objects.url says where");
}

#[test]
fn an_object_store_that_refuses_manifests_stops_checkpoints_but_not_counting() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    let (manifests, away) = (dir.join("objects/manifests"), folder.path().join("away"));
    let refuse = || {
        fs::rename(&manifests, &away).unwrap();
        fs::write(&manifests, "no folder").unwrap();
    };
    let allow = || {
        fs::remove_file(&manifests).unwrap();
        fs::rename(&away, &manifests).unwrap();
    };
    counts_without_checkpoints(&dir, FAST, refuse, allow);
    // A start needs the store: it says so, and goes on once it is back.
    refuse();
    let (code, said) = Node::refused(&dir, FAST, &[]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("manifests is no folder"), "{said}");
    allow();
    assert!(Node::start(&dir, FAST, &[]).terminate().success());
}
