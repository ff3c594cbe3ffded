//! Starts that cannot be: each ends within 10 s with the documented exit code, says what is wrong and what to do, and keeps
//! secrets to itself.

use std::net::TcpListener;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use tallystone::adapters::cassandra::Credentials;

use crate::engines::cassandra::{node, query, run, settings, tallystone};
use crate::servers::Memcached;
use crate::servers::cassandra::Cassandra;
use crate::servers::proxy::{Proxy, Wire};
use crate::support::harness::{Launch, eventually};
use crate::support::yardstick::Yardstick;

/// What a start that is refused may take.
const REFUSED_WITHIN: Duration = Duration::from_secs(10);
/// How often a start is tried that was over before it came to the question at which its cluster falls silent: the machine was
/// too slow for the test, and the law is about that question.
const TRIES: usize = 5;
/// How late each answer of a slow cluster comes. A start asks some seventy questions, some of them at once.
const SLOW: Duration = Duration::from_secs(1);
/// How long a user may take to be known to a node that has just started.
const KNOWN_WITHIN: Duration = Duration::from_secs(60);

/// Runs `server start`, which must refuse in time with a code and words; answers what it printed.
fn expect_refusal(what: &str, settings: &[String], code: i32, words: &[&str]) -> String {
    let refused = || {
        let began = Instant::now();
        let (ended, printed) = run(&["server", "start"], settings);
        assert_eq!(ended, code, "{what}: {printed}");
        assert!(words.iter().all(|word| printed.contains(word)), "{what}: {words:?} in: {printed}");
        (began, printed)
    };
    let (began, printed) = refused();
    if began.elapsed() < REFUSED_WITHIN {
        return printed;
    }
    // It may be the machine that is slow. Beside runs that do nothing, another start shows which of the two it is.
    let yardstick = beside_empty_runs();
    let (began, printed) = refused();
    yardstick.holds(began, REFUSED_WITHIN, what);
    printed
}

fn beside_empty_runs() -> Yardstick {
    Yardstick::of(|| drop(Command::new(env!("CARGO_BIN_EXE_tallystone")).arg("--version").output()))
}

/// Applies the migrations, as the refusals say to do.
fn migrated(settings: &[String]) {
    let (code, printed) = run(&["migrate", "apply"], settings);
    assert_eq!(code, 0, "{printed}");
}

/// Settings with some others on top.
fn with(mut settings: Vec<String>, more: &[&str]) -> Vec<String> {
    settings.extend(more.iter().flat_map(|setting| ["--set".to_owned(), (*setting).to_owned()]));
    settings
}

#[test]
fn a_cluster_that_is_not_there_ends_a_start_as_unavailable() {
    // It takes connections, and nobody ever answers on them.
    let hung = TcpListener::bind("127.0.0.1:0").and_then(|listener| Ok((listener.local_addr()?, listener)));
    let (hung, _listener) = hung.expect("a free port");
    let other = Memcached::start().unwrap_or_else(|why| panic!("{why}"));
    for (what, server) in [
        // Nobody listens on port 1.
        ("a port without anybody", "127.0.0.1:1".to_owned()),
        ("a host that nobody knows", "no-such-host.invalid:9042".to_owned()),
        ("a port on which nobody answers", hung.to_string()),
        // Of the addresses of examples; what is sent there gets lost.
        ("an address where nobody is", "192.0.2.1:9042".to_owned()),
        ("a port of something else", other.address().to_string()),
    ] {
        let words =
            [&format!("no Cassandra node answers at {server}"), "check that the cluster is running", "CQL port"];
        expect_refusal(what, &settings(&server, "absent"), 5, &words);
    }
}

#[test]
fn a_keyspace_that_does_not_fit_is_refused_with_what_to_do() {
    let node = node().to_string();
    let migrate = "`tallystone migrate apply`";
    expect_refusal("no keyspace", &settings(&node, "unmade"), 4, &["keyspace unmade does not exist", migrate]);

    let replication = "{'class': 'NetworkTopologyStrategy', 'datacenter1': 1}";
    query(&node, None, &format!("CREATE KEYSPACE IF NOT EXISTS older WITH replication = {replication}"));
    let older = settings(&node, "older");
    let lacks = ["the schema of keyspace older lacks migrations of this release: 1 (tables)", migrate];
    expect_refusal("a keyspace without tables", &older, 4, &lacks);
    migrated(&older);
    let forget = || query(&node, None, "DELETE FROM older.schema_migrations WHERE slot = 0 AND number = 1");
    forget();
    expect_refusal("an older schema", &older, 4, &lacks);
    let row = |number: i32| {
        format!("INSERT INTO older.schema_migrations (slot, number, name, digest) VALUES (0, {number}, 'x', 0)")
    };
    query(&node, None, &row(1));
    let differs =
        ["migration 1 of keyspace older was applied with different text", "start the release that applied it"];
    expect_refusal("another text", &older, 4, &differs);
    forget();
    migrated(&older);
    query(&node, None, &row(99));
    let newer = ["keyspace older is newer than this release: it has migration 99", "start a newer release"];
    expect_refusal("a newer schema", &older, 4, &newer);
}

#[test]
fn settings_that_do_not_fit_the_cluster_are_refused_by_name() {
    let good = || settings(&node().to_string(), "unfit");
    for (what, more, code, words) in [
        (
            "no such data centre",
            "clusters.main.data_center=mars",
            4,
            ["data centre mars does not exist", "datacenter1"],
        ),
        ("no such role", "server.roles=writer,reader", 2, ["server.roles", "unknown role reader"]),
        ("no role at all", "server.roles=", 2, ["server.roles", "the roles are writer and roller"]),
        ("no such setting, such as a region", "server.region=eu", 2, ["server.region", "--set"]),
        ("nor one for the id of a server, which is drawn", "server.id=1", 2, ["server.id", "--set"]),
        ("no such file", "clusters.main.password_file=/nowhere", 2, ["/nowhere", "password_file of the cluster"]),
    ] {
        expect_refusal(what, &with(good(), &[more, "clusters.main.user=ann"]), code, &words);
    }
    let near = ["clusters.near.kind=memcached", "clusters.near.servers=127.0.0.1:1"];
    let words = ["no memcached server of cluster near is usable: 127.0.0.1:1: ", "correct clusters.near.servers"];
    expect_refusal("no memcached", &with(good(), &near), 5, &words);
}

#[test]
fn a_user_who_may_not_do_what_a_server_does_is_told_what_to_grant() {
    let started = Cassandra::start(|settings| {
        settings.with_passwords = true;
        settings.survives_kills = false;
    });
    let node = started.unwrap_or_else(|why| panic!("{why}"));
    let address = node.address().to_string();
    let as_user = |user: &str, password: &str| {
        let [user, password] = [format!("clusters.main.user={user}"), format!("clusters.main.password={password}")];
        with(settings(&address, "guarded"), &[&user, &password])
    };
    // The node makes its first user when it is up.
    let superuser = as_user("cassandra", "cassandra");
    let made = || run(&["migrate", "apply"], &superuser).0 == 0;
    assert!(eventually(KNOWN_WITHIN, made), "{}", run(&["migrate", "apply"], &superuser).1);
    let grant = |statement: &str| {
        let credentials = Credentials { user: "cassandra".to_owned(), password: "cassandra".into() };
        query(&address, Some(credentials), statement);
    };
    grant("CREATE ROLE ann WITH PASSWORD = 'hunter2' AND LOGIN = true");

    let wrong = ["rejects the credentials", "correct user and password"];
    expect_refusal("no user", &settings(&address, "guarded"), 4, &wrong);
    for (what, user, password) in [("no such user", "bob", "hunter2"), ("a wrong password", "ann", "hunter3")] {
        let printed = expect_refusal(what, &as_user(user, password), 4, &wrong);
        assert!(!printed.contains(password), "a password is shown to nobody: {printed}");
    }
    let (_, shown) = run(&["server", "print-config"], &as_user("ann", "hunter2"));
    assert!(!shown.contains("hunter2"), "a password is shown to nobody");

    let ann = as_user("ann", "hunter2");
    let forbidden =
        ["lacks permissions on keyspace guarded", "grant SELECT, MODIFY, CREATE and DROP on keyspace guarded"];
    expect_refusal("no permission", &ann, 4, &forbidden);
    grant("GRANT SELECT ON KEYSPACE guarded TO ann");
    expect_refusal("reading only", &ann, 4, &forbidden);
    grant("GRANT CREATE ON KEYSPACE guarded TO ann");
    expect_refusal("no writing", &ann, 4, &forbidden);
    grant("GRANT MODIFY ON KEYSPACE guarded TO ann");
    grant("GRANT DROP ON KEYSPACE guarded TO ann");
    let command = tallystone(&["server", "start"], &ann);
    assert!(Launch::of(command).start().stop().success(), "that is all it needs");
}

#[test]
fn a_start_in_another_data_centre_than_the_one_that_writes_is_refused() {
    let node = node().to_string();
    let own = settings(&node, "moved");
    migrated(&own);
    // One node is in one data centre; so the keyspace is told that servers on mars were first.
    let from_mars = || {
        let row = "(part, kind, name, id, version, value) VALUES (1, 5, '', 0, 0, textAsBlob('mars'))";
        query(&node, None, &format!("INSERT INTO moved.catalog {row} IF NOT EXISTS"));
    };
    from_mars();
    let words =
        ["keyspace moved is written in data centre mars, but this server is in datacenter1", "docs/operating.md"];
    for roles in ["writer,roller", "writer", "roller"] {
        expect_refusal(roles, &with(own.clone(), &[&format!("server.roles={roles}")]), 4, &words);
    }
    let page = include_str!("../../../docs/operating.md");
    let forget =
        page.lines().find(|line| line.starts_with("DELETE FROM KEYSPACE.catalog")).expect("it says how to move");
    query(&node, None, forget.replace("KEYSPACE", "moved").trim_end_matches(';'));
    let starts = || Launch::of(tallystone(&["server", "start"], &own)).start().stop().success();
    assert!(starts(), "what the page says to do is what helps");
    from_mars();
    assert!(starts(), "the data centre of the first server stays");
}

#[test]
fn a_cluster_that_falls_silent_or_slow_at_any_step_of_a_start_ends_it_in_time() {
    let silent = |server: &str| {
        with(settings(server, "silent"), &["clusters.main.request_timeout_ms=60000"]) // not what ends it
    };
    migrated(&silent(&node().to_string()));
    let (absent, unusable) = ("no Cassandra node answers at", "keyspace silent is not available");
    let steps = [
        // What begins a connection.
        ("CQL_VERSION", absent),
        ("keyspaces WHERE keyspace_name = ?", unusable),
        // The question in which data centre the keyspace is written.
        ("kind = 5", unusable),
        ("SELECT shard, sealed_to FROM", unusable),
        // Whose the keyspace is.
        ("home ", unusable),
        // The first heartbeat says where this server listens.
        ("127.0.0.1:", "the server cannot start serving keyspace silent: no answer in time"),
    ];
    // Whether the start came to ask it, and was refused by then.
    let is_refused = |(at, word): &(&str, &str), yardstick: Option<&Yardstick>| {
        let proxy = Proxy::start(node(), Wire::Plain).expect("a proxy");
        proxy.hang_at(at);
        let began = Instant::now();
        let (code, printed) = run(&["server", "start"], &silent(&proxy.address().to_string()));
        let took = began.elapsed();
        assert_eq!(code, 5, "{at}: {printed}");
        if !proxy.hangs() {
            return false;
        }
        assert!(printed.contains(word), "{at}: {word:?} in: {printed}");
        if let Some(yardstick) = yardstick {
            yardstick.holds(began, REFUSED_WITHIN, at);
        }
        yardstick.is_some() || took < REFUSED_WITHIN
    };
    // Two at a time: more of them would be slow by themselves.
    for steps in steps.chunks(2) {
        let refused: Vec<bool> = thread::scope(|scope| {
            let tries: Vec<_> = steps.iter().map(|step| scope.spawn(move || is_refused(step, None))).collect();
            tries.into_iter().map(|one| one.join().expect("no start panics")).collect()
        });
        for (step, _) in steps.iter().zip(refused).filter(|(_, refused)| !refused) {
            let yardstick = beside_empty_runs();
            assert!((0..TRIES).any(|_| is_refused(step, Some(&yardstick))), "it never came to ask {}", step.0);
        }
    }
    let proxy = Proxy::start(node(), Wire::Plain).expect("a proxy");
    proxy.delay_answers(SLOW);
    expect_refusal("every answer is late", &silent(&proxy.address().to_string()), 5, &["no answer in time"]);
}

#[test]
fn several_engines_of_which_some_are_silent_hold_a_start_up_no_longer_than_one() {
    let silence = || {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        (listener.local_addr().expect("it is bound").to_string(), listener)
    };
    let ((hung, _first), (deaf, _second)) = (silence(), silence());
    let cache = Memcached::start().unwrap_or_else(|why| panic!("{why}"));
    let near = ["clusters.near.kind=memcached".to_owned(), format!("clusters.near.servers={},{deaf}", cache.address())];
    let near = near.each_ref().map(String::as_str);
    let far = ["clusters.far.kind=cassandra".to_owned(), format!("clusters.far.servers={hung}")];
    let far = far.each_ref().map(String::as_str);
    let words = [&format!("no Cassandra node answers at {hung}"), "check that the cluster is running"];
    expect_refusal("a cache and a cluster", &with(settings(&hung, "absent"), &near), 5, &words);

    let home = settings(&node().to_string(), "alone");
    migrated(&home);
    let all = with(with(home, &near), &[&far[..], &["clusters.far.keyspace=far"]].concat());
    expect_refusal("the second cluster", &all, 5, &["cannot use [clusters.far]", words[0], words[1]]);
}
