//! The opened deployment, as the server watches and closes it.

use std::sync::Arc;

use async_trait::async_trait;

use super::client::{RedisClient, RedisCommand, Slot};
use super::keys::REVISION;
use super::news::RedisNews;
use super::server_watch::ServerWatch;
use crate::ports::{StoreCheck, StoreHandle};

/// An open deployment.
pub struct RedisHandle {
    client: Arc<RedisClient>,
    news: Arc<RedisNews>,
    at: String,
    watch: Option<ServerWatch>,
}

impl RedisHandle {
    /// The handle of a client; `at` names where it is.
    pub fn new(client: Arc<RedisClient>, news: Arc<RedisNews>, at: String) -> Self {
        Self { client, news, at, watch: None }
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

    /// Asks the node of the catalog, without which no queue is served for long.
    async fn check(&self) -> StoreCheck {
        let read = RedisCommand::new("GET").arg(REVISION);
        match self.client.call_one(Slot::of(REVISION.as_bytes()), read).await {
            Ok(_) => StoreCheck::Answered,
            Err(_) => StoreCheck::NoAnswer,
        }
    }

    async fn close(&self) {
        if let Some(watch) = &self.watch {
            watch.close().await;
        }
        self.news.close().await;
        self.client.close().await;
    }
}
