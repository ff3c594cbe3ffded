//! A command whose answer is lost on its way: what it says, and how often what it asked for was done.

use crate::servers::proxy::{Fault, Proxy, Wire};

use super::Desk;

#[test]
fn a_best_effort_add_whose_answer_is_cut_is_sent_once_and_advises_to_look() {
    let desk = Desk::set();
    desk.write("fast.toml", "name = \"fast\"\ncounter_type = \"BEST_EFFORT\"\n");
    desk.run(&["apply", "-f", "fast.toml"]).ok();
    let proxy = Proxy::start(desk.server.address, Wire::Http2).expect("a proxy");
    let add = |namespace: &str| {
        desk.shell(&format!("tallystone --server {} --timeout 3s counter add -n {namespace} views", proxy.address()))
    };
    let count = |namespace: &str| {
        let read = desk.run(&["counter", "get", "-n", namespace, "views", "--fresh", "-o", "csv"]).ok();
        read.lines().nth(1).and_then(|row| row.split(',').nth(1)).expect("a row with a count").to_owned()
    };
    let look = "check the count before you retry";

    proxy.set(Fault::LoseOne);
    let ran = add("fast");
    assert_eq!(ran.code, 1, "it may have been applied: {}{}", ran.out, ran.err);
    assert!(ran.err.contains("namespace fast is BEST_EFFORT and keeps no tokens"), "{}", ran.err);
    assert!(ran.err.contains(&format!("{look}: tallystone counter get -n fast views")), "{}", ran.err);
    assert!(!ran.err.contains("check-token"), "no token can be asked about: {}", ran.err);
    assert_eq!((proxy.lost(), count("fast").as_str()), (1, "1"), "it was sent once");

    // Nor does anybody say which type the namespace has: it is not sent again, and both ways are told.
    proxy.set(Fault::LoseAnswers);
    let ran = add("fast");
    proxy.set(Fault::None);
    assert_eq!(ran.code, 1, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains("if namespace fast is BEST_EFFORT") && ran.err.contains(look), "{}", ran.err);
    assert_eq!(count("fast"), "2", "it was sent once");

    // A namespace that keeps tokens counts a repeat once, so there the same add goes well.
    proxy.set(Fault::LoseOne);
    add("default").ok();
    assert_eq!(count("default"), "1");
}
