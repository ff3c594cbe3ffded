//! The part of a server in its fleet, as it is written in the settings: its roles, and the address at which the others
//! reach it.

use std::net::SocketAddr;
use std::str::FromStr;

use serde::Deserialize;

use crate::config::{Config, CounterEngine, ListenAddress};
use tallystone_domain::fleet::Roles;

/// Some of "writer" and "roller", with commas between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct ServerRoles(pub Roles);

/// HOST:PORT by which other servers reach this one; nothing: the address that it listens on.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct AdvertisedAddress(Option<ListenAddress>);

impl AdvertisedAddress {
    /// The address that the others get, for a server that listens at an address; none if they could not reach it by
    /// that.
    pub fn of(&self, bound: SocketAddr) -> Option<String> {
        match &self.0 {
            Some(address) => Some(address.to_string()),
            None => (!bound.ip().is_unspecified()).then(|| bound.to_string()),
        }
    }
}

impl TryFrom<String> for AdvertisedAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self(None));
        }
        if text.ends_with(":0") {
            return Err("must name the port that other servers connect to, not 0".to_owned());
        }
        text.parse().map(|address| Self(Some(address)))
    }
}

impl FromStr for ServerRoles {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut roles = Roles::default();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match name {
                "writer" => roles.writer = true,
                "roller" => roles.roller = true,
                _ => return Err(format!("unknown role {name}; the roles are writer and roller")),
            }
        }
        if roles == Roles::default() {
            return Err("is empty; the roles are writer and roller".to_owned());
        }
        Ok(Self(roles))
    }
}

impl TryFrom<String> for ServerRoles {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// The fault of the roles for the store, if any.
pub fn find_invalid(config: &Config) -> Option<(&'static str, String)> {
    let ServerRoles(Roles { writer, roller }) = config.server.roles;
    if config.counters.engine == CounterEngine::Cassandra || (writer && roller) {
        return None;
    }
    let what = "must be writer,roller: a single role requires servers that share a Cassandra keyspace";
    Some(("server.roles", what.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_read_in_any_order_and_others_are_named() {
        let read = |text: &str| text.parse::<ServerRoles>().map(|ServerRoles(roles)| (roles.writer, roles.roller));
        assert_eq!(read("writer,roller"), Ok((true, true)));
        assert_eq!(read(" roller , writer"), Ok((true, true)));
        assert_eq!(read("roller"), Ok((false, true)));
        assert!(read("writer,reader").is_err_and(|why| why.contains("unknown role reader")));
        assert!(read("").is_err() && read(",").is_err());
    }

    #[test]
    fn others_are_told_an_address_that_they_can_reach_or_none() {
        let told = |text: &str, bound: &str| {
            let advertised = AdvertisedAddress::try_from(text.to_owned()).expect("an address");
            advertised.of(bound.parse().expect("an address"))
        };
        assert_eq!(told("", "10.0.0.7:7450"), Some("10.0.0.7:7450".to_owned()));
        assert_eq!(told("", "0.0.0.0:7450"), None);
        assert_eq!(told("", "[::]:7450"), None);
        assert_eq!(told("counts-1:7450", "0.0.0.0:7450"), Some("counts-1:7450".to_owned()));
        for wrong in ["counts-1", "counts-1:0", ":7450", "10.0.0.7:"] {
            assert!(AdvertisedAddress::try_from(wrong.to_owned()).is_err(), "{wrong}");
        }
    }
}
