//! A server whose user of Redis has the rights that the page of keys names: it needs no other, and has no other. Without one of
//! them it does not start, and while it runs it changes nothing.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tallystone::adapters::redis::{OpenError, RedisStoreOptions, RedisStores, needed_rights};

use super::opening::{opened, stores};
use super::*;
use crate::servers::redis::RedisCluster;
use crate::support::harness::{Server, eventually as holds_within};

const QUEUES: &str = "/tallystone.queue.v1.QueueService";
pub const PASSWORD: &str = "hunter2";

/// The line of the page that makes the user.
pub fn documented_user() -> String {
    let page = include_str!("../../../docs/redis-keys.md");
    let line = page.lines().find(|line| line.starts_with("user tallystone on >PASSWORD "));
    line.expect("the page names the rights of the user").replace("PASSWORD", PASSWORD)
}

fn start(redis: &RedisServer) -> Server {
    let user = ["clusters.redis.user=tallystone".to_owned(), format!("clusters.redis.password={PASSWORD}")];
    user.iter().fold(dev_on(redis), |launch, setting| launch.arg("--set").arg(setting)).start()
}

fn call(server: &Server, method: &str, body: &Value) -> Value {
    let answer = server.post(&format!("{QUEUES}/{method}"), &body.to_string());
    assert_eq!(answer.status, 200, "{method} {body}: {}", answer.body);
    answer.json()
}

/// Does with a queue what there is to do, at two servers in turn.
fn use_queue(servers: [&Server; 2], queue: &Value) {
    let [one, other] = servers;
    let name = queue["name"].clone();
    call(one, "CreateQueue", &json!({"queue": queue}));
    for number in 0..6 {
        let message = json!({"message_id": format!("m{number}"), "payload": "aGVsbG8=",
            "metadata": {"account": format!("a{}", number % 2), "zone": "z"}});
        call(other, "Enqueue", &json!({"queue": name, "message": message}));
    }
    let session = call(one, "OpenSession", &json!({"label": "worker"}))["sessionId"].clone();
    let leases = call(other, "Dequeue", &json!({"queue": name, "max_messages": 10}));
    let leases = leases["leases"].as_array().cloned().unwrap_or_default();
    assert!(leases.len() >= 2, "{leases:?}");
    let item = |at: usize, verb: &str| json!({"lease_token": leases[at]["leaseToken"], "verb": verb});
    let items = [item(0, "VERB_COMPLETE"), item(1, "VERB_FAIL")];
    let settled = call(one, "SettleMessages", &json!({"queue": name, "items": items}));
    assert!(
        settled["results"].as_array().expect("results").iter().all(|result| result["error"].is_null()),
        "{settled}"
    );
    call(other, "GetDepth", &json!({"queue": name, "filter": {"zone": "z"}}));
    call(one, "ExplainQueue", &json!({"queue": name}));
    call(other, "PurgeQueue", &json!({"queue": name}));
    call(one, "CloseSession", &json!({"session_id": session}));
    call(other, "DeleteQueue", &json!({"queue": name}));
}

#[test]
fn a_user_with_the_documented_rights_can_do_all_that_a_server_does_and_no_more() {
    for build in Build::ALL {
        println!("on {}", build.name());
        let settings = RedisSettings::of(&["appendonly yes", "appendfsync always", &documented_user()]);
        let Some(redis) = or_skip(RedisServer::start_with(build, settings)) else { continue };
        let (one, other) = (start(&redis), start(&redis));
        use_queue(
            [&one, &other],
            &json!({"name": "plain", "count_by": ["zone"], "shards": 2, "filter_shapes": [{"keys": ["zone"]}]}),
        );
        let exclusive = json!({"name": "exclusive", "type": "QUEUE_TYPE_EXCLUSIVE", "exclusivity_key": "account",
            "filter_shapes": [{"keys": ["zone"]}]});
        use_queue([&one, &other], &exclusive);
        assert_eq!(redis.cli(&["ACL", "LOG"]), "", "nothing was denied to a server");
        for words in [
            &["FLUSHALL"][..],
            &["FLUSHDB"],
            &["KEYS", "*"],
            &["SHUTDOWN"],
            &["DEBUG", "SLEEP", "0"],
            &["CONFIG", "SET", "maxmemory", "1"],
            &["EVAL", "return 1", "0"],
            &["FUNCTION", "FLUSH"],
            &["ACL", "LIST"],
            &["REPLICAOF", "NO", "ONE"],
            &["GET", "another-key"],
        ] {
            let answer = redis.cli(&[&["ACL", "DRYRUN", "tallystone"], words].concat());
            assert!(answer.contains("has no permissions"), "{words:?}: {answer}");
        }
        assert!(one.stop().success() && other.stop().success());
    }
}

/// Rights that the check does not ask for: without `config|get` the tier is declared, another user may load the functions, and a
/// role that is not told is taken for that of a primary. Without `cluster|nodes` a client of a cluster goes by the last reading.
const NOT_ASKED_FOR: [&str; 4] = ["cluster|nodes", "config|get", "function|load", "role"];

#[test]
fn the_page_of_keys_names_exactly_the_rights_that_servers_need() {
    let user = documented_user();
    let documented: BTreeSet<&str> = user.split(' ').filter_map(|word| word.strip_prefix('+')).collect();
    let needed = needed_rights();
    let needed: BTreeSet<&str> = needed.iter().map(String::as_str).chain(NOT_ASKED_FOR).collect();
    assert_eq!(documented, needed);
}

/// The sources of the adapter, without their tests.
fn sources(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder of the sources") {
        let path: PathBuf = entry.expect("an entry").path();
        match path.extension().and_then(|extension| extension.to_str()) {
            None => found.extend(sources(&path)),
            Some("rs") if !path.ends_with("rights.rs") => {
                let text = fs::read_to_string(&path).expect("a source");
                found.push(text.split("#[cfg(test)]").next().unwrap_or_default().to_owned());
            }
            Some(_) => {}
        }
    }
    found
}

#[test]
fn every_command_that_the_client_sends_is_among_the_rights() {
    // Parts of commands, the command for Sentinels, and codes of errors.
    const OTHERS: [&str; 43] = [
        "ABSENT",
        "ASK",
        "BUSY",
        "CLUSTERDOWN",
        "COUNT",
        "DENIED",
        "DROPPED",
        "ERR",
        "EX",
        "FORMAT",
        "GUARD",
        "OK",
        "GT",
        "HELLO",
        "INCONSISTENT",
        "LIMIT",
        "LOAD",
        "LOADING",
        "LT",
        "MASTERDOWN",
        "MINID",
        "MISCONF",
        "MOVED",
        "NOAUTH",
        "NODES",
        "NOPERM",
        "NOREPLICAS",
        "NOSHARD",
        "OOM",
        "PX",
        "READONLY",
        "RESTARTED",
        "SENTINEL",
        "SHARED",
        "SLOTS",
        "STALE",
        "STATE",
        "TRIGGER",
        "TRYAGAIN",
        "USAGE",
        "VERB",
        "WRONGPASS",
        "CANCELED",
    ];
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/adapters/redis");
    let sources = sources(&folder);
    let quoted = sources.iter().flat_map(|text| text.split('"').skip(1).step_by(2));
    let is_word = |word: &&str| word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
    let words: BTreeSet<String> =
        quoted.filter(is_word).filter(|word| !OTHERS.contains(word)).map(str::to_lowercase).collect();
    let rights: Vec<String> = needed_rights().into_iter().chain(NOT_ASKED_FOR.map(str::to_owned)).collect();
    let is_right = |word: &&String| !rights.iter().any(|right| right.split('|').next() == Some(word.as_str()));
    let unknown: Vec<&String> = words.iter().filter(is_right).collect();
    assert!(words.len() > 20 && unknown.is_empty(), "neither a right nor another word: {unknown:?}");
}

/// Opens as a user with these rules.
async fn open_as(server: &RedisServer, rules: &str) -> Result<RedisStores, OpenError> {
    let words: Vec<&str> =
        ["ACL", "SETUSER", "tallystone", "reset"].into_iter().chain(rules.split(' ').skip(2)).collect();
    server.cli(&words);
    let login = Some(Login { user: Some("tallystone".to_owned()), password: PASSWORD.into() });
    opened(RedisStoreOptions { login, ..stores(single(server)) }).await
}

#[tokio::test]
async fn without_any_one_right_that_queues_need_no_server_starts_and_the_right_is_named() {
    on_each_build(&RedisSettings::default(), async |server| {
        let all = documented_user();
        open_as(&server, &all).await.unwrap_or_else(|error| panic!("{error}: {error:?}")).handle.close().await;
        for right in all.split(' ').filter_map(|word| word.strip_prefix('+')) {
            let without: Vec<&str> = all.split(' ').filter(|word| word.strip_prefix('+') != Some(right)).collect();
            let answer = open_as(&server, &without.join(" ")).await;
            let is_optional = NOT_ASKED_FOR.contains(&right)
                || ["wait", "cluster|myid", "cluster|slots", "publish", "subscribe", "unsubscribe"].contains(&right)
                || ["spublish", "ssubscribe", "sunsubscribe"].contains(&right);
            match answer {
                Ok(opened) if is_optional => opened.handle.close().await,
                Ok(_) => panic!("it starts without {right}"),
                Err(told) => {
                    assert!(!is_optional, "{right}: {told}");
                    let text = told.to_string();
                    let named = right.split('|').next().unwrap_or_default();
                    assert!(text.to_lowercase().contains(named) && text.contains("redis-keys.md"), "{right}: {text}");
                }
            }
        }
    })
    .await;
}

/// The rules of the line that a text offers to an administrator, without its command and user.
fn offered(text: &str) -> Vec<String> {
    let (_, line) = text.split_once("ACL SETUSER tallystone ").unwrap_or_else(|| panic!("no line: {text}"));
    let is_rule = |word: &&str| word.starts_with(['~', '&', '+']);
    line.split(' ').take_while(is_rule).map(|word| word.trim_end_matches([',', ';']).to_owned()).collect()
}

/// The rights that a server cannot do without, whatever it needs them for: to connect, to ask, to find its way, and to serve.
const MISSING: [&[&str]; 6] = [
    &["info", "ping"],
    &["ping", "zadd", "hset", "memory|usage"],
    &["info", "zscore", "xtrim"],
    &["fcall_ro", "info", "ping", "hset"],
    &["fcall", "fcall_ro"],
    &["function|load", "info", "ping"],
];

#[tokio::test]
async fn all_missing_rights_are_told_at_once_with_the_line_that_grants_them() {
    on_each_build(&RedisSettings::default(), async |server| {
        for missing in MISSING {
            server.flush_functions();
            let all = documented_user();
            let is_there = |word: &&str| word.strip_prefix('+').is_none_or(|right| !missing.contains(&right));
            let without: Vec<&str> = all.split(' ').filter(is_there).collect();
            let told = open_as(&server, &without.join(" ")).await.err().unwrap_or_else(|| panic!("{missing:?}"));
            let text = told.to_string();
            let rules = offered(&text);
            for right in missing {
                assert!(rules.contains(&format!("+{right}")), "{right} of {missing:?}: {text}");
            }
            let line: Vec<&str> =
                ["ACL", "SETUSER", "tallystone"].into_iter().chain(rules.iter().map(String::as_str)).collect();
            server.cli(&line);
            let login = Some(Login { user: Some("tallystone".to_owned()), password: PASSWORD.into() });
            let opened = opened(RedisStoreOptions { login, ..stores(single(&server)) }).await;
            opened.unwrap_or_else(|error| panic!("after {line:?}: {error}")).handle.close().await;
        }
    })
    .await;
}

#[tokio::test]
async fn on_a_cluster_the_rights_that_are_missing_to_find_its_slots_are_told_with_all_others() {
    let Some(cluster) = or_skip(RedisCluster::start(Build::Redis7)) else { return };
    let missing = ["+cluster|slots", "+info", "+hset"];
    let all = documented_user();
    let rules: Vec<&str> = all.split(' ').skip(2).filter(|word| !missing.contains(word)).collect();
    for node in &cluster.nodes {
        node.cli(&[&["ACL", "SETUSER", "tallystone", "reset"], &rules[..]].concat());
    }
    let login = Some(Login { user: Some("tallystone".to_owned()), password: PASSWORD.into() });
    let options =
        || RedisStoreOptions { login: login.clone(), ..stores(Deployment::Cluster { seeds: cluster.addresses() }) };
    let told = opened(options()).await.err().expect("it is refused").to_string();
    let offered = offered(&told);
    assert!(missing.iter().all(|right| offered.iter().any(|rule| rule == right)), "{told}");
    let offered: Vec<&str> = offered.iter().map(String::as_str).collect();
    for node in &cluster.nodes {
        node.cli(&[&["ACL", "SETUSER", "tallystone"], &offered[..]].concat());
    }
    opened(options()).await.unwrap_or_else(|error| panic!("{error}")).handle.close().await;
}

#[tokio::test]
async fn a_user_who_may_read_or_touch_some_keys_only_is_told() {
    on_each_build(&RedisSettings::default(), async |server| {
        let all = documented_user();
        for keys in ["~{tallystone}*", "%R~{*", "~other*"] {
            let told = open_as(&server, &all.replace("~{*", keys)).await.err().expect("it is refused");
            assert!(matches!(told, OpenError::Rights { .. }), "{keys}: {told:?}");
            let text = told.to_string();
            assert!(text.contains("ACL SETUSER tallystone ~{* &{*") && text.contains("HSET"), "{keys}: {text}");
            assert!(!text.contains(PASSWORD), "{text}");
        }
    })
    .await;
}

#[test]
fn a_right_that_is_taken_away_stops_every_change_and_damages_nothing() {
    for build in Build::ALL {
        println!("on {}", build.name());
        let settings = RedisSettings::of(&["appendonly yes", "appendfsync always", &documented_user()]);
        let Some(redis) = or_skip(RedisServer::start_with(build, settings)) else { continue };
        let server = start(&redis);
        call(&server, "CreateQueue", &json!({"queue": {"name": "mail"}}));
        let enqueue = |id: &str| {
            let body = json!({"queue": "mail", "message": {"message_id": id, "payload": "aGVsbG8="}});
            server.post(&format!("{QUEUES}/Enqueue"), &body.to_string())
        };
        assert_eq!(enqueue("first").status, 200);
        for (number, right) in ["zadd", "bitfield", "hset", "set"].into_iter().enumerate() {
            redis.cli(&["ACL", "SETUSER", "tallystone", &format!("-{right}")]);
            let is_ready = |status: u16| holds_within(BACK_WITHIN, || server.get("/readyz").status == status);
            assert!(is_ready(503), "{right}");
            let told = server.get("/readyz").body;
            assert!(told.contains(&right.to_uppercase()) && told.contains("ACL SETUSER"), "{right}: {told}");
            let refused = enqueue(&format!("refused-{number}"));
            assert!(refused.body.contains("STORE_UNAVAILABLE"), "{right}: {refused:?}");
            redis.cli(&["ACL", "SETUSER", "tallystone", &format!("+{right}")]);
            assert!(is_ready(200), "{right}");
            assert_eq!(enqueue(&format!("again-{number}")).status, 200, "{right}");
        }
        let leased = call(&server, "Dequeue", &json!({"queue": "mail", "max_messages": 10}));
        assert_eq!(leased["leases"].as_array().map(Vec::len), Some(5), "{leased}");
        assert!(server.stop().success());
    }
}
