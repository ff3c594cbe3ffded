//! Random histories of workers whose calls alternate between two servers, compared with the same calls to one server.

use std::collections::BTreeMap;
use std::time::Duration;

use tallystone::adapters::manual::{ManualClock, SeededEntropy};
use tallystone::adapters::memory;
use tallystone::domain::queue::MessageState;
use tallystone::domain::queue::messages::message::SessionId;
use tallystone::domain::queue::messages::message_id::MessageId;
use tallystone::domain::queue::messages::settlement::SettleAction;
use tallystone::domain::{Reason, Timestamp};
use tallystone::engine::queues::{DequeueRequest, LeasedMessage, QueueError, Queues, SentSessionCall, SettleRequest};
use tallystone::ports::Entropy as _;

use super::SharingServer;
use super::servers::{SECOND, SESSION_LEASE, SharedBench, depth, dequeue, enqueue, name, open, rest};

const HISTORIES: u64 = 40;
const STEPS: usize = 120;
const WORKERS: u64 = 3;
const SHARDS: u32 = 4;

/// Random numbers that a seed determines.
struct Draws(SeededEntropy);

impl Draws {
    fn below(&mut self, bound: u64) -> u64 {
        let mut word = [0; 8];
        self.0.fill(&mut word);
        u64::from_le_bytes(word) % bound
    }
}

/// A call of a worker, or time that passes.
#[derive(Clone, Debug)]
enum WorkerStep {
    Open(u64),
    Enqueue(u64),
    Dequeue { worker: u64, sequence: u64, attempt: u32, received_up_to: Option<u64>, max: usize },
    Heartbeat { worker: u64, received_up_to: Option<u64> },
    Complete(MessageId),
    Close(u64),
    Pass(Duration),
}

/// What a worker knows of its session.
#[derive(Clone, Default)]
struct KnownCalls {
    sequence: u64,
    attempt: u32,
    received: Option<u64>,
    /// When it was last heard, by the time of the history.
    heard: Duration,
}

/// Makes the steps of a history.
struct StepMaker {
    draws: Draws,
    workers: BTreeMap<u64, KnownCalls>,
    now: Duration,
    enqueued: u64,
}

impl StepMaker {
    /// The next step. `held` are the messages that workers hold.
    fn next(&mut self, held: &[MessageId]) -> WorkerStep {
        // One server ends a session after its lease, several a little later: no call comes between the two.
        if self.workers.values().any(|known| self.is_between(known)) {
            return self.pass(SESSION_LEASE / 4 + 3 * SECOND);
        }
        let worker = self.draws.below(WORKERS);
        if !self.workers.contains_key(&worker) {
            self.workers.insert(worker, KnownCalls { heard: self.now, ..KnownCalls::default() });
            return WorkerStep::Open(worker);
        }
        let kind = self.draws.below(100);
        match kind {
            0..25 => {
                self.enqueued += 1;
                WorkerStep::Enqueue(self.enqueued)
            }
            25..60 => self.dequeue(worker),
            60..68 => {
                let known = self.hear(worker);
                WorkerStep::Heartbeat { worker, received_up_to: known.received }
            }
            68..80 if !held.is_empty() => {
                let at = usize::try_from(self.draws.below(held.len() as u64)).expect("small");
                WorkerStep::Complete(held[at].clone())
            }
            80..83 => {
                self.workers.insert(worker, KnownCalls { heard: self.now, ..KnownCalls::default() });
                WorkerStep::Open(worker)
            }
            83..85 => WorkerStep::Close(worker),
            _ => {
                let millis = 1 + self.draws.below(if kind > 97 { 60_000 } else { 6_000 });
                self.pass(Duration::from_millis(millis))
            }
        }
    }

    fn dequeue(&mut self, worker: u64) -> WorkerStep {
        let (kind, max) = (self.draws.below(10), 1 + self.draws.below(4) as usize);
        let known = self.hear(worker);
        match kind {
            // The next call; the answer of the last one has arrived.
            0..6 => {
                known.received = Some(known.sequence).filter(|last| *last > 0);
                (known.sequence, known.attempt) = (known.sequence + 1, 1);
            }
            6..9 => {
                known.sequence = known.sequence.max(1);
                known.attempt += 1;
            }
            // A late attempt of an earlier call, or a barred one.
            _ => {
                let sequence = known.sequence.saturating_sub(u64::from(known.attempt % 2)).max(1);
                let received_up_to = known.received.filter(|received| *received < sequence);
                return WorkerStep::Dequeue {
                    worker,
                    sequence,
                    attempt: known.attempt.max(2) - 1,
                    received_up_to,
                    max,
                };
            }
        }
        let KnownCalls { sequence, attempt, received, .. } = *known;
        WorkerStep::Dequeue { worker, sequence, attempt, received_up_to: received, max }
    }

    fn hear(&mut self, worker: u64) -> &mut KnownCalls {
        let now = self.now;
        let known = self.workers.entry(worker).or_default();
        // A session that has ended is not heard any more, but then it does not matter.
        if now <= known.heard + SESSION_LEASE {
            known.heard = now;
        }
        known
    }

    fn pass(&mut self, time: Duration) -> WorkerStep {
        self.now += time;
        WorkerStep::Pass(time)
    }

    fn is_between(&self, known: &KnownCalls) -> bool {
        let silent = self.now - known.heard;
        silent > SESSION_LEASE - SECOND && silent <= SESSION_LEASE + SESSION_LEASE / 4 + 2 * SECOND
    }
}

/// The servers of one side, with the sessions and leases that their callers know.
struct HistorySide {
    bench: SharedBench,
    servers: Vec<SharingServer>,
    sessions: BTreeMap<u64, SessionId>,
    /// The token of the newest lease of each message.
    held: BTreeMap<MessageId, String>,
}

impl HistorySide {
    fn queues(&self, number: u64) -> &Queues {
        &self.servers[usize::try_from(number).expect("small") % self.servers.len()].queues
    }

    /// Makes a step at a server, and describes its outcome.
    async fn step(&mut self, step: &WorkerStep, server: u64) -> String {
        let queues = self.queues(server).clone();
        match step {
            WorkerStep::Open(worker) => {
                let id = open(&queues, &format!("worker-{worker}")).await;
                self.sessions.insert(*worker, id);
                "opened".to_owned()
            }
            WorkerStep::Enqueue(number) => {
                enqueue(&queues, [*number]).await;
                "enqueued".to_owned()
            }
            WorkerStep::Dequeue { worker, sequence, attempt, received_up_to, max } => {
                let id = self.sessions[worker];
                let call =
                    SentSessionCall { id, sequence: *sequence, attempt: *attempt, received_up_to: *received_up_to };
                let ask = DequeueRequest { max: *max, session: Some(call), ..DequeueRequest::default() };
                match dequeue(&queues, ask).await {
                    Ok(leases) => self.note(leases),
                    Err(error) => refusal(&error),
                }
            }
            WorkerStep::Heartbeat { worker, received_up_to } => {
                match queues.sessions.heartbeat(self.sessions[worker], *received_up_to).await {
                    Ok(beat) => format!("{} s", beat.expires_in.as_secs()),
                    Err(error) => refusal(&error),
                }
            }
            WorkerStep::Complete(id) => {
                let token = self.held[id].clone();
                let sent = SettleRequest { token, verb: SettleAction::Complete, delay: None, error: None };
                match queues.work.settle(&name(), sent).await {
                    Ok(settled) => format!("{settled:?}"),
                    Err(error) => refusal(&error),
                }
            }
            WorkerStep::Close(worker) => match queues.sessions.close_session(self.sessions[worker]).await {
                Ok(released) => format!("{released} released"),
                Err(error) => refusal(&error),
            },
            WorkerStep::Pass(time) => {
                self.bench.pass(*time).await;
                String::new()
            }
        }
    }

    fn note(&mut self, leases: Vec<LeasedMessage>) -> String {
        let mut told = Vec::new();
        for leased in leases {
            told.push(format!("{:?} attempt {}", leased.message.head.id, leased.lease.attempt_number));
            self.held.insert(leased.message.head.id, leased.token);
        }
        told.sort();
        told.join(", ")
    }

    async fn totals(&self) -> Vec<u64> {
        let states = [MessageState::Pending, MessageState::Running, MessageState::Completed, MessageState::Errored];
        let mut totals = Vec::new();
        for state in states {
            totals.push(depth(&self.servers[0].queues, state).await);
        }
        totals
    }
}

/// A refusal in words. Which of two reasons a late call gets depends on the shards that are asked, and how long a session
/// that has ended is known depends on who keeps it.
fn refusal(error: &QueueError) -> String {
    match error.reason() {
        Reason::SequenceTooOld | Reason::TryBarred => "a late call".to_owned(),
        Reason::SessionEnded | Reason::SessionNotFound => "no session".to_owned(),
        reason => format!("{reason:?}"),
    }
}

/// One server that owns its store.
async fn alone() -> HistorySide {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let stores = memory::queue_stores(std::sync::Arc::new(clock.clone()));
    let (bench, server, other) = SharedBench { clock, stores }.with_servers(SHARDS).await;
    other.kill().await;
    HistorySide { bench, servers: vec![server], sessions: BTreeMap::new(), held: BTreeMap::new() }
}

/// Two servers that share a store.
async fn together() -> HistorySide {
    let (bench, here, there) = SharedBench::with_shards(SHARDS).await;
    HistorySide { bench, servers: vec![here, there], sessions: BTreeMap::new(), held: BTreeMap::new() }
}

async fn compare(seed: u64) {
    let (mut one, mut two) = (alone().await, together().await);
    let mut maker = StepMaker {
        draws: Draws(SeededEntropy::new(seed)),
        workers: BTreeMap::new(),
        now: Duration::ZERO,
        enqueued: 0,
    };
    let mut history = Vec::new();
    for _ in 0..STEPS {
        let held: Vec<MessageId> = one.held.keys().cloned().collect();
        let step = maker.next(&held);
        let server = maker.draws.below(2);
        let outcomes = (one.step(&step, 0).await, two.step(&step, server).await);
        rest().await;
        history.push(format!("server {server}: {step:?} -> {}", outcomes.1));
        let told = || format!("seed {seed}; one server answered {}\n{}", outcomes.0, history.join("\n"));
        assert_eq!(outcomes.0, outcomes.1, "{}", told());
        assert_eq!(one.totals().await, two.totals().await, "{}", told());
    }
}

#[tokio::test]
async fn calls_that_alternate_between_two_servers_are_answered_as_by_one() {
    for seed in 0..HISTORIES {
        compare(seed).await;
    }
}
