//! Which node owns each slot. On a server that is no cluster, its one primary owns all of them.

use std::sync::Arc;

use crate::client::failure::{CallFailure, FailureCause};
use crate::client::reply::RedisReply;
use crate::client::slot::{SLOTS, Slot};
use crate::limits::REDIS_NODES_MAX;

/// The owners of all slots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SlotMap {
    /// The addresses of owners.
    owners: Vec<Arc<str>>,
    /// The addresses of their replicas.
    replicas: Vec<Arc<str>>,
    /// For each slot the place of its owner in the list, from 1; 0 if it has none.
    owner_of: Vec<u16>,
}

impl SlotMap {
    /// A map without owners.
    pub(super) fn empty() -> Self {
        Self { owners: Vec::new(), replicas: Vec::new(), owner_of: vec![0; usize::from(SLOTS)] }
    }

    /// One node owns all slots.
    pub(super) fn of_one(address: &str) -> Self {
        Self { owners: vec![Arc::from(address)], replicas: Vec::new(), owner_of: vec![1; usize::from(SLOTS)] }
    }

    /// Reads an answer to CLUSTER SLOTS: ranges of slots, each with its primary and then its replicas. A node that does not
    /// know its own host leaves it empty: it is the host that was asked.
    pub(super) fn read(reply: RedisReply, asked: &str) -> Result<Self, CallFailure> {
        let mut map = Self::empty();
        for range in reply.into_list()? {
            let mut parts = range.into_list()?.into_iter();
            let mut number = || parts.next().ok_or_else(incomplete)?.into_int();
            let (first, last) = (number()?, number()?);
            let primary = node_address(parts.next().ok_or_else(incomplete)?, asked)?;
            for number in first..=last {
                let slot = u16::try_from(number).ok().and_then(Slot::numbered);
                map.assign(slot.ok_or_else(incomplete)?, &primary);
            }
            for replica in parts {
                let replica = node_address(replica, asked)?;
                if map.replicas.len() < REDIS_NODES_MAX && !map.replicas.iter().any(|known| **known == *replica) {
                    map.replicas.push(Arc::from(replica));
                }
            }
        }
        Ok(map)
    }

    /// Gives a slot to a node.
    pub(super) fn assign(&mut self, slot: Slot, address: &str) {
        let known = self.owners.iter().position(|owner| **owner == *address);
        let at = known.unwrap_or_else(|| {
            self.owners.push(Arc::from(address));
            self.owners.len() - 1
        });
        // Beyond the bound a slot has no owner until the next reading.
        let place = if at < REDIS_NODES_MAX { u16::try_from(at + 1).unwrap_or_default() } else { 0 };
        self.owner_of[usize::from(slot.number())] = place;
    }

    /// The node that owns a slot. O(1).
    pub(super) fn owner(&self, slot: Slot) -> Option<&Arc<str>> {
        let place = usize::from(self.owner_of[usize::from(slot.number())]);
        self.owners.get(place.checked_sub(1)?)
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
        let mut owners: Vec<_> = known.filter_map(|(owner, slot)| Some((Arc::clone(owner), slot?))).collect();
        owners.sort();
        owners
    }

    /// Every node that is known.
    pub(super) fn nodes(&self) -> impl Iterator<Item = &Arc<str>> {
        self.owners.iter().chain(&self.replicas)
    }
}

fn incomplete() -> CallFailure {
    CallFailure::new(FailureCause::Protocol, "the answer to CLUSTER SLOTS is not complete")
}

/// The address of a node of CLUSTER SLOTS: host, port, and more.
fn node_address(node: RedisReply, asked: &str) -> Result<String, CallFailure> {
    let mut parts = node.into_list()?.into_iter();
    let host = match parts.next().ok_or_else(incomplete)? {
        RedisReply::Nil => String::new(),
        host => host.into_text()?,
    };
    let port = parts.next().ok_or_else(incomplete)?.into_int()?;
    let host = if host.is_empty() || host == "?" { host_of(asked) } else { &host };
    Ok(address_of(host, &port.to_string()))
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

    #[test]
    fn a_moved_answer_without_a_host_means_the_node_that_was_asked() {
        assert_eq!(moved_to("10.0.0.1:7000", "a:1"), "10.0.0.1:7000");
        assert_eq!(moved_to(":7000", "a:1"), "a:7000");
        assert_eq!(moved_to("::1:7000", "a:1"), "[::1]:7000");
        assert_eq!(moved_to("[::1]:7000", "a:1"), "[::1]:7000");
    }
}
