//! Where results rest: the counts store, and beside it a small conditional key-value store for
//! everything else that must survive (registry, tokens, marks, keys, ledgers).
//!
//! Two seams, each with a memory version for tests, a failing wrapper and the embedded one on
//! redb; one contract test that all of them pass:
//! - [`counts::CountsStore`]: whole rows of buckets, put under a condition, never incremented;
//! - [`meta::MetaStore`]: tables of bytes with compare-and-set.
//!
//! On top of [`meta::MetaStore`], written once for every store: [`registry`], [`tokens`],
//! [`marks`], [`dirty`], [`leases`], [`suppressed`]. The embedded store is [`redb::RedbStore`]: one
//! file with both faces. The one on servers is [`cql::CqlStore`]: one keyspace with both.
//!
//! ```
//! use std::sync::Arc;
//! use tally_sinks::meta::memory::MemoryMeta;
//! use tally_sinks::registry::{NewType, Registered, Registry};
//!
//! let registry = Registry::open(Arc::new(MemoryMeta::default()))?;
//! let Registered::Created(entry) = registry.register(NewType::named("page_view".to_owned()))?
//! else {
//!     unreachable!("nobody else registers here")
//! };
//! assert_eq!(registry.snapshot().get("page_view"), Some(&entry));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod counts;
pub mod cql;
pub mod dirty;
pub mod error;
pub mod faults;
pub mod leases;
pub mod marks;
pub mod meta;
pub mod redb;
pub mod registry;
pub mod suppressed;
pub mod tokens;
