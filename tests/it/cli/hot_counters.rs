//! Hot counters on the command line.

use serde_json::Value;

use super::Desk;

const HEAD: &str = "counter_name,buckets_per_id\n";

fn version(desk: &Desk) -> Value {
    let shown = desk.run(&["ns", "describe", "views", "-o", "json"]).ok();
    let shown: Value = serde_json::from_str(&shown).expect("JSON");
    shown["namespace"]["version"].clone()
}

#[test]
fn hot_counters_are_named_widened_and_taken_back_and_nothing_else_changes() {
    let desk = Desk::set();
    let hot = |arguments: &[&str]| desk.run(&[&["ns", "hot", "views"], arguments, &["-o", "csv"]].concat()).ok();
    assert_eq!(hot(&["side", "--buckets-per-id", "8", "--reason", "a sale"]), format!("{HEAD}side,8\n"));
    assert_eq!(hot(&["front", "--buckets-per-id", "16"]), format!("{HEAD}front,16\nside,8\n"));
    let before = version(&desk);
    assert_eq!(hot(&["front", "--buckets-per-id", "16"]), format!("{HEAD}front,16\nside,8\n"));
    assert_eq!(version(&desk), before, "what is there already is no change");
    assert_eq!(hot(&["front", "--buckets-per-id", "32"]), format!("{HEAD}front,32\nside,8\n"));
    let described = desk.run(&["ns", "describe", "views"]).ok();
    assert!(described.contains("front 32, side 8") && described.contains("10s kept 1d"), "{described}");
    assert_eq!(hot(&["side", "--rm"]), format!("{HEAD}front,32\n"));
    assert_eq!(hot(&["nobody", "--rm"]), format!("{HEAD}front,32\n"));
    let history = desk.run(&["ns", "history", "views", "-o", "csv"]).ok();
    for change in ["a sale,hot_counters: none -> side 8", "\"hot_counters: front 32, side 8 -> front 32\""] {
        assert!(history.contains(change), "{change} is missing of {history}");
    }
}

#[test]
fn a_width_that_no_counter_can_have_is_refused() {
    let desk = Desk::set();
    let before = version(&desk);
    for (arguments, words) in [
        (&["front"][..], "--buckets-per-id"),
        (&["front", "--buckets-per-id", "0"], "0 is not in 1.."),
        (&["front", "--buckets-per-id", "257"], "buckets_per_id of hot counter front is 257; 1 to 256 are allowed"),
        (&["front", "--buckets-per-id", "8", "--rm"], "cannot be used with"),
        (&["a b", "--buckets-per-id", "8"], "hot_counters[0] is not a valid name"),
    ] {
        let ran = desk.run(&[&["ns", "hot", "views"], arguments].concat());
        assert_ne!(ran.code, 0, "{arguments:?}: {}", ran.out);
        assert!(ran.err.contains(words), "{arguments:?}: {}", ran.err);
    }
    assert_eq!(desk.run(&["ns", "hot", "nowhere", "front", "--rm"]).code, 3);
    assert_eq!(version(&desk), before);
}
