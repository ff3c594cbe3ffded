//! The process that works on a message: a shell with the payload on its stdin, in a process group of its own, so that a
//! signal to the worker does not reach it, and one to it reaches all that it started.
//!
//! Each process has three threads that end with it or its pipes: one writes stdin, one reads stderr, one waits.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::sync::oneshot;

use crate::app::notices::print_notice;
use crate::domain::limits::QUEUE_MESSAGE_BYTES_MAX;
use crate::proto::queue::v1 as pb;

/// How long a process that was told to end may take.
const GRACE: Duration = Duration::from_secs(5);
/// How long what a process left running may hold its stderr open.
const STDERR_GRACE: Duration = Duration::from_secs(1);

/// How a process ended.
pub struct ProcessExit {
    /// Its exit code; none if a signal ended it.
    pub code: Option<i32>,
    /// The signal.
    signal: Option<i32>,
    /// The last line it wrote to stderr that is not blank.
    pub last_line: String,
}

/// A running process.
pub struct JobProcess {
    group: Option<Pid>,
    status: oneshot::Receiver<io::Result<ExitStatus>>,
    /// What `status` said, once it did.
    exit_status: Option<Option<ExitStatus>>,
    stderr_over: oneshot::Receiver<()>,
    last_line: Arc<Mutex<String>>,
}

impl ProcessExit {
    /// What kind of failure it is.
    pub fn signature(&self) -> String {
        match (self.code, self.signal) {
            (Some(code), _) => format!("exit {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "unknown end".to_owned(),
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
                // A command need not read its stdin, and may end before it has.
                let _ = stdin.write_all(&message.payload);
            }
        });
        thread::spawn(move || {
            if let Some(stderr) = stderr {
                follow(stderr, &read_into);
            }
            // Nobody waits if the worker has gone.
            let _ = over_tx.send(());
        });
        thread::spawn(move || {
            // As above.
            let _ = status_tx.send(child.wait());
        });
        Ok(Self { group, status, exit_status: None, stderr_over, last_line })
    }

    /// Waits until the process has ended. May be dropped and called again until it answered.
    pub async fn ended(&mut self) -> ProcessExit {
        let status = match self.exit_status {
            Some(status) => status,
            None => (&mut self.status).await.ok().and_then(Result::ok),
        };
        self.exit_status = Some(status);
        // Its own lines are all there once the pipe is closed; what it left behind may keep it open.
        let _ = tokio::time::timeout(STDERR_GRACE, &mut self.stderr_over).await;
        self.group = None;
        let last_line = self.last_line.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let code = status.and_then(|status| status.code());
        ProcessExit { code, signal: status.and_then(|status| status.signal()), last_line }
    }

    /// Ends the process and all that it started, gently first.
    pub async fn end(&mut self) {
        self.signal(Signal::TERM);
        if tokio::time::timeout(GRACE, self.ended()).await.is_err() {
            self.signal(Signal::KILL);
            self.ended().await;
        }
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group {
            // It may have ended just now, which is what was wanted.
            let _ = kill_process_group(group, signal);
        }
    }
}

/// Shows the lines of a process as they come, and keeps the last one.
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

/// What the command is told about its message. A value that no environment can hold is left out.
fn environment(queue: &str, lease: &pb::Lease, message: &pb::Message) -> Vec<(String, String)> {
    let metadata = serde_json::to_string(&message.metadata).unwrap_or_default();
    let told = [
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
    let told = told.into_iter().map(|(name, value)| (format!("TALLYSTONE_{name}"), value));
    let pairs =
        message.metadata.iter().map(|(key, value)| (format!("TALLYSTONE_METADATA_{}", variable(key)), value.clone()));
    told.chain(pairs).filter(|(_, value)| !value.contains('\0')).collect()
}

/// A key as the name of a variable: capitals, and `_` for what no name can hold.
fn variable(key: &str) -> String {
    key.chars()
        .map(|character| if character.is_ascii_alphanumeric() { character.to_ascii_uppercase() } else { '_' })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_that_says_something_is_kept() {
        let kept = Mutex::new(String::new());
        follow(&b"first\nsecond\n\n  \n"[..], &kept);
        assert_eq!(*kept.lock().expect("no panic"), "second");
    }

    #[test]
    fn metadata_become_variables_that_an_environment_can_hold() {
        let metadata = [("tenant-id".to_owned(), "a=b".to_owned()), ("z".to_owned(), "a\0b".to_owned())];
        let message = pb::Message { metadata: metadata.into_iter().collect(), ..Default::default() };
        let told = environment("q", &pb::Lease::default(), &message);
        assert!(told.contains(&("TALLYSTONE_METADATA_TENANT_ID".to_owned(), "a=b".to_owned())), "{told:?}");
        assert!(told.iter().all(|(name, _)| name != "TALLYSTONE_METADATA_Z"));
    }
}
