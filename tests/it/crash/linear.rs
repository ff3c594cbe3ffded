//! What callers saw of a queue over many kills and power cuts is one story: a recorded history of one shard, in which a call
//! that got no answer was applied before the kill or never.

use std::os::unix::process::ExitStatusExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tallystone::proto::queue::v1::{
    CompleteRequest, CreateQueueRequest, DequeueRequest, EnqueueRequest, FailRequest, GetMessageRequest, Message,
    MessageState, Queue, ReleaseRequest,
};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tonic::{Code, Status};

use super::queues::{Client, HOUR, connect, on_runtime};
use super::{CrashTest, Rng, rounds, start_under};
use crate::linear::model::{ATTEMPTS, Standing};
use crate::linear::search::check;
use crate::linear::{Answer, Call, Recorder, Verb};
use crate::support::harness::{Launch, Server};
use crate::support::powerloss::{Moment, PowerCut};

const QUEUE: &str = "story";
const CALLERS: u64 = 6;
/// How many ids messages may have.
const IDS: u64 = 60;
/// The part of a fence that counts leases.
const LEASE_BITS: u64 = (1 << 40) - 1;

/// A lease: its message, its number, its token.
pub type Held = (String, u64, String);

/// Creates the queue of a story.
pub async fn create(client: &mut Client, queue: &str) {
    create_once(client, queue).await.expect("it has just started");
}

/// The same where the server may be away.
pub async fn create_once(client: &mut Client, queue: &str) -> Result<(), Status> {
    let attempts = i32::try_from(ATTEMPTS).expect("small");
    let settings = Queue { name: queue.to_owned(), default_max_attempts: Some(attempts), ..Queue::default() };
    client.create_queue(CreateQueueRequest { queue: Some(settings), reason: String::new() }).await.map(drop)
}

#[test]
fn what_callers_saw_over_kills_is_one_story() {
    let mut test = CrashTest::new("what_callers_saw_over_kills_is_one_story");
    for story in 0..rounds(3, 20) {
        tell(&mut test, story, Fault::Kill);
    }
}

#[test]
fn what_callers_saw_over_power_cuts_is_one_story() {
    let mut test = CrashTest::new("what_callers_saw_over_power_cuts_is_one_story");
    for story in 0..rounds(1, 20) {
        tell(&mut test, story, Fault::PowerCut);
    }
}

/// What ends a server of a story.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    /// Pages that were not synced go, or some of them.
    PowerCut,
}

/// One story of four lives of a server.
fn tell(test: &mut CrashTest, story: u32, fault: Fault) {
    let queue = format!("{QUEUE}-{story}");
    let (recorder, held) = (Recorder::default(), Arc::new(Mutex::new(Vec::new())));
    for life in 0..4 {
        let (mut server, signal) = match fault {
            Fault::Kill => (Launch::dev(&test.data).start(), libc::SIGKILL),
            Fault::PowerCut => {
                let cut = PowerCut { moment: Moment::OnSignal, ..test.power_cut() };
                (start_under(Launch::dev(&test.data), &cut).expect("nobody has cut the power yet"), libc::SIGUSR2)
            }
        };
        let calls = 20 + test.rng.below(60);
        let seed = test.rng.below(u64::MAX);
        on_runtime(call_until_killed(&server, signal, &queue, (&recorder, &held), (seed, calls)));
        assert_eq!(server.wait().signal(), Some(libc::SIGKILL), "story {story}, life {life}");
        recorder.cut();
        let answered = recorder.history().iter().filter(|operation| operation.answer.is_some()).count();
        assert!(answered as u64 >= calls * (life + 1) / 4, "there was load: {answered}");
    }
    if let Err(unfit) = check(&recorder.history()) {
        test.fail(&format!("story {story}: {unfit:?}"));
    }
}

async fn call_until_killed(
    server: &Server,
    signal: i32,
    queue: &str,
    (recorder, held): (&Recorder, &Arc<Mutex<Vec<Held>>>),
    (seed, calls): (u64, u64),
) {
    let mut client = connect(server).await.expect("it has just started");
    create(&mut client, queue).await;
    let enough = Arc::new((AtomicU64::new(calls), Notify::new()));
    let caller = |number: u64| {
        let (queue, client, recorder, held) = (queue.to_owned(), client.clone(), recorder.clone(), Arc::clone(held));
        let (enough, rng) = (Arc::clone(&enough), Rng::new(seed ^ number));
        Caller { queue, client, recorder, held, enough, over: Arc::default(), rng }
    };
    caller(0).look_at_all().await;
    let mut callers = JoinSet::new();
    for number in 0..CALLERS {
        callers.spawn(caller(number).run());
    }
    enough.1.notified().await;
    server.signal(signal);
    callers.join_all().await;
}

pub struct Caller {
    pub queue: String,
    pub client: Client,
    pub recorder: Recorder,
    pub held: Arc<Mutex<Vec<Held>>>,
    /// The calls until somebody is told of them.
    pub enough: Arc<(AtomicU64, Notify)>,
    pub over: Arc<AtomicBool>,
    pub rng: Rng,
}

impl Caller {
    /// Calls until the server is gone, or the story is over.
    pub async fn run(mut self) {
        while let Ok(()) = self.step().await {
            if self.enough.0.fetch_sub(1, Ordering::Relaxed) == 1 {
                self.enough.1.notify_one();
            }
            if self.over.load(Ordering::Relaxed) {
                return;
            }
        }
    }

    /// Sees at once what the kill before has left, so no guess at it is followed far by the search.
    pub async fn look_at_all(&mut self) {
        for id in 0..IDS {
            self.get(format!("m-{id}")).await.expect("it has just started");
        }
    }

    async fn step(&mut self) -> Result<(), Status> {
        let id = format!("m-{}", self.rng.below(IDS));
        match self.rng.below(10) {
            0..=3 => self.enqueue(id).await,
            4..=6 => self.dequeue().await,
            7 => self.get(id).await,
            _ => self.settle().await, // the draw is below 10
        }
    }

    async fn enqueue(&mut self, id: String) -> Result<(), Status> {
        let priority = id.bytes().map(i64::from).sum::<i64>() % 4; // the same for a repeat
        let call = self.recorder.begin(Call::Enqueue { id: id.clone(), priority });
        let message = Message { message_id: id, priority: Some(priority), ..Message::default() };
        let request = EnqueueRequest { queue: self.queue.clone(), message: Some(message) };
        let already = self.client.enqueue(request).await?.into_inner().already_enqueued;
        self.recorder.answered(call, Answer::Enqueued { already });
        Ok(())
    }

    async fn dequeue(&mut self) -> Result<(), Status> {
        let max = 1 + self.rng.below(3);
        let call = self.recorder.begin(Call::Dequeue { max: usize::try_from(max).expect("small") });
        let request = DequeueRequest {
            queue: self.queue.clone(),
            max_messages: i32::try_from(max).expect("small"),
            lease_duration: Some(HOUR),
            ..DequeueRequest::default()
        };
        let leases = self.client.dequeue(request).await?.into_inner().leases;
        let mut leased = Vec::new();
        for lease in leases {
            let (id, number) = (lease.message.unwrap_or_default().message_id, lease.fence & LEASE_BITS);
            leased.push((id.clone(), u32::try_from(lease.attempt_number).expect("from 1"), number));
            self.held.lock().push((id, number, lease.lease_token));
        }
        self.recorder.answered(call, Answer::Leased(leased));
        Ok(())
    }

    async fn get(&mut self, id: String) -> Result<(), Status> {
        let call = self.recorder.begin(Call::Get { id: id.clone() });
        let request = GetMessageRequest { queue: self.queue.clone(), message_id: id, shard_key: String::new() };
        let found = match self.client.get_message(request).await {
            Ok(found) => Some(standing(found.into_inner().message.unwrap_or_default().state())),
            Err(status) if status.code() == Code::NotFound => None,
            Err(status) => return Err(status),
        };
        self.recorder.answered(call, Answer::Found(found));
        Ok(())
    }

    /// Settles a lease of anyone's, of this life of the server or an earlier one; some are settled twice.
    async fn settle(&mut self) -> Result<(), Status> {
        let chosen = {
            let mut held = self.held.lock();
            let count = held.len() as u64;
            let at = usize::try_from(self.rng.below(count.max(1))).expect("it fits");
            if self.rng.below(5) == 0 { held.get(at).cloned() } else { (at < held.len()).then(|| held.remove(at)) }
        };
        let Some((id, lease, token)) = chosen else { return self.dequeue().await };
        let (queue, verb) = (self.queue.clone(), [Verb::Complete, Verb::Complete, Verb::Fail, Verb::Release]);
        let verb = verb[usize::try_from(self.rng.below(4)).expect("small")];
        let call = self.recorder.begin(Call::Settle { id, lease, verb });
        let settled = match verb {
            Verb::Complete => {
                let request = CompleteRequest { queue, lease_token: token };
                self.client.complete(request).await.map(|answer| answer.into_inner().state())
            }
            Verb::Fail => {
                let delay = Some(prost_types::Duration::default());
                let request = FailRequest { queue, lease_token: token, delay, error: None };
                self.client.fail(request).await.map(|answer| answer.into_inner().state())
            }
            Verb::Release => {
                let request = ReleaseRequest { queue, lease_token: token };
                self.client.release(request).await.map(|answer| answer.into_inner().state())
            }
        };
        let answer = match settled {
            Ok(state) => Answer::Settled(standing(state)),
            Err(status) if status.code() == Code::FailedPrecondition => Answer::LeaseLost,
            Err(status) => return Err(status),
        };
        self.recorder.answered(call, answer);
        Ok(())
    }
}

fn standing(state: MessageState) -> Standing {
    match state {
        MessageState::Pending => Standing::Pending,
        MessageState::Running => Standing::Running,
        MessageState::Completed => Standing::Completed,
        MessageState::Errored => Standing::Errored,
        other => panic!("nobody made a message {other:?}"), // nothing is delayed or canceled
    }
}
