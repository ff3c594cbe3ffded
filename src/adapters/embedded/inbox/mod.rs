//! The way of commands to the committer: commands, the inbox, and the commands that wait for keyspaces first.

pub(super) mod admission;
pub(super) mod command;
pub(super) mod commit_inbox;
pub(super) mod keyspace_jobs;
pub(super) mod queue_command;
