//! Beside the workers of a load: readers that ask any server for the counters that are being written, as new as they have
//! seen them, and one that clears a counter again and again. What they see is compared in `history`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use prost_types::Timestamp;
use tallystone::proto::counter::v1::{ClearCountRequest, Exactness, Freshness, GetCountRequest, GetCountResponse};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tonic::Status;

use super::Rng;
use super::history::Read;
use super::ledger::{Fate, Tagged, What};
use super::load::{Client, Heard, Load, NAMESPACE, Noted, WhenGone, connect_to, fresh, heard_of, reason, send, token};
use crate::support::harness::Server;

const READERS: usize = 2;
/// The pause between two readings of a reader, and between two steps of whoever clears.
const PACE: Duration = Duration::from_millis(15);
/// Adds between two clears, at most; a counter is cleared a few times before the next one's turn.
const ADDS_MAX: u64 = 4;
const CLEARS_OF_A_COUNTER: u32 = 6;
/// How often the same clear is sent.
const TRIES: usize = 3;

/// Starts readers, and among the workers whoever clears.
pub async fn begin(servers: &[&Server], load: &Arc<Load>, workers: &mut JoinSet<Noted>) -> JoinSet<()> {
    let mut watching = JoinSet::new();
    for number in 0..=READERS {
        let mut clients = Vec::new();
        for (at, server) in servers.iter().enumerate() {
            if let Ok(client) = connect_to(server).await {
                clients.push((at, client));
            }
        }
        if clients.is_empty() {
            continue;
        }
        let rng = Rng::new(load.plan().seed ^ 0x5EED ^ number as u64);
        let reader = Reader { number, clients, rng, seen: BTreeMap::new(), load: Arc::clone(load) };
        if number < READERS {
            watching.spawn(reader.run());
        } else {
            workers.spawn(reader.clear_again_and_again());
        }
    }
    watching
}

struct Reader {
    number: usize,
    /// With the numbers of their servers.
    clients: Vec<(usize, Client)>,
    rng: Rng,
    /// The newest `as_of` of each counter.
    seen: BTreeMap<String, Timestamp>,
    load: Arc<Load>,
}

impl Reader {
    /// Reads until it is stopped.
    async fn run(mut self) {
        let mut pace = tokio::time::interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            pace.tick().await;
            let worker = self.rng.index(self.load.plan().workers);
            let [newest, before] = self.load.names(worker);
            let counter = if self.rng.below(3) == 0 { before } else { newest };
            self.read(&counter).await;
        }
    }

    /// Reads a counter once, from any server; what is refused is no reading.
    async fn read(&mut self, counter: &str) {
        let (freshness, max_staleness) = match self.rng.below(3) {
            0 => (Freshness::UpToDate, None),
            1 => (Freshness::RolledUp, None),
            _ => (Freshness::RolledUp, Some(prost_types::Duration::default())), // a roll for this very read
        };
        let request = GetCountRequest {
            namespace: NAMESPACE.to_owned(),
            counter_name: counter.to_owned(),
            max_staleness,
            at_least_as_of: self.seen.get(counter).copied(),
            freshness: freshness.into(),
        };
        let at = self.rng.index(self.clients.len());
        let (server, client) = &mut self.clients[at];
        let server = *server;
        let begun = self.load.history.lock().expect("no reader panics").now();
        match client.get_count(request).await {
            Ok(answer) => {
                let answer = answer.into_inner();
                let read = self.reading(counter, server, begun, &answer);
                let newest = answer.as_of.max_by_time(self.seen.get(counter).copied());
                self.seen.extend(newest.map(|newest| (counter.to_owned(), newest)));
                self.load.history.lock().expect("no reader panics").read(read);
            }
            Err(status) => self.load.history.lock().expect("no reader panics").refused(why(&status)),
        }
    }

    fn reading(&self, counter: &str, server: usize, begun: Duration, answer: &GetCountResponse) -> Read {
        Read {
            counter: counter.to_owned(),
            reader: self.number,
            server,
            begun,
            count: answer.count,
            as_of: answer.as_of.as_ref().map_or(i64::MIN, micros),
            behind: answer.behind,
            exactness: Exactness::try_from(answer.exactness).expect("a kind that this build knows"),
        }
    }

    /// Adds to a counter and clears it, in turn, and reads it after each clear.
    async fn clear_again_and_again(mut self) -> Noted {
        let mut noted = Vec::new();
        let mut pace = tokio::time::interval(PACE);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        for number in 0.. {
            let counter = format!("crash/r{}/cleared/n{number}", self.load.plan().round);
            let mut bit = 0;
            for _ in 0..CLEARS_OF_A_COUNTER {
                for _ in 0..=self.rng.below(ADDS_MAX) {
                    pace.tick().await;
                    let add = fresh(&counter, What::Bit(bit));
                    let fate = self.add(&add).await;
                    noted.push((add, fate));
                    bit += 1;
                }
                let clear = fresh(&counter, What::Clear);
                let fate = self.clear(&clear).await;
                self.read(&counter).await;
                noted.push((clear, fate));
                let nothing_heard = |fate: &Fate| [Fate::Unknown, Fate::Refused].contains(fate);
                let is_gone = noted.iter().rev().take(2).all(|(_, fate)| nothing_heard(fate));
                if self.load.is_over() || is_gone && self.load.plan().when_gone == WhenGone::End {
                    return noted;
                }
            }
        }
        noted
    }

    async fn add(&mut self, add: &Tagged) -> Fate {
        let at = self.rng.index(self.clients.len());
        let heard = send(&mut self.clients[at].1, std::slice::from_ref(add)).await[0];
        if heard == Heard::Applied {
            self.load.history.lock().expect("no reader panics").acknowledged(&add.token);
        }
        fate_of(heard)
    }

    /// Sends a clear until its outcome is known, a few times.
    async fn clear(&mut self, clear: &Tagged) -> Fate {
        let mut fate = Fate::Refused;
        for _ in 0..TRIES {
            let at = self.rng.index(self.clients.len());
            let request = ClearCountRequest {
                namespace: NAMESPACE.to_owned(),
                counter_name: clear.counter.clone(),
                idempotency_token: token(clear),
                provenance: "crash test".to_owned(),
            };
            match self.clients[at].1.clear_count(request).await {
                Ok(answer) => {
                    let answer = answer.into_inner();
                    let late = answer.visible_at.as_ref().zip(answer.server_time.as_ref());
                    let late = late.map_or(0, |(visible, now)| micros(visible) - micros(now));
                    let visible_in = Duration::from_micros(u64::try_from(late).unwrap_or(0));
                    self.load.history.lock().expect("no reader panics").cleared(&clear.token, visible_in);
                    return Fate::Applied;
                }
                Err(status) => match fate_of(heard_of(&reason(&status))) {
                    Fate::Refused => {} // this try did nothing, whatever those before it did
                    Fate::NotApplied => return Fate::NotApplied,
                    Fate::Unknown | Fate::Applied => fate = Fate::Unknown,
                },
            }
        }
        fate
    }
}

fn fate_of(heard: Heard) -> Fate {
    match heard {
        Heard::Applied | Heard::AlreadyApplied => Fate::Applied,
        Heard::NotApplied => Fate::NotApplied,
        Heard::Nothing => Fate::Refused,
        Heard::Unknown => Fate::Unknown,
    }
}

/// Why a read was refused. It may fail while servers or stores are away; it must not meet a defect.
fn why(status: &Status) -> String {
    let reason = reason(status);
    assert_ne!(reason, "INTERNAL", "a read met a defect: {status:?}");
    if reason.is_empty() { format!("{:?}", status.code()) } else { reason }
}

fn micros(time: &Timestamp) -> i64 {
    time.seconds * 1_000_000 + i64::from(time.nanos) / 1_000
}

trait Later {
    fn max_by_time(self, other: Self) -> Self;
}

impl Later for Option<Timestamp> {
    fn max_by_time(self, other: Self) -> Self {
        [self, other].into_iter().flatten().max_by_key(micros)
    }
}
