//! Servers that are absent, stopped, killed, restarted or cut off: a call ends by its deadline, says whether its effect may
//! have happened, and the next ones go on once the server is back.

use futures_util::future::join_all;
use tallystone::adapters::redis::limits::{REDIS_ABSENCE_WAITED_MAX, REDIS_CALLS_AT_ONCE_MAX};

use super::*;
use crate::servers::free_port;
use crate::servers::proxy::{Fault, Proxy, Wire};

const PERSISTENT: [&str; 2] = ["appendonly yes", "appendfsync always"];

#[tokio::test]
async fn an_absent_server_is_unreachable_and_nothing_was_applied() {
    let address = free_port().and_then(|free| free.local_addr()).expect("a free port").to_string();
    let opened = RedisClient::open(options(Deployment::Single { address }), Arc::new(SystemClock)).await;
    failed(opened.map(|_| "opened"), &FailureCause::Unreachable, EffectOutcome::NotApplied);
}

#[tokio::test]
async fn a_killed_server_fails_calls_unapplied_and_they_go_on_after_its_restart() {
    on_each_build(&RedisSettings::of(&PERSISTENT), async |mut server| {
        let client = open(single(&server)).await;
        assert_eq!(add_one(&client).await.expect("an add"), 1);
        server.kill();
        // A call right after the kill may have used the dying connection. It got no answer and added nothing.
        let gone =
            async || add_within(&client, SHORT).await.expect_err("it is dead").cause == FailureCause::Unreachable;
        eventually("the end of the connection is noticed", gone).await;
        // First calls wait for the server; later ones fail at once, so that nothing piles up.
        let fails_at_once = async || {
            let began = Instant::now();
            failed(add_within(&client, SHORT).await, &FailureCause::Unreachable, EffectOutcome::NotApplied);
            began.elapsed() < SHORT / 2
        };
        eventually("calls of an absent server fail at once", fails_at_once).await;
        server.restart().expect("it starts");
        assert_eq!(add_to_what_is_back(&client).await, 2, "nothing that failed was applied");
    })
    .await;
}

#[tokio::test]
async fn a_server_that_is_back_within_the_deadline_costs_a_call_nothing_but_time() {
    let Some(mut server) = or_skip(RedisServer::start_with(Build::Redis7, RedisSettings::of(&PERSISTENT))) else {
        return;
    };
    // How long its start takes is the machine's business: it becomes reachable again once it has started.
    let proxy = Proxy::start(server.address(), Wire::Plain).expect("a proxy");
    let client = open(Deployment::Single { address: proxy.address().to_string() }).await;
    assert_eq!(add_one(&client).await.expect("an add"), 1);
    proxy.set(Fault::Cut);
    server.kill();
    let gone = async || add_within(&client, SHORT).await.expect_err("it is dead").cause == FailureCause::Unreachable;
    eventually("the end of the connection is noticed", gone).await;
    server.restart().expect("it starts");
    let adding = client.call_within(slot(), vec![add(KEY, 1)], REDIS_ABSENCE_WAITED_MAX);
    let returning = async { proxy.set(Fault::None) };
    let (answers, ()) = tokio::join!(adding, returning);
    assert_eq!(answers.replies[0], Ok(RedisReply::Int(2)));
    assert_eq!(stored(&server, KEY), "2");
}

#[tokio::test]
async fn a_pause_within_the_deadline_delays_a_call_and_one_beyond_it_leaves_it_in_doubt() {
    on_each_build(&RedisSettings::default(), async |server| {
        let client = open(single(&server)).await;
        assert_eq!(add_one(&client).await.expect("an add"), 1);
        for millis in [100, 500, 2_000, 5_000] {
            let pause = Duration::from_millis(millis);
            server.pause();
            let began = Instant::now();
            let adding = add_within(&client, TIMEOUT + pause);
            let resuming = async {
                eventually("the pause is over", async || began.elapsed() >= pause).await;
                server.resume();
            };
            let (added, ()) = tokio::join!(adding, resuming);
            let before = stored(&server, KEY);
            assert_eq!(added.expect("the pause ended in time").to_string(), before);
            assert!(began.elapsed() >= pause);
        }
        let before: i64 = stored(&server, KEY).parse().expect("a number");
        server.pause();
        let began = Instant::now();
        failed(add_within(&client, SHORT).await, &FailureCause::NoAnswer, EffectOutcome::Unknown);
        assert!(began.elapsed() >= SHORT && began.elapsed() < TIMEOUT, "by its deadline: {:?}", began.elapsed());
        server.resume();
        let (value, unknown) = add_until_done(&client).await;
        let doubtful = value - before - 1;
        assert!((0..=1 + unknown).contains(&doubtful), "each call in doubt counts once or not at all: {doubtful}");
    })
    .await;
}

#[tokio::test]
async fn calls_of_a_server_that_stays_silent_are_bounded_and_end_in_time() {
    let Some(server) = or_skip(RedisServer::start(Build::Redis7)) else { return };
    let client = open(single(&server)).await;
    assert_eq!(add_one(&client).await.expect("an add"), 1);
    server.pause();
    let sent = join_all((0..REDIS_CALLS_AT_ONCE_MAX).map(|_| add_within(&client, TIMEOUT)));
    let mut in_doubt = 0;
    let further = async {
        eventually("all places are taken", async || {
            let failure = add_within(&client, SHORT).await.expect_err("it is stopped");
            in_doubt += i64::from(failure.outcome == EffectOutcome::Unknown);
            failure.cause == FailureCause::Busy
        })
        .await;
        for added in join_all((0..1_000).map(|_| add_within(&client, SHORT))).await {
            failed(added, &FailureCause::Busy, EffectOutcome::NotApplied);
        }
    };
    let (sent, ()) = tokio::join!(sent, further);
    sent.into_iter().for_each(|added| failed(added, &FailureCause::NoAnswer, EffectOutcome::Unknown));
    server.resume();
    let (value, unknown) = add_until_done(&client).await;
    let most = i64::try_from(REDIS_CALLS_AT_ONCE_MAX).expect("few") + in_doubt + unknown;
    assert!((2..=2 + most).contains(&value), "what was not sent was not applied: {value}");
}

#[tokio::test]
async fn a_server_killed_in_mid_call_leaves_it_in_doubt_and_acknowledged_calls_stay() {
    on_each_build(&RedisSettings::of(&PERSISTENT), async |mut server| {
        let proxy = Proxy::start(server.address(), Wire::Plain).expect("a proxy");
        let client = open(Deployment::Single { address: proxy.address().to_string() }).await;
        assert_eq!(add_one(&client).await.expect("an add"), 1);
        proxy.keep_back("tt_add", 0);
        let killing = async {
            eventually("the call is on its way", async || proxy.keeps_back()).await;
            server.kill();
            proxy.let_go();
        };
        let (added, ()) = tokio::join!(add_one(&client), killing);
        failed(added, &FailureCause::NoAnswer, EffectOutcome::Unknown);
        server.restart().expect("it starts");
        let (value, unknown) = add_until_done(&client).await;
        assert!(value == 2 || unknown > 0 && value > 2, "the dead server did nothing: {value}, {unknown} in doubt");
    })
    .await;
}

#[tokio::test]
async fn a_connection_cut_in_mid_call_leaves_it_in_doubt_and_is_made_anew() {
    on_each_build(&RedisSettings::default(), async |server| {
        let proxy = Proxy::start(server.address(), Wire::Plain).expect("a proxy");
        let client = open(Deployment::Single { address: proxy.address().to_string() }).await;
        assert_eq!(add_one(&client).await.expect("an add"), 1);
        // The answer is lost after the effect.
        proxy.set(Fault::LoseOne);
        failed(add_one(&client).await, &FailureCause::NoAnswer, EffectOutcome::Unknown);
        assert_eq!(stored(&server, KEY), "2");
        // The request is lost before it.
        proxy.keep_back("tt_add", 0);
        failed(add_within(&client, SHORT).await, &FailureCause::NoAnswer, EffectOutcome::Unknown);
        assert_eq!(stored(&server, KEY), "2");
        // No connection can be made.
        proxy.set(Fault::Cut);
        proxy.let_go();
        let gone =
            async || add_within(&client, SHORT).await.expect_err("it is cut off").outcome == EffectOutcome::NotApplied;
        eventually("the cut is noticed", gone).await;
        failed(add_within(&client, SHORT).await, &FailureCause::Unreachable, EffectOutcome::NotApplied);
        assert_eq!(stored(&server, KEY), "2");
        proxy.set(Fault::None);
        assert_eq!(add_to_what_is_back(&client).await, 3);
    })
    .await;
}

#[tokio::test]
async fn a_connection_that_went_silent_is_replaced() {
    let Some(server) = or_skip(RedisServer::start(Build::Redis7)) else { return };
    let proxy = Proxy::start(server.address(), Wire::Plain).expect("a proxy");
    let client = open(Deployment::Single { address: proxy.address().to_string() }).await;
    assert_eq!(add_one(&client).await.expect("an add"), 1);
    // What is open stays silent for ever, as behind a firewall that forgot it.
    proxy.set(Fault::Hang);
    let silent =
        async || add_within(&client, SHORT).await.is_err_and(|failure| failure.outcome == EffectOutcome::NotApplied);
    eventually("the silent connections are given up", silent).await;
    proxy.set(Fault::None);
    let (value, unknown) = add_until_done(&client).await;
    assert!(value >= 2, "{value}, {unknown} in doubt");
}
