use std::sync::Barrier;

use super::*;
use crate::testing::{Fault, TestMeta};

fn master() -> MasterKey {
    MasterKey::from_bytes([9; 32])
}

fn parts(secrets: &DeploymentSecrets) -> ([u8; 16], [u8; 32], [u8; 32]) {
    (secrets.id_key, secrets.index_secret, secrets.name_secret)
}

#[test]
fn secrets_are_made_once_and_stored_wrapped() {
    let meta = TestMeta::default();
    let made = DeploymentSecrets::load_or_create(&meta, &master()).unwrap();
    let again = DeploymentSecrets::load_or_create(&meta, &master()).unwrap();
    assert_eq!(parts(&made), parts(&again));
    let row = meta.get(TABLE, KEY).unwrap().unwrap();
    for secret in [&made.id_key[..], &made.index_secret, &made.name_secret] {
        assert!(!row.windows(secret.len()).any(|window| window == secret));
    }
}

#[test]
fn starters_that_race_agree() {
    let (meta, barrier) = (TestMeta::default(), Barrier::new(8));
    let all: Vec<DeploymentSecrets> = std::thread::scope(|scope| {
        let load = || {
            barrier.wait();
            DeploymentSecrets::load_or_create(&meta, &master()).unwrap()
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(load)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for secrets in &all {
        assert_eq!(parts(secrets), parts(&all[0]));
    }
}

#[test]
fn who_comes_second_takes_the_secrets_that_are_stored() {
    let meta = TestMeta::default();
    let golden = include_bytes!("../../golden/deployment-secrets-1.bin");
    meta.fail_next(Fault::Beaten(golden));
    let secrets = DeploymentSecrets::load_or_create(&meta, &master()).unwrap();
    assert_eq!(secrets.id_key, [3; 16]);
}

#[test]
fn an_unknown_outcome_is_resolved_by_reading_back() {
    let meta = TestMeta::default();
    meta.fail_next(Fault::Unknown);
    let made = DeploymentSecrets::load_or_create(&meta, &master()).unwrap();
    let again = DeploymentSecrets::load_or_create(&meta, &master()).unwrap();
    assert_eq!(parts(&made), parts(&again));
}

#[test]
fn a_store_that_is_down_is_an_error() {
    let meta = TestMeta::default();
    meta.fail_next(Fault::Unavailable);
    let error = DeploymentSecrets::load_or_create(&meta, &master()).unwrap_err();
    assert!(matches!(error, SecretsError::Store(StoreError::Unavailable { .. })), "{error:?}");
}

#[test]
fn another_master_key_is_refused_in_plain_words() {
    let meta = TestMeta::default();
    DeploymentSecrets::load_or_create(&meta, &master()).unwrap();
    let other = MasterKey::from_bytes([1; 32]);
    let error = DeploymentSecrets::load_or_create(&meta, &other).unwrap_err();
    assert!(matches!(error, SecretsError::WrongMasterKey), "{error:?}");
    assert!(error.to_string().contains("the master key is not the one"), "{error}");
}

#[test]
fn rows_of_another_form_are_refused() {
    let golden = include_bytes!("../../golden/deployment-secrets-1.bin");
    let mut newer = golden.to_vec();
    newer[0] = 2;
    for row in [&[][..], &newer, &golden[..golden.len() - 1]] {
        let error = DeploymentSecrets::from_row(&master(), row).unwrap_err();
        assert!(matches!(error, SecretsError::UnknownForm), "{error:?}");
    }
}

/// The golden files and hashes come from another implementation of the same algorithms.
#[test]
fn stored_secrets_of_version_1_are_readable() {
    let golden = include_bytes!("../../golden/deployment-secrets-1.bin");
    let secrets = DeploymentSecrets::from_row(&master(), golden).unwrap();
    assert_eq!(parts(&secrets), ([3; 16], [10; 32], [11; 32]));
    assert_eq!(secrets.name_hash("checkout_v9"), 0x1c7a_678b_8202_fce3);
}

#[test]
fn secrets_do_not_show_themselves() {
    let secrets =
        DeploymentSecrets { id_key: [1; 16], index_secret: [2; 32], name_secret: [3; 32] };
    assert_eq!(format!("{secrets:?}"), "DeploymentSecrets(hidden)");
}
