//! What racing callers saw of a shard, on every store of queues: law 1 of the queue store by recorded histories.

use std::time::Duration;

use tallystone_domain::queue::command::FailureReport;
use tallystone_domain::queue::messages::message::{LeaseToken, MessageRef};
use tallystone_domain::queue::messages::message_id::MessageId;
use tallystone_domain::queue::messages::settlement::SettleAction as Ends;
use tallystone_domain::queue::{Command, MessageState, QueueId, Refusal, Reply, ShardId};
use tallystone_ports::{QueueStores, ShardCommand};
use tokio::task::JoinSet;

use crate::linear::history::History;
use crate::linear::model::Standing;
use crate::linear::search::{Unfit, check};
use crate::linear::{Answer, Call, Recorder, Verb};
use crate::queue_given::{dequeue, enqueue, on_every_queue_store, settings};

const CALLERS: u64 = 5;
const CALLS: usize = 40;

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn queue_store_law_1_what_racing_callers_saw_is_one_story() {
    on_every_queue_store(async |bench| {
        for seed in 0..8_u64 {
            let queue = QueueId(100 + u128::from(seed));
            bench.stores.shards.create(queue, 1, settings().into()).await.expect("a new queue");
            let history = record(&bench.stores, ShardId { queue, number: 0 }, seed).await;
            assert_eq!(history.len(), CALLERS as usize * CALLS);
            assert_eq!(check(&history), Ok(()), "seed {seed}");
            check_tampered(history);
        }
    })
    .await;
}

/// A check that finds nothing proves nothing: one lease that nobody gave, and one that went away, are noticed.
fn check_tampered(history: History) {
    let given = |answer: &Option<Answer>| matches!(answer, Some(Answer::Leased(leases)) if !leases.is_empty());
    let at = history.iter().position(|operation| given(&operation.answer)).expect("somebody was served");
    for change in [|leases: &mut Vec<(String, u32, u64)>| leases[0].1 += 1, |leases: &mut Vec<_>| leases.clear()] {
        let mut tampered = history.clone();
        if let Some(Answer::Leased(leases)) = &mut tampered[at].answer {
            change(leases);
        }
        assert!(matches!(check(&tampered), Err(Unfit::NoOrder(_))), "{:?}", tampered[at]);
    }
}

/// Lets callers race and answers what they saw.
async fn record(stores: &QueueStores, shard: ShardId, seed: u64) -> History {
    let recorder = Recorder::default();
    let mut callers = JoinSet::new();
    for caller in 0..CALLERS {
        let chance = (seed * CALLERS + caller + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let (stores, recorder) = (stores.clone(), recorder.clone());
        callers.spawn(Caller { stores, shard, recorder, chance, leases: Vec::new() }.run());
    }
    callers.join_all().await;
    recorder.history()
}

struct Caller {
    stores: QueueStores,
    shard: ShardId,
    recorder: Recorder,
    chance: u64,
    /// What it was given, settled or not: some is settled twice.
    leases: Vec<(String, LeaseToken)>,
}

impl Caller {
    fn below(&mut self, bound: u64) -> u64 {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        (self.chance >> 11) % bound
    }

    async fn run(mut self) {
        for _ in 0..CALLS {
            let id = format!("m-{}", self.below(12));
            match self.below(10) {
                0..=2 => self.enqueue(id).await,
                3..=5 => self.dequeue().await,
                6 => self.get(id).await,
                _ => self.settle().await, // the draw is below 10
            }
        }
    }

    async fn apply(&self, command: ShardCommand) -> (Result<Reply, Refusal>, Vec<String>) {
        let answer = self.stores.shards.apply(self.shard, vec![command]).await.remove(0).expect("the store takes it");
        let ids = answer.messages.iter().map(|message| message.head.id.to_string()).collect();
        (answer.reply, ids)
    }

    async fn enqueue(&mut self, id: String) {
        let priority = id.bytes().map(i64::from).sum::<i64>() % 3; // the same for a repeat
        let call = self.recorder.begin(Call::Enqueue { id: id.clone(), priority });
        match self.apply(enqueue(&id, priority, b"")).await.0 {
            Ok(Reply::Enqueued { already_enqueued: already, .. }) => {
                self.recorder.answered(call, Answer::Enqueued { already });
            }
            other => panic!("not enqueued: {other:?}"),
        }
    }

    async fn dequeue(&mut self) {
        let max = 1 + usize::try_from(self.below(3)).expect("small");
        let call = self.recorder.begin(Call::Dequeue { max });
        let (reply, ids) = self.apply(dequeue(max)).await;
        let Ok(Reply::Leases { leases, .. }) = reply else { panic!("no leases: {reply:?}") };
        let given = leases.iter().zip(&ids);
        let leased = given.map(|(lease, id)| (id.clone(), lease.attempt_number, lease.token.fence.serial)).collect();
        self.recorder.answered(call, Answer::Leased(leased));
        self.leases.extend(ids.into_iter().zip(leases.into_iter().map(|lease| lease.token)));
    }

    async fn get(&mut self, id: String) {
        let call = self.recorder.begin(Call::Get { id: id.clone() });
        let message = MessageRef::Id(MessageId::new(&id).expect("a valid id"), None);
        let found = self.stores.reader.get(self.shard, message).await.expect("a read");
        let standing = found.map(|(message, _)| standing(message.head.state));
        self.recorder.answered(call, Answer::Found(standing));
    }

    async fn settle(&mut self) {
        let Some(at) = (self.leases.len() as u64).checked_sub(1) else { return self.dequeue().await };
        // Mostly the newest, sometimes one that is over.
        let back = if self.below(4) == 0 { self.below(at + 1) } else { 0 };
        let (id, token) = self.leases[usize::try_from(at - back).expect("it fits")].clone();
        let (verb, ends) = [(Verb::Complete, Ends::Complete), (Verb::Fail, Ends::Fail), (Verb::Release, Ends::Release)]
            [usize::try_from(self.below(3)).expect("small")];
        let call = self.recorder.begin(Call::Settle { id, lease: token.fence.serial, verb });
        let failure = FailureReport { delay: Some(Duration::ZERO), ..FailureReport::default() };
        let command = Command::Settle { token, verb: ends, failure };
        let answer = match self.apply(ShardCommand::of(command)).await.0 {
            Ok(Reply::Settled(settlement)) => Answer::Settled(standing(settlement.state)),
            Err(Refusal::LeaseLost) => Answer::LeaseLost,
            other => panic!("not settled: {other:?}"),
        };
        self.recorder.answered(call, answer);
    }
}

fn standing(state: MessageState) -> Standing {
    match state {
        MessageState::Pending => Standing::Pending,
        MessageState::Running => Standing::Running,
        MessageState::Completed => Standing::Completed,
        MessageState::Errored => Standing::Errored,
        MessageState::Invisible | MessageState::Canceled => panic!("nobody made a message {state}"),
    }
}
