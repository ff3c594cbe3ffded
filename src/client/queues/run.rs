//! A worker at work: takes messages while it has room, works on each, renews the leases of all with one heartbeat.
//!
//! A dequeue waits inside the server. A failure that may pass is met with longer and longer pauses; the same call is then
//! sent again under its number, so messages of an answer that was lost are not lost to others. The loop owns all its futures,
//! and its tasks end with it.

use std::collections::HashMap;
use std::pin::Pin;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};

use crate::client::error::RETRYABLE;
use crate::client::queues::job::{Settled, Why};
use crate::client::queues::leases::Leases;
use crate::client::queues::message::{duration, time_of};
use crate::client::queues::queues_on;
use crate::client::queues::session::{self, Fate, Session};
use crate::client::queues::shutdown::{Phase, Shutdown};
use crate::client::queues::worker::{Tally, Worker, WorkerEvent};
use crate::client::{CallError, Client};
use crate::proto::queue::v1 as pb;

/// The pauses after a call that failed: the first, and the longest.
pub(super) const PAUSE_FIRST: Duration = Duration::from_millis(500);
pub(super) const PAUSE_LONGEST: Duration = Duration::from_secs(15);
/// How long the server may wait for a message; it waits no longer.
const WAIT: Duration = Duration::from_secs(20);
/// The most messages of one dequeue; the service takes no more.
const DEQUEUE_MESSAGES_MAX: usize = 100;

/// What the work on a message begins with.
pub(super) struct Starting {
    pub client: Client,
    pub queue: String,
    pub lease: pb::Lease,
    pub grace: Duration,
    pub signal: watch::Receiver<Option<Why>>,
}

/// The end of the work on a message.
pub(super) struct Over {
    pub token: String,
    pub id: String,
    pub settled: Settled,
}

/// Begins the work on a message.
pub(super) type Start = Box<dyn Fn(&mut JoinSet<Over>, Starting) + Send>;
type Calling<A> = Pin<Box<dyn Future<Output = Result<A, CallError>> + Send>>;

/// A call that takes messages, or opens the session for it.
enum Took {
    Session(pb::OpenSessionResponse),
    Leases(pb::DequeueResponse),
}

/// A worker at work.
pub(super) struct Run<'w> {
    worker: &'w Worker,
    start: Start,
    jobs: JoinSet<Over>,
    leases: Leases,
    ids: HashMap<String, String>,
    session: Option<Session>,
    taking: Option<Calling<Took>>,
    beating: Option<Calling<pb::HeartbeatResponse>>,
    /// When the heartbeat was sent that is out, what it says, and when the next is due.
    beat: (Instant, Option<u64>),
    beat_due: Instant,
    pause: Duration,
    /// Whether nothing is ready until something that runs has ended.
    is_resting: bool,
    is_done: bool,
    phase: Phase,
    pub tally: Tally,
    pub broken: Option<CallError>,
}

/// The id of a lease's message.
pub(super) fn id_of(lease: &pb::Lease) -> String {
    lease.message.as_ref().map(|message| message.message_id.clone()).unwrap_or_default()
}

async fn done<A>(call: &mut Option<Calling<A>>) -> Result<A, CallError> {
    match call {
        Some(call) => call.await,
        None => std::future::pending().await,
    }
}

impl<'w> Run<'w> {
    pub fn new(worker: &'w Worker, start: Start) -> Self {
        let now = Instant::now();
        Self {
            worker,
            start,
            jobs: JoinSet::new(),
            leases: Leases::default(),
            ids: HashMap::new(),
            session: None,
            taking: None,
            beating: None,
            beat: (now, None),
            beat_due: now,
            pause: Duration::ZERO,
            is_resting: false,
            is_done: false,
            phase: Phase::Running,
            tally: Tally::default(),
            broken: None,
        }
    }

    pub async fn until_over(&mut self, shutdown: &Shutdown) {
        loop {
            let takes = self.phase == Phase::Running && self.broken.is_none() && !self.is_done;
            if !takes {
                self.taking = None;
                if self.jobs.is_empty() {
                    return;
                }
            } else if self.taking.is_none() && self.jobs.len() < self.worker.concurrency && !self.is_resting {
                self.taking = Some(self.taking());
            }
            self.begin_beat();
            let wake = self.wake_after();
            let Self { jobs, taking, beating, phase, .. } = self;
            tokio::select! {
                biased;
                phase = shutdown.beyond(*phase), if *phase < Phase::Ending => self.stopping(phase),
                Some(over) = jobs.join_next() => self.over(over),
                beaten = done(beating) => self.beaten(beaten),
                took = done(taking) => self.took(took),
                () = tokio::time::sleep(wake) => {}
            }
            self.end_lost();
        }
    }

    /// Until something has to be done by time alone.
    fn wake_after(&self) -> Duration {
        let now = Instant::now();
        let beat = self.beats().then(|| self.beat_due.saturating_duration_since(now));
        [beat, self.leases.next_over(now)].into_iter().flatten().min().unwrap_or(WAIT)
    }

    fn stopping(&mut self, phase: Phase) {
        if self.phase == Phase::Running {
            (self.worker.observer)(WorkerEvent::Finishing(self.jobs.len()));
        }
        if phase == Phase::Ending {
            (self.worker.observer)(WorkerEvent::Ending(self.jobs.len()));
            self.leases.tell_all(Why::Stopped);
        }
        self.phase = phase;
    }

    /// The next try to take messages, after the pause.
    fn taking(&mut self) -> Calling<Took> {
        let worker = self.worker;
        let (client, pause) = (worker.client.clone(), self.pause);
        let time = client.policy.attempt_max;
        let Some(session) = &mut self.session else {
            let request = session::opening(&worker.label, worker.session_lease);
            return Box::pin(async move {
                tokio::time::sleep(pause).await;
                session::open(&client, time, request).await.map(Took::Session)
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
            session::once(&client, time + wait, &request, call).await.map(Took::Leases)
        })
    }

    fn took(&mut self, took: Result<Took, CallError>) {
        self.taking = None;
        match took {
            Ok(Took::Session(opened)) => {
                self.pause = Duration::ZERO;
                self.session = Some(Session::new(opened, self.worker.session_lease));
                self.leases.forget_session();
            }
            Ok(Took::Leases(taken)) => self.leased(taken),
            Err(error) => self.failed(error),
        }
    }

    fn leased(&mut self, taken: pb::DequeueResponse) {
        self.pause = Duration::ZERO;
        let is_all = taken.completeness() == pb::dequeue_response::Completeness::Complete;
        let is_empty = taken.leases.is_empty() && is_all;
        let Some(session) = &mut self.session else { return };
        let call = session.arrived();
        let began = Instant::now();
        for lease in taken.leases {
            let until = began + time_of(lease.lease_expires_in);
            let signal = self.leases.add(lease.lease_token.clone(), call, until);
            self.ids.insert(lease.lease_token.clone(), id_of(&lease));
            let (client, queue) = (self.worker.client.clone(), self.worker.queue.clone());
            (self.start)(&mut self.jobs, Starting { client, queue, lease, grace: self.worker.grace, signal });
        }
        if self.leases.any_short_of(self.beat_due + self.worker.session_lease / 3) {
            self.beat_due = Instant::now();
        }
        if is_empty && self.worker.until_empty {
            // What runs may fail and be ready again at once.
            self.is_resting = true;
            self.is_done = self.jobs.is_empty();
        }
    }

    fn failed(&mut self, error: CallError) {
        let fate = self.session.as_mut().map_or(Fate::Open, |session| session.failed(&error));
        match fate {
            Fate::Replaced => {
                self.all_lost();
                self.broken = Some(error);
            }
            Fate::Over => self.session_over(),
            Fate::Open if may_pass(&error) && !self.worker.until_empty => {
                self.pause = (self.pause * 2).clamp(PAUSE_FIRST, PAUSE_LONGEST);
                (self.worker.observer)(WorkerEvent::CannotTake { error: &error, pause: self.pause });
            }
            Fate::Open => self.broken = Some(error),
        }
    }

    /// Lets go of a session that is over, and of what it held.
    fn session_over(&mut self) {
        (self.session, self.beating) = (None, None);
        self.all_lost();
    }

    /// Whether there is anything to renew.
    fn beats(&self) -> bool {
        self.session.is_some() && self.leases.len() > 0 && self.beating.is_none()
    }

    fn begin_beat(&mut self) {
        if !self.beats() || Instant::now() < self.beat_due {
            return;
        }
        let Some(session) = &self.session else { return };
        let (client, request) = (self.worker.client.clone(), session.heartbeat());
        let (time, lease) = (client.policy.attempt_max.min(session.lease), session.lease);
        self.beat = (Instant::now(), session.received);
        self.beat_due = Instant::now() + lease / 3;
        self.beating = Some(Box::pin(async move {
            let call = |channel, request| async move { queues_on(channel).heartbeat(request).await };
            session::once(&client, time, &request, call).await
        }));
    }

    fn beaten(&mut self, beaten: Result<pb::HeartbeatResponse, CallError>) {
        self.beating = None;
        match beaten {
            Ok(beaten) => {
                let (sent, received) = self.beat;
                self.leases.renewed(sent + time_of(beaten.session_expires_in), received);
                for token in &beaten.cancel_requests {
                    self.tell(token, Why::CancelRequested);
                }
            }
            Err(error) => match self.session.as_mut().map_or(Fate::Open, |session| session.failed(&error)) {
                Fate::Replaced => {
                    self.all_lost();
                    self.broken = Some(error);
                }
                Fate::Over => self.session_over(),
                // It is sent again while the leases last.
                Fate::Open => self.beat_due = Instant::now() + self.worker.session_lease / 10,
            },
        }
    }

    fn tell(&self, token: &str, why: Why) {
        if self.leases.tell(token, why)
            && let Some(message_id) = self.ids.get(token)
        {
            (self.worker.observer)(WorkerEvent::MustEnd { message_id, why });
        }
    }

    fn all_lost(&self) {
        for token in self.ids.keys() {
            self.tell(token, Why::LeaseLost);
        }
    }

    /// Tells the work whose lease is over.
    fn end_lost(&mut self) {
        for token in self.leases.over(Instant::now()) {
            self.tell(&token, Why::LeaseLost);
        }
    }

    fn over(&mut self, over: Result<Over, JoinError>) {
        self.is_resting = false;
        // The work is caught where it panics, so that no task of it does.
        let Ok(Over { token, id, settled }) = over else {
            self.tally.others += 1;
            return;
        };
        self.leases.remove(&token);
        self.ids.remove(&token);
        let not_settled = |error: &str| (self.worker.observer)(WorkerEvent::NotSettled { message_id: &id, error });
        match settled {
            Settled::Completed => self.tally.completed += 1,
            Settled::Failed => self.tally.failed += 1,
            Settled::GivenUp | Settled::Lost => self.tally.others += 1,
            Settled::Unsettled(error) => {
                not_settled(&error.to_string());
                self.tally.others += 1;
            }
            Settled::Busy(why) | Settled::Refused(why) => {
                not_settled(&why);
                self.tally.others += 1;
            }
        }
    }

    /// Closes the session, which gives back what an answer brought that nobody waited for.
    pub async fn close(&mut self) {
        let Some(session) = self.session.take() else { return };
        let (client, request) = (&self.worker.client, session.close());
        let call = |channel, request| async move { queues_on(channel).close_session(request).await };
        // What cannot be given back ends by itself.
        let _ = session::once(client, client.policy.attempt_max, &request, call).await;
    }
}

/// Whether the same call may succeed later: the server is away or busy, or the queue is blocked for now.
fn may_pass(error: &CallError) -> bool {
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
