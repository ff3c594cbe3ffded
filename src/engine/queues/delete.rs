//! Deletions of queues and templates, each applied once however often it is sent.
//!
//! The history of a name keeps each deletion with its request token and its answer. So a repeat after a lost answer
//! gets the first answer, even across restarts. It does not touch a queue created under the name since.

use crate::domain::limits::PAGE_ROWS_MAX;
use crate::domain::queue::{MessageState, QueueId, QueueName};
use crate::domain::{Reason, Reject};
use crate::engine::namespaces::Author;
use crate::engine::queues::Queues;
use crate::engine::queues::catalog::{check_author, check_etag, entry, record_of};
use crate::engine::queues::draft::QueueEtag;
use crate::engine::queues::error::QueueError;
use crate::engine::queues::operations::check_token;
use crate::engine::queues::registry::{check_id, not_found};
use crate::ports::{QueueChange, QueueDeletion};

/// A deletion request.
#[derive(Clone, Debug)]
pub struct SentDeletion {
    /// The name.
    pub name: QueueName,
    /// The id that the queue must have.
    pub id: Option<QueueId>,
    /// The etag that the queue must have.
    pub expected: Option<QueueEtag>,
    /// The request token of the caller.
    pub token: Option<String>,
}

impl Queues {
    /// Deletes a queue; returns how many messages it held. A repeat with its token gets the first answer, unless more
    /// than 1,000 changes of the name came after it.
    pub async fn delete(&self, sent: SentDeletion, author: Author) -> Result<u64, QueueError> {
        check_author(&author)?;
        check_token(sent.token.as_deref())?;
        let queues = self.clone();
        self.finish(async move { queues.delete_now(&sent, &author).await }).await
    }

    async fn delete_now(&self, sent: &SentDeletion, author: &Author) -> Result<u64, QueueError> {
        let _turn = self.context.change_permit.acquire().await.map_err(|_closed| QueueError::ShuttingDown)?;
        if let Some(messages) = self.deleted_before(sent).await? {
            return Ok(messages);
        }
        let live = self.context.find(&sent.name).ok_or_else(|| not_found(&sent.name))?;
        let before = live.record.load_full();
        check_id(&before, sent.id)?;
        check_etag(&before, sent.expected)?;
        let is_template = before.spec.template_for.is_some();
        let messages = match is_template {
            true => 0,
            false => {
                let depth = self.depth_of(&live).await?;
                MessageState::ALL.into_iter().map(|state| depth.of(state)).sum()
            }
        };
        let mut change = entry(&before, author, Vec::new());
        (change.version, change.time, change.spec) = (before.version + 1, self.context.now(), None);
        change.deletion = Some(QueueDeletion { token: sent.token.as_deref().map(Into::into), messages });
        self.context.stores.catalog.commit(record_of(Some(before.version), None, change)).await?;
        self.context.remove(&live);
        if !is_template {
            self.context.stores.shards.drop_queue(before.id).await?;
        }
        Ok(messages)
    }

    /// The answer of an earlier deletion with the same token.
    async fn deleted_before(&self, sent: &SentDeletion) -> Result<Option<u64>, QueueError> {
        let Some(token) = &sent.token else { return Ok(None) };
        let changes = self.context.stores.catalog.history(&sent.name, 0, PAGE_ROWS_MAX).await?;
        let of_token = |change: &QueueChange| {
            let deletion = change.deletion.as_ref().filter(|deletion| deletion.token.as_deref() == Some(token))?;
            Some((
                QueueEtag::of_version(change.queue, change.version.saturating_sub(1)),
                change.queue,
                deletion.messages,
            ))
        };
        let Some((etag, queue, messages)) = changes.iter().find_map(of_token) else { return Ok(None) };
        if sent.id.is_some_and(|id| id != queue) || sent.expected.is_some_and(|expected| expected != etag) {
            let what = "this request_token was used for the deletion of another queue or version of this name; \
                nothing was done";
            return Err(Reject::new(Reason::TokenReused, what).into());
        }
        // The first call may have failed after the removal of the name and before that of the shards.
        self.context.stores.shards.drop_queue(queue).await?;
        Ok(Some(messages))
    }
}
