//! Prints the description of the API, as `docs/openapi.json` has it.
//!
//! `cargo run --release -p tally-query-api --example openapi > docs/openapi.json`

use std::io::Write as _;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let text = tally_query_api::openapi_json()?;
    Ok(std::io::stdout().write_all(text.as_bytes())?)
}
