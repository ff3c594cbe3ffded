//! Entries of the catalogs that every server with queues makes at its start.

use tallystone_domain::queue::QueueName;
use tallystone_engine::catalog::Author;
use tallystone_engine::namespaces::NamespaceCatalog;
use tallystone_engine::queues::{QueueDraft, Queues};

/// The name prefix of queues for timed tasks.
const TIMED_TASKS: &str = "timed/";
/// The maximum number of attempts of a timed task.
const TIMED_TASK_ATTEMPTS: u32 = 16;

/// Creates the namespace of the counters of queues. The server starts even if this fails.
pub async fn ensure_queue_namespace(namespaces: &NamespaceCatalog) {
    if let Err(error) = namespaces.ensure_queue_namespace().await {
        tracing::warn!(%error, "cannot create the namespace of the counters of queues; the next start tries again");
    }
}

/// Creates the queue template for timed tasks, with 16 attempts as in Alibaba's timeout center. The server starts even
/// if this fails.
pub async fn ensure_timed_tasks(queues: &Queues) {
    let name = QueueName::new("timed-task").expect("a literal name is valid");
    let (template_for, default_attempts) = (Some(TIMED_TASKS.into()), Some(TIMED_TASK_ATTEMPTS));
    let draft = QueueDraft { template_for, default_attempts, ..QueueDraft::of(name) };
    let author = Author { actor: "tallystone".to_owned(), reason: "the template of timed tasks".to_owned() };
    if let Err(error) = queues.catalog.ensure(draft, author).await {
        tracing::warn!(%error, "cannot create the template of timed tasks; the next start tries again");
    }
}
