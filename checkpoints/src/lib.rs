//! Checkpoints: consistent cuts of a deployment's state in an object store, and every decision
//! about them.
//!
//! A checkpoint is one manifest and the data objects that it names: for each shard a state object
//! of its own, and the dedup segments, which are immutable, uploaded once and then only named
//! again. Data objects are written first and the manifest last, all of them create-only, so a crash
//! at any moment leaves the previous checkpoint whole. Everything carries a length and a CRC-32C.
//!
//! The crate knows bytes, not what they mean: the dataflow makes the cut and encodes the states.
//! It has no clock and no thread; a checkpoint is written by whoever calls, beside the flow.
//!
//! - [`objects`]: the seam to the storage.
//! - [`manifest`]: what a checkpoint consists of, and its encoding.
//! - [`decide`]: which checkpoint to restore, what to keep, what to remove, who loads what.
//! - [`writer`] and [`reader`]: the acts.
//!
//! ```
//! use std::sync::Arc;
//!
//! use tally_checkpoints::manifest::{Cut, Totals};
//! use tally_checkpoints::objects::{MemoryObjects, ObjectStore};
//! use tally_checkpoints::reader::Origin;
//! use tally_checkpoints::writer::{ShardPart, Writer, WriterOptions};
//! use tally_model::ids::{Shard, Shards};
//! use tally_model::revision::Generation;
//!
//! let objects: Arc<dyn ObjectStore> = Arc::new(MemoryObjects::default());
//! let options = |generation| WriterOptions {
//!     deployment: "shop".to_owned(),
//!     generation: Generation::new(generation).unwrap(),
//!     shards: Shards::new(1).unwrap(),
//!     keep_last: WriterOptions::KEEP_LAST,
//! };
//!
//! // One generation writes a checkpoint ...
//! let (mut writer, restored) = Writer::open(Arc::clone(&objects), options(1), &Origin::Newest)?;
//! assert!(restored.is_none());
//! let cut = Cut { epoch: 10, next_offsets: [(0, 500)].into(), ..Cut::default() };
//! let mut checkpoint = writer.begin(cut)?;
//! let part = ShardPart {
//!     shard: Shard(0),
//!     state: b"heads and windows",
//!     segments: &["g0000001-s0000-0000000000".to_owned()],
//!     totals: Totals::from([("counted".to_owned(), 500)]),
//! };
//! checkpoint.put(part, &mut |_name| Ok(b"sorted ids".to_vec()))?;
//! checkpoint.finish()?;
//!
//! // ... and the next one, on any number of workers, starts from it.
//! let (mut writer, restored) = Writer::open(Arc::clone(&objects), options(2), &Origin::Newest)?;
//! let restored = restored.expect("there is a checkpoint");
//! assert_eq!(restored.manifest().cut.next_offsets[&0], 500);
//! let shard = restored.take(objects.as_ref(), Shard(0))?;
//! assert_eq!(shard.state, b"heads and windows");
//! let ids = restored.segment(objects.as_ref(), &shard.segments[0])?;
//! assert_eq!(ids, b"sorted ids");
//! assert_eq!(writer.collect()?.objects, 0);
//! # Ok::<(), tally_checkpoints::CheckpointError>(())
//! ```

mod error;
pub mod objects;

mod layout;
pub mod manifest;

pub mod decide;

pub mod reader;
pub mod writer;

#[cfg(test)]
mod tests;

pub use error::{CheckpointError, Damage};
pub use layout::{BadSavepointName, CheckpointId, SavepointName};
