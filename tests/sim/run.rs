//! One run: a seed becomes a cluster, servers, clients and weather; then all trouble ends, everything is asked again, and
//! the ledger says whether a law was broken.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tallystone_adapters::manual::ManualClock;
use tallystone_cassandra::schema::MIGRATIONS;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::NamespaceName;
use tallystone_domain::fleet::{ProtocolRules, Roles};
use tallystone_domain::namespace::NamespaceSpec;
use tallystone_domain::rollup::{CountReading, Freshness};
use tallystone_engine::catalog::Author;
use tallystone_engine::namespaces::NamespaceCatalog;
use tallystone_ports::{Clock, NamespaceStore};

use crate::caches::Caches;
use crate::chance::Chance;
use crate::client::{COUNTERS, Client, Manners};
use crate::cluster::Cluster;
use crate::cluster::net::Net;
use crate::cql::parse::{self, Definition};
use crate::late_clears::LateClears;
use crate::ledger::{Ledger, Number};
use crate::server::{Machines, Plan, cache_cluster};
use crate::settings::{self, SharedCatalog};
use crate::watch;
use crate::weather::{self, Climate};
use crate::world::{Turner, World};

/// The beginning of a slice, whatever its width.
const SLICE: Timestamp = Timestamp::from_secs(1_795_132_800);
const SECOND: Duration = Duration::from_secs(1);
const CLIENTS: usize = 3;
/// How long a run may take to come to rest after the last trouble.
const REST: Duration = Duration::from_secs(240);

/// What came of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The laws that were broken, the first first.
    pub broken: Vec<String>,
    /// Changes acknowledged, found, refused and open, and readings.
    pub summary: [usize; 5],
    /// How long it took, in its own time.
    pub took: Duration,
}

/// Runs a seed.
pub fn run(seed: u64, rules: ProtocolRules) -> Outcome {
    let world = World::new();
    let mut turner = Turner::new(&world);
    let ledger = Ledger::default();
    let ended = Arc::new(Mutex::new(None));
    let (told, book, at) = (Arc::clone(&ended), ledger.clone(), world.clone());
    world.spawn(async move {
        let stage = Stage::set(seed, rules, &at, &book);
        stage.play().await;
        *told.lock() = Some(at.now());
    });
    // In pieces, so that a run that has come to rest is not turned any further.
    let mut until = Duration::ZERO;
    while ended.lock().is_none() && until < REST * 2 {
        until += SECOND;
        turner.turn(until);
    }
    let took = *ended.lock();
    if took.is_none() {
        ledger.broke("the run does not come to its end".to_owned());
    }
    ledger.audit();
    Outcome { broken: ledger.broken(), summary: ledger.summary(), took: took.unwrap_or(until) }
}

/// Everything of one run.
struct Stage {
    world: World,
    ledger: Ledger,
    machines: Machines,
    clients: Vec<Client>,
    cluster: Cluster,
    net: Net,
    climate: Climate,
    chance: Chance,
    trouble_until: Duration,
    /// What wall clocks show at the beginning, about.
    begins: Timestamp,
    seed: u64,
    spec: NamespaceSpec,
    /// The mean time between two changes of the settings; none where there are none.
    settings_change: Option<Duration>,
}

impl Stage {
    fn set(seed: u64, rules: ProtocolRules, world: &World, ledger: &Ledger) -> Self {
        let mut chance = Chance::new(seed, 0);
        let begins = beginning(&mut chance);
        let climate = Climate::of(&mut chance);
        let net = Net::new(world, Chance::new(seed, 2), climate.quality);
        let skew = climate.node_skew;
        let mut skews =
            || begins.micros() + skew - i64::try_from(chance.below(2 * skew.unsigned_abs() + 1)).expect("small");
        let skews = [skews(), skews(), skews()];
        let cluster = Cluster::new(world, &net, Chance::new(seed, 3), skews);
        migrate(&cluster);
        let spec = spec_of(&mut chance, seed);
        let catalog = catalog_with(&spec);
        let oldest_token = spec.dataset.accept_limit * 2;
        let off = |chance: &mut Chance, most: i64| {
            most - i64::try_from(chance.below(2 * most.unsigned_abs() + 1)).expect("small")
        };
        let roles = roles_of(&mut chance);
        let clocks = roles.iter().map(|_| Timestamp::from_micros(begins.micros() + off(&mut chance, 1_000_000)));
        let plan = Plan {
            cluster: cluster.clone(),
            caches: caches_of(&spec, world, &net, seed),
            net: net.clone(),
            catalog,
            rules,
            pauses: climate.steps,
            is_calm: Arc::default(),
            clocks: clocks.collect(),
            roles,
            // Also before all hints have come: what is sealed too early may still be found by its token.
            seal_delay: [None, Some(SECOND * 5), Some(SECOND * 60)][chance.index(3)],
            late_clears: LateClears::of(seed),
            seed,
        };
        let machines = Machines::new(world, plan, ledger, Chance::new(seed, 4));
        let pause = chance.between(SECOND / 4, SECOND * 2);
        let client = |number: usize, chance: &mut Chance| Client {
            number,
            world: world.clone(),
            net: net.clone(),
            machines: machines.clone(),
            ledger: ledger.clone(),
            namespace: spec.name.clone(),
            begins,
            manners: Manners { pause, skew: off(chance, 1_000_000), oldest_token },
            chance: Arc::new(Mutex::new(Chance::new(seed, 10 + number as u64))),
            told: Arc::default(),
        };
        let clients = (0..CLIENTS).map(|number| client(number, &mut chance)).collect();
        let trouble_until = chance.between(SECOND * 15, SECOND * 50);
        let settings_change = [None, Some(SECOND * 4), Some(SECOND * 20)][chance.index(3)];
        let (world, ledger) = (world.clone(), ledger.clone());
        let chance = Chance::new(seed, 5);
        Self {
            world,
            ledger,
            machines,
            clients,
            cluster,
            net,
            climate,
            chance,
            trouble_until,
            begins,
            seed,
            spec,
            settings_change,
        }
    }

    /// Trouble, then rest, then the questions.
    async fn play(self) {
        let (until, world) = (self.trouble_until, &self.world);
        for client in &self.clients {
            world.spawn(client.clone().work(until));
        }
        let blowing = weather::blow(
            world.clone(),
            self.net.clone(),
            self.machines.clone(),
            self.climate.clone(),
            self.chance.clone(),
            until,
        );
        world.spawn(blowing);
        if let Some(caches) = self.machines.caches() {
            world.spawn(caches.clone().suffer(self.machines.count(), Chance::new(self.seed, 9), until));
        }
        if let Some(mean) = self.settings_change {
            let chance = Chance::new(self.seed, 6);
            let changing =
                settings::change(world.clone(), self.machines.clone(), self.spec.clone(), chance, (mean, until));
            world.spawn(changing);
        }
        world.spawn(watch::watch(world.clone(), self.cluster.clone(), self.ledger.clone(), until + REST));
        world.until(until).await;
        self.machines.calm();
        self.net.calm();
        let last = self.begins + world.now() + SECOND * 8;
        self.settle(until + REST).await;
        for counter in 0..COUNTERS {
            self.read_in_the_end(counter, last, until + REST).await;
        }
        // Whatever was told is true for ever: everything is asked once more, and changes nothing.
        self.settle_all(until + REST).await;
        for counter in 0..COUNTERS {
            self.read_in_the_end(counter, last, until + REST).await;
        }
        self.machines.kill_all();
    }

    /// Asks after every change that nobody heard the end of.
    async fn settle(&self, deadline: Duration) {
        // What is still under way at clients ends by itself.
        self.world.sleep(SECOND * 12).await;
        let open = |ledger: &Ledger| {
            let changes = ledger.changes();
            (0..changes.len()).filter(|number| !changes[*number].is_settled()).collect::<Vec<Number>>()
        };
        while self.world.now() < deadline {
            let left = open(&self.ledger);
            if left.is_empty() {
                return;
            }
            for number in left {
                self.clients[0].check(number).await;
            }
            self.world.sleep(SECOND).await;
        }
        self.ledger.broke(format!("changes cannot be settled: {:?}", open(&self.ledger)));
    }

    async fn settle_all(&self, deadline: Duration) {
        for number in 0..self.ledger.changes().len() {
            while !self.clients[0].check(number).await {
                if self.world.now() >= deadline {
                    self.ledger.broke(format!("change {number} cannot be asked after any more"));
                    return;
                }
                self.world.sleep(SECOND / 2).await;
            }
        }
    }

    /// Reads a counter until it has come to what was told of its changes. Rows that were found late are counted a while
    /// after they were found.
    async fn read_in_the_end(&self, counter: usize, last: Timestamp, deadline: Duration) {
        let expected = self.ledger.expected(counter);
        let mut newest = None;
        while self.world.now() < deadline {
            let reading = self.clients[0].read_one(counter, Freshness::RolledUp).await;
            newest = reading.filter(|reading| Client::is_final(reading, last)).or(newest);
            if newest.is_some_and(|reading| reading.count == expected) {
                return;
            }
            self.world.sleep(SECOND).await;
        }
        match newest {
            Some(CountReading { count, .. }) => {
                self.ledger.broke(format!("counter {counter} ends with {count:b}, not {expected:b}: {newest:?}"));
            }
            None => self.ledger.broke(format!("counter {counter} is not rolled up in the end")),
        }
    }
}

/// Makes the tables, as `tallystone migrate apply` does.
fn migrate(cluster: &Cluster) {
    for text in MIGRATIONS.iter().flat_map(|migration| migration.statements(crate::KEYSPACE)) {
        cluster.change_schema(|schema| match parse::definition(&text) {
            Ok(Definition::Create(table)) => {
                schema.insert(Arc::clone(&table.name), Arc::new(table));
            }
            Ok(Definition::AddColumn(name, column, column_type, is_static)) => {
                let table = schema.get_mut(name.as_str()).expect("a column is added to a table that is there");
                *table = Arc::new(crate::store::with_column(table, column, column_type, is_static));
            }
            Ok(Definition::Drop(_)) => panic!("a migration drops nothing"),
            Err(why) => panic!("{text}: {why}"),
        });
    }
}

/// Half of the runs begin in the middle of a slice, the others where it begins: the first events of a dataset then lie on
/// both sides of that.
fn beginning(chance: &mut Chance) -> Timestamp {
    match chance.index(2) {
        0 => SLICE + SECOND * 30,
        _ => SLICE + chance.between(Duration::ZERO, SECOND * 3), // of the two
    }
}

/// Settings of the one namespace, small enough for a minute to see all of them.
fn spec_of(chance: &mut Chance, seed: u64) -> NamespaceSpec {
    let mut spec = NamespaceSpec::with_defaults(NamespaceName::new("shop").expect("a valid name"));
    spec.dataset.accept_limit = [SECOND / 2, SECOND, SECOND * 5][chance.index(3)];
    spec.dataset.seconds_per_slice = [60, 300][chance.index(2)];
    settings::vary(&mut spec, chance);
    // In some runs only, and out of a stream of its own: what the others show stays as it is.
    if seed % 5 == 2 {
        settings::heat(&mut spec, &mut Chance::new(seed, 7));
    }
    if seed % 2 == 1 {
        spec.storage.cache_cluster = cache_cluster();
    }
    spec
}

/// The servers of the count cache that the settings name, if they name one.
fn caches_of(spec: &NamespaceSpec, world: &World, net: &Net, seed: u64) -> Option<Caches> {
    let named = spec.storage.cache_cluster == cache_cluster();
    named.then(|| Caches::of(world, net, &mut Chance::new(seed, 8)))
}

/// What each machine does: all of it, or two of them write and two roll.
fn roles_of(chance: &mut Chance) -> Vec<Roles> {
    let (writer, roller) = (Roles { writer: true, roller: false }, Roles { writer: false, roller: true });
    let both = Roles { writer: true, roller: true };
    match chance.index(3) {
        0 => vec![both, both],
        1 => vec![both, both, both],
        _ => vec![writer, writer, roller, roller], // of the three
    }
}

/// A catalog that holds the namespace, the same for all servers.
fn catalog_with(spec: &NamespaceSpec) -> Arc<SharedCatalog> {
    let catalog: Arc<SharedCatalog> = Arc::default();
    let shared = Arc::clone(&catalog) as Arc<dyn NamespaceStore>;
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::at(SLICE));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime without drivers");
    runtime.block_on(async {
        let namespaces = NamespaceCatalog::open(shared, clock).await.expect("memory opens");
        namespaces.create(spec.clone(), Author::default()).await.expect("a valid namespace");
    });
    catalog
}
