//! The laws of documents, on the golden files and on invalid documents.

use std::time::Duration;

use super::*;
use tallystone_domain::namespace::{Cardinality, CounterType};

const PUBLISHED_FRAGMENT: &str = include_str!("../../../tests/golden/documents/published_fragment.json");
const PUBLISHED_OBJECT: &str = include_str!("../../../tests/golden/documents/published_object.json");
const OURS_TOML: &str = include_str!("../../../tests/golden/documents/ours.toml");
const OURS_JSON: &str = include_str!("../../../tests/golden/documents/ours.json");

fn name(text: &str) -> NamespaceName {
    NamespaceName::new(text).expect("a valid name")
}

fn one(text: &str) -> DocumentNamespace {
    let mut read = parse(text, Some(&name("shop"))).expect(text);
    assert_eq!(read.len(), 1);
    read.remove(0)
}

fn fault(text: &str) -> String {
    let reject = parse(text, Some(&name("shop"))).expect_err(text);
    assert_eq!(reject.reason, Reason::InvalidDocument, "{}", reject.message);
    reject.message
}

/// Wraps blocks in the published form.
fn published(blocks: &str) -> String {
    format!("persistence_configuration: [{blocks}]")
}

#[test]
fn the_published_document_loads_as_it_is_with_every_value() {
    let read = one(PUBLISHED_FRAGMENT);
    assert_eq!(read.unmapped, Vec::<String>::new());
    let draft = read.draft;
    assert_eq!(draft.name, name("shop"));
    assert_eq!(draft.counter_type, Some(CounterType::Eventual));
    assert_eq!(draft.cardinality, Some(Cardinality::Low));
    assert_eq!(draft.storage.cache_cluster, Some(name("evcache_dgw_counter_tier1")));
    assert_eq!(draft.storage.rollup_cluster, Some(name("cass_dgw_counter_uswest2")));
    assert_eq!(draft.storage.event_cluster, Some(name("cass_dgw_counter_uswest2")));
    assert_eq!(draft.storage.dataset, Some(name("my_dataset_1")));
    assert_eq!(draft.rollup.num_queues, Some(8));
    assert_eq!(draft.rollup.coalesce_ms, Some(10_000));
    assert_eq!(draft.rollup.capacity_bytes, Some(16_777_216));
    assert_eq!(draft.rollup.rollup_batch_count, Some(32));
    assert_eq!(draft.partition.buckets_per_id, Some(4));
    assert_eq!(draft.partition.seconds_per_bucket, Some(600));
    assert_eq!(draft.dataset.seconds_per_slice, Some(86_400));
    assert_eq!(draft.dataset.accept_limit, Some(Duration::from_secs(5)));
    assert_eq!(draft.dataset.close_after, Some(Duration::from_secs(518_400)));
    assert_eq!(draft.dataset.delete_after, Some(Duration::from_secs(604_800)));
    assert_eq!(draft.dataset.future_limit, None);
}

#[test]
fn outer_braces_change_nothing() {
    assert_eq!(one(PUBLISHED_OBJECT), one(PUBLISHED_FRAGMENT));
    let with_name = PUBLISHED_OBJECT.replacen('{', "{ \"namespace\": \"shop\",", 1);
    assert_eq!(parse(&with_name, None).expect("the document names itself"), [one(PUBLISHED_FRAGMENT)]);
}

#[test]
fn our_toml_and_our_json_say_the_same() {
    let toml = parse(OURS_TOML, None).expect("valid");
    assert_eq!(toml, parse(OURS_JSON, None).expect("valid"));
    assert_eq!(toml.len(), 2);
    assert_eq!(toml[0].draft.ttl, Some(Duration::from_secs(90 * 86_400)));
    let hot: Vec<_> = toml[0]
        .draft
        .hot_counters
        .as_ref()
        .expect("it has some")
        .iter()
        .map(|hot| (hot.counter_name.as_str(), hot.buckets_per_id))
        .collect();
    assert_eq!(hot, [("front-page", 16)]);
    assert_eq!(toml[0].draft.series.as_ref().expect("it has some").len(), 2);
    assert_eq!(toml[0].draft.series.as_ref().expect("it has some")[1].step_seconds, 3_600);
}

#[test]
fn a_namespace_is_a_document_a_list_or_wrapped_as_an_answer() {
    let alone = one("{ name: 'shop', ttl: '60s' }");
    for text in [
        "[{ name: 'shop', ttl: '60s' }]",
        "{ namespaces: [{ name: 'shop', ttl: '60s' }] }",
        "{ namespace: { name: 'shop', ttl: '60s' } }",
        "name = 'shop'\nttl = '1m'",
        "ttl: '60s'",
    ] {
        assert_eq!(one(text), alone, "{text}");
    }
}

#[test]
fn every_field_of_the_namespace_message_can_stand_in_a_document() {
    use prost_reflect::{DescriptorPool, Kind};
    let pool =
        DescriptorPool::decode(tallystone_proto::DESCRIPTORS).expect("the descriptors were built with the crate");
    let message = pool.get_message_by_name("tallystone.admin.v1.Namespace").expect("the message exists");
    for field in message.fields() {
        let known = |name: &str, value: &str| {
            let text = format!("{{ name: 'shop', {name}: {value} }}");
            let text = if name == "name" { "{ name: 'shop' }".to_owned() } else { text };
            let result = parse(&text, None);
            let message = result.err().map_or_else(String::new, |reject| reject.message);
            assert!(!message.contains("no such field"), "{name}: {message}");
        };
        known(field.name(), "null");
        known(field.json_name(), "null");
        let Kind::Message(inner) = field.kind() else { continue };
        if !inner.full_name().starts_with("tallystone.") {
            continue;
        }
        for part in inner.fields() {
            let table = format!("{{ {}: null }}", part.json_name());
            known(field.json_name(), &if field.is_list() { format!("[{table}]") } else { table });
        }
    }
}

#[test]
fn an_answer_of_ours_is_a_document_and_its_etag_counts() {
    let read = one("{ name: 'shop', id: '7', etag: '7-3', version: '3', createTime: '2026-01-01T00:00:00Z' }");
    assert_eq!(read.etag.map(|etag| etag.to_string()), Some("7-3".to_owned()));
    assert_eq!(read.draft, NamespaceDraft::of(name("shop")));
}

#[test]
fn an_unknown_field_of_ours_is_refused_with_a_suggestion() {
    let text = fault("[rollup]\nnum_queus = 8");
    assert_eq!(text, "rollup.num_queus: there is no such field; did you mean num_queues?");
    assert!(fault("{ colour: 'red' }").starts_with("colour: there is no such field; known are name, etag,"));
    assert!(fault("{ namespaces: [{ name: 'a' }], x: 1 }").starts_with("x: there is no such field"));
}

#[test]
fn faults_name_their_place() {
    for (text, place) in [
        ("{ hot_counters: [{ counter_name: 'a' }] }", "hot_counters[0]: buckets_per_id is missing"),
        ("{ hot_counters: [{ buckets_per_id: 8 }] }", "hot_counters[0]: counter_name is missing"),
        ("{ hot_counters: [{ counter_name: 'a b' }] }", "hot_counters[0].counter_name: has ' '"),
        ("{ hot_counters: [{ counter_name: 'a', width: 8 }] }", "hot_counters[0]"),
        ("{ rollup: 8 }", "rollup: expected a table, found a whole number"),
        ("{ rollup: { num_queues: 1.5 } }", "rollup.num_queues: "),
        ("{ rollup: { numQueues: -1 } }", "rollup.numQueues: -1 is out of range"),
        ("{ ttl: 5 }", "ttl: expected a duration such as \"5s\" or \"500ms\", found 5"),
        ("{ counter_type: 'FAST' }", "counter_type: \"FAST\" is not one of BEST_EFFORT, EVENTUAL, ACCURATE"),
        ("{ storage: { cacheCluster: 'a b' } }", "storage.cache_cluster: has ' ' as character 2"),
        ("{ dataset: { slice_width: '0.5s' } }", "dataset.slice_width: 500ms is not a whole number of seconds"),
        ("{ series: [{ step: '60s' }] }", "series[0]: keep is missing"),
        ("[{ name: 'a' }]", "[0]: the document names namespace a, the request shop"),
        ("{ name: 'a b' }", "namespace has ' ' as character 2"),
        ("[{}, 1]", "[1]: expected a table"),
        ("[]", "the document has 0 namespaces"),
        ("{ namespaces: 1 }", "namespaces: expected a list"),
    ] {
        let message = fault(text);
        assert!(message.starts_with(place), "{text}: {message}");
    }
}

#[test]
fn a_document_without_a_name_needs_one_from_the_request() {
    for text in ["{}", PUBLISHED_FRAGMENT, "[{ ttl: '60s' }]"] {
        let reject = parse(text, None).expect_err(text);
        assert!(reject.message.contains("names no namespace"), "{}", reject.message);
    }
    assert!(fault("[{}, {}]").contains("shop occurs twice in the document"));
}

#[test]
fn what_the_published_form_says_beyond_us_is_named() {
    let read = one(&format!(
        "{}, colour: 'red'",
        published(
            "{ id: 'CACHE', scope: 'dal=kv', ttl: '5s', physical_storage: { type: 'REDIS', cluster: 'c', dataset: 'd' } },
             { id: 'SEARCH', x: 1 },
             { id: 'COUNTER_ROLLUP', config: { best_effort_counter_config: {}, eventual_counter_config: {
                internal_config: { queue_config: { fair: true }, depth: 1 }, sync: true } },
               physical_storage: { dataset: 'a' } },
             { id: 'EVENT_STORAGE', physical_storage: { dataset: 'b' }, config: { time_partition: { zone: 'x' } },
               lifecycleConfigs: { lifecycleConfig: [ { type: 'archive' }, { type: 'retention', config: { by: 'x' } } ],
                                   lifecycle: 1 } }"
        )
    ));
    let expected = [
        "persistence_configuration[0].scope: CACHE has the scope dal=counter here, not dal=kv",
        "persistence_configuration[0].physical_storage.type: REDIS is not one of EVCACHE, MEMCACHED, EMBEDDED; the server's configuration sets the kind of the cluster",
        "persistence_configuration[0].physical_storage.dataset: a cluster has no such setting",
        "persistence_configuration[0].ttl: a block has no such setting",
        "persistence_configuration[1]: counters do not use a block with the id SEARCH",
        "persistence_configuration[2].config.eventual_counter_config.internal_config.queue_config.fair: a rollup queue \
         has no such setting",
        "persistence_configuration[2].config.eventual_counter_config.internal_config.depth: rollups have no such setting",
        "persistence_configuration[2].config.eventual_counter_config.sync: eventual counters have no such setting",
        "persistence_configuration[2].config.best_effort_counter_config: this block has no such setting",
        "persistence_configuration[3].config.time_partition.zone: time partitions have no such setting",
        "persistence_configuration[3].lifecycleConfigs.lifecycleConfig[0]: EVENT_STORAGE has no life cycle archive",
        "persistence_configuration[3].lifecycleConfigs.lifecycleConfig[1].config.by: retention has no such setting",
        "persistence_configuration[3].lifecycleConfigs.lifecycle: life cycles belong under lifecycleConfig",
        "colour: a namespace has no such setting",
        "persistence_configuration[2].physical_storage.dataset: rollups are stored in the dataset of the events, b, not in a",
    ];
    assert_eq!(read.unmapped, expected);
}

#[test]
fn blocks_without_their_namespace_are_told_where_they_belong() {
    for text in ["[{ id: 'CACHE', scope: 'dal=counter' }]", "[{ \"id\": \"SEARCH\" }, { \"id\": \"EVENT_STORAGE\" }]"] {
        let reject = parse(text, Some(&name("views"))).expect_err("no namespace");
        assert!(reject.message.contains("persistence_configuration: ["), "{}", reject.message);
    }
}

#[test]
fn a_list_of_namespaces_as_they_are_answered_is_read() {
    let text = "[{ \"name\": \"views\", \"id\": \"1\" }, { \"name\": \"likes\", \"id\": \"2\" }]";
    let read = parse(text, None).expect("two namespaces");
    assert_eq!(read.iter().map(|one| one.draft.name.as_str()).collect::<Vec<_>>(), ["views", "likes"]);
}

#[test]
fn blocks_that_agree_on_the_cardinality_are_read() {
    let text = "{ persistence_configuration: [
        { id: 'CACHE', counter_cardinality: 'LOW' }, { id: 'COUNTER_ROLLUP', counter_cardinality: 'CARDINALITY_LOW' } ] }";
    let read = parse(text, Some(&name("views"))).expect("one cardinality");
    assert_eq!(read[0].draft.cardinality, Some(Cardinality::Low));
}

#[test]
fn contradictions_of_the_published_form_are_refused_with_their_place() {
    for (blocks, message) in [
        (
            "{ id: 'CACHE' }, { id: 'CACHE' }",
            "persistence_configuration[1]: persistence_configuration[0] already has the id CACHE",
        ),
        (
            "{ id: 'CACHE', config: { counter_type: 'BEST_EFFORT' } },
             { id: 'COUNTER_ROLLUP', config: { counter_type: 'EVENTUAL' } }",
            "persistence_configuration[1].config.counter_type: contradicts persistence_configuration[0].config.counter_type",
        ),
        (
            "{ id: 'CACHE', counter_cardinality: 'HIGH' }, { id: 'COUNTER_ROLLUP', counter_cardinality: 'LOW' }",
            "persistence_configuration[1].counter_cardinality: contradicts \
             persistence_configuration[0].counter_cardinality; use one cardinality",
        ),
        (
            "{ id: 'EVENT_STORAGE', lifecycleConfigs: { lifecycleConfig: [ { type: 'retention' }, { type: 'retention' } ] } }",
            "persistence_configuration[0].lifecycleConfigs.lifecycleConfig[1]: persistence_configuration[0]",
        ),
        ("{ id: 'EVENT_STORAGE', config: { accept_limit: 5 } }", "persistence_configuration[0].config.accept_limit: "),
        ("{ scope: 'dal=ts' }", "persistence_configuration[0]: id is missing"),
        ("{ id: 'SEARCH' }", "persistence_configuration has no block"),
        ("", "persistence_configuration has no block"),
    ] {
        let text = fault(&published(blocks));
        assert!(text.starts_with(message), "{text}");
    }
    assert!(fault("persistence_configuration: {}").starts_with("persistence_configuration: expected a list"));
}

#[test]
fn a_document_of_another_kind_is_refused_instead_of_listed() {
    let blocks: String = (0..1_002).map(|i| format!("{{ id: 'B{i}' }},")).collect();
    let text = fault(&published(&format!("{blocks} {{ id: 'CACHE' }}")));
    assert_eq!(text, "1002 settings cannot be mapped; check that it is a document of counters");
}

/// Fragments of documents, so that random documents are close to valid ones.
const PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    "[[",
    "]]",
    ":",
    "=",
    ",",
    "\n",
    " ",
    "//",
    "/*",
    "*/",
    "#",
    "'",
    "\"",
    "\\",
    "-",
    ".",
    "1",
    "1e9",
    "0x",
    "null",
    "true",
    "name",
    "ttl",
    "'5s'",
    "namespaces",
    "namespace",
    "series",
    "step",
    "rollup",
    "num_queues",
    "persistence_configuration",
    "id",
    "'CACHE'",
    "config",
    "physical_storage",
    "ä",
    "\u{feff}",
    "\0",
    "NaN",
];

proptest::proptest! {
    /// Any document is parsed or refused with a reason; proptest prints the seed of a failure.
    #[test]
    fn no_text_brings_the_reader_down(pieces in proptest::collection::vec(proptest::sample::select(PIECES), 0..40)) {
        if let Err(reject) = parse(&pieces.concat(), Some(&name("shop"))) {
            proptest::prop_assert!([Reason::InvalidDocument, Reason::EtagMismatch].contains(&reject.reason));
        }
    }
}

#[test]
fn a_refusal_does_not_echo_a_long_document() {
    let long = "7".repeat(50_000);
    for text in
        [format!("ttl = \"{long}\""), format!("{{\"ttl\": \"{}\"}}", "\u{e9}".repeat(20_000)), format!("{long} = 1")]
    {
        let message = fault(&text);
        assert!(message.len() <= DOCUMENT_REFUSAL_BYTES_MAX + 3, "{} bytes", message.len());
    }
}
