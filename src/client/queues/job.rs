//! The work on one message: the handler runs until it ends or has to end, and its result settles the lease.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use crate::error::{RETRYABLE, is_retryable};
use crate::queues::message::{BadPayload, duration, time_of};
use crate::queues::queues_on;
use crate::queues::shutdown::{Phase, Shutdown};
use crate::retry::CallKind;
use crate::{CallError, Client};
use tallystone_proto::queue::v1 as pb;

/// The reason why work on a message should end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopReason {
    /// Its lease is over: another worker may have the message by now.
    LeaseLost,
    /// A cancel of the message was requested.
    CancelRequested,
    /// The worker is shutting down.
    Stopped,
}

/// The result of the work on a message.
#[derive(Clone, PartialEq, Debug)]
pub enum Outcome {
    /// It is complete.
    Complete,
    /// The message is canceled.
    Cancel,
    /// It failed, and is retried while attempts are left.
    Fail {
        /// The signature of the error, at most 1,024 bytes.
        signature: String,
        /// The text of the error, at most 1,024 bytes.
        text: String,
        /// The delay before the next attempt; by the retry policy of the queue if none.
        delay: Option<Duration>,
    },
    /// The message is released without an attempt.
    Release,
}

impl Outcome {
    /// A failure that is retried by the retry policy of the queue. Texts are cut to the bounds of the service.
    pub fn failed(signature: impl Into<String>, text: impl Into<String>) -> Self {
        Self::Fail { signature: cut(signature.into()), text: cut(text.into()), delay: None }
    }
}

/// The pauses after a failed call: the first, and the longest.
pub(super) const PAUSE_FIRST: Duration = Duration::from_millis(500);
pub(super) const PAUSE_LONGEST: Duration = Duration::from_secs(15);
/// How long a settlement is tried beyond the time for which the message was leased: a store that was away lets leases
/// last longer.
const SETTLED_LATE_MAX: Duration = Duration::from_mins(5);
/// The bound of an error's signature or text, in bytes.
const ERROR_TEXT_BYTES_MAX: usize = 1_024;

fn cut(mut text: String) -> String {
    text.truncate(text.floor_char_boundary(ERROR_TEXT_BYTES_MAX));
    text
}

/// A message in work.
#[derive(Clone, Debug)]
pub struct Job {
    /// The lease, with the message.
    pub lease: pb::Lease,
    signal: watch::Receiver<Option<StopReason>>,
}

impl Job {
    pub(super) fn new(lease: pb::Lease, signal: watch::Receiver<Option<StopReason>>) -> Self {
        Self { lease, signal }
    }

    /// The message.
    pub fn message(&self) -> &pb::Message {
        static NONE: std::sync::OnceLock<pb::Message> = std::sync::OnceLock::new();
        self.lease.message.as_ref().unwrap_or_else(|| NONE.get_or_init(pb::Message::default))
    }

    /// The payload as a value.
    pub fn value<T: DeserializeOwned>(&self) -> Result<T, BadPayload> {
        Ok(serde_json::from_slice(&self.message().payload)?)
    }

    /// Waits until the work should end. Work that does not wait for this is dropped after its grace period.
    pub async fn must_end(&mut self) -> StopReason {
        wait_for_end(&mut self.signal).await
    }
}

/// Waits for a signal.
async fn wait_for_end(signal: &mut watch::Receiver<Option<StopReason>>) -> StopReason {
    // A worker that is gone has nobody to settle for.
    signal.wait_for(Option::is_some).await.ok().and_then(|why| *why).unwrap_or(StopReason::Stopped)
}

/// The state of a message, as its worker knows it.
#[derive(Debug)]
pub(super) enum SettleOutcome {
    /// It is completed.
    Completed,
    /// It failed.
    Failed,
    /// It was canceled or released.
    GivenUp,
    /// Its lease was lost before.
    Lost,
    /// It could not be settled, and returns when its lease expires.
    Unsettled(CallError),
    /// The service refused the settlement for now.
    Busy(String),
    /// The settlement was refused.
    Refused(String),
}

/// The start of a job.
pub(super) struct JobStart {
    pub client: Client,
    pub queue: String,
    pub lease: pb::Lease,
    pub grace: Duration,
    pub signal: watch::Receiver<Option<StopReason>>,
}

/// The shutdown that ends the settlement of a job, and a function that hears of a first try that failed.
pub(super) struct SettleWatch {
    pub shutdown: Shutdown,
    /// Is told why the first try failed, if there is another one.
    pub delayed: Box<dyn Fn(&str) + Send + Sync>,
}

/// Works on a message and settles it.
pub(super) async fn run_job<W>(start: JobStart, watch: SettleWatch, handler: impl FnOnce(Job) -> W) -> SettleOutcome
where
    W: Future<Output = Outcome>,
{
    let JobStart { client, queue, lease, grace, mut signal } = start;
    let token = lease.lease_token.clone();
    let leased_for = time_of(lease.lease_expires_in);
    let job = Job::new(lease, signal.clone());
    let mut running = std::pin::pin!(AssertUnwindSafe(async { handler(job).await }).catch_unwind());
    let ended = tokio::select! {
        biased;
        // It may have heard the signal first.
        ended = &mut running => (*signal.borrow(), Some(ended)),
        _ = wait_for_end(&mut signal) => {
            let said = tokio::time::timeout(grace, &mut running).await.ok();
            // A weightier word may have come meanwhile; without a word the worker is gone.
            (Some(signal.borrow().unwrap_or(StopReason::Stopped)), said)
        }
    };
    let said =
        ended.1.map(|ended| ended.unwrap_or_else(|_panic| Outcome::failed("panic", "the worker's code panicked")));
    let outcome = match (ended.0, said) {
        (None, Some(said)) => said,
        // Done is done; the service takes it if nobody else had the message since.
        (Some(_), Some(Outcome::Complete)) => Outcome::Complete,
        (Some(StopReason::LeaseLost), _) => return SettleOutcome::Lost,
        (Some(StopReason::CancelRequested), _) => Outcome::Cancel,
        (Some(StopReason::Stopped), Some(said @ (Outcome::Cancel | Outcome::Release))) => said,
        (Some(StopReason::Stopped), _) | (None, None) => Outcome::Release,
    };
    // From here on the service says whether the lease is lost.
    drop(signal);
    settle_in_time(&client, settlement(queue, token, outcome), leased_for, &watch).await
}

/// Settles a lease. What a busy or absent service refuses is sent again, less and less often, until the service says
/// that the lease is lost or the worker is ended. Otherwise work that is done would be done again. The worker's own
/// clock does not end it: a store that was away lets leases last longer.
async fn settle_in_time(
    client: &Client,
    (request, settled): (pb::SettleMessagesRequest, SettleOutcome),
    leased_for: Duration,
    watch: &SettleWatch,
) -> SettleOutcome {
    let (began, mut pause, mut is_first) = (Instant::now(), PAUSE_FIRST, true);
    loop {
        let refused = match settle(client, &request).await {
            Ok(()) => return settled,
            Err(refused) => refused,
        };
        let why = match &refused {
            SettleOutcome::Unsettled(error) if is_retryable(&error.status) => error.to_string(),
            SettleOutcome::Busy(why) => why.clone(),
            SettleOutcome::Unsettled(_)
            | SettleOutcome::Completed
            | SettleOutcome::Failed
            | SettleOutcome::GivenUp
            | SettleOutcome::Lost
            | SettleOutcome::Refused(_) => return refused,
        };
        if began.elapsed() + pause >= leased_for + SETTLED_LATE_MAX {
            return refused;
        }
        if std::mem::take(&mut is_first) {
            (watch.delayed)(&why);
        }
        tokio::select! {
            biased;
            _ = watch.shutdown.wait_beyond(Phase::Finishing) => return refused,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(PAUSE_LONGEST);
    }
}

/// The call that settles a lease so, and what the message then is.
fn settlement(queue: String, lease_token: String, outcome: Outcome) -> (pb::SettleMessagesRequest, SettleOutcome) {
    let (verb, delay, error, settled) = match outcome {
        Outcome::Complete => (pb::Verb::Complete, None, None, SettleOutcome::Completed),
        Outcome::Cancel => (pb::Verb::Cancel, None, None, SettleOutcome::GivenUp),
        Outcome::Release => (pb::Verb::Release, None, None, SettleOutcome::GivenUp),
        Outcome::Fail { signature, text, delay } => {
            let error = pb::WorkerError { signature, text };
            (pb::Verb::Fail, delay.map(duration), Some(error), SettleOutcome::Failed)
        }
    };
    let items = vec![pb::Settlement { lease_token, verb: verb.into(), delay, error, ..Default::default() }];
    (pb::SettleMessagesRequest { queue, items }, settled)
}

/// Settles a lease within the budget of a call; a repeat answers as the first.
async fn settle(client: &Client, request: &pb::SettleMessagesRequest) -> Result<(), SettleOutcome> {
    let call = |channel, request| async move { queues_on(channel).settle_messages(request).await };
    let answer = client.call_with_retries(CallKind::Change, request, call).await.map_err(SettleOutcome::Unsettled)?;
    match answer.results.into_iter().find_map(|result| result.error) {
        None => Ok(()),
        Some(error) if error.reason == "LEASE_LOST" => Err(SettleOutcome::Lost),
        Some(error) if RETRYABLE.contains(&&*error.reason) => Err(SettleOutcome::Busy(error.message)),
        Some(error) => Err(SettleOutcome::Refused(error.message)),
    }
}
