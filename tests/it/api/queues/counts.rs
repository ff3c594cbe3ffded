//! What the metrics page says of a queue: messages by state, and what happened to them.

use std::time::Duration;

use serde_json::json;
use tallystone::domain::queue::MessageState;

use super::on_stores::on_every_store_at;
use super::{enqueue, lease, settle};

#[tokio::test]
async fn every_state_of_a_queue_is_counted_and_so_is_every_trouble_of_its_messages() {
    let queue = json!({"name": "mail", "shards": 2, "default_max_attempts": 1, "default_lease": "10s"});
    on_every_store_at(queue, async |server, clock| {
        let told = |expected: &[(MessageState, u64)], troubles: [u64; 5]| {
            let backlogs = server.engine.queues().expect("this engine has queues").backlogs();
            let of =
                |state: &MessageState| expected.iter().find(|(other, _)| other == state).map_or(0, |(_, count)| *count);
            assert_eq!(backlogs[0].messages, MessageState::ALL.map(|state| of(&state)), "{:?}", MessageState::ALL);
            let (queues, _) = server.engine.stats().by_queue.get();
            let [(name, counts)] = &queues[..] else { panic!("one queue is served: {queues:?}") };
            let seen =
                [&counts.failed, &counts.errored, &counts.leases_expired, &counts.messages_expired, &counts.redriven];
            assert_eq!(
                (name.to_string(), seen.map(tallystone::engine::stats::Count::get)),
                ("mail".to_owned(), troubles)
            );
        };
        told(&[], [0; 5]);
        for id in ["a", "b"] {
            server.done("Enqueue", enqueue(id, 1)).await;
        }
        for (id, key, time) in [("c", "ttl", "60s"), ("d", "invisibility", "3600s")] {
            let mut sent = enqueue(id, 9);
            sent["message"][key] = json!(time);
            server.done("Enqueue", sent).await;
        }
        told(&[(MessageState::Invisible, 1), (MessageState::Pending, 3)], [0; 5]);
        server.done("Fail", settle(&lease(server).await)).await;
        told(&[(MessageState::Invisible, 1), (MessageState::Pending, 2), (MessageState::Errored, 1)], [1, 1, 0, 0, 0]);
        lease(server).await;
        let running = [
            (MessageState::Invisible, 1),
            (MessageState::Pending, 1),
            (MessageState::Running, 1),
            (MessageState::Errored, 1),
        ];
        told(&running, [1, 1, 0, 0, 0]);
        // The second lease is over, and so is the time of c; a look at each shard finds both out.
        clock.advance(Duration::from_secs(61));
        let none = server.done("Dequeue", json!({"queue": "mail", "max_messages": 10})).await;
        assert_eq!(none["leases"], json!([]));
        told(&[(MessageState::Invisible, 1), (MessageState::Canceled, 1), (MessageState::Errored, 2)], [1, 2, 1, 1, 0]);
        server.done("RedriveMessages", json!({"queue": "mail"})).await;
        for _ in 0..2 {
            let held = server.done("Dequeue", json!({"queue": "mail", "wait": "20s"})).await;
            server.done("Complete", settle(&held["leases"][0])).await;
        }
        told(
            &[(MessageState::Invisible, 1), (MessageState::Completed, 2), (MessageState::Canceled, 1)],
            [1, 2, 1, 1, 2],
        );
    })
    .await;
}
