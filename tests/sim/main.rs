//! A simulation of the whole protocol: the real domain, engine and adapter code over simulated replicas, networks, clocks
//! and clients, in virtual time, every run out of one seed.
//!
//! `world` is time and processes, `cluster` the replicas with the statements of `cql/` on them, `store` the seam of the
//! adapter, `caches` memcached servers, `server` and `client` those who use it, `weather` and `late_clears` what goes wrong, `ledger` the laws, `run` one run.
//!
//! A failing seed is printed; `TALLYSTONE_SEED=N cargo test --workspace --test simulation one_seed` runs it alone and
//! prints what was broken. `tests/run --seeds N` runs so many.

mod caches;
mod chance;
mod client;
mod cluster;
mod cql;
mod late_clears;
mod ledger;
mod process;
mod run;
mod server;
mod settings;
mod signals;
mod stops;
mod store;
mod watch;
mod weather;
mod world;

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use parking_lot::Mutex;

use run::{Outcome, run};
use tallystone_domain::fleet::{ProtocolRule, ProtocolRules};

/// A run makes and drops many small things.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const KEYSPACE: &str = "simulation";
/// The seeds that are run when nobody says how many. `CI=true tests/run` runs 3,000.
const SEEDS: u64 = 100;

/// Runs seeds on all cores, from the first on, until one is broken or all are done; answers the least broken one.
fn search(first: u64, count: u64, rules: ProtocolRules) -> Option<(u64, Outcome)> {
    let next = AtomicU64::new(first);
    let found: Mutex<Option<(u64, Outcome)>> = Mutex::new(None);
    let threads = thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= first + count || found.lock().is_some() {
                        return;
                    }
                    let outcome = run(seed, rules);
                    if !outcome.broken.is_empty() {
                        let mut found = found.lock();
                        if found.as_ref().is_none_or(|(least, _)| seed < *least) {
                            *found = Some((seed, outcome));
                        }
                    }
                }
            });
        }
    });
    println!("{} seeds were run", next.into_inner().min(first + count) - first);
    found.into_inner()
}

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

#[test]
fn every_law_holds_over_all_seeds() {
    let count = number_of("TALLYSTONE_SEEDS").unwrap_or(SEEDS);
    let first = number_of("TALLYSTONE_SEED").unwrap_or(0);
    if let Some((seed, outcome)) = search(first, count, ProtocolRules::default()) {
        panic!(
            "seed {seed} breaks {} laws; TALLYSTONE_SEED={seed} cargo test --workspace --test simulation one_seed runs it alone:\n{}",
            outcome.broken.len(),
            outcome.broken.join("\n")
        );
    }
}

/// The seeds within which every missing rule has to show, from the first on that was seen to show it.
const SEEDS_WITHOUT_A_RULE: u64 = 10_000;
const SHOWN_BY: [(ProtocolRule, u64); 11] = [
    (ProtocolRule::AcknowledgeUnderLease, 869),
    (ProtocolRule::LapsedStaysLapsed, 869),
    (ProtocolRule::PendingAboveLimit, 6),
    (ProtocolRule::Void, 895),
    (ProtocolRule::SecondVoid, 20895),
    (ProtocolRule::RecheckMark, 1582),
    (ProtocolRule::SettleClears, 2490),
    (ProtocolRule::CheckpointBeforeWatermark, 3),
    (ProtocolRule::MaxRegisters, 200),
    (ProtocolRule::FillUnderLease, 1505),
    (ProtocolRule::NoOlderThanTold, 2481),
];

#[test]
fn without_any_one_rule_a_law_is_broken() {
    assert!(SHOWN_BY.map(|(rule, _)| rule) == ProtocolRule::ALL, "every rule is taken out once");
    let mut unnoticed = Vec::new();
    for (rule, first) in SHOWN_BY {
        match search(first, SEEDS_WITHOUT_A_RULE, ProtocolRules::without(rule)) {
            Some((seed, outcome)) => println!("without {rule:?}, seed {seed}: {}", outcome.broken[0]),
            None => unnoticed.push(rule),
        }
    }
    assert!(unnoticed.is_empty(), "nobody notices that these rules are missing: {unnoticed:?}");
}

/// How many seeds are run twice.
const SEEDS_RUN_TWICE: u64 = 20;

#[test]
fn a_run_follows_from_its_seed() {
    for seed in 0..SEEDS_RUN_TWICE {
        let (first, again) = (run(seed, ProtocolRules::default()), run(seed, ProtocolRules::default()));
        assert_eq!(first, again, "seed {seed}: {:?} and {:?}", first.took, again.took);
    }
}

#[test]
fn one_seed_says_what_it_does_and_does_it_again() {
    let seed = number_of("TALLYSTONE_SEED").unwrap_or(7);
    let (first, again) = (run(seed, ProtocolRules::default()), run(seed, ProtocolRules::default()));
    println!("seed {seed}: {:?} in {:?}", first.summary, first.took);
    assert_eq!(first, again, "the same seed gives the same run");
    assert!(first.broken.is_empty(), "seed {seed}:\n{}", first.broken.join("\n"));
}
