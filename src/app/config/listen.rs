//! The address on which a server listens, and at which the command line looks for one.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use serde::Deserialize;

pub const SERVER_DEFAULT: &str = "127.0.0.1:7450";

/// HOST:PORT; the host is an address or a name, which is looked up when the port is taken.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(try_from = "String")]
pub struct ListenAddress(String);

impl ListenAddress {
    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_name = |host: &str| {
            !host.is_empty()
                && host.chars().all(|character| character.is_ascii_alphanumeric() || "-._".contains(character))
        };
        let is_named = || {
            text.rsplit_once(':').is_some_and(|(host, port)| {
                is_name(host) && port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok()
            })
        };
        match text.parse::<SocketAddr>().is_ok() || is_named() {
            true => Ok(Self(text.to_owned())),
            false => Err("must be HOST:PORT, as in 127.0.0.1:7450 or localhost:7450".to_owned()),
        }
    }
}

impl TryFrom<String> for ListenAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listening_host_may_be_a_name() {
        for good in ["127.0.0.1:0", "[::1]:7450", "localhost:7450", "db-1.example_net:65535"] {
            assert_eq!(good.parse::<ListenAddress>().map(|address| address.to_string()), Ok(good.to_owned()));
        }
        for bad in ["", "7450", ":7450", "localhost", "localhost:", "localhost:65536", "a b:1", "::1:80", "http://a:1"]
        {
            assert!(bad.parse::<ListenAddress>().is_err(), "{bad}");
        }
    }
}
