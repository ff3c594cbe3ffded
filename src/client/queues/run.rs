//! The worker loop: leases messages while it has capacity, works on each, and renews all leases with one heartbeat.
//!
//! A dequeue waits inside the server. After a retryable failure the worker backs off and sends the same call again
//! under its number, so the messages of a lost answer are recovered. The loop owns all its futures, and its tasks end
//! with it.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::{JoinError, JoinSet};

use crate::CallError;
use crate::error::RETRYABLE;
use crate::queues::job::{
    Job, JobStart, Outcome, PAUSE_FIRST, PAUSE_LONGEST, SettleOutcome, SettleWatch, StopReason, run_job,
};
use crate::queues::leases::Leases;
use crate::queues::message::{duration, time_of};
use crate::queues::queues_on;
use crate::queues::session::{self, SessionFailure, WorkerSession};
use crate::queues::shutdown::{Phase, Shutdown};
use crate::queues::worker::{WorkSummary, Worker, WorkerError, WorkerEvent};
use tallystone_proto::queue::v1 as pb;

/// How long a dequeue waits for a message inside the server; the server's maximum.
const WAIT: Duration = Duration::from_secs(20);
/// The most messages of one dequeue; the service accepts no more.
const DEQUEUE_MESSAGES_MAX: usize = 100;

/// The end of a job.
struct JobEnd {
    pub token: String,
    pub id: String,
    pub settled: SettleOutcome,
}

/// Starts a job.
type JobSpawner = Box<dyn Fn(&mut JoinSet<JobEnd>, JobStart) + Send>;
type CallFuture<A> = Pin<Box<dyn Future<Output = Result<A, CallError>> + Send>>;

/// The answer of a dequeue, or of the call that opens the session for it.
enum TakeResponse {
    Session(pb::OpenSessionResponse),
    Leases(pb::DequeueResponse),
}

/// A running worker.
struct WorkerRun<'w> {
    worker: &'w Worker,
    start: JobSpawner,
    jobs: JoinSet<JobEnd>,
    leases: Leases,
    ids: HashMap<String, String>,
    session: Option<WorkerSession>,
    take_call: Option<CallFuture<TakeResponse>>,
    heartbeat_call: Option<CallFuture<pb::HeartbeatResponse>>,
    /// When the pending heartbeat was sent, and the last received call it reports.
    sent_heartbeat: (Instant, Option<u64>),
    heartbeat_due: Instant,
    pause: Duration,
    /// Whether no message is ready until a running job has ended.
    waits_for_job_end: bool,
    is_done: bool,
    phase: Phase,
    pub summary: WorkSummary,
    pub broken: Option<CallError>,
}

/// The message id of a lease.
fn id_of(lease: &pb::Lease) -> String {
    lease.message.as_ref().map(|message| message.message_id.clone()).unwrap_or_default()
}

impl Worker {
    /// Works on messages until the shutdown, the end of the queue if requested, or an error that no retry cures. The
    /// result of `handler` settles the message; a handler that panics fails it.
    pub async fn run<F, W>(&self, handler: F, shutdown: &Shutdown) -> Result<WorkSummary, WorkerError>
    where
        F: Fn(Job) -> W + Send + Sync + 'static,
        W: Future<Output = Outcome> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let (observer, ending) = (Arc::clone(&self.observer), shutdown.clone());
        let start: JobSpawner = Box::new(move |jobs, job| {
            let (handler, id) = (Arc::clone(&handler), id_of(&job.lease));
            let token = job.lease.lease_token.clone();
            let (observer, message_id) = (Arc::clone(&observer), id.clone());
            let delayed = move |error: &str| observer(WorkerEvent::SettleDelayed { message_id: &message_id, error });
            let watch = SettleWatch { shutdown: ending.clone(), delayed: Box::new(delayed) };
            jobs.spawn(async move {
                let settled = run_job(job, watch, |job| handler(job)).await;
                JobEnd { token, id, settled }
            });
        });
        let mut run = Box::new(WorkerRun::new(self, start));
        Box::pin(run.run_until_done(shutdown)).await;
        run.close().await;
        match run.broken {
            None => Ok(run.summary),
            Some(error) => Err(WorkerError { summary: run.summary, error }),
        }
    }
}

async fn await_call<A>(call: &mut Option<CallFuture<A>>) -> Result<A, CallError> {
    match call {
        Some(call) => call.await,
        None => std::future::pending().await,
    }
}

impl<'w> WorkerRun<'w> {
    pub fn new(worker: &'w Worker, start: JobSpawner) -> Self {
        let now = Instant::now();
        Self {
            worker,
            start,
            jobs: JoinSet::new(),
            leases: Leases::default(),
            ids: HashMap::new(),
            session: None,
            take_call: None,
            heartbeat_call: None,
            sent_heartbeat: (now, None),
            heartbeat_due: now,
            pause: Duration::ZERO,
            waits_for_job_end: false,
            is_done: false,
            phase: Phase::Running,
            summary: WorkSummary::default(),
            broken: None,
        }
    }

    pub async fn run_until_done(&mut self, shutdown: &Shutdown) {
        loop {
            let takes = self.phase == Phase::Running && self.broken.is_none() && !self.is_done;
            if !takes {
                self.take_call = None;
                if self.jobs.is_empty() {
                    return;
                }
            } else if self.take_call.is_none() && self.jobs.len() < self.worker.concurrency && !self.waits_for_job_end {
                self.take_call = Some(self.next_take());
            }
            self.start_heartbeat();
            let wake = self.wake_after();
            let Self { jobs, take_call: taking, heartbeat_call: beating, phase, .. } = self;
            tokio::select! {
                biased;
                phase = shutdown.wait_beyond(*phase), if *phase < Phase::Ending => self.advance_shutdown(phase),
                Some(over) = jobs.join_next() => self.job_ended(over),
                beaten = await_call(beating) => self.handle_heartbeat(beaten),
                took = await_call(taking) => self.handle_take(took),
                () = tokio::time::sleep(wake) => {}
            }
            self.end_expired();
        }
    }

    /// The time until the next timed event.
    fn wake_after(&self) -> Duration {
        let now = Instant::now();
        let beat = self.needs_heartbeat().then(|| self.heartbeat_due.saturating_duration_since(now));
        [beat, self.leases.next_expiry(now)].into_iter().flatten().min().unwrap_or(WAIT)
    }

    fn advance_shutdown(&mut self, phase: Phase) {
        if self.phase == Phase::Running {
            (self.worker.observer)(WorkerEvent::Finishing(self.jobs.len()));
        }
        if phase == Phase::Ending {
            (self.worker.observer)(WorkerEvent::Ending(self.jobs.len()));
            self.leases.signal_all(StopReason::Stopped);
        }
        self.phase = phase;
    }

    /// The next attempt of a dequeue, after the pause.
    fn next_take(&mut self) -> CallFuture<TakeResponse> {
        let worker = self.worker;
        let (client, pause) = (worker.client.clone(), self.pause);
        let time = client.policy.attempt_max;
        let Some(session) = &mut self.session else {
            let request = session::opening(&worker.label, worker.session_lease);
            return Box::pin(async move {
                tokio::time::sleep(pause).await;
                session::open(&client, time, request).await.map(TakeResponse::Session)
            });
        };
        let wait = if worker.until_empty { Duration::ZERO } else { WAIT };
        let free = (worker.concurrency - self.jobs.len()).min(DEQUEUE_MESSAGES_MAX);
        let request = session.dequeue(pb::DequeueRequest {
            queue: worker.queue.clone(),
            max_messages: i32::try_from(free).unwrap_or(1),
            lease_duration: worker.lease.map(duration),
            wait: Some(duration(wait)),
            filter: worker.filter.clone(),
            ..pb::DequeueRequest::default()
        });
        Box::pin(async move {
            tokio::time::sleep(pause).await;
            let call = |channel, request| async move { queues_on(channel).dequeue(request).await };
            session::call_once(&client, time + wait, &request, call).await.map(TakeResponse::Leases)
        })
    }

    fn handle_take(&mut self, took: Result<TakeResponse, CallError>) {
        self.take_call = None;
        match took {
            Ok(TakeResponse::Session(opened)) => {
                self.pause = Duration::ZERO;
                self.session = Some(WorkerSession::new(opened, self.worker.session_lease));
                self.leases.forget_session();
            }
            Ok(TakeResponse::Leases(taken)) => self.start_jobs(taken),
            Err(error) => self.handle_failure(error),
        }
    }

    fn start_jobs(&mut self, taken: pb::DequeueResponse) {
        self.pause = Duration::ZERO;
        let is_all = taken.completeness() == pb::dequeue_response::Completeness::Complete;
        let is_empty = taken.leases.is_empty() && is_all;
        let Some(session) = &mut self.session else { return };
        let call = session.response_arrived();
        let began = Instant::now();
        for lease in taken.leases {
            let until = began + time_of(lease.lease_expires_in);
            let signal = self.leases.add(lease.lease_token.clone(), call, until);
            self.ids.insert(lease.lease_token.clone(), id_of(&lease));
            let (client, queue) = (self.worker.client.clone(), self.worker.queue.clone());
            (self.start)(&mut self.jobs, JobStart { client, queue, lease, grace: self.worker.grace, signal });
        }
        if self.leases.any_expires_before(self.heartbeat_due + self.worker.session_lease / 3) {
            self.heartbeat_due = Instant::now();
        }
        if is_empty && self.worker.until_empty {
            // A running job may fail and its message be ready again at once.
            self.waits_for_job_end = true;
            self.is_done = self.jobs.is_empty();
        }
    }

    fn handle_failure(&mut self, error: CallError) {
        let fate = self.session.as_mut().map_or(SessionFailure::StillOpen, |session| session.note_failure(&error));
        match fate {
            SessionFailure::Replaced => {
                self.signal_all_lost();
                self.broken = Some(error);
            }
            SessionFailure::Ended => self.session_over(),
            SessionFailure::StillOpen if is_transient(&error) && !self.worker.until_empty => {
                self.pause = (self.pause * 2).clamp(PAUSE_FIRST, PAUSE_LONGEST);
                (self.worker.observer)(WorkerEvent::LeaseFailed { error: &error, pause: self.pause });
            }
            SessionFailure::StillOpen => self.broken = Some(error),
        }
    }

    /// Drops a session that is over, with its leases.
    fn session_over(&mut self) {
        (self.session, self.heartbeat_call) = (None, None);
        self.signal_all_lost();
    }

    /// Whether there are leases or a session to renew.
    fn needs_heartbeat(&self) -> bool {
        self.session.is_some() && self.leases.len() > 0 && self.heartbeat_call.is_none()
    }

    fn start_heartbeat(&mut self) {
        if !self.needs_heartbeat() || Instant::now() < self.heartbeat_due {
            return;
        }
        let Some(session) = &self.session else { return };
        let (client, request) = (self.worker.client.clone(), session.heartbeat());
        let (time, lease) = (client.policy.attempt_max.min(session.lease), session.lease);
        self.sent_heartbeat = (Instant::now(), session.received);
        self.heartbeat_due = Instant::now() + lease / 3;
        self.heartbeat_call = Some(Box::pin(async move {
            let call = |channel, request| async move { queues_on(channel).heartbeat(request).await };
            session::call_once(&client, time, &request, call).await
        }));
    }

    fn handle_heartbeat(&mut self, beaten: Result<pb::HeartbeatResponse, CallError>) {
        self.heartbeat_call = None;
        match beaten {
            Ok(beaten) => {
                let (sent, received) = self.sent_heartbeat;
                self.leases.renewed(sent + time_of(beaten.session_expires_in), received);
                for token in &beaten.cancel_requests {
                    self.signal_job(token, StopReason::CancelRequested);
                }
            }
            Err(error) => {
                match self.session.as_mut().map_or(SessionFailure::StillOpen, |session| session.note_failure(&error)) {
                    SessionFailure::Replaced => {
                        self.signal_all_lost();
                        self.broken = Some(error);
                    }
                    SessionFailure::Ended => self.session_over(),
                    // The heartbeat is retried while the leases last.
                    SessionFailure::StillOpen => self.heartbeat_due = Instant::now() + self.worker.session_lease / 10,
                }
            }
        }
    }

    fn signal_job(&self, token: &str, reason: StopReason) {
        if self.leases.signal_end(token, reason)
            && let Some(message_id) = self.ids.get(token)
        {
            (self.worker.observer)(WorkerEvent::StopRequested { message_id, reason });
        }
    }

    fn signal_all_lost(&self) {
        for token in self.ids.keys() {
            self.signal_job(token, StopReason::LeaseLost);
        }
    }

    /// Signals the jobs whose leases have expired.
    fn end_expired(&mut self) {
        for token in self.leases.expired(Instant::now()) {
            self.signal_job(&token, StopReason::LeaseLost);
        }
    }

    fn job_ended(&mut self, over: Result<JobEnd, JoinError>) {
        self.waits_for_job_end = false;
        // A panic of the handler is caught inside the task, so no task panics.
        let Ok(JobEnd { token, id, settled }) = over else {
            self.summary.others += 1;
            return;
        };
        self.leases.remove(&token);
        self.ids.remove(&token);
        let settle_failed = |error: &str| (self.worker.observer)(WorkerEvent::SettleFailed { message_id: &id, error });
        match settled {
            SettleOutcome::Completed => self.summary.completed += 1,
            SettleOutcome::Failed => self.summary.failed += 1,
            SettleOutcome::GivenUp | SettleOutcome::Lost => self.summary.others += 1,
            SettleOutcome::Unsettled(error) => {
                settle_failed(&error.to_string());
                self.summary.others += 1;
            }
            SettleOutcome::Busy(why) | SettleOutcome::Refused(why) => {
                settle_failed(&why);
                self.summary.others += 1;
            }
        }
    }

    /// Closes the session, which also releases leases of an answer that nobody awaited.
    pub async fn close(&mut self) {
        let Some(session) = self.session.take() else { return };
        let (client, request) = (&self.worker.client, session.close());
        let call = |channel, request| async move { queues_on(channel).close_session(request).await };
        // Leases that cannot be released expire by themselves.
        let _ = session::call_once(client, client.policy.attempt_max, &request, call).await;
    }
}

/// Whether the same call may succeed later: the server is unreachable or busy, or the queue is blocked for now.
fn is_transient(error: &CallError) -> bool {
    match error.reason() {
        Some(reason) => {
            reason == "DEQUEUE_BLOCKED"
                || reason == "SEQUENCE_TOO_OLD"
                || reason == "TRY_BARRED"
                || RETRYABLE.contains(&reason.as_str())
        }
        None => error.got_no_answer() || error.is_unreachable(),
    }
}
