//! The rights that a server needs of its user of Redis, and how it finds out that one is missing.
//!
//! A function whose user lacks the right to one of its commands would end half way and damage its shard. So a server
//! asks for all rights before it serves, every second where the catalog is, and every minute at every primary. The
//! functions look for themselves as well (`lua/rights.lua`): rights may go at any time.

use std::sync::Arc;

use futures_util::future::join_all;

use super::client::{
    CallFailure, ClientOptions, Deployment, FailureCause, RedisClient, RedisCommand, RedisReply, Slot, ask_unopened,
};
use super::keys::{NO_KEY, REVISION};
use tallystone_ports::Clock;

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
/// Without it nobody knows which node of a cluster serves a slot.
const OF_CLUSTERS: &str = "CLUSTER SLOTS";
/// The commands that a server also uses, as ACL rules name them, and can do without: what they bring is declared,
/// loaded by another user, or taken for granted.
const ALSO_USED: [&str; 3] = ["config|get", "function|load", "role"];
const OF_CLUSTER_NEWS: [&str; 4] = ["CLUSTER MYID", "SPUBLISH *n v", "SSUBSCRIBE *n", "SUNSUBSCRIBE *n"];
/// Keys like all others: one that servers share, and one of a shard that nobody has.
const SAMPLES: [&str; 2] = [NO_KEY, "{AAAAAAAAAAAAAAAA.0}~"];
/// The mark that the function puts before a command that the server does not know.
const UNKNOWN: char = '?';
/// The user of a connection without a name.
const DEFAULT_USER: &str = "default";

/// Asks servers what their user may not do.
pub struct RightsCheck {
    client: Arc<RedisClient>,
    question: RightsQuestion,
}

/// The question that a server is asked.
struct RightsQuestion {
    /// The full name of the function that looks.
    function: String,
    needed: Vec<String>,
    wanted: Vec<String>,
}

/// The rights that a user lacks at one server.
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
    /// The commands of either kind that the server does not know under their names, for any user.
    pub unknown: UnknownCommands,
}

/// Commands that a server does not know under their names: they are renamed or turned off.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct UnknownCommands {
    /// Without which no queue is served.
    pub needed: Vec<String>,
    /// Without which queues are slower.
    pub wanted: Vec<String>,
}

impl RightsCheck {
    /// The check of a client, whose library has this name of the function `may`. Replicas that have to have each change
    /// are waited for.
    pub fn new(client: Arc<RedisClient>, function: String, replicas: u32) -> Self {
        let question = RightsQuestion::new(function, client.is_cluster(), replicas);
        Self { client, question }
    }

    /// The rights that the user lacks at each primary.
    pub async fn look(&self) -> Vec<Result<LackingRights, CallFailure>> {
        let primaries = self.client.primaries().into_iter();
        join_all(primaries.map(|(address, slot)| self.ask(address, slot))).await
    }

    /// The rights that the user lacks at the server of the catalog.
    pub async fn look_at_catalog(&self) -> Result<LackingRights, CallFailure> {
        let slot = Slot::of(REVISION.as_bytes());
        tokio::select! {
            biased;
            looked = self.ask(self.client.owner(slot).unwrap_or_default(), slot) => looked,
            // The question above bounds the wait: it has a deadline.
            failure = self.client.lone_replica(slot) => Err(failure),
        }
    }

    async fn ask(&self, address: String, slot: Slot) -> Result<LackingRights, CallFailure> {
        let answer = self.client.call_one(slot, self.question.command()).await?;
        self.question.read(answer, address, self.user())
    }

    /// The reason for which nothing can be asked of a server whose user may not even ask, with the command that grants
    /// all rights.
    pub fn refusal_of(&self, failure: &CallFailure) -> String {
        unaskable(failure, self.user())
    }

    fn user(&self) -> &str {
        self.client.user().unwrap_or(DEFAULT_USER)
    }
}

impl RightsQuestion {
    fn new(function: String, is_cluster: bool, replicas: u32) -> Self {
        let (of_functions, of_servers) = (OF_FUNCTIONS.map(with_key), OF_SERVERS.map(str::to_owned));
        let mut needed: Vec<String> = of_functions.into_iter().chain(of_servers).collect();
        if replicas > 0 {
            needed.push(WAIT.to_owned());
        }
        if is_cluster {
            needed.push(OF_CLUSTERS.to_owned());
        }
        let wanted: &[&str] = if is_cluster { &OF_CLUSTER_NEWS } else { &OF_NEWS };
        Self { function, needed: on_samples(needed), wanted: on_samples(wanted) }
    }

    fn command(&self) -> RedisCommand {
        let asked: Vec<&String> = self.needed.iter().chain(&self.wanted).collect();
        // As a function that writes, so that a server that takes no writes refuses it.
        RedisCommand::fcall::<&str, _>(&self.function, &[], &asked)
    }

    fn read(&self, answer: RedisReply, address: String, user: &str) -> Result<LackingRights, CallFailure> {
        let refused: Result<Vec<String>, CallFailure> =
            answer.into_list()?.into_iter().map(RedisReply::into_text).collect();
        let refused = refused?;
        let unknown: Vec<String> =
            refused.iter().filter_map(|told| told.strip_prefix(UNKNOWN)).map(str::to_owned).collect();
        let among =
            |told: &[String], commands: &[String]| names(told.iter().filter(|command| commands.contains(command)));
        let unknown = UnknownCommands { needed: among(&unknown, &self.needed), wanted: among(&unknown, &self.wanted) };
        let (needed, wanted) = (among(&refused, &self.needed), among(&refused, &self.wanted));
        Ok(LackingRights { address, user: user.to_owned(), needed, wanted, unknown })
    }
}

/// The rights that the user of a deployment lacks for which no client can be opened: all of them, with the command that
/// grants them. None if something else is wrong, or no server answers.
pub async fn lacking_unopened(
    options: &ClientOptions,
    function: String,
    replicas: u32,
    clock: &Arc<dyn Clock>,
) -> Option<String> {
    let is_cluster = matches!(options.deployment, Deployment::Cluster { .. });
    let question = RightsQuestion::new(function, is_cluster, replicas);
    let user = options.login.as_ref().and_then(|login| login.user.as_deref()).unwrap_or(DEFAULT_USER);
    match ask_unopened(options, &question.command(), clock).await? {
        Ok(answer) => question.read(answer, String::new(), user).ok()?.refusal(),
        Err(failure) if failure.cause == FailureCause::Denied => Some(unaskable(&failure, user)),
        Err(_) => None, // the failure to open says more
    }
}

/// The reason for which a user cannot be asked for its rights, with the command that grants all of them.
fn unaskable(failure: &CallFailure, user: &str) -> String {
    format!(
        "{}; without FCALL_RO and FUNCTION LOAD nobody can ask which rights the user {user} lacks; {} grants all of them, as Access \
         in docs/redis-keys.md says",
        failure.text,
        grant(user, used_rights().iter().map(String::as_str))
    )
}

/// All rights that a server uses, as ACL rules name them.
fn used_rights() -> Vec<String> {
    needed_rights().into_iter().chain(ALSO_USED.map(str::to_owned)).collect()
}

/// The command that grants rights.
fn grant<'r>(user: &str, rights: impl Iterator<Item = &'r str>) -> String {
    let rights: String = rights.map(|right| format!(" +{right}")).collect();
    format!("ACL SETUSER {user} ~{{* &{{*{rights}")
}

/// The fault of commands that a server does not know.
fn told_unknown(commands: &[String]) -> String {
    format!("{} is renamed or turned off (rename-command)", commands.join(", "))
}

impl LackingRights {
    /// The commands without which no queue is served, and that the server does not know; none if it knows all of them.
    pub fn unknown_needed(&self) -> Option<String> {
        (!self.unknown.needed.is_empty()).then(|| told_unknown(&self.unknown.needed))
    }

    /// The reason for which no queue can be served, with the command that mends it; none if nothing is missing for
    /// that.
    pub fn refusal(&self) -> Option<String> {
        if let Some(unknown) = self.unknown_needed() {
            return Some(format!("it lacks a command: {unknown}; queues need all commands under their own names"));
        }
        let what = (!self.needed.is_empty()).then(|| self.may_not(&self.needed))?;
        Some(format!("{what}: a change of a queue would end half way; {}", self.mended_by(&self.needed)))
    }

    /// The warning of what is slower without the missing rights; none if no such right is missing.
    pub fn warning(&self) -> Option<String> {
        if !self.unknown.wanted.is_empty() {
            let unknown = told_unknown(&self.unknown.wanted);
            return Some(format!(
                "it lacks a command: {unknown}: other servers learn of messages late; give it its own name back"
            ));
        }
        let what = (!self.wanted.is_empty()).then(|| self.may_not(&self.wanted))?;
        Some(format!("{what}: other servers learn of messages late; {}", self.mended_by(&self.wanted)))
    }

    fn may_not(&self, commands: &[String]) -> String {
        format!("the user {} may not run {} on names that begin with {{", self.user, commands.join(", "))
    }

    fn mended_by(&self, commands: &[String]) -> String {
        let rights: Vec<String> = commands.iter().map(|command| right(command)).collect();
        let grant = grant(&self.user, rights.iter().map(String::as_str));
        format!("{grant}, and see Access in docs/redis-keys.md for all rights")
    }
}

/// The rights that a server may need, as an ACL rule names each: all that the check asks for, besides what a connection
/// and the functions themselves need.
pub fn needed_rights() -> Vec<String> {
    let of_functions = OF_FUNCTIONS.map(with_key);
    let others = OF_SERVERS.iter().chain([&WAIT, &OF_CLUSTERS]).chain(&OF_NEWS).chain(&OF_CLUSTER_NEWS);
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
