//! Quotas: how much one key may use of a server, and what stays within them.
//!
//! The settings of a server have a limit for each quota, and a key may have its own instead. Rates are in
//! `token_bucket`; the other quotas bound how many there are at a time. Invariant: 0 means no limit, wherever a limit
//! is written.

use std::fmt;
use std::time::Duration;

use crate::reason::{Reason, Reject};

/// A kind of use of a server that a quota limits for each key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(usize)]
pub enum KeyQuota {
    /// Calls a second. A stream is one call.
    CallsPerSecond,
    /// Bytes of requests and answers a second.
    BytesPerSecond,
    /// Calls that stay open: streams, and dequeues that may wait.
    Streams,
    /// Connections to one server.
    Connections,
    /// Sessions of workers on one server.
    Sessions,
    /// Purges, redrives, discards and checks on one server.
    Operations,
    /// Queues and templates of the catalog that the key made.
    Queues,
    /// Namespaces of the catalog that the key made.
    Namespaces,
}

/// Own limits of a key. The others are those of the server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeyQuotas([Option<u64>; KeyQuota::COUNT]);

/// A limit for each quota.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuotaLimits([u64; KeyQuota::COUNT]);

/// The refusal of what would exceed a quota of the caller's key. Nothing was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}", text_of(*.quota, *.limit, *.retry_after))]
pub struct QuotaRefusal {
    /// The quota.
    pub quota: KeyQuota,
    /// Its limit for this key.
    pub limit: u64,
    /// When there may be room again: exact for rates, else a guess.
    pub retry_after: Duration,
}

impl KeyQuota {
    /// The number of quotas.
    pub const COUNT: usize = 8;

    /// All of them, in the order of their numbers.
    pub const ALL: [Self; Self::COUNT] = [
        Self::CallsPerSecond,
        Self::BytesPerSecond,
        Self::Streams,
        Self::Connections,
        Self::Sessions,
        Self::Operations,
        Self::Queues,
        Self::Namespaces,
    ];

    /// The name, by which people and programs know it.
    pub fn word(self) -> &'static str {
        match self {
            Self::CallsPerSecond => "calls-per-second",
            Self::BytesPerSecond => "bytes-per-second",
            Self::Streams => "streams",
            Self::Connections => "connections",
            Self::Sessions => "sessions",
            Self::Operations => "operations",
            Self::Queues => "queues",
            Self::Namespaces => "namespaces",
        }
    }

    /// The number in stored keys, from 1.
    pub fn number(self) -> u32 {
        self as u32 + 1
    }

    /// The quota of a stored number.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|quota| quota.number() == number)
    }

    /// The advice to a caller that was refused.
    fn advice(self) -> &'static str {
        match self {
            Self::CallsPerSecond => "send less often, or more in each call",
            Self::BytesPerSecond => "send and ask for less",
            Self::Streams => "end some",
            Self::Connections => "share connections between calls",
            Self::Sessions => "close unused sessions, or wait until ended ones are forgotten",
            Self::Operations => "cancel some, or wait for their end",
            Self::Queues | Self::Namespaces => "delete some",
        }
    }
}

impl fmt::Display for KeyQuota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl KeyQuotas {
    /// The key's own limit; none: that of the server.
    pub fn get(&self, quota: KeyQuota) -> Option<u64> {
        self.0[quota as usize]
    }

    /// With an own limit instead of that of the server, or without one.
    #[must_use]
    pub fn with(mut self, quota: KeyQuota, limit: Option<u64>) -> Self {
        self.0[quota as usize] = limit;
        self
    }

    /// The key's own limits.
    pub fn iter(&self) -> impl Iterator<Item = (KeyQuota, u64)> {
        KeyQuota::ALL.into_iter().filter_map(|quota| Some((quota, self.get(quota)?)))
    }

    /// Parses an own limit: `QUOTA=NUMBER` or `QUOTA=unlimited`.
    pub fn parse_one(text: &str) -> Result<(KeyQuota, u64), Reject> {
        let refuse = |what: String| Reject::new(Reason::InvalidArgument, what.as_str()).at("quotas", what.as_str());
        let words = || KeyQuota::ALL.map(KeyQuota::word).join(", ");
        let Some((word, limit)) = text.split_once('=') else {
            return Err(refuse(format!("a quota is written QUOTA=NUMBER, as in calls-per-second=100, not {text:?}")));
        };
        let quota = KeyQuota::ALL.into_iter().find(|quota| quota.word() == word);
        let quota = quota.ok_or_else(|| refuse(format!("there is no quota {word:?}; the quotas are {}", words())))?;
        let limit = match (limit, limit.parse()) {
            (UNLIMITED, _) => 0,
            (_, Ok(limit)) if limit > 0 => limit,
            _ => {
                let what = format!(
                    "the limit of {quota} must be a whole number above 0, or {UNLIMITED}; to allow nothing, deny the grant"
                );
                return Err(refuse(what));
            }
        };
        Ok((quota, limit))
    }
}

impl FromIterator<(KeyQuota, u64)> for KeyQuotas {
    /// The last limit of a quota counts.
    fn from_iter<I: IntoIterator<Item = (KeyQuota, u64)>>(limits: I) -> Self {
        limits.into_iter().fold(Self::default(), |all, (quota, limit)| all.with(quota, Some(limit)))
    }
}

impl fmt::Display for KeyQuotas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (quota, limit)) in self.iter().enumerate() {
            let before = if place == 0 { "" } else { ", " };
            match limit {
                0 => write!(f, "{before}{quota}={UNLIMITED}")?,
                limit => write!(f, "{before}{quota}={limit}")?,
            }
        }
        Ok(())
    }
}

impl QuotaLimits {
    /// No quota has a limit.
    pub const UNLIMITED: Self = Self([0; KeyQuota::COUNT]);

    /// The limit of a quota; none: as much as anybody wants.
    pub fn get(&self, quota: KeyQuota) -> Option<u64> {
        Some(self.0[quota as usize]).filter(|limit| *limit > 0)
    }

    /// With another limit of a quota.
    #[must_use]
    pub fn with(mut self, quota: KeyQuota, limit: u64) -> Self {
        self.0[quota as usize] = limit;
        self
    }

    /// The limits of a key: its own where it has any.
    #[must_use]
    pub fn of_key(self, own: &KeyQuotas) -> Self {
        own.iter().fold(self, |all, (quota, limit)| all.with(quota, limit))
    }
}

/// How people write that there is no limit.
const UNLIMITED: &str = "unlimited";

fn text_of(quota: KeyQuota, limit: u64, retry_after: Duration) -> String {
    format!(
        "the key has used up its quota {quota}, which is {limit}; nothing was done: {}, and retry in {retry_after:?}",
        quota.advice()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_read_back_from_what_is_written() {
        for quota in KeyQuota::ALL {
            assert_eq!(KeyQuota::from_number(quota.number()), Some(quota));
            for limit in [0, 1, u64::MAX] {
                let own: KeyQuotas = [(quota, limit)].into_iter().collect();
                assert_eq!(KeyQuotas::parse_one(&own.to_string()), Ok((quota, limit)));
            }
        }
        assert_eq!((KeyQuota::from_number(0), KeyQuota::from_number(9)), (None, None));
    }

    #[test]
    fn what_is_no_quota_is_refused_with_those_there_are() {
        for (text, told) in [
            ("calls", "QUOTA=NUMBER"),
            ("call-per-second=1", "the quotas are calls-per-second, bytes-per-second"),
            ("queues=-1", "whole number"),
            ("queues=", "whole number"),
            ("queues=0", "above 0, or unlimited"),
        ] {
            let reject = KeyQuotas::parse_one(text).expect_err(text);
            assert!(reject.message.contains(told), "{}", reject.message);
        }
    }

    #[test]
    fn a_key_has_its_own_limits_and_else_those_of_the_server() {
        let server = QuotaLimits::UNLIMITED.with(KeyQuota::Queues, 5).with(KeyQuota::Streams, 7);
        let own: KeyQuotas = [(KeyQuota::Streams, 0), (KeyQuota::Sessions, 3)].into_iter().collect();
        let limits = server.of_key(&own);
        let of = [KeyQuota::Queues, KeyQuota::Streams, KeyQuota::Sessions, KeyQuota::Operations];
        assert_eq!(of.map(|quota| limits.get(quota)), [Some(5), None, Some(3), None]);
        assert_eq!(own.to_string(), "streams=unlimited, sessions=3");
    }
}
