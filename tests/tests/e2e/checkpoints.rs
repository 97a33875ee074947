//! What survives what: kill -9, damage done by hand, a trimmed log, a full disk, other numbers of
//! workers, savepoints.

mod damage;
mod restarts;
mod savepoints;
mod traffic;
mod trimmed;
