//! The exchange of a server with the session directory: heartbeats there, ends at other servers here.
//!
//! One round costs one read where nothing has ended. A server also finishes the ends that another one began and did not
//! finish, and removes rows whose time is over. All of this may be done by several servers at once.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::driver::{BackgroundLoop, NextActivation};
use crate::queues::error::QueueError;
use crate::queues::sessions::SessionService;
use crate::queues::state::session_registry::DueHeartbeats;
use tallystone_domain::limits::{
    SESSION_END_TAKEN_OVER_AFTER, SESSION_ENDS_FOLLOWED_EVERY, SESSION_ENDS_PAGE_MAX, SESSION_ENDS_TAKEN_OVER_MAX,
    SESSION_HEARTBEATS_AT_ONCE_MAX, SESSION_ROWS_FORGOTTEN_MAX,
};
use tallystone_ports::SessionDirectory;

/// How often a server looks for unfinished ends and for rows whose time is over.
const TIDIED_EVERY: Duration = Duration::from_secs(5);

/// The loop of the exchange.
pub struct SessionExchange {
    sessions: Arc<SessionService>,
    directory: Arc<dyn SessionDirectory>,
    /// The position after the last end that was followed; none before the first round.
    position: Option<u64>,
    /// The next time of tidying, by elapsed time.
    tidied_next: Duration,
}

impl SessionExchange {
    /// Creates the loop for the sessions of these queues.
    pub fn new(sessions: Arc<SessionService>, directory: Arc<dyn SessionDirectory>) -> Self {
        Self { sessions, directory, position: None, tidied_next: Duration::ZERO }
    }

    async fn round(&mut self) -> Result<(), QueueError> {
        let which = self.follow_ends().await?;
        self.send_heartbeats(which).await?;
        let now = self.sessions.context.elapsed();
        if now >= self.tidied_next {
            self.tidied_next = now + TIDIED_EVERY;
            self.tidy().await?;
        }
        Ok(())
    }

    /// Ends here what has ended elsewhere. Where ends were missed, the heartbeats of all sessions find them.
    async fn follow_ends(&mut self) -> Result<DueHeartbeats, QueueError> {
        let mut which = DueHeartbeats::Late;
        loop {
            let read = self.directory.ended_since(self.position, SESSION_ENDS_PAGE_MAX).await?;
            self.position = Some(read.next);
            if !read.is_complete {
                which = DueHeartbeats::All;
            }
            for (id, how) in &read.ends {
                self.sessions.context.sessions.end(*id, *how);
            }
            if read.ends.len() < SESSION_ENDS_PAGE_MAX {
                return Ok(which);
            }
        }
    }

    async fn send_heartbeats(&self, which: DueHeartbeats) -> Result<(), QueueError> {
        let due = self.sessions.context.sessions.due_heartbeats(which, self.sessions.context.elapsed());
        for heartbeats in due.chunks(SESSION_HEARTBEATS_AT_ONCE_MAX) {
            for (heartbeat, heard) in heartbeats.iter().zip(self.directory.heartbeat(heartbeats).await?) {
                match heard {
                    Ok(reply) => self.sessions.take_in(&self.directory, heartbeat.id, reply).await?,
                    Err(refusal) => drop(self.sessions.note_end(heartbeat.id, refusal)),
                }
            }
        }
        Ok(())
    }

    async fn tidy(&self) -> Result<(), QueueError> {
        self.directory.forget(SESSION_ROWS_FORGOTTEN_MAX).await?;
        for ended in self.directory.unfinished(SESSION_END_TAKEN_OVER_AFTER, SESSION_ENDS_TAKEN_OVER_MAX).await? {
            if let Err(error) = self.sessions.end_in(ended.id, ended.shards, ended.how).await {
                tracing::debug!(%error, "cannot finish the end of a session that another server began; retrying");
            }
        }
        Ok(())
    }
}

#[async_trait]
impl BackgroundLoop for SessionExchange {
    fn name(&self) -> &'static str {
        "queue sessions"
    }

    async fn activate(&mut self) -> NextActivation {
        if let Err(error) = self.round().await {
            tracing::warn!(%error, "cannot exchange the state of sessions with other servers; retrying");
        }
        NextActivation::After(SESSION_ENDS_FOLLOWED_EVERY)
    }
}
