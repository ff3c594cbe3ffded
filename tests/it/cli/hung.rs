//! Servers that take connections and answer nothing, or nothing that can be understood.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::thread;

use super::Desk;

#[test]
fn a_read_that_gets_no_answer_is_unavailable_because_nothing_was_done() {
    let desk = Desk::set();
    // The system takes connections for a listener that nobody serves.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound address").to_string();
    // Time enough to send each on a busy machine. They wait it out together.
    let ask = |line: &str| desk.shell(&format!("tallystone --server {address} --timeout 3s {line}"));
    let reads = ["counter get views", "counter get a b", "counter ls", "counter top", "ns ls", "counter watch views"];
    let asked = thread::scope(|scope| {
        let ask = &ask;
        let asking = reads.map(|line| (line, scope.spawn(move || ask(line))));
        asking.map(|(line, asking)| (line, asking.join().expect("the command ends")))
    });
    for (line, ran) in asked {
        assert_eq!(ran.code, 5, "{line}: {}{}", ran.out, ran.err);
        let told = ran.err.starts_with("error: the server did not answer in time\n") && ran.err.contains(&address);
        assert!(told, "{line}: {}", ran.err);
    }
    let ran = ask("counter add views");
    assert_eq!(ran.code, 1, "a write may have been applied: {}", ran.err);
    assert!(ran.err.contains("check it with: tallystone counter check-token"), "{}", ran.err);
    let unknown = "if namespace default is BEST_EFFORT, it keeps no tokens: then check the count";
    assert!(ran.err.contains(unknown), "{}", ran.err);
}

#[test]
fn a_write_for_which_no_time_is_left_is_not_sent_and_says_so() {
    let desk = Desk::set();
    for line in ["counter add views", "msg push -q mail hello", "queue create other", "ns ls"] {
        let ran = desk.shell(&format!("tallystone {line} --timeout 1ms"));
        assert_eq!(ran.code, 5, "{line}: {}{}", ran.out, ran.err);
        assert!(ran.err.contains("nothing was sent: allow more time"), "{line}: {}", ran.err);
        assert!(!ran.err.contains("may have been applied"), "{line}: {}", ran.err);
    }
    assert_eq!(desk.shell("tallystone queue describe other").code, 3, "nothing was sent");
}

#[test]
fn what_is_no_server_of_ours_is_told_apart_from_one_that_is_late() {
    let desk = Desk::set();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound address").to_string();
    let serving = thread::spawn(move || {
        // Until the test connects for the last time, with a byte that no client begins with.
        for connection in listener.incoming() {
            let mut connection = connection.expect("a connection");
            let mut first = [0];
            if connection.peek(&mut first).is_ok() && first == *b"!" {
                return;
            }
            // The client may be gone by now, and then there is nobody to answer.
            let _ = connection.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
        }
    });
    let ran = desk.shell(&format!("tallystone --server {address} --timeout 10s counter get views"));
    assert_eq!(ran.code, 5, "{}", ran.err);
    assert!(ran.err.starts_with(&format!("error: {address} did not answer: ")), "{}", ran.err);
    let mut last = TcpStream::connect(&address).expect("it still listens");
    last.write_all(b"!").expect("one byte fits");
    serving.join().expect("no panic");
}
