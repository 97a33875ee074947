//! Encrypted connections.

use std::path::Path;

use openssl::error::ErrorStack;
use openssl::ssl::{SslConnector, SslMethod};
use scylla::client::session::OpenSsl010Config;

/// Checks the servers' certificates against the file `ca`, or what the system trusts.
pub(super) fn context(ca: Option<&Path>) -> Result<OpenSsl010Config, ErrorStack> {
    let mut connector = SslConnector::builder(SslMethod::tls_client())?;
    if let Some(file) = ca {
        connector.set_ca_file(file)?;
    }
    Ok(OpenSsl010Config::new(connector))
}
