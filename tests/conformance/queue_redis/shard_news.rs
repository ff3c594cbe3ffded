//! News of shards that do not come: what other servers did is found all the same.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tallystone_adapters::manual::ManualClock;
use tallystone_adapters::system::SystemClock;
use tallystone_domain::queue::ShardId;
use tallystone_ports::{QueueListener, ShardStatus};
use tallystone_redis::QueueLibrary;
use tallystone_redis::client::{ClientOptions, Deployment, FunctionLibrary, Login, RedisClient};

use super::server::QueueServer;
use crate::given;
use crate::queue_given::{News, QUEUE, SHARD, enqueue, is_new, settings};
use crate::servers::proxy::{Fault, Proxy, Wire};
use crate::servers::redis::{Build, or_skip};

const SECOND: Duration = Duration::from_secs(1);
const FOUND_WITHIN: Duration = Duration::from_secs(60);

/// Keeps the news of shards, and waits for all of them.
#[derive(Default)]
struct Waiting(News);

impl QueueListener for Waiting {
    fn changed(&self, shard: ShardId, view: ShardStatus) {
        self.0.changed(shard, view);
    }

    fn awaits(&self, _: ShardId) -> bool {
        true
    }
}

/// A client of a user that may neither publish nor subscribe.
async fn deaf_client(server: &QueueServer) -> Arc<RedisClient> {
    let QueueLibrary { name, code, .. } = QueueLibrary::assemble();
    let options = ClientOptions {
        deployment: Deployment::Single { address: server.address().to_string() },
        login: Some(Login { user: Some("deaf".to_owned()), password: "pw".into() }),
        tls: None,
        timeout: FOUND_WITHIN,
        library: FunctionLibrary { name, code },
    };
    RedisClient::open(options, Arc::new(SystemClock)).await.expect("the server takes connections")
}

#[tokio::test]
async fn without_news_a_shard_is_read_again_while_somebody_waits_for_it() {
    for build in Build::ALL {
        let started = QueueServer::start_with(build, &["user deaf on >pw ~* resetchannels +@all"]);
        let Some(server) = or_skip(started) else { continue };
        println!("on {}", build.name());
        let clock = ManualClock::at(given::T0);
        let sender = server.stores(&clock).await;
        sender.shards.create(QUEUE, 2, settings().into()).await.expect("a new queue");
        let deaf = QueueServer::stores_of(deaf_client(&server).await, &clock);
        let listener = Arc::new(Waiting::default());
        deaf.shards.listen(listener.clone());
        assert_eq!(deaf.shards.queues().await.expect("a list").len(), 1);
        let read = ShardId { number: 1, ..SHARD };
        let ready = |shard| listener.0.newest(shard).map(|view| view.ready());
        for shard in [SHARD, read] {
            assert_eq!(ready(shard), Some(0));
            let sent = sender.shards.apply(shard, vec![enqueue("a", 0, b"")]).await.remove(0).expect("it is taken");
            assert!(is_new(&sent.reply));
        }
        // A read for a caller tells no listener, and hides from none what nobody told it.
        let seen = deaf.reader.totals(read).await.expect("a read");
        assert_eq!((seen.view.ready(), ready(read)), (1, Some(0)));
        let began = Instant::now();
        while [SHARD, read].map(ready) != [Some(1); 2] {
            assert!(began.elapsed() < FOUND_WITHIN, "nobody looked");
            clock.advance(SECOND);
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_could_not_be_told_what_is_there_is_told_later() {
    let Some(server) = or_skip(QueueServer::start(Build::Redis7)) else { return };
    let clock = ManualClock::at(given::T0);
    server.stores(&clock).await.shards.create(QUEUE, 2, settings().into()).await.expect("a new queue");
    let proxy = Proxy::start(server.address(), Wire::Plain).expect("a proxy");
    let client = QueueServer::client_at(proxy.address(), SECOND).await;
    let queues = QueueServer::stores_of(client, &clock).shards;
    let listener = Arc::new(News::default());
    proxy.set(Fault::Cut);
    queues.listen(listener.clone());
    queues.queues().await.expect_err("the store is away");
    assert_eq!(listener.newest(SHARD), None);
    proxy.set(Fault::None);
    let began = Instant::now();
    while queues.queues().await.is_err() {
        assert!(began.elapsed() < FOUND_WITHIN, "it does not come back");
    }
    assert!(listener.newest(SHARD).is_some(), "before the call was answered");
}
