//! Roles: kinds of calls. Each method of the service needs one role, which its proto declares.

use std::fmt;

/// A kind of calls that a grant may allow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum AccessRole {
    /// Reads counts, series, lists and events of counters, and watches them.
    CounterReader = 1,
    /// Adds to counters, clears them, reports totals, and settles tokens.
    CounterWriter = 2,
    /// Puts messages into queues.
    Enqueuer = 3,
    /// Leases messages and settles the leases, with sessions.
    Worker = 4,
    /// Reads queues, messages, their history, namespaces, rules and the status of the server.
    Viewer = 5,
    /// Changes queues, their messages, and rules.
    QueueOperator = 6,
    /// Does all that the other roles do, except that of servers; and manages namespaces, keys and backups.
    Admin = 7,
    /// Reads the metrics page.
    Metrics = 8,
    /// Is another server of the fleet. No key has this role: servers show the secret of their heartbeat.
    Peer = 9,
    /// Makes queues by their template, with the first message. No method needs it alone: it stands beside `Enqueuer`.
    QueueMaker = 10,
}

impl AccessRole {
    /// The roles that a key may have, in the order of their numbers.
    pub const OF_KEYS: [Self; 9] = [
        Self::CounterReader,
        Self::CounterWriter,
        Self::Enqueuer,
        Self::Worker,
        Self::Viewer,
        Self::QueueOperator,
        Self::Admin,
        Self::Metrics,
        Self::QueueMaker,
    ];

    /// The role of a number, as protos and stores write it. None for any other number.
    pub fn from_number(number: u32) -> Option<Self> {
        let all = Self::OF_KEYS.into_iter().chain([Self::Peer]);
        all.into_iter().find(|role| role.number() == number)
    }

    /// The role of a word, among those that a key may have.
    pub fn of_key(word: &str) -> Option<Self> {
        Self::OF_KEYS.into_iter().find(|role| role.word() == word)
    }

    /// Whether it allows calls that need another role: each its own, and admin all but those of servers.
    pub fn covers(self, needed: Self) -> bool {
        self == needed || (self == Self::Admin && needed != Self::Peer)
    }

    /// The number of the role. It never changes.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// The word for it on the command line and in texts.
    pub fn word(self) -> &'static str {
        match self {
            Self::CounterReader => "counter-reader",
            Self::CounterWriter => "counter-writer",
            Self::Enqueuer => "enqueuer",
            Self::Worker => "worker",
            Self::Viewer => "viewer",
            Self::QueueOperator => "queue-operator",
            Self::Admin => "admin",
            Self::Metrics => "metrics",
            Self::Peer => "peer",
            Self::QueueMaker => "queue-maker",
        }
    }
}

impl fmt::Display for AccessRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn all() -> Vec<AccessRole> {
        (1..=10).map(|number| AccessRole::from_number(number).expect("ten roles")).collect()
    }

    #[test]
    fn a_role_is_known_by_its_number_and_its_word() {
        for role in all() {
            assert_eq!(AccessRole::from_number(role.number()), Some(role));
            assert_eq!(AccessRole::of_key(role.word()), Some(role).filter(|role| *role != AccessRole::Peer));
        }
        let words: BTreeSet<_> = all().into_iter().map(AccessRole::word).collect();
        assert_eq!(words.len(), 10, "each has a word of its own");
        assert_eq!((AccessRole::from_number(0), AccessRole::from_number(11)), (None, None));
    }

    #[test]
    fn admin_stands_for_all_roles_of_keys_and_no_other_for_two() {
        for (role, needed) in all().into_iter().flat_map(|role| all().into_iter().map(move |needed| (role, needed))) {
            let by_admin = role == AccessRole::Admin && needed != AccessRole::Peer;
            assert_eq!(role.covers(needed), role == needed || by_admin, "{role} for {needed}");
        }
    }
}
