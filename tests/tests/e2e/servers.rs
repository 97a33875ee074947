//! Deployments over Kafka and Cassandra: what is refused, and what each role can do.

use std::path::Path;

use tally_tests::servers::Servers;
use tally_tests::{Node, tally_with, variable};

/// Runs a command with settings; returns its exit code and all that it said.
fn run(settings: &[(&str, &str)], args: &[&str]) -> (i32, String) {
    let variables: Vec<(String, &str)> =
        settings.iter().map(|(key, value)| (variable(key), *value)).collect();
    let variables: Vec<(&str, &str)> =
        variables.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    let finished = tally_with(&variables, args);
    (finished.code, format!("{}{}", finished.stdout, finished.stderr))
}

fn start_and_stop(dir: &Path, settings: &[(&str, &str)]) {
    assert!(Node::role("worker", dir, settings, &[]).terminate().success());
}

#[test]
fn a_topic_that_can_lose_records_is_refused_by_name_and_started_with_the_override() {
    let folder = tempfile::tempdir().unwrap();
    let servers = Servers::new();
    let settings = servers.settings(&[]);
    let dir = folder.path().join("data");
    start_and_stop(&dir, &settings);
    let strict = servers.settings(&[("log.accept_settings", "false")]);
    let (code, said) = Node::refused(&dir, &strict, &[]);
    assert_eq!(code, Some(5), "{said}");
    for part in ["replication factor", "min.insync.replicas", "log.accept_settings = true"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let node = Node::role("worker", &dir, &settings, &[]);
    assert!(node.log().contains("accepted, but not safe"), "{}", node.log());
    assert!(node.terminate().success());
}

#[test]
fn roles_of_their_own_need_servers_and_only_a_process_that_counts_makes_savepoints() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("data");
    let folder_name = dir.to_str().unwrap();
    for role in ["collector", "query"] {
        let (code, said) = run(&[], &[role, "--data-dir", folder_name, "--admin", "127.0.0.1:0"]);
        assert_eq!(code, 2, "{role}: {said}");
        assert!(said.contains("log.url names no server"), "{role}: {said}");
    }
    let servers = Servers::new();
    let settings = servers.settings(&[]);
    start_and_stop(&dir, &settings);
    for role in ["collector", "query"] {
        let node = Node::role(role, &dir, &settings, &[]);
        let body = Some(r#"{"name":"one"}"#);
        let reply = node.request("POST", "/v1/savepoints", &node.admin_token, body);
        assert_eq!(reply.status, 404, "{role}: {}", reply.body);
        assert!(node.terminate().success());
    }
    // A worker that is stopped keeps its last checkpoint by its folder.
    let (code, said) = run(&settings, &["savepoint", "before-upgrade", "--data-dir", folder_name]);
    assert_eq!(code, 0, "{said}");
    let (code, said) = run(&settings, &["store", "migrate"]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("has layout 1 already"), "{said}");
}

#[test]
fn another_keyspace_another_topic_and_a_missing_master_key_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (servers, others) = (Servers::new(), Servers::new());
    let settings = servers.settings(&[]);
    let (dir, other) = (folder.path().join("data"), folder.path().join("other"));
    start_and_stop(&dir, &settings);
    start_and_stop(&other, &others.settings(&[]));
    let url = |of: &Servers, key| {
        let settings = of.settings(&[]);
        settings.iter().find(|(of, _)| *of == key).unwrap().1.to_owned()
    };
    let (topic, keyspace) = (url(&others, "log.url"), url(&others, "counts.url"));
    let second = folder.path().join("second-machine");
    // (what the row shows, folder, settings, what is said)
    let cases = [
        (
            "a keyspace of another deployment",
            &dir,
            servers.settings(&[("counts.url", &keyspace)]),
            "to deployment",
        ),
        (
            "another topic",
            &dir,
            servers.settings(&[("log.url", &topic)]),
            "log.url is fixed when a deployment is made",
        ),
        ("no master key", &second, servers.settings(&[]), "privacy.master_key"),
    ];
    for (name, dir, settings, want) in cases {
        let (code, said) = Node::refused(dir, &settings, &[]);
        assert_eq!(code, Some(5), "{name}: {said}");
        assert!(said.contains(want), "{name}: {said}");
    }
    let key = dir.join("master.key");
    let with_key = servers.settings(&[("privacy.master_key", key.to_str().unwrap())]);
    start_and_stop(&second, &with_key);
}
