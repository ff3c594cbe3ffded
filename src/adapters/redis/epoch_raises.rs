//! Raises of the epoch: in this process, and noted in the store for servers that start.

use super::functions::RedisQueues;
use super::keys::{EPOCH, named_keys};
use super::wire::{WireCommand, WireReply};
use tallystone_adapters::codec::CorruptValue;
use tallystone_domain::queue::name::ShardId;
use tallystone_ports::StoreError;

const READ: &str = "read the epoch of queues";

impl RedisQueues {
    /// The epoch of new rows and leases of this process.
    pub fn epoch(&self) -> u32 {
        self.epoch.get()
    }

    /// Raises the epoch for a new life of the server, of which a shard told in these words, and notes it in the store.
    pub(super) async fn raise_epoch(&self, shard: ShardId, told: &str) {
        let mut words = told.rsplit(' ');
        let life = words.next().and_then(|life| life.as_bytes().try_into().ok()).unwrap_or_default();
        let used = words.next().and_then(|epoch| epoch.parse().ok()).unwrap_or(0);
        if let Some(step) = words.next().and_then(|step| step.parse().ok()) {
            self.judge_return(shard, life, step).await;
        }
        let Some(epoch) = self.epoch.raise(shard, used, life, self.clock.now()) else { return };
        let (at, runs_for) = self.process_of(shard).await;
        tracing::warn!(
            epoch,
            at,
            runs_for,
            "another process of Redis serves queues than the one that served them last: the epoch is raised, and nothing \
             expires for 15 s"
        );
        let arguments = [EPOCH, "GT", &epoch.to_string(), "epoch"].map(|word| word.as_bytes().to_vec());
        let noted = WireCommand { name: "ZADD", arguments: arguments.to_vec() };
        if let Err(error) = self.ask(EPOCH.as_bytes(), noted, "note the epoch of queues").await {
            // Shards have it too, and the next raise notes it again.
            tracing::debug!(%error, "the epoch of queues is not noted");
        }
    }

    /// The address of the process that serves a shard, and the time for which it has run: after a restart a short time,
    /// after a failover or the move of a slot any time.
    async fn process_of(&self, shard: ShardId) -> (String, String) {
        let [key, _] = named_keys(shard);
        let at = self.wire.address(&key).unwrap_or_default();
        let info = WireCommand { name: "INFO", arguments: vec![b"server".to_vec()] };
        let uptime = match self.ask(&key, info, "read how long Redis has run").await {
            Ok(WireReply::Bytes(text)) => {
                let text = String::from_utf8_lossy(&text).into_owned();
                let seconds = text.lines().find_map(|line| line.strip_prefix("uptime_in_seconds:"));
                seconds.map(|seconds| format!("{} s", seconds.trim()))
            }
            Ok(WireReply::Nil | WireReply::Int(_) | WireReply::List(_)) | Err(_) => None,
        };
        (at, uptime.unwrap_or_else(|| "not known".to_owned()))
    }

    /// Takes over the epoch that the store has noted, as at a start.
    pub async fn learn_epoch(&self) -> Result<(), StoreError> {
        let arguments = [EPOCH, "epoch"].map(|word| word.as_bytes().to_vec()).to_vec();
        let noted = match self.ask(EPOCH.as_bytes(), WireCommand { name: "ZSCORE", arguments }, READ).await? {
            WireReply::Nil => return Ok(()),
            WireReply::Int(epoch) => u32::try_from(epoch).ok(),
            WireReply::Bytes(_) | WireReply::List(_) => None,
        };
        let noted = noted.ok_or_else(|| CorruptValue::new("epoch", "no number").into_store_error(READ))?;
        self.epoch.learn(noted);
        Ok(())
    }
}
