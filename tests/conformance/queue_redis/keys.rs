//! The keys of the only shard of a server, or those that servers share, read and written past the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use tallystone_redis::client::{RedisClient, RedisCommand, RedisReply, Slot};

/// The commands of one call.
const AT_ONCE: usize = 32;

/// All keys of a shard with their values, as DUMP writes them.
pub type Snapshot = BTreeMap<Bytes, Bytes>;

/// The keys of a shard, or those that servers share.
pub struct ShardKeys {
    pub client: Arc<RedisClient>,
    pub pattern: &'static str,
}

/// The first part of a header.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HeaderStart {
    pub is_inconsistent: bool,
    pub sequence: f64,
    pub serial: f64,
}

impl ShardKeys {
    /// The keys of the only shard of a server.
    pub fn of_shard(client: Arc<RedisClient>) -> Self {
        Self { client, pattern: "{*.0}*" }
    }

    /// The keys that servers share.
    pub fn shared(client: Arc<RedisClient>) -> Self {
        Self { client, pattern: "{tallystone}*" }
    }

    /// Sends one command.
    pub async fn send(&self, command: RedisCommand) -> RedisReply {
        self.client.call_one(Slot::of(b""), command).await.expect("the server takes it")
    }

    async fn send_all(&self, commands: Vec<RedisCommand>) -> Vec<RedisReply> {
        let mut replies = Vec::with_capacity(commands.len());
        for some in commands.chunks(AT_ONCE) {
            let answers = self.client.call(Slot::of(b""), some.to_vec()).await.replies;
            replies.extend(answers.into_iter().map(|reply| reply.expect("the server takes it")));
        }
        replies
    }

    async fn names(&self) -> Vec<Bytes> {
        let names = self.send(RedisCommand::new("KEYS").arg(self.pattern)).await.into_list().expect("a list");
        names.into_iter().map(|name| name.into_bytes().expect("a name")).collect()
    }

    /// What is there, but for what expires by itself at any moment: which news were told, and who wants some.
    pub async fn snapshot(&self) -> Snapshot {
        let mut names = self.names().await;
        names.retain(|name| !name.ends_with(b"}w") && !name.ends_with(b"}j"));
        let dumps = self.send_all(names.iter().map(|name| RedisCommand::new("DUMP").arg(name)).collect()).await;
        let dumps = dumps.into_iter().map(|dump| dump.into_bytes().expect("a value"));
        names.into_iter().zip(dumps).collect()
    }

    /// Makes it as it was.
    pub async fn restore(&self, to: &Snapshot) {
        self.clear().await;
        let restore = |(name, dump): (&Bytes, &Bytes)| RedisCommand::new("RESTORE").arg(name).int(0).arg(dump);
        self.send_all(to.iter().map(restore).collect()).await;
    }

    /// Removes all of it.
    pub async fn clear(&self) {
        self.send_all(self.names().await.iter().map(|name| RedisCommand::new("UNLINK").arg(name)).collect()).await;
    }

    /// What the header begins with; none if there is none.
    pub async fn header(&self) -> Option<HeaderStart> {
        let name = self.names().await.into_iter().find(|name| name.ends_with(b"}m"))?;
        let header = self.send(RedisCommand::new("GET").arg(name)).await.into_bytes().expect("a header");
        let number = |at: usize| {
            header.get(at..at + 8).map_or(0.0, |bytes| f64::from_le_bytes(bytes.try_into().expect("eight bytes")))
        };
        Some(HeaderStart { is_inconsistent: header[0] != 0, sequence: number(2), serial: number(10) })
    }
}

/// A snapshot without its header, with the part of each name that is the same for all shards.
pub fn data_of(snapshot: &Snapshot) -> BTreeMap<Vec<u8>, &Bytes> {
    let own = |name: &Bytes| name.split(|byte| *byte == b'}').nth(1).unwrap_or_default().to_vec();
    snapshot.iter().map(|(name, dump)| (own(name), dump)).filter(|(name, _)| name != b"m").collect()
}
