//! The contract on real files.

use std::sync::Arc;

use crate::counts::contract;
use crate::redb::tests::Files;

#[test]
fn the_tables_keep_the_contract() {
    let files = Files::default();
    contract::all(&|| Arc::new(files.fresh().counts()));
}
