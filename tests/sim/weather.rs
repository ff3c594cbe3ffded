//! What goes wrong in a run: cuts, pauses, ends of servers; all of it drawn from the seed, and over at a known time.

use std::time::Duration;

use crate::chance::Chance;
use crate::cluster::REPLICAS;
use crate::cluster::net::{Net, Quality, Site};
use crate::server::Machines;
use crate::stops::Pauses;
use crate::world::World;

/// How bad a run is.
#[derive(Clone, Debug)]
pub struct Climate {
    pub quality: Quality,
    pub steps: Pauses,
    /// The mean time between two of each; none where there are none.
    pub cuts: Option<Duration>,
    pub pauses: Option<Duration>,
    pub ends: Option<Duration>,
    /// How far the clocks of nodes are off, at most, in microseconds.
    pub node_skew: i64,
}

const SECOND: Duration = Duration::from_secs(1);

impl Climate {
    /// The climate of a seed. Some runs know one kind of trouble only, so that each kind is also seen alone.
    pub fn of(chance: &mut Chance) -> Self {
        let mut some = |probability: u64, least: u64, most: u64| {
            chance.happens(probability).then(|| chance.between(SECOND * least as u32, SECOND * most as u32))
        };
        let cuts = some(7_000, 3, 20);
        let pauses = some(7_000, 3, 25);
        let ends = some(6_000, 8, 40);
        let bad = [0, 10, 50, 300][chance.index(4)];
        let slow = [0, 20, 200][chance.index(3)];
        let often = [0, 3, 20][chance.index(3)];
        let steps = Pauses { often, least: SECOND / 10, most: [SECOND, SECOND * 10, SECOND * 30][chance.index(3)] };
        let node_skew = [0, 2_000_000, 120_000_000, 120_000_000][chance.index(4)];
        Self { quality: Quality { lost: bad, slow }, steps, cuts, pauses, ends, node_skew }
    }
}

/// Lets things go wrong until a time.
pub async fn blow(world: World, net: Net, machines: Machines, climate: Climate, mut chance: Chance, until: Duration) {
    let never = Duration::MAX;
    let next = |mean: Option<Duration>, chance: &mut Chance, now: Duration| {
        mean.map_or(never, |mean| now + chance.between(Duration::ZERO, mean * 2))
    };
    let now = world.now();
    let mut cut = next(climate.cuts, &mut chance, now);
    let mut pause = next(climate.pauses, &mut chance, now);
    let mut end = next(climate.ends, &mut chance, now);
    loop {
        let first = cut.min(pause).min(end);
        if first >= until {
            return;
        }
        world.until(first).await;
        if first == cut {
            cut_some(&net, machines.count(), &mut chance);
            cut = next(climate.cuts, &mut chance, first);
        } else if first == pause {
            let machine = chance.index(machines.count());
            let duration = short_or_long(&mut chance, SECOND / 10, SECOND * 30);
            if let Some(process) = machines.process(machine) {
                world.pause(process, duration);
            }
            pause = next(climate.pauses, &mut chance, first);
        } else {
            let machine = chance.index(machines.count());
            match chance.happens(7_500) {
                true => machines.kill(machine),
                false => machines.stop(machine),
            }
            end = next(climate.ends, &mut chance, first);
        }
    }
}

/// Durations are short as often as they are long.
fn short_or_long(chance: &mut Chance, least: Duration, most: Duration) -> Duration {
    match chance.index(3) {
        0 => chance.between(least, most / 10),
        1 => chance.between(least, most / 2),
        _ => chance.between(most / 2, most), // of the three
    }
}

fn cut_some(net: &Net, machines: usize, chance: &mut Chance) {
    let duration = short_or_long(chance, SECOND, SECOND * 25);
    let node = Site::Node(chance.index(REPLICAS));
    let others: Vec<Site> = match chance.index(4) {
        // A node that nobody reaches.
        0 => {
            let nodes = (0..REPLICAS).map(Site::Node);
            nodes.chain((0..machines).map(Site::Machine)).filter(|site| *site != node).collect()
        }
        // A machine that reaches no node.
        1 => {
            let machine = Site::Machine(chance.index(machines));
            for node in (0..REPLICAS).map(Site::Node) {
                cut_both(net, machine, node, duration, chance);
            }
            return;
        }
        // One link.
        2 => vec![Site::Machine(chance.index(machines))],
        _ => vec![Site::Node(chance.index(REPLICAS))], // of the four
    };
    for other in others.into_iter().filter(|other| *other != node) {
        cut_both(net, node, other, duration, chance);
    }
}

/// Cuts a link in one direction or both.
fn cut_both(net: &Net, one: Site, other: Site, duration: Duration, chance: &mut Chance) {
    let way = chance.index(3);
    if way != 1 {
        net.cut(one, other, duration);
    }
    if way != 2 {
        net.cut(other, one, duration);
    }
}
