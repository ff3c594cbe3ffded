//! The threads that write: the committer, and the one that makes and deletes keyspaces.

pub(super) mod committer;
pub(super) mod keyspace_worker;
