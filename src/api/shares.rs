//! How many connections there are, in all and from each address.
//!
//! One address takes half of all places at most, so that none shuts the others out. Of an IPv6 address its network of 64
//! bits counts, which is what one customer of a provider has at least.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::api::http::Refused;

/// The connections of a server.
#[derive(Debug)]
pub struct Shares {
    most: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    by_address: HashMap<IpAddr, usize>,
}

impl Shares {
    /// Room for so many connections; one at least.
    pub fn new(most: usize) -> Self {
        Self { most: most.max(1), taken: Mutex::default() }
    }

    /// Takes a place for a connection from an address, or says which bound is met.
    pub fn seat(self: &Arc<Self>, address: IpAddr) -> Result<Seat, Refused> {
        let address = shared(address);
        let mut taken = self.taken.lock();
        if taken.all >= self.most {
            return Err(Refused::Server);
        }
        let of_address = taken.by_address.entry(address).or_default();
        if *of_address >= self.most.div_ceil(2) {
            return Err(Refused::Address);
        }
        *of_address += 1;
        taken.all += 1;
        Ok(Seat { shares: Arc::clone(self), address })
    }
}

/// What counts as one address.
fn shared(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let network = u128::from(address) >> 64 << 64;
            Ipv6Addr::from(network).into()
        }
        v4 => v4,
    }
}

/// A place; dropped, it is free again.
#[derive(Debug)]
pub struct Seat {
    shares: Arc<Shares>,
    address: IpAddr,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.shares.taken.lock();
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
        let shares = Arc::new(Shares::new(4));
        let (one, other) = (address("127.0.0.1"), address("192.0.2.1"));
        let mine = [shares.seat(one).expect("the first"), shares.seat(one).expect("the second")];
        assert_eq!(shares.seat(one).expect_err("half"), Refused::Address);
        assert_eq!(shares.seat(address("::ffff:127.0.0.1")).expect_err("the same"), Refused::Address);
        let _theirs = [shares.seat(other).expect("a third"), shares.seat(other).expect("a fourth")];
        assert_eq!(shares.seat(address("192.0.2.2")).expect_err("all"), Refused::Server);
        drop(mine);
        assert_eq!(shares.taken.lock().by_address.len(), 1, "nothing is kept of who left");
        shares.seat(one).expect("a place is free again");
    }

    #[test]
    fn addresses_of_one_network_share() {
        let shares = Arc::new(Shares::new(2));
        let _mine = shares.seat(address("2001:db8::1")).expect("the first");
        assert_eq!(shares.seat(address("2001:db8::2:1")).expect_err("the same network"), Refused::Address);
        shares.seat(address("2001:db8:0:1::1")).expect("another network");
    }
}
