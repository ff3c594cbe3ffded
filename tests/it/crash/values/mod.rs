//! An exclusive queue of a few values, killed at any moment: a value is never with two workers, its messages go out in
//! their order, and attempts are exact.
//!
//! Whoever got no answer asks again after the restart, under the same id, session and lease: what became of the call is
//! known then, and every message is compared with what it must be. Leases last longer than the test. A lease whose
//! settlement was sent may have ended; any other one holds its value.

mod ledger;

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tallystone::proto::queue::v1::dequeue_response::Completeness;
use tallystone::proto::queue::v1::{
    CreateQueueRequest, DequeueRequest, EnqueueRequest, GetDepthRequest, GetMessageRequest, Message, MessageState,
    OpenSessionRequest, Queue, QueueType, SettleMessagesRequest, Settlement, Verb,
};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tonic::{Code, Request, Status};
use tonic_types::StatusExt;
use uuid::Uuid;

use ledger::{Known, Ledger, Settling, wrong};

use super::queues::{CheckError, Client, HOUR, connect, on_runtime};
use super::{CrashTest, Rng, rounds, start_under};
use crate::support::harness::{Launch, Server};
use crate::support::powerloss::Moment;

/// Crashes in each test for every change.
const ROUNDS: u32 = 6;
/// The same with `tests/run --long`.
const ROUNDS_LONG: u32 = 100;
const QUEUE: &str = "values";
const VALUES: u64 = 5;
const PRODUCERS: u64 = 2;
const WORKERS: u64 = 6;
/// What is answered at least in every round whose end the test chooses.
const ANSWERS_MIN: u64 = 100;
/// A machine that stands still ends no call.
const CALL_WITHIN: Duration = Duration::from_secs(60);
/// The longest lease of a session.
const HALF_A_DAY: prost_types::Duration = prost_types::Duration { seconds: 43_200, nanos: 0 };

#[test]
fn no_kill_gives_a_value_to_two_workers_or_its_messages_out_of_order() {
    let mut test = CrashTest::new("no_kill_gives_a_value_to_two_workers_or_its_messages_out_of_order");
    let mut story = Story::new(&mut test.rng);
    for round in 0..rounds(ROUNDS, ROUNDS_LONG) {
        test.round = round;
        if round % 3 == 2 {
            test.kill_in_recovery();
        }
        story.round_of_a_kill(&mut test);
    }
    story.finish(test);
}

#[test]
fn no_power_cut_gives_a_value_to_two_workers_or_its_messages_out_of_order() {
    let mut test = CrashTest::new("no_power_cut_gives_a_value_to_two_workers_or_its_messages_out_of_order");
    let mut story = Story::new(&mut test.rng);
    for round in 0..rounds(ROUNDS, ROUNDS_LONG) {
        test.round = round;
        let cut = test.power_cut();
        let Some(mut server) = start_under(Launch::dev(&test.data), &cut) else {
            continue; // the power went before it was ready
        };
        let answers = if matches!(cut.moment, Moment::OnSignal) { ANSWERS_MIN + test.rng.below(300) } else { 5_000 };
        let told = on_runtime(async {
            story.catch_up(&server).await?;
            story.load(&server, answers, |server| server.signal(libc::SIGUSR2)).await
        });
        if let Err(CheckError::Mismatch(wrong)) = told {
            test.fail(&format!("round {round}: {wrong}\n{}", server.printed()));
        }
        server.signal(libc::SIGUSR2); // the callers may have given up before there were enough answers
        let status = server.wait();
        assert_eq!(status.signal(), Some(libc::SIGKILL), "round {round}: the power went: {status}");
    }
    story.round_of_a_kill(&mut test); // whenever the power went, there was load
    story.finish(test);
}

/// A dequeue that was sent, until it is answered.
#[derive(Clone, Debug)]
struct Asking {
    max_messages: i32,
    wait: Option<prost_types::Duration>,
    began: u64,
    tries: i32,
}

/// Whoever calls: a producer or a worker, over all rounds.
struct Caller {
    ledger: Arc<Mutex<Ledger>>,
    rng: Rng,
    is_producer: bool,
    sending: Option<Message>,
    session: Option<String>,
    sequence: u64,
    asking: Option<Asking>,
    held: Vec<(String, String)>,
    settling: Option<Settling>,
}

impl Caller {
    /// Does one thing; says whether it was answered with something.
    async fn step(&mut self, client: &mut Client) -> Result<bool, CheckError> {
        if self.is_producer {
            let message = self.message();
            self.ledger.lock().send(&message);
            self.sending = Some(message);
            self.send(client).await?;
            return Ok(true);
        }
        if !self.held.is_empty() && self.rng.below(10) < 7 {
            let (id, token) = self.held.swap_remove(self.rng.index(self.held.len()));
            let verb = [Verb::Complete, Verb::Complete, Verb::Fail, Verb::Release][self.rng.index(4)];
            self.settle(client, id, token, verb).await?;
            return Ok(true);
        }
        let wait = self.held.is_empty().then_some(prost_types::Duration { seconds: 1, nanos: 0 });
        let max_messages = 1 + i32::try_from(self.rng.below(3)).expect("small");
        Ok(!self.dequeue(client, max_messages, wait).await?)
    }

    /// Asks again whatever got no answer.
    async fn catch_up(&mut self, client: &mut Client) -> Result<(), CheckError> {
        self.send(client).await?;
        self.settle_again(client).await?;
        if self.asking.is_some() {
            self.ask(client).await?;
        }
        if self.held.is_empty() {
            self.session = None; // one that holds nothing does not outlive its server
        }
        Ok(())
    }

    fn message(&mut self) -> Message {
        let id = Uuid::now_v7().to_string();
        Message {
            payload: id.clone().into_bytes(),
            message_id: id,
            priority: Some(i64::try_from(self.rng.below(4)).expect("small")),
            metadata: [("value".to_owned(), format!("v-{}", self.rng.below(VALUES)))].into(),
            max_attempts: Some(10_000),
            ..Message::default()
        }
    }

    /// Sends the message that was not acknowledged yet, if there is one.
    async fn send(&mut self, client: &mut Client) -> Result<(), CheckError> {
        let Some(message) = self.sending.clone() else { return Ok(()) };
        let id = message.message_id.clone();
        let request = EnqueueRequest { queue: QUEUE.to_owned(), message: Some(message) };
        client.enqueue(within(request)).await.map_err(gone)?;
        self.ledger.lock().taken(&id);
        self.sending = None;
        Ok(())
    }

    /// Dequeues; says whether nothing is left.
    async fn dequeue(
        &mut self,
        client: &mut Client,
        max_messages: i32,
        wait: Option<prost_types::Duration>,
    ) -> Result<bool, CheckError> {
        if self.session.is_none() {
            let request = OpenSessionRequest { label: String::new(), session_lease: Some(HALF_A_DAY) };
            let opened = client.open_session(within(request)).await.map_err(gone)?.into_inner();
            (self.session, self.sequence) = (Some(opened.session_id), 0);
        }
        self.sequence += 1;
        let began = self.ledger.lock().tick();
        self.asking = Some(Asking { max_messages, wait, began, tries: 0 });
        self.ask(client).await
    }

    /// Sends a dequeue, perhaps again; says whether nothing is left.
    async fn ask(&mut self, client: &mut Client) -> Result<bool, CheckError> {
        let asking = self.asking.as_mut().expect("there is a call to send");
        asking.tries += 1;
        let request = DequeueRequest {
            queue: QUEUE.to_owned(),
            max_messages: asking.max_messages,
            lease_duration: Some(HOUR),
            wait: asking.wait.filter(|_| asking.tries == 1), // what the first call was given is there at once
            session_id: self.session.clone().unwrap_or_default(),
            sequence: self.sequence,
            r#try: asking.tries,
            ..DequeueRequest::default()
        };
        let (began, is_repeat) = (asking.began, asking.tries > 1);
        let answer = match client.dequeue(within(request)).await {
            Ok(answer) => answer.into_inner(),
            // Had the call leased something, its session would have outlived the server.
            Err(status) if is_repeat && self.held.is_empty() && reason(&status) == "SESSION_NOT_FOUND" => {
                (self.session, self.asking) = (None, None);
                return Ok(false);
            }
            Err(status) => return Err(gone(status)),
        };
        self.asking = None;
        for lease in &answer.leases {
            self.ledger.lock().leased(began, lease)?;
            let id = lease.message.as_ref().map(|message| message.message_id.clone()).unwrap_or_default();
            self.held.push((id, lease.lease_token.clone()));
        }
        Ok(answer.leases.is_empty() && answer.completeness() == Completeness::Complete)
    }

    async fn settle(&mut self, client: &mut Client, id: String, token: String, verb: Verb) -> Result<(), CheckError> {
        self.ledger.lock().known(&id).ending = Some(verb);
        self.settling = Some(Settling { id, token, verb, sent_before: false });
        self.settle_again(client).await
    }

    /// Sends the settlement that was not answered yet, if there is one.
    async fn settle_again(&mut self, client: &mut Client) -> Result<(), CheckError> {
        let Some(settling) = self.settling.clone() else { return Ok(()) };
        self.settling = Some(Settling { sent_before: true, ..settling.clone() });
        let item = Settlement {
            lease_token: settling.token.clone(),
            verb: settling.verb.into(),
            delay: (settling.verb == Verb::Fail).then(prost_types::Duration::default),
            ..Settlement::default()
        };
        let request = SettleMessagesRequest { queue: QUEUE.to_owned(), items: vec![item] };
        let answer = client.settle_messages(within(request)).await.map_err(gone)?.into_inner();
        let error = answer.results.into_iter().next().and_then(|result| result.error);
        let mut ledger = self.ledger.lock();
        let has_gone_on = settling.sent_before && ledger.known(&settling.id).open.as_ref() != Some(&settling.token);
        match error {
            None => ledger.settled(&settling),
            // It was heard before the kill, and whoever leased the message then has settled it.
            Some(error) if error.reason == "LEASE_LOST" && has_gone_on => {}
            Some(error) => return wrong(format!("a lease that holds was not settled: {settling:?}: {error:?}")),
        }
        self.settling = None;
        Ok(())
    }
}

/// All callers, and what they know.
struct Story {
    ledger: Arc<Mutex<Ledger>>,
    callers: Vec<Caller>,
    answered: Arc<AtomicU64>,
}

impl Story {
    fn new(rng: &mut Rng) -> Self {
        let ledger = Arc::new(Mutex::new(Ledger::default()));
        let caller = |number: u64| Caller {
            ledger: Arc::clone(&ledger),
            rng: Rng::new(rng.below(u64::MAX) ^ number),
            is_producer: number < PRODUCERS,
            sending: None,
            session: None,
            sequence: 0,
            asking: None,
            held: Vec::new(),
            settling: None,
        };
        let callers = (0..PRODUCERS + WORKERS).map(caller).collect();
        Self { ledger, callers, answered: Arc::default() }
    }

    fn round_of_a_kill(&mut self, test: &mut CrashTest) {
        let server = Launch::dev(&test.data).start();
        let answers = ANSWERS_MIN + test.rng.below(300);
        let before = self.answered.load(Ordering::Relaxed);
        let told = on_runtime(async {
            self.catch_up(&server).await?;
            self.load(&server, answers, |server| server.signal(libc::SIGKILL)).await
        });
        if let Err(wrong) = told {
            test.fail(&format!("round {}: {wrong}\n{}", test.round, server.printed()));
        }
        server.kill();
        let answered = self.answered.load(Ordering::Relaxed) - before;
        assert!(answered >= ANSWERS_MIN, "round {}: there was load: {answered}", test.round);
    }

    /// Lets every caller ask again what got no answer, then compares every message with what it must be.
    async fn catch_up(&mut self, server: &Server) -> Result<(), CheckError> {
        let mut client = connect(server).await?;
        let queue = Queue {
            name: QUEUE.to_owned(),
            r#type: QueueType::Exclusive.into(),
            exclusivity_key: "value".to_owned(),
            shards: Some(2),
            ..Queue::default()
        };
        let request = CreateQueueRequest { queue: Some(queue), reason: String::new() };
        client.create_queue(within(request)).await.map_err(gone)?;
        for caller in &mut self.callers {
            caller.catch_up(&mut client).await?;
        }
        self.check(&mut client).await
    }

    async fn check(&self, client: &mut Client) -> Result<(), CheckError> {
        let all: Vec<(String, Known)> =
            self.ledger.lock().messages.iter().map(|(id, known)| (id.clone(), known.clone())).collect();
        let mut counts = BTreeMap::new();
        for (id, known) in all {
            let request =
                GetMessageRequest { queue: QUEUE.to_owned(), message_id: id.clone(), shard_key: String::new() };
            let found =
                client.get_message(within(request)).await.map_err(gone)?.into_inner().message.unwrap_or_default();
            if (found.state(), found.attempt_number) != (known.state(), known.attempts) {
                return wrong(format!("message {id} is not what it must be: known {known:?}, found {found:?}"));
            }
            *counts.entry(known.state().as_str_name()).or_insert(0) += 1;
        }
        let request = GetDepthRequest { queue: QUEUE.to_owned(), ..GetDepthRequest::default() };
        let depth = client.get_depth(within(request)).await.map_err(gone)?.into_inner();
        let of = |state: MessageState| counts.get(state.as_str_name()).copied().unwrap_or_default();
        let told = [depth.pending, depth.running, depth.completed, depth.invisible, depth.errored, depth.canceled];
        let known = [of(MessageState::Pending), of(MessageState::Running), of(MessageState::Completed), 0, 0, 0];
        if told == known { Ok(()) } else { wrong(format!("the depth is {told:?}, it must be {known:?}")) }
    }

    /// Lets all call until so many calls were answered and the server is ended, or it is gone by itself.
    async fn load(&mut self, server: &Server, answers: u64, end: impl FnOnce(&Server)) -> Result<(), CheckError> {
        let enough = Arc::new((AtomicU64::new(answers), Notify::new()));
        let mut calling = JoinSet::new();
        for mut caller in self.callers.drain(..) {
            let (client, enough, answered) = (connect(server).await, Arc::clone(&enough), Arc::clone(&self.answered));
            calling.spawn(async move {
                let told = call(&mut caller, client, &enough, &answered).await;
                (caller, told)
            });
        }
        let mut end = Some(end);
        let mut told = Ok(());
        loop {
            tokio::select! {
                () = enough.1.notified(), if end.is_some() => {
                    if let Some(end) = end.take() {
                        end(server);
                    }
                }
                next = calling.join_next() => match next {
                    Some(joined) => {
                        let (caller, ended) = joined.expect("no caller panics");
                        self.callers.push(caller);
                        if let Err(CheckError::Mismatch(wrong)) = ended {
                            told = Err(CheckError::Mismatch(wrong));
                        }
                    }
                    None => return told,
                },
            }
        }
    }

    /// After the last round: works off what waits, and an orderly stop changes nothing.
    fn finish(mut self, mut test: CrashTest) {
        let server = Launch::dev(&test.data).start();
        let told = on_runtime(async {
            self.catch_up(&server).await?;
            self.work_off(&server).await?;
            self.catch_up(&server).await
        });
        if let Err(wrong) = told {
            test.fail(&format!("in the end: {wrong}\n{}", server.printed()));
        }
        assert!(server.stop().success(), "an orderly stop");
        let server = Launch::dev(&test.data).start();
        if let Err(wrong) = on_runtime(self.catch_up(&server)) {
            test.fail(&format!("after an orderly stop: {wrong}\n{}", server.printed()));
        }
        let left = self.ledger.lock().messages.values().filter(|known| !known.completed).count();
        assert_eq!(left, 0, "all were worked off");
    }

    /// Completes what is held, then whatever waits.
    async fn work_off(&mut self, server: &Server) -> Result<(), CheckError> {
        let mut client = connect(server).await?;
        for caller in self.callers.iter_mut().filter(|caller| !caller.is_producer) {
            loop {
                while let Some((id, token)) = caller.held.pop() {
                    caller.settle(&mut client, id, token, Verb::Complete).await?;
                }
                let is_empty = caller.dequeue(&mut client, 100, None).await?;
                if is_empty && caller.held.is_empty() {
                    break;
                }
            }
        }
        Ok(())
    }
}

async fn call(
    caller: &mut Caller,
    client: Result<Client, CheckError>,
    enough: &(AtomicU64, Notify),
    answered: &AtomicU64,
) -> Result<(), CheckError> {
    let mut client = client?;
    loop {
        if caller.step(&mut client).await? {
            answered.fetch_add(1, Ordering::Relaxed);
            if enough.0.fetch_sub(1, Ordering::Relaxed) == 1 {
                enough.1.notify_one();
            }
        }
    }
}

fn within<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(CALL_WITHIN);
    request
}

fn reason(status: &Status) -> String {
    status.get_details_error_info().map(|info| info.reason).unwrap_or_default()
}

/// A call without an answer; one that was refused here is a fault.
fn gone(status: Status) -> CheckError {
    match status.code() {
        Code::Unavailable | Code::Unknown | Code::Internal | Code::Cancelled | Code::DeadlineExceeded => {
            CheckError::NoAnswer(status.to_string())
        }
        _ => CheckError::Mismatch(format!("a call was refused: {status}")), // no caller asks for what is not to be had
    }
}
