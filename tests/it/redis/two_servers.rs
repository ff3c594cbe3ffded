//! Two servers on one Redis: what one of them does wakes the dequeues that wait at the other one.

use tallystone::adapters::redis::{self, RedisQueueOptions, RedisStoreOptions, RedisStores};
use tallystone::adapters::system::SystemEntropy;
use tallystone::domain::queue::QueueName;
use tallystone::domain::queue::filter::Filter;
use tallystone::domain::queue::messages::message::{MessageRef, Metadata};
use tallystone::engine::caller_quota::CallerId;
use tallystone::engine::catalog::{Author, FollowedCatalog};
use tallystone::engine::driver::Driver;
use tallystone::engine::queues::{DequeueRequest, QueueDraft, Queues, SentMessage};

use super::*;
use crate::servers::proxy::{Fault, Proxy, Wire};
use crate::servers::redis::RedisCluster;

/// The longest wait of a dequeue. A shard is polled less often, so a dequeue that gets a message was woken by news.
const WAIT: Duration = Duration::from_secs(20);
const SENT: usize = 40;

/// A server with its own connections.
pub(super) struct QueuesServer {
    pub(super) queues: Queues,
    stores: RedisStores,
    driver: Driver,
}

impl QueuesServer {
    pub(super) async fn start(deployment: Deployment) -> Self {
        Self::start_with(deployment, ASKED).await
    }

    pub(super) async fn start_with(deployment: Deployment, asked: AskedOfServers) -> Self {
        let queues =
            RedisQueueOptions { epoch: 1, clock_slack: Duration::from_secs(2), outbox_entries: 100, durability: None };
        let options = RedisStoreOptions { deployment, login: None, tls: None, timeout: TIMEOUT, queues, asked };
        let (clock, entropy) = (Arc::new(SystemClock), Arc::new(SystemEntropy));
        let opened = redis::open(options, clock.clone(), entropy.clone()).await;
        let stores = opened.unwrap_or_else(|error| panic!("{error}"));
        let driver = Driver::new(clock.clone());
        let started = Queues::start(stores.queues.clone(), clock, entropy, driver.clone(), Arc::default()).await;
        Self { queues: started.expect("it starts"), stores, driver }
    }

    /// Two servers and a queue that both know.
    async fn two(deployments: [Deployment; 2]) -> [Self; 2] {
        let [first, second] = deployments;
        let first = Self::start(first).await;
        let author = Author { actor: "test".to_owned(), reason: String::new() };
        let draft = QueueDraft { shards: Some(2), ..QueueDraft::of(name()) };
        first.queues.catalog.create(draft, author).await.expect("created");
        let second = Self::start(second).await;
        [first, second]
    }

    async fn enqueue(&self, metadata: &Metadata) {
        let sent = SentMessage { metadata: metadata.clone(), ..SentMessage::default() };
        self.queues.work.enqueue(&CallerId::nobody(), &name(), sent).await.expect("enqueued");
    }

    async fn wait_for_one(&self, filter: Filter) -> usize {
        let asked = DequeueRequest { max: 1, wait: WAIT, filter, ..DequeueRequest::default() };
        self.queues.work.dequeue(&name(), asked).await.expect("a dequeue").take().len()
    }

    pub(super) async fn stop(self) {
        self.driver.abandon().await;
        self.stores.handle.close().await;
    }
}

fn name() -> QueueName {
    QueueName::new("mail").expect("a valid name")
}

/// Sends messages through one server while the other one waits for each. Returns the median time until it has them, without
/// what the machine kept from each, as empty calls of Redis tell.
async fn send_and_wait(
    [sender, waiting]: &[QueuesServer; 2],
    metadata: &Metadata,
    filter: &Filter,
    yardstick: &Yardstick,
) -> Duration {
    let mut times = Vec::new();
    for at in 0..SENT {
        let began = Instant::now();
        let send = async {
            // The dequeue waits before the message is there.
            eventually("it waits", async || waiting.queues.waiting() > 0).await;
            let began = Instant::now();
            sender.enqueue(metadata).await;
            began
        };
        let (leased, sent_at) = tokio::join!(waiting.wait_for_one(filter.clone()), send);
        assert_eq!(leased, 1, "message {at} after {:?}", began.elapsed());
        times.push(sent_at.elapsed().saturating_sub(yardstick.kept(sent_at)));
    }
    times.sort_unstable();
    times[SENT / 2]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_wakes_the_dequeue_that_waits_at_the_other_server() {
    on_each_build(&RedisSettings::default(), async |server| {
        let both = QueuesServer::two([single(&server), single(&server)]).await;
        let median = send_and_wait(&both, &Metadata::default(), &Filter::default(), &beside(&server)).await;
        println!("median from enqueue to delivery through the other server: {median:?}");
        assert!(median < Duration::from_millis(200), "{median:?}");
        let [one, other] = both;
        one.stop().await;
        other.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_cluster_it_does_too() {
    for build in Build::ALL {
        let Some(cluster) = or_skip(RedisCluster::start(build)) else { continue };
        println!("on {}", build.name());
        let seeds = || Deployment::Cluster { seeds: cluster.addresses() };
        let both = QueuesServer::two([seeds(), seeds()]).await;
        let yardstick = beside(&cluster.nodes[0]);
        let median = send_and_wait(&both, &Metadata::default(), &Filter::default(), &yardstick).await;
        assert!(median < Duration::from_millis(200), "{median:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dequeue_whose_filter_passes_over_what_is_ready_is_woken_by_what_it_wants() {
    on_each_build(&RedisSettings::default(), async |server| {
        let both = QueuesServer::two([single(&server), single(&server)]).await;
        let [blue, red] = ["blue", "red"].map(|team| [("team", team)]);
        let blue = Metadata::new(blue).expect("valid");
        // In both shards something is ready, so no shard becomes ready by what comes later.
        for _ in 0..20 {
            both[0].enqueue(&blue).await;
        }
        let wanted = Filter::new(red).expect("a valid filter");
        let metadata = Metadata::new(red).expect("valid");
        let median = send_and_wait(&both, &metadata, &wanted, &beside(&server)).await;
        assert!(median < Duration::from_millis(500), "{median:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_came_while_a_subscription_was_lost_is_found_when_it_is_back() {
    on_each_build(&RedisSettings::default(), async |server| {
        let proxy = Proxy::start(server.address(), Wire::Plain).expect("a proxy");
        let through = Deployment::Single { address: proxy.address().to_string() };
        let [sender, waiting] = QueuesServer::two([single(&server), through]).await;
        let send = async {
            eventually("it waits", async || waiting.queues.waiting() > 0).await;
            proxy.set(Fault::Cut);
            sender.enqueue(&Metadata::default()).await;
            proxy.set(Fault::None);
        };
        let (leased, ()) = tokio::join!(waiting.wait_for_one(Filter::default()), send);
        assert_eq!(leased, 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_queue_that_one_server_creates_is_served_by_the_other_at_once_and_goes_for_both() {
    on_each_build(&RedisSettings::default(), async |server| {
        let [one, other] = QueuesServer::two([single(&server), single(&server)]).await;
        other.queues.catalog.follow().await.expect("a read");
        other.enqueue(&Metadata::default()).await;
        assert_eq!(one.wait_for_one(Filter::default()).await, 1);
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_becomes_ready_in_time_though_the_server_that_took_it_is_gone() {
    on_each_build(&RedisSettings::default(), async |server| {
        let [gone, waiting] = QueuesServer::two([single(&server), single(&server)]).await;
        let invisibility = Some(Duration::from_secs(2));
        let sent = SentMessage { invisibility, ..SentMessage::default() };
        let send = async {
            eventually("it waits", async || waiting.queues.waiting() > 0).await;
            gone.queues.work.enqueue(&CallerId::nobody(), &name(), sent).await.expect("enqueued");
            gone.stop().await;
        };
        let began = Instant::now();
        let (leased, ()) = tokio::join!(waiting.wait_for_one(Filter::default()), send);
        assert_eq!(leased, 1, "the other server sweeps");
        assert!(began.elapsed() >= Duration::from_secs(2), "{:?}", began.elapsed());
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancel_request_at_one_server_is_told_to_the_workers_of_the_other_once() {
    on_each_build(&RedisSettings::default(), async |server| {
        let [one, other] = QueuesServer::two([single(&server), single(&server)]).await;
        let mut notices = other.queues.cancel_notices();
        one.enqueue(&Metadata::default()).await;
        let asked = DequeueRequest { max: 1, wait: WAIT, ..DequeueRequest::default() };
        let leased = other.queues.work.dequeue(&name(), asked).await.expect("a dequeue").take();
        let key = leased[0].lease.token.key;
        one.queues.work.cancel_message(&name(), MessageRef::Key(key), "asked").await.expect("noted");
        let notice = tokio::time::timeout(BACK_WITHIN, notices.recv()).await.expect("in time").expect("a notice");
        assert_eq!((notice.queue, notice.key), (name(), key));
        one.queues.work.cancel_message(&name(), MessageRef::Key(key), "again").await.expect("it is noted already");
        // What comes after it in the same channel was told after it.
        one.enqueue(&Metadata::default()).await;
        assert_eq!(other.wait_for_one(Filter::default()).await, 1);
        assert!(notices.is_empty(), "one request, one notice");
    })
    .await;
}

/// A queue that was never used has no step that a server could have seen.
#[tokio::test]
async fn dequeues_that_wait_at_a_queue_without_messages_read_its_shards_once() {
    let Some(server) = or_skip(RedisServer::start(Build::Redis7)) else { return };
    server.config_set("slowlog-max-len", "10000");
    server.config_set("slowlog-log-slower-than", "0");
    let both = QueuesServer::two([single(&server), single(&server)]).await;
    let wait = Duration::from_secs(1);
    let asked = || DequeueRequest { max: 1, wait, ..DequeueRequest::default() };
    let mut read = Vec::new();
    for _ in 0..3 {
        server.cli(&["SLOWLOG", "RESET"]);
        let found = both[1].queues.work.dequeue(&name(), asked()).await.expect("a dequeue").take();
        assert_eq!(found.len(), 0);
        let log = server.cli(&["SLOWLOG", "GET", "10000"]);
        assert!(log.lines().count() > 2, "the log has all commands: {log}");
        read.push(log.matches("see_").count());
    }
    assert_eq!(read[1..], [0, 0], "the status of each shard is known: {read:?}");
    assert!(read[0] <= 2, "{read:?}");
    for server in both {
        server.stop().await;
    }
}
