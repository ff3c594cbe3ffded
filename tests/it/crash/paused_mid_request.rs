//! Servers that are stopped at a known place: between the admission of an add and its write, and in the middle of a roll
//! while another roller takes the counter over. A proxy keeps the request back that the server has just sent; the node does
//! it while the server stands still.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use uuid::Uuid;

use super::fleet::nothing_was_told_too_early;
use super::rounds;
use crate::fleet::several_servers::{add_to, metric};
use crate::servers::cassandra;
use crate::servers::proxy::{Proxy, Wire};
use crate::support::harness::{HttpAnswer, Launch, Server, eventually, http_within};

/// What anything may take on a busy machine, a lapse of half a minute included.
const WITHIN: Duration = Duration::from_secs(180);
const SERVICE: &str = "/tallystone.counter.v1.CounterService";

/// A server that reaches Cassandra by a proxy.
fn behind(keyspace: &str, roles: &str) -> (Proxy, Server) {
    let node = cassandra::shared().unwrap_or_else(|why| panic!("{why}"));
    let proxy = Proxy::start(node, Wire::Plain).expect("a proxy");
    let server = start_at(proxy.address(), keyspace, roles);
    (proxy, server)
}

fn start(keyspace: &str, roles: &str) -> Server {
    start_at(cassandra::shared().unwrap_or_else(|why| panic!("{why}")), keyspace, roles)
}

fn start_at(node: std::net::SocketAddr, keyspace: &str, roles: &str) -> Server {
    let launch = Launch::dev_on_cassandra(node).arg("--set").arg(&format!("clusters.cassandra.keyspace={keyspace}"));
    launch.arg("--roles").arg(roles).start()
}

/// An add of one under a token, with more time than any stop takes.
fn add(server: &Server, name: &str, token: &Uuid) -> HttpAnswer {
    let token = json!({"token": token.to_string()});
    let body = json!({"namespace": "default", "counter_name": name, "delta": 1, "idempotency_token": token});
    let headers = [("content-type", "application/json"), ("grpc-timeout", "3M")];
    let call = ("POST", &*format!("{SERVICE}/AddCount"));
    http_within(WITHIN, server.address, call, &headers, &body.to_string()).expect("the server answers")
}

fn verdict(server: &Server, name: &str, token: &Uuid) -> String {
    let token = json!({"token": token.to_string()});
    let body = json!({"namespace": "default", "counter_name": name, "idempotency_token": token});
    let answer = server.post(&format!("{SERVICE}/CheckToken"), &body.to_string());
    answer.json()["verdict"].as_str().unwrap_or_default().to_owned()
}

fn comes_to(server: &Server, name: &str, token: &Uuid, expected: &str) {
    let mut last = String::new();
    let is_so = eventually(WITHIN, || {
        last = verdict(server, name, token);
        last == expected
    });
    assert!(is_so, "{name}: {last} instead of {expected}\n{}", server.printed());
}

fn rolled_up(server: &Server, name: &str) -> Value {
    let body = json!({"namespace": "default", "counter_name": name, "freshness": "ROLLED_UP"});
    server.post(&format!("{SERVICE}/GetCount"), &body.to_string()).json()
}

/// Waits until a counter is rolled up with a count, and is not behind.
fn counts(server: &Server, name: &str, expected: i64) {
    let mut last = Value::Null;
    let is_so = eventually(WITHIN, || {
        last = rolled_up(server, name);
        // What is 0 is left out of the answer or written as such.
        let count = last["count"].as_str().unwrap_or("0");
        last.is_object() && count == expected.to_string() && last["behind"] != json!(true)
    });
    assert!(is_so, "{name} is not {expected}: {last}\n{}", server.printed());
}

#[test]
fn a_server_stopped_between_admission_and_write_acknowledges_nothing_after_its_lease() {
    let ((proxy, victim), witness) = (behind("in_between", "writer"), start("in_between", "writer,roller"));
    for (stop, asked_before) in [(Stop::Short, false), (Stop::PastTheLease, true), (Stop::PastTheLease, false)] {
        let name = format!("{stop:?}-{asked_before}");
        add_to(&victim, "default", &name, 1);
        counts(&witness, &name, 1);
        let token = Uuid::now_v7();
        let answer = thread::scope(|scope| {
            proxy.keep_back(&name, 0);
            let asked = scope.spawn(|| add(&victim, &name, &token));
            assert!(eventually(WITHIN, || proxy.keeps_back()), "the row of {name} is sent");
            victim.signal(libc::SIGSTOP);
            assert_eq!(verdict(&witness, &name, &token), "VERDICT_PENDING", "nobody can know yet");
            if stop == Stop::PastTheLease {
                // One that was never sent is settled as soon as its time is closed, and so is one made before it.
                let (later, settled) = (Uuid::now_v7(), "VERDICT_NOT_APPLIED");
                comes_to(&witness, &name, &later, settled);
                if asked_before {
                    comes_to(&witness, &name, &token, settled);
                }
            }
            proxy.let_go();
            victim.signal(libc::SIGCONT);
            asked.join().expect("it is answered")
        });
        let is_acknowledged = answer.status == 200;
        assert!(!is_acknowledged || stop == Stop::Short, "{name}: acknowledged after the lease: {}", answer.body);
        // The lease held, or the row came to stand in the log before anybody asked.
        let applied = !asked_before;
        for server in [&witness, &victim] {
            comes_to(server, &name, &token, if applied { "VERDICT_APPLIED" } else { "VERDICT_NOT_APPLIED" });
        }
        counts(&witness, &name, 1 + i64::from(applied));
        add_to(&victim, "default", &name, 10);
        counts(&witness, &name, 11 + i64::from(applied));
    }
    for server in [victim, witness] {
        nothing_was_told_too_early(&server);
        assert!(server.stop().success(), "an orderly stop");
    }
}

/// How long the victim stands still.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stop {
    Short,
    PastTheLease,
}

#[test]
fn two_rollers_on_one_counter_undo_nothing_of_each_other() {
    let writer = start("two_rollers", "writer");
    let (proxy, roller) = behind("two_rollers", "roller");
    // Four requests of a roll name the counter. The last one puts the checkpoint; the short form keeps that one back.
    for at in (0..4).rev().take(rounds(1, 4) as usize) {
        let name = format!("rolled-{at}");
        add_to(&writer, "default", &name, 1);
        counts(&writer, &name, 1);
        let lapsed = metric(&writer, "tallystone_fleet_members_lapsed_total");
        proxy.keep_back(&name, at);
        add_to(&writer, "default", &name, 10);
        assert!(eventually(WITHIN, || proxy.keeps_back()), "request {at} of the roll is sent");
        let lapses = metric(&roller, "tallystone_fleet_leases_lapsed_total");
        roller.signal(libc::SIGSTOP);
        let heir = start("two_rollers", "roller");
        // Whoever sees the lapse first removes the member, so the other one may not count it.
        let is_over = || {
            [&writer, &heir].map(|server| metric(server, "tallystone_fleet_members_lapsed_total")).iter().sum::<f64>()
                > lapsed
        };
        assert!(eventually(WITHIN, is_over), "{}", writer.printed());
        add_to(&writer, "default", &name, 100);
        counts(&heir, &name, 111);
        // The node does what was sent, a write of before its heir's too; then the roll goes on with what it knew.
        proxy.let_go();
        roller.signal(libc::SIGCONT);
        let is_back = || metric(&roller, "tallystone_fleet_leases_lapsed_total") > lapses;
        assert!(eventually(WITHIN, is_back), "{}", roller.printed());
        for server in [&writer, &heir, &roller] {
            let after = rolled_up(server, &name);
            assert_eq!(after["count"], json!("111"), "{after}");
            counts(server, &name, 111);
        }
        assert!(heir.stop().success(), "an orderly stop");
        add_to(&writer, "default", &name, 1_000);
        counts(&writer, &name, 1_111);
        let body = json!({"namespace": "default", "counter_name": name, "repair": false});
        let recount = writer.post(&format!("{SERVICE}/RecountCounter"), &body.to_string()).json();
        assert_eq!(recount["countAfter"], json!("1111"), "{recount}");
        assert!(recount["differences"].as_array().is_none_or(Vec::is_empty), "{recount}");
    }
    for server in [writer, roller] {
        assert!(server.stop().success(), "an orderly stop");
    }
}
