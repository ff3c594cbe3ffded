//! Grants against an oracle: the set of everything that is allowed in a small world, from which denials take away.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// A thing of the small world, with its own name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Thing {
    Server,
    Namespace(String),
    Counter(String, String),
    Queue(String),
}

impl Thing {
    fn on(&self) -> AccessResource<'_> {
        match self {
            Self::Server => AccessResource::Server,
            Self::Namespace(name) => AccessResource::Namespace(name),
            Self::Counter(namespace, counter) => AccessResource::Counter { namespace, counter },
            Self::Queue(name) => AccessResource::Queue(name),
        }
    }

    /// The name as a whole text, which the code under test never makes.
    fn text(&self) -> String {
        match self {
            Self::Server => String::new(),
            Self::Namespace(name) | Self::Queue(name) => name.clone(),
            Self::Counter(namespace, counter) => format!("{namespace}#{counter}"),
        }
    }
}

/// All names of one or two letters.
fn names() -> Vec<String> {
    let one = || ["a", "b"].into_iter();
    one().map(str::to_owned).chain(one().flat_map(|left| one().map(move |right| format!("{left}{right}")))).collect()
}

fn world() -> Vec<Thing> {
    let counters = || names().into_iter().flat_map(|left| names().into_iter().map(move |right| (left.clone(), right)));
    let mut all = vec![Thing::Server];
    all.extend(names().into_iter().map(Thing::Namespace));
    all.extend(counters().map(|(left, right)| Thing::Counter(left, right)));
    all.extend(names().into_iter().map(Thing::Queue));
    all
}

/// The set that the grants allow: first all that any grant allows, then without all that any grant denies.
fn oracle(grants: &[Grant]) -> BTreeSet<(AccessRole, Thing)> {
    let mut allowed = BTreeSet::new();
    let touched = |grant: &Grant| -> Vec<(AccessRole, Thing)> {
        let roles = if grant.role == AccessRole::Admin { AccessRole::OF_KEYS.to_vec() } else { vec![grant.role] };
        let has = |thing: &Thing| {
            let is_of_kind = grant.kind.is_none() || grant.kind == Some(thing.on().kind());
            let text = thing.text();
            let is_named = match grant.names.is_prefix() {
                true => text.starts_with(grant.names.text()),
                false => text == grant.names.text(),
            };
            is_of_kind && is_named
        };
        let things: Vec<Thing> = world().into_iter().filter(has).collect();
        roles.into_iter().flat_map(|role| things.iter().map(move |thing| (role, thing.clone()))).collect()
    };
    grants.iter().filter(|grant| grant.effect == GrantEffect::Allow).for_each(|grant| allowed.extend(touched(grant)));
    for gone in grants.iter().filter(|grant| grant.effect == GrantEffect::Deny).flat_map(touched) {
        allowed.remove(&gone);
    }
    allowed
}

fn pattern() -> impl Strategy<Value = NamePattern> {
    let text = prop_oneof![Just(String::new()), "[ab]{1,2}", "[ab]{1,2}#", "[ab]{1,2}#[ab]{1,2}"];
    (text, any::<bool>()).prop_map(|(text, is_prefix)| match is_prefix || text.is_empty() {
        true => NamePattern::prefix(&text).expect("a valid prefix"),
        false => NamePattern::exact(&text).expect("a valid name"),
    })
}

fn grant() -> impl Strategy<Value = Grant> {
    let effect = prop_oneof![3 => Just(GrantEffect::Allow), 1 => Just(GrantEffect::Deny)];
    let kind = prop::option::of(prop::sample::select(ResourceKind::ALL.to_vec()));
    (effect, prop::sample::select(AccessRole::OF_KEYS.to_vec()), kind, pattern()).prop_map(
        |(effect, role, kind, names)| {
            let names = if kind == Some(ResourceKind::Server) { NamePattern::all() } else { names };
            Grant { effect, role, kind, names }
        },
    )
}

proptest! {
    #[test]
    fn grants_allow_what_the_oracle_allows(sent in prop::collection::vec(grant(), 0..6)) {
        let (grants, allowed) = (sent.iter().cloned().collect::<Grants>(), oracle(&sent));
        for thing in world() {
            for role in AccessRole::OF_KEYS {
                let wanted = allowed.contains(&(role, thing.clone()));
                prop_assert_eq!(grants.allows(role, thing.on()), wanted, "{} on {:?} by {}", role, thing, grants);
            }
            let is_shown = allowed.iter().any(|(_, one)| *one == thing);
            prop_assert_eq!(grants.shows(thing.on()), is_shown, "{:?} by {}", thing, grants);
            prop_assert!(!grants.allows(AccessRole::Peer, thing.on()), "no key is a server");
        }
    }

    /// The coarse questions never refuse what a name would be allowed, and never promise what a name is denied.
    #[test]
    fn questions_before_the_name_agree_with_those_about_names(sent in prop::collection::vec(grant(), 0..6)) {
        let (grants, allowed) = (sent.iter().cloned().collect::<Grants>(), oracle(&sent));
        for role in AccessRole::OF_KEYS {
            let of_role = || allowed.iter().filter(move |(own, _)| *own == role).map(|(_, thing)| thing);
            prop_assert!(grants.may_call(role) || of_role().next().is_none(), "{} by {}", role, grants);
            for kind in ResourceKind::ALL {
                let all = world().into_iter().filter(|thing| thing.on().kind() == kind).count();
                let held = of_role().filter(|thing| thing.on().kind() == kind).count();
                prop_assert!(!grants.allows_all(role, kind) || held == all, "{} on all {:?} by {}", role, kind, grants);
            }
            for namespace in names() {
                let is_of = |thing: &&Thing| matches!(thing, Thing::Counter(own, _) if *own == namespace);
                let any = of_role().any(|thing| is_of(&thing));
                let told = grants.allows_counters_of(role, &namespace);
                prop_assert!(told || !any, "{} in {} by {}", role, namespace, grants);
                let has_denial = sent.iter().any(|grant| grant.effect == GrantEffect::Deny);
                // Exact names may be of counters beyond the small world, so only prefixes are compared both ways.
                let is_exact = sent.iter().any(|grant| !grant.names.is_prefix());
                prop_assert!(has_denial || is_exact || told == any, "{} in {} by {}", role, namespace, grants);
            }
        }
    }

    #[test]
    fn lists_that_look_no_further_than_the_common_prefix_miss_nothing(sent in prop::collection::vec(grant(), 0..6)) {
        let (grants, allowed) = (sent.iter().cloned().collect::<Grants>(), oracle(&sent));
        for (role, thing) in &allowed {
            let prefix = grants.common_prefix(*role, thing.on().kind());
            prop_assert!(thing.text().starts_with(prefix), "{:?} begins not with {:?} by {}", thing, prefix, grants);
            if let Thing::Counter(namespace, counter) = thing {
                let prefix = grants.common_counter_prefix(*role, namespace);
                prop_assert!(counter.starts_with(prefix), "{:?} begins not with {:?} by {}", thing, prefix, grants);
            }
        }
    }

    #[test]
    fn a_grant_is_read_as_it_was_written(grant in grant()) {
        let text = grant.to_string();
        let plain = text.strip_prefix("not ").unwrap_or(&text);
        let is_needed = grant.kind.is_none_or(|kind| kinds_of(grant.role).contains(&kind));
        prop_assert_eq!(Grant::parse(grant.effect, plain).ok(), is_needed.then(|| grant.clone()), "{}", plain);
        prop_assert_eq!(Grant::parse_signed(&text).ok(), is_needed.then_some(grant), "{}", text);
    }

    #[test]
    fn changes_of_grants_lead_from_one_to_the_other(
        before in prop::collection::vec(grant(), 0..6), after in prop::collection::vec(grant(), 0..6),
    ) {
        let sorted = |grants: Vec<Grant>| grants.into_iter().collect::<BTreeSet<_>>();
        let (before, after) = (sorted(before), sorted(after));
        let changes = Grants::from_iter(before.clone()).changes_to(&Grants::from_iter(after.clone()));
        let mut texts: BTreeSet<String> = before.iter().map(Grant::to_string).collect();
        for change in changes.split(", ").filter(|change| !change.is_empty()) {
            match change.split_at(1) {
                ("+", gained) => prop_assert!(texts.insert(gained.to_owned()), "{}", changes),
                (_, lost) => prop_assert!(texts.remove(lost), "{}", changes),
            }
        }
        prop_assert_eq!(texts, after.iter().map(Grant::to_string).collect::<BTreeSet<_>>());
    }
}

#[test]
fn grants_are_read_from_words() {
    let read = |text| Grant::parse(GrantEffect::Allow, text);
    assert_eq!(read("worker"), Ok(Grant::everywhere(AccessRole::Worker)));
    let one = read("worker:queue:orders/*").expect("a grant");
    assert_eq!((one.kind, one.names.text(), one.names.is_prefix()), (Some(ResourceKind::Queue), "orders/", true));
    let named = read("viewer:queue:a:b").expect("a name may have a colon");
    assert_eq!((named.names.text(), named.names.is_prefix()), ("a:b", false));
    assert_eq!(read("viewer:*:shop*").expect("every kind").kind, None);
    let long = format!("viewer:queue:{}", "a".repeat(GRANT_NAME_BYTES_MAX + 1));
    for text in [
        "",
        "boss",
        "peer",
        "worker:",
        "worker:topic",
        "worker:queue:",
        "worker:queue:a b",
        "worker:queue:a*b",
        "admin:server:a",
        "worker:server",
        "viewer:counter:shop#views",
        &long,
    ] {
        let refused = read(text).expect_err(text);
        assert_eq!((refused.reason, refused.fields[0].0.as_str()), (Reason::InvalidArgument, "grants"), "{text}");
    }
}

#[test]
fn the_common_prefix_is_that_of_all_grants_that_allow() {
    let grants = |texts: &[&str]| -> Grants {
        texts.iter().map(|text| Grant::parse(GrantEffect::Allow, text).expect("a grant")).collect()
    };
    let of = |texts: &[&str]| grants(texts).common_prefix(AccessRole::Worker, ResourceKind::Queue).to_owned();
    assert_eq!(of(&["worker:queue:orders/a*", "worker:queue:orders/b", "viewer:queue:x*"]), "orders/");
    assert_eq!(
        (of(&["worker:queue:a*", "admin:*:b*"]), of(&["worker"]), of(&[])),
        (String::new(), String::new(), String::new())
    );
    let counters = grants(&["counter-writer:counter:shop#views*", "counter-writer:counter:other#x"]);
    let behind = |namespace| counters.common_counter_prefix(AccessRole::CounterWriter, namespace);
    assert_eq!((behind("shop"), behind("other"), behind("third")), ("views", "x", ""));
}

#[test]
fn a_key_needs_a_grant_that_allows_and_has_no_more_than_the_bound() {
    let grant = |number: usize| Grant::parse(GrantEffect::Allow, &format!("viewer:queue:q{number}")).expect("a grant");
    assert!(Grants::new((0..GRANTS_MAX).map(grant).collect()).is_ok());
    let too_many = Grants::new((0..=GRANTS_MAX).map(grant).collect()).expect_err("one too many");
    let denies = Grants::new(vec![Grant { effect: GrantEffect::Deny, ..grant(1) }]).expect_err("it allows nothing");
    let peer = Grants::new(vec![Grant::everywhere(AccessRole::Peer)]).expect_err("no key is a server");
    for refused in [too_many, denies, peer, Grants::new(Vec::new()).expect_err("none")] {
        assert_eq!((refused.reason, refused.fields[0].0.as_str()), (Reason::InvalidArgument, "grants"));
    }
    let twice = Grants::new(vec![grant(2), grant(1), grant(2)]).expect("two grants");
    assert_eq!(twice.to_string(), "viewer:queue:q1, viewer:queue:q2");
}

#[test]
fn a_grant_that_no_call_needs_is_refused_with_what_to_write() {
    let refused = |text| Grant::parse(GrantEffect::Allow, text).expect_err(text).message;
    assert_eq!(
        refused("worker:server"),
        "no call needs the role worker on the kind server; write worker:queue, or for that kind viewer:server or \
         admin:server or metrics:server"
    );
    assert!(refused("viewer:counter").contains("or for that kind counter-reader:counter or counter-writer:counter"));
    assert!(Grant::parse(GrantEffect::Deny, "metrics:queue:a").is_err(), "nor does a denial of it say anything");
}
