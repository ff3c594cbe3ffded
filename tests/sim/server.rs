//! Servers: the real engine over the real adapter, in processes that end and begin again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tallystone_adapters::codec::queues::register::ProtobufRegisters;
use tallystone_adapters::manual::SeededEntropy;
use tallystone_adapters::{memcached, memory};
use tallystone_cassandra::{Cassandra, SettingsSource};
use tallystone_domain::Timestamp;
use tallystone_domain::access::QuotaLimits;
use tallystone_domain::counter::NamespaceName;
use tallystone_domain::fleet::{ProtocolRules, Roles};
use tallystone_engine::counting::Counting;
use tallystone_engine::namespaces::NamespaceCatalog;
use tallystone_engine::{Engine, EngineParts, MemberProfile};
use tallystone_ports::{CacheCluster, Clock, CountCache, FastCounts, NamespaceStore, Stores};

use crate::caches::{Caches, SimNetwork};
use crate::chance::Chance;
use crate::cluster::Cluster;
use crate::cluster::net::Net;
use crate::late_clears::LateClears;
use crate::ledger::Ledger;
use crate::process::ProcessClock;
use crate::settings::SharedCatalog;
use crate::signals::SimSignals;
use crate::stops::{Pauses, Stops};
use crate::store::SimStore;
use crate::world::{ProcessId, World};

/// How often an operator looks after a machine.
const LOOK: Duration = Duration::from_millis(250);

/// What every server of a run is made of.
#[derive(Clone)]
pub struct Plan {
    pub cluster: Cluster,
    /// The servers of the count cache, where there is one.
    pub caches: Option<Caches>,
    pub net: Net,
    pub catalog: Arc<SharedCatalog>,
    pub rules: ProtocolRules,
    pub pauses: Pauses,
    /// Whether the trouble is over.
    pub is_calm: Arc<AtomicBool>,
    /// What the wall clock of each machine shows at the beginning of the world.
    pub clocks: Vec<Timestamp>,
    /// What the server of each machine does.
    pub roles: Vec<Roles>,
    pub seed: u64,
    /// How long after its end a time bucket is sealed.
    pub seal_delay: Option<Duration>,
    pub late_clears: LateClears,
}

/// A server that takes calls.
#[derive(Clone)]
pub struct Running {
    pub engine: Arc<Engine>,
    pub counting: Counting,
    cassandra: Arc<Cassandra>,
}

/// What came of a start.
#[derive(Clone)]
enum Standing {
    Starting,
    Running(Running),
    Failed,
}

/// The machines and the servers on them. Cheap to clone.
#[derive(Clone)]
pub struct Machines {
    world: World,
    plan: Arc<Plan>,
    ledger: Ledger,
    servers: Arc<Vec<Mutex<Option<Server>>>>,
    chance: Arc<Mutex<Chance>>,
}

struct Server {
    process: ProcessId,
    standing: Arc<Mutex<Standing>>,
}

impl Machines {
    /// Machines on which operators start servers and start them again when they end.
    pub fn new(world: &World, plan: Plan, ledger: &Ledger, chance: Chance) -> Self {
        let servers = plan.clocks.iter().map(|_| Mutex::new(None)).collect();
        let this = Self {
            world: world.clone(),
            plan: Arc::new(plan),
            ledger: ledger.clone(),
            servers: Arc::new(servers),
            chance: Arc::new(Mutex::new(chance)),
        };
        for machine in 0..this.servers.len() {
            let this = this.clone();
            world.spawn(async move { this.operate(machine).await });
        }
        this
    }

    /// The world that they are in.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The servers of the count cache, where there is one.
    pub fn caches(&self) -> Option<&Caches> {
        self.plan.caches.as_ref()
    }

    /// Whether clears of this run may reach one replica only.
    pub fn have_late_clears(&self) -> bool {
        self.plan.late_clears.happen()
    }

    /// How many machines there are.
    pub fn count(&self) -> usize {
        self.servers.len()
    }

    /// The server of a machine, if it takes calls.
    pub fn running(&self, machine: usize) -> Option<(ProcessId, Running)> {
        let server = self.servers[machine].lock();
        let server = server.as_ref()?;
        match &*server.standing.lock() {
            Standing::Running(running) => Some((server.process, running.clone())),
            Standing::Starting | Standing::Failed => None,
        }
    }

    /// The process of a machine, whether or not it takes calls.
    pub fn process(&self, machine: usize) -> Option<ProcessId> {
        self.servers[machine].lock().as_ref().map(|server| server.process)
    }

    /// The machines whose servers take writes.
    pub fn writers(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.count()).filter(|machine| self.plan.roles[*machine].writer)
    }

    /// Kills the server of a machine.
    pub fn kill(&self, machine: usize) {
        let server = self.servers[machine].lock().take();
        if let Some(server) = server {
            self.note_end(&server);
            self.world.kill(server.process);
        }
    }

    /// Looks at what a server counted of its own breaches.
    fn note_end(&self, server: &Server) {
        if let Standing::Running(running) = &*server.standing.lock() {
            let below = running.engine.stats().acknowledged_below_limit.get();
            if below > 0 {
                self.ledger.broke(format!("{:?} acknowledged {below} events at or below a told limit", server.process));
            }
        }
    }

    /// From now on no server stops between its steps.
    pub fn calm(&self) {
        self.plan.is_calm.store(true, Ordering::Relaxed);
        self.plan.caches.iter().for_each(Caches::calm);
    }

    /// Ends all servers.
    pub fn kill_all(&self) {
        (0..self.count()).for_each(|machine| self.kill(machine));
    }

    /// Lets the server of a machine end in order: what is under way is finished, and whoever comes next need not wait.
    pub fn stop(&self, machine: usize) {
        let Some((process, running)) = self.running(machine) else { return };
        let standing = self.servers[machine].lock().as_ref().map(|server| Arc::clone(&server.standing));
        self.world.run_in(process, async move {
            running.engine.drain(Duration::from_secs(10)).await;
            running.cassandra.close().await;
            if let Some(standing) = standing {
                *standing.lock() = Standing::Failed;
            }
        });
    }

    /// Starts the server of a machine, and again a while after it ended.
    async fn operate(&self, machine: usize) {
        loop {
            self.start(machine);
            loop {
                self.world.sleep(LOOK).await;
                let standing = self.servers[machine].lock().as_ref().map(|server| server.standing.lock().clone());
                match standing {
                    Some(Standing::Starting) => {}
                    Some(Standing::Running(_)) => {}
                    Some(Standing::Failed) => self.kill(machine),
                    None => break,
                }
            }
            let wait = self.chance.lock().between(Duration::from_millis(300), Duration::from_secs(6));
            self.world.sleep(wait).await;
        }
    }

    fn start(&self, machine: usize) {
        let process = self.world.start();
        let standing = Arc::new(Mutex::new(Standing::Starting));
        *self.servers[machine].lock() = Some(Server { process, standing: Arc::clone(&standing) });
        let this = self.clone();
        self.world.run_in(process, async move {
            let opened = this.open(machine, process).await;
            *standing.lock() = match opened {
                Ok(running) => Standing::Running(running),
                // The operator starts it again.
                Err(_) => Standing::Failed,
            };
        });
    }
}

impl Machines {
    /// The stops of a process on one of its ways out.
    fn stops(&self, process: ProcessId, own: u64, part: u64) -> Stops {
        Stops {
            world: self.world.clone(),
            process,
            chance: Mutex::new(Chance::new(own, part)),
            pauses: self.plan.pauses,
            is_calm: Arc::clone(&self.plan.is_calm),
        }
    }

    /// Opens a server in its process.
    async fn open(&self, machine: usize, process: ProcessId) -> Result<Running, String> {
        let (world, plan) = (&self.world, &self.plan);
        let own = plan.seed.wrapping_add(0x5eed * (process.0 as u64 + 1));
        let clock: Arc<dyn Clock> = Arc::new(ProcessClock::new(world, process, plan.clocks[machine]));
        let entropy = SeededEntropy::new(own);
        let store = SimStore {
            cluster: plan.cluster.clone(),
            machine,
            stops: self.stops(process, own, 1),
            late_clears: plan.late_clears.clone(),
        };
        let catalog = Arc::clone(&plan.catalog) as Arc<dyn NamespaceStore>;
        let opening = Cassandra::open_on(
            Arc::new(store),
            crate::KEYSPACE,
            Some(Arc::clone(&plan.catalog) as Arc<dyn SettingsSource>),
            Arc::clone(&clock),
            plan.rules,
        );
        let cassandra = Arc::new(opening.await.map_err(|error| error.to_string())?);
        let mut stores = cassandra.stores(Arc::new(memory::FastTable::new(Arc::clone(&clock), 1 << 20)));
        stores.catalog = Arc::clone(&catalog);
        if let Some(caches) = &plan.caches {
            let network = SimNetwork { caches: caches.clone(), machine, stops: Arc::new(self.stops(process, own, 3)) };
            join(&mut stores, network, Arc::clone(&clock), plan.rules).await?;
        }
        let namespaces = NamespaceCatalog::open(catalog, Arc::clone(&clock)).await;
        let namespaces = namespaces.map_err(|error| error.to_string())?;
        let signals = SimSignals {
            machine,
            machines: self.clone(),
            net: plan.net.clone(),
            chance: Mutex::new(Chance::new(own, 2)),
            is_calm: Arc::clone(&plan.is_calm),
        };
        let parts = EngineParts {
            stores,
            queue_stores: Some(memory::queue_stores(Arc::clone(&clock))),
            history: None,
            history_registers: Arc::new(ProtobufRegisters),
            clock,
            entropy: Arc::new(entropy),
            export: None,
            namespaces,
            profile: MemberProfile {
                roles: plan.roles[machine],
                address: machine.to_string(),
                name: machine.to_string(),
                // Signals of the simulation come from members by construction.
                secret: None,
            },
            signals: Some(Arc::new(signals)),
            seal_delay: plan.seal_delay,
            rules: plan.rules,
            progress: Arc::new(|| {}),
            bridge: None,
            quotas: QuotaLimits::UNLIMITED,
        };
        let engine = Arc::new(Engine::start(parts).await.map_err(|error| error.to_string())?);
        let counting = engine.counting();
        Ok(Running { engine, counting, cassandra })
    }
}

/// The name of the cache cluster.
pub fn cache_cluster() -> NamespaceName {
    NamespaceName::new("near").expect("a valid name")
}

/// Opens the cache cluster as a server does: if none of its servers answers, there is no start.
async fn join(
    stores: &mut Stores,
    network: SimNetwork,
    clock: Arc<dyn Clock>,
    rules: ProtocolRules,
) -> Result<(), String> {
    let options = network.caches.options();
    let opened = memcached::Cluster::open_on(Arc::new(network), options, clock, rules).await;
    let (cluster, _) = opened.map_err(|absent| format!("{absent:?}"))?;
    let cluster = Arc::new(cluster);
    let (cache, fast) = (Arc::clone(&cluster) as Arc<dyn CountCache>, cluster as Arc<dyn FastCounts>);
    stores.caches = Arc::new([(cache_cluster(), CacheCluster { cache, fast })].into());
    Ok(())
}
