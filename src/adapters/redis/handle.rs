//! The opened deployment, as the server watches and closes it.

use std::sync::Arc;

use async_trait::async_trait;

use super::client::{FailureCause, RedisClient, write_advice};
use super::functions::RedisQueues;
use super::rights::RightsCheck;
use super::server_watch::ServerWatch;
use super::shard_events::RedisNews;
use tallystone_ports::{StoreCheck, StoreErrorKind, StoreHandle, StoreMemory, text_with_causes};

/// An open deployment.
pub struct RedisHandle {
    client: Arc<RedisClient>,
    queues: Arc<RedisQueues>,
    rights: RightsCheck,
    news: Arc<RedisNews>,
    at: String,
    watch: Option<ServerWatch>,
}

impl RedisHandle {
    /// The handle of a client and of the queues behind it; `at` names where it is.
    pub fn new(
        (client, queues): (Arc<RedisClient>, Arc<RedisQueues>),
        rights: RightsCheck,
        news: Arc<RedisNews>,
        at: String,
    ) -> Self {
        Self { client, queues, rights, news, at, watch: None }
    }

    /// Finds out what the user may not do.
    pub fn rights(&self) -> &RightsCheck {
        &self.rights
    }

    /// The same, with the watch that ends with it.
    pub fn with_watch(self, watch: ServerWatch) -> Self {
        Self { watch: Some(watch), ..self }
    }
}

#[async_trait]
impl StoreHandle for RedisHandle {
    fn name(&self) -> String {
        "redis".to_owned()
    }

    fn description(&self) -> String {
        format!("Redis at {}", self.at)
    }

    /// Asks the node of the catalog, without which no queue is served for long, whether functions may do their work;
    /// then whether the catalog and the shards are still there.
    async fn check(&self) -> StoreCheck {
        let refusal = match self.rights.look_at_catalog().await {
            Ok(looked) => looked.refusal(),
            Err(failure) if failure.cause == FailureCause::Denied => Some(self.rights.refusal_of(&failure)),
            Err(failure) if failure.cause == FailureCause::Unauthenticated => Some(failure.text),
            Err(failure) if failure.lone_replica().is_some() => Some(failure.steady().text),
            Err(failure) => match write_advice(&failure.text) {
                Some(advice) => Some(format!("{}; {advice}", failure.text)),
                None => return StoreCheck::NoAnswer,
            },
        };
        let elsewhere = || self.watch.as_ref().and_then(ServerWatch::refusal);
        if let Some(why) = refusal.or_else(elsewhere) {
            return StoreCheck::Refused(why);
        }
        match self.queues.loss().await {
            Ok(None) => StoreCheck::Answered,
            Ok(Some(why)) => StoreCheck::Lost(why),
            Err(error) if error.kind == StoreErrorKind::Forbidden => StoreCheck::Refused(text_with_causes(&error)),
            Err(_) => StoreCheck::NoAnswer,
        }
    }

    fn memory(&self) -> Vec<StoreMemory> {
        self.watch.as_ref().map_or_else(Vec::new, ServerWatch::memory)
    }

    async fn close(&self) {
        if let Some(watch) = &self.watch {
            watch.close().await;
        }
        self.news.close().await;
        self.client.close().await;
    }
}
