//! `backup` and `restore`: copy a server's embedded store into a directory, and back.
//!
//! The server sends the bytes and this command writes them to `DIR.partial`. After the file is durable and fully
//! verified, the command renames the directory to DIR. So a directory named DIR is always a complete backup.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::json;
use tonic::{Code, Request, Streaming};

use crate::output::{IncrementalPrinter, Output, TableRows, progress};
use crate::{ClientArgs, ClientContext, Exit, Failure, GlobalArgs, OutputArgs, failure, on_a_runtime};
use tallystone_adapters::system::SystemClock;
use tallystone_api::time;
use tallystone_app::server::resources::keep_files_private;
use tallystone_app::units;
use tallystone_client::CallError;
use tallystone_embedded::backup::{self, BackupSummary, RestoreError};
use tallystone_embedded::{OpenError, Options};
use tallystone_ports::Clock as _;
use tallystone_proto::admin::v1::{CreateBackupRequest, CreateBackupResponse};

/// The file of a backup in its directory.
const FILE: &str = "backup.tly";
/// The interval between progress messages, in bytes.
const TELL_EVERY: u64 = 64 * 1024 * 1024;

/// Back up the embedded store of a running server, or verify a backup. Runs on the server's machine.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    arg_required_else_help = true,
    after_help = "Example:\n  tallystone backup nightly"
)]
pub struct BackupArgs {
    #[command(subcommand)]
    command: Option<BackupCommand>,
    /// The directory to create; it must not exist.
    #[arg(required = true, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(flatten)]
    client: ClientArgs,
}

#[derive(Debug, Subcommand)]
enum BackupCommand {
    /// Read a whole backup and verify its checksums and counts; needs no server.
    #[command(after_help = "Example:\n  tallystone backup verify nightly")]
    Verify(VerifyArgs),
}

#[derive(Debug, Args)]
struct VerifyArgs {
    /// The directory of the backup.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Restore a backup into a new data directory; needs no server.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tallystone restore nightly --data restored")]
pub struct RestoreArgs {
    /// The directory of the backup.
    #[arg(value_name = "DIR")]
    dir: PathBuf,
    /// The data directory to create; an existing one must be empty.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    #[command(flatten)]
    output: OutputArgs,
}

/// The directory that is filled before it has its name. It is next to the other one, also if that was written with a
/// slash at its end.
fn partial_of(dir: &Path) -> Result<PathBuf, Failure> {
    let Some(name) = dir.file_name() else {
        let what = format!(
            "{} has no name of its own: name the directory to create, as in `tallystone backup nightly`",
            dir.display()
        );
        return Err(Failure::usage(what));
    };
    let mut partial = name.to_owned();
    partial.push(".partial");
    Ok(dir.with_file_name(partial))
}

impl BackupArgs {
    pub fn run(&self, global: &GlobalArgs) -> Result<(), Failure> {
        match (&self.command, &self.dir) {
            (Some(BackupCommand::Verify(args)), _) => {
                let began = SystemClock.elapsed();
                let summary = backup::check(&args.dir.join(FILE)).map_err(refused)?;
                print(self.client.output.or(&global.output()), &args.dir, &summary, began)
            }
            (None, Some(dir)) => on_a_runtime(self.create(dir, global)),
            (None, None) => Err(Failure::usage("name the directory to create, as in `tallystone backup nightly`")),
        }
    }

    async fn create(&self, dir: &Path, global: &GlobalArgs) -> Result<(), Failure> {
        let (session, began) = (self.client.open(global)?, SystemClock.elapsed());
        let partial = partial_of(dir)?;
        refuse_existing(dir)?;
        let mut client = session.client.backups();
        let asked = tokio::time::timeout(session.timeout, client.create_backup(Request::new(CreateBackupRequest {})));
        let late = |_| {
            Failure::new(
                Exit::Unavailable,
                format!("{} did not start the backup in time; nothing was written", session.server),
            )
        };
        let pieces = asked.await.map_err(late)?.map_err(|status| failed(&session, &status))?.into_inner();
        let made = DirBuilder::new().mode(0o700).create(&partial);
        made.map_err(|error| {
            let failure = cannot("make", &partial, &error);
            let is_left = error.kind() == io::ErrorKind::AlreadyExists;
            if is_left {
                failure.hint(
                    "another backup is running, or an earlier one was interrupted; if none is running, \
                     delete this directory",
                )
            } else {
                failure
            }
        })?;
        let written = write(&session, pieces, dir, &partial).await;
        if written.is_err() {
            // Ignored: a leftover is recognisable as incomplete by its name and by its content.
            let _ = fs::remove_dir_all(&partial);
        }
        print(session.output, dir, &written?, began)
    }
}

impl RestoreArgs {
    pub fn run(&self, global: &GlobalArgs) -> Result<(), Failure> {
        global.only("restore", &["--output"])?;
        keep_files_private();
        progress(&format!("restoring {} into {}", self.dir.display(), self.data.display()));
        let (options, began) = (Options::new(&self.data), SystemClock.elapsed());
        let summary = backup::restore(&self.dir.join(FILE), &options, SystemClock.now()).map_err(refused)?;
        print(self.output.or(&global.output()), &self.data, &summary, began)
    }
}

/// Writes a backup, verifies it, and gives it its final name.
async fn write(
    session: &ClientContext,
    mut pieces: Streaming<CreateBackupResponse>,
    dir: &Path,
    partial: &Path,
) -> Result<BackupSummary, Failure> {
    let path = partial.join(FILE);
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let mut file = opened.map_err(|error| cannot("make", &path, &error))?;
    let (mut bytes, mut told) = (0, 0);
    while let Some(next) = pieces.message().await.map_err(|status| failed(session, &status))? {
        if bytes == 0 {
            refuse_small_disk(&next.piece, partial)?;
        }
        file.write_all(&next.piece).map_err(|error| cannot("write", &path, &error))?;
        bytes += next.piece.len() as u64;
        if bytes - told >= TELL_EVERY {
            told = bytes;
            progress(&units::size(bytes));
        }
    }
    file.sync_all().map_err(|error| cannot("write", &path, &error))?;
    drop(file);
    let summary = backup::check(&path).map_err(refused)?;
    refuse_existing(dir)?;
    let named = || -> io::Result<()> {
        File::open(partial)?.sync_all()?;
        fs::rename(partial, dir)?;
        let parent = dir.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(parent)?.sync_all()
    };
    named().map_err(|error| cannot("make", dir, &error))?;
    Ok(summary)
}

/// Checks free disk space: a backup takes about as much as the files of the store.
fn refuse_small_disk(first: &[u8], partial: &Path) -> Result<(), Failure> {
    let Some(header) = backup::header_of(first) else { return Ok(()) };
    let disk = rustix::fs::statvfs(partial).map_err(|error| cannot("look at", partial, &error.into()))?;
    let (free, wanted) = (disk.f_bavail.saturating_mul(disk.f_frsize), header.disk_bytes);
    if free >= wanted {
        return Ok(());
    }
    let (free, wanted) = (units::size(free), units::size(wanted));
    let what = format!("{} has {free} free; the backup needs {wanted}", partial.display());
    Err(Failure::other(what).hint("free some space, or name a directory on another disk"))
}

fn refuse_existing(dir: &Path) -> Result<(), Failure> {
    if fs::symlink_metadata(dir).is_err() {
        return Ok(());
    }
    let what = format!("{} already exists; a backup never replaces anything", dir.display());
    Err(Failure::new(Exit::Precondition, what).hint("name a directory that does not exist yet"))
}

fn failed(session: &ClientContext, status: &tonic::Status) -> Failure {
    let error = CallError::of_one(status.clone());
    if error.is_unreachable() {
        return session.failed(&error);
    }
    let what = format!("the server at {} created no backup: {}", session.server, status.message());
    let exit = match status.code() {
        Code::Unimplemented => Exit::Precondition,
        code => failure::exit_of(code), // as for every call
    };
    Failure::new(exit, what)
}

fn cannot(verb: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::other(format!("cannot {verb} {}: {error}", path.display()))
}

fn refused(error: RestoreError) -> Failure {
    let exit = match &error {
        RestoreError::NotEmpty(_)
        | RestoreError::Unknown(_)
        | RestoreError::Backup { fault: backup::BackupError::Newer(_), .. }
        | RestoreError::Store(OpenError::InUse(_)) => Exit::Precondition,
        RestoreError::Backup { .. } | RestoreError::NoRoom { .. } | RestoreError::Store(_) => Exit::Failure,
    };
    let is_missing = matches!(&error, RestoreError::Backup { fault: backup::BackupError::Io(fault), .. }
        if matches!(fault.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory));
    let failure = Failure::new(exit, format!("{:#}", anyhow::Error::new(error)));
    if is_missing {
        failure.hint(format!("name a directory that `tallystone backup` created; it contains {FILE}"))
    } else {
        failure
    }
}

/// Prints the content of a backup; people get its size with a unit, and the duration of the command.
fn print(output: Output, dir: &Path, summary: &BackupSummary, began: Duration) -> Result<(), Failure> {
    let BackupSummary { header, keyspaces, rows, bytes } = summary;
    let (dir, taken) = (dir.display().to_string(), time::text(header.time));
    let numbers = [*keyspaces, *rows, *bytes].map(|number| number.to_string());
    let mut cells = vec![dir.clone(), header.release.clone(), header.commit.to_string(), taken.clone()];
    cells.extend(numbers.iter().cloned());
    let mut columns: &[&str] = &["directory", "release", "commit", "taken", "keyspaces", "rows", "bytes"];
    if output.is_for_people() {
        columns = &["directory", "release", "commit", "taken", "keyspaces", "rows", "size", "took"];
        cells.pop();
        cells.extend([units::size(*bytes), units::about(SystemClock.elapsed().saturating_sub(began))]);
    }
    let item = json!({
        "directory": dir, "release": header.release, "commit": header.commit.to_string(), "taken": taken,
        "keyspaces": numbers[0], "rows": numbers[1], "bytes": numbers[2],
    });
    let mut parts = IncrementalPrinter::list(output);
    parts.print(&[item], &TableRows { columns, cells: vec![cells] })?;
    parts.end(columns)
}
