//! The load of the crash tests: workers that send every add three times until the server is gone, and the questions that
//! settle what became of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tallystone::proto::counter::v1::counter_service_client::CounterServiceClient;
use tallystone::proto::counter::v1::{
    AddCountRequest, AddItem, BatchAddCountsRequest, CheckTokenRequest, Exactness, Freshness, GetCountRequest,
    IdempotencyToken, Verdict,
};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tonic_types::StatusExt as _;
use uuid::Uuid;

use super::Chance;
use super::tagged::{BITS, Fate, Ledger, Tagged};
use crate::harness::{Server, eventually};

const NAMESPACE: &str = "default";
const WORKERS: usize = 12;
/// Adds of one batch, at most.
const BATCH_MAX: u64 = 12;
/// What a server that is up must have settled by; in a fleet the lease of a member that was killed comes first.
const SETTLED_WITHIN: Duration = Duration::from_secs(120);
const ROLLED_UP_WITHIN: Duration = Duration::from_secs(120);
/// How long a call waits for a server that is stopped.
const CALL_WITHIN: Duration = Duration::from_secs(20);

type Client = CounterServiceClient<Channel>;

/// How a server is loaded.
pub struct Plan {
    /// Of the workers' chance.
    pub seed: u64,
    /// Part of the names of counters, so that no two rounds meet.
    pub round: u32,
    /// A server is ended when so many adds have been acknowledged.
    pub acknowledgements: u64,
    /// The load ends when so many more have been acknowledged by servers that are left; without one it ends by itself.
    pub then: u64,
}

/// Loads a server until it has acknowledged so many adds and is ended, or is gone by itself, and notes what is known of
/// each add.
pub fn run(server: &Server, ledger: &mut Ledger, plan: Plan, end: impl FnOnce(&Server)) {
    run_on(&[server], ledger, plan, || end(server));
}

/// The same on several servers: the copies of one add go to different ones.
pub fn run_on(servers: &[&Server], ledger: &mut Ledger, plan: Plan, end: impl FnOnce()) {
    let Plan { seed, round, acknowledgements, then } = plan;
    let runtime = Runtime::new().expect("a runtime");
    let noted = runtime.block_on(async {
        let acknowledged = Acknowledged { count: AtomicU64::new(0), enough: Notify::new(), acknowledgements, then };
        let acknowledged = Arc::new(acknowledged);
        let mut workers = JoinSet::new();
        for number in 0..WORKERS {
            // Three connections, so that the copies of an add overtake each other.
            let first = number % servers.len();
            let order: Vec<&Server> = [&servers[first..], &servers[..first]].concat();
            let Ok(clients) = connect(&order).await else { continue };
            let name = format!("crash/r{round}/w{number}");
            let worker = Worker { clients, name, chance: Chance::new(seed ^ number as u64) };
            workers.spawn(worker.run(Arc::clone(&acknowledged)));
        }
        let mut noted = Vec::new();
        tokio::select! {
            () = acknowledged.enough.notified() => end(),
            () = gather(&mut workers, &mut noted) => {}
        }
        gather(&mut workers, &mut noted).await;
        noted
    });
    for (tagged, fate) in noted {
        ledger.note(tagged, fate);
    }
}

async fn gather(workers: &mut JoinSet<Vec<(Tagged, Fate)>>, noted: &mut Vec<(Tagged, Fate)>) {
    while let Some(worker) = workers.join_next().await {
        noted.extend(worker.expect("no worker panics"));
    }
}

struct Acknowledged {
    count: AtomicU64,
    enough: Notify,
    acknowledgements: u64,
    then: u64,
}

impl Acknowledged {
    fn add(&self, count: u64) {
        let before = self.count.fetch_add(count, Ordering::Relaxed);
        if before < self.acknowledgements && before + count >= self.acknowledgements {
            self.enough.notify_one();
        }
    }

    fn is_over(&self) -> bool {
        self.count.load(Ordering::Relaxed) >= self.acknowledgements.saturating_add(self.then)
    }
}

/// Three connections, to the servers in turn.
async fn connect(servers: &[&Server]) -> Result<[Client; 3], tonic::transport::Error> {
    let mut clients = Vec::new();
    for server in servers.iter().cycle().take(3) {
        let endpoint = Endpoint::from_shared(server.url()).expect("an address").timeout(CALL_WITHIN);
        clients.push(CounterServiceClient::new(endpoint.connect().await?));
    }
    Ok(clients.try_into().expect("three"))
}

struct Worker {
    clients: [Client; 3],
    name: String,
    chance: Chance,
}

impl Worker {
    /// Adds until the server is gone.
    async fn run(mut self, acknowledged: Arc<Acknowledged>) -> Vec<(Tagged, Fate)> {
        let mut noted = Vec::new();
        for counter in 0.. {
            let counter = format!("{}/n{counter}", self.name);
            let mut bit = 0;
            while bit < BITS {
                let many = if self.chance.below(2) == 0 { 1 } else { 1 + self.chance.below(BATCH_MAX) };
                let last = BITS.min(bit + u32::try_from(many).expect("small"));
                let adds: Vec<Tagged> = (bit..last)
                    .map(|bit| Tagged { counter: counter.clone(), bit, token: Uuid::now_v7().to_string() })
                    .collect();
                bit = last;
                let (fates, gone) = self.send_three_times(&adds).await;
                acknowledged.add(fates.iter().filter(|fate| **fate == Fate::Applied).count() as u64);
                noted.extend(adds.into_iter().zip(fates));
                if gone || acknowledged.is_over() {
                    return noted;
                }
            }
        }
        noted
    }

    /// Sends the same adds three times, at once or in turn; answers what is known of each, and whether the server is gone.
    async fn send_three_times(&mut self, adds: &[Tagged]) -> (Vec<Fate>, bool) {
        let [first, second, third] = &mut self.clients;
        let answers = if self.chance.below(2) == 0 {
            let (first, second, third) = tokio::join!(send(first, adds), send(second, adds), send(third, adds));
            [first, second, third]
        } else {
            [send(first, adds).await, send(second, adds).await, send(third, adds).await]
        };
        let gone = answers.iter().all(|answer| answer.iter().all(|fate| *fate == Fate::Unknown));
        let fates = (0..adds.len()).map(|at| agreed(&adds[at], answers.each_ref().map(|answer| answer[at]))).collect();
        (fates, gone)
    }
}

/// What three answers say together; two that contradict each other are a failure.
fn agreed(tagged: &Tagged, fates: [Fate; 3]) -> Fate {
    let applied = fates.contains(&Fate::Applied);
    let refused = fates.contains(&Fate::NotApplied);
    assert!(!(applied && refused), "{tagged:?} was applied and refused for good: {fates:?}");
    match (applied, refused) {
        (true, _) => Fate::Applied,
        (_, true) => Fate::NotApplied,
        (false, false) => Fate::Unknown,
    }
}

async fn send(client: &mut Client, adds: &[Tagged]) -> Vec<Fate> {
    if let [add] = adds {
        let request = AddCountRequest {
            namespace: NAMESPACE.to_owned(),
            counter_name: add.counter.clone(),
            delta: add.delta(),
            idempotency_token: token(add),
            provenance: "crash test".to_owned(),
        };
        return vec![match client.add_count(request).await {
            Ok(_) => Fate::Applied,
            Err(status) => fate_of(&reason(&status)),
        }];
    }
    let item = |add: &Tagged| AddItem {
        counter_name: add.counter.clone(),
        delta: add.delta(),
        idempotency_token: token(add),
        provenance: String::new(),
    };
    let request = BatchAddCountsRequest { namespace: NAMESPACE.to_owned(), items: adds.iter().map(item).collect() };
    let Ok(answer) = client.batch_add_counts(request).await else { return vec![Fate::Unknown; adds.len()] };
    let fates = answer.into_inner().results.into_iter();
    fates.map(|result| result.error.map_or(Fate::Applied, |error| fate_of(&error.reason))).collect()
}

/// Only a final refusal settles a token; whatever else went wrong, the same token is asked about again.
fn fate_of(reason: &str) -> Fate {
    assert!(!["ALREADY_EXISTS", "INTERNAL"].contains(&reason), "an add of a fresh token was refused: {reason}");
    if reason == "NOT_APPLIED" { Fate::NotApplied } else { Fate::Unknown }
}

fn reason(status: &Status) -> String {
    status.get_error_details().error_info().map(|info| info.reason.clone()).unwrap_or_default()
}

fn token(tagged: &Tagged) -> Option<IdempotencyToken> {
    Some(IdempotencyToken { token: tagged.token.clone(), generation_time: None })
}

/// Why a comparison did not come to its end.
pub enum Broken {
    /// Something is wrong, in words.
    Wrong(String),
    /// The server did not answer; whether it may be gone, the caller knows.
    NoAnswer(String),
}

impl From<Status> for Broken {
    fn from(status: Status) -> Self {
        let text = format!("{status}");
        if reason(&status).is_empty() { Self::NoAnswer(text) } else { Self::Wrong(text) }
    }
}

/// Asks for every token of unknown fate until it is settled, then reads the counters that were written since the last
/// look.
pub fn settle_and_compare(server: &Server, ledger: &mut Ledger, seed: u64) -> Result<(), Broken> {
    settle_all(server, ledger, seed)?;
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let connected = connect(&[server]).await;
        let [mut client, ..] = connected.map_err(|error| Broken::NoAnswer(error.to_string()))?;
        let mut wrong = Vec::new();
        for counter in ledger.to_look_at() {
            let read = read(&mut client, &counter, Freshness::UpToDate).await?;
            wrong.extend(ledger.compare(&counter, read).err());
        }
        ledger.looked_at_all();
        if wrong.is_empty() {
            return Ok(());
        }
        let shown = wrong.iter().take(5).cloned().collect::<Vec<_>>().join("\n");
        Err(Broken::Wrong(format!("{} counters are wrong\n{shown}", wrong.len())))
    })
}

/// Asks for every token of unknown fate until it is settled.
pub fn settle_all(server: &Server, ledger: &mut Ledger, seed: u64) -> Result<(), Broken> {
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let connected = connect(&[server]).await;
        let [mut client, ..] = connected.map_err(|error| Broken::NoAnswer(error.to_string()))?;
        let mut chance = Chance::new(seed);
        for tagged in ledger.unknown() {
            let fate = settle(&mut client, &tagged, chance.below(2) == 0).await?;
            ledger.settle(&tagged, fate);
        }
        Ok(())
    })
}

/// Settles one token, by sending its add again or by CheckToken; both must be final.
async fn settle(client: &mut Client, tagged: &Tagged, by_sending: bool) -> Result<Fate, Broken> {
    let deadline = Instant::now() + SETTLED_WITHIN;
    loop {
        let sent = if by_sending { send(client, std::slice::from_ref(tagged)).await[0] } else { Fate::Unknown };
        // CheckToken tells a server that is gone from a token that is pending.
        let fate = if sent == Fate::Unknown { check(client, tagged).await? } else { sent };
        if fate != Fate::Unknown {
            return Ok(fate);
        }
        if Instant::now() > deadline {
            return Err(Broken::Wrong(format!("{tagged:?} is not settled within {SETTLED_WITHIN:?}")));
        }
        tokio::task::yield_now().await;
    }
}

async fn check(client: &mut Client, tagged: &Tagged) -> Result<Fate, Broken> {
    let request = CheckTokenRequest {
        namespace: NAMESPACE.to_owned(),
        counter_name: tagged.counter.clone(),
        idempotency_token: token(tagged),
    };
    let answer = client.check_token(request).await?.into_inner();
    match answer.verdict() {
        Verdict::Applied if answer.delta == tagged.delta() => Ok(Fate::Applied),
        Verdict::NotApplied => Ok(Fate::NotApplied),
        Verdict::Pending => Ok(Fate::Unknown),
        Verdict::Applied | Verdict::TooOld | Verdict::Unspecified => {
            Err(Broken::Wrong(format!("{tagged:?}: {answer:?}")))
        }
    }
}

async fn read(client: &mut Client, counter: &str, freshness: Freshness) -> Result<i64, Broken> {
    let request = GetCountRequest {
        namespace: NAMESPACE.to_owned(),
        counter_name: counter.to_owned(),
        freshness: freshness.into(),
        ..GetCountRequest::default()
    };
    let answer = client.get_count(request).await?.into_inner();
    if freshness == Freshness::UpToDate && answer.exactness() != Exactness::UpToDate {
        return Err(Broken::Wrong(format!("{counter}: asked for UP_TO_DATE, got {:?}", answer.exactness())));
    }
    Ok(answer.count)
}

/// Waits until the rolled-up counts of all counters are what the ledger says.
pub fn wait_until_rolled_up(server: &Server, ledger: &Ledger) -> Result<(), String> {
    let runtime = Runtime::new().expect("a runtime");
    let [mut client, ..] = runtime.block_on(connect(&[server])).map_err(|error| error.to_string())?;
    for counter in ledger.counters() {
        let mut last = Ok(());
        let rolled_up = eventually(ROLLED_UP_WITHIN, || {
            let read = runtime.block_on(read(&mut client, &counter, Freshness::RolledUp));
            last = match read {
                Ok(read) => ledger.compare(&counter, read),
                Err(Broken::Wrong(text) | Broken::NoAnswer(text)) => Err(text),
            };
            last.is_ok()
        });
        if !rolled_up {
            last?;
        }
    }
    Ok(())
}
