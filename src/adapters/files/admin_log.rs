//! The acts of operators as files: one JSON object a line.
//!
//! ```text
//! <directory>/actions.jsonl      the newest acts
//! <directory>/actions.1.jsonl    older ones, up to actions.4.jsonl
//! ```
//!
//! Files have mode 0600. A line is synced before its act is answered. A line that a crash cut off is skipped.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use tallystone_domain::Timestamp;
use tallystone_domain::limits::{ADMIN_LOG_FILE_BYTES, ADMIN_LOG_FILES};
use tallystone_ports::{AdminAction, AdminLog, StoreError, StoreErrorKind};

/// The record of acts in a directory.
pub struct AdminLogFiles {
    directory: PathBuf,
    file_bytes: u64,
    /// The newest file, while it is open; one writer at a time.
    newest: Arc<Mutex<Option<File>>>,
}

/// A line of a file.
#[derive(Serialize, Deserialize)]
struct AdminLine {
    number: u64,
    time_micros: i64,
    actor: String,
    action: String,
    target: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    part: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    reason: String,
    outcome: String,
    #[serde(default)]
    request: u64,
}

impl AdminLogFiles {
    /// The log in a directory, which is made with the first act.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into(), file_bytes: ADMIN_LOG_FILE_BYTES, newest: Arc::default() }
    }

    /// The same with files of another size, for tests.
    #[must_use]
    pub fn with_file_bytes(self, file_bytes: u64) -> Self {
        Self { file_bytes, ..self }
    }
}

fn path_of(directory: &Path, age: usize) -> PathBuf {
    directory.join(if age == 0 { "actions.jsonl".to_owned() } else { format!("actions.{age}.jsonl") })
}

/// Opens the newest file, and ends a line that a crash cut off.
fn open(directory: &Path) -> io::Result<File> {
    if !directory.is_dir() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    let path = path_of(directory, 0);
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    let bytes = file.metadata()?.len();
    if bytes > 0 {
        let mut last = [0];
        file.seek(SeekFrom::Start(bytes - 1))?;
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    File::open(directory)?.sync_all()?;
    Ok(file)
}

fn append(directory: &Path, newest: &mut Option<File>, line: &[u8], file_bytes: u64) -> io::Result<()> {
    let mut file = match newest.take() {
        Some(file) => file,
        None => open(directory)?,
    };
    if file.metadata()?.len() >= file_bytes {
        for age in (0..ADMIN_LOG_FILES - 1).rev() {
            let from = path_of(directory, age);
            if from.exists() {
                fs::rename(from, path_of(directory, age + 1))?;
            }
        }
        file = open(directory)?;
    }
    file.write_all(line)?;
    file.sync_data()?;
    *newest = Some(file);
    Ok(())
}

/// Reads from the newest file on, until there are enough acts.
fn read(directory: &Path, below: Option<u64>, limit: usize) -> io::Result<Vec<AdminAction>> {
    let mut found = Vec::new();
    for age in 0..ADMIN_LOG_FILES {
        let text = match fs::read(path_of(directory, age)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => break,
            Err(error) => return Err(error),
        };
        let lines = text.split(|byte| *byte == b'\n').rev();
        let acts = lines.filter_map(|line| serde_json::from_slice::<AdminLine>(line).ok());
        let acts = acts.filter(|line| below.is_none_or(|below| line.number < below));
        found.extend(acts.take(limit - found.len()).map(AdminAction::from));
        if found.len() == limit {
            break;
        }
    }
    Ok(found)
}

#[async_trait]
impl AdminLog for AdminLogFiles {
    async fn append(&self, action: &AdminAction) -> Result<(), StoreError> {
        let mut line = serde_json::to_vec(&AdminLine::from(action)).expect("texts and numbers are JSON");
        line.push(b'\n');
        let (directory, newest, file_bytes) = (self.directory.clone(), Arc::clone(&self.newest), self.file_bytes);
        let write = move || append(&directory, &mut newest.lock(), &line, file_bytes);
        let failed = |error| StoreError::unknown(StoreErrorKind::Unavailable, "append admin action").with_source(error);
        tokio::task::spawn_blocking(write).await.map_err(io::Error::other).flatten().map_err(failed)
    }

    async fn newest(&self, below: Option<u64>, limit: usize) -> Result<Vec<AdminAction>, StoreError> {
        let (directory, newest) = (self.directory.clone(), Arc::clone(&self.newest));
        let read = move || {
            let _no_rotation = newest.lock();
            read(&directory, below, limit)
        };
        let failed =
            |error| StoreError::not_applied(StoreErrorKind::Unavailable, "read admin actions").with_source(error);
        tokio::task::spawn_blocking(read).await.map_err(io::Error::other).flatten().map_err(failed)
    }
}

impl From<&AdminAction> for AdminLine {
    fn from(act: &AdminAction) -> Self {
        let AdminAction { number, time, actor, action, target, part, reason, outcome, request } = act.clone();
        Self { number, time_micros: time.micros(), actor, action, target, part, reason, outcome, request }
    }
}

impl From<AdminLine> for AdminAction {
    fn from(line: AdminLine) -> Self {
        let AdminLine { number, time_micros, actor, action, target, part, reason, outcome, request } = line;
        let time = Timestamp::from_micros(time_micros);
        Self { number, time, actor, action, target, part, reason, outcome, request }
    }
}
