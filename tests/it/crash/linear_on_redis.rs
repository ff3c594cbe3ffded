//! What callers of servers on Redis saw is one story, while one of two servers is killed again and again, and while Redis is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tallystone::adapters::system::SystemClock;
use tallystone::ports::Clock as _;
use tempfile::TempDir;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::linear::{Caller, Held, create, create_once};
use super::queues::{Client, connect, on_runtime};
use super::{CrashTest, Rng, rounds};
use crate::linear::Recorder;
use crate::linear::search::check;
use crate::servers::redis::{Build, RedisServer, RedisSettings, or_skip};
use crate::support::harness::{Launch, Server, next_poll};
use crate::support::powerloss::{Moment, PowerCut};

/// The stories of two servers in a usual run; `--long` tells 100.
const STORIES: u32 = 3;
const LIVES: u64 = 3;
const CALLERS_OF_EACH: u64 = 3;
/// How long a server may take to be back after its Redis is, on a busy machine.
const BACK_WITHIN: Duration = Duration::from_secs(60);

#[test]
fn what_callers_of_two_servers_on_redis_saw_over_kills_is_one_story() {
    let settings = RedisSettings::of(&["appendonly yes", "appendfsync everysec"]);
    let Some(redis) = or_skip(RedisServer::start_with(Build::Redis7, settings)) else { return };
    let mut test = CrashTest::new("what_callers_of_two_servers_on_redis_saw_over_kills_is_one_story");
    let mut servers = [Member::start(&redis), Member::start(&redis)];
    for story in 0..rounds(STORIES, 100) {
        tell(&mut test, &redis, &mut servers, story);
    }
}

#[test]
fn what_callers_saw_over_kills_and_power_cuts_of_a_safe_redis_is_one_story() {
    let settings = RedisSettings::of(&["appendonly yes", "appendfsync always"]);
    let Some(mut redis) = or_skip(RedisServer::start_with(Build::Redis7, settings)) else { return };
    let mut test = CrashTest::new("what_callers_saw_over_kills_and_power_cuts_of_a_safe_redis_is_one_story");
    let member = Member::start(&redis);
    for story in 0..rounds(1, 34) {
        let queue = format!("safe-{story}");
        let told = Story { queue, recorder: Recorder::default(), held: Arc::default(), over: Arc::default() };
        for life in 0..LIVES {
            // Every third life ends with a power cut: what Redis has not synced is gone, as after a sync that never came back.
            let cut = (life == LIVES - 1).then(|| redis_under_a_cut(&mut redis, &mut test));
            let (seed, calls) = (test.rng.below(u64::MAX), 20 + test.rng.below(40));
            on_runtime(call_until_redis_is_gone(&told, &member, &mut redis, cut.is_some(), (seed, calls)));
            told.recorder.cut();
            redis.restart_after_a_power_cut().expect("it starts on what it had synced");
            if let Some(report) = cut {
                let report = std::fs::read_to_string(report.path().join("report"));
                assert!(report.is_ok_and(|report| report.starts_with("syncs ")), "the power was cut");
            }
        }
        on_runtime(look_at_what_is_left(&told, &member));
        if let Err(unfit) = check(&told.recorder.history()) {
            test.fail(&format!("story {story}: {unfit:?}"));
        }
    }
}

/// Starts Redis so that a signal cuts its power. Nothing unsynced survives in the first story, some pages in others.
fn redis_under_a_cut(redis: &mut RedisServer, test: &mut CrashTest) -> TempDir {
    let report = tempfile::tempdir().expect("a temporary directory");
    let data = redis.directory().to_owned();
    let seed = test.rng.below(3);
    let cut = PowerCut { data, moment: Moment::OnSignal, seed, report: report.path().join("report") };
    redis.restart_under(&cut.environment()).expect("it starts");
    report
}

/// Calls the server until Redis is gone, which happens after so many calls.
async fn call_until_redis_is_gone(
    told: &Story,
    member: &Member,
    redis: &mut RedisServer,
    by_power: bool,
    (seed, calls): (u64, u64),
) {
    let client = connect_again(told, member).await;
    let enough = Arc::new((AtomicU64::new(calls), Notify::new()));
    let mut callers = JoinSet::new();
    for number in 0..2 * CALLERS_OF_EACH {
        let mut caller = told.caller(&client, &enough, seed ^ number);
        if number == 0 {
            caller.look_at_all().await;
        }
        callers.spawn(caller.run());
    }
    enough.1.notified().await;
    if by_power {
        redis.signal("-USR2");
    } else {
        redis.kill();
    }
    callers.join_all().await;
    redis.kill();
}

/// Connects to a server whose Redis was away. Until it has its connections back, it refuses calls and has done nothing.
async fn connect_again(told: &Story, member: &Member) -> Client {
    let mut client = connect(&member.server).await.expect("it runs");
    let began = Instant::now();
    while let Err(status) = create_once(&mut client, &told.queue).await {
        assert!(began.elapsed() < BACK_WITHIN, "{status}");
        SystemClock.sleep(next_poll(began)).await;
    }
    client
}

/// Sees what the end of the last life has left.
async fn look_at_what_is_left(told: &Story, member: &Member) {
    let client = connect_again(told, member).await;
    told.caller(&client, &Arc::default(), 0).look_at_all().await;
}

/// A server with a directory of its own for its counters.
struct Member {
    server: Server,
    data: TempDir,
}

impl Member {
    fn start(redis: &RedisServer) -> Self {
        let data = tempfile::tempdir().expect("a temporary directory");
        Self { server: launch(&data, redis), data }
    }

    fn kill_and_start(&mut self, redis: &RedisServer) {
        let next = launch(&self.data, redis);
        self.server = next;
    }
}

fn launch(data: &TempDir, redis: &RedisServer) -> Server {
    Launch::dev(data.path()).arg("--redis").arg(&redis.address().to_string()).start()
}

/// What the callers of a story share.
struct Story {
    queue: String,
    recorder: Recorder,
    held: Arc<Mutex<Vec<Held>>>,
    over: Arc<AtomicBool>,
}

impl Story {
    fn caller(&self, client: &Client, enough: &Arc<(AtomicU64, Notify)>, seed: u64) -> Caller {
        Caller {
            queue: self.queue.clone(),
            client: client.clone(),
            recorder: self.recorder.clone(),
            held: Arc::clone(&self.held),
            enough: Arc::clone(enough),
            over: Arc::clone(&self.over),
            rng: Rng::new(seed),
        }
    }
}

fn tell(test: &mut CrashTest, redis: &RedisServer, servers: &mut [Member; 2], story: u32) {
    let mut told = Story {
        queue: format!("story-{story}"),
        recorder: Recorder::default(),
        held: Arc::default(),
        over: Arc::default(),
    };
    for life in 0..LIVES {
        told.over = Arc::default();
        let victim = usize::try_from((life + u64::from(story)) % 2).expect("0 or 1");
        let (seed, calls) = (test.rng.below(u64::MAX), 20 + test.rng.below(40));
        on_runtime(call_over_a_kill(&told, servers, victim, (seed, calls)));
        servers[victim].server.wait();
        // Redis takes what the killed server had sent in the turns of its loop that come next; each call here is a later one.
        for _ in 0..5 {
            redis.cli(&["PING"]);
        }
        told.recorder.cut();
        servers[victim].kill_and_start(redis);
    }
    on_runtime(look_at_what_is_left(&told, &servers[0]));
    if let Err(unfit) = check(&told.recorder.history()) {
        test.fail(&format!("story {story}: {unfit:?}"));
    }
}

/// Calls both servers, kills one of them after so many calls, and calls the other one as often again.
async fn call_over_a_kill(told: &Story, servers: &[Member; 2], victim: usize, (seed, calls): (u64, u64)) {
    let enough = Arc::new((AtomicU64::new(calls), Notify::new()));
    let mut callers = JoinSet::new();
    for (at, member) in servers.iter().enumerate() {
        let mut client = connect(&member.server).await.expect("it runs");
        create(&mut client, &told.queue).await;
        for number in 0..CALLERS_OF_EACH {
            let mut caller = told.caller(&client, &enough, seed ^ (number + CALLERS_OF_EACH * at as u64));
            if at == 0 && number == 0 {
                caller.look_at_all().await;
            }
            callers.spawn(caller.run());
        }
    }
    enough.1.notified().await;
    servers[victim].server.signal(libc::SIGKILL);
    enough.0.store(calls, Ordering::Relaxed);
    enough.1.notified().await;
    told.over.store(true, Ordering::Relaxed);
    callers.join_all().await;
}
