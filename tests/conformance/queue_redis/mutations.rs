//! Mutations of the library: for each there is a random command or a comparison of the whole shard that tells.
//!
//! They show that the random test would notice such a mistake. Each replaces a text that the library has exactly once.

use std::collections::BTreeSet;
use std::sync::Arc;

use tallystone_redis::QueueLibrary;
use tallystone_redis::client::RedisCommand;
use tokio::task::JoinSet;

use super::keys::ShardKeys;
use super::random::run;
use super::server::{QueueServer, past_clock};
use crate::servers::redis::{Build, or_skip};

/// The seeds that are tried on each mutation, of 1,500 commands each.
const SEEDS: [u64; 8] = [2, 1, 4, 3, 5, 6, 7, 8];

/// What a mutation breaks, the text that it replaces, and what stands there then.
const MUTATIONS: [(&str, &str, &str); 33] = [
    (
        "a lease is proved by its epoch alone",
        "return M.lease ~= nil and M.lease.epoch == epoch and M.lease.serial == serial",
        "return M.lease ~= nil and M.lease.epoch == epoch",
    ),
    ("serials repeat", "  H.serial = serial\n", ""),
    ("sequences have holes", "H.sequence = H.sequence + 1", "H.sequence = H.sequence + 2"),
    ("versions stand still", "M.state, M.version = to, M.version + 1", "M.state = to"),
    ("releases are free for ever", "M.left, M.releases = M.left + 1, M.releases + 1", "M.left = M.left + 1"),
    ("a TTL loses against the end of a window", "M.ttl_at <= M.visible_at", "M.ttl_at > M.visible_at"),
    ("members stay in indexes", "elseif before and not after then", "elseif before and after then"),
    ("a session keeps leases that ended", "      put('ZREM', tag .. before, member)\n", ""),
    ("sessions never rest", "    R.held = R.held - 1\n", ""),
    ("a try bars itself", "D.attempt < R.bars[i].attempt", "D.attempt <= R.bars[i].attempt"),
    ("a full value is served", "return size(V.running) < limit_of(V)", "return size(V.running) <= limit_of(V)"),
    ("content of a repeat is not compared", "first.fingerprint ~= fingerprint", "false"),
    ("answers are not counted", "known.number, known.changed = known.number + 1, true", "known.changed = true"),
    ("waits are not counted", "    add(WAIT + time_step(waited), 1)\n", ""),
    ("depth by value only grows", "      entry.depth[leaves] = entry.depth[leaves] - 1\n", ""),
    ("flows of values are lost", "gone.flows[i] = gone.flows[i] + entry.flows[i]", "gone.flows[i] = gone.flows[i]"),
    ("a discard takes the young", "M.ended_at > B.ended_by", "M.ended_at < B.ended_by"),
    ("an expected version is not compared", "U.expected and U.expected ~= M.version", "false"),
    (
        "a purge forgets the invisible",
        "for state = STATE.Invisible, STATE.Errored do",
        "for state = STATE.Invisible + 1, STATE.Errored do",
    ),
    ("a shorter retention reaches nothing", "if F.has_flag(what, SHORTENS) then", "if false then"),
    ("a routing value is not compared", "F.routing_hash(M) ~= sub(ref, 18)", "false"),
    ("the first entry of an index that left it stays known", "if S.heads[name] == score then", "if false then"),
    (
        "a new first entry of an index is not noticed",
        "if first == false or first and score < first then",
        "if false then",
    ),
    (
        "a call that only reads changes the header that is kept",
        "K.raw, K.H = S.raw, H",
        "K.raw, K.H, H.m1 = S.raw, H, H.m1 + 1",
    ),
    ("what a sweep left of a page waits for the rest of it", "left.due == known.removed", "left.due > 0"),
    ("a finished message loses its priority", "if M.priority ~= floor(M.enqueued_at / 1000) then", "if false then"),
    ("a finished message loses its attempts", "if M.left ~= M.max - 1 then", "if false then"),
    ("a finished message loses the upper bytes of its times", "lasted = lasted + HIGH * byte(raw, at + 8)", ""),
    (
        "dequeues of different filters share a choice",
        "while is_exact and args[next_] and args[next_ + 6] == filter and is_plain(args, next_, seen) do",
        "while is_exact and args[next_] and is_plain(args, next_, seen) do",
    ),
    (
        "dequeues share a choice before what is due",
        "and not F.is_resting() and not F.is_overdue()",
        "and not F.is_resting()",
    ),
    ("a repeated dequeue shares a choice", "    if R.answered[i] == number then\n", "    if false then\n"),
    (
        "the first of several dequeues gets the rows of all",
        "part.rows, S.rows, D.at, D.parkings_left = S.rows, false, D.at + 1, LIMIT.parkings",
        "D.at, D.parkings_left = D.at + 1, LIMIT.parkings",
    ),
    ("whatever is finished is brief", "  if not fits(M, lasted, leased, kept) then\n", "  if false then\n"),
];

/// Whether random commands of a seed tell that the library on a server is wrong.
async fn is_noticed(server: &Arc<QueueServer>, seed: u64) -> bool {
    let server = Arc::clone(server);
    let mut running = JoinSet::new();
    running.spawn(async move {
        let clock = past_clock();
        let (queues, client) = (server.queues(&clock).await, server.client().await);
        run((&queues, &client), &clock, seed, &mut BTreeSet::new()).await
    });
    // The commands end with a panic where something is wrong.
    running.join_next().await.expect("it runs").is_err()
}

#[tokio::test]
async fn each_mutation_of_the_library_is_noticed_and_nothing_without_one() {
    let Some(server) = or_skip(QueueServer::start(Build::Redis7)) else { return };
    let server = Arc::new(server);
    let keys = ShardKeys::of_shard(server.client().await);
    let load = async |code: String| {
        keys.send(RedisCommand::new("FUNCTION").arg("LOAD").arg("REPLACE").arg(code)).await;
    };
    let code = QueueLibrary::assemble().code;
    load(code.clone()).await;
    for seed in SEEDS {
        assert!(!is_noticed(&server, seed).await, "seed {seed} complains of the library as it is");
    }
    let mut unnoticed = Vec::new();
    for (what, old, new) in MUTATIONS {
        assert_eq!(code.matches(old).count(), 1, "{what}: {old}");
        load(code.replace(old, new)).await;
        let mut by = None;
        for seed in SEEDS {
            if by.is_none() && is_noticed(&server, seed).await {
                by = Some(seed);
            }
        }
        match by {
            Some(seed) => println!("{what}: noticed with seed {seed}"),
            None => unnoticed.push(what),
        }
    }
    assert!(unnoticed.is_empty(), "not noticed: {unnoticed:?}");
}
