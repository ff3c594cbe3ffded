//! The rights of one call, and the proofs that they give.
//!
//! A name that comes with a request is `Asked`. Only the rights of the call open it: they answer `Permitted`, or why
//! not. Use cases that are `Sealed` open only for such a proof. So a handler that forgets to ask does not compile.

use std::ops::Deref;

use crate::access::{AccessResource, AccessRole, Grants, PrincipalName, ResourceKind};
use crate::counter::{CounterName, NamespaceName};
use crate::queue::QueueName;
use crate::reason::{Reason, Reject};
use crate::rules::RuleSpec;

/// The caller of one call, and what it may touch: the grants of the caller, for the role of the method. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CallRights {
    /// The caller with its grants. None: callers need not say who they are, and may touch everything.
    caller: Option<(PrincipalName, Grants)>,
    role: AccessRole,
}

/// The reason why a call may not touch something.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AccessDenial {
    /// No role is allowed on the namespace, nor on any counter of it if the call is about counters.
    HiddenNamespace(NamespaceName),
    /// No role is allowed on the counter.
    HiddenCounter {
        /// The namespace, which is not hidden.
        namespace: NamespaceName,
        /// The counter.
        counter: CounterName,
    },
    /// No role is allowed on the queue.
    HiddenQueue(QueueName),
    /// Another role is allowed on it.
    RoleMissing {
        /// The role that is needed.
        role: AccessRole,
        /// On what.
        on: String,
    },
}

/// A thing that a request names, before it is checked whether the caller may touch it.
#[derive(Clone, Debug)]
pub struct Asked<N>(N);

/// A thing that the caller of a request may touch with it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Permitted<N>(N);

/// The whole of one kind of things.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EveryOne(ResourceKind);

/// A namespace of which a call may touch some counters. Each counter is asked for on its own.
#[derive(Clone, Debug)]
pub struct CounterScope {
    namespace: NamespaceName,
    rights: CallRights,
}

/// The right to look through a list and show what [`CallRights::allows`] lets through.
#[derive(Clone, Debug)]
pub struct ListRights(CallRights);

/// Use cases that no call reaches without a proof of a right.
pub struct Sealed<U>(U);

/// A thing that a request can ask for.
pub trait AskedName {
    /// Checks the rights of a call.
    fn check_rights(&self, rights: &CallRights) -> Result<(), AccessDenial>;
}

/// A proof that a call may do something. Only this file makes proofs.
pub trait AccessProof: proof::Made {}

mod proof {
    /// Keeps other files from making proofs of their own.
    pub trait Made {}
}

impl<N> proof::Made for Permitted<N> {}
impl<N> AccessProof for Permitted<N> {}
impl proof::Made for CounterScope {}
impl AccessProof for CounterScope {}
impl proof::Made for ListRights {}
impl AccessProof for ListRights {}

impl CallRights {
    /// The rights of a caller with these grants, in a method that needs a role.
    pub fn of(caller: PrincipalName, grants: Grants, role: AccessRole) -> Self {
        Self { caller: Some((caller, grants)), role }
    }

    /// All rights: for servers whose callers need not say who they are.
    pub fn unlimited(role: AccessRole) -> Self {
        Self { caller: None, role }
    }

    /// The principal to whom belongs what the call makes. None: callers need not say who they are.
    pub fn owner(&self) -> Option<&PrincipalName> {
        self.caller.as_ref().map(|(owner, _)| owner)
    }

    fn grants(&self) -> Option<&Grants> {
        self.caller.as_ref().map(|(_, grants)| grants)
    }

    /// Opens what a request asks for.
    pub fn permit<N: AskedName>(&self, asked: Asked<N>) -> Result<Permitted<N>, AccessDenial> {
        asked.0.check_rights(self).map(|()| Permitted(asked.0))
    }

    /// Opens a namespace for a call about its counters.
    pub fn counters(&self, asked: Asked<NamespaceName>) -> Result<CounterScope, AccessDenial> {
        let namespace = asked.0;
        let name = namespace.as_str();
        let Some(grants) = self.grants() else { return Ok(CounterScope { namespace, rights: self.clone() }) };
        if grants.allows_counters_of(self.role, name) {
            return Ok(CounterScope { rights: self.clone(), namespace });
        }
        if grants.shows_counters_of(name) || grants.shows(AccessResource::Namespace(name)) {
            return Err(self.lack(format!("counters of namespace {namespace}")));
        }
        Err(AccessDenial::HiddenNamespace(namespace))
    }

    /// The right to everything of a kind, for calls that name nothing.
    pub fn every(&self, kind: ResourceKind) -> Result<Permitted<EveryOne>, AccessDenial> {
        match self.allows_every(kind) {
            true => Ok(Permitted(EveryOne(kind))),
            false if kind == ResourceKind::Server => Err(self.lack("the server".to_owned())),
            false => Err(self.lack(format!("every {}", kind.word()))),
        }
    }

    /// The right to look through a list.
    pub fn listing(&self) -> ListRights {
        ListRights(self.clone())
    }

    /// Whether the method may touch everything of a kind.
    pub fn allows_every(&self, kind: ResourceKind) -> bool {
        self.grants().is_none_or(|grants| grants.allows_all(self.role, kind))
    }

    /// Whether the method may touch a thing.
    pub fn allows(&self, on: AccessResource<'_>) -> bool {
        self.allows_as(self.role, on)
    }

    /// Whether the caller may touch a thing in another role than that of the method.
    pub fn allows_as(&self, role: AccessRole, on: AccessResource<'_>) -> bool {
        self.grants().is_none_or(|grants| grants.allows(role, on))
    }

    /// Refuses a thing that the method may not touch: as `hidden`, if the caller may not touch it in any role.
    pub fn require(&self, on: AccessResource<'_>, hidden: impl FnOnce() -> AccessDenial) -> Result<(), AccessDenial> {
        match self.grants() {
            Some(grants) if !grants.allows(self.role, on) => match grants.shows(on) {
                true => Err(self.lack(on.to_string())),
                false => Err(hidden()),
            },
            Some(_) | None => Ok(()),
        }
    }

    /// The denial of a thing on which the role of the method is not allowed, in words.
    pub fn lack(&self, on: String) -> AccessDenial {
        AccessDenial::RoleMissing { role: self.role, on }
    }
}

impl ListRights {
    /// Whether the list may show a thing.
    pub fn shows(&self, on: AccessResource<'_>) -> bool {
        self.0.allows(on)
    }

    /// The principal of the call. None: callers need not say who they are.
    pub fn owner(&self) -> Option<&PrincipalName> {
        self.0.owner()
    }

    /// Whether the caller is admin of a queue, or of all queues.
    pub fn is_admin_of(&self, queue: Option<&QueueName>) -> bool {
        Self(CallRights { role: AccessRole::Admin, ..self.0.clone() }).shows_about(queue)
    }

    /// The prefix with which to look for names of a kind that begin with `prefix`: the common beginning of all names
    /// that the list may show, if it is longer.
    pub fn narrowed<'a>(&'a self, kind: ResourceKind, prefix: &'a str) -> &'a str {
        let common = self.0.grants().map_or("", |grants| grants.common_prefix(self.0.role, kind));
        if common.starts_with(prefix) { common } else { prefix }
    }

    /// Whether the list may show what is about a queue, or about all queues.
    pub fn shows_about(&self, queue: Option<&QueueName>) -> bool {
        match queue {
            Some(queue) => self.0.allows(AccessResource::Queue(queue.as_str())),
            None => self.0.allows_every(ResourceKind::Queue),
        }
    }
}

impl CounterScope {
    /// Opens the name of a counter.
    pub fn counter(&self, asked: Asked<CounterName>) -> Result<CounterName, AccessDenial> {
        let on = AccessResource::Counter { namespace: self.namespace.as_str(), counter: asked.0.as_str() };
        self.rights.require(on, || AccessDenial::HiddenCounter {
            namespace: self.namespace.clone(),
            counter: asked.0.clone(),
        })?;
        Ok(asked.0)
    }

    /// The prefix with which to look for counters that begin with another one, as in [`ListRights::narrowed`].
    pub fn narrowed<'a>(&'a self, prefix: &'a str) -> &'a str {
        let of = |grants: &'a Grants| grants.common_counter_prefix(self.rights.role, self.namespace.as_str());
        let common = self.rights.grants().map_or("", of);
        if common.starts_with(prefix) { common } else { prefix }
    }

    /// The principal that calls; none if callers need not say it.
    pub fn caller(&self) -> Option<&str> {
        self.rights.caller.as_ref().map(|(name, _)| name.as_str())
    }

    /// Whether a list may show a counter.
    pub fn shows(&self, counter: &CounterName) -> bool {
        self.rights.allows(AccessResource::Counter { namespace: self.namespace.as_str(), counter: counter.as_str() })
    }
}

impl Deref for CounterScope {
    type Target = NamespaceName;

    fn deref(&self) -> &NamespaceName {
        &self.namespace
    }
}

impl<N> Asked<N> {
    /// A name of a request.
    pub fn new(name: N) -> Self {
        Self(name)
    }
}

impl<N> Permitted<N> {
    /// The name itself, for requests of use cases that keep it.
    pub fn into_inner(self) -> N {
        self.0
    }
}

impl<N> Deref for Permitted<N> {
    type Target = N;

    fn deref(&self) -> &N {
        &self.0
    }
}

impl<U> Sealed<U> {
    /// Seals use cases.
    pub fn new(use_cases: U) -> Self {
        Self(use_cases)
    }

    /// The use cases, for a caller that has a proof.
    pub fn with(&self, _proof: &impl AccessProof) -> &U {
        &self.0
    }
}

impl AskedName for QueueName {
    fn check_rights(&self, rights: &CallRights) -> Result<(), AccessDenial> {
        rights.require(AccessResource::Queue(self.as_str()), || AccessDenial::HiddenQueue(self.clone()))
    }
}

impl AskedName for NamespaceName {
    fn check_rights(&self, rights: &CallRights) -> Result<(), AccessDenial> {
        rights.require(AccessResource::Namespace(self.as_str()), || AccessDenial::HiddenNamespace(self.clone()))
    }
}

/// A rule reads its counter and puts messages into its queue, so the caller that makes one may do both.
impl AskedName for RuleSpec {
    fn check_rights(&self, rights: &CallRights) -> Result<(), AccessDenial> {
        self.queue.check_rights(rights)?;
        let reader = CallRights { role: AccessRole::CounterReader, ..rights.clone() };
        let scope = reader.counters(Asked::new(self.namespace.clone()))?;
        scope.counter(Asked::new(self.counter.clone())).map(drop)
    }
}

impl From<AccessDenial> for Reject {
    fn from(denial: AccessDenial) -> Self {
        match denial {
            AccessDenial::HiddenNamespace(name) => Self::new(
                Reason::NamespaceNotFound,
                format!("namespace {name} does not exist; create it first, for example with tallystone apply -f FILE"),
            ),
            AccessDenial::HiddenCounter { namespace, counter } => Self::new(
                Reason::CounterNotFound,
                format!("counter {} of namespace {namespace} does not exist for this key", counter.as_str()),
            ),
            AccessDenial::HiddenQueue(name) => Self::new(Reason::QueueNotFound, format!("queue {name} does not exist")),
            AccessDenial::RoleMissing { role, on } => {
                Self::new(Reason::RoleMissing, format!("the caller lacks the role {role} on {on}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Grant, GrantEffect};

    fn rights(role: AccessRole, texts: &[&str]) -> CallRights {
        let read = |text: &&str| match text.strip_prefix("not ") {
            Some(text) => Grant::parse(GrantEffect::Deny, text),
            None => Grant::parse(GrantEffect::Allow, text),
        };
        let grants = texts.iter().map(read).collect::<Result<Vec<_>, _>>().expect("valid grants");
        CallRights::of(
            PrincipalName::new("ann").expect("a valid name"),
            Grants::new(grants).expect("a valid key"),
            role,
        )
    }

    fn queue(name: &str) -> Asked<QueueName> {
        Asked::new(QueueName::new(name).expect("a valid name"))
    }

    fn namespace(name: &str) -> Asked<NamespaceName> {
        Asked::new(NamespaceName::new(name).expect("a valid name"))
    }

    fn counter(name: &str) -> Asked<CounterName> {
        Asked::new(CounterName::new(name).expect("a valid name"))
    }

    /// The reason of a refusal; none where there is none.
    fn reason<T>(answer: Result<T, AccessDenial>) -> Option<Reason> {
        answer.err().map(|denial| Reject::from(denial).reason)
    }

    #[test]
    fn a_name_is_open_hidden_or_lacks_the_role() {
        let rights =
            rights(AccessRole::Worker, &["worker:queue:own*", "viewer:queue:seen", "not worker:queue:own-not"]);
        assert_eq!(rights.permit(queue("own/1")).map(|name| name.to_string()), Ok("own/1".to_owned()));
        assert_eq!(reason(rights.permit(queue("seen"))), Some(Reason::RoleMissing));
        assert_eq!(reason(rights.permit(queue("other"))), Some(Reason::QueueNotFound));
        assert_eq!(reason(rights.permit(queue("own-not"))), Some(Reason::QueueNotFound), "no other role shows it");
        assert_eq!(reason(rights.every(ResourceKind::Queue)), Some(Reason::RoleMissing));
        assert_eq!(reason(CallRights::unlimited(AccessRole::Worker).permit(queue("other"))), None);
    }

    #[test]
    fn a_counter_is_asked_for_in_its_namespace() {
        let rights = rights(
            AccessRole::CounterWriter,
            &["counter-writer:counter:shop#views*", "counter-reader:counter:shop#sums"],
        );
        let scope = rights.counters(namespace("shop")).expect("some counters of it are granted");
        assert_eq!(scope.counter(counter("views/1")).map(|name| name.as_str().to_owned()), Ok("views/1".to_owned()));
        assert_eq!(reason(scope.counter(counter("sums"))), Some(Reason::RoleMissing));
        assert_eq!(reason(scope.counter(counter("other"))), Some(Reason::CounterNotFound));
        assert_eq!(reason(rights.counters(namespace("shops"))), Some(Reason::NamespaceNotFound));
        let reader = CallRights { role: AccessRole::CounterReader, ..rights };
        let scope = reader.counters(namespace("shop")).expect("one counter of it is granted");
        let shown = ["views", "sums"].map(|name| scope.shows(&CounterName::new(name).expect("a valid name")));
        assert_eq!(shown, [false, true]);
    }
}
