//! `work`: any program as a worker. Takes messages while it has room, starts the command for each, settles by its exit code.
//!
//! A dequeue waits inside the server. The first SIGTERM or ctrl-c stops taking and lets what runs finish; the second ends what
//! runs and gives its messages back. `job` holds the life of one message, `child` the process.

mod child;
mod job;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::api::time::write_duration;
use crate::app::cli::arguments::{duration, pair};
use crate::app::cli::queue::messages;
use crate::app::cli::{BeforeNoun, ClientArgs, Exit, Failure, Session};
use crate::app::notices::note;
use crate::client::{CallError, RETRYABLE};
use crate::domain::limits::{DEQUEUE_MESSAGES_MAX, DEQUEUE_WAIT_MAX};
use crate::proto::queue::v1 as pb;
use job::{Job, Outcome};

/// Run a program for each message of a queue: the payload on stdin, exit code 0 completes it.
///
/// The command is run by `sh -c`. Exit code 0 completes the message; any other one fails it with that code and the last line
/// of stderr, and the queue tries it again while attempts are left. 126 and 127, which say that the command cannot be run,
/// release the message and end the worker. The lease is renewed at a third of its time; when it is lost or the message is to
/// be canceled, the command gets SIGTERM, five seconds later SIGKILL. SIGTERM or ctrl-c stops taking messages and waits for
/// what runs; a second one ends that too and releases its messages.
///
/// The command finds in its environment TALLYSTONE_QUEUE, TALLYSTONE_MESSAGE_ID, TALLYSTONE_MESSAGE_KEY, TALLYSTONE_TYPE,
/// TALLYSTONE_PRIORITY, TALLYSTONE_ATTEMPT (from 1), TALLYSTONE_ATTEMPTS_LEFT, TALLYSTONE_FENCE, TALLYSTONE_LEASE_TOKEN,
/// TALLYSTONE_METADATA (as JSON) and TALLYSTONE_METADATA_KEY for each key of the metadata, in capitals.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tallystone work -q emails --exec 'wc -c' --until-empty")]
pub struct WorkArgs {
    /// The queue.
    #[arg(short, long, value_name = "NAME")]
    queue: String,
    /// The command that does the work, for a shell.
    #[arg(short, long, value_name = "CMD")]
    exec: String,
    /// How many messages are worked on at once.
    #[arg(short, long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    concurrency: u16,
    /// How long a lease lasts unless it is renewed [default: as the message or the queue says].
    #[arg(long, value_name = "TIME", value_parser = duration)]
    lease: Option<Duration>,
    /// Only messages with this metadata; may be repeated, up to 4.
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    meta: Vec<(String, String)>,
    /// End when no message is ready; exits with 6 if any message failed.
    #[arg(long)]
    until_empty: bool,
    #[command(flatten)]
    client: ClientArgs,
}

/// The pauses after a dequeue that failed: the first, and the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_LONGEST: Duration = Duration::from_secs(15);

/// A dequeue that is out.
type Taking = Pin<Box<dyn Future<Output = Result<pb::DequeueResponse, CallError>> + Send>>;

/// How far a worker is.
struct Worker {
    session: Arc<Session>,
    args: Arc<WorkArgs>,
    jobs: JoinSet<Outcome>,
    /// Says that what runs has to end.
    ending: watch::Sender<bool>,
    /// The pause before the next dequeue.
    pause: Duration,
    /// Whether nothing is ready until something that runs has ended.
    is_resting: bool,
    tally: Tally,
}

/// What became of the messages so far.
#[derive(Default)]
struct Tally {
    completed: i64,
    failed: i64,
    others: i64,
    /// Why the worker cannot go on.
    broken: Option<Failure>,
}

/// Whether to go on taking messages.
#[derive(PartialEq, Eq)]
enum Next {
    Take,
    End,
}

impl WorkArgs {
    pub async fn run(self, before: &BeforeNoun) -> Result<(), Failure> {
        let session = Arc::new(self.client.clone().open(before)?);
        let (ending, _) = watch::channel(false);
        let jobs = JoinSet::new();
        let (args, tally) = (Arc::new(self), Tally::default());
        let mut worker = Worker { session, args, jobs, ending, pause: Duration::ZERO, is_resting: false, tally };
        let mut stop = Stop::listen()?;
        worker.take_until(&mut stop).await;
        worker.finish(&mut stop).await;
        worker.tally.result(worker.args.until_empty)
    }
}

impl Worker {
    /// Takes messages while there is room, until a signal, the end of the queue, or a failure that no repeat mends.
    async fn take_until(&mut self, stop: &mut Stop) {
        let mut taking: Option<Taking> = None;
        let mut next = Next::Take;
        while next == Next::Take && self.tally.broken.is_none() {
            let free = usize::from(self.args.concurrency) - self.jobs.len();
            if taking.is_none() && free > 0 && !self.is_resting {
                taking = Some(self.taking(free));
            }
            let answer = async {
                match &mut taking {
                    Some(taking) => taking.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.asked() => {
                    note(&format!("stopping; {} in work, a second signal gives them back", messages(self.running())));
                    next = Next::End;
                }
                Some(outcome) = self.jobs.join_next() => {
                    self.is_resting = false;
                    self.tally.count(outcome);
                }
                answer = answer => {
                    taking = None;
                    next = self.taken(answer);
                }
            }
        }
    }

    /// A dequeue of so many messages. One that waits is dropped with the worker, and the server keeps its messages.
    fn taking(&self, free: usize) -> Taking {
        let wait = if self.args.until_empty { Duration::ZERO } else { DEQUEUE_WAIT_MAX };
        let request = pb::DequeueRequest {
            queue: self.args.queue.clone(),
            max_messages: i32::try_from(free.min(DEQUEUE_MESSAGES_MAX)).unwrap_or(1),
            lease_duration: self.args.lease.map(write_duration),
            wait: (!wait.is_zero()).then(|| write_duration(wait)),
            filter: self.args.meta.iter().cloned().collect(),
            ..Default::default()
        };
        let session = Arc::clone(&self.session);
        let (within, pause) = (session.timeout + wait, self.pause);
        Box::pin(async move {
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
                // Finds the server to ask, if another one has to be; what is wrong, the dequeue tells.
                let _ = session.depth(&request.queue).await;
            }
            session.dequeue(request, within).await
        })
    }

    fn taken(&mut self, answer: Result<pb::DequeueResponse, CallError>) -> Next {
        match answer {
            Ok(taken) => {
                self.pause = Duration::ZERO;
                let is_empty = taken.leases.is_empty() && taken.completeness().as_str_name().ends_with("COMPLETE");
                for lease in taken.leases {
                    let (session, args) = (Arc::clone(&self.session), Arc::clone(&self.args));
                    let job = Job::new(session, &args.queue, &args.exec, lease, self.ending.subscribe());
                    self.jobs.spawn(job.run());
                }
                if is_empty && self.args.until_empty {
                    // What runs may fail and be ready again at once.
                    self.is_resting = true;
                    return if self.jobs.is_empty() { Next::End } else { Next::Take };
                }
                Next::Take
            }
            Err(error) if may_pass(&error) && !self.args.until_empty => {
                self.pause = (self.pause * 2).clamp(PAUSE_FIRST, PAUSE_LONGEST);
                let why = self.session.failed(&error);
                note(&format!("cannot take messages, trying again in {:?}: {why}", self.pause));
                Next::Take
            }
            Err(error) => {
                self.tally.broken = Some(self.session.failed(&error));
                Next::End
            }
        }
    }

    /// Waits for what runs; a signal ends it.
    async fn finish(&mut self, stop: &mut Stop) {
        loop {
            tokio::select! {
                () = stop.asked(), if !*self.ending.borrow() => {
                    note(&format!("giving {} back", messages(self.running())));
                    self.ending.send_replace(true);
                }
                outcome = self.jobs.join_next() => match outcome {
                    Some(outcome) => self.tally.count(outcome),
                    None => return,
                }
            }
        }
    }

    fn running(&self) -> i64 {
        i64::try_from(self.jobs.len()).unwrap_or(i64::MAX)
    }
}

impl Tally {
    fn count(&mut self, outcome: Result<Outcome, tokio::task::JoinError>) {
        match outcome {
            Ok(Outcome::Completed) => self.completed += 1,
            Ok(Outcome::Failed) => self.failed += 1,
            Ok(Outcome::GivenUp) => self.others += 1,
            Ok(Outcome::CannotRun(why)) => {
                self.others += 1;
                self.broken.get_or_insert_with(|| Failure::usage(why));
            }
            Err(error) => {
                self.others += 1;
                self.broken.get_or_insert_with(|| Failure::other(format!("the work on a message broke off: {error}")));
            }
        }
    }

    fn result(self, until_empty: bool) -> Result<(), Failure> {
        note(&format!("{} completed, {} failed, {} given up or lost", self.completed, self.failed, self.others));
        match self.broken {
            Some(failure) => Err(failure),
            None if until_empty && self.failed > 0 => Err(Failure::new(
                Exit::Partial,
                format!("{} failed; `tallystone dlq ls` lists those out of attempts", messages(self.failed)),
            )),
            None => Ok(()),
        }
    }
}

/// The signals that ask a worker to stop.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    fn listen() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::other(format!("cannot listen to signals: {error}")));
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn asked(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Whether the same dequeue may succeed later: the server is away or busy, or the queue is blocked for now.
fn may_pass(error: &CallError) -> bool {
    match error.reason() {
        Some(reason) => reason == "DEQUEUE_BLOCKED" || RETRYABLE.contains(&reason.as_str()),
        None => error.got_no_answer() || error.is_unreachable(),
    }
}
