//! The documents say what the code does: every invariant has its place and its tests.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn sources(folder: &Path, into: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources(&path, into);
        } else if name.ends_with(".rs") {
            into.push(path);
        }
    }
}

#[test]
fn every_invariant_is_enforced_somewhere_and_held_by_tests_that_exist() {
    let text = std::fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let mut files = Vec::new();
    sources(&root(), &mut files);
    let code: String = files.iter().map(|path| std::fs::read_to_string(path).unwrap()).collect();
    let mut ids = HashSet::new();
    let section = text.split_once("## Invariants").unwrap().1;
    for row in section.lines().filter(|line| line.starts_with("| ") && line.contains("`](")) {
        let cells: Vec<&str> = row.trim_matches('|').split(" | ").map(str::trim).collect();
        let [id, _statement, place, tests] = cells[..] else { panic!("not four cells: {row}") };
        assert!(ids.insert(id), "{id} stands twice");
        let file = place.split('`').nth(1).unwrap();
        let named = std::fs::read_to_string(root().join(file)).is_ok_and(|text| text.contains(id));
        assert!(named, "{id}: {file} is missing or does not name it");
        for test in tests.split(", ").map(|test| test.trim_matches('`')) {
            assert!(code.contains(&format!("fn {test}(")), "{id}: there is no test {test}");
        }
    }
    assert!(ids.len() >= 20, "the table was not read: {ids:?}");
}

#[test]
fn a_file_has_one_subject_and_at_most_400_lines_without_its_tests() {
    let mut files = Vec::new();
    sources(&root(), &mut files);
    let is_test = |path: &PathBuf| {
        path.components().any(|part| part.as_os_str() == "tests" || part.as_os_str() == "testing")
            || path.ends_with("testing.rs")
    };
    for path in files.iter().filter(|path| !is_test(path) && !path.ends_with("tests.rs")) {
        let text = std::fs::read_to_string(path).unwrap();
        let lines = text.split("#[cfg(test)]\nmod tests {").next().unwrap().lines().count();
        assert!(lines <= 400, "{} has {lines} lines", path.display());
    }
}
