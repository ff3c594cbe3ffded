//! `work`: runs any program as a worker. The client library's worker leases messages, renews and settles them. Here
//! each message is passed to a command, and the exit code decides the settlement.
//!
//! The first SIGTERM or ctrl-c stops leasing and lets running commands finish. The second ends them and releases their
//! messages. `job` handles one message, `child` its process.

mod child;
mod job;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::arguments::{distinct, lease, pair};
use crate::{ClientArgs, ClientContext, Exit, Failure, GlobalArgs};
use job::JobCommand;
use tallystone_api::grpc::saturating_i64;
use tallystone_app::notices::{print_notice, single_line};
use tallystone_app::units::messages;
use tallystone_client::queues::{Shutdown, StopReason, WorkSummary, Worker, WorkerError, WorkerEvent};

/// Run a program for each message of a queue: the payload on stdin, exit code 0 completes it.
///
/// The command runs in `sh -c`. Exit code 0 completes the message. Codes 126 and 127 mean that the command cannot run:
/// the message is released and the worker stops. Any other code fails the message with that code and the last line of
/// stderr; the queue retries it while attempts are left. Leases are renewed at a third of their duration. If a lease is
/// lost or the message is canceled, the command gets SIGTERM, and SIGKILL five seconds later. On SIGTERM or ctrl-c the
/// worker takes no more messages and waits for running commands. A second signal stops the commands and releases their
/// messages.
///
/// The environment of the command has TALLYSTONE_QUEUE, TALLYSTONE_MESSAGE_ID, TALLYSTONE_MESSAGE_KEY, TALLYSTONE_TYPE,
/// TALLYSTONE_PRIORITY, TALLYSTONE_ATTEMPT (from 1), TALLYSTONE_ATTEMPTS_LEFT, TALLYSTONE_FENCE,
/// TALLYSTONE_LEASE_TOKEN, TALLYSTONE_METADATA (as JSON), and TALLYSTONE_METADATA_KEY for each metadata key, in
/// capitals.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  tallystone work -q emails --exec 'wc -c' --until-empty")]
pub struct WorkArgs {
    /// The queue.
    #[arg(short, long, value_name = "NAME")]
    queue: String,
    /// The shell command to run for each message.
    #[arg(short, long, value_name = "CMD", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    exec: String,
    /// The maximum number of messages in progress at the same time.
    #[arg(short, long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    concurrency: u16,
    /// The lease duration, renewed at a third of it, 1 s to 12 h; cancel requests are noticed at each renewal [default:
    /// 15 s].
    #[arg(long, value_name = "TIME", value_parser = lease)]
    lease: Option<Duration>,
    /// Only messages with this metadata; may be repeated, up to 4.
    #[arg(long, visible_alias = "filter", value_name = "KEY=VALUE", value_parser = pair)]
    meta: Vec<(String, String)>,
    /// The label of this worker, up to 256 bytes. A restart with the same label recovers its leased messages at once.
    #[arg(long, default_value = "", hide_default_value = true, value_name = "TEXT", allow_hyphen_values = true)]
    label: String,
    /// Stop when no message is ready; exits with 6 if any message failed.
    #[arg(long)]
    until_empty: bool,
    #[command(flatten)]
    client: ClientArgs,
}

/// The grace period of a shutdown, long enough for SIGTERM and, five seconds later, SIGKILL.
const GRACE: Duration = Duration::from_secs(10);
/// The default session lease. Heartbeats are sent at a third of it, which bounds the delay of a cancel request.
const SESSION_LEASE: Duration = Duration::from_secs(15);

impl WorkArgs {
    pub async fn run(self, global: &GlobalArgs) -> Result<(), Failure> {
        distinct(&self.meta)?;
        let session = Arc::new(self.client.open(global)?);
        let shutdown = Shutdown::default();
        let commands = JobCommand::new(self.exec.clone(), self.queue.clone(), session.server.clone(), shutdown.clone());
        let mut stop = WorkerStopSignals::listen()?;
        let signals = async {
            stop.wait().await;
            shutdown.stop_leasing();
            stop.wait().await;
            shutdown.abort_jobs();
            std::future::pending::<Infallible>().await
        };
        let worker = self.worker(Arc::clone(&session), Arc::clone(&commands));
        let shared = Arc::clone(&commands);
        let ended = tokio::select! {
            biased;
            ended = worker.run(move |job| Arc::clone(&shared).run(job), &shutdown) => ended,
            never = signals => match never {},
        };
        let (summary, error) = match ended {
            Ok(summary) => (summary, None),
            Err(WorkerError { summary, error }) => (summary, Some(session.failed(&error))),
        };
        let broken = commands.broken().map(Failure::usage).or(error);
        result(summary, broken, self.until_empty)
    }

    fn worker(&self, session: Arc<ClientContext>, commands: Arc<JobCommand>) -> Worker {
        let mut worker = session.client.worker(&self.queue);
        worker = worker.concurrency(usize::from(self.concurrency)).grace(GRACE);
        worker = worker.session_lease(self.lease.unwrap_or(SESSION_LEASE)).label(self.label.clone());
        if let Some(lease) = self.lease {
            worker = worker.lease(lease);
        }
        for (key, value) in &self.meta {
            worker = worker.filter(key, value);
        }
        if self.until_empty {
            worker = worker.until_empty();
        }
        worker.observed(move |event| print_notice(&event_text(&session, &commands, event)))
    }
}

/// Describes an event of the worker.
fn event_text(session: &ClientContext, commands: &JobCommand, event: WorkerEvent<'_>) -> String {
    match event {
        WorkerEvent::LeaseFailed { error, pause } => {
            format!("cannot lease messages, retrying in {pause:?}: {}", session.failed(error))
        }
        WorkerEvent::StopRequested { message_id, reason: StopReason::CancelRequested } => {
            format!("{}: cancel requested; ending its command", single_line(message_id))
        }
        WorkerEvent::StopRequested { message_id, reason: StopReason::LeaseLost | StopReason::Stopped } => {
            format!("{}: the lease is lost; ending its command", single_line(message_id))
        }
        WorkerEvent::SettleDelayed { message_id, error } => {
            format!(
                "{}: cannot be settled yet, trying again while its lease may last: {error}",
                single_line(message_id)
            )
        }
        WorkerEvent::SettleFailed { message_id, error } => {
            format!("{}: gave up settling it; it is served again when its lease ends: {error}", single_line(message_id))
        }
        // No signal was received, so the text does not mention a second one.
        WorkerEvent::Finishing(count) if commands.is_broken() => {
            format!("stopping: the command cannot be run; {} in progress", messages(saturating_i64(count)))
        }
        WorkerEvent::Finishing(count) => {
            format!("stopping; {} in progress, a second signal releases them", messages(saturating_i64(count)))
        }
        WorkerEvent::Ending(count) => format!("releasing {}", messages(saturating_i64(count))),
    }
}

fn result(summary: WorkSummary, broken: Option<Failure>, until_empty: bool) -> Result<(), Failure> {
    let WorkSummary { completed, failed, others } = summary;
    print_notice(&format!("{completed} completed, {failed} failed, {others} released or lost"));
    match broken {
        Some(failure) => Err(failure),
        None if until_empty && failed > 0 => Err(Failure::new(
            Exit::Partial,
            format!(
                "{} failed; count those out of attempts with `tallystone dlq ls -q QUEUE`",
                messages(saturating_i64(failed))
            ),
        )),
        None => Ok(()),
    }
}

/// The signals that ask a worker to stop.
struct WorkerStopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl WorkerStopSignals {
    fn listen() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::other(format!("cannot listen for signals: {error}")));
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
