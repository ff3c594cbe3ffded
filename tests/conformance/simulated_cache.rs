//! The memcached of the simulation (`tests/sim/caches`) answers as a real one: random commands go to both, and every answer
//! is compared. CAS numbers need not be the same, but have to stand for the same states.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use memcache::exp::{Arithmetic, Delete, Get, Meta, Op, Set, Ttl};
use tallystone_adapters::memcached::wire::{CommandResponse, Network, ServerConnection, Tcp};

use crate::backends::{Backend, not_run};
use crate::servers::Memcached;
use crate::simulated_memcached::Items;

/// Longer than the test takes, so that nothing ends meanwhile.
const TTL: u32 = 60;
const WITHIN: Duration = Duration::from_secs(10);
const COMMANDS: u64 = 3_000;
const KEYS: u64 = 4;
/// How many of the latest CAS numbers are used again: most of them are of states that are gone.
const NUMBERS: usize = 8;

/// Both servers, and which numbers of theirs stand for one state.
struct Pair {
    real: Arc<dyn ServerConnection>,
    simulated: Items,
    /// Ours and the real one.
    numbers: Vec<(u64, u64)>,
}

impl Pair {
    /// Sends a command to both; `of` makes it with the CAS of each.
    async fn ask(&mut self, seen: (u64, u64), of: impl Fn(u64) -> Op) {
        let command = of(seen.0);
        let ours = self.simulated.take(&command, 0);
        let answers = self.real.send(vec![of(seen.1)]).await.expect("memcached answers");
        let real = answers.into_iter().next().expect("one answer").expect("it refuses nothing");
        let [ours, real] = [parts(ours), parts(real)];
        assert_eq!(ours.0, real.0, "{command:?}");
        match (ours.1, real.1) {
            (Some(ours), Some(real)) => self.note(ours, real),
            (ours, real) => assert_eq!(ours, real, "{command:?}"),
        }
    }

    /// One number of one server stands for one of the other.
    fn note(&mut self, ours: u64, real: u64) {
        let known: BTreeMap<u64, u64> = self.numbers.iter().copied().collect();
        let back: BTreeMap<u64, u64> = self.numbers.iter().map(|(ours, real)| (*real, *ours)).collect();
        assert_eq!(known.get(&ours).copied().unwrap_or(real), real, "ours says that this is an earlier state");
        assert_eq!(back.get(&real).copied().unwrap_or(ours), ours, "the real one says that this is an earlier state");
        if !known.contains_key(&ours) {
            self.numbers.push((ours, real));
        }
    }
}

/// What an answer says, apart from its CAS. An empty value is a placeholder, and none. memcached pads a sum that is shorter
/// than the number before it.
fn parts(answer: CommandResponse) -> (CommandResponse, Option<u64>) {
    match answer {
        CommandResponse::Read { value, cas } => {
            let value = value.map(|value| value.trim_ascii_end().to_vec()).filter(|value| !value.is_empty());
            (CommandResponse::Read { value, cas: None }, cas)
        }
        CommandResponse::Changed(_) | CommandResponse::Summed { .. } => (answer, None),
    }
}

#[tokio::test]
async fn the_memcached_of_the_simulation_answers_as_a_real_one() {
    let server = match Memcached::start() {
        Ok(server) => server,
        Err(why) => return not_run(Backend::Memcached, &why),
    };
    let real = Tcp.find(&server.address().to_string(), WITHIN).await.expect("an address");
    let mut pair = Pair { real, simulated: Items::default(), numbers: vec![(u64::MAX, u64::MAX)] };
    let mut state = 0x5eed_u64;
    let mut draw = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    for number in 0..COMMANDS {
        let key = format!("key-{}", draw(KEYS));
        let latest = pair.numbers.len().saturating_sub(NUMBERS);
        let known = u64::try_from(pair.numbers.len() - latest).expect("a few");
        let seen = pair.numbers[latest + usize::try_from(draw(known)).expect("a few")];
        let value = number.to_string();
        match draw(16) {
            0..4 => pair.ask(seen, |_| Get::new(&key).into()).await,
            4..9 => pair.ask(seen, |_| Get::new(&key).meta(Meta::NONE.cas()).lease_ttl(TTL).into()).await,
            9..13 => pair.ask(seen, |cas| Set::new(&key, &value).ttl(Ttl::secs(TTL)).compare_cas(cas).into()).await,
            13 => {
                pair.ask(seen, |_| Set::new(&key, &value).ttl(Ttl::secs(TTL)).into()).await;
                pair.ask(seen, |_| Arithmetic::new(&key).delta(u64::MAX).into()).await;
            }
            14 => pair.ask(seen, |_| Delete::new(&key).into()).await,
            // Of the sixteen.
            _ => pair.ask(seen, |_| Delete::new("no-such-key").into()).await,
        }
    }
    assert!(pair.numbers.len() > 100, "there were many states: {}", pair.numbers.len());
}
