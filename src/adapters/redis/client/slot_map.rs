//! The node that owns each slot. On a server that is no cluster, its one primary owns all of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use crate::client::failure::{CallFailure, FailureCause};
use crate::client::reply::RedisReply;
use crate::client::slot::{SLOTS, Slot};
use crate::limits::{REDIS_NODES_MAX, REDIS_OLDER_VIEW_AFTER};

/// The owners of all slots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SlotMap {
    owners: Vec<Owner>,
    /// The addresses of their replicas.
    replicas: Vec<Arc<str>>,
    /// For each slot the place of its owner in the list, from 1; 0 if it has none.
    owner_of: Vec<u16>,
    /// Slots that kept their owner against a reading that was older, by number, each since when, on `Clock::elapsed`.
    kept_since: HashMap<u16, Duration>,
}

/// A node that owns slots.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Owner {
    address: Arc<str>,
    /// Its id in the cluster, if a node told it.
    id: String,
    /// The config epoch of its claim, if that is known: in a cluster the highest one for a slot counts.
    epoch: Option<u64>,
}

impl SlotMap {
    /// A map without owners.
    pub(super) fn empty() -> Self {
        let owner_of = vec![0; usize::from(SLOTS)];
        Self { owners: Vec::new(), replicas: Vec::new(), owner_of, kept_since: HashMap::new() }
    }

    /// One node owns all slots.
    pub(super) fn of_one(address: &str) -> Self {
        let owner = Owner { address: Arc::from(address), id: String::new(), epoch: None };
        Self { owners: vec![owner], owner_of: vec![1; usize::from(SLOTS)], ..Self::empty() }
    }

    /// Reads an answer to CLUSTER SLOTS: ranges of slots, each with its primary and then its replicas. A node that does
    /// not know its own host leaves it empty: it is the host that was asked.
    pub(super) fn read(reply: RedisReply, asked: &str) -> Result<Self, CallFailure> {
        let mut map = Self::empty();
        for range in reply.into_list()? {
            let mut parts = range.into_list()?.into_iter();
            let mut number = || parts.next().ok_or_else(incomplete)?.into_int();
            let (first, last) = (number()?, number()?);
            let (primary, id) = named_node(parts.next().ok_or_else(incomplete)?, asked)?;
            let place = map.place_of(&Owner { address: Arc::from(primary), id, epoch: None });
            for number in first..=last {
                let slot = u16::try_from(number).ok().and_then(Slot::numbered);
                map.owner_of[usize::from(slot.ok_or_else(incomplete)?.number())] = place;
            }
            for replica in parts {
                let (replica, _) = named_node(replica, asked)?;
                if map.replicas.len() < REDIS_NODES_MAX && !map.replicas.iter().any(|known| **known == *replica) {
                    map.replicas.push(Arc::from(replica));
                }
            }
        }
        Ok(map)
    }

    /// Takes over the config epochs of owners from an answer to CLUSTER NODES: lines whose first word is the id of a
    /// node, and whose seventh its epoch.
    pub(super) fn learn_epochs(&mut self, nodes: &str) {
        let epochs: HashMap<&str, u64> = nodes
            .lines()
            .filter_map(|line| {
                let mut words = line.split(' ');
                Some((words.next()?, words.nth(5)?.parse().ok()?))
            })
            .collect();
        for owner in &mut self.owners {
            owner.epoch = epochs.get(owner.id.as_str()).copied();
        }
    }

    /// Whether the config epoch of an owner is not known.
    pub(super) fn lacks_epochs(&self) -> bool {
        self.owners.iter().any(|owner| owner.epoch.is_none())
    }

    /// This reading, over what was known before it. A slot whose new owner claims it with a lower config epoch keeps
    /// the known one, and so does one without an owner: the node that was asked knows less. After
    /// `REDIS_OLDER_VIEW_AFTER` without another word the reading counts all the same: the cluster was made again.
    pub(super) fn over(mut self, known: &Self, now: Duration) -> Self {
        for owner in &mut self.owners {
            let before = known.owners.iter().find(|known| known.address == owner.address);
            owner.epoch = owner.epoch.or(before.and_then(|known| known.epoch));
        }
        for number in 0..SLOTS {
            let (was, is) = (known.claim(number), self.claim(number));
            let Some(was) = was else { continue };
            let is_older = is.is_none_or(|is| {
                let is_lower = is.epoch.is_some_and(|epoch| was.epoch.is_some_and(|known| epoch < known));
                is.address != was.address && is_lower
            });
            let since = known.kept_since.get(&number).copied().unwrap_or(now);
            if is_older && now.saturating_sub(since) < REDIS_OLDER_VIEW_AFTER {
                self.owner_of[usize::from(number)] = self.place_of(was);
                self.kept_since.insert(number, since);
            }
        }
        self
    }

    /// Whether each slot has the same owner in both. O(slots).
    pub(super) fn has_owners_of(&self, other: &Self) -> bool {
        (0..SLOTS).all(|number| {
            let (one, another) = (self.claim(number), other.claim(number));
            one.map(|owner| &owner.address) == another.map(|owner| &owner.address)
        })
    }

    /// Gives a slot to a node.
    pub(super) fn assign(&mut self, slot: Slot, address: &str) {
        let place = self.place_of(&Owner { address: Arc::from(address), id: String::new(), epoch: None });
        self.owner_of[usize::from(slot.number())] = place;
        self.kept_since.remove(&slot.number());
    }

    /// The place of an owner in the list, to which it comes if it is new. Beyond the bound it has none, until the next
    /// reading.
    fn place_of(&mut self, owner: &Owner) -> u16 {
        let known = self.owners.iter().position(|known| known.address == owner.address);
        let at = known.unwrap_or_else(|| {
            self.owners.push(owner.clone());
            self.owners.len() - 1
        });
        if at < REDIS_NODES_MAX { u16::try_from(at + 1).unwrap_or_default() } else { 0 }
    }

    fn claim(&self, number: u16) -> Option<&Owner> {
        let place = usize::from(self.owner_of[usize::from(number)]);
        self.owners.get(place.checked_sub(1)?)
    }

    /// The node that owns a slot. O(1).
    pub(super) fn owner(&self, slot: Slot) -> Option<&Arc<str>> {
        self.claim(slot.number()).map(|owner| &owner.address)
    }

    /// The nodes that own slots, by address, each with its first slot. O(slots).
    pub(super) fn owners(&self) -> Vec<(Arc<str>, Slot)> {
        let mut first: Vec<Option<Slot>> = vec![None; self.owners.len()];
        for (number, place) in (0..SLOTS).zip(&self.owner_of) {
            if let Some(at) = usize::from(*place).checked_sub(1) {
                first[at] = first[at].or_else(|| Slot::numbered(number));
            }
        }
        let known = self.owners.iter().zip(first);
        let mut owners: Vec<_> = known.filter_map(|(owner, slot)| Some((Arc::clone(&owner.address), slot?))).collect();
        owners.sort();
        owners
    }

    /// The node of an address, if it owns a slot.
    pub(super) fn serving(&self, address: &str) -> Option<&Arc<str>> {
        let at = self.owners.iter().position(|owner| *owner.address == *address)?;
        let place = u16::try_from(at + 1).ok()?;
        self.owner_of.contains(&place).then(|| &self.owners[at].address)
    }

    /// Every node that is known.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Arc<str>> {
        self.owners.iter().map(|owner| &owner.address).chain(&self.replicas)
    }
}

fn incomplete() -> CallFailure {
    CallFailure::new(FailureCause::Protocol, "the answer to CLUSTER SLOTS is not complete")
}

/// The address and the id of a node of CLUSTER SLOTS: host, port, id, and more.
fn named_node(node: RedisReply, asked: &str) -> Result<(String, String), CallFailure> {
    let mut parts = node.into_list()?.into_iter();
    let host = match parts.next().ok_or_else(incomplete)? {
        RedisReply::Nil => String::new(),
        host => host.into_text()?,
    };
    let port = parts.next().ok_or_else(incomplete)?.into_int()?;
    let id = parts.next().and_then(|id| id.into_text().ok()).unwrap_or_default();
    let host = if host.is_empty() || host == "?" { host_of(asked) } else { &host };
    Ok((address_of(host, &port.to_string()), id))
}

/// The host of HOST:PORT.
fn host_of(address: &str) -> &str {
    address.rsplit_once(':').map_or(address, |(host, _)| host)
}

/// HOST:PORT of a host, with brackets around one of IPv6.
pub(super) fn address_of(host: &str, port: &str) -> String {
    match host.contains(':') && !host.starts_with('[') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// The address of a MOVED answer of a node: without a host it is the host of that node.
pub(super) fn moved_to(node: &str, asked: &str) -> String {
    match node.rsplit_once(':') {
        Some(("" | "?", port)) => address_of(host_of(asked), port),
        Some((host, port)) => address_of(host, port),
        None => node.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn node(host: &str, port: i64) -> RedisReply {
        let host = RedisReply::Bytes(Bytes::copy_from_slice(host.as_bytes()));
        RedisReply::List(vec![host, RedisReply::Int(port), RedisReply::Nil, RedisReply::List(Vec::new())])
    }

    fn slot(number: u16) -> Slot {
        Slot::numbered(number).expect("there is one")
    }

    fn range(first: i64, last: i64, nodes: &[RedisReply]) -> RedisReply {
        RedisReply::List([&[RedisReply::Int(first), RedisReply::Int(last)], nodes].concat())
    }

    #[test]
    fn each_slot_of_a_range_has_its_primary_and_others_have_none() {
        let first = range(0, 5_460, &[node("10.0.0.1", 7_000), node("10.0.0.2", 7_000)]);
        let second = range(5_462, 16_383, &[node("", 7_001), node("::1", 7_000)]);
        let map = SlotMap::read(RedisReply::List(vec![first, second]), "host:1").expect("an answer");
        let owner = |number| map.owner(slot(number)).map(|owner| &**owner);
        assert_eq!((owner(0), owner(5_460)), (Some("10.0.0.1:7000"), Some("10.0.0.1:7000")));
        assert_eq!((owner(5_461), owner(5_462), owner(16_383)), (None, Some("host:7001"), Some("host:7001")));
        let owners: Vec<(String, u16)> =
            map.owners().iter().map(|(owner, slot)| (owner.to_string(), slot.number())).collect();
        assert_eq!(owners, [("10.0.0.1:7000".to_owned(), 0), ("host:7001".to_owned(), 5_462)]);
        let nodes: Vec<&str> = map.nodes().map(|node| &**node).collect();
        assert_eq!(nodes, ["10.0.0.1:7000", "host:7001", "10.0.0.2:7000", "[::1]:7000"]);
    }

    #[test]
    fn a_moved_slot_changes_its_owner_only() {
        let mut map = SlotMap::of_one("a:1");
        map.assign(slot(7), "b:1");
        assert_eq!(map.owner(slot(7)).map(|owner| &**owner), Some("b:1"));
        assert_eq!(map.owner(slot(8)).map(|owner| &**owner), Some("a:1"));
        map.assign(slot(7), "a:1");
        assert_eq!(map.owners().len(), 1, "a node without slots is no owner");
    }

    #[test]
    fn an_answer_that_is_cut_short_or_out_of_range_is_none() {
        for ranges in [
            vec![RedisReply::List(vec![RedisReply::Int(0)])],
            vec![range(0, 5, &[])],
            vec![range(16_383, 16_384, &[node("a", 1)])],
            vec![range(-1, 5, &[node("a", 1)])],
            vec![RedisReply::Int(3)],
        ] {
            assert!(SlotMap::read(RedisReply::List(ranges), "a:1").is_err());
        }
    }

    /// A map in which the first node owns slot 7 and the second one all others, with these config epochs.
    fn map_of(owner: &str, epoch: u64, other: &str, of_other: u64) -> SlotMap {
        let named = |host: &str| {
            let id = RedisReply::Bytes(Bytes::from(format!("id-{host}")));
            let host = RedisReply::Bytes(Bytes::copy_from_slice(host.as_bytes()));
            RedisReply::List(vec![host, RedisReply::Int(1), id])
        };
        let ranges = [range(7, 7, &[named(owner)]), range(0, 6, &[named(other)]), range(8, 16_383, &[named(other)])];
        let mut map = SlotMap::read(RedisReply::List(ranges.to_vec()), "a:1").expect("an answer");
        assert!(map.lacks_epochs());
        let line = |host: &str, epoch: u64| format!("id-{host} {host}:1@2 master - 0 0 {epoch} connected 7\n");
        map.learn_epochs(&(line(owner, epoch) + &line(other, of_other)));
        assert!(!map.lacks_epochs());
        map
    }

    #[test]
    fn the_highest_config_epoch_counts_and_an_older_view_takes_no_slot_back() {
        let at = Duration::from_secs;
        let owner = |map: &SlotMap| map.owner(slot(7)).map(ToString::to_string);
        let before = map_of("old", 3, "other", 2);
        let after = map_of("new", 9, "other", 2).over(&before, at(1));
        assert_eq!(owner(&after).as_deref(), Some("new:1"));
        let stale = before.clone().over(&after, at(2));
        assert_eq!(owner(&stale).as_deref(), Some("new:1"), "the node that was asked has not heard of it");
        assert!(stale.has_owners_of(&after) && !stale.has_owners_of(&before));
        // Between readings that say so it is kept for ever; a reading that agrees begins the time anew.
        let confirmed = map_of("new", 9, "other", 2).over(&stale, at(9));
        let stale = before.clone().over(&confirmed, at(10));
        let stale = before.clone().over(&stale, at(10) + REDIS_OLDER_VIEW_AFTER - at(1));
        assert_eq!(owner(&stale).as_deref(), Some("new:1"));
        let anew = before.clone().over(&stale, at(10) + REDIS_OLDER_VIEW_AFTER);
        assert_eq!(owner(&anew).as_deref(), Some("old:1"), "nobody knows the other owner any more");
    }

    #[test]
    fn without_epochs_the_last_reading_counts() {
        let mut nobody_knows = map_of("new", 9, "other", 2);
        nobody_knows.learn_epochs("");
        let known = map_of("old", 12, "other", 2);
        assert_eq!(
            nobody_knows.clone().over(&known, Duration::ZERO).owner(slot(7)).map(|owner| &**owner),
            Some("new:1")
        );
        assert_eq!(known.over(&nobody_knows, Duration::ZERO).owner(slot(7)).map(|owner| &**owner), Some("old:1"));
    }

    #[test]
    fn a_moved_answer_without_a_host_means_the_node_that_was_asked() {
        assert_eq!(moved_to("10.0.0.1:7000", "a:1"), "10.0.0.1:7000");
        assert_eq!(moved_to(":7000", "a:1"), "a:7000");
        assert_eq!(moved_to("::1:7000", "a:1"), "[::1]:7000");
        assert_eq!(moved_to("[::1]:7000", "a:1"), "[::1]:7000");
    }
}
