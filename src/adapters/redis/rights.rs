//! The rights that a server needs of its user of Redis, and how it finds out that one is missing.
//!
//! A function whose user lacks the right to one of its commands would end half way and damage its shard. So a server asks for
//! all rights before it serves, every second where the catalog is, and every minute at every primary. The functions look for
//! themselves as well (`lua/rights.lua`): rights may go at any time.

use std::sync::Arc;

use futures_util::future::join_all;

use super::client::{CallFailure, RedisClient, RedisCommand, RedisReply, Slot};
use super::keys::{NO_KEY, REVISION};

/// The commands of the functions, each with what follows its key. `library` writes them into the library.
pub(super) const OF_FUNCTIONS: [&str; 39] = [
    "BITFIELD INCRBY i64 0 1",
    "EXISTS",
    "GET",
    "HDEL f",
    "HEXISTS f",
    "HGET f",
    "HGETALL",
    "HINCRBY f 1",
    "HKEYS",
    "HLEN",
    "HMGET f",
    "HRANDFIELD",
    "HSCAN 0",
    "HSET f v",
    "HVALS",
    "INFO",
    "LINDEX 0",
    "LLEN",
    "LPUSH v",
    "LRANGE 0 1",
    "LTRIM 0 1",
    "RPUSH v",
    "SADD v",
    "SET v",
    "SETRANGE 0 v",
    "SISMEMBER v",
    "TIME",
    "UNLINK",
    "XADD * f v",
    "ZADD 0 v",
    "ZCARD",
    "ZCOUNT 0 1",
    "ZLEXCOUNT - +",
    "ZRANGE 0 1",
    "ZRANGEBYLEX - +",
    "ZRANGEBYSCORE 0 1",
    "ZREM v",
    "ZREVRANGEBYLEX + -",
    "ZSCORE v",
];
/// The same of commands that servers send themselves; those that stand above too are not repeated.
const OF_SERVERS: [&str; 9] = [
    "FCALL f 1 *",
    "FCALL_RO f 1 *",
    "HSETNX * f v",
    "MEMORY USAGE *",
    "PING",
    "SETNX * v",
    "XLEN *",
    "XRANGE * - +",
    "XTRIM * MINID 0",
];
/// The command that waits for replicas.
const WAIT: &str = "WAIT 1 1";
/// Without these other servers learn of messages late; on a cluster the shorter list is another.
const OF_NEWS: [&str; 3] = ["PUBLISH *n v", "SUBSCRIBE *n", "UNSUBSCRIBE *n"];
const OF_CLUSTER_NEWS: [&str; 4] = ["CLUSTER MYID", "SPUBLISH *n v", "SSUBSCRIBE *n", "SUNSUBSCRIBE *n"];
/// Keys like all others: one that servers share, and one of a shard that nobody has.
const SAMPLES: [&str; 2] = [NO_KEY, "{AAAAAAAAAAAAAAAA.0}~"];
/// The user of a connection without a name.
const DEFAULT_USER: &str = "default";

/// Asks servers what their user may not do.
pub struct RightsCheck {
    client: Arc<RedisClient>,
    /// The full name of the function that looks.
    function: String,
    needed: Vec<String>,
    wanted: Vec<String>,
}

/// What a user lacks at one server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LackingRights {
    /// The server.
    pub address: String,
    /// The user.
    pub user: String,
    /// The commands without which no queue is served.
    pub needed: Vec<String>,
    /// The commands without which queues are slower.
    pub wanted: Vec<String>,
}

impl RightsCheck {
    /// The check of a client, whose library has this name of the function `may`. Replicas that have to have each change are
    /// waited for.
    pub fn new(client: Arc<RedisClient>, function: String, replicas: u32) -> Self {
        let (of_functions, of_servers) = (OF_FUNCTIONS.map(with_key), OF_SERVERS.map(str::to_owned));
        let mut needed: Vec<String> = of_functions.into_iter().chain(of_servers).collect();
        if replicas > 0 {
            needed.push(WAIT.to_owned());
        }
        let wanted: &[&str] = if client.is_cluster() { &OF_CLUSTER_NEWS } else { &OF_NEWS };
        Self { client, function, needed: on_samples(needed), wanted: on_samples(wanted) }
    }

    /// What the user lacks at each primary.
    pub async fn look(&self) -> Vec<Result<LackingRights, CallFailure>> {
        let primaries = self.client.primaries().into_iter();
        join_all(primaries.map(|(address, slot)| self.ask(address, slot))).await
    }

    /// What the user lacks at the server of the catalog.
    pub async fn look_at_catalog(&self) -> Result<LackingRights, CallFailure> {
        let slot = Slot::of(REVISION.as_bytes());
        self.ask(self.client.owner(slot).unwrap_or_default(), slot).await
    }

    async fn ask(&self, address: String, slot: Slot) -> Result<LackingRights, CallFailure> {
        let asked: Vec<&String> = self.needed.iter().chain(&self.wanted).collect();
        let asked = RedisCommand::fcall_ro::<&str, _>(&self.function, &[], &asked);
        let answer = self.client.call_one(slot, asked).await?.into_list()?;
        let refused: Result<Vec<String>, CallFailure> = answer.into_iter().map(RedisReply::into_text).collect();
        let refused = refused?;
        let user = self.client.user().unwrap_or(DEFAULT_USER).to_owned();
        let among = |commands: &[String]| names(refused.iter().filter(|refused| commands.contains(refused)));
        Ok(LackingRights { address, user, needed: among(&self.needed), wanted: among(&self.wanted) })
    }
}

impl LackingRights {
    /// Why no queue can be served, with the command that mends it; none if nothing is missing for that.
    pub fn refusal(&self) -> Option<String> {
        let what = (!self.needed.is_empty()).then(|| self.may_not(&self.needed))?;
        Some(format!("{what}: a change of a queue would end half way; {}", self.mended_by(&self.needed)))
    }

    /// What is slower without the rights that are missing.
    pub fn warning(&self) -> Option<String> {
        let what = (!self.wanted.is_empty()).then(|| self.may_not(&self.wanted))?;
        Some(format!("{what}: other servers learn of messages late; {}", self.mended_by(&self.wanted)))
    }

    fn may_not(&self, commands: &[String]) -> String {
        format!("the user {} may not run {} on names that begin with {{", self.user, commands.join(", "))
    }

    fn mended_by(&self, commands: &[String]) -> String {
        let rights: String = commands.iter().map(|command| format!(" +{}", right(command))).collect();
        format!("ACL SETUSER {} ~{{* &{{*{rights}, and see Access in docs/redis-keys.md for all rights", self.user)
    }
}

/// The rights that a server may need, as an ACL rule names each: all that the check asks for, beside what a connection and the
/// functions themselves need.
pub fn needed_rights() -> Vec<String> {
    let of_functions = OF_FUNCTIONS.map(with_key);
    let others = OF_SERVERS.iter().chain([&WAIT]).chain(&OF_NEWS).chain(&OF_CLUSTER_NEWS);
    let all: Vec<String> = of_functions.into_iter().chain(others.map(|command| (*command).to_owned())).collect();
    names(all.iter()).iter().map(|name| right(name)).collect()
}

/// The right to a command, as an ACL rule names it.
fn right(name: &str) -> String {
    name.to_lowercase().replace(' ', "|")
}

/// A command of a function, with the place of its key.
fn with_key(command: &str) -> String {
    let (name, rest) = command.split_once(' ').unwrap_or((command, ""));
    format!("{name} * {rest}").trim_end().to_owned()
}

/// Each command on each of the sample keys. Those without a key once.
fn on_samples<C: AsRef<str>>(commands: impl IntoIterator<Item = C>) -> Vec<String> {
    let mut all = Vec::new();
    for command in commands {
        let command = command.as_ref();
        // The first star is the key: the id of a new entry of a stream comes later.
        all.extend(SAMPLES.iter().map(|sample| command.replacen('*', sample, 1)));
    }
    all.dedup();
    all
}

/// The names of commands, once each, with the word that belongs to a name.
fn names<'c>(commands: impl Iterator<Item = &'c String>) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for command in commands {
        let is_word = |word: &&str| word.chars().all(|c| c.is_ascii_uppercase() || c == '_');
        let name: Vec<&str> = command.split(' ').take(2).take_while(is_word).collect();
        let name = name.join(" ");
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}
