//! The files of the store: keys, commits, manifest, acknowledged number, free space, verification.

pub(super) mod acknowledged_file;
pub(super) mod background;
pub(super) mod backup_snapshot;
pub(super) mod disk_space;
pub(super) mod journal_prefill;
pub mod key;
pub(super) mod library;
pub(super) mod manifest;
pub(super) mod memtable_reclaimer;
pub mod meta;
pub(super) mod meta_state;
pub(super) mod permissions;
pub(super) mod read;
pub(super) mod verify;
pub(super) mod writer;
