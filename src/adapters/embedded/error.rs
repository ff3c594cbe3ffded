//! Why a store does not open, and how failures of the store library read in the words of the ports.

use std::io;
use std::path::PathBuf;

use crate::adapters::codec::CorruptValue;
use crate::ports::{StoreError, StoreErrorKind};

/// Why a store does not open.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("the data directory {0} is in use by another process; stop it, or choose another directory")]
    InUse(PathBuf),
    /// A backup was not restored to its end.
    #[error("the restore into {0} was cut off; delete the directory and restore the backup again")]
    HalfRestored(PathBuf),
    /// A newer release has written it.
    #[error(
        "{path} has format {found}, and this release (tallystone {release}) reads format {known}; use the release that \
         wrote it or a newer one, or restore a backup that this release reads", release = env!("CARGO_PKG_VERSION")
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Its format.
        found: u32,
        /// The newest format that this release reads.
        known: u32,
    },
    /// A file is not as it was written.
    #[error("{path} is damaged: {detail}; restore the data directory from a copy")]
    Damaged {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong with it.
        detail: String,
    },
    /// The store holds less than was acknowledged.
    #[error(
        "acknowledged work is missing: {path} ends with commit {found}, commit {acknowledged} was acknowledged; restore \
         the data directory from a copy"
    )]
    Behind {
        /// Where the commits are.
        path: PathBuf,
        /// The last commit found.
        found: u64,
        /// The last commit that was acknowledged.
        acknowledged: u64,
    },
    /// The operating system refused.
    #[error("cannot use {path}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// The store library refused.
    #[error("the store library cannot open {path}")]
    Library {
        /// The folder.
        path: PathBuf,
        /// What the library said.
        source: fjall::Error,
    },
    /// A thread could not be started.
    #[error("cannot start a thread of the store")]
    Thread(#[source] io::Error),
}

impl OpenError {
    /// An operating system error at a path.
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }

    /// A store library error in a folder.
    pub fn library(path: impl Into<PathBuf>) -> impl FnOnce(fjall::Error) -> Self {
        let path = path.into();
        move |source| match source {
            fjall::Error::Locked => Self::InUse(path),
            source => Self::Library { path, source },
        }
    }

    /// A damaged file.
    pub fn damaged(path: impl Into<PathBuf>, detail: impl Into<String>) -> Self {
        Self::Damaged { path: path.into(), detail: detail.into() }
    }
}

/// Why a read failed; an error, never a shorter answer.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The store library could not read.
    #[error("the store library cannot read")]
    Library(#[from] fjall::Error),
    /// It could, but nobody of us has written that.
    #[error(transparent)]
    Damaged(#[from] CorruptValue),
}

impl ReadError {
    /// The error of a port.
    pub fn into_store_error(self, op: &'static str) -> StoreError {
        let kind = match &self {
            Self::Damaged(_) => StoreErrorKind::Corrupt,
            Self::Library(error) => kind_of(error),
        };
        StoreError::not_applied(kind, op).with_source(self)
    }
}

/// A row with a key that nobody of us has written.
pub fn malformed_key(what: &'static str, bytes: &[u8]) -> ReadError {
    let hex: String = bytes.iter().take(64).map(|byte| format!("{byte:02x}")).collect();
    ReadError::Damaged(CorruptValue::new(what, format!("key {hex}")))
}

fn kind_of(error: &fjall::Error) -> StoreErrorKind {
    let io_kind = |error: &io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::NotFound | io::ErrorKind::InvalidData => StoreErrorKind::Corrupt,
        // The list of the standard library grows; whatever it adds says that the disk did not answer.
        _ => StoreErrorKind::Unavailable,
    };
    match error {
        fjall::Error::Io(error) | fjall::Error::Storage(fjall::LsmError::Io(error)) => io_kind(error),
        fjall::Error::Poisoned | fjall::Error::KeyspaceDeleted | fjall::Error::Locked => StoreErrorKind::Unavailable,
        // Everything else, now and later, is about bytes that are not as they were written.
        _ => StoreErrorKind::Corrupt,
    }
}
