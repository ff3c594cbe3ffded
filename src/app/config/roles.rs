//! The roles of a server, as they are written in the settings.

use std::str::FromStr;

use serde::Deserialize;

use crate::app::config::{Config, StorageKind};
use crate::domain::fleet::Roles;

/// Some of "writer" and "roller", with commas between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct ServerRoles(pub Roles);

impl FromStr for ServerRoles {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut roles = Roles::default();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match name {
                "writer" => roles.writer = true,
                "roller" => roles.roller = true,
                _ => return Err(format!("there is no role {name}; the roles are writer and roller")),
            }
        }
        if roles == Roles::default() {
            return Err("names no role; the roles are writer and roller".to_owned());
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

/// What is wrong with the roles for the store, if anything.
pub fn fault(config: &Config) -> Option<(&'static str, String)> {
    let ServerRoles(Roles { writer, roller }) = config.server.roles;
    if config.storage.kind == StorageKind::Cassandra || (writer && roller) {
        return None;
    }
    let what = "must be writer,roller: only servers that share a Cassandra keyspace can do without one of the two";
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
        assert!(read("writer,reader").is_err_and(|why| why.contains("no role reader")));
        assert!(read("").is_err() && read(",").is_err());
    }
}
