//! Queues, killed at any moment: no acknowledged enqueue is lost, no acknowledged completion is served again, attempts are
//! exact, and a lease that was given holds over the restart, for its worker and against everyone else. What a purge has removed
//! does not come back, and its enqueue is still answered as the first one was.
//!
//! Leases last longer than the test, so a message that was leased may come out again only after somebody was about to
//! give it back, and a message that runs without a lease that anyone knows of was leased by a call that got no answer.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tallystone::proto::queue::v1::queue_service_client::QueueServiceClient;
use tallystone::proto::queue::v1::{
    CompleteRequest, CreateQueueRequest, DequeueRequest, EnqueueRequest, FailRequest, GetMessageRequest,
    GetOperationRequest, Lease, Message, MessageState, Operation, OperationState, PurgeQueueRequest, Queue,
};
use tokio::runtime::Runtime;
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};
use tonic::{Code, Status};
use uuid::Uuid;

use super::{CrashTest, Rng, rounds, start_under};
use crate::support::harness::{Launch, PATIENCE, Server};
use crate::support::patience::{PatientChannel, try_patient_channel};
use crate::support::powerloss::Moment;

/// Crashes in each test for every change.
const ROUNDS: u32 = 10;
/// The same with `tests/run --long`.
const ROUNDS_LONG: u32 = 100;
const QUEUE: &str = "crash";
const PRODUCERS: u64 = 4;
const WORKERS: u64 = 8;
/// In one of so many rounds what is completed is purged, beside all else.
const PURGED_IN_ONE_OF: u32 = 3;
/// In one of so many rounds open leases are completed first. So there are pages of finished messages only, on disk when the kill
/// comes, which a start reads instead of heads.
const WORKED_OFF_IN_ONE_OF: u32 = 3;
/// The oldest leases stay open over all rounds, so many.
const LEASES_LEFT_OPEN: usize = 3;
pub(super) const HOUR: prost_types::Duration = prost_types::Duration { seconds: 3_600, nanos: 0 };

pub(super) type Client = QueueServiceClient<PatientChannel>;

/// What is known of one message.
#[derive(Clone, Default, Debug)]
struct Known {
    /// Its enqueue was acknowledged.
    enqueued: bool,
    /// How many of its leases were acknowledged.
    leases: i32,
    /// The lease it should have.
    open: Option<String>,
    /// It may have been given back.
    failing: bool,
    completing: bool,
    /// Its completion was acknowledged.
    completed: bool,
    /// A purge may have removed it once it was completed.
    may_go: bool,
    /// It was removed.
    gone: bool,
}

type Ledger = Arc<Mutex<BTreeMap<String, Known>>>;

#[test]
fn no_kill_loses_a_message_or_serves_a_completed_one() {
    let mut test = CrashTest::new("no_kill_loses_a_message_or_serves_a_completed_one");
    let (ledger, mut pages) = (fill_pages(&mut test), 0);
    for round in 0..rounds(ROUNDS, ROUNDS_LONG) {
        test.round = round;
        if round % 5 == 4 {
            test.kill_in_recovery();
        }
        let server = launch(&test.data).start();
        pages += pages_read(&server);
        if let Err(wrong) = on_runtime(check_and_work_off(&server, &ledger, round)) {
            test.fail(&format!("round {round}: {wrong}\n{}", server.printed()));
        }
        let acknowledgements = 1 + test.rng.below(600);
        let seed = test.rng.below(u64::MAX);
        let loaded =
            on_runtime(load(&server, &ledger, (round, seed), acknowledgements, |server| server.signal(libc::SIGKILL)));
        if let Err(wrong) = loaded {
            test.fail(&format!("round {round}: {wrong}\n{}", server.printed()));
        }
        server.kill();
    }
    assert!(pages > 0, "no start has read a page of finished messages");
    finish(test, &ledger);
}

#[test]
fn no_power_cut_loses_a_message_or_serves_a_completed_one() {
    let mut test = CrashTest::new("no_power_cut_loses_a_message_or_serves_a_completed_one");
    let (ledger, mut pages) = (fill_pages(&mut test), 0);
    let mut cuts = 0;
    for round in 0..rounds(ROUNDS, ROUNDS_LONG) {
        test.round = round;
        let cut = test.power_cut();
        cuts += 1;
        let Some(mut server) = start_under(launch(&test.data), &cut) else {
            continue; // the power went before it was ready
        };
        pages += pages_read(&server);
        let on_signal = matches!(cut.moment, Moment::OnSignal);
        let acknowledgements = if on_signal { 1 + test.rng.below(600) } else { 5_000 };
        let seed = test.rng.below(u64::MAX);
        let checked = on_runtime(check_and_work_off(&server, &ledger, round));
        let loaded = match checked {
            Ok(()) => on_runtime(load(&server, &ledger, (round, seed), acknowledgements, |server| {
                server.signal(libc::SIGUSR2);
            })),
            Err(CheckError::NoAnswer(_)) => Ok(()), // the power went while we asked
            Err(wrong) => Err(wrong),
        };
        if let Err(wrong) = loaded {
            test.fail(&format!("round {round}: {wrong}\n{}", server.printed()));
        }
        server.signal(libc::SIGUSR2); // the workers may have given up before there were enough answers
        let status = server.wait();
        assert_eq!(status.signal(), Some(libc::SIGKILL), "round {round}: the power went: {status}");
    }
    assert!(pages > 0, "no start has read a page of finished messages");
    test.check_power_cuts(cuts);
    finish(test, &ledger);
}

/// A server whose log says what a start reads of the queues.
fn launch(data: &Path) -> Launch {
    Launch::dev(data).env("TALLYSTONE__LOG__LEVEL", "info,tallystone::adapters::embedded=debug")
}

/// The number of pages of finished messages that the start of this server has read.
fn pages_read(server: &Server) -> u64 {
    let printed = server.printed();
    let (_, after) = printed.split_once("finished_pages=").expect("the log of a start has it");
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().expect("a number")
}

/// Before the first round: some hundred messages, nearly all completed, so that there are pages of finished messages from the
/// first start on. Few messages get through before a power cut.
fn fill_pages(test: &mut CrashTest) -> Ledger {
    const ACKNOWLEDGEMENTS: u64 = 2_000;
    let ledger = Ledger::default();
    let server = launch(&test.data).start();
    let seed = test.rng.below(u64::MAX);
    let end = |server: &Server| server.signal(libc::SIGKILL);
    let filled = on_runtime(async {
        check(&server, &ledger).await?;
        load(&server, &ledger, (0, seed), ACKNOWLEDGEMENTS, end).await
    });
    filled.unwrap_or_else(|wrong| test.fail(&format!("the first messages: {wrong}")));
    server.kill();
    let server = launch(&test.data).start();
    let worked_off = on_runtime(async {
        check(&server, &ledger).await?;
        complete_open(&server, &ledger, LEASES_LEFT_OPEN).await?;
        drain(&server, &ledger).await
    });
    worked_off.unwrap_or_else(|wrong| test.fail(&format!("the first messages: {wrong}")));
    assert!(server.stop().success());
    ledger
}

/// Compares every message with what is known of it, and in some rounds completes whatever has a lease.
async fn check_and_work_off(server: &Server, ledger: &Ledger, round: u32) -> Result<(), CheckError> {
    check(server, ledger).await?;
    if round % WORKED_OFF_IN_ONE_OF == 2 {
        complete_open(server, ledger, LEASES_LEFT_OPEN).await.map(drop)
    } else {
        Ok(())
    }
}

/// After the last round: every message, those that wait are worked off, and an orderly stop changes nothing.
fn finish(mut test: CrashTest, ledger: &Ledger) {
    let server = Launch::dev(&test.data).start();
    let work_off = async {
        check(&server, ledger).await?;
        let completed = complete_open(&server, ledger, 0).await?;
        assert!(completed > 0, "some leases were kept");
        drain(&server, ledger).await?;
        check(&server, ledger).await?;
        purge_all(&server, ledger).await?;
        check(&server, ledger).await?;
        repeat_enqueues_of_what_is_gone(&server, ledger).await
    };
    if let Err(wrong) = on_runtime(work_off) {
        test.fail(&format!("in the end: {wrong}\n{}", server.printed()));
    }
    assert!(server.stop().success(), "an orderly stop");
    let server = Launch::dev(&test.data).start();
    if let Err(wrong) = on_runtime(check(&server, ledger)) {
        test.fail(&format!("after an orderly stop: {wrong}\n{}", server.printed()));
    }
    let completed = ledger.lock().values().filter(|known| known.completed).count();
    assert!(completed > 300, "the rounds had load: {completed} completed");
    let left = ledger.lock().values().filter(|known| known.completed && !known.gone).count();
    assert_eq!(left, 0, "what the last purge left of {completed}");
}

/// What ended a look at the server.
#[derive(Debug)]
pub(super) enum CheckError {
    /// It is gone.
    NoAnswer(String),
    /// It says what cannot be.
    Mismatch(String),
}

impl std::fmt::Display for CheckError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::NoAnswer(text) | Self::Mismatch(text)) = self;
        f.write_str(text)
    }
}

impl From<Status> for CheckError {
    fn from(status: Status) -> Self {
        Self::NoAnswer(status.to_string())
    }
}

fn wrong(text: String) -> Result<(), CheckError> {
    Err(CheckError::Mismatch(text))
}

pub(super) fn on_runtime<T>(work: impl Future<Output = T>) -> T {
    Runtime::new().expect("a runtime").block_on(work)
}

pub(super) async fn connect(server: &Server) -> Result<Client, CheckError> {
    let channel = try_patient_channel(&server.url(), PATIENCE).await;
    Ok(QueueServiceClient::new(channel.map_err(|error| CheckError::NoAnswer(error.to_string()))?))
}

/// Compares every message with what is known of it, and takes in what became of calls that got no answer.
async fn check(server: &Server, ledger: &Ledger) -> Result<(), CheckError> {
    let mut client = connect(server).await?;
    let queue = Queue { name: QUEUE.to_owned(), shards: Some(2), ..Queue::default() };
    client.create_queue(CreateQueueRequest { queue: Some(queue), reason: String::new() }).await?;
    let all: Vec<String> = ledger.lock().keys().cloned().collect();
    for id in all {
        let asked = GetMessageRequest { queue: QUEUE.to_owned(), message_id: id.clone(), shard_key: String::new() };
        let found = match client.get_message(asked).await {
            Ok(found) => found.into_inner().message,
            Err(status) if status.code() == Code::NotFound => None,
            Err(status) => return Err(status.into()),
        };
        let mut ledger = ledger.lock();
        let known = ledger.get_mut(&id).expect("it is asked for");
        if let Err(why) = compare(known, found.as_ref()) {
            return wrong(format!("message {id}: {why}; known {known:?}, found {found:?}"));
        }
    }
    Ok(())
}

fn compare(known: &mut Known, found: Option<&Message>) -> Result<(), &'static str> {
    let Some(found) = found else {
        let removed = known.may_go && (known.completed || known.completing);
        if known.enqueued && !removed {
            return Err("an acknowledged enqueue is lost");
        }
        if removed {
            (known.completed, known.gone, known.open) = (true, true, None);
        }
        return Ok(());
    };
    if known.gone {
        return Err("what was purged is back");
    }
    known.enqueued = true;
    let (state, attempts) = (found.state(), found.attempt_number);
    let of_unknown_call = state == MessageState::Running && attempts == known.leases + 1;
    match state {
        _ if known.completed && state != MessageState::Completed => return Err("a completion is lost"),
        MessageState::Completed if known.completed => {}
        MessageState::Completed if known.completing => (known.completed, known.open) = (true, None),
        MessageState::Completed => return Err("completed by nobody"),
        // It may have been given back and leased again by a call that got no answer.
        MessageState::Running if of_unknown_call && (known.open.is_none() || known.failing) => {
            known.open = None;
            return Ok(());
        }
        MessageState::Running if known.open.is_some() => (known.failing, known.completing) = (false, false),
        MessageState::Running => return Err("it runs without a lease"),
        MessageState::Pending if known.open.is_none() || known.failing => {
            (known.open, known.failing) = (None, false);
        }
        MessageState::Pending => return Err("a lease is lost"),
        // Nothing here waits, cancels or runs out of attempts.
        _ => return Err("a state that nobody brought about"),
    }
    if attempts == known.leases { Ok(()) } else { Err("attempts are not exact") }
}

/// Loads the server until it has acknowledged so many calls and is ended, or is gone by itself.
async fn load(
    server: &Server,
    ledger: &Ledger,
    (round, seed): (u32, u64),
    acknowledgements: u64,
    end: impl FnOnce(&Server),
) -> Result<(), CheckError> {
    let enough = Arc::new(Enough { left: AtomicU64::new(acknowledgements), reached: Notify::new() });
    let mut tasks = JoinSet::new();
    for number in 0..PRODUCERS + WORKERS {
        let Ok(client) = connect(server).await else { continue };
        let (ledger, enough) = (Arc::clone(ledger), Arc::clone(&enough));
        let rng = Rng::new(seed ^ number);
        let caller = Caller { client, ledger, enough, rng };
        if number == 0 && round % PURGED_IN_ONE_OF == 1 {
            tasks.spawn(caller.purge_and_produce());
        } else if number < PRODUCERS {
            tasks.spawn(caller.produce());
        } else {
            tasks.spawn(caller.work());
        }
    }
    // A caller that got no answer gives up, also where the server only took too long. Workers alone would wait for ever.
    let first = tokio::select! {
        () = enough.reached.notified() => None,
        joined = tasks.join_next() => joined,
    };
    end(server);
    let mut loaded = first.map_or(Ok(()), outcome);
    while let Some(joined) = tasks.join_next().await {
        loaded = loaded.and(outcome(joined));
    }
    loaded
}

/// What a caller found, if it was not only that the server is gone.
fn outcome(joined: Result<Result<(), CheckError>, JoinError>) -> Result<(), CheckError> {
    match joined.expect("no caller panics") {
        Err(CheckError::NoAnswer(_)) => Ok(()),
        done => done,
    }
}

struct Enough {
    left: AtomicU64,
    reached: Notify,
}

struct Caller {
    client: Client,
    ledger: Ledger,
    enough: Arc<Enough>,
    rng: Rng,
}

impl Caller {
    /// Purges what is completed, and then enqueues.
    async fn purge_and_produce(mut self) -> Result<(), CheckError> {
        purge(&mut self.client, &self.ledger).await?;
        self.acknowledged();
        self.produce().await
    }

    fn acknowledged(&self) {
        if self.enough.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.enough.reached.notify_one();
        }
    }

    /// Enqueues until the server is gone, every message twice.
    async fn produce(mut self) -> Result<(), CheckError> {
        loop {
            let id = Uuid::now_v7().to_string();
            self.ledger.lock().insert(id.clone(), Known::default());
            for _ in 0..2 {
                self.client.enqueue(enqueue(&id)).await?;
                self.ledger.lock().get_mut(&id).expect("it is noted").enqueued = true;
                self.acknowledged();
            }
        }
    }

    /// Dequeues until the server is gone; of what it gets it completes most, gives some back and keeps some.
    async fn work(mut self) -> Result<(), CheckError> {
        loop {
            let max_messages = 1 + i32::try_from(self.rng.below(4)).expect("small");
            let request = DequeueRequest {
                queue: QUEUE.to_owned(),
                max_messages,
                lease_duration: Some(HOUR),
                ..DequeueRequest::default()
            };
            let leases = self.client.dequeue(request).await?.into_inner().leases;
            for lease in &leases {
                note_lease(&self.ledger, lease)?;
                self.acknowledged();
            }
            for lease in leases {
                let id = lease.message.as_ref().map(|message| message.message_id.clone()).unwrap_or_default();
                match self.rng.below(10) {
                    0 => {}
                    1 | 2 => give_back(&mut self.client, &self.ledger, &id, lease.lease_token).await?,
                    _ => complete(&mut self.client, &self.ledger, &id, lease.lease_token).await?, // most
                }
                self.acknowledged();
            }
        }
    }
}

/// The enqueue of a message, the same each time.
fn enqueue(id: &str) -> EnqueueRequest {
    let message = Message {
        message_id: id.to_owned(),
        payload: id.as_bytes().to_vec(),
        priority: Some(i64::from(id.as_bytes()[id.len() - 1] % 5)),
        max_attempts: Some(10_000),
        ..Message::default()
    };
    EnqueueRequest { queue: QUEUE.to_owned(), message: Some(message) }
}

/// Purges what is completed. It covers messages that are there by now, also if they are completed later.
async fn purge(client: &mut Client, ledger: &Ledger) -> Result<Operation, CheckError> {
    let all_may_go = || ledger.lock().values_mut().for_each(|known| known.may_go = true);
    let states = vec![MessageState::Completed.into()];
    let request = PurgeQueueRequest { queue: QUEUE.to_owned(), states, ..PurgeQueueRequest::default() };
    all_may_go();
    let purged = client.purge_queue(request).await;
    all_may_go();
    Ok(purged?.into_inner().operation.unwrap_or_default())
}

/// Purges what is completed, to the end.
async fn purge_all(server: &Server, ledger: &Ledger) -> Result<(), CheckError> {
    let mut client = connect(server).await?;
    let mut operation = purge(&mut client, ledger).await?;
    for _ in 0..100_000 {
        match operation.state() {
            OperationState::Running => {}
            OperationState::Done => return Ok(()),
            _ => break, // it ended in another way
        }
        let request = GetOperationRequest { operation_id: operation.operation_id };
        operation = client.get_operation(request).await?.into_inner().operation.unwrap_or_default();
    }
    wrong(format!("a purge that does not succeed: {operation:?}"))
}

/// Notes a lease, which must be of a message that nobody has.
fn note_lease(ledger: &Ledger, lease: &Lease) -> Result<(), CheckError> {
    let message = lease.message.clone().unwrap_or_default();
    let mut ledger = ledger.lock();
    let Some(known) = ledger.get_mut(&message.message_id) else {
        return wrong(format!("a message that nobody sent: {message:?}"));
    };
    let held = known.open.is_some() && !known.failing;
    if known.completed || known.completing || held {
        return wrong(format!("served although it is not to be: {known:?}, {lease:?}"));
    }
    known.leases += 1;
    known.enqueued = true;
    if lease.attempt_number != known.leases || message.payload != message.message_id.as_bytes() {
        return wrong(format!("another attempt or payload than was to come: {known:?}, {lease:?}"));
    }
    (known.open, known.failing) = (Some(lease.lease_token.clone()), false);
    Ok(())
}

async fn complete(client: &mut Client, ledger: &Ledger, id: &str, token: String) -> Result<(), CheckError> {
    ledger.lock().get_mut(id).expect("it is noted").completing = true;
    let request = CompleteRequest { queue: QUEUE.to_owned(), lease_token: token };
    client.complete(request).await.map_err(settled_or_gone)?;
    let mut ledger = ledger.lock();
    let known = ledger.get_mut(id).expect("it is noted");
    (known.completed, known.open) = (true, None);
    Ok(())
}

async fn give_back(client: &mut Client, ledger: &Ledger, id: &str, token: String) -> Result<(), CheckError> {
    ledger.lock().get_mut(id).expect("it is noted").failing = true;
    let delay = Some(prost_types::Duration::default());
    let request = FailRequest { queue: QUEUE.to_owned(), lease_token: token.clone(), delay, error: None };
    client.fail(request).await.map_err(settled_or_gone)?;
    let mut ledger = ledger.lock();
    let known = ledger.get_mut(id).expect("it is noted");
    // Somebody else may have it already.
    if known.open.as_ref() == Some(&token) {
        (known.open, known.failing) = (None, false);
    }
    Ok(())
}

/// A settlement of a lease that holds is never refused.
fn settled_or_gone(status: Status) -> CheckError {
    match status.code() {
        Code::FailedPrecondition | Code::NotFound | Code::InvalidArgument => {
            CheckError::Mismatch(format!("a settlement of a lease that holds was refused: {status}"))
        }
        _ => CheckError::NoAnswer(status.to_string()), // the server is gone
    }
}

/// Completes with the open leases of all rounds, but for the oldest, and returns how many: each holds over every restart since.
async fn complete_open(server: &Server, ledger: &Ledger, left: usize) -> Result<usize, CheckError> {
    let mut client = connect(server).await?;
    let open: Vec<(String, String)> =
        ledger.lock().iter().filter_map(|(id, known)| Some((id.clone(), known.open.clone()?))).skip(left).collect();
    let completed = open.len();
    for (id, token) in open {
        complete(&mut client, ledger, &id, token).await?;
    }
    Ok(completed)
}

/// Each is answered as a repeat, although nothing but the answer is left of its message.
async fn repeat_enqueues_of_what_is_gone(server: &Server, ledger: &Ledger) -> Result<(), CheckError> {
    let mut client = connect(server).await?;
    let gone: Vec<String> =
        ledger.lock().iter().filter(|(_, known)| known.gone).map(|(id, _)| id.clone()).take(100).collect();
    for id in gone {
        match client.enqueue(enqueue(&id)).await {
            Ok(answer) if answer.get_ref().already_enqueued => {}
            answer => return wrong(format!("the repeat of {id} was answered {answer:?}")),
        }
    }
    Ok(())
}

/// Completes whatever waits.
async fn drain(server: &Server, ledger: &Ledger) -> Result<(), CheckError> {
    let mut client = connect(server).await?;
    loop {
        let request = DequeueRequest {
            queue: QUEUE.to_owned(),
            max_messages: 100,
            lease_duration: Some(HOUR),
            ..DequeueRequest::default()
        };
        let leases = client.dequeue(request).await?.into_inner().leases;
        if leases.is_empty() {
            return Ok(());
        }
        for lease in leases {
            note_lease(ledger, &lease)?;
            let id = lease.message.map(|message| message.message_id).unwrap_or_default();
            complete(&mut client, ledger, &id, lease.lease_token).await?;
        }
    }
}
