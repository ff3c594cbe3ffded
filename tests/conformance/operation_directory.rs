//! The laws of the operations that servers share: `OperationDirectory`.

use std::sync::Arc;

use tallystone_adapters::memory;
use tallystone_domain::fleet::MemberId;
use tallystone_domain::limits::OPERATIONS_MAX;
use tallystone_domain::queue::bulk_operation::{BulkCursor, BulkKind, BulkOperation, PurgedStates};
use tallystone_domain::queue::{Filter, QueueId, QueueName};
use tallystone_ports::{
    EffectOutcome, OperationAuthor, OperationDirectory, OperationEnd, OperationOutcome, OperationRow, StoreErrorKind,
};
use tokio::task::JoinSet;

use crate::given::at;
use crate::queue_redis::server::on_every_redis;

/// Runs a law on every directory of operations.
async fn on_every_directory(law: impl AsyncFn(Arc<dyn OperationDirectory>)) {
    law(Arc::new(memory::MemoryOperations::default())).await;
    on_every_redis(async |server, clock| law(server.shared(&clock).await.operations).await).await;
}

/// A row of an operation that runs.
pub fn row(id: &str, version: u64) -> OperationRow {
    OperationRow {
        id: id.into(),
        version,
        queue: QueueId(7),
        name: QueueName::new("mail").expect("a valid name"),
        work: BulkOperation {
            kind: BulkKind::Discard,
            states: PurgedStates::default(),
            filter: Filter::new([("team", "red")]).expect("a valid filter"),
            signature: Some("timeout".into()),
            until: Some(at(3)),
            dry_run: false,
            rate: 10,
            reason: "".into(),
        },
        through: vec![1, u64::MAX],
        ended_by: Some(at(4)),
        next: BulkCursor { shard: 1, after: u64::MAX - 1 },
        done: 5,
        total: 9,
        began: at(1),
        author: OperationAuthor { text: "ops (Ann)".into(), owner: Some("ops".into()) },
        runner: Some(MemberId([7; 16])),
        is_cancelled: true,
        end: None,
    }
}

/// The same once it has ended, so many milliseconds after the beginning.
pub fn ended(id: &str, version: u64, millis: i64) -> OperationRow {
    let outcome = OperationOutcome::Failed { reason: tallystone_domain::Reason::QueueNotFound, text: "gone".into() };
    OperationRow { runner: None, end: Some(OperationEnd { at: at(millis), outcome }), ..row(id, version) }
}

#[tokio::test]
async fn operation_directory_law_1_a_row_is_stored_if_it_is_the_next_version() {
    on_every_directory(async |directory| {
        assert!(!directory.put(&row("a", 2)).await.expect("an answer"), "there is no first");
        assert!(directory.put(&row("a", 1)).await.expect("an answer"));
        assert!(!directory.put(&row("a", 1)).await.expect("an answer"), "it is there");
        assert!(!directory.put(&row("a", 3)).await.expect("an answer"), "one is missing");
        assert_eq!(directory.get("a").await.expect("a read"), Some(row("a", 1)));
        assert!(directory.put(&ended("a", 2, 5)).await.expect("an answer"));
        assert_eq!(directory.get("a").await.expect("a read"), Some(ended("a", 2, 5)));
    })
    .await;
}

#[tokio::test]
async fn operation_directory_law_1_one_of_several_servers_stores_a_version() {
    on_every_directory(async |directory| {
        for version in 1..=20 {
            let mut servers = JoinSet::new();
            for server in 0..4 {
                let directory = Arc::clone(&directory);
                servers.spawn(async move {
                    let own = OperationRow { runner: Some(MemberId([server; 16])), ..row("a", version) };
                    directory.put(&own).await.expect("an answer").then_some(own)
                });
            }
            let stored: Vec<_> = servers.join_all().await.into_iter().flatten().collect();
            assert_eq!(stored.len(), 1, "version {version}");
            assert_eq!(directory.get("a").await.expect("a read").as_ref(), stored.first());
        }
    })
    .await;
}

#[tokio::test]
async fn operation_directory_law_2_those_without_an_end_are_running() {
    on_every_directory(async |directory| {
        for stored in [row("a", 1), ended("b", 1, 5), row("c", 1)] {
            assert!(directory.put(&stored).await.expect("an answer"));
        }
        let running = async || {
            let mut running = directory.running().await.expect("a read");
            running.sort_by(|one, other| one.id.cmp(&other.id));
            running
        };
        assert_eq!(running().await, [row("a", 1), row("c", 1)]);
        assert!(directory.put(&ended("a", 2, 5)).await.expect("an answer"));
        assert_eq!(running().await, [row("c", 1)]);
        assert_eq!(directory.get("d").await.expect("a read"), None);
    })
    .await;
}

#[tokio::test]
async fn operation_directory_law_3_what_ended_before_a_time_is_forgotten() {
    on_every_directory(async |directory| {
        for stored in [row("a", 1), ended("b", 1, 5), ended("c", 1, 6)] {
            assert!(directory.put(&stored).await.expect("an answer"));
        }
        directory.forget(at(6)).await.expect("forgotten");
        let kept = async |id| directory.get(id).await.expect("a read").is_some();
        assert_eq!([kept("a").await, kept("b").await, kept("c").await], [true, false, true]);
        assert!(directory.put(&row("b", 1)).await.expect("an answer"), "its id is free");
    })
    .await;
}

#[tokio::test]
async fn operation_directory_law_4_the_operations_of_a_queue_are_a_list_newest_first() {
    on_every_directory(async |directory| {
        let of = |queue: u128, id: &str, millis: i64| OperationRow {
            queue: QueueId(queue),
            began: at(millis),
            ..row(id, 1)
        };
        // More than a call of Redis answers, some at one time, with neighbours of another queue on both sides.
        let mut own: Vec<OperationRow> = (0..150).map(|number| of(7, &format!("o-{number:03}"), number / 2)).collect();
        own.extend([of(7, "z-before-1970", -5), of(7, "a-new", 999)]);
        for other in own.iter().chain(&[of(6, "six", 5), of(8, "eight", 5), of(u128::MAX, "last", 5)]) {
            assert!(directory.put(other).await.expect("an answer"));
        }
        let counted = BulkOperation { dry_run: true, ..row("dry", 1).work };
        assert!(directory.put(&OperationRow { work: counted, ..of(7, "dry", 5) }).await.expect("an answer"));
        own.sort_by_key(|row| std::cmp::Reverse((row.began, row.id.clone())));
        let list = async |queue, behind: Option<&OperationRow>, rows| {
            let place = behind.map(|row| (row.began, row.id.clone()));
            directory.of_queue(QueueId(queue), place.as_ref(), rows).await.expect("a read")
        };
        assert_eq!(list(7, None, 1_000).await, own);
        assert_eq!(list(7, None, 100).await, own[..100]);
        assert_eq!(list(7, Some(&own[99]), 100).await, own[100..]);
        assert!(list(7, own.last(), 100).await.is_empty());
        assert_eq!(list(u128::MAX, None, 5).await, [of(u128::MAX, "last", 5)]);
        assert!(list(9, None, 5).await.is_empty());
        // The end of one changes it in its place, and what is forgotten leaves the list.
        let end = ended("x", 2, 3).end;
        let over = OperationRow { version: 2, end, ..own[0].clone() };
        assert!(directory.put(&over).await.expect("an answer"));
        assert_eq!(list(7, None, 2).await, [over.clone(), own[1].clone()]);
        directory.forget(at(4)).await.expect("forgotten");
        assert_eq!(list(7, None, 2).await, own[1..3]);
        let again = OperationRow { began: at(0), ..over };
        assert!(directory.put(&OperationRow { version: 1, end: None, ..again }).await.expect("its id is free"));
        assert_eq!(list(7, None, 1_000).await.len(), own.len());
    })
    .await;
}

#[tokio::test]
async fn operation_directory_law_5_the_one_that_ended_longest_ago_makes_room() {
    on_every_directory(async |directory| {
        for number in 2..OPERATIONS_MAX {
            assert!(directory.put(&row(&format!("r-{number}"), 1)).await.expect("an answer"));
        }
        for stored in [ended("later", 1, 6), ended("first", 1, 5), row("new", 1)] {
            assert!(directory.put(&stored).await.expect("an answer"));
        }
        let kept = async |id| directory.get(id).await.expect("a read").is_some();
        assert_eq!([kept("first").await, kept("later").await, kept("new").await], [false, true, true]);
        assert!(directory.put(&row("newer", 1)).await.expect("an answer"));
        let refused = directory.put(&row("newest", 1)).await.expect_err("all are running");
        assert_eq!((refused.kind, refused.outcome), (StoreErrorKind::Busy, EffectOutcome::NotApplied));
        assert!(directory.put(&ended("new", 2, 9)).await.expect("those that are there go on"));
    })
    .await;
}
