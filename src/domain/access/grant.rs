//! Grants: what a key allows. A grant is a role on a kind of things, with an exact name or all names with a prefix.
//!
//! Access that no grant allows is denied, and a grant that denies wins over all that allow. These rules are pure: who
//! called, and what exists, does not matter to them.

use std::fmt;
use std::sync::Arc;

use crate::access::AccessRole;
use crate::limits::{GRANT_NAME_BYTES_MAX, GRANTS_MAX};
use crate::reason::{Reason, Reject};

/// The separator between a namespace and a counter in the name of a grant. Neither may contain it.
const COUNTER_SEPARATOR: u8 = b'#';
/// Ends the name of a grant that is for all names with a prefix. Alone it stands for every name or kind.
const WILDCARD: char = '*';

/// The beginning of a grant that denies, where grants that allow and grants that deny are written together.
const DENIES: &str = "not ";

/// A kind of things that calls touch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum ResourceKind {
    /// The server itself: its status, metrics, keys, backups, clock and audit. It has no name.
    Server = 1,
    /// Namespaces and their settings.
    Namespace = 2,
    /// Counters, named `NAMESPACE#COUNTER`.
    Counter = 3,
    /// Queues with all that is in them, and the rules that put messages into them.
    Queue = 4,
}

/// One thing that a call touches, with its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccessResource<'a> {
    /// The server itself.
    Server,
    /// A namespace.
    Namespace(&'a str),
    /// A counter of a namespace.
    Counter {
        /// The name of the namespace.
        namespace: &'a str,
        /// The name of the counter.
        counter: &'a str,
    },
    /// A queue.
    Queue(&'a str),
}

/// Whether a grant allows or denies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum GrantEffect {
    /// It allows.
    Allow = 1,
    /// It denies, whatever other grants allow.
    Deny = 2,
}

/// An exact name, or the beginning of names. The empty beginning is that of every name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NamePattern {
    text: Box<str>,
    is_prefix: bool,
}

/// One grant of a key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Grant {
    /// Whether it allows or denies.
    pub effect: GrantEffect,
    /// The kind of calls. Admin stands for all roles that a key may have.
    pub role: AccessRole,
    /// The kind of things; none: every kind.
    pub kind: Option<ResourceKind>,
    /// The names of the things.
    pub names: NamePattern,
}

/// All grants of a key. Cheap to clone. The default has none and so allows nothing.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Grants(Arc<[Grant]>);

impl ResourceKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Server, Self::Namespace, Self::Counter, Self::Queue];

    /// The kind of a number, as protos and stores write it. None for any other number.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }

    /// The number of the kind. It never changes.
    pub fn number(self) -> u32 {
        self as u32
    }

    /// The word for it on the command line and in texts.
    pub fn word(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Namespace => "namespace",
            Self::Counter => "counter",
            Self::Queue => "queue",
        }
    }
}

impl<'a> AccessResource<'a> {
    /// Its kind.
    pub fn kind(self) -> ResourceKind {
        match self {
            Self::Server => ResourceKind::Server,
            Self::Namespace(_) => ResourceKind::Namespace,
            Self::Counter { .. } => ResourceKind::Counter,
            Self::Queue(_) => ResourceKind::Queue,
        }
    }

    /// The name as patterns have it, without an allocation.
    fn bytes(self) -> impl Iterator<Item = u8> + 'a {
        let (head, separator, tail) = match self {
            Self::Server => ("", None, ""),
            Self::Namespace(name) | Self::Queue(name) => (name, None, ""),
            Self::Counter { namespace, counter } => (namespace, Some(COUNTER_SEPARATOR), counter),
        };
        head.bytes().chain(separator).chain(tail.bytes())
    }
}

impl fmt::Display for AccessResource<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server => f.write_str("the server"),
            Self::Namespace(name) => write!(f, "namespace {name}"),
            Self::Counter { namespace, counter } => write!(f, "counter {counter} of namespace {namespace}"),
            Self::Queue(name) => write!(f, "queue {name}"),
        }
    }
}

impl NamePattern {
    /// Every name.
    pub fn all() -> Self {
        Self { text: "".into(), is_prefix: true }
    }

    /// One name.
    pub fn exact(name: &str) -> Result<Self, Reject> {
        if name.is_empty() {
            return Err(refuse("a grant for one name has no name; omit it for all names"));
        }
        Self::checked(name, false)
    }

    /// All names that begin so.
    pub fn prefix(prefix: &str) -> Result<Self, Reject> {
        Self::checked(prefix, true)
    }

    fn checked(text: &str, is_prefix: bool) -> Result<Self, Reject> {
        if text.len() > GRANT_NAME_BYTES_MAX {
            return Err(refuse(&format!("the name of a grant has more than {GRANT_NAME_BYTES_MAX} bytes")));
        }
        let is_allowed =
            |byte: u8| byte.is_ascii_alphanumeric() || b"._:/=~%@+-".contains(&byte) || byte == COUNTER_SEPARATOR;
        if !text.bytes().all(is_allowed) {
            return Err(refuse(
                "the name of a grant may contain only letters, digits and . _ : / = ~ % @ + -, and # between a namespace and \
                 its counter",
            ));
        }
        Ok(Self { text: text.into(), is_prefix })
    }

    /// The name, or what names begin with.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether it stands for all names that begin with its text.
    pub fn is_prefix(&self) -> bool {
        self.is_prefix
    }

    fn is_all(&self) -> bool {
        self.is_prefix && self.text.is_empty()
    }

    fn matches(&self, on: AccessResource<'_>) -> bool {
        if self.is_all() {
            return true;
        }
        let mut name = on.bytes();
        let begins = self.text.bytes().all(|byte| name.next() == Some(byte));
        begins && (self.is_prefix || name.next().is_none())
    }
}

impl Grant {
    /// A role on everything.
    pub fn everywhere(role: AccessRole) -> Self {
        Self { effect: GrantEffect::Allow, role, kind: None, names: NamePattern::all() }
    }

    /// Reads `ROLE`, `ROLE:KIND`, `ROLE:KIND:NAME` or `ROLE:KIND:PREFIX*`. The kind may be `*`.
    pub fn parse(effect: GrantEffect, text: &str) -> Result<Self, Reject> {
        let mut parts = text.splitn(3, ':');
        let word = parts.next().unwrap_or_default();
        let role = AccessRole::of_key(word).ok_or_else(|| {
            let words: Vec<_> = AccessRole::OF_KEYS.into_iter().map(AccessRole::word).collect();
            refuse(&format!("there is no role {word:?}; the roles are {}", words.join(", ")))
        })?;
        let kind = match parts.next() {
            None | Some("*") => None,
            Some(word) => {
                let found = ResourceKind::ALL.into_iter().find(|kind| kind.word() == word);
                Some(found.ok_or_else(|| {
                    refuse(&format!("there is no kind {word:?}; the kinds are server, namespace, counter, queue and *"))
                })?)
            }
        };
        let names = match parts.next() {
            None => NamePattern::all(),
            Some(name) => match name.strip_suffix(WILDCARD) {
                Some(prefix) => NamePattern::prefix(prefix)?,
                None => NamePattern::exact(name)?,
            },
        };
        let grant = Self { effect, role, kind, names };
        grant.check().map(|()| grant)
    }

    /// Reads a grant as it is shown: as [`Grant::parse`] does, with `not ` before one that denies.
    pub fn parse_signed(text: &str) -> Result<Self, Reject> {
        match text.strip_prefix(DENIES) {
            Some(denied) => Self::parse(GrantEffect::Deny, denied),
            None => Self::parse(GrantEffect::Allow, text),
        }
    }

    /// Refuses what could never match, what no call asks for, and the role that no key has.
    fn check(&self) -> Result<(), Reject> {
        if self.role == AccessRole::Peer {
            return Err(refuse("the role peer is for servers, which need no key"));
        }
        if self.kind == Some(ResourceKind::Server) && !self.names.is_all() {
            return Err(refuse("the server has no name; omit the name of the grant"));
        }
        match self.kind {
            Some(kind) if !kinds_of(self.role).contains(&kind) => Err(refuse(&needless(self.role, kind))),
            Some(_) | None => Ok(()),
        }
    }

    /// Whether it is about calls that need a role, on things of a kind.
    fn is_about(&self, needed: AccessRole, kind: ResourceKind) -> bool {
        self.role.covers(needed) && self.kind.is_none_or(|own| own == kind)
    }

    /// Whether all counters of a namespace are among its names.
    fn has_all_of(&self, namespace: &str) -> bool {
        let mut head = AccessResource::Counter { namespace, counter: "" }.bytes();
        self.names.is_prefix && self.names.text.bytes().all(|byte| head.next() == Some(byte))
    }

    /// Whether any counter of a namespace may be among its names.
    fn has_any_of(&self, namespace: &str) -> bool {
        let mut text = self.names.text.bytes();
        let begins = AccessResource::Counter { namespace, counter: "" }.bytes().all(|byte| text.next() == Some(byte));
        begins || self.has_all_of(namespace)
    }
}

impl fmt::Display for Grant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.effect == GrantEffect::Deny {
            f.write_str(DENIES)?;
        }
        f.write_str(self.role.word())?;
        if self.kind.is_none() && self.names.is_all() {
            return Ok(());
        }
        write!(f, ":{}", self.kind.map_or("*", ResourceKind::word))?;
        if self.names.is_all() {
            return Ok(());
        }
        write!(f, ":{}{}", self.names.text, if self.names.is_prefix { "*" } else { "" })
    }
}

impl Grants {
    /// The grants of a key: at least one, at most [`GRANTS_MAX`], of which one allows something. Their order does not
    /// matter.
    pub fn new(grants: Vec<Grant>) -> Result<Self, Reject> {
        let grants = Self::of_caller(grants)?;
        if grants.iter().all(|grant| grant.effect == GrantEffect::Deny) {
            return Err(refuse("no grant of the key allows anything; give it at least one that does"));
        }
        Ok(grants)
    }

    /// The grants of a caller who may have none: at most [`GRANTS_MAX`]. Their order does not matter.
    pub fn of_caller(mut grants: Vec<Grant>) -> Result<Self, Reject> {
        grants.iter().try_for_each(Grant::check)?;
        grants.sort();
        grants.dedup();
        if grants.len() > GRANTS_MAX {
            return Err(refuse(&format!("there are {} grants; at most {GRANTS_MAX} are allowed", grants.len())));
        }
        Ok(Self(grants.into()))
    }

    /// The grants, sorted.
    pub fn iter(&self) -> impl Iterator<Item = &Grant> {
        self.0.iter()
    }

    /// The changes to other grants, in words: the grants that they have more (`+`) and less (`-`). Empty if they are
    /// the same.
    pub fn changes_to(&self, after: &Self) -> String {
        let only = |of: &Self, other: &Self, sign: &str| -> Vec<String> {
            of.iter().filter(|grant| !other.0.contains(grant)).map(|grant| format!("{sign}{grant}")).collect()
        };
        [only(after, self, "+"), only(self, after, "-")].concat().join(", ")
    }

    /// Whether calls that need a role may touch a thing. O(grants), without an allocation.
    pub fn allows(&self, needed: AccessRole, on: AccessResource<'_>) -> bool {
        let matching = |effect: GrantEffect| {
            let of_effect = self.0.iter().filter(move |grant| grant.effect == effect);
            of_effect.filter(move |grant| grant.is_about(needed, on.kind())).any(move |grant| grant.names.matches(on))
        };
        matching(GrantEffect::Allow) && !matching(GrantEffect::Deny)
    }

    /// Whether calls that need a role may touch everything of a kind.
    pub fn allows_all(&self, needed: AccessRole, kind: ResourceKind) -> bool {
        let mut about = self.0.iter().filter(|grant| grant.is_about(needed, kind));
        let denies = about.clone().any(|grant| grant.effect == GrantEffect::Deny);
        !denies && about.any(|grant| grant.names.is_all())
    }

    /// Whether calls that need a role may touch any counter of a namespace. It may say yes where several denials
    /// together leave nothing; each counter is asked for on its own as well.
    pub fn allows_counters_of(&self, needed: AccessRole, namespace: &str) -> bool {
        let about = || self.0.iter().filter(|grant| grant.is_about(needed, ResourceKind::Counter));
        let denies = |grant: &&Grant| grant.effect == GrantEffect::Deny && grant.has_all_of(namespace);
        !about().any(|grant| denies(&grant))
            && about().any(|grant| grant.effect == GrantEffect::Allow && grant.has_any_of(namespace))
    }

    /// Whether a call that needs a role may be made at all, before it is known what it touches.
    pub fn may_call(&self, needed: AccessRole) -> bool {
        let about = || self.0.iter().filter(|grant| grant.role.covers(needed));
        let denies_all =
            |grant: &Grant| grant.effect == GrantEffect::Deny && grant.kind.is_none() && grant.names.is_all();
        !about().any(denies_all) && about().any(|grant| grant.effect == GrantEffect::Allow)
    }

    /// The common beginning of all names of a kind on which calls that need a role may be allowed, so that lists look
    /// no further.
    pub fn common_prefix(&self, needed: AccessRole, kind: ResourceKind) -> &str {
        self.common_prefix_behind("", needed, kind)
    }

    /// The same for the counters of one namespace, without the namespace.
    pub fn common_counter_prefix(&self, needed: AccessRole, namespace: &str) -> &str {
        let head = format!("{namespace}{}", char::from(COUNTER_SEPARATOR));
        self.common_prefix_behind(&head, needed, ResourceKind::Counter)
    }

    fn common_prefix_behind<'a>(&'a self, head: &str, needed: AccessRole, kind: ResourceKind) -> &'a str {
        let allowing = self.0.iter().filter(|grant| grant.effect == GrantEffect::Allow && grant.is_about(needed, kind));
        let behind = |grant: &'a Grant| -> Option<&'a str> {
            let text: &'a str = &grant.names.text;
            text.strip_prefix(head).or_else(|| head.starts_with(text).then_some(""))
        };
        allowing.filter_map(behind).reduce(common_beginning).unwrap_or("")
    }

    /// Whether a thing is not hidden: some role is allowed on it.
    pub fn shows(&self, on: AccessResource<'_>) -> bool {
        AccessRole::OF_KEYS.into_iter().any(|role| self.allows(role, on))
    }

    /// Whether a namespace is not hidden from calls about counters: some role is allowed on some counter of it.
    pub fn shows_counters_of(&self, namespace: &str) -> bool {
        AccessRole::OF_KEYS.into_iter().any(|role| self.allows_counters_of(role, namespace))
    }
}

impl FromIterator<Grant> for Grants {
    /// Without the checks of [`Grants::new`]: for what was checked before it was stored.
    fn from_iter<G: IntoIterator<Item = Grant>>(grants: G) -> Self {
        Self(grants.into_iter().collect())
    }
}

impl fmt::Display for Grants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, grant) in self.0.iter().enumerate() {
            if at > 0 {
                f.write_str(", ")?;
            }
            fmt::Display::fmt(grant, f)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Grants {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Grants({self})")
    }
}

/// The kinds of things on which a call may need a role. `docs/roles.md` has the calls.
fn kinds_of(role: AccessRole) -> &'static [ResourceKind] {
    use ResourceKind::{Counter, Namespace, Queue, Server};
    match role {
        AccessRole::CounterReader | AccessRole::CounterWriter => &[Counter],
        AccessRole::Enqueuer | AccessRole::Worker | AccessRole::QueueOperator | AccessRole::QueueMaker => &[Queue],
        AccessRole::Viewer => &[Server, Namespace, Queue],
        AccessRole::Admin => &ResourceKind::ALL,
        AccessRole::Metrics | AccessRole::Peer => &[Server],
    }
}

/// Says why a grant would allow nothing, and what to write instead.
fn needless(role: AccessRole, kind: ResourceKind) -> String {
    let own: Vec<String> = kinds_of(role).iter().map(|kind| format!("{role}:{}", kind.word())).collect();
    let roles = AccessRole::OF_KEYS.into_iter().filter(|role| kinds_of(*role).contains(&kind));
    let others: Vec<String> = roles.map(|role| format!("{role}:{}", kind.word())).collect();
    let (own, others) = (own.join(" or "), others.join(" or "));
    format!("no call needs the role {role} on the kind {}; write {own}, or for that kind {others}", kind.word())
}

/// The common beginning of both texts. Texts of patterns are ASCII.
fn common_beginning<'a>(left: &'a str, right: &str) -> &'a str {
    let same = left.bytes().zip(right.bytes()).take_while(|(left, right)| left == right).count();
    &left[..same]
}

fn refuse(what: &str) -> Reject {
    Reject::new(Reason::InvalidArgument, what).at("grants", what)
}

#[cfg(test)]
mod tests;
