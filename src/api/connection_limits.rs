//! Limits on the number of connections, in all and from each address.
//!
//! One address may use at most half of all connections, so that it cannot lock others out. An IPv6 address counts by
//! its /64 network, the smallest network that a provider assigns to one customer.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::http::ConnectionRefusal;

/// The open connections of a server.
#[derive(Debug)]
pub struct ConnectionLimits {
    connections_max: usize,
    in_use: Mutex<ConnectionCounts>,
}

#[derive(Debug, Default)]
struct ConnectionCounts {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

impl ConnectionLimits {
    /// Creates limits for `most` connections, at least one.
    pub fn new(most: usize) -> Self {
        Self { connections_max: most.max(1), in_use: Mutex::default() }
    }

    /// Takes a permit for a connection from an address, or returns the exceeded limit.
    pub fn acquire(self: &Arc<Self>, address: IpAddr) -> Result<ConnectionPermit, ConnectionRefusal> {
        let address = address_group(address);
        let mut taken = self.in_use.lock();
        if taken.all >= self.connections_max {
            return Err(ConnectionRefusal::Server);
        }
        let of_address = taken.by_address.entry(address).or_default();
        if *of_address >= self.connections_max.div_ceil(2) {
            return Err(ConnectionRefusal::Address);
        }
        *of_address += 1;
        taken.all += 1;
        Ok(ConnectionPermit { shares: Arc::clone(self), address })
    }
}

/// Returns the address that a limit counts: the address itself or its network.
fn address_group(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            Ipv6Addr::from(network).into()
        }
        v4 => v4,
    }
}

/// The permit of a connection, released on drop.
#[derive(Debug)]
pub struct ConnectionPermit {
    shares: Arc<ConnectionLimits>,
    address: IpAddr,
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut taken = self.shares.in_use.lock();
        taken.all -= 1;
        if let Some(left) = taken.by_address.get_mut(&self.address) {
            *left -= 1;
            if *left == 0 {
                taken.by_address.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn one_address_takes_half_and_leaves_the_rest_to_others() {
        let shares = Arc::new(ConnectionLimits::new(4));
        let (one, other) = (address("127.0.0.1"), address("192.0.2.1"));
        let mine = [shares.acquire(one).expect("the first connection"), shares.acquire(one).expect("the second")];
        assert_eq!(shares.acquire(one).expect_err("half"), ConnectionRefusal::Address);
        assert_eq!(shares.acquire(address("::ffff:127.0.0.1")).expect_err("the same"), ConnectionRefusal::Address);
        let _theirs = [shares.acquire(other).expect("a third"), shares.acquire(other).expect("a fourth")];
        assert_eq!(shares.acquire(address("192.0.2.2")).expect_err("all"), ConnectionRefusal::Server);
        drop(mine);
        assert_eq!(shares.in_use.lock().by_address.len(), 1, "nothing is kept of who left");
        shares.acquire(one).expect("a permit was released");
    }

    #[test]
    fn addresses_of_one_network_share() {
        let shares = Arc::new(ConnectionLimits::new(2));
        let _mine = shares.acquire(address("2001:db8::1")).expect("the first");
        assert_eq!(shares.acquire(address("2001:db8::2:1")).expect_err("the same network"), ConnectionRefusal::Address);
        shares.acquire(address("2001:db8:0:1::1")).expect("another network");
    }
}
