//! The count cache on a real memcached that dies, is emptied, comes back, hangs or is cut off: no exact counter fails for
//! it, no clear is undone by it, and it is used while it is well.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::servers::Memcached;
use crate::servers::proxy::{Fault, Proxy, Wire};
use crate::support::harness::{Launch, Server, eventually, http};

/// How long anything may take to come back on a busy machine.
const BACK_WITHIN: Duration = Duration::from_secs(60);

/// A development server whose namespace `shared` has its count cache in memcached, behind a proxy.
struct House {
    server: Server,
    proxy: Proxy,
}

impl House {
    fn new(folder: &Path, memcached: SocketAddr) -> Self {
        let proxy = Proxy::start(memcached, Wire::Plain).expect("a proxy");
        let server = Launch::dev(&folder.join("data")).arg("--memcached").arg(&proxy.address().to_string()).start();
        let house = Self { server, proxy };
        for (name, counter_type) in [("shared", "EVENTUAL"), ("sharp", "ACCURATE")] {
            house.expect(
                "admin.v1.NamespaceService/CreateNamespace",
                &json!({"namespace": {"name": name, "counterType": counter_type, "storage": {"cacheCluster": "memcached"}}}),
            );
        }
        house
    }

    fn call(&self, method: &str, body: &Value) -> (u16, Value) {
        let path = format!("/tallystone.{method}");
        let headers = [("content-type", "application/json")];
        let answer = http(self.server.address, "POST", &path, &headers, &body.to_string()).expect("the server answers");
        (answer.status, serde_json::from_str(&answer.body).unwrap_or(Value::String(answer.body)))
    }

    fn expect(&self, method: &str, body: &Value) -> Value {
        let (status, answer) = self.call(method, body);
        assert_eq!(status, 200, "{method} {body}: {answer}\n{}", self.server.printed());
        answer
    }

    fn add(&self, namespace: &str) {
        let body = json!({"namespace": namespace, "counterName": "views", "delta": 1});
        self.expect("counter.v1.CounterService/AddCount", &body);
    }

    fn clear(&self, namespace: &str) -> Value {
        let body = json!({"namespace": namespace, "counterName": "views"});
        self.expect("counter.v1.CounterService/ClearCount", &body)
    }

    fn get(&self, namespace: &str) -> Value {
        let body = json!({"namespace": namespace, "counterName": "views"});
        self.expect("counter.v1.CounterService/GetCount", &body)
    }

    /// Waits until the rolled-up count has come to a value.
    fn until_rolled_up(&self, count: i64) {
        let is_there = || self.get("shared")["count"] == json!(count.to_string());
        assert!(eventually(BACK_WITHIN, is_there), "{} instead of {count}", self.get("shared"));
    }

    fn metric(&self, name: &str) -> u64 {
        let page = self.server.get("/metrics").body;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("{name} is missing in:\n{page}"))
    }

    /// Waits until clears reach the cache again.
    fn until_reached(&self) {
        let is_reached = || self.clear("shared")["visibleAt"].is_null();
        assert!(eventually(BACK_WITHIN, is_reached), "the cache is not reached any more");
    }

    /// Adds, clears and reads: nothing fails, and the accurate count is right at every moment.
    fn count_on(&self) {
        let began = Instant::now();
        self.clear("sharp");
        for count in 1..=10 {
            self.add("sharp");
            let reading = self.get("sharp");
            assert_eq!(reading["count"], json!(count.to_string()), "{reading}");
            assert_eq!(reading["exactness"], "EXACTNESS_UP_TO_DATE", "{reading}");
        }
        self.add("shared");
        self.get("shared");
        assert!(began.elapsed() < BACK_WITHIN, "memcached is waited for again and again: {:?}", began.elapsed());
    }
}

fn memcached() -> Memcached {
    Memcached::start().unwrap_or_else(|why| panic!("{why}"))
}

/// Asks memcached for as many bytes.
fn said(server: SocketAddr, command: &str) -> String {
    let mut connection = TcpStream::connect(server).expect("memcached takes connections");
    connection.write_all(format!("{command}\r\nquit\r\n").as_bytes()).expect("it reads");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("it answers");
    answer
}

#[test]
fn counts_are_served_from_memcached_and_the_value_there_is_the_one_that_was_rolled() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let memcached = memcached();
    let house = House::new(folder.path(), memcached.address());
    for _ in 0..5 {
        house.add("shared");
    }
    house.until_rolled_up(5);
    let hits = || house.metric("tallystone_count_cache_reads_total{outcome=\"hit\"}");
    let before = hits();
    let served = || {
        house.get("shared");
        hits() > before
    };
    assert!(eventually(BACK_WITHIN, served), "no read is served from the cache");
    let calls = house.metric("tallystone_memcached_calls_total{cluster=\"memcached\"}");
    assert!(calls > 0, "it is memcached that is asked");
    assert_eq!(house.get("shared")["count"], "5");
}

#[test]
fn a_memcached_that_dies_is_emptied_and_comes_back_fails_no_exact_counter() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let memcached = memcached();
    let house = House::new(folder.path(), memcached.address());
    house.count_on();
    assert!(said(memcached.address(), "flush_all").starts_with("OK"));
    house.count_on();
    let address = memcached.kill();
    house.count_on();
    let cleared = house.clear("shared");
    assert!(cleared["visibleAt"].is_string(), "a clear that cannot reach the cache says when it is visible: {cleared}");
    assert_eq!(house.get("shared")["count"], "0", "this server shows it at once");
    let _memcached = Memcached::start_at(address).expect("the port is free again");
    house.count_on();
    house.until_reached();
    house.count_on();
}

#[test]
fn a_memcached_that_is_cut_off_hangs_or_loses_answers_fails_no_exact_counter() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let memcached = memcached();
    let house = House::new(folder.path(), memcached.address());
    for fault in [Fault::Cut, Fault::Hang, Fault::LoseAnswers] {
        house.proxy.set(fault);
        house.count_on();
        house.proxy.set(Fault::None);
        house.count_on();
        house.until_reached();
    }
    assert!(house.proxy.lost() > 0, "answers were lost");
}

#[test]
fn a_clear_that_could_not_reach_the_cache_is_not_undone_by_it_when_it_is_back() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let memcached = memcached();
    let house = House::new(folder.path(), memcached.address());
    for _ in 0..7 {
        house.add("shared");
    }
    house.until_rolled_up(7);
    // The value stays in memcached over the cut, and the clear does not reach it there.
    house.get("shared");
    house.proxy.set(Fault::Cut);
    let cleared = house.clear("shared");
    assert!(cleared["visibleAt"].is_string(), "{cleared}");
    house.proxy.set(Fault::None);
    let began = Instant::now();
    let shows_old = || house.get("shared")["count"] != "0";
    assert!(!eventually(Duration::from_secs(12), shows_old), "after {:?}: {}", began.elapsed(), house.get("shared"));
}
