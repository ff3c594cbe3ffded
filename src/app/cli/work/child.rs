//! The process that handles a message: a shell with the payload on its stdin, in its own process group. So a signal to
//! the worker's group does not reach the process, and a signal to the new group reaches the process and its
//! descendants.
//!
//! Each process has three threads: one writes stdin, one reads stderr, one waits for the exit. They end when the
//! process exits and its pipes are closed.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::sync::oneshot;

use tallystone_app::notices::print_notice;
use tallystone_domain::limits::QUEUE_MESSAGE_BYTES_MAX;
use tallystone_proto::queue::v1 as pb;

/// The grace period between SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(5);
/// How long to wait for the end of stderr after the process has exited; descendants may keep it open.
const STDERR_GRACE: Duration = Duration::from_secs(1);

/// The exit of a process.
pub struct ProcessExit {
    /// The exit code; `None` if a signal ended the process.
    pub code: Option<i32>,
    /// The signal that ended the process.
    signal: Option<i32>,
    /// The last non-blank line of stderr.
    pub last_line: String,
}

/// A running process.
pub struct JobProcess {
    group: Option<Pid>,
    status: oneshot::Receiver<io::Result<ExitStatus>>,
    /// The value received from `status`.
    exit_status: Option<Option<ExitStatus>>,
    stderr_over: oneshot::Receiver<()>,
    last_line: Arc<Mutex<String>>,
}

impl ProcessExit {
    /// Returns the error signature for this exit.
    pub fn signature(&self) -> String {
        match (self.code, self.signal) {
            (Some(code), _) => format!("exit {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "unknown exit".to_owned(),
        }
    }
}

impl JobProcess {
    /// Starts the command of a message.
    pub fn start(exec: &str, queue: &str, server: &str, lease: &pb::Lease) -> io::Result<Self> {
        let message = lease.message.clone().unwrap_or_default();
        let mut command = Command::new("sh");
        command.arg("-c").arg(exec).stdin(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        command.env("TALLYSTONE_SERVER", server).envs(environment(queue, lease, &message));
        let mut child = command.spawn()?;
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let (stdin, stderr) = (child.stdin.take(), child.stderr.take());
        let last_line = Arc::new(Mutex::new(String::new()));
        let (status_tx, status) = oneshot::channel();
        let (over_tx, stderr_over) = oneshot::channel();
        let read_into = Arc::clone(&last_line);
        thread::spawn(move || {
            if let Some(mut stdin) = stdin {
                // An error is expected: a command may exit without reading all of its stdin.
                let _ = stdin.write_all(&message.payload);
            }
        });
        thread::spawn(move || {
            if let Some(stderr) = stderr {
                follow(stderr, &read_into);
            }
            // An error means that the `JobProcess` was dropped.
            let _ = over_tx.send(());
        });
        thread::spawn(move || {
            // An error means that the `JobProcess` was dropped.
            let _ = status_tx.send(child.wait());
        });
        Ok(Self { group, status, exit_status: None, stderr_over, last_line })
    }

    /// Waits until the process has exited. Cancel-safe: may be dropped and called again until it returns.
    pub async fn wait(&mut self) -> ProcessExit {
        let status = match self.exit_status {
            Some(status) => status,
            None => (&mut self.status).await.ok().and_then(Result::ok),
        };
        self.exit_status = Some(status);
        // The process's own lines are complete once the pipe is closed; its descendants may keep the pipe open.
        let _ = tokio::time::timeout(STDERR_GRACE, &mut self.stderr_over).await;
        self.group = None;
        let last_line = self.last_line.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let code = status.and_then(|status| status.code());
        ProcessExit { code, signal: status.and_then(|status| status.signal()), last_line }
    }

    /// Ends the process group with SIGTERM, and with SIGKILL after the grace period.
    pub async fn end(&mut self) {
        self.signal(Signal::TERM);
        if tokio::time::timeout(GRACE, self.wait()).await.is_err() {
            self.signal(Signal::KILL);
            self.wait().await;
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // An error means that the process has just exited.
            let _ = kill_process_group(group, signal);
        }
    }
}

/// Copies the lines of a process to our stderr as they arrive, and stores the last non-blank one.
fn follow(stderr: impl Read, last_line: &Mutex<String>) {
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    let most = u64::try_from(QUEUE_MESSAGE_BYTES_MAX).unwrap_or(u64::MAX);
    while matches!(reader.by_ref().take(most).read_until(b'\n', &mut line), Ok(read) if read > 0) {
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end();
        print_notice(text);
        if !text.is_empty() {
            text.clone_into(&mut last_line.lock().unwrap_or_else(PoisonError::into_inner));
        }
        line.clear();
    }
}

/// The environment variables that describe a message to its command. Omits values that contain a NUL character.
fn environment(queue: &str, lease: &pb::Lease, message: &pb::Message) -> Vec<(String, String)> {
    let metadata = serde_json::to_string(&message.metadata).unwrap_or_default();
    let fields = [
        ("QUEUE", queue.to_owned()),
        ("MESSAGE_ID", message.message_id.clone()),
        ("MESSAGE_KEY", message.message_key.clone()),
        ("TYPE", message.r#type.clone()),
        ("PRIORITY", message.priority().to_string()),
        ("ATTEMPT", lease.attempt_number.to_string()),
        ("ATTEMPTS_LEFT", message.attempts_left.to_string()),
        ("FENCE", lease.fence.to_string()),
        ("LEASE_TOKEN", lease.lease_token.clone()),
        ("METADATA", metadata),
    ];
    let fields = fields.into_iter().map(|(name, value)| (format!("TALLYSTONE_{name}"), value));
    let metadata =
        message.metadata.iter().map(|(key, value)| (format!("TALLYSTONE_METADATA_{}", variable(key)), value.clone()));
    fields.chain(metadata).filter(|(_, value)| !value.contains('\0')).collect()
}

/// Converts a metadata key to a variable name: upper case, with `_` for every other character.
fn variable(key: &str) -> String {
    key.chars()
        .map(|character| if character.is_ascii_alphanumeric() { character.to_ascii_uppercase() } else { '_' })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_non_blank_line_is_kept() {
        let kept = Mutex::new(String::new());
        follow(&b"first\nsecond\n\n  \n"[..], &kept);
        assert_eq!(*kept.lock().expect("no panic"), "second");
    }

    #[test]
    fn metadata_becomes_valid_environment_variables() {
        let metadata = [("tenant-id".to_owned(), "a=b".to_owned()), ("z".to_owned(), "a\0b".to_owned())];
        let message = pb::Message { metadata: metadata.into_iter().collect(), ..Default::default() };
        let variables = environment("q", &pb::Lease::default(), &message);
        assert!(variables.contains(&("TALLYSTONE_METADATA_TENANT_ID".to_owned(), "a=b".to_owned())), "{variables:?}");
        assert!(variables.iter().all(|(name, _)| name != "TALLYSTONE_METADATA_Z"));
    }
}
