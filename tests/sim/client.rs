//! Clients: they add, clear, read and ask after tokens, and repeat what they got no final answer to, with the same token.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tallystone_domain::counter::{ClientToken, CounterName, IdempotencyToken, NamespaceName, Provenance};
use tallystone_domain::rollup::{CountReading, Exactness, Freshness, ReadOptions};
use tallystone_domain::{Reason, Timestamp};
use tallystone_engine::counting::{Add, Clear, Counting, CountingError, TokenVerdict, WriteOutcome};

use crate::chance::Chance;
use crate::cluster::gather::Gather;
use crate::cluster::net::{Net, Site};
use crate::ledger::{How, Kind, Ledger, Number, Seen};
use crate::server::Machines;
use crate::world::World;

/// The counters that clients use.
pub const COUNTERS: usize = 3;

/// When a client asks again after a clear that it got no answer to, and how often.
const FIRST_QUESTION_AFTER: Duration = Duration::from_secs(22);
const QUESTIONS: usize = 60;
/// How often it reads the counter beside each question, and how soon.
const READS_BESIDE: usize = 4;
const READ_WITHIN: Duration = Duration::from_millis(10);

/// How a client behaves.
#[derive(Clone, Copy, Debug)]
pub struct Manners {
    /// The mean time between two of its changes.
    pub pause: Duration,
    /// How far its clock is off, in microseconds.
    pub skew: i64,
    /// How old its tokens may be when it first uses them.
    pub oldest_token: Duration,
}

/// A client. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    pub number: usize,
    pub world: World,
    pub net: Net,
    pub machines: Machines,
    pub ledger: Ledger,
    pub namespace: NamespaceName,
    pub begins: Timestamp,
    pub manners: Manners,
    pub chance: Arc<Mutex<Chance>>,
    /// The newest as_of that it was told of each counter.
    pub told: Arc<Mutex<[Option<Timestamp>; COUNTERS]>>,
}

/// What is known of a change after one attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    Settled,
    Open,
}

impl Client {
    /// Works until a time; what is under way then goes on.
    pub async fn work(self, until: Duration) {
        while self.world.now() < until {
            let (pause, dice) = {
                let mut chance = self.chance.lock();
                (chance.between(Duration::ZERO, self.manners.pause * 2), chance.below(100))
            };
            self.world.sleep(pause).await;
            let this = self.clone();
            match dice {
                0..62 => self.world.spawn(async move { this.change(false).await }),
                62..66 => self.world.spawn(async move { this.change(true).await }),
                66..78 => self.world.spawn(async move { this.check_some().await }),
                _ => self.world.spawn(async move { this.read().await }), // of the rest of a hundred
            }
        }
    }

    /// Makes a change and repeats it until its outcome is final, or patience ends.
    async fn change(&self, clears: bool) {
        let (counter, age, tries) = {
            let mut chance = self.chance.lock();
            let fresh = chance.happens(8_000);
            let age = if fresh { Duration::ZERO } else { chance.between(Duration::ZERO, self.manners.oldest_token) };
            (chance.index(COUNTERS), age, 1 + chance.below(8))
        };
        let kind = match clears {
            true => Kind::Clear,
            false => match self.ledger.next_add(counter) {
                Some(bit) => Kind::Add(bit),
                None => return,
            },
        };
        let Some(token) = self.token(age) else { return };
        let number = self.ledger.begin(counter, kind, token.key.clone());
        for _ in 0..tries {
            if self.attempt(number, counter, kind, token.clone()).await == Known::Settled {
                return;
            }
            self.back_off().await;
        }
        if clears && self.machines.have_late_clears() {
            self.ask_until_settled(number, counter).await;
        }
    }

    /// Asks after a change around the time at which its outcome is decided, and reads its counter at the same moment.
    async fn ask_until_settled(&self, number: Number, counter: usize) {
        self.world.sleep(FIRST_QUESTION_AFTER).await;
        for _ in 0..QUESTIONS {
            for _ in 0..READS_BESIDE {
                let (reader, wait) = (self.clone(), self.chance.lock().between(Duration::ZERO, READ_WITHIN));
                self.world.spawn(async move {
                    reader.world.sleep(wait).await;
                    reader.read_one(counter, Freshness::UpToDate).await;
                });
            }
            if self.check(number).await {
                return;
            }
            let wait = self.chance.lock().between(Duration::ZERO, Duration::from_millis(500));
            self.world.sleep(wait).await;
        }
    }

    /// A token whose time is that of the client's clock, or somewhat older.
    fn token(&self, age: Duration) -> Option<IdempotencyToken> {
        let now = Timestamp::from_micros((self.begins + self.world.now()).micros() + self.manners.skew) - age;
        let token = format!("{}-{:x}", self.number, self.chance.lock().next());
        IdempotencyToken::parse(&ClientToken { token, generation_time: Some(now) }).ok()
    }

    async fn back_off(&self) {
        let wait = self.chance.lock().between(Duration::from_millis(20), Duration::from_secs(3));
        self.world.sleep(wait).await;
    }

    async fn attempt(&self, number: Number, counter: usize, kind: Kind, token: IdempotencyToken) -> Known {
        let (namespace, name) = (self.namespace.clone(), name_of(counter));
        let world = self.world.clone();
        let work = move |counting: Counting| async move {
            let provenance = Provenance::default();
            let answer = match kind {
                Kind::Add(bit) => {
                    let add = Add { name, delta: 1 << bit, token: Some(token), provenance };
                    counting.add(&namespace, add).await
                }
                Kind::Clear => counting.clear(&namespace, Clear { name, token: Some(token), provenance }).await,
            };
            (world.now(), answer)
        };
        let Some((server, (answered, answer))) = self.call(work).await else { return Known::Open };
        let now = self.world.now();
        match answer {
            Ok(written) => {
                if let Some(visible_at) = written.visible_at {
                    self.ledger.shows_late(number, server, answered + visible_at.since(written.server_time));
                }
                let how = match written.outcome {
                    WriteOutcome::Applied => How::Acknowledged,
                    WriteOutcome::AlreadyApplied => How::Found,
                };
                self.ledger.applied(number, how, now);
                Known::Settled
            }
            Err(error) => self.refusal(number, &error),
        }
    }

    fn refusal(&self, number: Number, error: &CountingError) -> Known {
        match error.reason() {
            Reason::NotApplied => {
                self.ledger.refused(number, self.world.now());
                Known::Settled
            }
            Reason::AlreadyExists | Reason::TooOld => {
                self.ledger.broke(format!("change {number} was answered with {error}"));
                Known::Settled
            }
            _ => Known::Open, // whatever else there is or will be says that the same token may be sent again
        }
    }

    /// Asks after some token, its own or another client's.
    async fn check_some(&self) {
        let changes = self.ledger.changes();
        if changes.is_empty() {
            return;
        }
        let recent = changes.len().min(40);
        let number = changes.len() - 1 - self.chance.lock().index(recent);
        self.check(number).await;
    }

    /// Asks what became of a change. Answers whether that is settled.
    pub async fn check(&self, number: Number) -> bool {
        let change = self.ledger.change(number);
        let (namespace, name) = (self.namespace.clone(), name_of(change.counter));
        let token = IdempotencyToken { key: change.key.clone(), idempotent: true };
        let work = move |counting: Counting| async move { counting.check_token(&namespace, name, token).await };
        let Some((_, answer)) = self.call(work).await else { return false };
        match answer {
            Ok(TokenVerdict::Applied { .. }) => self.ledger.applied(number, How::Found, self.world.now()),
            Ok(TokenVerdict::NotApplied) => self.ledger.refused(number, self.world.now()),
            Ok(TokenVerdict::TooOld) => self.ledger.broke(format!("change {number} is too old to be answered for")),
            Ok(TokenVerdict::Pending { .. }) | Err(_) => return false,
        }
        true
    }

    /// Reads some counter.
    async fn read(&self) {
        let (counter, dice) = {
            let mut chance = self.chance.lock();
            (chance.index(COUNTERS), chance.below(3))
        };
        let freshness =
            [Freshness::RolledUp, Freshness::RolledUp, Freshness::UpToDate][usize::try_from(dice).expect("below 3")];
        self.read_one(counter, freshness).await;
    }

    /// Reads a counter; none if no answer came.
    pub async fn read_one(&self, counter: usize, freshness: Freshness) -> Option<CountReading> {
        let asked = self.world.now();
        let at_least = self.told.lock()[counter];
        let (namespace, name) = (self.namespace.clone(), name_of(counter));
        let options = ReadOptions { max_staleness: None, at_least_as_of: at_least, freshness };
        let work = move |counting: Counting| async move { counting.get(&namespace, name, options).await };
        let (server, answer) = self.call(work).await?;
        let reading = answer.ok()?;
        self.ledger.seen(Seen { counter, asked, reading, server, at_least }, self.world.now());
        let mut told = self.told.lock();
        told[counter] = told[counter].max(Some(reading.as_of));
        Some(reading)
    }

    /// Whether a reading of a counter is final: nothing is left to be rolled up.
    pub fn is_final(reading: &CountReading, after: Timestamp) -> bool {
        reading.exactness == Exactness::ExactAsOf && !reading.behind && reading.as_of >= after
    }

    /// Sends a call to some server that runs; none if its answer does not come in time.
    async fn call<T, W>(&self, work: impl FnOnce(Counting) -> W + Send + 'static) -> Option<(usize, T)>
    where
        T: Send + 'static,
        W: Future<Output = T> + Send + 'static,
    {
        let writers: Vec<usize> = self.machines.writers().collect();
        let first = self.chance.lock().index(writers.len());
        let patience = self.chance.lock().between(Duration::from_secs(1), Duration::from_secs(8));
        let machines = (0..writers.len()).map(|at| writers[(first + at) % writers.len()]);
        let mut running = machines.filter_map(|machine| Some((machine, self.machines.running(machine)?)));
        let (machine, (process, running)) = running.next()?;
        let answers = Gather::new();
        if let Some(at) = self.net.send(Site::Clients, Site::Machine(machine)) {
            let (world, net, put) = (self.world.clone(), self.net.clone(), answers.clone());
            let call = async move {
                let answer = work(running.counting).await;
                let back = net.send(Site::Machine(machine), Site::Clients);
                let home = world.clone();
                world.spawn(async move {
                    if let Some(back) = back {
                        home.until(back).await;
                        put.put((process.0, answer));
                    }
                });
            };
            let world = self.world.clone();
            self.world.spawn(async move {
                world.until(at).await;
                if !world.is_dead(process) {
                    world.run_in(process, call);
                }
            });
        }
        answers.take(1, self.world.until(self.world.now() + patience)).await.pop()
    }
}

/// The name of a counter.
pub fn name_of(counter: usize) -> CounterName {
    CounterName::new(&format!("counter-{counter}")).expect("a valid name")
}
