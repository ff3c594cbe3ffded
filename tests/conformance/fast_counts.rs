//! The laws of `FastCounts`.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use futures_util::poll;
use tallystone_ports::{EffectOutcome, Expiry, FastAdd, FastAddOutcome, Overflow, StoreError, Stores};

use crate::backends::{on_every_durable_backend, on_every_fast_backend};
use crate::given::{NAMESPACE, OTHER_NAMESPACE, counter, counter_name, foreign};
use crate::servers::Memcached;

const SECOND: Duration = Duration::from_secs(1);

async fn add(stores: &Stores, name: &str, delta: i64, ttl: Option<Duration>) -> i64 {
    stores.fast.add(&counter(name), FastAdd::of(delta, ttl)).await.expect("an add").value()
}

async fn get(stores: &Stores, name: &str) -> Option<i64> {
    stores.fast.get(&counter(name)).await.expect("a read")
}

#[tokio::test]
async fn fast_counts_law_1_an_add_answers_the_value_after_it_from_zero_on() {
    on_every_fast_backend(async |bench| {
        let stores = &bench.stores;
        assert_eq!(add(stores, "views", 5, None).await, 5);
        assert_eq!(add(stores, "views", -3, None).await, 2);
        assert_eq!(add(stores, "views", -3, None).await, -1);
        assert_eq!(stores.fast.add(&foreign("views"), FastAdd::of(9, None)).await.expect("an add").value(), 9);
        assert_eq!(get(stores, "views").await, Some(-1));
    })
    .await;
}

#[tokio::test]
async fn fast_counts_law_4_values_stay_at_the_ends_of_64_bits_or_wrap_as_the_store_says() {
    on_every_fast_backend(async |bench| {
        let stores = &bench.stores;
        for (end, beyond, other_end) in [(i64::MAX, 1, i64::MIN), (i64::MIN, -1, i64::MAX)] {
            let name = format!("end{end}").replace('-', "_");
            assert_eq!(add(stores, &name, end, None).await, end);
            let after = match stores.fast.capabilities().overflow {
                Overflow::Stays => end,
                Overflow::Wraps => other_end,
            };
            assert_eq!(add(stores, &name, beyond, None).await, after);
            assert_eq!(get(stores, &name).await, Some(after));
        }
    })
    .await;
}

#[tokio::test]
async fn fast_counts_law_1_each_add_begins_the_ttl_anew() {
    on_every_fast_backend(async |bench| {
        let (stores, clock) = (&bench.stores, &bench.clock);
        if stores.fast.capabilities().expiry != Expiry::Exact {
            return; // a law of its own below
        }
        for _ in 0..5 {
            add(stores, "views", 1, Some(10 * SECOND)).await;
            clock.advance(9 * SECOND);
        }
        assert_eq!(get(stores, "views").await, Some(5));
        clock.advance(2 * SECOND);
        assert_eq!(get(stores, "views").await, None);
        assert_eq!(add(stores, "views", 1, Some(10 * SECOND)).await, 1, "an expired counter starts from 0");
        add(stores, "views", 1, None).await;
        clock.advance(1_000 * SECOND);
        assert_eq!(get(stores, "views").await, Some(2), "an add without a TTL ends it");
    })
    .await;
}

#[tokio::test]
async fn fast_counts_law_1_a_step_of_the_wall_clock_expires_nothing() {
    on_every_fast_backend(async |bench| {
        add(&bench.stores, "views", 1, Some(10 * SECOND)).await;
        bench.clock.set_wall(crate::given::at(86_400_000));
        assert_eq!(get(&bench.stores, "views").await, Some(1));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn fast_counts_law_1_of_racing_adds_each_answers_another_value() {
    on_every_fast_backend(async |bench| {
        let mut racing = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let stores = bench.stores.clone();
            racing.spawn(async move {
                let mut values = Vec::new();
                for _ in 0..500 {
                    values.push(add(&stores, "views", 1, None).await);
                }
                values
            });
        }
        let values: BTreeSet<i64> = racing.join_all().await.into_iter().flatten().collect();
        assert_eq!(values, (1..=4_000).collect());
    })
    .await;
}

/// What each of many adds at once was told is true, although one among them is refused.
#[tokio::test]
async fn fast_counts_law_6_a_refused_add_says_nothing_of_those_beside_it() {
    on_every_fast_backend(async |bench| {
        let stores = &bench.stores;
        let key = format!("conformance/{}/foreign", NAMESPACE.0);
        for server in bench.servers().iter().map(Memcached::address) {
            assert!(said(server, &format!("set {key} 0 0 3\r\nabc\r\n")).starts_with("STORED"));
        }
        let adds: Vec<(String, i64)> = (0..60).map(|place| (format!("c{}", place % 6), 1 << (place / 6))).collect();
        let refused = add_delta(stores, "foreign", 1);
        let (first, rest) = adds.split_at(20);
        let (before, refused, after) = tokio::join!(add_all(stores, first), refused, add_all(stores, rest));
        if !bench.servers().is_empty() {
            let error = refused.expect_err("it is no number");
            assert_ne!(error.outcome, EffectOutcome::Unknown, "whose answer is a refusal knows so: {error}");
        }
        for ((name, delta), told) in adds.iter().zip(before.into_iter().chain(after)) {
            let counts = get(stores, name).await.unwrap_or_default() & delta != 0;
            match told {
                // Of two replicas it is one that did it, and perhaps the other one that is read.
                Ok(_) => assert!(counts || bench.servers().len() > 1, "{name} {delta} was answered"),
                Err(error) if error.outcome == EffectOutcome::NotApplied => assert!(!counts, "{name} {delta}: {error}"),
                Err(_) => {} // it may count or not
            }
        }
    })
    .await;
}

async fn add_all(stores: &Stores, adds: &[(String, i64)]) -> Vec<Result<FastAddOutcome, StoreError>> {
    join_all(adds.iter().map(|(name, delta)| add_delta(stores, name, *delta))).await
}

async fn add_delta(stores: &Stores, name: &str, delta: i64) -> Result<FastAddOutcome, StoreError> {
    stores.fast.add(&counter(name), FastAdd::of(delta, None)).await
}

#[tokio::test]
async fn fast_counts_law_2_an_absent_or_expired_counter_has_no_value() {
    on_every_fast_backend(async |bench| {
        assert_eq!(get(&bench.stores, "views").await, None);
        add(&bench.stores, "views", 0, Some(10 * SECOND)).await;
        assert_eq!(get(&bench.stores, "views").await, Some(0));
        if bench.stores.fast.capabilities().expiry != Expiry::Exact {
            return; // a law of its own below
        }
        bench.clock.advance(9 * SECOND);
        assert_eq!(get(&bench.stores, "views").await, Some(0));
        bench.clock.advance(2 * SECOND);
        assert_eq!(get(&bench.stores, "views").await, None);
    })
    .await;
}

#[tokio::test]
async fn fast_counts_law_3_a_cleared_counter_is_absent() {
    on_every_fast_backend(async |bench| {
        let stores = &bench.stores;
        add(stores, "views", 5, None).await;
        add(stores, "other", 6, None).await;
        stores.fast.clear(&counter("views")).await.expect("a clear");
        stores.fast.clear(&counter("nobody")).await.expect("a clear of nothing");
        assert_eq!((get(stores, "views").await, get(stores, "other").await), (None, Some(6)));
        assert_eq!(add(stores, "views", 1, None).await, 1);
    })
    .await;
}

#[tokio::test]
async fn fast_counts_law_5_nothing_survives_a_restart() {
    on_every_durable_backend(async |bench, ending| {
        add(&bench.stores, "views", 5, None).await;
        let bench = bench.reopen(ending).await;
        assert_eq!(get(&bench.stores, "views").await, None);
    })
    .await;
}

#[tokio::test]
async fn fast_counts_names_are_listed_in_order_by_pages_or_not_at_all() {
    on_every_fast_backend(async |bench| {
        let stores = &bench.stores;
        for name in ["b", "a", "a.b", "ab", "B", "a~", "0"] {
            add(stores, name, 1, None).await;
        }
        if stores.fast.capabilities().lists_names {
            add(stores, "a-expired", 1, Some(SECOND)).await;
        }
        add(stores, "a-cleared", 1, None).await;
        stores.fast.add(&foreign("a-foreign"), FastAdd::of(1, None)).await.expect("an add");
        stores.fast.clear(&counter("a-cleared")).await.expect("a clear");
        bench.clock.advance(2 * SECOND);
        let all = stores.fast.names(NAMESPACE, "a", None, 100).await.expect("names");
        if !stores.fast.capabilities().lists_names {
            assert_eq!(all, []);
            return;
        }
        assert_eq!(all, ["a", "a.b", "ab", "a~"].map(counter_name));
        let page = stores.fast.names(NAMESPACE, "a", Some(&counter_name("a")), 2).await.expect("names");
        assert_eq!(page, ["a.b", "ab"].map(counter_name));
        assert_eq!(stores.fast.names(OTHER_NAMESPACE, "", None, 9).await.expect("names"), [counter_name("a-foreign")]);
    })
    .await;
}

/// What memcached says of an item: the seconds that are left to it, or -1 for no end.
fn seconds_left(server: SocketAddr, key: &str) -> i64 {
    let answer = said(server, &format!("mg {key} t\r\n"));
    let left = answer.strip_prefix("HD t").unwrap_or_else(|| panic!("no item: {answer}"));
    left.trim_end().parse().expect("seconds")
}

/// The second that a memcached believes it to be.
fn clock_of(server: SocketAddr) -> u64 {
    let mut connection = TcpStream::connect(server).expect("memcached takes connections");
    connection.write_all(b"stats\r\n").expect("it reads");
    let mut lines = BufReader::new(connection).lines().map(|line| line.expect("it answers"));
    let time = lines.find_map(|line| Some(line.strip_prefix("STAT time ")?.to_owned())).expect("it knows the time");
    time.trim_end().parse().expect("seconds")
}

/// Asks memcached for one line.
fn said(server: SocketAddr, line: &str) -> String {
    let mut connection = TcpStream::connect(server).expect("memcached takes connections");
    connection.write_all(line.as_bytes()).expect("it reads");
    let mut answer = String::new();
    BufReader::new(connection).read_line(&mut answer).expect("it answers");
    answer
}

#[tokio::test]
async fn fast_counts_law_1_in_whole_seconds_each_add_begins_the_ttl_anew_and_it_lasts_at_least_as_long() {
    on_every_fast_backend(async |bench| {
        let stores = &bench.stores;
        if stores.fast.capabilities().expiry != Expiry::WholeSeconds {
            return;
        }
        let key = format!("conformance/{}/views", NAMESPACE.0);
        // Only on the servers of this counter, one of each replica, is there an item.
        let left = || -> Vec<i64> {
            let servers = bench.servers().iter().map(Memcached::address);
            let holding = servers.filter(|server| said(*server, &format!("mg {key}\r\n")).starts_with("HD"));
            holding.map(|server| seconds_left(server, &key)).collect()
        };
        // A long TTL is a date to memcached, whose own clock ticks once a second and lags where a machine stands still.
        let about = |seconds: i64| seconds - 60..=seconds + 60;
        let day = 86_400;
        for (ttl, seconds) in [(1_000, 1_000), (100 * day, 100 * day), (500, 500)] {
            // The number grows a digit: then memcached moves it, and must not forget its end.
            add(stores, "views", 9, Some(ttl as u32 * SECOND)).await;
            let left = left();
            assert!(!left.is_empty() && left.iter().all(|left| about(seconds).contains(left)), "{left:?} of {seconds}");
        }
        add(stores, "views", 90, None).await;
        assert!(left().iter().all(|left| *left == -1), "an add without a TTL ends it: {:?}", left());
        assert_eq!(get(stores, "views").await, Some(117));
        stores.fast.clear(&counter("views")).await.expect("a clear");
        assert!(left().is_empty(), "a clear reaches every replica");
        for ttl in [None, Some(100 * day as u32 * SECOND)] {
            add(stores, "views", 1, ttl).await;
            let expected = if ttl.is_some() { about(100 * day) } else { -1..=-1 };
            assert!(left().iter().all(|left| expected.contains(left)), "of a new counter: {:?}", left());
            stores.fast.clear(&counter("views")).await.expect("a clear");
        }
    })
    .await;
}

#[tokio::test]
async fn fast_counts_law_2_in_whole_seconds_an_expired_counter_has_no_value() {
    on_every_fast_backend(async |bench| {
        let stores = &bench.stores;
        if stores.fast.capabilities().expiry != Expiry::WholeSeconds {
            return;
        }
        // The servers' own clocks judge: on a busy machine they stand still for longer than a second.
        let clocks = || -> Vec<u64> { bench.servers().iter().map(|server| clock_of(server.address())).collect() };
        let began = Instant::now();
        let before = clocks();
        add(stores, "views", 5, Some(SECOND)).await;
        // Asked until it is gone: memcached's clock cannot be moved.
        while get(stores, "views").await.is_some() {
            assert!(began.elapsed() < 60 * SECOND, "a TTL of a second does not end");
        }
        let after = clocks();
        assert!(before.iter().zip(&after).any(|(from, to)| to - from >= 1), "it ended early: {before:?} to {after:?}");
        assert_eq!(add(stores, "views", 1, None).await, 1, "an expired counter starts from 0");
    })
    .await;
}

fn tokened(delta: i64, token: &str) -> FastAdd {
    FastAdd { token: Some(crate::given::key(1, token)), ..FastAdd::of(delta, None) }
}

#[tokio::test]
async fn fast_counts_law_7_a_token_that_was_seen_adds_nothing_where_tokens_are_remembered() {
    on_every_fast_backend(async |bench| {
        let stores = &bench.stores;
        let remembers = !stores.fast.capabilities().remembers_tokens.is_zero();
        let add = async |name: &str, delta, token: &str| {
            stores.fast.add(&counter(name), tokened(delta, token)).await.expect("an add")
        };
        assert_eq!(add("views", 5, "a").await, FastAddOutcome::Applied(5));
        let again = if remembers { FastAddOutcome::Seen(Some(5)) } else { FastAddOutcome::Applied(10) };
        assert_eq!(add("views", 5, "a").await, again);
        assert_eq!(add("views", 1, "b").await, FastAddOutcome::Applied(again.value() + 1));
        assert_eq!(add("other", 7, "a").await, FastAddOutcome::Applied(7), "a token is one of its counter");
        stores.fast.clear(&counter("views")).await.expect("a clear");
        let gone = if remembers { FastAddOutcome::Seen(None) } else { FastAddOutcome::Applied(5) };
        assert_eq!(add("views", 5, "a").await, gone, "a clear forgets no tokens");
    })
    .await;
}

/// A refusal beside it leaves no token without its add: a retry would be told that it counts.
#[tokio::test]
async fn fast_counts_law_7_a_token_counts_once_beside_an_add_that_is_refused() {
    on_every_fast_backend(async |bench| {
        let stores = &bench.stores;
        if stores.fast.capabilities().remembers_tokens.is_zero() {
            return;
        }
        let key = format!("conformance/{}/foreign", NAMESPACE.0);
        for server in bench.servers().iter().map(Memcached::address) {
            assert!(said(server, &format!("set {key} 0 0 3\r\nabc\r\n")).starts_with("STORED"));
        }
        let (first, foreign, views) = (counter("first"), counter("foreign"), counter("views"));
        let refused = || join_all((0..20).map(|_| stores.fast.add(&foreign, FastAdd::of(1, None))));
        let tokens: Vec<(i64, String)> = (0..30).map(|place| (1 << place, place.to_string())).collect();
        let adds = || join_all(tokens.iter().map(|(delta, token)| stores.fast.add(&views, tokened(*delta, token))));
        for _ in 0..2 {
            // What comes while the first is under way could share the next round trip.
            let (_, _, added, _) =
                tokio::join!(stores.fast.add(&first, FastAdd::of(1, None)), refused(), adds(), refused());
            for answer in added {
                answer.expect("it is in company with nobody");
            }
        }
        assert_eq!(get(stores, "views").await, Some((1 << 30) - 1), "each token once");
    })
    .await;
}

/// The token and the add are two steps, and nobody may go away between them with half of it done.
#[tokio::test]
async fn fast_counts_law_7_a_token_counts_once_whenever_its_caller_goes_away() {
    on_every_fast_backend(async |bench| {
        let stores = &bench.stores;
        if stores.fast.capabilities().remembers_tokens.is_zero() {
            return;
        }
        let views = counter("views");
        for place in 0..60_u32 {
            let add = || stores.fast.add(&views, tokened(1 << place, &place.to_string()));
            {
                let mut left = pin!(add());
                for _ in 0..place * place {
                    if poll!(left.as_mut()).is_ready() {
                        break;
                    }
                    tokio::task::yield_now().await;
                }
            }
            add().await.expect("an add");
        }
        // What a caller left behind may still be on its way.
        let began = Instant::now();
        while get(stores, "views").await != Some((1 << 60) - 1) {
            assert!(began.elapsed() < 60 * SECOND, "{:?} are not all tokens, each once", get(stores, "views").await);
            tokio::task::yield_now().await;
        }
    })
    .await;
}
