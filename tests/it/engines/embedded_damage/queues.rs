//! A queue in a store that is damaged, and everything that can be read of it.

use std::sync::Arc;
use std::time::Duration;

use tallystone::adapters::embedded::Embedded;
use tallystone::adapters::manual::ManualClock;
use tallystone::domain::queue::command::{Dequeue, FailureReport, NewMessage};
use tallystone::domain::queue::messages::message::{LeaseToken, Metadata};
use tallystone::domain::queue::messages::message_id::MessageId;
use tallystone::domain::queue::messages::settlement::SettleAction;
use tallystone::domain::queue::setup::settings::{HistoryKept, IdReuse, MessageRetryPolicy, Retention};
use tallystone::domain::queue::{
    CatalogQueue, Command, MessageState, QueueId, QueueName, QueueSpec, Settings, ShardId,
};
use tallystone::domain::time::Timestamp;
use tallystone::ports::{MessageBody, QueueChange, QueueRecord, QueueStores, ShardCommand, StoredMessage};

const QUEUE: QueueId = QueueId(5);
const SHARD: ShardId = ShardId { queue: QUEUE, number: 0 };
/// The messages of the first page of 64: sequences begin with 1.
const FIRST_PAGE: u32 = 63;

/// One queue in which messages wait, run and are kept.
pub async fn fill(store: &Embedded) {
    let queues = stores_of(store);
    let spec = spec();
    let (time, version) = (Timestamp::from_secs(1), 1);
    let queue = CatalogQueue { id: QUEUE, spec: spec.clone(), version, created: time, updated: time, made_by: None };
    let change = QueueChange {
        deletion: None,
        id: QUEUE,
        name: spec.name.clone(),
        version,
        time,
        actor: "a test".to_owned(),
        reason: String::new(),
        differences: Vec::new(),
        spec: Some(spec.clone()),
    };
    let record = QueueRecord { expected_version: None, entry: Some(queue), companion: (), change };
    queues.catalog.commit(record).await.expect("the queue is named");
    queues.shards.create(QUEUE, 1, spec.settings.into()).await.expect("the queue is made");
    for page in 0..20 {
        let sent = (0..10).map(|at| enqueue(page * 10 + at)).collect();
        for answer in queues.shards.apply(SHARD, sent).await {
            assert!(answer.expect("taken").reply.is_ok());
        }
    }
    let taken = queues.shards.apply(SHARD, vec![dequeue(100)]).await.remove(0).expect("taken");
    // The first page of finished messages is whole, so the store has written it.
    for message in &taken.messages[..75] {
        let settled = queues.shards.apply(SHARD, vec![complete(message)]).await.remove(0);
        assert!(settled.expect("taken").reply.is_ok());
    }
}

/// Everything that can be read, part by part.
pub async fn content(store: &Embedded) -> Vec<(&'static str, String)> {
    let queues = stores_of(store);
    let mut parts = vec![("queues", format!("{:?}", queues.catalog.load().await.expect("readable")))];
    let shards = queues.shards.queues().await.expect("readable");
    parts.push(("shards", format!("{shards:?}")));
    if !shards.is_empty() {
        for state in MessageState::ALL {
            let listed = queues.reader.list(SHARD, state, 0, usize::MAX).await.expect("readable").messages;
            let texts: Vec<_> = listed.iter().map(|message| (&message.head.id, &message.head, &message.body)).collect();
            parts.push(("messages", format!("{texts:?}")));
        }
    }
    parts
}

fn stores_of(store: &Embedded) -> QueueStores {
    store.queue_stores(Arc::new(ManualClock::at(Timestamp::from_secs(1_000))))
}

fn spec() -> QueueSpec {
    let hour = Duration::from_secs(3_600);
    QueueSpec {
        name: QueueName::new("mail").expect("a valid name"),
        description: "for a test".to_owned(),
        template_for: None,
        shards: 1,
        required_durability: None,
        settings: Settings {
            default_lease: Duration::from_secs(30),
            max_run_time: hour,
            default_invisibility: Duration::ZERO,
            default_attempts: 3,
            retry: MessageRetryPolicy { initial: hour, factor_percent: 100, max: hour, jitter_percent: 0 },
            default_ttl: None,
            retention: Retention { completed: hour, canceled: hour, errored: hour },
            dedupe_window: hour,
            dedupe_max_bytes: 1 << 20,
            quota_messages: 1_000,
            quota_bytes: 1 << 20,
            payload_max_bytes: 4_096,
            metadata_max_bytes: 1_280,
            classes: Vec::new(),
            exclusivity: None,
            count_by: vec!["k".into()],
            count_by_values_max: 1_000,
            history: HistoryKept::All,
            reuse_ids: IdReuse::WhenOver,
            shapes: Vec::new(),
        },
        enqueue_blocked: None,
        dequeue_blocked: None,
    }
}

fn enqueue(number: u32) -> ShardCommand {
    let payload = vec![7; 100];
    let message = NewMessage {
        id: MessageId::new(&format!("message-{number}")).expect("a valid id"),
        token_time: Some(Timestamp::from_secs(1_000)),
        routing: None,
        metadata: Metadata::new([("customer", "ada")]).expect("a valid pair"),
        payload_bytes: 100,
        fingerprint: u64::from(number),
        priority: Some(if number < FIRST_PAGE { -1 } else { i64::from(number % 7) }),
        class: None,
        invisibility: None,
        visible_at: None,
        lease_duration: None,
        max_attempts: None,
        ttl: None,
    };
    let body = MessageBody { payload: payload.into(), kind: None, trace_context: None };
    ShardCommand { command: Command::Enqueue(Box::new(message)), body }
}

fn dequeue(max: usize) -> ShardCommand {
    ShardCommand::of(Command::Dequeue(Dequeue { max, ..Dequeue::default() }))
}

fn complete(message: &StoredMessage) -> ShardCommand {
    let fence = message.head.lease.expect("it runs").fence;
    let token = LeaseToken { key: message.head.key, fence };
    ShardCommand::of(Command::Settle { token, verb: SettleAction::Complete, failure: FailureReport::default() })
}
