//! The overview of many queues: soon there, and without a command that scans.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tallystone::domain::limits::ACTIVITY_AGE_MAX;
use tallystone::proto::queue::v1 as pb;
use tallystone::proto::queue::v1::queue_service_client::QueueServiceClient;

use super::{fill, get};
use crate::servers::redis::{Build, RedisServer, or_skip};
use crate::support::harness::{Launch, Server, eventually};
use crate::support::patience::patient_channel;
use crate::support::yardstick::{Cores, OwnWait};

/// As many as a server takes, beside the template that `dev` makes.
const QUEUES: usize = 9_999;
/// The looks at each page. The fastest one says what the server needs: other tests share its cores, which only adds time. What its
/// threads stood ready without a core is not its time either, nor is what the thread that looks stood so.
const LOOKS: usize = 5;
const SOON: Duration = Duration::from_millis(300);
const WITHIN: Duration = Duration::from_secs(60);

async fn create(server: &Server, queues: usize) {
    let client = QueueServiceClient::new(patient_channel(&server.url()).await);
    let creations = (0..queues).map(|number| {
        let mut client = client.clone();
        let queue = pb::Queue { name: format!("q{number:05}"), ..Default::default() };
        async move { client.create_queue(pb::CreateQueueRequest { queue: Some(queue), ..Default::default() }).await }
    });
    let created = stream::iter(creations).buffer_unordered(32).map_ok(drop).try_collect::<()>().await;
    created.expect("all queues are created");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_overview_of_as_many_queues_as_a_server_takes_is_soon_there() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::dev(data.path()).start();
    create(&server, QUEUES).await;
    let all = || get(&server, "/console/", &[]).body.contains("data-live=\"queues\">9,999<");
    assert!(eventually(WITHIN, all), "the overview counts all queues");
    for place in ["", "?sort=pending", "?filter=q012"] {
        let mut took: Vec<Duration> = (0..LOOKS)
            .map(|_| {
                let end = time_of(&server) + ACTIVITY_AGE_MAX;
                assert!(eventually(WITHIN, || time_of(&server) > end), "the list of the look before has ended");
                let (cores, own, began) = (Cores::of(server.pid()), OwnWait::begin(), Instant::now());
                assert_eq!(get(&server, &format!("/console/{place}"), &[]).status, 200);
                began.elapsed().saturating_sub(cores.longest_wait() + own.so_far())
            })
            .collect();
        took.sort();
        println!("{place:?}: {took:?}");
        assert!(took[0] < SOON, "{place:?} took {took:?}");
    }
}

/// The clock of the server, since 1970. The call makes no list of queues.
fn time_of(server: &Server) -> Duration {
    let status = server.post("/tallystone.admin.v1.StatusService/GetStatus", "{}").json();
    let time = status["serverTime"].as_str().expect("a time").parse::<prost_types::Timestamp>().expect("a time");
    Duration::new(time.seconds.unsigned_abs(), time.nanos.unsigned_abs())
}

#[test]
fn the_pages_of_queues_on_redis_scan_nothing() {
    let data = tempfile::tempdir().expect("a temporary directory");
    let Some(redis) = or_skip(RedisServer::start(Build::ALL[0])) else { return };
    let server = Launch::dev(data.path()).arg("--redis").arg(&redis.address().to_string()).start();
    fill(&server);
    let mut monitor = TcpStream::connect(redis.address()).expect("Redis takes connections");
    monitor.set_read_timeout(Some(WITHIN)).expect("a timeout");
    monitor.write_all(b"MONITOR\r\n").expect("Redis reads");
    let mut told = BufReader::new(monitor).lines().map(|line| line.expect("Redis tells its commands").to_lowercase());
    assert_eq!(told.next().as_deref(), Some("+ok"));
    for place in ["", "?sort=pending", "queue?name=mail", "health"] {
        assert_eq!(get(&server, &format!("/console/{place}"), &[]).status, 200, "{place}");
    }
    redis.cli(&["ECHO", "the end of the looks"]);
    let commands: Vec<String> = told.take_while(|line| !line.contains("the end of the looks")).collect();
    assert!(commands.iter().any(|line| line.contains("\"fcall")), "the pages read the store: {commands:?}");
    // Lines of commands inside a function have the word lua. A function may read the bounded tables of a shard whole, the
    // server itself reads no list of messages. What goes on whoever looks is the beat of the fleet, and the bridge, which reads
    // a bounded part of an outbox.
    let goes_on = |line: &str| {
        let is_outbox = line.contains("\"xrange\" \"{") && line.contains("}o\" ") && line.contains(" \"count\" ");
        line.contains("\"hgetall\" \"{tallystone}members\"") || is_outbox
    };
    let scanning = ["keys", "scan", "sscan", "hscan", "zscan", "smembers", "sort"].map(|scan| (scan, ""));
    let lists =
        ["hgetall", "hkeys", "lrange", "zrange", "zrangebyscore", "zrangebylex", "zrevrange", "xrange", "xrevrange"]
            .map(|list| (list, " lua]"));
    for (command, but) in scanning.into_iter().chain(lists) {
        let named = format!("\"{command}\"");
        let is_one =
            |line: &&String| line.contains(&named) && (but.is_empty() || !line.contains(but)) && !goes_on(line);
        let found: Vec<&String> = commands.iter().filter(is_one).collect();
        assert!(found.is_empty(), "{found:?}");
    }
}
