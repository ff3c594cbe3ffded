//! Deletions of queues and templates, each applied once however often it is sent.
//!
//! The history of a name keeps each deletion with its request token and its answer. So a repeat after a lost answer
//! gets the first answer, even across restarts. It does not touch a queue created under the name since.

use crate::catalog::{Author, CommitOutcome, check_etag};
use crate::queues::QueueEtag;
use crate::queues::catalog::CatalogService;
use crate::queues::catalog::record_of;
use crate::queues::error::QueueError;
use crate::queues::error::argument_checks::check_token;
use crate::queues::state::context::check_id;
use tallystone_domain::limits::PAGE_ROWS_MAX;
use tallystone_domain::queue::{MessageState, QueueId, QueueName};
use tallystone_domain::{Reason, Reject};
use tallystone_ports::{QueueChange, QueueDeletion, StoreError, StoreErrorKind};

/// A deletion request.
#[derive(Clone, Debug)]
pub struct DeletionRequest {
    pub name: QueueName,
    /// The id that the queue must have.
    pub id: Option<QueueId>,
    /// The etag that the queue must have.
    pub expected: Option<QueueEtag>,
    /// The request token of the caller.
    pub token: Option<String>,
}

impl CatalogService {
    /// Deletes a queue; returns how many messages it held. A repeat with its token gets the first answer, unless more
    /// than 1,000 changes of the name came after it.
    pub async fn delete(&self, sent: DeletionRequest, author: Author) -> Result<u64, QueueError> {
        author.check()?;
        check_token(sent.token.as_deref())?;
        let catalog = self.clone();
        self.context.finish(async move { catalog.delete_now(&sent, &author).await }).await
    }

    async fn delete_now(&self, sent: &DeletionRequest, author: &Author) -> Result<u64, QueueError> {
        let mut turn = self.begin_change().await?;
        loop {
            if let Some(messages) = self.deleted_before(sent).await? {
                return Ok(messages);
            }
            let live = self.context.find(&sent.name).ok_or_else(|| QueueError::not_found(&sent.name))?;
            let before = live.record.load_full();
            check_id(&before, sent.id)?;
            check_etag(&*before, sent.expected)?;
            let messages = match live.holds_messages() {
                false => 0,
                true => match self.context.depth_of(&live).await {
                    Ok(depth) => MessageState::ALL.into_iter().map(|state| depth.of(state)).sum(),
                    // Another server has deleted it.
                    Err(QueueError::QueueNotFound { .. }) if turn.reread().await? => continue,
                    // What is lost or damaged cannot be counted, and its deletion is how an operator gives it up.
                    Err(QueueError::Store(error)) if is_given_up(&error) => 0,
                    Err(error) => return Err(error),
                },
            };
            let deletion = QueueDeletion { token: sent.token.as_deref().map(Into::into), messages };
            let change = author.deletion(&*before, self.context.now(), Some(deletion));
            match turn.commit(record_of(Some(before.version), None, change)).await? {
                CommitOutcome::Overtaken => {}
                CommitOutcome::Committed => {
                    self.context.remove(&live);
                    if live.holds_messages() {
                        self.context.stores.shards.drop_queue(before.id).await?;
                    }
                    return Ok(messages);
                }
            }
        }
    }

    /// The answer of an earlier deletion with the same token.
    async fn deleted_before(&self, sent: &DeletionRequest) -> Result<Option<u64>, QueueError> {
        let Some(token) = &sent.token else { return Ok(None) };
        let changes = self.context.stores.catalog.history(&sent.name, 0, PAGE_ROWS_MAX).await?;
        let of_token = |change: &QueueChange| {
            let deletion = change.deletion.as_ref().filter(|deletion| deletion.token.as_deref() == Some(token))?;
            Some((QueueEtag::of_version(change.id, change.version.saturating_sub(1)), change.id, deletion.messages))
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

/// Whether the messages of a queue cannot be counted any more, so that its deletion is how an operator gives it up.
fn is_given_up(error: &StoreError) -> bool {
    matches!(error.kind, StoreErrorKind::Corrupt | StoreErrorKind::Lost)
}
