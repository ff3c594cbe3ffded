//! The load of the crash tests: workers that send every add three times until the servers are gone or they are told to
//! end, readers beside them (`watching`), and what each of them heard.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use tallystone::domain::Reason;
use tallystone::domain::reason::Effect;
use tallystone::proto::counter::v1::counter_service_client::CounterServiceClient;
use tallystone::proto::counter::v1::{AddCountRequest, AddItem, BatchAddCountsRequest, IdempotencyToken, Outcome};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tonic::Status;
use tonic_types::StatusExt as _;
use uuid::Uuid;

use super::history::History;
use super::ledger::{BITS, Fate, Ledger, Tagged, What};
use super::{Rng, watching};
use crate::support::harness::{Server, eventually};
use crate::support::patience::{PatientChannel, try_patient_channel};

pub const NAMESPACE: &str = "default";
/// Workers of a load that nobody said otherwise of.
pub const WORKERS: usize = 12;
/// Adds of one batch, at most.
const BATCH_MAX: u64 = 12;
/// How long a call waits for a server that is stopped, and what it may take on a busy machine.
const CALL_WITHIN: Duration = Duration::from_secs(20);
/// The pause of a worker whose servers are away and that waits for them.
const AWAY_PAUSE: Duration = Duration::from_secs(1);
/// What a worker waits from one add to the next once a fault has begun that may last. At full speed the processors would be busy
/// with adds, and a Cassandra node that comes back would wait for them.
pub const FAULT_PAUSE: Duration = Duration::from_millis(20);
/// What anything may take on a busy machine.
const MORE_WITHIN: Duration = Duration::from_secs(120);

pub type Client = CounterServiceClient<PatientChannel>;

/// How a service is loaded.
pub struct Plan {
    /// The seed of the workers' random generators.
    pub seed: u64,
    /// Part of the names of counters, so that no two rounds meet.
    pub round: u32,
    /// How many workers there are.
    pub workers: usize,
    /// The fault begins when so many adds have been acknowledged.
    pub acknowledgements: u64,
    /// The load ends when so many more have been acknowledged by servers that are left; without one it ends by itself.
    pub then: u64,
    /// What a worker does that hears nothing from any server.
    pub when_gone: WhenGone,
    /// What a worker that waits for its servers pauses after each add once the fault has begun.
    pub pause: Duration,
}

/// What a worker does that hears nothing from any server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WhenGone {
    /// It ends.
    End,
    /// It waits and goes on.
    Wait,
}

/// What is known of the tokens, and what was read meanwhile.
#[derive(Default)]
pub struct Records {
    /// The tokens.
    pub ledger: Ledger,
    /// The readings.
    pub history: Arc<Mutex<History>>,
}

impl Records {
    /// The readings.
    pub fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().expect("no reader panics")
    }
}

/// A load under way.
pub struct Load {
    plan: Plan,
    acknowledged: AtomicU64,
    refused: AtomicU64,
    unknown: AtomicU64,
    enough: Notify,
    told_to_end: AtomicBool,
    /// The number of the counter that each worker adds to.
    counters: Vec<AtomicU32>,
    /// What readers and workers saw.
    pub history: Arc<Mutex<History>>,
}

/// Loads a server until it has acknowledged so many adds and is ended, or is gone by itself, and notes what is known of
/// each add.
pub fn run(server: &Server, records: &mut Records, plan: Plan, end: impl FnOnce(&Server)) {
    run_on(&[server], records, plan, |_| end(server));
}

/// The same on several servers: the copies of one add go to different ones. The fault runs while the load goes on.
pub fn run_on(servers: &[&Server], records: &mut Records, plan: Plan, fault: impl FnOnce(&Load)) {
    let runtime = Runtime::new().expect("a runtime");
    let load = Arc::new(Load {
        acknowledged: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        unknown: AtomicU64::new(0),
        enough: Notify::new(),
        told_to_end: AtomicBool::new(false),
        counters: (0..plan.workers).map(|_| AtomicU32::new(0)).collect(),
        history: Arc::clone(&records.history),
        plan,
    });
    let noted = runtime.block_on(async {
        let mut workers = JoinSet::new();
        for number in 0..load.plan.workers {
            // Three connections, so that the copies of an add overtake each other.
            let first = number % servers.len();
            let order: Vec<&Server> = [&servers[first..], &servers[..first]].concat();
            let Ok(clients) = connect(&order).await else { continue };
            let rng = Rng::new(load.plan.seed ^ number as u64);
            workers.spawn(Worker { clients, number, rng }.run(Arc::clone(&load)));
        }
        let mut watching = watching::begin(servers, &load, &mut workers).await;
        let mut noted = Vec::new();
        tokio::select! {
            () = load.enough.notified() => fault(&load),
            () = starved(&load) => panic!("{} adds are acknowledged", load.acknowledged()),
            () = gather(&mut workers, &mut noted) => {}
        }
        gather(&mut workers, &mut noted).await;
        watching.shutdown().await;
        noted
    });
    for (tagged, fate) in noted {
        records.ledger.note(tagged, fate);
    }
}

/// Comes when workers that wait for ever have waited long enough for a fault to begin.
async fn starved(load: &Load) {
    let waiting = std::future::pending::<()>();
    if load.plan.when_gone == WhenGone::End {
        return waiting.await;
    }
    let _ = tokio::time::timeout(MORE_WITHIN, waiting).await;
}

pub type Noted = Vec<(Tagged, Fate)>;

async fn gather(workers: &mut JoinSet<Noted>, noted: &mut Noted) {
    while let Some(worker) = workers.join_next().await {
        noted.extend(worker.expect("no worker panics"));
    }
}

impl Load {
    /// How many adds were acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// How many adds all servers have refused, with nothing done.
    pub fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// How many adds nobody knows the outcome of.
    pub fn unknown(&self) -> u64 {
        self.unknown.load(Ordering::Relaxed)
    }

    /// Waits until so many more adds are acknowledged.
    pub fn wait_for_more(&self, more: u64) {
        let wanted = self.acknowledged() + more;
        let come = eventually(MORE_WITHIN, || self.acknowledged() >= wanted);
        assert!(come, "{} of {wanted} adds are acknowledged", self.acknowledged());
    }

    /// Has the workers end.
    pub fn end(&self) {
        self.told_to_end.store(true, Ordering::Relaxed);
    }

    /// The name of the counter that a worker adds to, and of the one before it.
    pub fn names(&self, worker: usize) -> [String; 2] {
        let number = self.counters[worker].load(Ordering::Relaxed);
        [number, number.saturating_sub(1)].map(|number| counter_name(self.plan.round, worker, number))
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// What a worker waits before its next add: nothing until the fault begins.
    fn pause(&self) -> Duration {
        let may_last = self.plan.when_gone == WhenGone::Wait && self.acknowledged() >= self.plan.acknowledgements;
        if may_last { self.plan.pause } else { Duration::ZERO }
    }

    /// Whether the workers are to end.
    pub fn is_over(&self) -> bool {
        let enough = self.plan.acknowledgements.saturating_add(self.plan.then);
        self.told_to_end.load(Ordering::Relaxed) || self.acknowledged() >= enough
    }

    fn note(&self, fates: &[Fate]) {
        let count = |wanted: Fate| fates.iter().filter(|fate| **fate == wanted).count() as u64;
        self.refused.fetch_add(count(Fate::Refused), Ordering::Relaxed);
        self.unknown.fetch_add(count(Fate::Unknown), Ordering::Relaxed);
        let applied = count(Fate::Applied);
        let (before, wanted) = (self.acknowledged.fetch_add(applied, Ordering::Relaxed), self.plan.acknowledgements);
        if before < wanted && before + applied >= wanted {
            self.enough.notify_one();
        }
    }
}

fn counter_name(round: u32, worker: usize, number: u32) -> String {
    format!("crash/r{round}/w{worker}/n{number}")
}

/// Three connections, to the servers in turn.
pub async fn connect(servers: &[&Server]) -> Result<[Client; 3], tonic::transport::Error> {
    let mut clients = Vec::new();
    for server in servers.iter().cycle().take(3) {
        clients.push(connect_to(server).await?);
    }
    Ok(clients.try_into().expect("three"))
}

/// A connection.
pub async fn connect_to(server: &Server) -> Result<Client, tonic::transport::Error> {
    Ok(CounterServiceClient::new(try_patient_channel(&server.url(), CALL_WITHIN).await?))
}

struct Worker {
    clients: [Client; 3],
    number: usize,
    rng: Rng,
}

/// What one answer says of an add.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard {
    /// The log holds it.
    Applied,
    /// It had been applied before.
    AlreadyApplied,
    /// It never will be applied.
    NotApplied,
    /// This call has done nothing.
    Nothing,
    /// It may have been applied.
    Unknown,
}

impl Worker {
    /// Adds until the servers are gone, or it is told to end.
    async fn run(mut self, load: Arc<Load>) -> Noted {
        let mut noted = Vec::new();
        for number in 0.. {
            load.counters[self.number].store(number, Ordering::Relaxed);
            let counter = counter_name(load.plan.round, self.number, number);
            let mut bit = 0;
            while bit < BITS {
                let many = if self.rng.below(2) == 0 { 1 } else { 1 + self.rng.below(BATCH_MAX) };
                let last = BITS.min(bit + u32::try_from(many).expect("small"));
                let adds: Vec<Tagged> = (bit..last).map(|bit| fresh(&counter, What::Bit(bit))).collect();
                bit = last;
                let fates = self.send_three_times(&adds, &load).await;
                load.note(&fates);
                let is_gone = fates.iter().all(|fate| [Fate::Unknown, Fate::Refused].contains(fate));
                noted.extend(adds.into_iter().zip(fates));
                if load.is_over() || is_gone && load.plan.when_gone == WhenGone::End {
                    return noted;
                }
                let pause = if is_gone { AWAY_PAUSE } else { load.pause() };
                if !pause.is_zero() {
                    let _ = tokio::time::timeout(pause, std::future::pending::<()>()).await;
                }
            }
        }
        noted
    }

    /// Sends the same adds three times, at once or in turn; answers what is known of each.
    async fn send_three_times(&mut self, adds: &[Tagged], load: &Load) -> Vec<Fate> {
        let [first, second, third] = &mut self.clients;
        let answers = if self.rng.below(2) == 0 {
            let (first, second, third) = tokio::join!(send(first, adds), send(second, adds), send(third, adds));
            [first, second, third]
        } else {
            [send(first, adds).await, send(second, adds).await, send(third, adds).await]
        };
        let heard = |at: usize| answers.each_ref().map(|answer| answer[at]);
        let mut history = load.history.lock().expect("no reader panics");
        for (at, add) in adds.iter().enumerate() {
            if heard(at).contains(&Heard::Applied) {
                history.acknowledged(&add.token);
            }
        }
        adds.iter().enumerate().map(|(at, add)| agreed(add, heard(at))).collect()
    }
}

/// A change under a token of its own.
pub fn fresh(counter: &str, what: What) -> Tagged {
    Tagged { counter: counter.to_owned(), what, token: Uuid::now_v7().to_string() }
}

/// What three answers say together; two that contradict each other are a failure.
fn agreed(tagged: &Tagged, heard: [Heard; 3]) -> Fate {
    let applied = heard.contains(&Heard::Applied) || heard.contains(&Heard::AlreadyApplied);
    let not_applied = heard.contains(&Heard::NotApplied);
    assert!(!(applied && not_applied), "{tagged:?} was applied and refused for good: {heard:?}");
    match (applied, not_applied) {
        (true, _) => Fate::Applied,
        (_, true) => Fate::NotApplied,
        (false, false) if heard == [Heard::Nothing; 3] => Fate::Refused,
        (false, false) => Fate::Unknown,
    }
}

/// Sends adds as one call; answers what is heard of each.
pub async fn send(client: &mut Client, adds: &[Tagged]) -> Vec<Heard> {
    if let [add] = adds {
        let request = AddCountRequest {
            namespace: NAMESPACE.to_owned(),
            counter_name: add.counter.clone(),
            delta: Some(add.delta()),
            idempotency_token: token(add),
            provenance: "crash test".to_owned(),
        };
        return vec![match client.add_count(request).await {
            Ok(answer) => applied(answer.into_inner().outcome()),
            Err(status) => heard_of(&reason(&status)),
        }];
    }
    let item = |add: &Tagged| AddItem {
        counter_name: add.counter.clone(),
        delta: Some(add.delta()),
        idempotency_token: token(add),
        provenance: String::new(),
    };
    let request = BatchAddCountsRequest { namespace: NAMESPACE.to_owned(), items: adds.iter().map(item).collect() };
    match client.batch_add_counts(request).await {
        Ok(answer) => {
            let results = answer.into_inner().results.into_iter();
            let heard = results.map(|result| match &result.error {
                None => applied(result.outcome()),
                Some(error) => heard_of(&error.reason),
            });
            heard.collect()
        }
        Err(status) => vec![heard_of(&reason(&status)); adds.len()],
    }
}

fn applied(outcome: Outcome) -> Heard {
    if outcome == Outcome::AlreadyApplied { Heard::AlreadyApplied } else { Heard::Applied }
}

/// Only a final refusal settles a token; of what says that it did nothing nothing may be seen; whatever else went wrong, the
/// same token is asked about again.
pub fn heard_of(reason: &str) -> Heard {
    assert!(!["ALREADY_EXISTS", "INTERNAL"].contains(&reason), "a change of a fresh token was refused: {reason}");
    match Reason::from_name(reason).map(|reason| reason.info().effect) {
        Some(Effect::Nothing) if reason == "NOT_APPLIED" => Heard::NotApplied,
        Some(Effect::Nothing) => Heard::Nothing,
        Some(Effect::Unknown) | None => Heard::Unknown,
    }
}

/// The reason of a refusal; empty if nothing of ours answered.
pub fn reason(status: &Status) -> String {
    status.get_error_details().error_info().map(|info| info.reason.clone()).unwrap_or_default()
}

pub fn token(tagged: &Tagged) -> Option<IdempotencyToken> {
    Some(IdempotencyToken { token: tagged.token.clone(), generation_time: None })
}
