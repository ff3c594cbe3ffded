//! What callers of two servers on one Redis saw is one story, also while one of the servers is killed again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::linear::{Caller, Held, create};
use super::queues::{connect, on_runtime};
use super::{CrashTest, Rng, rounds};
use crate::linear::Recorder;
use crate::linear::search::check;
use crate::servers::redis::{Build, RedisServer, RedisSettings, or_skip};
use crate::support::harness::{Launch, Server};

const LIVES: u64 = 3;
const CALLERS_OF_EACH: u64 = 3;

#[test]
fn what_callers_of_two_servers_on_redis_saw_over_kills_is_one_story() {
    let settings = RedisSettings::of(&["appendonly yes", "appendfsync everysec"]);
    let Some(redis) = or_skip(RedisServer::start_with(Build::Redis7, settings)) else { return };
    let mut test = CrashTest::new("what_callers_of_two_servers_on_redis_saw_over_kills_is_one_story");
    let mut servers = [Member::start(&redis), Member::start(&redis)];
    for story in 0..rounds(6, 100) {
        tell(&mut test, &redis, &mut servers, story);
    }
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
            let mut caller = Caller {
                queue: told.queue.clone(),
                client: client.clone(),
                recorder: told.recorder.clone(),
                held: Arc::clone(&told.held),
                enough: Arc::clone(&enough),
                over: Arc::clone(&told.over),
                rng: Rng::new(seed ^ (number + CALLERS_OF_EACH * at as u64)),
            };
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
