//! The counters of queues: reports in any order and from several reporters, and what is known of them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tallystone::adapters::manual::{ManualClock, SeededEntropy};
use tallystone::adapters::memory;
use tallystone::domain::counter::{CounterName, NamespaceName, ReportSource};
use tallystone::domain::namespace::SeriesSettings;
use tallystone::domain::rollup::ReadOptions;
use tallystone::domain::{Reason, Timestamp};
use tallystone::engine::caller_quota::CallerId;
use tallystone::engine::counting::{Counting, EventsQuery, KnownTotals, QueueTotal, Repair, SeriesQuery, queue_serial};
use tallystone::engine::namespaces::{NamespaceCatalog, NamespaceDefaults, is_reserved, queue_namespace};
use tallystone::ports::Entropy;

use super::slow_log::SlowLog;
use super::{House, SECOND, START, counter, replay_all, spec};

/// A house whose server has the namespace.
async fn house() -> House {
    let house = House::new().await;
    house.drive(house.engine.namespaces().ensure_queue_namespace()).await.expect("the service makes it");
    house.rest().await;
    house
}

fn total(name: &str, shard: u32, epoch: u64, position: u64, total: i64) -> QueueTotal {
    let source = ReportSource::new(&format!("s{shard}")).expect("a valid source");
    let serial = queue_serial(1, position);
    QueueTotal { counter: counter(name), source, epoch, serial, total, positions: (position, position) }
}

async fn report(house: &House, totals: Vec<QueueTotal>) {
    let outcomes = house.drive(house.counting.report_queue_totals(totals)).await.expect("a report");
    for outcome in outcomes {
        outcome.expect("each total is written");
    }
}

async fn count(house: &House, name: &str) -> i64 {
    let namespace = queue_namespace();
    house.drive(house.counting.get(&namespace, counter(name), ReadOptions::default())).await.expect("a reading").count
}

/// What is known under a prefix, over all pages: (counter, source) -> (epoch, serial, total).
async fn known(house: &House, counting: &Counting, prefix: &str) -> BTreeMap<(String, String), (u64, u64, i64)> {
    let (mut all, mut above): (BTreeMap<_, _>, Option<CounterName>) = (BTreeMap::new(), None);
    loop {
        let page = house.drive(counting.known_queue_totals(prefix, above.as_ref())).await.expect("a page");
        for KnownTotals { counter, sources } in page.counters {
            for (source, newest) in sources {
                let key = (counter.as_str().to_owned(), source.to_string());
                assert!(all.insert(key, (newest.epoch, newest.serial, newest.total)).is_none(), "each once");
            }
        }
        above = page.next_above;
        if above.is_none() {
            return all;
        }
    }
}

#[tokio::test]
async fn a_report_is_seen_by_reads_lists_watches_series_events_recounts_and_explanations() {
    let house = house().await;
    let (namespace, from) = (queue_namespace(), house.now());
    let mut watch =
        house.counting.watch(&namespace, vec![counter("jobs~enqueued")], CallerId::nobody()).await.expect("a watch");
    assert_eq!(house.drive(watch.next()).await.expect("an item").expect("a reading").1.count, 0);
    report(&house, vec![total("jobs~enqueued", 0, 5, 7, 4), total("jobs~enqueued", 1, 5, 9, 6)]).await;
    assert_eq!(count(&house, "jobs~enqueued").await, 10);
    assert_eq!(house.drive(watch.next()).await.expect("an item").expect("a reading").1.count, 10);
    house.pass(3 * SECOND).await;
    let listed = house.counting.list(&namespace, "jobs~", None, 9).await.expect("a page");
    assert_eq!((listed.len(), listed[0].count), (1, 10));
    let question = SeriesQuery { from, to: house.now(), step: None };
    let series = house.counting.series(&namespace, counter("jobs~enqueued"), question).await.expect("a series");
    assert_eq!((series.step.to_string().as_str(), series.rows[0].sum), ("10s", 10));
    let question = EventsQuery { from, to: house.now(), older_than: None, limit: 9 };
    let events = house.counting.events(&namespace, counter("jobs~enqueued"), question).await.expect("events");
    let mut shown: Vec<_> = events.iter().map(|event| (event.provenance.as_str(), event.change.delta())).collect();
    shown.sort_unstable();
    assert_eq!(shown, [("p=7..7", 4), ("p=9..9", 6)]);
    let recount = house.counting.recount(&namespace, counter("jobs~enqueued"), None, None, Repair::No);
    let recount = house.drive(recount).await.expect("a recount");
    assert_eq!((recount.before, recount.after, recount.differences.len()), (10, 10, 0));
    let explained = house.counting.explain(&namespace, counter("jobs~enqueued"), 5);
    house.drive(explained).await.expect("an explanation");
}

#[tokio::test]
async fn answers_say_how_far_queues_are_reported_and_only_in_their_namespace() {
    let house = house().await;
    let namespace = queue_namespace();
    let series = async || {
        let question = SeriesQuery { from: house.now() - 60 * SECOND, to: house.now(), step: None };
        let names = vec![Ok(counter("jobs~enqueued"))];
        let single =
            house.counting.series(&namespace, counter("jobs~enqueued"), question.clone()).await.expect("a series");
        let batch = house.counting.batch_series(&namespace, names, question).await.expect("series").remove(0);
        [single.reported_to, batch.expect("a series").reported_to]
    };
    let counts = async || {
        let (options, names) = (ReadOptions::default(), vec![Ok(counter("jobs~enqueued"))]);
        let single = house.drive(house.counting.get(&namespace, counter("jobs~enqueued"), options)).await;
        let batch = house.drive(house.counting.batch_get(&namespace, names, options)).await.expect("counts").remove(0);
        [single.expect("a count").reported_to, batch.expect("a count").reported_to]
    };
    report(&house, vec![total("jobs~enqueued", 0, 5, 7, 4)]).await;
    for (set, shown) in [
        (None, None),
        (Some(Timestamp::MIN), None),
        (Some(house.now()), Some(house.now())),
        (Some(house.now() - SECOND), Some(house.now() - SECOND)),
        (None, None),
    ] {
        house.engine.set_queues_reported_to(set);
        assert_eq!((counts().await, series().await), ([shown; 2], [shown; 2]), "{set:?}");
        assert_eq!(house.get("views").await.reported_to, None, "no counter of queues");
    }
    house.engine.set_queues_reported_to(Some(house.now()));
    let names = vec![counter("jobs~enqueued")];
    let mut watch = house.counting.watch(&namespace, names, CallerId::nobody()).await.expect("a watch");
    let (_, first) = house.drive(watch.next()).await.expect("an item").expect("a reading");
    assert_eq!(first.reported_to, Some(house.now()));
}

#[tokio::test]
async fn a_falling_depth_stays_at_the_newest_serial_and_a_higher_epoch_begins_from_its_total() {
    let house = house().await;
    report(&house, vec![total("jobs~depth.pending", 0, 5, 100, 40)]).await;
    report(&house, vec![total("jobs~depth.pending", 0, 5, 140, 3)]).await;
    report(&house, vec![total("jobs~depth.pending", 0, 5, 100, 40)]).await;
    assert_eq!(count(&house, "jobs~depth.pending").await, 3, "a late repeat of the older total changes nothing");
    house.pass(3 * SECOND).await;
    report(&house, vec![total("jobs~depth.pending", 0, 5, 100, 40)]).await;
    assert_eq!(count(&house, "jobs~depth.pending").await, 3, "neither after a roll");
    report(&house, vec![total("jobs~depth.pending", 0, 6, 1, 1)]).await;
    report(&house, vec![total("jobs~depth.pending", 0, 5, 150, 90)]).await;
    assert_eq!(count(&house, "jobs~depth.pending").await, 1);
    house.pass(3 * SECOND).await;
    assert_eq!(count(&house, "jobs~depth.pending").await, 1);
}

#[tokio::test]
async fn reports_of_shards_with_one_name_do_not_wait_for_each_other() {
    let clock = ManualClock::at(START + 3_600 * SECOND);
    let mut stores = memory::stores_on(Arc::new(clock.clone()));
    let log = SlowLog::before(&mut stores);
    let house = House::on(spec("shop"), clock, stores, None).await;
    house.drive(house.engine.namespaces().ensure_queue_namespace()).await.expect("the service makes it");
    report(&house, vec![total("warm~enqueued", 0, 1, 1, 1)]).await;
    log.shut();
    let mut calls = Vec::new();
    for queue in ["a~enqueued", "b~enqueued", "c~enqueued"] {
        let counting = house.counting.clone();
        calls.push(tokio::spawn(async move { counting.report_queue_totals(vec![total(queue, 0, 1, 1, 7)]).await }));
    }
    house.rest().await;
    assert_eq!(log.waiting(), 3, "all three are at the log");
    log.open();
    for call in calls {
        house.drive(call).await.expect("no panic").expect("a report");
    }
    assert_eq!(count(&house, "c~enqueued").await, 7);
}

#[tokio::test]
async fn what_is_known_covers_checkpoints_and_everything_acknowledged_since() {
    let house = house().await;
    let names: Vec<String> = (0..300).map(|n| format!("jobs~c{n:03}")).collect();
    report(&house, names.iter().map(|name| total(name, 0, 5, 10, 1)).collect()).await;
    report(&house, vec![total("jobs-2~enqueued", 0, 5, 1, 1), total("jobs~c299", 3, 5, 1, 8)]).await;
    house.pass(20 * SECOND).await;
    report(&house, vec![total("jobs~c000", 0, 5, 11, 2), total("jobs~new", 0, 5, 12, 6)]).await;
    let known = known(&house, &house.counting, "jobs~").await;
    assert_eq!(known.len(), 302, "no other queue");
    let of = |name: &str, source: &str| known[&(name.to_owned(), source.to_owned())];
    assert_eq!(of("jobs~c000", "s0"), (5, queue_serial(1, 11), 2));
    assert_eq!(of("jobs~c123", "s0"), (5, queue_serial(1, 10), 1));
    assert_eq!(of("jobs~c299", "s3"), (5, queue_serial(1, 1), 8));
    assert_eq!(of("jobs~new", "s0"), (5, queue_serial(1, 12), 6));
}

#[tokio::test]
async fn a_report_that_is_too_long_or_has_no_namespace_is_refused_whole() {
    let house = House::new().await;
    let one = || total("jobs~enqueued", 0, 1, 1, 1);
    let missing = house.counting.report_queue_totals(vec![one()]).await.expect_err("nobody made it");
    assert_eq!(missing.reason(), Reason::NamespaceNotFound);
    house.drive(house.engine.namespaces().ensure_queue_namespace()).await.expect("the service makes it");
    let long = house.counting.report_queue_totals(vec![one(); 5_001]).await.expect_err("too many");
    assert_eq!(long.reason(), Reason::InvalidArgument);
    assert!(house.counting.report_queue_totals(Vec::new()).await.expect("nothing to do").is_empty());
    assert_eq!(count(&house, "jobs~enqueued").await, 0);
}

#[tokio::test]
async fn counters_of_a_deleted_queue_are_forgotten_once_their_events_are_gone() {
    let house = house().await;
    let names = ["jobs~depth.pending", "jobs~enqueued", "jobs~left"];
    report(&house, names.iter().map(|name| total(name, 0, 5, 10, 3)).collect()).await;
    house.pass(2 * SECOND).await;
    let zeros = names[..2].iter().map(|name| total(name, 0, 6, 0, 0)).collect();
    report(&house, zeros).await;
    let forget = async || {
        let names = names.iter().map(|name| counter(name)).collect();
        house.drive(house.counting.forget_queue_counters(names)).await.expect("they are forgotten");
        known(&house, &house.counting, "jobs~").await.into_keys().map(|(name, _)| name).collect::<Vec<_>>()
    };
    house.pass(2 * SECOND).await;
    assert_eq!(forget().await, names, "their events are still there");
    for _ in 0..27 * 60 {
        house.clock.advance(Duration::from_secs(60));
        house.rest().await;
    }
    house.pass(30 * SECOND).await;
    report(&house, vec![total("jobs~enqueued", 0, 7, 1, 0)]).await;
    assert_eq!(forget().await, names[1..], "one was written again, one is not 0");
    report(&house, vec![total("jobs~depth.pending", 0, 7, 2, 9)]).await;
    assert_eq!(count(&house, "jobs~depth.pending").await, 9, "a queue made anew begins from its own totals");
    assert_eq!(forget().await, names);
}

#[test]
fn serials_grow_with_the_store_epoch_first_and_the_position_second() {
    assert!(queue_serial(1, (1 << 48) - 1) < queue_serial(2, 0));
    assert!(queue_serial(2, 7) < queue_serial(2, 8));
    assert_eq!(queue_serial(u16::MAX, u64::MAX), u64::MAX, "the last position never reaches the epoch");
}

/// Two reporters on one store, who report the same totals in orders of their own, some of them again and again.
async fn two_reporters(_: (), seed: u64) {
    let clock = ManualClock::at(START + 3_600 * SECOND);
    let stores = memory::stores_on(Arc::new(clock.clone()));
    let first = House::on(spec("shop"), clock.clone(), stores.clone(), None).await;
    first.drive(first.engine.namespaces().ensure_queue_namespace()).await.expect("the service makes it");
    let second = House::on(spec("shop"), clock, stores, None).await;
    let random = SeededEntropy::new(seed);
    let below = |bound: u64| {
        let mut bytes = [0; 8];
        random.fill(&mut bytes);
        u64::from_be_bytes(bytes) % bound
    };
    let names = ["a~depth.pending", "a~enqueued", "b~enqueued"];
    let mut truth: BTreeMap<(String, String), (u64, u64, i64)> = BTreeMap::new();
    let mut made = Vec::new();
    for _ in 0..40 {
        let (name, shard) = (names[below(3) as usize], below(3) as u32);
        let (epoch, position) = (1 + below(2), below(20));
        // A shard has one total at each position.
        let value = (epoch * 1_000 + position * 37 % 11) as i64 - 1_003;
        made.push(total(name, shard, epoch, position, value));
    }
    for _ in 0..60 {
        let reporter = [&first, &second][below(2) as usize];
        let some: Vec<QueueTotal> = (0..1 + below(5)).map(|_| made[below(40) as usize].clone()).collect();
        for one in &some {
            let key = (one.counter.as_str().to_owned(), one.source.as_str().to_owned());
            let told = (one.epoch, one.serial, one.total);
            let newest = truth.entry(key).or_insert(told);
            *newest = told.max(*newest);
        }
        let outcomes = reporter.drive(reporter.counting.report_queue_totals(some)).await.expect("a report");
        assert!(outcomes.iter().all(Result::is_ok), "a total twice in one report is no error: {outcomes:?}");
        if below(8) == 0 {
            reporter.pass(Duration::from_millis(50)).await;
        }
    }
    for reader in [&first, &second] {
        assert_eq!(known(reader, &reader.counting, "").await, truth);
        for name in names {
            let sum: i64 = truth.iter().filter(|((of, _), _)| of == name).map(|(_, (_, _, total))| total).sum();
            assert_eq!(count(reader, name).await, sum, "{name}");
        }
    }
}

#[test]
fn totals_in_any_order_repeated_by_two_reporters_equal_the_newest_of_each_shard() {
    replay_all(two_reporters, (), 30);
}

#[tokio::test]
async fn several_servers_that_start_at_once_make_one_namespace() {
    let stores = memory::stores();
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(0)));
    let mut catalogs = Vec::new();
    for _ in 0..4 {
        // All have read the catalog before the first of them changes it.
        let store = Arc::clone(&stores.catalog);
        catalogs.push(NamespaceCatalog::open(store, Arc::clone(&clock) as _).await.expect("it opens"));
    }
    let made = futures_util::future::join_all(catalogs.iter().map(NamespaceCatalog::ensure_queue_namespace)).await;
    let made: Vec<_> = made.into_iter().map(|made| made.expect("made or found")).collect();
    assert!(made.iter().all(|one| one.id == made[0].id && one.version == 1));
    assert!(is_reserved(&made[0].spec.name));
    let kept = stores.catalog.load().await.expect("it loads");
    assert_eq!((kept.namespaces.len(), kept.datasets.len()), (1, 1));
}

#[tokio::test]
async fn defaults_of_the_server_change_none_of_its_settings_and_it_names_no_cache_cluster() {
    let stores = memory::stores();
    let clock = Arc::new(ManualClock::at(Timestamp::from_secs(0)));
    let mut defaults = NamespaceDefaults {
        cache_cluster: NamespaceName::new("memcached_1").expect("a valid name"),
        ..NamespaceDefaults::default()
    };
    defaults.rollup.coalesce_ms = 10_000;
    defaults.dataset_settings.accept_limit = Duration::from_secs(1);
    let catalog = NamespaceCatalog::open_with(stores.catalog, clock, defaults).await.expect("it opens");
    let spec = catalog.ensure_queue_namespace().await.expect("made").spec.clone();
    assert_eq!(spec.storage.cache_cluster, spec.storage.event_cluster);
    assert_eq!((spec.storage.dataset.as_str(), spec.ttl), (queue_namespace().as_str(), None));
    assert_eq!((spec.dataset.accept_limit, spec.dataset.seconds_per_slice), (Duration::from_millis(500), 3_600));
    assert_eq!(
        (spec.dataset.close_after, spec.dataset.delete_after),
        (Duration::from_secs(7_200), Duration::from_secs(86_400))
    );
    let kept = [(10, 1), (60, 7), (3_600, 92)]
        .map(|(step_seconds, days)| SeriesSettings { step_seconds, keep: Duration::from_secs(days * 86_400) });
    assert_eq!((spec.rollup.coalesce_ms, spec.series), (250, kept.to_vec()));
}
