//! Errors of startup, and the conversion of store library errors to port errors.

use std::io;
use std::path::PathBuf;

use tallystone_adapters::codec::CorruptValue;
use tallystone_ports::{StoreError, StoreErrorKind};

/// The reason why a store does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has the store open.
    #[error("the data directory {0} is in use by another process; stop that process, or choose another directory")]
    InUse(PathBuf),
    /// The restore of a backup was not finished.
    #[error("the restore into {0} was interrupted; delete the directory and restore the backup again")]
    HalfRestored(PathBuf),
    /// Another user owns the directory, and people outside its group could enter it.
    #[error(
        "the data directory {path} belongs to another user, and its mode {mode:04o} lets people outside its group in: take \
         their permissions away (chmod o-rwx), or name a folder below it, which the server makes for itself alone"
    )]
    OpenToOthers {
        /// The directory.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// The volume of a new store is smaller than the reserve.
    #[error(
        "the store is full before it begins: the volume of {path} has {total_bytes} bytes in all, and storage.reserve_bytes \
         keeps {reserve_bytes} of them free; use a larger volume, or lower storage.reserve_bytes"
    )]
    VolumeTooSmall {
        /// The directory.
        path: PathBuf,
        /// The size of its volume.
        total_bytes: u64,
        /// The bytes that have to be free.
        reserve_bytes: u64,
    },
    /// A newer release wrote the store.
    #[error(
        "{path} has format {found}, but this release (tallystone {release}) reads format {known}; use the release \
         that wrote it, or a newer one, or restore a backup that this release can read",
        release = env!("CARGO_PKG_VERSION")
    )]
    Newer {
        /// File with the format.
        path: PathBuf,
        /// Format of the file.
        found: u32,
        /// Newest format that this release reads.
        known: u32,
    },
    /// A build before the first release wrote the queues.
    #[error(
        "the queues that {0} lists were written by a build before release 0.1.0, which stored finished messages otherwise; \
         begin with an empty data directory, or use the build that wrote this one"
    )]
    Unreleased(PathBuf),
    /// The contents of a file differ from those written.
    #[error("{path} is damaged: {detail}; restore the data directory from a copy")]
    Damaged {
        /// Damaged file or folder.
        path: PathBuf,
        /// Description of the damage.
        detail: String,
    },
    /// Acknowledged commits are missing.
    #[error(
        "acknowledged work is missing: {path} ends with commit {found}, but commit {acknowledged} was acknowledged; \
         restore the data directory from a copy"
    )]
    Behind {
        /// Location of the commits.
        path: PathBuf,
        /// Last commit found.
        found: u64,
        /// Last commit that was acknowledged.
        acknowledged: u64,
    },
    /// An error of the operating system.
    #[error("cannot use {path}")]
    Io {
        /// Affected file or folder.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// An error of the store library.
    #[error("the store library cannot open {path}")]
    Library {
        /// Folder of the store library.
        path: PathBuf,
        /// Cause.
        source: fjall::Error,
    },
    /// A thread could not be started.
    #[error("cannot start a thread of the store")]
    Thread(#[source] io::Error),
}

impl OpenError {
    /// Wraps an operating system error at a path.
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }

    /// Wraps a store library error in a folder.
    pub fn library(path: impl Into<PathBuf>) -> impl FnOnce(fjall::Error) -> Self {
        let path = path.into();
        move |source| match source {
            fjall::Error::Locked => Self::InUse(path),
            source => Self::Library { path, source },
        }
    }

    /// Creates the error of a damaged file.
    pub fn damaged(path: impl Into<PathBuf>, detail: impl Into<String>) -> Self {
        Self::Damaged { path: path.into(), detail: detail.into() }
    }
}

/// The reason why a read failed; a failed read never returns a partial result.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The store library could not read.
    #[error("the store library cannot read")]
    Library(#[from] fjall::Error),
    /// No encoder of this store wrote the value.
    #[error(transparent)]
    Damaged(#[from] CorruptValue),
}

impl ReadError {
    /// Converts to a port error.
    pub fn into_store_error(self, op: &'static str) -> StoreError {
        let kind = match &self {
            Self::Damaged(_) => StoreErrorKind::Corrupt,
            Self::Library(error) => kind_of(error),
        };
        StoreError::not_applied(kind, op).with_source(self)
    }
}

/// Creates the error of a row with a malformed key.
pub fn malformed_key(what: &'static str, bytes: &[u8]) -> ReadError {
    let hex: String = bytes.iter().take(64).map(|byte| format!("{byte:02x}")).collect();
    ReadError::Damaged(CorruptValue::new(what, format!("key {hex}")))
}

fn kind_of(error: &fjall::Error) -> StoreErrorKind {
    let io_kind = |error: &io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::NotFound | io::ErrorKind::InvalidData => StoreErrorKind::Corrupt,
        // The standard library may add kinds; each of them means that the disk did not answer.
        _ => StoreErrorKind::Unavailable,
    };
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => io_kind(error),
        fjall::Error::Poisoned | fjall::Error::KeyspaceDeleted | fjall::Error::Locked => StoreErrorKind::Unavailable,
        // Every other error, present or future, is about damaged bytes.
        _ => StoreErrorKind::Corrupt,
    }
}
