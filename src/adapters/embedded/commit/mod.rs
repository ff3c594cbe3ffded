//! The commit path: commands, the inbox, the committer thread, and the writer.

pub(super) mod command;
pub(super) mod commit_inbox;
pub(super) mod committer;
pub(super) mod keyspace_worker;
pub(super) mod writer;
