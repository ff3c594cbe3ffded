//! Sessions of principals: labels and ids that only their owner can use.

use std::time::Duration;

use crate::caller_quota::CallerId;
use crate::queues::error::QueueError;
use crate::queues::sessions::{OpenedSession, SessionService};
use crate::queues::state::owners::{SESSION, owned_label};
use tallystone_domain::access::PrincipalName;
use tallystone_domain::queue::Refusal;
use tallystone_domain::queue::messages::message::SessionId;

impl SessionService {
    /// Opens a session for a principal, and ends the one of the same principal that had its label before.
    pub async fn open_owned_session(
        &self,
        caller: &CallerId,
        owner: Option<&PrincipalName>,
        label: &str,
        lease: Option<Duration>,
    ) -> Result<OpenedSession, QueueError> {
        self.open_session(caller, &owned_label(owner, label)?, lease).await
    }

    /// The id of a session as its owner gets it.
    pub fn session_text(&self, id: SessionId, owner: Option<&PrincipalName>) -> String {
        self.context.owned_text(SESSION, &id.to_string(), owner)
    }

    /// Reads the id of a session. One that is not the caller's own is answered as one that never was.
    pub fn session_of(&self, text: &str, owner: Option<&PrincipalName>) -> Result<SessionId, QueueError> {
        let own = self.context.unsealed_own(SESSION, text, owner).and_then(SessionId::parse);
        own.ok_or_else(|| Refusal::SessionNotFound.into())
    }
}
