//! A command whose answer is lost on its way: what it says, and how often what it asked for was done.

use crate::servers::proxy::{Fault, Proxy, Wire};
use crate::support::harness::{PATIENCE, eventually};

use super::Desk;

#[test]
fn a_best_effort_add_whose_answer_is_cut_is_sent_once_and_advises_to_look() {
    let desk = Desk::set();
    desk.write("fast.toml", "name = \"fast\"\ncounter_type = \"BEST_EFFORT\"\n");
    desk.run(&["apply", "-f", "fast.toml"]).ok();
    let proxy = Proxy::start(desk.server.address, Wire::Http2).expect("a proxy");
    let add = |namespace: &str| {
        desk.shell(&format!("tallystone --server {} --timeout 20s counter add -n {namespace} views", proxy.address()))
    };
    let count = |namespace: &str| {
        let read = desk.run(&["counter", "get", "-n", namespace, "views", "--fresh", "-o", "csv"]).ok();
        read.lines().nth(1).and_then(|row| row.split(',').nth(1)).expect("a row with a count").to_owned()
    };
    let look = "check the count before you retry";

    // The command looks for half a second which type the namespace has. A busy machine may need another try.
    let (mut sent, mut told) = (0_u64, String::new());
    let knows_the_type = || {
        proxy.set(Fault::LoseOne);
        let ran = add("fast");
        sent += 1;
        assert_eq!(ran.code, 1, "it may have been applied: {}{}", ran.out, ran.err);
        assert_eq!((proxy.lost(), count("fast")), (sent, sent.to_string()), "it was sent once");
        told = ran.err;
        !told.contains("if namespace fast is BEST_EFFORT")
    };
    assert!(eventually(PATIENCE, knows_the_type), "{told}");
    assert!(told.contains("namespace fast is BEST_EFFORT and keeps no tokens"), "{told}");
    assert!(told.contains(&format!("{look}: tallystone counter get -n fast views")), "{told}");
    assert!(!told.contains("check-token"), "no token can be asked about: {told}");

    // Nor does anybody say which type the namespace has: it is not sent again, and both ways are told.
    proxy.set(Fault::LoseAnswers);
    let ran = add("fast");
    proxy.set(Fault::None);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("if namespace fast is BEST_EFFORT") && ran.err.contains(look), "{}", ran.err);
    assert_eq!(count("fast"), (sent + 1).to_string(), "it was sent once");

    // A namespace that keeps tokens counts a repeat once, so there the same add goes well.
    proxy.set(Fault::LoseOne);
    add("default").ok();
    assert_eq!(count("default"), "1");
}
