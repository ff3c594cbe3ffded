//! Exports of slices as files: one JSON object a line, one file a slice.
//!
//! ```text
//! <directory>/<dataset>.<start>.jsonl        a finished export
//! <directory>/<dataset>.<start>.2.jsonl      one with other content under the same name: of another store, or of the
//!                                            same slice after a crash, with a verdict in between
//! <directory>/<dataset>.<start>.jsonl.part   one that is being written, or was given up
//! ```
//!
//! The start is written as `20261120T000000Z`; bytes of a dataset's name other than letters, digits and `. _ -` are
//! written as `%XX`. Invariant: a file without `.part` is complete, durable and never replaced. It is synced before it
//! gets its name, and the directory is synced before the export is reported.

mod admin_log;
mod json_line;

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use tokio::fs::{self, File, OpenOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use tallystone_domain::counter::NamespaceName;
use tallystone_domain::limits::EXPORTS_OF_A_SLICE_MAX;
use tallystone_domain::time::Timestamp;
use tallystone_ports::{ExportSink, SliceRow, StoreError, StoreErrorKind};

pub use admin_log::AdminLogFiles;

/// How much of two files is compared at once.
const COMPARED_BYTES: u64 = 64 * 1024;

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

    /// The file of a finished export; the first one, where there are several of a name.
    pub fn file(&self, dataset: &NamespaceName, slice_start: Timestamp) -> PathBuf {
        self.numbered_path(dataset, slice_start, 1)
    }

    fn numbered_path(&self, dataset: &NamespaceName, slice_start: Timestamp, number: usize) -> PathBuf {
        let mut name = String::new();
        for byte in dataset.as_str().bytes() {
            if byte.is_ascii_alphanumeric() || b"._-".contains(&byte) {
                name.push(char::from(byte));
            } else {
                // Writing to a string does not fail.
                let _ = write!(name, "%{byte:02X}");
            }
        }
        let start = json_line::compact_time(slice_start);
        self.directory.join(match number {
            1 => format!("{name}.{start}.jsonl"),
            _ => format!("{name}.{start}.{number}.jsonl"),
        })
    }

    fn part_path(&self, dataset: &NamespaceName, slice_start: Timestamp) -> PathBuf {
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

    /// Gives a part its name: the first one that is free or holds the same already.
    async fn complete(&self, dataset: &NamespaceName, slice_start: Timestamp) -> io::Result<()> {
        let part = self.part_path(dataset, slice_start);
        File::open(&part).await?.sync_all().await?;
        for number in 1..=EXPORTS_OF_A_SLICE_MAX {
            let file = self.numbered_path(dataset, slice_start, number);
            if !fs::try_exists(&file).await? {
                fs::rename(&part, &file).await?;
                return self.sync_directory().await;
            }
            if is_same(&part, &file).await? {
                // The process that gave the file its name may have ended before it synced the directory.
                self.sync_directory().await?;
                return fs::remove_file(&part).await;
            }
        }
        Err(io::Error::other(format!(
            "{EXPORTS_OF_A_SLICE_MAX} exports already have this name; move them to another directory"
        )))
    }
}

/// Whether two files hold the same bytes.
async fn is_same(one: &Path, other: &Path) -> io::Result<bool> {
    let (mut one, mut other) = (File::open(one).await?, File::open(other).await?);
    if one.metadata().await?.len() != other.metadata().await?.len() {
        return Ok(false);
    }
    let (mut left, mut right) = (Vec::new(), Vec::new());
    loop {
        left.clear();
        right.clear();
        (&mut one).take(COMPARED_BYTES).read_to_end(&mut left).await?;
        (&mut other).take(COMPARED_BYTES).read_to_end(&mut right).await?;
        if left != right || left.is_empty() {
            return Ok(left == right);
        }
    }
}

#[async_trait]
impl ExportSink for Exports {
    async fn begin(&self, dataset: &NamespaceName, slice_start: Timestamp) -> Result<(), StoreError> {
        let part = self.part_path(dataset, slice_start);
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
            json_line::push_line(&mut lines, namespace, row);
        }
        let part = self.part_path(dataset, slice_start);
        append(&part, &lines).await.map_err(|error| failed("write export", &part, error))
    }

    async fn finish(&self, dataset: &NamespaceName, slice_start: Timestamp) -> Result<(), StoreError> {
        let finished = self.complete(dataset, slice_start).await;
        finished.map_err(|error| failed("finish export", &self.file(dataset, slice_start), error))
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
    StoreError::unknown(kind, op).with_source(format!("{}: {error}", path.display()))
}
