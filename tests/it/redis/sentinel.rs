//! A primary that Sentinels watch: the client finds it, and finds the next one after a failover.

use super::*;
use crate::servers::redis::SentinelGroup;

fn deployment(group: &SentinelGroup) -> Deployment {
    let (sentinels, primary) = (group.sentinels(), SentinelGroup::NAME.to_owned());
    Deployment::Sentinel { sentinels, primary, login: None }
}

#[tokio::test]
async fn after_a_failover_calls_go_on_at_the_new_primary() {
    for build in Build::ALL {
        let Some(mut group) = or_skip(SentinelGroup::start(build)) else { continue };
        println!("on {}", build.name());
        let client = open(deployment(&group)).await;
        assert_eq!(
            client.primaries(),
            [(group.pair.primary.address().to_string(), Slot::numbered(0).expect("a slot"))]
        );
        for value in 1..=20 {
            assert_eq!(add_one(&client).await.expect("an add"), value);
        }
        eventually("the replica has them", async || group.pair.primary.replicas_are_in_step()).await;
        group.pair.primary.kill();
        let (value, unknown) = add_until_done(&client).await;
        assert!((21..=21 + unknown).contains(&value), "{value}, {unknown} in doubt");
        assert_eq!(stored(&group.pair.replica, KEY), value.to_string());
        assert_eq!(client.primaries()[0].0, group.pair.replica.address().to_string());
        // The old one comes back, as a primary until the Sentinels tell it otherwise. Nobody writes to it.
        group.pair.primary.restart().expect("it starts");
        assert_eq!(add_one(&client).await.expect("an add"), value + 1);
        assert_eq!(stored(&group.pair.replica, KEY), (value + 1).to_string());
    }
}

#[tokio::test]
async fn a_stopped_primary_is_left_and_its_calls_are_in_doubt() {
    let Some(group) = or_skip(SentinelGroup::start(Build::Redis7)) else { return };
    let client = open(deployment(&group)).await;
    assert_eq!(add_one(&client).await.expect("an add"), 1);
    eventually("the replica has it", async || group.pair.primary.replicas_are_in_step()).await;
    group.pair.primary.pause();
    failed(add_within(&client, SHORT).await, &FailureCause::NoAnswer, EffectOutcome::Unknown);
    // What the stopped one may do later is lost with its history; a late answer of the new one leaves its add in doubt.
    let (value, unknown) = add_until_done(&client).await;
    assert!((2..=2 + unknown).contains(&value), "{value}, {unknown} in doubt");
    assert_eq!(stored(&group.pair.replica, KEY), value.to_string());
    group.pair.primary.resume();
    assert_eq!(add_one(&client).await.expect("an add"), value + 1);
    assert_eq!(stored(&group.pair.replica, KEY), (value + 1).to_string());
}

#[tokio::test]
async fn dead_sentinels_are_passed_over_and_an_unknown_name_is_told() {
    let Some(group) = or_skip(SentinelGroup::start(Build::Redis7)) else { return };
    let Deployment::Sentinel { mut sentinels, .. } = deployment(&group) else { panic!("it is one") };
    let free = crate::servers::free_port().and_then(|free| free.local_addr()).expect("a free port");
    sentinels.insert(0, free.to_string());
    let named =
        |primary: &str| Deployment::Sentinel { sentinels: sentinels.clone(), primary: primary.to_owned(), login: None };
    let client = open(named(SentinelGroup::NAME)).await;
    assert_eq!(add_one(&client).await.expect("an add"), 1);
    let opened = RedisClient::open(options(named("another")), Arc::new(SystemClock)).await.map(|_| "opened");
    failed(opened, &FailureCause::Unreachable, EffectOutcome::NotApplied);
}
