//! What one caller may take of what all callers share: queues by template, purges, watches and streams; and what watches
//! take together. Sessions are in the registry's own tests.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::memory;
use tallystone::adapters::system::{SystemClock, SystemEntropy};
use tallystone::domain::Reason;
use tallystone::domain::Timestamp;
use tallystone::domain::limits::{
    CALLER_OPERATIONS_MAX, CALLER_QUEUE_WATCHES_MAX, CALLER_TEMPLATE_QUEUES_MAX, CALLER_WORK_STREAMS_MAX,
    OPERATIONS_MAX, QUEUES_FOR_CREATION_MIN, QUEUES_MAX,
};
use tallystone::domain::queue::{MessageState, QueueName};
use tallystone::engine::caller_quota::CallerId;
use tallystone::engine::catalog::Author;
use tallystone::engine::driver::Driver;
use tallystone::engine::queues::{OperationState, PurgeRequest, QueueDraft, QueueError, Queues, SentMessage};
use tallystone::ports::{Clock, QueueStores};

use crate::support::judging::CountedReads;

/// The queues of a server in memory.
async fn queues() -> Queues {
    let clock = Arc::new(SystemClock);
    start(memory::queue_stores(clock.clone()), clock).await
}

async fn start(stores: QueueStores, clock: Arc<dyn Clock>) -> Queues {
    let driver = Driver::new(clock.clone());
    Queues::start(stores, clock, Arc::new(SystemEntropy), driver, Arc::default()).await.expect("an empty store")
}

fn caller(last: u8) -> CallerId {
    CallerId::of_address([192, 0, 2, last].into())
}

fn name(text: &str) -> QueueName {
    QueueName::new(text).expect("a name")
}

async fn create(queues: &Queues, text: &str, template_for: Option<&str>) -> Result<(), QueueError> {
    let draft = QueueDraft { template_for: template_for.map(Into::into), ..QueueDraft::of(name(text)) };
    let author = Author { actor: String::new(), reason: String::new() };
    queues.catalog.create(draft, author).await.map(drop)
}

fn told(error: &QueueError) -> (Reason, String) {
    (error.reason(), error.to_string())
}

#[tokio::test]
async fn first_enqueues_of_one_caller_leave_queues_for_others_and_for_creations() {
    let queues = queues().await;
    create(&queues, "timed-task", Some("timed/")).await.expect("a template");
    let enqueue = async |from: u8, text: String| {
        queues.work.enqueue(&caller(from), &name(&text), SentMessage::default()).await.map(drop)
    };
    for number in 0..CALLER_TEMPLATE_QUEUES_MAX {
        enqueue(1, format!("timed/{number}")).await.expect("its share");
    }
    let (reason, text) = told(&enqueue(1, "timed/more".to_owned()).await.expect_err("its share is taken"));
    assert_eq!(reason, Reason::QueueFull);
    assert!(text.contains("this caller has 5000 queues made by templates"), "{text}");
    enqueue(1, "timed/7".to_owned()).await.expect("queues that are there take messages");
    let made = queues.count();
    let most = QUEUES_MAX - QUEUES_FOR_CREATION_MIN;
    for number in made..most {
        enqueue(2, format!("timed/b{number}")).await.expect("another one has its own share");
    }
    let (reason, text) = told(&enqueue(3, "timed/c".to_owned()).await.expect_err("templates have made all they may"));
    assert_eq!(reason, Reason::QueueFull);
    assert!(text.contains("there are 9000 queues"), "{text}");
    create(&queues, "mail", None).await.expect("places are left to creations");
}

#[tokio::test]
async fn purges_of_one_caller_leave_purges_for_others_and_for_itself() {
    let queues = queues().await;
    create(&queues, "mail", None).await.expect("a queue");
    let purge = async |from: u8| {
        queues.operations.purge(caller(from), &name("mail"), PurgeRequest::default(), Duration::from_secs(60)).await
    };
    for number in 0..=OPERATIONS_MAX {
        let done = purge(1).await.unwrap_or_else(|error| panic!("purge {number} of the same caller: {error}"));
        assert_eq!(done.state, OperationState::Done);
    }
    let first = purge(2).await.expect("others purge too");
    for _ in 0..=CALLER_OPERATIONS_MAX {
        purge(1).await.expect("its own give way");
    }
    assert_eq!(queues.operations.operation(&first.id).await.expect("and no other's").state, OperationState::Done);
}

#[tokio::test]
async fn streams_of_one_caller_leave_streams_for_others() {
    let queues = queues().await;
    create(&queues, "mail", None).await.expect("a queue");
    let watch = |from| queues.inspect.watch(&caller(from), &name("mail"), Duration::from_secs(1));
    let mut watches: Vec<_> = (0..CALLER_QUEUE_WATCHES_MAX).map(|_| watch(1).expect("its share")).collect();
    let (reason, text) = told(&watch(1).err().expect("its share is taken"));
    assert_eq!(reason, Reason::RetryLater);
    assert!(text.contains("this caller has 10000 watches of queues"), "{text}");
    assert!(watch(2).is_ok(), "others have their own");
    watches.pop();
    assert!(watch(1).is_ok(), "what ends is given back");
    let stream = |from| queues.work.place_for_stream(&caller(from));
    let streams: Vec<_> = (0..CALLER_WORK_STREAMS_MAX).map(|_| stream(1).expect("its share")).collect();
    let (_, text) = told(&stream(1).err().expect("its share is taken"));
    assert!(text.contains("this caller has 10000 work streams"), "{text}");
    assert!(stream(2).is_ok());
    drop(streams);
    assert!(stream(1).is_ok());
}

#[tokio::test]
async fn watches_of_a_queue_share_their_readings() {
    const WATCHES: usize = 300;
    const SHARDS: u32 = 8;
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_000_000)));
    let stores = memory::queue_stores(clock.clone());
    let store = Arc::new(CountedReads::of(stores.reader));
    let queues = start(QueueStores { reader: store.clone(), ..stores }, clock.clone()).await;
    let at_rest = clock.sleepers();
    let draft = QueueDraft { shards: Some(SHARDS), ..QueueDraft::of(name("mail")) };
    let author = Author { actor: String::new(), reason: String::new() };
    queues.catalog.create(draft, author).await.expect("a queue");
    let interval = Duration::from_millis(100);
    let mut watches = Vec::new();
    for _ in 0..WATCHES {
        let mut watch = queues.inspect.watch(&caller(1), &name("mail"), interval).expect("its share");
        let first = watch.next().await.expect("a look").expect("no failure");
        assert_eq!(first.depth.of(MessageState::Pending), 0, "the first look is at once");
        watches.push(watch);
    }
    let before = store.totals_read();
    queues.work.enqueue(&caller(1), &name("mail"), SentMessage::default()).await.expect("a message");
    let looks = join_all(watches.iter_mut().map(StreamExt::next));
    let time = async {
        clock.wait_for_sleepers(at_rest + WATCHES).await;
        clock.advance(interval);
    };
    let (looks, ()) = tokio::join!(looks, time);
    for look in looks {
        assert_eq!(look.expect("a look").expect("no failure").depth.of(MessageState::Pending), 1);
    }
    assert_eq!(store.totals_read() - before, u64::from(SHARDS), "one reading for all");
}
