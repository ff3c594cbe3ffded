//! Another primary is named while the old one may still answer: how soon a server writes there, that it writes to the old one
//! no more, and what of its acknowledged enqueues is lost. Planned and by kill, with answers at once and with replicated ones.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::future::join_all;
use tallystone::domain::queue::QueueName;
use tallystone::domain::queue::messages::message_id::MessageId;
use tallystone::engine::caller_quota::CallerId;
use tallystone::engine::catalog::Author;
use tallystone::engine::queues::{DequeueRequest, QueueDraft, SentMessage};

use super::two_servers::QueuesServer;
use super::*;
use crate::servers::redis::{RedisCluster, ReplicaPair, SentinelGroup, ask};

/// How soon a server has to write to a primary that was named, beyond what the machine itself kept.
const MOVED_WITHIN: Duration = Duration::from_millis(1_500);
const SENDERS: u64 = 4;
/// The acknowledged enqueues before the failover, and after it.
const ENOUGH: usize = 200;

/// How a primary is lost.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Planned,
    Kill,
}

/// How many replicas have to have an enqueue before it is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answers {
    Fast,
    Replicated,
}

const ALL: [(Loss, Answers); 4] = [
    (Loss::Planned, Answers::Fast),
    (Loss::Kill, Answers::Fast),
    (Loss::Planned, Answers::Replicated),
    (Loss::Kill, Answers::Replicated),
];

fn name() -> QueueName {
    QueueName::new("mail").expect("a valid name")
}

fn id_of(number: u64) -> MessageId {
    MessageId::new(&format!("m{number:08}")).expect("a valid id")
}

/// A server with a queue of one shard.
async fn started(deployment: Deployment, answers: Answers) -> QueuesServer {
    let asked = AskedOfServers { replicas: u32::from(answers == Answers::Replicated), declared: None };
    let server = QueuesServer::start_with(deployment, asked).await;
    let author = Author { actor: "test".to_owned(), reason: String::new() };
    let draft = QueueDraft { shards: Some(1), ..QueueDraft::of(name()) };
    server.queues.catalog.create(draft, author).await.expect("created");
    server
}

/// The enqueues that were acknowledged, and when.
#[derive(Default)]
struct Ledger {
    acknowledged: parking_lot::Mutex<Vec<(u64, Instant)>>,
    is_over: AtomicBool,
}

impl Ledger {
    fn count(&self) -> usize {
        self.acknowledged.lock().len()
    }

    /// Enqueues one message after the other until it is over.
    async fn send(&self, server: &QueuesServer, sender: u64) {
        let mut number = sender;
        while !self.is_over.load(Ordering::Relaxed) {
            let sent = SentMessage { id: Some(id_of(number)), ..SentMessage::default() };
            if server.queues.work.enqueue(&CallerId::nobody(), &name(), sent).await.is_ok() {
                self.acknowledged.lock().push((number, Instant::now()));
            }
            number += SENDERS;
            SystemClock.sleep(LOOK_EVERY).await;
        }
    }
}

/// How many functions a server was asked for; 0 if it does not answer.
fn functions_called(address: SocketAddr) -> u64 {
    let info = ask(address, &["INFO", "commandstats"]).unwrap_or_default();
    let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_fcall:calls="));
    line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
}

/// Looks on a thread until it holds, and says when that was.
fn watch(mut holds: impl FnMut() -> bool + Send + 'static) -> std::thread::JoinHandle<Instant> {
    std::thread::spawn(move || {
        let deadline = Instant::now() + BACK_WITHIN;
        while !holds() {
            assert!(Instant::now() < deadline, "not in time");
            std::thread::park_timeout(LOOK_EVERY);
        }
        Instant::now()
    })
}

/// All ids that a server gives out.
async fn drained(deployment: Deployment) -> HashSet<MessageId> {
    let server = QueuesServer::start(deployment).await;
    let mut found = HashSet::new();
    loop {
        let asked = DequeueRequest { max: 100, ..DequeueRequest::default() };
        let leased = server.queues.work.dequeue(&name(), asked).await.expect("a dequeue").take();
        if leased.is_empty() {
            server.stop().await;
            return found;
        }
        found.extend(leased.into_iter().map(|leased| leased.message.head.id));
    }
}

/// A primary that is replaced.
struct Failover {
    what: &'static str,
    deployment: Deployment,
    old: SocketAddr,
    next: SocketAddr,
    loss: Loss,
    answers: Answers,
    /// Whether what was acknowledged before may be lost.
    may_lose: bool,
}

/// Enqueues while a primary is replaced, and judges what came of it.
async fn judge(
    failover: Failover,
    server: QueuesServer,
    begin: impl FnOnce(),
    is_named: impl FnMut() -> bool + Send + 'static,
) {
    let Failover { what, deployment, old, next, loss, answers, may_lose } = failover;
    let (ledger, yardstick) = (Ledger::default(), Yardstick::of(move || drop(ping(next))));
    let replacing = async {
        eventually("many are acknowledged", async || ledger.count() > ENOUGH).await;
        let (before, began) = (functions_called(next), Instant::now());
        begin();
        let (written, named) = (watch(move || functions_called(next) > before), watch(is_named));
        eventually("it is named and written to", async || written.is_finished() && named.is_finished()).await;
        let [written_at, named_at] = [written, named].map(|seen| seen.join().expect("in time"));
        let (asked_of_old, acknowledged) = (functions_called(old), ledger.count());
        if answers == Answers::Fast {
            eventually("it goes on", async || ledger.count() > acknowledged + ENOUGH).await;
        }
        assert_eq!(functions_called(old), asked_of_old, "nothing more is sent to the old primary");
        ledger.is_over.store(true, Ordering::Relaxed);
        (began, named_at, written_at)
    };
    let sending = join_all((0..SENDERS).map(|sender| ledger.send(&server, sender)));
    let ((began, named_at, written_at), _) = tokio::join!(replacing, sending);
    server.stop().await;
    let stored = drained(deployment).await;
    let acknowledged = ledger.acknowledged.into_inner();
    let lost: Vec<Instant> =
        acknowledged.iter().filter(|(number, _)| !stored.contains(&id_of(*number))).map(|(_, at)| *at).collect();
    let late = lost.iter().filter(|at| **at > named_at).count();
    let moved = written_at.saturating_duration_since(named_at);
    println!(
        "{what} {loss:?} {answers:?}: named after {:?}, written to {moved:?} later; of {} acknowledged {} are lost, \
         {late} of them acknowledged after it was named",
        named_at.saturating_duration_since(began),
        acknowledged.len(),
        lost.len(),
    );
    assert!(moved.saturating_sub(yardstick.kept(named_at)) < MOVED_WITHIN, "{moved:?}");
    assert!(lost.iter().all(|at| *at < written_at), "what was acknowledged since is there");
    assert!(may_lose || lost.is_empty(), "{} are lost", lost.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn once_sentinels_name_another_primary_a_server_writes_there_within_a_second_and_to_no_other() {
    for (loss, answers) in ALL {
        let Some(mut group) = or_skip(SentinelGroup::start(Build::Redis7)) else { return };
        let (sentinels, primary) = (group.sentinels(), SentinelGroup::NAME.to_owned());
        let deployment = Deployment::Sentinel { sentinels, primary, login: None };
        let server = started(deployment.clone(), answers).await;
        let (old, next) = (group.pair.primary.address(), group.pair.replica.address());
        let (asked, port) = (group.addresses(), next.port().to_string());
        let is_named = move || {
            let named = |at: &SocketAddr| ask(*at, &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SentinelGroup::NAME]);
            asked.iter().any(|at| named(at).is_ok_and(|named| named.lines().nth(1) == Some(&*port)))
        };
        let leader = group.addresses()[0];
        let begin = || match loss {
            Loss::Planned => drop(ask(leader, &["SENTINEL", "FAILOVER", SentinelGroup::NAME]).expect("it begins")),
            Loss::Kill => group.pair.primary.kill(),
        };
        let may_lose = answers == Answers::Fast;
        let failover = Failover { what: "sentinels", deployment, old, next, loss, answers, may_lose };
        judge(failover, server, begin, is_named).await;
    }
}

/// The place of the node that holds a shard of a queue, and that of its replica.
fn holders(cluster: &RedisCluster) -> (usize, usize) {
    let is_primary = |at: &usize| cluster.nodes[*at].info("role") == "master";
    let holds = |at: &usize| {
        let keys = cluster.nodes[*at].cli(&["KEYS", "{*}m"]);
        keys.lines().any(|key| !key.is_empty() && !key.starts_with("{tallystone}"))
    };
    let owner = (0..6).filter(is_primary).find(holds).expect("a node has the shard");
    let id = cluster.id(owner);
    let follows = |at: &usize| {
        cluster.nodes[*at].cli(&["CLUSTER", "NODES"]).lines().any(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            words.get(2).is_some_and(|flags| flags.contains("myself")) && words.get(3) == Some(&&*id)
        })
    };
    (owner, (0..6).find(follows).expect("it has a replica"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn once_a_cluster_has_another_primary_of_a_slot_a_server_writes_there_within_a_second() {
    for (loss, answers) in ALL {
        let Some(mut cluster) = or_skip(RedisCluster::start(Build::Redis7)) else { return };
        let deployment = Deployment::Cluster { seeds: cluster.addresses() };
        let server = started(deployment.clone(), answers).await;
        let (owner, replica) = holders(&cluster);
        let (old, next) = (cluster.nodes[owner].address(), cluster.nodes[replica].address());
        let is_named = move || ask(next, &["ROLE"]).is_ok_and(|role| role.starts_with("master"));
        let begin = || match loss {
            Loss::Planned => drop(ask(next, &["CLUSTER", "FAILOVER"]).expect("it begins")),
            Loss::Kill => cluster.nodes[owner].kill(),
        };
        let may_lose = answers == Answers::Fast && matches!(loss, Loss::Kill);
        let failover = Failover { what: "cluster", deployment, old, next, loss, answers, may_lose };
        judge(failover, server, begin, is_named).await;
    }
}

#[tokio::test]
async fn a_server_alone_that_became_a_replica_is_read_no_more() {
    let Some(pair) = or_skip(ReplicaPair::start(Build::Redis7, &RedisSettings::default())) else { return };
    let client = open(single(&pair.primary)).await;
    // As a server does: the connection with subscriptions is the one that asks.
    client.subscribe(slot(), "{q}news");
    assert_eq!(add_one(&client).await.expect("an add"), 1);
    let read = async || client.call_within(slot(), vec![RedisCommand::fcall_ro("tt_read", &[KEY], &[""])], SHORT).await;
    assert!(read().await.replies[0].is_ok());
    let next = pair.replica.address().port().to_string();
    pair.replica.cli(&["REPLICAOF", "NO", "ONE"]);
    pair.primary.cli(&["REPLICAOF", "127.0.0.1", &next]);
    let is_refused = async || matches!(&read().await.replies[0], Err(failure) if failure.cause == FailureCause::Moving);
    eventually("it is left, though no write is refused", is_refused).await;
}
