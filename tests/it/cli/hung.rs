//! Servers that take connections and answer nothing.

use std::net::TcpListener;

use super::Desk;

#[test]
fn a_read_that_gets_no_answer_is_unavailable_because_nothing_was_done() {
    let desk = Desk::set();
    // The system takes connections for a listener that nobody serves.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("a bound address").to_string();
    for line in ["counter get views", "counter get a b", "counter ls", "counter top", "ns ls", "counter watch views"] {
        let ran = desk.shell(&format!("tallystone --server {address} --timeout 300ms {line}"));
        assert_eq!(ran.code, 5, "{line}: {}{}", ran.out, ran.err);
        let told = ran.err.starts_with("error: the server did not answer in time\n") && ran.err.contains(&address);
        assert!(told, "{line}: {}", ran.err);
    }
    let ran = desk.shell(&format!("tallystone --server {address} --timeout 300ms counter add views"));
    assert_eq!(ran.code, 1, "a write may have been applied: {}", ran.err);
    assert!(ran.err.contains("settle it with: tallystone counter check-token"), "{}", ran.err);
}
