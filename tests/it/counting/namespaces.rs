//! The namespace service as callers see it, on the plainest catalog.

use std::sync::Arc;

use tallystone::adapters::manual::ManualClock;
use tallystone::adapters::memory;
use tallystone::api::grpc::namespaces::NamespacesApi;
use tallystone::domain::Timestamp;
use tallystone::domain::access::{AccessRole, CallRights};
use tallystone::engine::namespaces::NamespaceCatalog;
use tallystone::proto::admin::v1 as pb;
use tallystone::proto::admin::v1::namespace_service_server::NamespaceService;
use tonic::{Request, Response, Status};
use tonic_types::StatusExt;

const PUBLISHED: &str = include_str!("../../golden/documents/published_fragment.json");
const OURS: &str = include_str!("../../golden/documents/ours.toml");

async fn service() -> NamespacesApi {
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(1_700_000_000)));
    NamespacesApi::new(NamespaceCatalog::open(memory::stores().catalog, clock).await.expect("memory opens"))
}

fn named(name: &str) -> pb::Namespace {
    pb::Namespace { name: name.to_owned(), ..Default::default() }
}

fn reason<T: std::fmt::Debug>(answer: Result<Response<T>, Status>) -> String {
    answer.expect_err("a refusal").get_details_error_info().expect("every refusal has a reason").reason
}

/// A request of a caller who may do everything.
fn asked<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.extensions_mut().insert(CallRights::unlimited(AccessRole::Admin));
    request
}

async fn create(service: &NamespacesApi, namespace: pb::Namespace) -> Result<pb::Namespace, Status> {
    let request = pb::CreateNamespaceRequest { namespace: Some(namespace), reason: String::new() };
    let answer = service.create_namespace(asked(request)).await?;
    Ok(answer.into_inner().namespace.expect("it is answered"))
}

async fn update(
    service: &NamespacesApi,
    namespace: pb::Namespace,
) -> Result<Response<pb::UpdateNamespaceResponse>, Status> {
    // What is read comes back without what only the service sets.
    let namespace = pb::Namespace { id: 0, version: 0, create_time: None, update_time: None, ..namespace };
    let request =
        pb::UpdateNamespaceRequest { namespace: Some(namespace), reason: "because".to_owned(), reset: vec![] };
    service.update_namespace(asked(request)).await
}

async fn apply(
    service: &NamespacesApi,
    document: &str,
    namespace: &str,
    dry_run: bool,
) -> Result<Vec<pb::AppliedNamespace>, Status> {
    let request = pb::ApplyNamespaceRequest {
        document: document.to_owned(),
        namespace: namespace.to_owned(),
        dry_run,
        reason: String::new(),
    };
    Ok(service.apply_namespace(asked(request)).await?.into_inner().results)
}

async fn list(service: &NamespacesApi, page_size: i32, page_token: &str) -> Result<pb::ListNamespacesResponse, Status> {
    let request = pb::ListNamespacesRequest { page_size, page_token: page_token.to_owned() };
    Ok(service.list_namespaces(asked(request)).await?.into_inner())
}

async fn changes(
    service: &NamespacesApi,
    name: &str,
    page_size: i32,
    page_token: &str,
) -> Result<pb::ListNamespaceChangesResponse, Status> {
    let request =
        pb::ListNamespaceChangesRequest { name: name.to_owned(), page_size, page_token: page_token.to_owned() };
    Ok(service.list_namespace_changes(asked(request)).await?.into_inner())
}

#[tokio::test]
async fn a_namespace_with_a_name_alone_has_every_default() {
    let service = service().await;
    let made = create(&service, named("shop")).await.expect("created");
    assert_eq!((made.version, made.counter_type()), (1, pb::CounterType::Eventual));
    assert_eq!(made.rollup.expect("it is answered").num_queues, Some(8));
    assert_eq!(made.dataset.expect("it is answered").accept_limit.expect("a default").seconds, 5);
    assert_eq!(made.create_time.expect("it is answered").seconds, 1_700_000_000);
    let read = service.get_namespace(asked(pb::GetNamespaceRequest { name: "shop".to_owned() })).await;
    assert_eq!(read.expect("found").into_inner().namespace, Some(made.clone()));
    assert_eq!(create(&service, named("shop")).await.expect("the same again"), made);
}

#[tokio::test]
async fn what_was_read_can_be_changed_and_sent_back_once() {
    let service = service().await;
    let made = create(&service, named("shop")).await.expect("created");
    let mut sent = made.clone();
    sent.rollup.as_mut().expect("it is answered").num_queues = Some(16);
    let kept = update(&service, sent.clone()).await.expect("updated").into_inner().namespace.expect("answered");
    assert_eq!((kept.version, kept.id), (2, made.id));
    assert_ne!(kept.etag, made.etag);
    sent.rollup.as_mut().expect("it is answered").num_queues = Some(32);
    assert_eq!(reason(update(&service, sent.clone()).await), "ETAG_MISMATCH");
    sent.etag = String::new();
    update(&service, sent.clone()).await.expect("an empty etag overwrites");
    sent.etag = "forged".to_owned();
    assert_eq!(reason(update(&service, sent).await), "ETAG_MISMATCH");
}

#[tokio::test]
async fn each_refusal_has_its_own_reason() {
    let service = service().await;
    create(&service, named("shop")).await.expect("created");
    let with = |change: fn(&mut pb::Namespace)| {
        let mut namespace = named("shop");
        change(&mut namespace);
        namespace
    };
    let best_effort = with(|namespace| namespace.set_counter_type(pb::CounterType::BestEffort));
    let negative = with(|namespace| namespace.ttl = Some(prost_types::Duration { seconds: -1, nanos: 0 }));
    let mut other_dataset = named("other");
    other_dataset.dataset = Some(pb::DatasetSettings {
        accept_limit: Some(prost_types::Duration { seconds: 9, nanos: 0 }),
        ..Default::default()
    });
    assert_eq!(reason(update(&service, best_effort.clone()).await), "SETTING_IS_FIXED");
    assert_eq!(reason(update(&service, negative).await), "INVALID_SETTINGS");
    assert_eq!(reason(update(&service, named("other")).await), "NAMESPACE_NOT_FOUND");
    let refused = |answer: Result<pb::Namespace, Status>| reason(answer.map(Response::new));
    assert_eq!(refused(create(&service, best_effort).await), "NAMESPACE_EXISTS");
    assert_eq!(refused(create(&service, other_dataset).await), "DATASET_DIFFERS");
    assert_eq!(refused(create(&service, named("")).await), "INVALID_NAMESPACE");
    assert_eq!(refused(create(&service, named("a b")).await), "INVALID_NAMESPACE");
    assert_eq!(refused(create(&service, named("tallystone.x")).await), "NAMESPACE_READ_ONLY");
    let nothing = pb::CreateNamespaceRequest::default();
    assert_eq!(reason(service.create_namespace(asked(nothing)).await), "INVALID_ARGUMENT");
    let absent = pb::GetNamespaceRequest { name: "absent".to_owned() };
    assert_eq!(reason(service.get_namespace(asked(absent)).await), "NAMESPACE_NOT_FOUND");
}

#[tokio::test]
async fn a_refusal_names_the_field_and_what_to_do() {
    let service = service().await;
    create(&service, named("shop")).await.expect("created");
    let field =
        |status: &Status| status.get_details_bad_request().expect("a BadRequest").field_violations.remove(0).field;
    let bad = "a b".to_owned();
    let get = asked(pb::GetNamespaceRequest { name: bad.clone() });
    assert_eq!(field(&service.get_namespace(get).await.expect_err("no name")), "name");
    let delete = |name: &str| asked(pb::DeleteNamespaceRequest { name: name.to_owned(), ..Default::default() });
    assert_eq!(field(&service.delete_namespace(delete(&bad)).await.expect_err("no name")), "name");
    assert_eq!(field(&changes(&service, &bad, 0, "").await.expect_err("no name")), "name");
    assert_eq!(field(&create(&service, named(&bad)).await.expect_err("no name")), "namespace.name");
    assert_eq!(field(&update(&service, named(&bad)).await.expect_err("no name")), "namespace.name");
    assert_eq!(field(&apply(&service, "ttl = '60s'", &bad, false).await.expect_err("no name")), "namespace");

    let mut other = named("shop");
    other.rollup = Some(pb::RollupSettings { num_queues: Some(9), ..Default::default() });
    let exists = create(&service, other).await.expect_err("it exists");
    assert!(exists.message().ends_with("num_queues: 8 -> 9; update it instead, or choose another name"), "{exists}");
    let gone = service.delete_namespace(delete("gone")).await.expect_err("it never was");
    for status in [gone, changes(&service, "gone", 0, "").await.expect_err("it never was")] {
        assert_eq!(
            status.message(),
            "namespace gone does not exist; check its name, for example with tallystone ns ls"
        );
    }
}

#[tokio::test]
async fn pages_list_every_namespace_once_in_the_order_of_names() {
    let service = service().await;
    for name in ["d", "b", "e", "a", "c"] {
        create(&service, named(name)).await.expect("created");
    }
    let (mut names, mut token) = (Vec::new(), String::new());
    loop {
        let page = list(&service, 2, &token).await.expect("a page");
        names.extend(page.namespaces.into_iter().map(|namespace| namespace.name));
        token = page.next_page_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
    let page = list(&service, 0, "").await.expect("a page");
    assert_eq!((page.namespaces.len(), page.next_page_token.as_str()), (5, ""));
    let refused = |answer: Result<pb::ListNamespacesResponse, Status>| reason(answer.map(Response::new));
    assert_eq!(refused(list(&service, -1, "").await), "INVALID_PAGE_SIZE");
    assert_eq!(refused(list(&service, 1, "forged").await), "INVALID_PAGE_TOKEN");
}

#[tokio::test]
async fn the_history_tells_who_why_and_what_page_by_page() {
    let service = service().await;
    create(&service, named("shop")).await.expect("created");
    for num_queues in [16, 32] {
        let mut next = named("shop");
        next.rollup = Some(pb::RollupSettings { num_queues: Some(num_queues), ..Default::default() });
        let reason = "because".to_owned();
        let mut request = asked(pb::UpdateNamespaceRequest { namespace: Some(next), reason, reset: vec![] });
        request.metadata_mut().insert("tallystone-actor", "ada".parse().expect("plain letters"));
        service.update_namespace(request).await.expect("updated");
    }
    let delete = pb::DeleteNamespaceRequest { name: "shop".to_owned(), ..Default::default() };
    service.delete_namespace(asked(delete)).await.expect("deleted");

    let newest = changes(&service, "shop", 2, "").await.expect("a page");
    assert_eq!(newest.changes.iter().map(|change| change.version).collect::<Vec<_>>(), [4, 3]);
    assert_eq!(newest.changes[0].namespace, None, "a deletion leaves nothing");
    assert_eq!(newest.changes[1].differences, ["rollup.num_queues: 16 -> 32"]);
    assert_eq!((newest.changes[1].actor.as_str(), newest.changes[1].reason.as_str()), ("ada", "because"));
    let oldest = changes(&service, "shop", 3, &newest.next_page_token).await.expect("a page");
    assert_eq!(oldest.changes.iter().map(|change| change.version).collect::<Vec<_>>(), [2, 1]);
    assert_eq!(oldest.next_page_token, "");
    let past = newest.changes[1].namespace.as_ref().expect("it lived then");
    let made = oldest.changes[1].namespace.as_ref().expect("it lived then");
    assert_eq!((past.etag.as_str(), made.etag.as_str()), ("1-3", "1-1"), "each change made its etag");
    assert!(past.create_time.is_some() && past.create_time == made.create_time, "also where it is on another page");

    let refused = |answer: Result<pb::ListNamespaceChangesResponse, Status>| reason(answer.map(Response::new));
    assert_eq!(refused(changes(&service, "other", 2, &newest.next_page_token).await), "INVALID_PAGE_TOKEN");
    assert_eq!(refused(changes(&service, "other", 2, "").await), "NAMESPACE_NOT_FOUND");
}

#[tokio::test]
async fn the_published_document_creates_and_then_changes_nothing() {
    let service = service().await;
    let said = apply(&service, PUBLISHED, "counters", true).await.expect("a dry run");
    assert_eq!(said[0].action(), pb::ApplyAction::Created);
    assert!(list(&service, 0, "").await.expect("a page").namespaces.is_empty(), "a dry run changes nothing");
    let would_be = said[0].namespace.as_ref().expect("it is answered");
    assert_eq!((would_be.id, would_be.etag.as_str()), (0, ""), "nothing is there that could have them");
    assert_eq!((would_be.create_time, would_be.update_time), (None, None));
    let done = apply(&service, PUBLISHED, "counters", false).await.expect("applied");
    let made = done[0].namespace.clone().expect("it is answered");
    assert_eq!((done[0].action(), made.name.as_str()), (pb::ApplyAction::Created, "counters"));
    assert_eq!(made.storage.expect("it is answered").cache_cluster, "evcache_dgw_counter_tier1");
    assert!(done[0].unmapped.is_empty());
    let again = apply(&service, PUBLISHED, "counters", false).await.expect("applied");
    assert_eq!(again[0].action(), pb::ApplyAction::Unchanged);
    let more = PUBLISHED.replace("\"num_queues\" : 8", "\"num_queues\" : 16");
    let said = apply(&service, &more, "counters", true).await.expect("a dry run");
    let would_be = said[0].namespace.as_ref().expect("it is answered");
    assert_eq!((would_be.id, would_be.create_time), (made.id, made.create_time), "these stay");
    assert_eq!((would_be.etag.as_str(), would_be.update_time), ("", None), "these come with the change");
    let changed = apply(&service, &more, "counters", false).await.expect("applied");
    assert_eq!(changed[0].action(), pb::ApplyAction::Updated);
    assert_eq!(changed[0].differences, ["rollup.num_queues: 8 -> 16"]);
}

#[tokio::test]
async fn a_document_of_several_namespaces_is_looked_at_before_the_first_is_changed() {
    let service = service().await;
    let done = apply(&service, OURS, "", false).await.expect("applied");
    assert_eq!(done.len(), 2);
    let mixed = "[{ name: 'fine' }, { name: 'totals', temporality: 'DELTA' }]";
    let error = apply(&service, mixed, "", false).await.expect_err("totals is cumulative");
    assert!(error.message().starts_with("namespace totals: "), "{}", error.message());
    assert!(error.message().ends_with("no namespace of the document was changed"), "{}", error.message());
    assert_eq!(reason(Err::<Response<()>, _>(error)), "SETTING_IS_FIXED");
    let names = list(&service, 0, "").await.expect("a page").namespaces;
    assert_eq!(names.iter().map(|namespace| namespace.name.as_str()).collect::<Vec<_>>(), ["totals", "views"]);
}

#[tokio::test]
async fn an_etag_in_a_document_counts() {
    let service = service().await;
    let made = create(&service, named("shop")).await.expect("created");
    let document = |etag: &str, ttl: &str| format!("{{ name: 'shop', etag: '{etag}', ttl: '{ttl}' }}");
    apply(&service, &document(&made.etag, "60s"), "", false).await.expect("it is the present one");
    let stale = apply(&service, &document(&made.etag, "90s"), "", false).await.expect_err("it is old");
    assert_eq!(reason(Err::<Response<()>, _>(stale)), "ETAG_MISMATCH");
}

#[tokio::test]
async fn a_document_that_cannot_be_read_names_the_place() {
    let service = service().await;
    for (document, place) in [
        ("", "the document is empty"),
        ("{ name: 'shop'\n  ttl: '5s' }", "line 2 column 3"),
        ("name = 'shop'\nttl = ", "line 2 column"),
        ("{ name: 'shop', ttl: 5 }", "ttl: expected a duration"),
    ] {
        let error = apply(&service, document, "", false).await.expect_err(document);
        assert!(error.message().starts_with(place), "{document}: {}", error.message());
        assert_eq!(reason(Err::<Response<()>, _>(error)), "INVALID_DOCUMENT");
    }
}
