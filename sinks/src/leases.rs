//! Leases: which process works on a day of buckets.
//!
//! All kinds of job share one lease a day, so that two of them do not do the same work twice. A
//! lease keeps nobody from writing: rows are put under conditions on their revisions, and those
//! alone keep counts right. So it may expire by the clock of whoever looks, however wrong that is.

use serde::{Deserialize, Serialize};
use tally_model::bucket::{Bucket, Granularity};

use crate::error::StoreError;
use crate::meta::{CasOutcome, Change, MetaStore, Table, update};

const LEASES: Table = "leases";

/// Number of a process that works on days, drawn at random at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Owner(pub u64);

/// What became of asking for a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The day is ours until then, ms since the Unix epoch.
    Ours {
        /// When the lease expires unless it is taken again.
        until_ms: i64,
    },
    /// Somebody else works on it.
    Busy {
        /// Who.
        owner: Owner,
        /// When that lease expires unless it is taken again.
        until_ms: i64,
    },
}

/// Takes the lease of the UTC day that holds `at_ms`, or renews it if it is ours.
///
/// # Units
/// `at_ms` and `now_ms` in ms since the Unix epoch; `ttl_ms` in ms.
///
/// # Errors
/// [`StoreError`]; the same call may be repeated.
pub fn take(
    store: &dyn MetaStore,
    at_ms: i64,
    owner: Owner,
    now_ms: i64,
    ttl_ms: i64,
) -> Result<Taken, StoreError> {
    let key = key_of(at_ms);
    let wanted = Stored { owner, until_ms: now_ms.saturating_add(ttl_ms) };
    update(store, LEASES, &key, |current| {
        let stored = current.map(decode).transpose()?;
        match stored {
            Some(stored) if stored.owner != owner && stored.until_ms > now_ms => {
                let Stored { owner, until_ms } = stored;
                Ok(Change::Keep(Taken::Busy { owner, until_ms }))
            }
            Some(stored) if stored.owner == owner && stored.until_ms >= wanted.until_ms => {
                Ok(Change::Keep(Taken::Ours { until_ms: stored.until_ms }))
            }
            Some(_) | None => {
                Ok(Change::Put(encode(&wanted)?, Taken::Ours { until_ms: wanted.until_ms }))
            }
        }
    })
}

/// Gives the lease of a day back, if it is still ours.
///
/// # Units
/// `at_ms` in ms since the Unix epoch.
///
/// # Errors
/// [`StoreError`]; a lease that could not be given back expires.
pub fn release(store: &dyn MetaStore, at_ms: i64, owner: Owner) -> Result<(), StoreError> {
    let key = key_of(at_ms);
    let Some(row) = store.get(LEASES, &key)? else {
        return Ok(());
    };
    if decode(&row)?.owner != owner {
        return Ok(());
    }
    // Refused = somebody took the lease over after it had expired.
    match store.delete_if(LEASES, &key, &row)? {
        CasOutcome::Applied | CasOutcome::Refused { .. } => Ok(()),
    }
}

/// The lease as it is stored.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Stored {
    owner: Owner,
    until_ms: i64,
}

fn key_of(at_ms: i64) -> [u8; 8] {
    (Bucket::containing(Granularity::Day, at_ms).start_ms() ^ i64::MIN).to_be_bytes()
}

fn encode(lease: &Stored) -> Result<Vec<u8>, StoreError> {
    serde_json::to_vec(lease).map_err(|why| StoreError::Unstorable { what: why.to_string() })
}

fn decode(row: &[u8]) -> Result<Stored, StoreError> {
    serde_json::from_slice(row)
        .map_err(|why| StoreError::corrupt(format!("table {LEASES} ({why})")))
}

#[cfg(test)]
mod tests {
    use tally_model::bucket::DAY_MS;

    use super::*;
    use crate::faults::Fault;
    use crate::meta::failing::FailingMeta;
    use crate::meta::memory::MemoryMeta;

    const ONE: Owner = Owner(1);
    const TWO: Owner = Owner(2);

    #[test]
    fn a_day_has_one_owner_until_the_lease_is_given_back_or_expires() {
        let store = MemoryMeta::default();
        let take = |at_ms, owner, now_ms| take(&store, at_ms, owner, now_ms, 100).unwrap();
        assert_eq!(take(5, ONE, 0), Taken::Ours { until_ms: 100 });
        assert_eq!(take(DAY_MS - 1, TWO, 99), Taken::Busy { owner: ONE, until_ms: 100 });
        assert_eq!(take(DAY_MS, TWO, 0), Taken::Ours { until_ms: 100 }, "another day");
        assert_eq!(take(5, ONE, 50), Taken::Ours { until_ms: 150 }, "renewed");
        assert_eq!(take(5, ONE, 20), Taken::Ours { until_ms: 150 }, "never shortened");
        assert_eq!(take(5, TWO, 150), Taken::Ours { until_ms: 250 }, "expired");
        release(&store, 5, ONE).unwrap();
        assert_eq!(take(5, ONE, 150), Taken::Busy { owner: TWO, until_ms: 250 }, "not theirs");
        release(&store, 5, TWO).unwrap();
        release(&store, 5, TWO).unwrap();
        assert_eq!(take(5, ONE, 150), Taken::Ours { until_ms: 250 });
    }

    #[test]
    fn a_lost_answer_leaves_the_lease_with_whoever_took_it() {
        let store = FailingMeta::new(MemoryMeta::default());
        store.script_writes([Some(Fault::AppliedThenLost)]);
        assert_eq!(take(&store, 0, ONE, 0, 100).unwrap(), Taken::Ours { until_ms: 100 });
        let busy = Taken::Busy { owner: ONE, until_ms: 100 };
        assert_eq!(take(&store, 0, TWO, 0, 100).unwrap(), busy);
    }

    #[test]
    fn of_racing_owners_one_gets_the_day() {
        let store = MemoryMeta::default();
        let ours = std::thread::scope(|scope| {
            let racing: Vec<_> = (0..8)
                .map(|number| {
                    let store = &store;
                    scope.spawn(move || take(store, 0, Owner(number), 0, 100).unwrap())
                })
                .collect();
            let taken = racing.into_iter().map(|racer| racer.join().unwrap());
            taken.filter(|taken| matches!(taken, Taken::Ours { .. })).count()
        });
        assert_eq!(ours, 1);
    }
}
