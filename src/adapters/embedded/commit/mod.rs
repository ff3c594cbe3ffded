//! The one writer: commands wait in an inbox, a thread groups them into commits, and answers.

pub(super) mod command;
pub(super) mod commit_inbox;
pub(super) mod committer;
pub(super) mod keyspace_worker;
pub(super) mod writer;
