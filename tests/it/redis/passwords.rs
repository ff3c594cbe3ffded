//! A password that is rotated while a server works: the file is read again for each new connection, and nothing needs a restart.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use serde_json::json;
use tallystone::adapters::store_password::StorePassword;

use super::access::{PASSWORD, documented_user};
use super::*;
use crate::servers::redis::SentinelGroup;
use crate::support::harness::{EndsWith, Server, eventually as holds_within};

const QUEUES: &str = "/tallystone.queue.v1.QueueService";
const USER: &str = "tallystone";
/// Calls that are answered after a step before the next one.
const CALLS: u64 = 20;

fn start(redis: &RedisServer, file: &Path) -> Server {
    let settings = [format!("clusters.redis.user={USER}"), format!("clusters.redis.password_file={}", file.display())];
    settings.iter().fold(dev_on(redis), |launch, setting| launch.arg("--set").arg(setting)).start()
}

/// What became of calls that are made one after the other.
#[derive(Default)]
struct Calls {
    answered: AtomicU64,
    /// Those that were in flight when a connection broke.
    unknown: AtomicU64,
}

impl Calls {
    /// Calls until the end. Whatever else than an unknown outcome a call fails with fails the test.
    fn make(&self, server: &Server, is_over: &AtomicBool) {
        for number in 0.. {
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            let body = json!({"queue": "mail", "message": {"message_id": format!("m{number}"), "payload": "aGVsbG8="}});
            let answer = server.post(&format!("{QUEUES}/Enqueue"), &body.to_string());
            match answer.status {
                200 => self.answered.fetch_add(1, Ordering::Relaxed),
                _ if answer.body.contains("OUTCOME_UNKNOWN") => self.unknown.fetch_add(1, Ordering::Relaxed),
                _ => panic!("a call fails: {answer:?}"),
            };
        }
    }

    /// Waits until more calls were answered.
    fn go_on(&self) {
        let from = self.answered.load(Ordering::Relaxed);
        assert!(holds_within(BACK_WITHIN, || self.answered.load(Ordering::Relaxed) >= from + CALLS), "calls go on");
    }
}

#[test]
fn a_password_that_is_rotated_under_steady_calls_needs_no_restart_and_fails_no_call() {
    for build in Build::ALL {
        let Some(redis) = or_skip(RedisServer::start_with(build, RedisSettings::of(&[&documented_user()]))) else {
            continue;
        };
        println!("on {}", build.name());
        let folder = tempfile::tempdir().expect("a temporary directory");
        let file = folder.path().join("password");
        fs::write(&file, format!("{PASSWORD}\n")).expect("it can be written");
        let server = start(&redis, &file);
        let created = server.post(&format!("{QUEUES}/CreateQueue"), &json!({"queue": {"name": "mail"}}).to_string());
        assert_eq!(created.status, 200, "{created:?}");
        let (calls, is_over) = (Calls::default(), AtomicBool::new(false));
        thread::scope(|scope| {
            let _ends = EndsWith(&is_over);
            scope.spawn(|| calls.make(&server, &is_over));
            let mut old = PASSWORD.to_owned();
            for next in ["second", "third"] {
                calls.go_on();
                redis.cli(&["ACL", "SETUSER", USER, &format!(">{next}")]);
                fs::write(&file, next).expect("it can be written");
                redis.cli(&["ACL", "SETUSER", USER, &format!("<{old}")]);
                redis.cli(&["CLIENT", "KILL", "USER", USER]);
                calls.go_on();
                old = next.to_owned();
            }
        });
        // A call at a time is in flight, and connections were killed twice.
        assert!(calls.unknown.load(Ordering::Relaxed) <= 2, "{}", calls.unknown.load(Ordering::Relaxed));
        assert_eq!(server.get("/readyz").status, 200);
        let printed = server.printed();
        assert!(!printed.contains("WRONGPASS") && !printed.contains("NOAUTH"), "{printed}");
        assert!(printed.contains("new connections to a store go by its new password"), "{printed}");
        for password in [PASSWORD, "second", "third"] {
            assert!(!printed.contains(password), "no password is shown: {printed}");
        }
        assert!(server.stop().success());
    }
}

#[test]
fn a_password_that_was_changed_before_its_file_is_told_and_needs_no_restart_once_the_file_is_right() {
    let Some(redis) = or_skip(RedisServer::start_with(Build::Redis7, RedisSettings::of(&[&documented_user()]))) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("password");
    fs::write(&file, PASSWORD).expect("it can be written");
    let server = start(&redis, &file);
    redis.cli(&["ACL", "SETUSER", USER, "resetpass", ">next"]);
    redis.cli(&["CLIENT", "KILL", "USER", USER]);
    assert!(holds_within(BACK_WITHIN, || server.get("/readyz").status == 503), "{:?}", server.get("/readyz"));
    let (code, shown) = super::serving::status(&server);
    assert!(code == 5 && shown.contains("WRONGPASS") && !shown.contains("answers, "), "{code} {shown}");
    fs::write(&file, "next").expect("it can be written");
    assert!(holds_within(BACK_WITHIN, || server.get("/readyz").status == 200), "{:?}", server.get("/readyz"));
    assert_eq!(super::serving::status(&server).0, 0, "{:?}", super::serving::status(&server));
}

#[tokio::test]
async fn the_password_of_sentinels_is_read_again_for_each_connection_too() {
    for build in Build::ALL {
        let Some(mut group) = or_skip(SentinelGroup::start(build)) else { continue };
        println!("on {}", build.name());
        let folder = tempfile::tempdir().expect("a temporary directory");
        let file = folder.path().join("password");
        fs::write(&file, "one").expect("it can be written");
        group.ask_sentinels(&["ACL", "SETUSER", USER, "on", ">one", "~*", "&*", "+@all"]);
        let password = StorePassword::of_file(file.clone()).expect("a password");
        let login = Some(Login { user: Some(USER.to_owned()), password });
        let (sentinels, primary) = (group.sentinels(), SentinelGroup::NAME.to_owned());
        let client = open(Deployment::Sentinel { sentinels, primary, login }).await;
        assert_eq!(add_one(&client).await.expect("it is done"), 1);
        group.ask_sentinels(&["ACL", "SETUSER", USER, ">two"]);
        fs::write(&file, "two").expect("it can be written");
        group.ask_sentinels(&["ACL", "SETUSER", USER, "<one"]);
        group.ask_sentinels(&["CLIENT", "KILL", "USER", USER]);
        // Only the Sentinels know where the primary is then.
        group.pair.primary.kill();
        let (value, _unknown) = add_until_done(&client).await;
        assert!(value >= 1, "{value}");
        assert_eq!(client.primaries()[0].0, group.pair.replica.address().to_string());
        client.close().await;
    }
}
