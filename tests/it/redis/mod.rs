//! The client of Redis and Valkey on real servers: what becomes of calls whatever the servers do.
//!
//! Tests run on each server in turn; the last line `on NAME` of a failing one names the server.

pub mod access;
mod activity;
mod cluster;
mod durability;
mod failover;
mod faults;
mod looks;
mod lost_store;
mod memory;
mod news;
mod opening;
mod over_tls;
mod passwords;
mod refusals;
mod replicas;
mod rewound;
mod sentinel;
mod servers;
pub mod serving;
mod settled_late;
mod two_servers;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tallystone::adapters::redis::AskedOfServers;
use tallystone::adapters::redis::client::{
    CallFailure, ClientOptions, Deployment, FailureCause, FunctionLibrary, Login, RedisClient, RedisCommand,
    RedisReply, Slot,
};
use tallystone::adapters::system::SystemClock;
use tallystone::ports::{Clock, EffectOutcome};

use crate::servers::redis::{Build, RedisServer, RedisSettings, or_skip};
use crate::support::harness::Launch;
use crate::support::yardstick::Yardstick;

/// How long anything may take to come back on a busy machine.
const BACK_WITHIN: Duration = Duration::from_secs(60);
/// The deadline of calls that wait for something.
const TIMEOUT: Duration = Duration::from_secs(5);
/// A deadline that a test can wait out.
const SHORT: Duration = Duration::from_millis(300);
/// The deadline of calls that are refused until it has passed.
const REFUSED_FOR: Duration = Duration::from_secs(1);
/// How long a test waits before it looks again.
const LOOK_EVERY: Duration = Duration::from_millis(5);
const KEY: &str = "{q}count";
/// What is asked of the servers of queues: nothing beyond what they say.
const ASKED: AskedOfServers = AskedOfServers { replicas: 0, declared: None };

/// Adds to a number; appends to a list; reads a number; writes and then fails.
const CODE: &str = "#!lua name=tallystone_test
redis.register_function('tt_add', function(keys, args)
  return redis.call('INCRBY', keys[1], args[1])
end)
redis.register_function('tt_append', function(keys, args)
  return redis.call('RPUSH', keys[1], args[1])
end)
redis.register_function{function_name='tt_read', callback=function(keys, args)
  return redis.call('GET', keys[1]) or '0'
end, flags={'no-writes'}}
redis.register_function('tt_half', function(keys, args)
  redis.call('INCRBY', keys[1], args[1])
  return redis.call('INCRBY', keys[1], 'no number')
end)
redis.register_function('tt_refuse', function(keys, args)
  return redis.error_reply('STALE settings')
end)
";

fn library() -> FunctionLibrary {
    FunctionLibrary { name: "tallystone_test".to_owned(), code: CODE.to_owned() }
}

fn slot() -> Slot {
    Slot::of(KEY.as_bytes())
}

fn options(deployment: Deployment) -> ClientOptions {
    ClientOptions { deployment, login: None, tls: None, timeout: TIMEOUT, library: library() }
}

fn single(server: &RedisServer) -> Deployment {
    Deployment::Single { address: server.address().to_string() }
}

/// A yardstick beside a server of Redis.
fn beside(server: &RedisServer) -> Yardstick {
    let address = server.address();
    // Whatever comes, it took its time.
    Yardstick::of(move || drop(ping(address)))
}

fn ping(address: SocketAddr) -> std::io::Result<()> {
    let mut connection = TcpStream::connect(address)?;
    connection.write_all(b"PING\r\n")?;
    connection.read_exact(&mut [0; 1])
}

async fn open(deployment: Deployment) -> Arc<RedisClient> {
    open_with(options(deployment)).await
}

async fn open_with(options: ClientOptions) -> Arc<RedisClient> {
    RedisClient::open(options, Arc::new(SystemClock)).await.unwrap_or_else(|failure| panic!("{failure:?}"))
}

/// Runs a test on each server that can be started.
async fn on_each_build(settings: &RedisSettings, test: impl AsyncFn(RedisServer)) {
    for build in Build::ALL {
        let Some(server) = or_skip(RedisServer::start_with(build, settings.clone())) else { continue };
        println!("on {}", build.name());
        test(server).await;
    }
}

fn add(key: &str, number: i64) -> RedisCommand {
    RedisCommand::fcall("tt_add", &[key], &[number.to_string()])
}

fn append(key: &str, item: &str) -> RedisCommand {
    RedisCommand::fcall("tt_append", &[key], &[item])
}

async fn add_one(client: &RedisClient) -> Result<i64, CallFailure> {
    client.call_one(slot(), add(KEY, 1)).await.and_then(RedisReply::into_int)
}

async fn add_within(client: &RedisClient, within: Duration) -> Result<i64, CallFailure> {
    let mut answers = client.call_within(slot(), vec![add(KEY, 1)], within).await;
    answers.replies.pop().expect("one answer").and_then(RedisReply::into_int)
}

#[track_caller]
fn failed<T: std::fmt::Debug>(answer: Result<T, CallFailure>, cause: &FailureCause, outcome: EffectOutcome) {
    let failure = answer.expect_err("it fails");
    assert_eq!((&failure.cause, failure.outcome), (cause, outcome), "{failure:?}");
}

/// What a server holds under a key, asked past the client.
fn stored(server: &RedisServer, key: &str) -> String {
    server.cli(&["GET", key])
}

/// A development server whose queues are on a Redis, and nothing on the disk.
fn dev_on(redis: &RedisServer) -> Launch {
    let launch = Launch::of(std::process::Command::new(env!("CARGO_BIN_EXE_tallystone")));
    let words = ["dev", "--memory", "--listen", "127.0.0.1:0", "--redis", &redis.address().to_string()];
    words.iter().fold(launch, |launch, word| launch.arg(word)).with_patience().patient_with("redis")
}

/// Looks until it holds.
async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + BACK_WITHIN;
    while !holds().await {
        assert!(Instant::now() < deadline, "not in time: {what}");
        SystemClock.sleep(LOOK_EVERY).await;
    }
}

/// Adds once to a server that is back, as soon as the client finds it. No try of a patient call is in doubt for being slow.
async fn add_to_what_is_back(client: &RedisClient) -> i64 {
    let deadline = Instant::now() + BACK_WITHIN;
    loop {
        match add_within(client, BACK_WITHIN).await {
            Ok(value) => return value,
            Err(failure) => {
                assert_eq!(failure.outcome, EffectOutcome::NotApplied, "{failure:?}");
                assert!(Instant::now() < deadline, "it does not come back: {failure:?}");
                SystemClock.sleep(LOOK_EVERY).await;
            }
        }
    }
}

/// Adds until it is done, and answers the value and how many adds before it may have been done.
async fn add_until_done(client: &RedisClient) -> (i64, i64) {
    let deadline = Instant::now() + BACK_WITHIN;
    let mut unknown = 0;
    loop {
        match add_within(client, SHORT).await {
            Ok(value) => return (value, unknown),
            Err(failure) => {
                unknown += i64::from(failure.outcome == EffectOutcome::Unknown);
                assert!(Instant::now() < deadline, "it does not come back: {failure:?}");
                SystemClock.sleep(LOOK_EVERY).await;
            }
        }
    }
}
