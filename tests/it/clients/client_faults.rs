//! The client library on a real server behind proxies that lose answers, cut and hang connections: every add counts once or
//! is known not to, and calls go on over another way.

use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tallystone::client::{Client, RetryPolicy};
use tallystone::proto::admin::v1 as pb_admin;
use tallystone::proto::counter::v1 as pb;
use tempfile::TempDir;

use crate::servers::proxy::{Fault, Proxy, Wire};
use crate::support::harness::{Launch, Server};

#[allow(dead_code, reason = "its main is not run here")]
#[path = "../../../examples/client.rs"]
mod example;

/// A development server and two ways to it.
struct House {
    _server: Server,
    _folder: TempDir,
    ways: [Proxy; 2],
}

impl House {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let server = Launch::dev(&folder.path().join("data")).start();
        let way = || Proxy::start(server.address, Wire::Http2).expect("a proxy");
        let ways = [way(), way()];
        Self { _server: server, _folder: folder, ways }
    }

    fn client(&self, policy: RetryPolicy) -> Client {
        let addresses = self.ways.each_ref().map(|way| way.address().to_string());
        Client::of(&addresses.each_ref().map(String::as_str), policy).expect("valid addresses")
    }
}

fn quick() -> RetryPolicy {
    RetryPolicy {
        attempts_max: 1_000,
        total: Duration::from_secs(600),
        pause_first: Duration::from_millis(5),
        pause_max: Duration::from_millis(50),
        ..RetryPolicy::default()
    }
}

fn add(delta: i64) -> pb::AddCountRequest {
    pb::AddCountRequest {
        namespace: "default".to_owned(),
        counter_name: "views".to_owned(),
        delta: Some(delta),
        ..Default::default()
    }
}

async fn count(client: &Client) -> i64 {
    let read = pb::GetCountRequest {
        namespace: "default".to_owned(),
        counter_name: "views".to_owned(),
        freshness: pb::Freshness::UpToDate.into(),
        ..Default::default()
    };
    client.get_count(read).await.expect("a reading").count
}

#[tokio::test]
async fn answers_that_are_lost_after_the_write_leave_every_count_exact() {
    let house = House::new();
    let client = house.client(quick());
    for n in 1..=40 {
        if n % 4 == 0 {
            house.ways.iter().for_each(|way| way.set(Fault::LoseOne));
        }
        client.add_count(add(1)).await.unwrap_or_else(|error| panic!("add {n}: {error}"));
    }
    let lost: u64 = house.ways.iter().map(Proxy::lost).sum();
    assert!(lost >= 5, "answers were lost: {lost}");
    house.ways.iter().for_each(|way| way.set(Fault::None));
    assert_eq!(count(&client).await, 40);
}

#[tokio::test]
async fn a_best_effort_add_whose_answer_is_lost_is_not_sent_again() {
    let house = House::new();
    let client = house.client(quick());
    let namespace = pb_admin::Namespace {
        name: "fast".to_owned(),
        counter_type: pb_admin::CounterType::BestEffort.into(),
        ..Default::default()
    };
    let create = pb_admin::CreateNamespaceRequest { namespace: Some(namespace), ..Default::default() };
    client.namespaces().create_namespace(create).await.expect("a namespace");
    let best_effort = |delta| pb::AddCountRequest { namespace: "fast".to_owned(), ..add(delta) };
    let read = pb::GetCountRequest { namespace: "fast".into(), counter_name: "views".into(), ..Default::default() };
    for n in 1..=5 {
        house.ways.iter().for_each(|way| way.set(Fault::LoseOne));
        let failed = client.add_count(best_effort(1)).await.expect_err("its answer is lost");
        house.ways.iter().for_each(|way| way.set(Fault::None));
        assert!(failed.error.may_be_applied && failed.error.attempts == 1, "{failed:?}");
        let counted = client.get_count(read.clone()).await.expect("a reading").count;
        assert_eq!(counted, n, "one attempt counts once");
    }
    let item = |name: &str| pb::AddItem { counter_name: name.to_owned(), delta: Some(1), ..Default::default() };
    let batch = pb::BatchAddCountsRequest { namespace: "fast".to_owned(), items: vec![item("views"), item("likes")] };
    house.ways.iter().for_each(|way| way.set(Fault::LoseOne));
    let failed = client.batch_add_counts(batch).await.expect_err("its answer is lost");
    house.ways.iter().for_each(|way| way.set(Fault::None));
    assert!(failed.error.may_be_applied && failed.error.attempts == 1, "{failed:?}");
    assert_eq!(client.get_count(read).await.expect("a reading").count, 6);
    assert_eq!(client.recognises_repeats("fast").await, Some(false));
    assert_eq!(client.recognises_repeats("default").await, Some(true));
}

#[tokio::test]
async fn an_add_that_failed_for_good_is_settled_by_its_token() {
    let house = House::new();
    let once = house.client(RetryPolicy { attempts_max: 1, ..quick() });
    let patient = house.client(quick());
    patient.add_count(add(1)).await.expect("an add");
    let mut counted = 1;
    for n in 0..6 {
        // The connection stands before the fault, so that the request is sent; half of them never arrive.
        count(&once).await;
        let fault = if n % 2 == 0 { Fault::LoseOne } else { Fault::Cut };
        house.ways.iter().for_each(|way| way.set(fault));
        let failed = once.add_count(add(1)).await.expect_err("its answer is lost");
        house.ways.iter().for_each(|way| way.set(Fault::None));
        assert!(failed.error.may_be_applied || fault == Fault::Cut, "{failed}");
        let question = pb::CheckTokenRequest {
            namespace: "default".to_owned(),
            counter_name: "views".to_owned(),
            idempotency_token: Some(failed.token),
        };
        match patient.check_token(question).await.expect("a verdict").verdict() {
            pb::Verdict::Applied => counted += 1,
            verdict => assert_eq!((verdict, fault), (pb::Verdict::NotApplied, Fault::Cut)),
        }
    }
    assert!(counted >= 4, "what was written before its answer was lost counts");
    assert_eq!(count(&patient).await, counted);
}

#[tokio::test]
async fn a_server_that_is_cut_off_or_hangs_is_left_for_the_next_one() {
    let house = House::new();
    let client = house.client(RetryPolicy { attempt_max: Duration::from_secs(2), ..quick() });
    let mut added = 0;
    for (first, second) in
        [(Fault::None, Fault::None), (Fault::Cut, Fault::None), (Fault::None, Fault::Hang), (Fault::Hang, Fault::None)]
    {
        house.ways[0].set(first);
        house.ways[1].set(second);
        for _ in 0..5 {
            client.add_count(add(1)).await.unwrap_or_else(|error| panic!("{first:?} {second:?}: {error}"));
            added += 1;
        }
        assert_eq!(count(&client).await, added, "{first:?} {second:?}");
    }
}

#[tokio::test]
async fn a_slow_call_is_asked_of_the_next_server_too_and_counts_once() {
    let house = House::new();
    let patience = Duration::from_secs(60);
    let policy = RetryPolicy { attempt_max: patience, hedge_after: Some(Duration::from_millis(20)), ..quick() };
    let client = house.client(policy);
    // The first answer says that the namespace knows repeats.
    client.add_count(add(1)).await.expect("an add");
    house.ways[0].set(Fault::Hang);
    let began = Instant::now();
    for _ in 0..5 {
        client.add_count(add(1)).await.expect("the second way answers");
    }
    assert!(began.elapsed() < patience, "nobody waited for the first way: {:?}", began.elapsed());
    // What hung arrives now, under tokens that counted already.
    house.ways[0].set(Fault::None);
    for _ in 0..5 {
        client.add_count(add(1)).await.expect("an add");
        assert!(count(&client).await <= 11);
    }
    assert_eq!(count(&client).await, 11);
}

#[tokio::test]
async fn a_batch_of_any_size_is_sent_in_parts_and_each_item_counts_once() {
    let house = House::new();
    let client = house.client(quick());
    let item = |_| pb::AddItem { counter_name: "views".to_owned(), delta: Some(1), ..Default::default() };
    let batch = pb::BatchAddCountsRequest { namespace: "default".to_owned(), items: (0..2_500).map(item).collect() };
    count(&client).await;
    house.ways[0].set(Fault::LoseOne);
    let results = client.batch_add_counts(batch).await.expect("every part is answered");
    assert_eq!(results.len(), 2_500);
    assert!(results.iter().all(|result| result.idempotency_token.is_some()));
    let refused: Vec<_> = results.iter().filter_map(|result| result.error.as_ref()).collect();
    assert!(refused.is_empty(), "{refused:?}");
    assert_eq!(count(&client).await, 2_500);
    let invalid = pb::AddItem { counter_name: String::new(), delta: Some(1), ..Default::default() };
    let batch = pb::BatchAddCountsRequest { namespace: "default".to_owned(), items: vec![item(0), invalid] };
    let results = client.batch_add_counts(batch).await.expect("the batch is answered");
    let reasons: Vec<_> =
        results.iter().map(|result| result.error.as_ref().map(|error| error.reason.as_str())).collect();
    assert_eq!(reasons, [None, Some("INVALID_COUNTER_NAME")]);
}

#[tokio::test]
async fn gathered_adds_count_once_each_though_an_answer_is_lost_and_callers_go_away() {
    let house = House::new();
    let client = house.client(quick());
    let views = client.gathering("default");
    let item = || pb::AddItem { counter_name: "views".to_owned(), delta: Some(1), ..Default::default() };
    count(&client).await;
    house.ways[0].set(Fault::LoseOne);
    for answer in join_all((0..300).map(|_| views.add(item()))).await {
        assert!(answer.expect("an add").idempotency_token.is_some());
    }
    assert_eq!(count(&client).await, 300);

    let mut going: Vec<_> = (0..8).map(|_| Box::pin(views.add(item()))).collect();
    for add in &mut going {
        let is_pending = std::future::poll_fn(|context| Poll::Ready(add.as_mut().poll(context).is_pending()));
        assert!(is_pending.await, "nobody answers that soon");
    }
    let staying = going.split_off(4);
    drop(going); // those whose calls are under way
    for answer in join_all(staying).await {
        answer.expect("an add");
    }
    let counted = count(&client).await;
    assert!((304..=308).contains(&counted), "what was sent for those who went away counts or does not: {counted}");

    let refused = views.add(pb::AddItem { delta: Some(1), ..Default::default() }).await.expect_err("it has no name");
    assert_eq!(refused.error.reason().as_deref(), Some("INVALID_COUNTER_NAME"));
    assert!(!refused.error.may_be_applied);
}

#[tokio::test]
async fn the_example_counts() {
    let house = House::new();
    let addresses = house.ways.each_ref().map(|way| way.address().to_string());
    let addresses = addresses.each_ref().map(String::as_str);
    for expected in 1..=3 {
        let views = example::count_a_view(&addresses).await.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(views, expected);
        house.ways.iter().for_each(|way| way.set(Fault::LoseOne));
    }
}
