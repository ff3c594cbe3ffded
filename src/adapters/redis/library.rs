//! The library of functions: the Lua sources, with the tables and limits of the core before them, under a name made of
//! a hash of all of it. Releases with different libraries run side by side on one server.
//!
//! The transition table, the steps of counts and the limits are written from the values of the core, so they exist
//! once.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

use super::limits::{
    REDIS_CHANGES_LOOKED_AT_MAX, REDIS_FUNCTION_ITEMS_MAX, REDIS_HEARTBEAT_LEASES_MAX, REDIS_QUIET_TIME,
    REDIS_READY_AGE_PRECISION, REDIS_ROWS_A_CALL_MAX,
};
use super::rights::OF_FUNCTIONS;
use tallystone_adapters::codec::queues::history::{TRIGGERS, trigger_code};
use tallystone_domain::limits::{
    BULK_MESSAGES_MAX, COUNTED_KEY_SETS_MAX, DEQUEUE_DUE_MIN, DEQUEUE_PARKINGS_MAX, EXPLAIN_HOLDERS_MAX,
    INVISIBILITY_MAX, OPERATIONS_MAX, PRIORITY_MAX, QUEUE_REQUESTS_KEPT_MAX, RELEASES_FREE_MAX, REUSED_ID_REPEATED_MAX,
    SESSION_CALLS_KEPT, SESSION_ENDS_KEPT_MIN, SESSION_HEARD_LATE, SESSION_KEPT, SESSION_SHARDS_MAX, SESSIONS_MAX,
    TALLIED_SIGNATURES_MAX, TOKEN_AHEAD_MAX, UPDATES_KEPT_MAX, VALUE_LIMITS_MAX,
};
use tallystone_domain::queue::messages::settlement::SettleAction;
use tallystone_domain::queue::messages::state_machine::{Guard, MessageState, guarded_rows};
use tallystone_domain::queue::tally::steps::{TIME_STEP_MILLIS, attempt_step};
use tallystone_domain::time::micros_of;

/// The source that all other sources use.
const FRAME: &str = include_str!("lua/frame.lua");

/// The sources between, each in a block of its own: a chunk of Lua has at most 200 local names.
const SOURCES: [&str; 20] = [
    include_str!("lua/message.lua"),
    include_str!("lua/finished.lua"),
    include_str!("lua/transition.lua"),
    include_str!("lua/lanes.lua"),
    include_str!("lua/shapes.lua"),
    include_str!("lua/sessions.lua"),
    include_str!("lua/due.lua"),
    include_str!("lua/flush.lua"),
    include_str!("lua/ids.lua"),
    include_str!("lua/counts.lua"),
    include_str!("lua/values.lua"),
    include_str!("lua/enqueue.lua"),
    include_str!("lua/settle.lua"),
    include_str!("lua/walk.lua"),
    include_str!("lua/dequeue.lua"),
    include_str!("lua/session_calls.lua"),
    include_str!("lua/message_admin.lua"),
    include_str!("lua/bulk.lua"),
    include_str!("lua/shard_admin.lua"),
    include_str!("lua/see.lua"),
];

/// The sources of rights, of the news that servers have of each other, and of what they share beside the shards.
const STORE_SOURCES: [&str; 6] = [
    include_str!("lua/rights.lua"),
    include_str!("lua/news.lua"),
    include_str!("lua/steps.lua"),
    include_str!("lua/catalog.lua"),
    include_str!("lua/fleet.lua"),
    include_str!("lua/directory.lua"),
];

/// The names of the functions.
const REGISTER: &str = include_str!("lua/register.lua");

/// In place of a state where there is none.
pub(super) const NO_STATE: u8 = 255;

/// The ways to settle, in the order of their numbers.
pub(super) const VERBS: [SettleAction; 4] =
    [SettleAction::Complete, SettleAction::Cancel, SettleAction::Fail, SettleAction::Release];

/// The origins of a cancellation, by their numbers.
pub(super) const CANCELED_BY: [(&str, u8); 4] = [("Worker", 1), ("Request", 2), ("Purge", 3), ("Ttl", 4)];

/// The library, whole.
#[derive(Clone, Debug)]
pub struct QueueLibrary {
    /// The hash in its name and in those of its functions.
    pub hash: String,
    /// Its name.
    pub name: String,
    /// Its code, as FUNCTION LOAD takes it.
    pub code: String,
}

impl QueueLibrary {
    /// Assembles the library. O(length).
    pub fn assemble() -> Self {
        let sources = SOURCES.iter().chain(&STORE_SOURCES);
        let blocks: String = sources.map(|source| format!("do\n{source}end\n")).collect();
        let body = format!("{}\n{FRAME}\n{blocks}{REGISTER}", constants());
        let digest = Sha256::digest(body.as_bytes());
        let hash: String = digest[..8].iter().fold(String::new(), |mut hash, byte| {
            let _ = write!(hash, "{byte:02x}"); // writing to a string does not fail
            hash
        });
        let name = format!("tallystone_{hash}");
        let code = format!("#!lua name={name}\nlocal HASH = '{hash}'\n{body}");
        Self { hash, name, code }
    }

    /// The full name of a function.
    pub fn function(&self, short: &str) -> String {
        format!("{short}_{}", self.hash)
    }
}

fn code_of<T: PartialEq>(all: &[T], one: &T) -> u8 {
    let at = all.iter().position(|known| known == one).expect("the list has all of them");
    u8::try_from(at).expect("a short list")
}

pub(super) fn verb_code(verb: SettleAction) -> u8 {
    code_of(&VERBS, &verb)
}

/// A Lua table of names and numbers.
fn named(table: &str, entries: impl IntoIterator<Item = (String, u64)>) -> String {
    let entries: Vec<String> = entries.into_iter().map(|(name, number)| format!("{name} = {number}")).collect();
    format!("local {table} = {{{}}}\n", entries.join(", "))
}

fn constants() -> String {
    let mut lua = String::from("-- The tables and limits of the core.\n");
    let states = MessageState::ALL.map(|state| (format!("{state:?}"), state as u64));
    lua += &named("STATE", states);
    lua += &named("TRIGGER", TRIGGERS.map(|trigger| (format!("{trigger:?}"), u64::from(trigger_code(trigger)))));
    lua += &named("VERB", VERBS.map(|verb| (format!("{verb:?}"), u64::from(verb_code(verb)))));
    lua += &named("CANCELED", CANCELED_BY.map(|(name, number)| (name.to_owned(), u64::from(number))));
    lua += &named("GUARD", Guard::ALL.iter().zip(0..).map(|(guard, number)| (format!("{guard:?}"), number)));
    let state = |state: Option<MessageState>| state.map_or(NO_STATE, |state| state as u8);
    lua += "local TABLE = { -- from, trigger, guard, to\n";
    for (row, guard) in guarded_rows() {
        let (from, to) = (state(row.from), state(row.to));
        let _ = writeln!(lua, "  {{{from}, {}, {}, {to}}},", trigger_code(row.trigger), code_of(&Guard::ALL, &guard));
    }
    lua += "}\n";
    let attempts: Vec<String> = (0..=17).map(|attempt| attempt_step(attempt).to_string()).collect();
    let _ = writeln!(lua, "local ATTEMPT_STEP = {{{}}}", attempts.join(", "));
    let times: Vec<String> = TIME_STEP_MILLIS.iter().map(|millis| (millis * 1_000).to_string()).collect();
    let _ = writeln!(lua, "local TIME_STEP = {{{}}} -- microseconds", times.join(", "));
    lua + &limits() + &store_limits() + &rights()
}

/// The commands of the functions, for the look at the rights of a caller.
fn rights() -> String {
    let row = |command: &str| {
        let words: Vec<String> = command.split(' ').map(|word| format!("'{word}'")).collect();
        format!("{{{}}}", words.join(", "))
    };
    format!("local RIGHTS = {{{}}} -- without their keys\n", OF_FUNCTIONS.map(row).join(", "))
}

fn limits() -> String {
    let micros = |duration| micros_of(duration).unsigned_abs();
    let of = |name: &str, number: u64| (name.to_owned(), number);
    named(
        "LIMIT",
        [
            of("releases", u64::from(RELEASES_FREE_MAX)),
            of("updates", UPDATES_KEPT_MAX as u64),
            of("session_calls", SESSION_CALLS_KEPT as u64),
            of("session_kept", micros(SESSION_KEPT)),
            of("sessions", SESSIONS_MAX as u64),
            of("token_ahead", micros(TOKEN_AHEAD_MAX)),
            of("reused_id_repeated", micros(REUSED_ID_REPEATED_MAX)),
            of("priority", PRIORITY_MAX.unsigned_abs()),
            of("invisibility", micros(INVISIBILITY_MAX)),
            of("signatures", TALLIED_SIGNATURES_MAX as u64),
            of("key_sets", COUNTED_KEY_SETS_MAX as u64),
            of("due", DEQUEUE_DUE_MIN as u64),
            of("heartbeat_leases", REDIS_HEARTBEAT_LEASES_MAX as u64),
            of("minute", micros(REDIS_READY_AGE_PRECISION)),
            of("cancels", BULK_MESSAGES_MAX as u64),
            of("parkings", DEQUEUE_PARKINGS_MAX as u64),
            of("rechecked", REDIS_FUNCTION_ITEMS_MAX as u64),
            of("value_limits", VALUE_LIMITS_MAX as u64),
            of("holders", EXPLAIN_HOLDERS_MAX as u64),
            of("items", REDIS_FUNCTION_ITEMS_MAX as u64),
            of("quiet", micros(REDIS_QUIET_TIME)),
        ],
    )
}

/// The bounds of what servers share beside the shards.
fn store_limits() -> String {
    let of = |name: &str, number: usize| (name.to_owned(), number as u64);
    let limits = [
        of("requests", QUEUE_REQUESTS_KEPT_MAX),
        of("operations", OPERATIONS_MAX),
        of("session_ends", SESSION_ENDS_KEPT_MIN),
        of("session_shards", SESSION_SHARDS_MAX),
        of("changes_looked_at", REDIS_CHANGES_LOOKED_AT_MAX),
        of("rows", REDIS_ROWS_A_CALL_MAX),
        ("heard_late".to_owned(), micros_of(SESSION_HEARD_LATE).unsigned_abs()),
    ];
    named("SHARED", limits)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use tallystone_domain::queue::messages::state_machine::row_shapes;

    #[test]
    fn the_library_has_every_row_of_the_table_under_its_number() {
        let code = QueueLibrary::assemble().code;
        let table = code.split("local TABLE = {").nth(1).and_then(|rest| rest.split("\n}\n").next());
        let rows: Vec<&str> = table.expect("a table").lines().skip(1).collect();
        assert_eq!(rows.len(), row_shapes().count());
        for (row, shape) in rows.iter().zip(row_shapes()) {
            assert!(row.contains(&format!(", {}, ", trigger_code(shape.trigger))), "{row}");
        }
    }

    /// The names that follow a prefix in Lua.
    fn fields<'c>(code: &'c str, prefix: &str) -> BTreeSet<&'c str> {
        let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        let begins = code.match_indices(prefix).filter(|(at, _)| !code[..*at].ends_with(is_name));
        let name = |(at, _): (usize, &str)| code[at + prefix.len()..].split(|letter| !is_name(letter)).next();
        begins.filter_map(name).filter(|name| !name.is_empty()).collect()
    }

    #[test]
    fn every_call_sets_every_field_of_the_state_that_calls_share() {
        let used: BTreeSet<&str> = SOURCES.iter().chain(&STORE_SOURCES).flat_map(|code| fields(code, "S.")).collect();
        let opening =
            FRAME.split("local function forget_last(s)").nth(1).and_then(|rest| rest.split("F.raise(epoch").next());
        let set = fields(opening.expect("what opens a call"), "s.");
        assert!(set.len() > 40 && used.len() > 40, "{set:?} {used:?}");
        let unset: Vec<&str> = used.union(&fields(FRAME, "S.")).filter(|name| !set.contains(**name)).copied().collect();
        assert!(unset.is_empty(), "a call would see what another one left in {unset:?}");
    }

    #[test]
    fn the_name_is_that_of_the_code_and_every_function_has_it() {
        let (one, other) = (QueueLibrary::assemble(), QueueLibrary::assemble());
        assert_eq!((&one.name, &one.code), (&other.name, &other.code));
        assert!(one.code.starts_with(&format!("#!lua name={}\n", one.name)));
        assert_eq!(one.function("enq"), format!("enq_{}", one.hash));
        let of_shards = ["enq", "upd", "deq", "set", "ses", "msg", "bulk", "swp", "cfg", "new", "del", "see"];
        let of_store = ["cat", "req", "mem", "opr", "dir", "look"];
        for function in of_shards.into_iter().chain(of_store) {
            let guarded = format!("F.guarded(F.{function})");
            let registered = one.code.lines().find(|line| line.contains(&format!("'{function}_' .. HASH")));
            assert!(registered.is_some_and(|line| line.contains(&guarded)), "{function}: {registered:?}");
        }
        assert_eq!(one.code.matches("register_function(").count(), of_shards.len() + of_store.len() + 1, "and `may`");
    }

    #[test]
    fn every_command_of_the_functions_is_among_the_rights_that_are_asked_for() {
        const WORDS: [&str; 8] = ["COUNT", "INCRBY", "LIMIT", "LT", "MAXLEN", "MYID", "PX", "WITHSCORES"];
        // A refusal leaves nothing: the function asks for them in a way that does not fail.
        const OF_NEWS: [&str; 3] = ["CLUSTER", "PUBLISH", "SPUBLISH"];
        let code = QueueLibrary::assemble().code;
        let lines =
            code.lines().filter(|line| !line.starts_with("local RIGHTS = ") && !line.trim_start().starts_with("--"));
        let quoted: BTreeSet<&str> = lines.flat_map(|line| line.split('\'').skip(1).step_by(2)).collect();
        let is_word = |word: &&str| word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase());
        let commands =
            quoted.into_iter().filter(is_word).filter(|word| !WORDS.contains(word) && !OF_NEWS.contains(word));
        let asked: BTreeSet<&str> = OF_FUNCTIONS.iter().filter_map(|command| command.split(' ').next()).collect();
        assert_eq!(commands.collect::<BTreeSet<_>>(), asked);
    }
}
