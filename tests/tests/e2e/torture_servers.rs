//! `tally torture` over Kafka and Cassandra, as `scripts/services start` starts them.

use std::net::TcpStream;

use serde_json::Value;
use tally_tests::servers::{broker, counts_server};
use tally_tests::tally;

#[test]
fn a_seed_over_kafka_and_cassandra_does_not_differ() {
    let (broker, counts_server) = (broker(), counts_server());
    for server in [&broker, &counts_server] {
        let answer = TcpStream::connect(server);
        assert!(answer.is_ok(), "nothing answers at {server}: run scripts/services start first");
    }
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("torture");
    let run = tally(&[
        "torture",
        "--seeds",
        "1",
        "--kills",
        "3",
        "--log",
        &format!("kafka://{broker}/e2e-torture"),
        "--counts",
        &format!("cql://{counts_server}/e2e_torture"),
        "-o",
        "json",
        "--dir",
        dir.to_str().unwrap(),
    ]);
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    let report: Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(report["differences"].as_array().unwrap().len(), 0);
    assert_eq!(report["kills"], 3);
    assert!(report["seeds"][0]["records"].as_u64().unwrap() > 1_000, "{report}");
    assert!(!dir.exists(), "a seed that passed leaves nothing behind");
}

#[test]
fn servers_are_killed_only_where_servers_are_named() {
    let run = tally(&["torture", "--services", "scripts/services"]);
    assert_eq!(run.code, 2, "{}{}", run.stdout, run.stderr);
    assert!(run.stderr.contains("add --log or --counts"), "{}", run.stderr);
}
