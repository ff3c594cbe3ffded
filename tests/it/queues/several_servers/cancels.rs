//! A request to cancel a running message reaches its worker, whatever server each of them talks to.

use tallystone::domain::queue::messages::message::MessageRef;
use tallystone::engine::catalog::FollowedCatalog;

use super::{SharedStore, draft, name};

#[tokio::test]
async fn a_cancel_request_at_one_server_is_told_to_the_streams_of_the_other() {
    let store = SharedStore::new();
    let (one, other) = (store.server().await, store.server().await);
    one.create(draft("mail")).await.expect("created");
    other.queues.catalog.follow().await.expect("a read");
    one.enqueue("mail").await.expect("enqueued");
    let mut notices = other.queues.cancel_notices();
    let key = other.dequeue("mail", 1).await.pop().expect("a lease").lease.token.key;
    one.queues.work.cancel_message(&name("mail"), MessageRef::Key(key), "asked").await.expect("noted");
    let notice = notices.recv().await.expect("a notice");
    assert_eq!((notice.queue, notice.key), (name("mail"), key));
    one.queues.work.cancel_message(&name("mail"), MessageRef::Key(key), "again").await.expect("it is noted already");
    assert!(notices.is_empty(), "one request, one notice");
}
