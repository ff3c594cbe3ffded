//! Best-effort counters: "Meta Arithmetic" of protocol.txt.
//!
//! An add is one round trip of two commands: `ma` with the delta as two's complement, N and J to create the counter,
//! and `mg` with T to restart its TTL. T on `ma` is not enough: memcached 1.6.18 drops it when the number outgrows its
//! item or is being read, and N supports neither 0 nor more than 30 days. Sums are modulo 2^64 on the server, so 5, -3,
//! -3 is stored as 2^64 - 1, which is -1. Nothing here is exact, durable or idempotent.
//!
//! With deduplication, `ms` in add mode of the token's key comes first, and `ma` follows only if the token is new. Both
//! run to completion even if their caller goes away. A crash between them loses the add: its token is stored and its
//! delta is not.
//!
//! A counter's key is never read with a lease: a placeholder without digits would make every later add fail.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use memcache::exp::{Arithmetic, Delete, Get, MutationStatus, Op, Set, Ttl};
use tokio::sync::oneshot;

use crate::memcached::server::{BatchMode, MemcachedServer, RetrySafety};
use crate::memcached::wire::CommandResponse;
use crate::memcached::{Cluster, key};
use tallystone_domain::counter::{Counter, CounterName, NamespaceId};
use tallystone_ports::{
    EffectOutcome, Expiry, FastAdd, FastAddOutcome, FastCapabilities, FastCounts, Overflow, StoreError, StoreErrorKind,
};

const OP: &str = "best-effort add";

/// The state of a token's key.
enum TokenLookup {
    /// The token is new: the add may proceed.
    New,
    /// An earlier add carried the token.
    Duplicate,
}

/// An add on one replica that owns all its data, so that it can outlive its caller.
struct ReplicaAdd {
    node: Arc<MemcachedServer>,
    key: String,
    commands: [Op; 2],
}

impl ReplicaAdd {
    /// Adds under a token, unless the token is a duplicate.
    async fn add_once(self, token_key: String, dedupe_seconds: u32) -> Result<FastAddOutcome, StoreError> {
        match record_token(&self.node, &token_key, dedupe_seconds).await? {
            TokenLookup::Duplicate => {
                read_on(&self.node, &self.key).await.map(FastAddOutcome::Seen).map_err(|error| StoreError {
                    // This call added nothing, and the earlier call's result stands.
                    outcome: EffectOutcome::NotApplied,
                    ..error
                })
            }
            TokenLookup::New => match self.send_add(BatchMode::Alone).await {
                Ok(value) => Ok(FastAddOutcome::Applied(value)),
                Err(error) => Err(remove_token(&self.node, &token_key, error).await),
            },
        }
    }

    async fn send_add(&self, company: BatchMode) -> Result<i64, StoreError> {
        match self.node.call_in_mode(company, OP, &self.commands, RetrySafety::NotIdempotent).await? {
            CommandResponse::Summed { status: MutationStatus::Applied, value: Some(value) } => Ok(value.cast_signed()),
            _ => Err(StoreError::unknown(StoreErrorKind::Corrupt, OP)), // no other answer belongs to this command
        }
    }
}

/// Sends `ms` in add mode, not pipelined with the add. If its outcome is unknown, the add is given up: adding could
/// count twice, and a retry may get the answer that the add was applied. The commands that follow are not pipelined
/// with it either.
async fn record_token(node: &MemcachedServer, token_key: &str, dedupe_seconds: u32) -> Result<TokenLookup, StoreError> {
    let set = Set::new(token_key, "1").ttl(Ttl::secs(dedupe_seconds)).add();
    match node.call_in_mode(BatchMode::Alone, OP, &[set.into()], RetrySafety::NotIdempotent).await? {
        CommandResponse::Changed(MutationStatus::AlreadyExists) => Ok(TokenLookup::Duplicate),
        CommandResponse::Changed(MutationStatus::Applied) => Ok(TokenLookup::New),
        _ => Err(StoreError::unknown(StoreErrorKind::Corrupt, OP)), // no other answer belongs to this command
    }
}

/// Removes the token of an add that was certainly not applied; returns the add's error.
async fn remove_token(node: &MemcachedServer, token_key: &str, error: StoreError) -> StoreError {
    if error.outcome == EffectOutcome::Unknown {
        return error;
    }
    match node.call(OP, &[Delete::new(token_key).into()], RetrySafety::Idempotent).await {
        Ok(_) => error,
        // The token stays although nothing was added, so a retry would report a duplicate.
        Err(_) => StoreError { outcome: EffectOutcome::Unknown, ..error },
    }
}

async fn read_on(node: &MemcachedServer, key: &str) -> Result<Option<i64>, StoreError> {
    const OP: &str = "best-effort read";
    match node.call(OP, &[Get::new(key).into()], RetrySafety::Idempotent).await {
        Ok(CommandResponse::Read { value, .. }) => number(value.as_deref(), OP),
        Ok(_) => Err(StoreError::not_applied(StoreErrorKind::Corrupt, OP)), // not the answer to a read
        // A read has no effect, so its outcome is never unknown.
        Err(error) => Err(StoreError { outcome: EffectOutcome::NotApplied, ..error }),
    }
}

impl Cluster {
    /// Adds on one replica.
    async fn add_on(
        &self,
        node: &Arc<MemcachedServer>,
        counter: &Counter,
        add: &FastAdd,
    ) -> Result<FastAddOutcome, StoreError> {
        let key = key::counter_key(&self.key_prefix, counter);
        let lifetime = key::lifetime(add.ttl, self.clock.now());
        let delta = add.delta.cast_unsigned();
        let commands = [
            Arithmetic::new(&key).delta(delta).initial(delta, lifetime.created_seconds).into(),
            Get::new(&key).without_value().touch(lifetime.ttl).into(),
        ];
        let adding = ReplicaAdd { node: Arc::clone(node), key, commands };
        match add.token.as_ref().filter(|_| self.dedupe_seconds > 0) {
            None => adding.send_add(BatchMode::Shared).await.map(FastAddOutcome::Applied),
            Some(token) => {
                let token_key = key::token_key(&self.key_prefix, counter, token);
                self.run_detached(adding.add_once(token_key, self.dedupe_seconds)).await
            }
        }
    }

    /// Runs in a task of its own when the caller goes away. A token stored without its add would tell the caller's
    /// retry that the add counts.
    async fn run_detached<A>(&self, adding: A) -> Result<FastAddOutcome, StoreError>
    where
        A: Future<Output = Result<FastAddOutcome, StoreError>> + Send + 'static,
    {
        let (told, answer) = oneshot::channel();
        self.tasks.spawn(async move {
            // The caller may be gone.
            let _ = told.send(adding.await);
        });
        let ended = || StoreError::unknown(StoreErrorKind::Closed, OP);
        answer.await.unwrap_or_else(|_| Err(ended()))
    }
}

#[async_trait]
impl FastCounts for Cluster {
    fn capabilities(&self) -> FastCapabilities {
        FastCapabilities {
            overflow: Overflow::Wraps,
            expiry: Expiry::WholeSeconds,
            lists_names: false,
            remembers_tokens: Duration::from_secs(u64::from(self.dedupe_seconds)),
        }
    }

    /// One round trip, two with deduplication. Applied if any replica applied it; the answer is that of the first
    /// replica that did.
    async fn add(&self, counter: &Counter, add: FastAdd) -> Result<FastAddOutcome, StoreError> {
        first_good(join_all(self.nodes(counter).map(|node| self.add_on(node, counter, &add))).await)
    }

    /// One round trip. The answer is that of the first replica that answers.
    async fn get(&self, counter: &Counter) -> Result<Option<i64>, StoreError> {
        let mut failed = StoreError::not_applied(StoreErrorKind::Unavailable, "best-effort read");
        for node in self.nodes(counter) {
            match read_on(node, &key::counter_key(&self.key_prefix, counter)).await {
                Ok(value) => return Ok(value),
                Err(error) if error.kind == StoreErrorKind::Corrupt => return Err(error),
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// One round trip. Succeeds when every replica has cleared: a replica that missed it would show the old value
    /// again.
    async fn clear(&self, counter: &Counter) -> Result<(), StoreError> {
        const OP: &str = "best-effort clear";
        let commands = [Delete::new(key::counter_key(&self.key_prefix, counter)).into()];
        let answers = self.everywhere(OP, counter, &commands, RetrySafety::Idempotent).await;
        let total = answers.len();
        let mut failures: Vec<StoreError> = answers.into_iter().filter_map(Result::err).collect();
        let some_did = failures.len() < total || failures.iter().any(|error| error.outcome == EffectOutcome::Unknown);
        match failures.pop() {
            None => Ok(()),
            Some(error) if some_did => Err(StoreError { outcome: EffectOutcome::Unknown, ..error }),
            Some(error) => Err(error),
        }
    }

    /// Always empty: memcached cannot list keys.
    async fn names(
        &self,
        _namespace: NamespaceId,
        _prefix: &str,
        _above: Option<&CounterName>,
        _limit: usize,
    ) -> Result<Vec<CounterName>, StoreError> {
        Ok(Vec::new())
    }
}

/// The first success; else the most significant failure: one with an unknown outcome.
fn first_good(answers: Vec<Result<FastAddOutcome, StoreError>>) -> Result<FastAddOutcome, StoreError> {
    let mut failed: Option<StoreError> = None;
    for answer in answers {
        match answer {
            Ok(added) => return Ok(added),
            Err(error) if failed.is_none() || error.outcome == EffectOutcome::Unknown => failed = Some(error),
            Err(_) => {} // the earlier failure is as significant
        }
    }
    Err(failed.unwrap_or_else(|| StoreError::not_applied(StoreErrorKind::Unavailable, OP)))
}

/// Parses a stored value. memcached pads a number with spaces when it becomes shorter.
fn number(value: Option<&[u8]>, op: &'static str) -> Result<Option<i64>, StoreError> {
    let Some(value) = value else { return Ok(None) };
    let number = std::str::from_utf8(value).ok().and_then(|text| text.trim_end().parse::<u64>().ok());
    match number {
        Some(number) => Ok(Some(number.cast_signed())),
        None => {
            Err(StoreError::not_applied(StoreErrorKind::Corrupt, op).with_source("the key has a value of another type"))
        }
    }
}
