//! What servers refuse: log-ins, permissions, writes without memory, replicas, functions that are not there. Nothing of it
//! was applied, and the cause is named.

use tallystone::adapters::redis::client::{NodeReading, Product, Role};

use super::*;
use crate::servers::redis::ReplicaPair;

fn login(user: Option<&str>, password: &str) -> Option<Login> {
    Some(Login { user: user.map(str::to_owned), password: password.into() })
}

#[tokio::test]
async fn a_wrong_or_missing_password_is_told_at_once_and_nothing_was_applied() {
    let settings = RedisSettings { password: Some("secret".to_owned()), ..RedisSettings::default() };
    on_each_build(&settings, async |server| {
        for wrong in [None, login(None, "wrong"), login(Some("nobody"), "secret")] {
            let began = Instant::now();
            let opened =
                RedisClient::open(ClientOptions { login: wrong, ..options(single(&server)) }, Arc::new(SystemClock));
            let opened = opened.await.map(|_| "opened");
            failed(opened, &FailureCause::Unauthenticated, EffectOutcome::NotApplied);
            assert!(began.elapsed() < TIMEOUT, "it does not wait for a password to become right");
        }
        let client = open_with(ClientOptions { login: login(None, "secret"), ..options(single(&server)) }).await;
        assert_eq!(add_one(&client).await.expect("an add"), 1);
    })
    .await;
}

#[tokio::test]
async fn what_a_user_may_not_do_is_denied_and_not_applied() {
    let rules = ["user worker on >pw ~{q}* &* +fcall +fcall_ro +info +ping +incrby +get +wait +set +hello +client"];
    on_each_build(&RedisSettings::of(&rules), async |server| {
        let client = open_with(ClientOptions { login: login(Some("worker"), "pw"), ..options(single(&server)) }).await;
        failed(add_one(&client).await, &FailureCause::Denied, EffectOutcome::NotApplied);
        server.cli(&["FUNCTION", "LOAD", CODE]);
        assert_eq!(add_one(&client).await.expect("it was loaded by somebody who may"), 1);
        let foreign = client.call_one(Slot::of(b"other"), add("other", 1)).await;
        failed(foreign, &FailureCause::Denied, EffectOutcome::NotApplied);
        assert_eq!(stored(&server, "other"), "");
        let [NodeReading { reading: Ok(facts), .. }] = &client.health().await[..] else { panic!("one node") };
        assert_eq!(facts.config, None, "CONFIG is denied, and the reading says so");
    })
    .await;
}

#[tokio::test]
async fn a_full_server_refuses_writes_and_answers_reads() {
    let settings = RedisSettings::of(&["maxmemory-policy noeviction"]);
    on_each_build(&settings, async |server| {
        let client = open(single(&server)).await;
        assert_eq!(add_one(&client).await.expect("an add"), 1);
        server.config_set("maxmemory", "1");
        failed(add_one(&client).await, &FailureCause::Full, EffectOutcome::NotApplied);
        assert_eq!(stored(&server, KEY), "1");
        let read = client.call_one(slot(), RedisCommand::fcall_ro::<_, &str>("tt_read", &[KEY], &[])).await;
        assert_eq!(read.and_then(RedisReply::into_bytes).expect("a read"), "1");
        server.config_set("maxmemory", "0");
        assert_eq!(add_one(&client).await.expect("there is room again"), 2);
    })
    .await;
}

#[tokio::test]
async fn a_server_that_cannot_persist_or_lacks_replicas_refuses_writes() {
    on_each_build(&RedisSettings::default(), async |server| {
        let client = open(single(&server)).await;
        assert_eq!(add_one(&client).await.expect("an add"), 1);
        server.config_set("min-replicas-to-write", "1");
        failed(add_one(&client).await, &FailureCause::TooFewReplicas, EffectOutcome::NotApplied);
        server.config_set("min-replicas-to-write", "0");
        assert_eq!(add_one(&client).await.expect("none is needed any more"), 2);
        // A snapshot that fails: its directory is gone.
        server.config_set("save", "3600 1000000");
        server.lose_directory();
        server.try_cli(&["BGSAVE"]).expect("it is begun");
        let failing = || server.info("rdb_last_bgsave_status") == "err";
        assert!(crate::support::harness::eventually(BACK_WITHIN, failing), "the snapshot fails");
        failed(add_one(&client).await, &FailureCause::CannotPersist, EffectOutcome::NotApplied);
        assert_eq!(stored(&server, KEY), "2");
    })
    .await;
}

#[tokio::test]
async fn a_flushed_library_is_loaded_again_and_the_call_goes_on_in_order() {
    on_each_build(&RedisSettings::default(), async |server| {
        let client = open(single(&server)).await;
        for round in 0..3 {
            server.flush_functions();
            let items: Vec<String> = (0..64).map(|item| format!("{round}-{item}")).collect();
            let commands = items.iter().map(|item| append("{q}list", item)).collect();
            let answers = client.call(slot(), commands).await;
            assert!(answers.replies.iter().all(Result::is_ok), "{answers:?}");
            let list = server.cli(&["LRANGE", "{q}list", &(64 * round).to_string(), "-1"]);
            assert_eq!(list.lines().collect::<Vec<_>>(), items);
        }
        // Many callers at once, on both connections.
        server.flush_functions();
        let calls = (0..200).map(|_| add_one(&client));
        let mut values: Vec<i64> =
            futures_util::future::join_all(calls).await.into_iter().map(|added| added.expect("an add")).collect();
        values.sort_unstable();
        assert!(values.into_iter().eq(1..=200));
    })
    .await;
}

#[tokio::test]
async fn a_replica_is_never_used_and_a_demoted_primary_is_waited_for() {
    for build in Build::ALL {
        let Some(pair) = or_skip(ReplicaPair::start(build, &RedisSettings::default())) else { continue };
        println!("on {}", build.name());
        let opened = RedisClient::open(options(single(&pair.replica)), Arc::new(SystemClock)).await.map(|_| "opened");
        failed(opened, &FailureCause::Moving, EffectOutcome::NotApplied);
        let client = open(single(&pair.primary)).await;
        assert_eq!(add_one(&client).await.expect("an add"), 1);
        let (host, port) = ("127.0.0.1", pair.replica.address().port().to_string());
        pair.replica.cli(&["REPLICAOF", "NO", "ONE"]);
        pair.primary.cli(&["REPLICAOF", host, &port]);
        failed(add_within(&client, REFUSED_FOR).await, &FailureCause::Moving, EffectOutcome::NotApplied);
        let read = RedisCommand::fcall_ro::<_, &str>("tt_read", &[KEY], &[]);
        let read = client.call_within(slot(), vec![read], REFUSED_FOR).await.replies.pop().expect("an answer");
        failed(read, &FailureCause::Moving, EffectOutcome::NotApplied);
        let adding = client.call_within(slot(), vec![add(KEY, 1)], BACK_WITHIN);
        let promoting = async { pair.primary.cli(&["REPLICAOF", "NO", "ONE"]) };
        let (answers, _) = tokio::join!(adding, promoting);
        let value = answers.replies[0].clone().and_then(RedisReply::into_int).expect("the wait was worth it");
        assert_eq!(value, 2, "the two refused calls left nothing");
    }
}

#[tokio::test]
async fn an_error_inside_a_function_may_have_had_its_effect_and_one_before_it_had_none() {
    on_each_build(&RedisSettings::default(), async |server| {
        let client = open(single(&server)).await;
        let half = RedisCommand::fcall("tt_half", &[KEY], &["5"]);
        let refuse = RedisCommand::fcall::<_, &str>("tt_refuse", &[KEY], &[]);
        let answers = client.call(slot(), vec![half, add(KEY, 1), refuse]).await.replies;
        failed(answers[0].clone(), &FailureCause::Function { code: "ERR".to_owned() }, EffectOutcome::Unknown);
        assert_eq!(answers[1], Ok(RedisReply::Int(6)), "the effect of the half that was done stays");
        failed(answers[2].clone(), &FailureCause::Function { code: "STALE".to_owned() }, EffectOutcome::Unknown);
        // Memory runs out half way: the same code as of a call that was refused as a whole, with another outcome.
        let full = client.call_one(slot(), RedisCommand::new("NO_SUCH_COMMAND")).await;
        failed(full, &FailureCause::Function { code: "ERR".to_owned() }, EffectOutcome::Unknown);
    })
    .await;
}

#[tokio::test]
async fn a_node_says_what_it_is_and_how_it_is_set_up() {
    let settings =
        RedisSettings::of(&["appendonly yes", "appendfsync always", "maxmemory 64mb", "maxmemory-policy noeviction"]);
    on_each_build(&settings, async |server| {
        let client = open(single(&server)).await;
        let [NodeReading { address, reading: Ok(facts) }] = &client.health().await[..] else { panic!("one node") };
        assert_eq!(*address, server.address().to_string());
        let is_valkey = server.build() == Build::Valkey9;
        assert_eq!(facts.product == Product::Valkey, is_valkey);
        assert!(facts.version.starts_with(["7.0.", "8.", "9."][server.build() as usize]), "{}", facts.version);
        assert_eq!((facts.role, facts.append_only, facts.replicas), (Role::Primary, true, 0));
        assert_eq!((facts.memory.limit, facts.memory.policy.as_str()), (64 * 1024 * 1024, "noeviction"));
        assert!(facts.memory.used > 0 && facts.run_id == server.info("run_id"));
        let config = facts.config.as_ref().expect("CONFIG is allowed");
        assert_eq!((config.append_fsync.as_str(), config.replicas_to_write), ("always", 0));
        assert!(config.hash_listpack_value >= 64 && config.zset_listpack_entries >= 128, "{config:?}");
    })
    .await;
}

#[tokio::test]
async fn a_call_beyond_its_bounds_or_after_the_end_is_not_sent() {
    let Some(server) = or_skip(RedisServer::start(Build::Redis7)) else { return };
    let client = open(single(&server)).await;
    let many = client.call(slot(), vec![add(KEY, 1); 65]).await;
    assert!(many.replies.len() == 65 && many.served.is_none());
    failed(many.replies[64].clone(), &FailureCause::TooLarge, EffectOutcome::NotApplied);
    let large = client.call_one(slot(), append(KEY, &"x".repeat(9 * 1024 * 1024))).await;
    failed(large, &FailureCause::TooLarge, EffectOutcome::NotApplied);
    assert!(client.call(slot(), Vec::new()).await.replies.is_empty());
    assert_eq!(add_one(&client).await.expect("an add"), 1);
    client.close().await;
    failed(add_one(&client).await, &FailureCause::Closed, EffectOutcome::NotApplied);
    assert_eq!(stored(&server, KEY), "1");
}
