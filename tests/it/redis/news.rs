//! Subscriptions: what is published is heard, a loss is told once, and so is the return.

use std::sync::Mutex;

use bytes::Bytes;
use tallystone::adapters::redis::client::NewsListener;

use super::*;
use crate::servers::proxy::{Fault, Proxy, Wire};
use crate::servers::redis::{RedisCluster, SentinelGroup};

const CHANNEL: &str = "{q}news";

/// Everything that was told, in order.
#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Told {
    fn add(&self, event: String) {
        self.0.lock().expect("nobody panics with it").push(event);
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().expect("nobody panics with it").clone()
    }

    fn count(&self, event: &str) -> usize {
        self.all().iter().filter(|told| *told == event).count()
    }

    async fn until(&self, event: &str, times: usize) {
        eventually(&format!("{event} {times} times: {:?}", self.all()), async || self.count(event) >= times).await;
        assert_eq!(self.count(event), times, "{:?}", self.all());
    }
}

impl NewsListener for Told {
    fn news(&self, channel: &str, payload: Bytes) {
        self.add(format!("{channel} {}", String::from_utf8_lossy(&payload)));
    }

    fn lost(&self, channels: &[String]) {
        channels.iter().for_each(|channel| self.add(format!("lost {channel}")));
    }

    fn subscribed(&self, channels: &[String]) {
        channels.iter().for_each(|channel| self.add(format!("held {channel}")));
    }
}

async fn listening(client: &RedisClient) -> Arc<Told> {
    let told: Arc<Told> = Arc::default();
    client.listen(Arc::clone(&told) as Arc<dyn NewsListener>);
    client.subscribe(Slot::of(CHANNEL.as_bytes()), CHANNEL);
    told.until(&format!("held {CHANNEL}"), 1).await;
    told
}

async fn publish(client: &RedisClient, channel: &str, payload: &str) {
    let command = RedisCommand::new(client.publish_command()).arg(channel).arg(payload);
    let heard = client.call_one(Slot::of(channel.as_bytes()), command).await;
    assert_eq!(heard.and_then(RedisReply::into_int).expect("it is published"), 1, "one connection listens");
}

#[tokio::test]
async fn what_is_published_is_heard_and_a_left_channel_is_quiet() {
    on_each_build(&RedisSettings::default(), async |server| {
        let client = open(single(&server)).await;
        let told = listening(&client).await;
        client.subscribe(Slot::of(b"{r}news"), "{r}news");
        told.until("held {r}news", 1).await;
        for payload in ["one", "two"] {
            publish(&client, CHANNEL, payload).await;
            publish(&client, "{r}news", payload).await;
            told.until(&format!("{CHANNEL} {payload}"), 1).await;
            told.until(&format!("{{r}}news {payload}"), 1).await;
        }
        client.unsubscribe(CHANNEL);
        eventually("it is left", async || server.cli(&["PUBSUB", "NUMSUB", CHANNEL]).ends_with("\n0")).await;
        publish(&client, "{r}news", "three").await;
        told.until("{r}news three", 1).await;
        assert!(told.all().iter().all(|event| !event.starts_with("lost")), "{:?}", told.all());
        client.close().await;
    })
    .await;
}

#[tokio::test]
async fn a_killed_server_loses_a_subscription_once_and_it_is_back_after_the_restart() {
    on_each_build(&RedisSettings::default(), async |mut server| {
        let client = open(single(&server)).await;
        let told = listening(&client).await;
        server.kill();
        told.until(&format!("lost {CHANNEL}"), 1).await;
        server.restart().expect("it starts");
        told.until(&format!("held {CHANNEL}"), 2).await;
        publish(&client, CHANNEL, "again").await;
        told.until(&format!("{CHANNEL} again"), 1).await;
        assert_eq!(told.count(&format!("lost {CHANNEL}")), 1, "{:?}", told.all());
    })
    .await;
}

#[tokio::test]
async fn a_subscription_that_went_silent_is_noticed() {
    let Some(server) = or_skip(RedisServer::start(Build::Redis7)) else { return };
    let proxy = Proxy::start(server.address(), Wire::Plain).expect("a proxy");
    let client = open(Deployment::Single { address: proxy.address().to_string() }).await;
    let told = listening(&client).await;
    proxy.set(Fault::Hang);
    let (began, yardstick) = (Instant::now(), beside(&server));
    told.until(&format!("lost {CHANNEL}"), 1).await;
    yardstick.holds(began, Duration::from_secs(5), "the silence is noticed");
    proxy.set(Fault::None);
    told.until(&format!("held {CHANNEL}"), 2).await;
    eventually("it is heard again", async || {
        let command = RedisCommand::new("PUBLISH").arg(CHANNEL).arg("again");
        client.call_within(Slot::of(CHANNEL.as_bytes()), vec![command], SHORT).await.replies[0].is_ok()
    })
    .await;
    eventually("it is heard again", async || told.count(&format!("{CHANNEL} again")) > 0).await;
}

#[tokio::test]
async fn ten_thousand_channels_are_subscribed_and_heard() {
    const CHANNELS: usize = 10_000;
    let Some(server) = or_skip(RedisServer::start(Build::Redis7)) else { return };
    let client = open(single(&server)).await;
    let told = listening(&client).await;
    let names: Vec<String> = (0..CHANNELS).map(|number| format!("{{{number}}}news")).collect();
    names.iter().for_each(|name| client.subscribe(Slot::of(name.as_bytes()), name));
    eventually("all hold", async || told.0.lock().expect("nobody panics with it").len() == CHANNELS + 1).await;
    publish(&client, &names[CHANNELS - 1], "hello").await;
    told.until(&format!("{} hello", names[CHANNELS - 1]), 1).await;
}

#[tokio::test]
async fn on_a_cluster_a_subscription_follows_its_slot() {
    for build in Build::ALL {
        let Some(mut cluster) = or_skip(RedisCluster::start(build)) else { continue };
        println!("on {}", build.name());
        let client = open(Deployment::Cluster { seeds: cluster.addresses() }).await;
        let told = listening(&client).await;
        publish(&client, CHANNEL, "one").await;
        told.until(&format!("{CHANNEL} one"), 1).await;
        let slot = Slot::of(CHANNEL.as_bytes()).number();
        let from = cluster.owner_of(slot, 0);
        let to = (from + 1) % 3;
        cluster.begin_move(slot, from, to);
        cluster.end_move(slot, from, to);
        told.until(&format!("lost {CHANNEL}"), 1).await;
        told.until(&format!("held {CHANNEL}"), 2).await;
        publish(&client, CHANNEL, "two").await;
        told.until(&format!("{CHANNEL} two"), 1).await;
        cluster.nodes[to].kill();
        told.until(&format!("lost {CHANNEL}"), 2).await;
        told.until(&format!("held {CHANNEL}"), 3).await;
        publish(&client, CHANNEL, "three").await;
        told.until(&format!("{CHANNEL} three"), 1).await;
    }
}

#[tokio::test]
async fn after_a_failover_of_sentinels_a_subscription_is_at_the_new_primary() {
    let Some(mut group) = or_skip(SentinelGroup::start(Build::Redis7)) else { return };
    let (sentinels, primary) = (group.sentinels(), SentinelGroup::NAME.to_owned());
    let client = open(Deployment::Sentinel { sentinels, primary, login: None }).await;
    let told = listening(&client).await;
    group.pair.primary.kill();
    told.until(&format!("lost {CHANNEL}"), 1).await;
    told.until(&format!("held {CHANNEL}"), 2).await;
    publish(&client, CHANNEL, "again").await;
    told.until(&format!("{CHANNEL} again"), 1).await;
}
