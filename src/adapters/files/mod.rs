//! Exports of slices as files: one JSON object a line, one file a slice.
//!
//! ```text
//! <directory>/<dataset>.<start>.jsonl        a finished export
//! <directory>/<dataset>.<start>.jsonl.part   one that is being written, or was given up
//! ```
//!
//! The start is written as `20261120T000000Z`; bytes of a dataset's name other than letters, digits and `. _ -` are written
//! as `%XX`. Invariant: a file without `.part` is complete and durable: it is synced before it gets its name, and the
//! directory is synced before anybody is told.

mod line;

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use tokio::fs::{self, File, OpenOptions};
use tokio::io::AsyncWriteExt;

use crate::domain::counter::NamespaceName;
use crate::domain::time::Timestamp;
use crate::ports::{ExportSink, SliceRow, StoreError, StoreErrorKind};

/// The exports in one directory.
#[derive(Clone, Debug)]
pub struct Exports {
    directory: PathBuf,
}

impl Exports {
    /// Exports into a directory, which is made with the first export.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// The file of a finished export.
    pub fn file(&self, dataset: &NamespaceName, slice_start: Timestamp) -> PathBuf {
        let mut name = String::new();
        for byte in dataset.as_str().bytes() {
            if byte.is_ascii_alphanumeric() || b"._-".contains(&byte) {
                name.push(char::from(byte));
            } else {
                // Writing to a string does not fail.
                let _ = write!(name, "%{byte:02X}");
            }
        }
        self.directory.join(format!("{name}.{}.jsonl", line::compact_time(slice_start)))
    }

    fn part(&self, dataset: &NamespaceName, slice_start: Timestamp) -> PathBuf {
        let mut path = self.file(dataset, slice_start).into_os_string();
        path.push(".part");
        path.into()
    }

    /// Makes the names in the directory durable.
    async fn sync_directory(&self) -> io::Result<()> {
        File::open(&self.directory).await?.sync_all().await
    }

    /// Makes the directory and those above it, durably.
    async fn make_directory(&self) -> io::Result<()> {
        let mut missing = Vec::new();
        for path in self.directory.ancestors() {
            if path.as_os_str().is_empty() || fs::try_exists(path).await? {
                break;
            }
            missing.push(path);
        }
        fs::create_dir_all(&self.directory).await?;
        for made in missing {
            let parent = made.parent().filter(|parent| !parent.as_os_str().is_empty());
            File::open(parent.unwrap_or(Path::new("."))).await?.sync_all().await?;
        }
        Ok(())
    }

    async fn start(&self, part: &Path) -> io::Result<()> {
        self.make_directory().await?;
        File::create(part).await?;
        Ok(())
    }

    async fn complete(&self, part: &Path, file: &Path) -> io::Result<()> {
        File::open(part).await?.sync_all().await?;
        fs::rename(part, file).await?;
        self.sync_directory().await
    }
}

#[async_trait]
impl ExportSink for Exports {
    async fn is_finished(&self, dataset: &NamespaceName, slice_start: Timestamp) -> Result<bool, StoreError> {
        let file = self.file(dataset, slice_start);
        let finished = async {
            let there = fs::try_exists(&file).await?;
            if there {
                // The process that gave the file its name may have ended before it synced the directory.
                self.sync_directory().await?;
            }
            Ok(there)
        };
        finished.await.map_err(|error| failed("look for export", &file, error))
    }

    async fn begin(&self, dataset: &NamespaceName, slice_start: Timestamp) -> Result<(), StoreError> {
        let part = self.part(dataset, slice_start);
        self.start(&part).await.map_err(|error| failed("begin export", &part, error))
    }

    async fn write(
        &self,
        dataset: &NamespaceName,
        slice_start: Timestamp,
        rows: Vec<(String, SliceRow)>,
    ) -> Result<(), StoreError> {
        let mut lines = String::new();
        for (namespace, row) in &rows {
            line::push(&mut lines, namespace, row);
        }
        let part = self.part(dataset, slice_start);
        append(&part, &lines).await.map_err(|error| failed("write export", &part, error))
    }

    async fn finish(&self, dataset: &NamespaceName, slice_start: Timestamp) -> Result<(), StoreError> {
        let (part, file) = (self.part(dataset, slice_start), self.file(dataset, slice_start));
        self.complete(&part, &file).await.map_err(|error| failed("finish export", &file, error))
    }
}

/// Appends to an export that was begun.
async fn append(part: &Path, lines: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().append(true).open(part).await?;
    file.write_all(lines.as_bytes()).await?;
    // The runtime's file hands its bytes over in the background; only a flush tells whether that worked.
    file.flush().await
}

fn failed(op: &'static str, path: &Path, error: io::Error) -> StoreError {
    let kind = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => StoreErrorKind::Full,
        // Whatever else goes wrong with a file is for somebody to look at; the export begins anew until then.
        _ => StoreErrorKind::Unavailable,
    };
    StoreError::unknown(kind, op).because(format!("{}: {error}", path.display()))
}
