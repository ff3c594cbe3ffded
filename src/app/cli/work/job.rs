//! Processes one message: runs the command and chooses the settlement by its exit code.

use std::sync::{Arc, Mutex, PoisonError};

use crate::work::child::{JobProcess, ProcessExit};
use tallystone_app::notices::{print_notice, single_line};
use tallystone_client::queues::{Job, Outcome, Shutdown};

/// The settings that all commands of a worker share.
pub struct JobCommand {
    /// The shell command.
    pub exec: String,
    /// The name of the queue.
    pub queue: String,
    /// The address of the server, passed to the command in TALLYSTONE_SERVER.
    pub server: String,
    /// Stops the worker if the command cannot be run.
    pub shutdown: Shutdown,
    broken: Mutex<Option<String>>,
}

impl JobCommand {
    /// Creates the commands of a worker.
    pub fn new(exec: String, queue: String, server: String, shutdown: Shutdown) -> Arc<Self> {
        Arc::new(Self { exec, queue, server, shutdown, broken: Mutex::default() })
    }

    /// Takes the reason why the command cannot be run, if there is one.
    pub fn broken(&self) -> Option<String> {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Whether the command cannot be run.
    pub fn is_broken(&self) -> bool {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Runs the command of a message until it exits or its work is stopped.
    pub async fn run(self: Arc<Self>, mut job: Job) -> Outcome {
        let mut child = match JobProcess::start(&self.exec, &self.queue, &self.server, &job.lease) {
            Ok(child) => child,
            Err(error) => return self.cannot_run(format!("cannot start sh: {error}")),
        };
        let exit = tokio::select! {
            exit = child.wait() => exit,
            _ = job.must_end() => {
                child.end().await;
                // The worker chooses the settlement by the reason of the stop.
                return Outcome::Release;
            }
        };
        match exit.code {
            Some(0) => Outcome::Complete,
            Some(code @ (126 | 127)) => {
                let output = if exit.last_line.is_empty() { "no output on stderr" } else { &exit.last_line };
                self.cannot_run(format!("the command cannot be run (exit code {code}): {output}"))
            }
            Some(_) | None => failed(&job, &exit),
        }
    }

    fn cannot_run(&self, why: String) -> Outcome {
        self.broken.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
        self.shutdown.stop_leasing();
        Outcome::Release
    }
}

fn failed(job: &Job, exit: &ProcessExit) -> Outcome {
    let (signature, text) = (exit.signature(), &exit.last_line);
    let output = if text.is_empty() { signature.clone() } else { format!("{signature}: {text}") };
    print_notice(&format!("{}: {output}", single_line(&job.message().message_id)));
    Outcome::failed(signature, text)
}
