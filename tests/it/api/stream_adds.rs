//! StreamAddCounts: numbered items, ranges in order, refused items as exceptions, nothing half-done at the end.

use std::time::Duration;

use tallystone::domain::limits::STREAM_BATCHES_AT_ONCE_MAX;
use tallystone::proto::counter::v1 as wire;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt;

use super::{Wire, item, reason};

type Answers = Streaming<wire::StreamAddCountsResponse>;

fn message(namespace: &str, items: Vec<wire::AddItem>) -> wire::StreamAddCountsRequest {
    wire::StreamAddCountsRequest { namespace: namespace.to_owned(), items }
}

fn items(range: std::ops::RangeInclusive<u64>) -> Vec<wire::AddItem> {
    range.map(|at| item("streamed", 1, &format!("token-{at}"))).collect()
}

async fn open<S>(server: &Wire, requests: S) -> Answers
where
    S: Stream<Item = wire::StreamAddCountsRequest> + Send + 'static,
{
    server.counters().await.stream_add_counts(requests).await.expect("a stream").into_inner()
}

/// Reads to the end: the last item acknowledged, all exceptions, and the status if it is an error. Checks that ranges
/// follow each other without a gap.
async fn read_all(mut answers: Answers) -> (u64, Vec<wire::StreamException>, Option<Status>) {
    let mut last = 0;
    let mut exceptions = Vec::new();
    while let Some(answer) = answers.next().await {
        match answer {
            Ok(answer) => {
                assert_eq!(answer.first_item, last + 1, "ranges are in order and leave nothing out");
                assert!(answer.last_item >= answer.first_item && answer.server_time.is_some());
                last = answer.last_item;
                exceptions.extend(answer.exceptions);
            }
            Err(status) => return (last, exceptions, Some(status)),
        }
    }
    (last, exceptions, None)
}

async fn count(server: &Wire, counter: &str) -> String {
    let body = format!(r#"{{"namespace": "exact", "counter_name": "{counter}"}}"#);
    server.post("GetCount", &body).await.1["count"].as_str().expect("a count").to_owned()
}

#[tokio::test]
async fn items_are_numbered_over_the_whole_stream() {
    let server = Wire::start().await;
    let messages = vec![
        message("exact", items(1..=3)),
        message("", Vec::new()),
        message("", items(4..=4)),
        message("shop", items(5..=6)),
        message("exact", items(7..=1_006)),
    ];
    let (last, exceptions, end) = read_all(open(&server, tokio_stream::iter(messages)).await).await;
    assert_eq!((last, exceptions.len()), (1_006, 0), "{end:?}");
    assert!(end.is_none(), "{end:?}");
    assert_eq!(count(&server, "streamed").await, "1004", "two went to another namespace");
}

#[tokio::test]
async fn refused_and_repeated_items_are_exceptions_inside_their_range() {
    let server = Wire::start().await;
    let repeated = item("streamed", 1, "same");
    let mut batch = vec![repeated.clone(), repeated.clone(), item("no good", 1, "t")];
    batch.push(wire::AddItem { delta: Some(2), ..repeated });
    batch.extend(items(1..=1));
    let (last, exceptions, end) = read_all(open(&server, tokio_stream::once(message("exact", batch))).await).await;
    assert!(last == 5 && end.is_none(), "{end:?}");
    let told: Vec<_> = exceptions
        .iter()
        .map(|one| {
            let result = one.result.as_ref().expect("a result");
            (one.item, result.outcome(), result.error.as_ref().map(|error| error.reason.as_str()))
        })
        .collect();
    assert_eq!(
        told,
        [
            (2, wire::Outcome::AlreadyApplied, None),
            (3, wire::Outcome::Unspecified, Some("INVALID_COUNTER_NAME")),
            (4, wire::Outcome::Unspecified, Some("ALREADY_EXISTS")),
        ]
    );
    assert_eq!(count(&server, "streamed").await, "2");
}

#[tokio::test]
async fn a_bad_message_ends_the_stream_after_what_came_before_is_answered() {
    let server = Wire::start().await;
    for (bad, expected) in [
        (message("no good", items(3..=3)), "INVALID_NAMESPACE"),
        (message("exact", items(3..=1_003)), "INVALID_BATCH_SIZE"),
        (message(&"n".repeat(5 * 1024 * 1024), Vec::new()), "INVALID_BODY_TOO_LARGE"),
        (message("nowhere", items(3..=3)), "NAMESPACE_NOT_FOUND"),
        (message("totals", items(3..=3)), "WRONG_TEMPORALITY"),
    ] {
        let after = item(&format!("after.{expected}"), 1, "t");
        let messages = vec![message("exact", items(1..=2)), bad, message("exact", vec![after])];
        let (last, _, end) = read_all(open(&server, tokio_stream::iter(messages)).await).await;
        let status = end.expect("the stream ends with an error");
        assert_eq!((last, reason(&status).as_str()), (2, expected), "{status:?}");
        assert_eq!(count(&server, &format!("after.{expected}")).await, "0", "nothing is begun after {expected}");
    }
    let (last, _, end) = read_all(open(&server, tokio_stream::once(message("", items(1..=1)))).await).await;
    assert_eq!((last, reason(&end.expect("no namespace")).as_str()), (0, "INVALID_NAMESPACE"));
    assert_eq!(count(&server, "streamed").await, "10", "what came before was taken, each time");
}

#[tokio::test]
async fn what_was_begun_before_a_refused_message_is_acknowledged_and_nothing_is_begun_after_it() {
    for (bad, expected) in [
        (message("exact", items(9_001..=10_001)), "INVALID_BATCH_SIZE"),
        (message("nowhere", items(9_001..=9_001)), "NAMESPACE_NOT_FOUND"),
        (message("totals", items(9_001..=9_001)), "WRONG_TEMPORALITY"),
        (message("tallystone.usage", items(9_001..=9_001)), "NAMESPACE_READ_ONLY"),
    ] {
        let server = Wire::start().await;
        server.gate.close();
        let mut messages: Vec<_> =
            (0..9_u64).map(|at| message("exact", items(at * 1_000 + 1..=at * 1_000 + 1_000))).collect();
        messages.push(bad);
        messages.extend((0..9).map(|at| message("exact", vec![item("after", 1, &format!("after-{at}"))])));
        let all = tokio::spawn(read_all(open(&server, tokio_stream::iter(messages)).await));
        server.gate.until_arrived(9).await;
        for _ in 0..100 {
            tokio::task::yield_now().await;
            assert_eq!(server.gate.waiting(), 9, "nothing is begun after {expected}");
        }
        server.gate.open();
        let (last, exceptions, end) = all.await.expect("no panic");
        let status = end.expect("the stream ends with an error");
        assert_eq!((last, exceptions.len(), reason(&status).as_str()), (9_000, 0, expected), "{status:?}");
        let metadata = status.get_details_error_info().expect("an ErrorInfo").metadata;
        assert_eq!(
            metadata.get("first_item").map(String::as_str),
            Some("9001"),
            "it says where the refused items begin"
        );
        assert_eq!(count(&server, "streamed").await, "9000", "what was applied was acknowledged");
        assert_eq!(count(&server, "after").await, "0");
    }
}

#[tokio::test]
async fn only_so_many_batches_are_under_way_at_once() {
    let server = Wire::start().await;
    server.gate.close();
    let messages = (0..40_u64).map(|at| message("exact", items(at * 1_000 + 1..=at * 1_000 + 1_000)));
    let answers = open(&server, tokio_stream::iter(messages.collect::<Vec<_>>())).await;
    let all = tokio::spawn(read_all(answers));
    server.gate.until_arrived(STREAM_BATCHES_AT_ONCE_MAX).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
        assert!(server.gate.waiting() <= STREAM_BATCHES_AT_ONCE_MAX);
    }
    server.gate.open();
    let (last, exceptions, end) = all.await.expect("no panic");
    assert!(last == 40_000 && exceptions.is_empty() && end.is_none(), "{last} {end:?}");
    assert_eq!(count(&server, "streamed").await, "40000");
}

#[tokio::test]
async fn small_messages_that_have_arrived_are_put_together() {
    let server = Wire::start().await;
    server.gate.close();
    let messages = (1..=5_000_u64).map(|at| message("exact", items(at..=at)));
    let answers = open(&server, tokio_stream::iter(messages.collect::<Vec<_>>())).await;
    server.gate.until_arrived(1).await;
    server.gate.open();
    let mut ranges = 0;
    let mut last = 0;
    let mut answers = answers;
    while let Some(answer) = answers.next().await {
        last = answer.expect("an answer").last_item;
        ranges += 1;
    }
    assert_eq!(last, 5_000);
    assert!(ranges < 2_500, "5000 messages were answered in {ranges} ranges");
}

#[tokio::test]
async fn a_stream_that_is_left_changes_nothing_about_writes_already_taken() {
    let server = Wire::start().await;
    server.gate.close();
    let (send, requests) = mpsc::channel(1);
    let answers = open(&server, ReceiverStream::new(requests)).await;
    send.send(message("exact", items(1..=10))).await.expect("the stream is open");
    server.gate.until_arrived(1).await;
    drop(answers);
    drop(send);
    server.gate.open();
    let request = wire::BatchAddCountsRequest { namespace: "exact".to_owned(), items: items(1..=1) };
    let again = tokio::time::timeout(Duration::from_secs(60), async {
        server.counters().await.batch_add_counts(request).await.expect("a retry").into_inner()
    });
    let answer = again.await.expect("in time");
    let error = answer.results[0].error.as_ref().map(|error| error.reason.as_str());
    // The same token with a new time is another event; the count tells that the first ten were taken.
    assert_eq!(error, None);
    assert_eq!(count(&server, "streamed").await, "11");
}

#[tokio::test]
async fn a_stop_answers_what_was_taken_and_then_ends_the_stream() {
    let server = Wire::start().await;
    let (send, requests) = mpsc::channel(1);
    let mut answers = open(&server, ReceiverStream::new(requests)).await;
    send.send(message("exact", items(1..=4))).await.expect("the stream is open");
    let first = answers.next().await.expect("an answer").expect("applied");
    assert_eq!(first.last_item, 4);
    server.gate.close();
    send.send(message("exact", items(5..=6))).await.expect("the stream is open");
    server.gate.until_arrived(2).await;
    server.stop.cancel();
    server.gate.open();
    let second = answers.next().await.expect("an answer").expect("applied");
    assert_eq!((second.first_item, second.last_item), (5, 6));
    let status = answers.next().await.expect("an end").expect_err("the server stops");
    assert_eq!((status.code(), reason(&status)), (Code::Unavailable, "SHUTTING_DOWN".to_owned()));
    let ended = server.serving.await.expect("no panic");
    assert_eq!(ended.cut_off, 0);
}
