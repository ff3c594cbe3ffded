//! Simulated memcached servers below the real adapter: slow, silent, emptied, restarted, cut off and late.
//!
//! A connection belongs to one start of a server: what was sent to an earlier one is never done by a later one, and whoever
//! sent it hears that the connection broke. What arrives while a server is stopped is done when it goes on, also if nobody
//! waits for it any more.

mod items;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use memcache::exp::{Error, Op};
use parking_lot::Mutex;
use tallystone_adapters::memcached::Options;
use tallystone_adapters::memcached::wire::{BatchResponse, CommandResponse, Network, ServerConnection};
use tokio::sync::oneshot;

use crate::chance::Chance;
use crate::cluster::net::{Net, Site};
use crate::stops::Stops;
use crate::world::World;
use items::Items;

const SECOND: Duration = Duration::from_secs(1);
const MILLI: Duration = Duration::from_millis(1);
/// How many servers each replica has.
const SHAPES: [&[usize]; 3] = [&[1], &[1, 1], &[2, 2]];

/// The servers of a run. Cheap to clone.
#[derive(Clone)]
pub struct Caches {
    world: World,
    net: Net,
    servers: Arc<Vec<Mutex<Server>>>,
    options: Options,
    /// The mean time between two troubles of theirs; none where there are none.
    trouble: Option<Duration>,
}

struct Server {
    items: Items,
    /// Which start of it this is.
    start: u64,
    down_until: Duration,
    stopped_until: Duration,
    /// How long before the beginning of the world a second of its clock began.
    phase: Duration,
}

impl Caches {
    /// Servers that have just been started.
    pub fn of(world: &World, net: &Net, chance: &mut Chance) -> Self {
        let shape = SHAPES[chance.index(SHAPES.len())];
        let mut next = 0..;
        let replicas =
            shape.iter().map(|count| next.by_ref().take(*count).map(|at| at.to_string()).collect()).collect();
        let timeout = [MILLI * 50, MILLI * 250, SECOND][chance.index(3)];
        let trouble = [None, Some(SECOND * 2), Some(SECOND * 6)][chance.index(3)];
        let server = |_| Server {
            items: Items::default(),
            start: 0,
            down_until: Duration::ZERO,
            stopped_until: Duration::ZERO,
            phase: chance.between(Duration::ZERO, SECOND),
        };
        let servers = (0..shape.iter().sum::<usize>()).map(server).map(Mutex::new).collect();
        let options = Options { replicas, key_prefix: "simulation".to_owned(), timeout, dedupe_seconds: 0 };
        Self { world: world.clone(), net: net.clone(), servers: Arc::new(servers), options, trouble }
    }

    /// How servers of ours open them.
    pub fn options(&self) -> Options {
        self.options.clone()
    }

    /// Everything of theirs works again from now on.
    pub fn calm(&self) {
        for server in self.servers.iter() {
            let mut server = server.lock();
            (server.down_until, server.stopped_until) = (Duration::ZERO, Duration::ZERO);
        }
    }

    /// Lets things go wrong with them until a time, as seen from so many machines.
    pub async fn suffer(self, machines: usize, mut chance: Chance, until: Duration) {
        let Some(mean) = self.trouble else { return };
        loop {
            let pause = chance.between(Duration::ZERO, mean * 2);
            if self.world.now() + pause >= until {
                return;
            }
            self.world.sleep(pause).await;
            self.trouble_one(machines, &mut chance);
        }
    }

    fn trouble_one(&self, machines: usize, chance: &mut Chance) {
        let at = chance.index(self.servers.len());
        let now = self.world.now();
        let most = [SECOND, SECOND * 10, SECOND * 30][chance.index(3)];
        let long = chance.between(SECOND / 10, most);
        let kind = chance.index(6);
        let first = chance.index(machines);
        let mut server = self.servers[at].lock();
        match kind {
            // From one machine, or from all.
            0 => self.cut(first..first + 1, at, long, chance),
            1 => self.cut(0..machines, at, long, chance),
            2 => {
                let down = chance.between(MILLI * 50, SECOND * 6);
                *server = Server {
                    items: Items::default(),
                    start: server.start + 1,
                    down_until: now + down,
                    stopped_until: Duration::ZERO,
                    phase: chance.between(Duration::ZERO, SECOND),
                };
            }
            3 => server.stopped_until = server.stopped_until.max(now + long),
            4 => server.items.flush(),
            _ => server.items.evict(first), // of the six
        }
    }

    fn cut(&self, machines: std::ops::Range<usize>, server: usize, duration: Duration, chance: &mut Chance) {
        for machine in machines.map(Site::Machine) {
            let way = chance.index(3);
            if way != 1 {
                self.net.cut(machine, Site::Cache(server), duration);
            }
            if way != 2 {
                self.net.cut(Site::Cache(server), machine, duration);
            }
        }
    }

    /// The start that a connection made at this moment belongs to; none while the server is down.
    fn start(&self, at: usize) -> Option<u64> {
        let server = self.servers[at].lock();
        (server.down_until <= self.world.now()).then_some(server.start)
    }

    /// Does commands that have arrived; none if the start that they were sent to is over.
    async fn serve(&self, at: usize, start: u64, commands: &[Op]) -> Option<Vec<CommandResponse>> {
        loop {
            let stopped_until = self.servers[at].lock().stopped_until;
            if stopped_until <= self.world.now() {
                break;
            }
            self.world.until(stopped_until).await;
        }
        let mut server = self.servers[at].lock();
        if server.start != start {
            return None;
        }
        let second = (self.world.now() + server.phase).as_secs();
        Some(commands.iter().map(|command| server.items.take(command, second)).collect())
    }
}

/// The ways of one process to the servers.
pub struct SimNetwork {
    pub caches: Caches,
    pub machine: usize,
    pub stops: Arc<Stops>,
}

/// The way to one server.
struct SimWire {
    caches: Caches,
    machine: usize,
    stops: Arc<Stops>,
    server: usize,
    timeout: Duration,
}

#[async_trait]
impl Network for SimNetwork {
    async fn find(&self, address: &str, timeout: Duration) -> Result<Arc<dyn ServerConnection>, Error> {
        let server = address.parse().expect("the address of a server is its number");
        let (caches, stops) = (self.caches.clone(), Arc::clone(&self.stops));
        Ok(Arc::new(SimWire { caches, machine: self.machine, stops, server, timeout }))
    }
}

#[async_trait]
impl ServerConnection for SimWire {
    async fn send(&self, commands: Vec<Op>) -> BatchResponse {
        self.stops.step().await;
        let (world, server) = (&self.caches.world, self.server);
        let begun = world.now();
        let Some(start) = self.caches.start(server) else {
            let refused = |_: &Op| Err(io::Error::from(io::ErrorKind::ConnectionRefused).into());
            return Ok(commands.iter().map(refused).collect());
        };
        let (told, answer) = oneshot::channel();
        let (here, there) = (Site::Machine(self.machine), Site::Cache(server));
        let arrives = self.caches.net.send(here, there);
        let (caches, sent, stops, pause) =
            (self.caches.clone(), commands.clone(), Arc::clone(&self.stops), self.stops.draw());
        let timeout = self.timeout;
        world.spawn(async move {
            let world = caches.world.clone();
            // Of what is lost nobody hears before the time limit.
            let lost = world.until(begun + timeout * 2);
            let Some(at) = arrives else { return lost.await };
            world.until(at).await;
            let answers = caches.serve(server, start, &sent).await;
            let Some(back) = caches.net.send(there, here) else { return lost.await };
            world.until(back).await;
            // Whoever asked may have stopped waiting.
            let _ = told.send(answers);
            if let Some(pause) = pause {
                world.pause(stops.process, pause);
            }
            world.stir(stops.process);
        });
        let answers = tokio::select! {
            biased;
            answered = answer => answered.map_err(|_| io::ErrorKind::TimedOut),
            () = world.until_in(self.stops.process, begun + timeout) => Err(io::ErrorKind::TimedOut),
        };
        let failed = |kind| commands.iter().map(|command| Err(unheard(command, kind))).collect();
        Ok(match answers {
            Ok(Some(answers)) => answers.into_iter().map(Ok).collect(),
            Ok(None) => failed(io::ErrorKind::ConnectionReset),
            Err(kind) => failed(kind),
        })
    }
}

/// What is known of a command that was sent and that nobody heard the end of.
fn unheard(command: &Op, kind: io::ErrorKind) -> Error {
    let error = Error::Io(io::Error::from(kind));
    let key = match command {
        Op::Get(_) => return error,
        Op::Set(set) => &set.key,
        Op::Delete(delete) => &delete.key,
        Op::Arithmetic(sum) => &sum.key,
        _ => panic!("{command:?} is no command of the count cache"), // the client's list may grow
    };
    Error::Ambiguous { key: key.clone(), source: Box::new(error) }
}
