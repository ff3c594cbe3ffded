//! The metrics page of the real binary names the filters that dequeues walk for, so that shapes are declared for them.

use crate::support::harness::{Launch, Server};

fn ask(server: &Server, method: &str, body: &str) {
    let answer = server.post(&format!("/tallystone.queue.v1.QueueService/{method}"), body);
    assert_eq!(answer.status, 200, "{method}: {}", answer.body);
}

#[test]
fn a_filter_without_a_shape_is_named_with_the_messages_that_were_looked_at() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let server = Launch::dev(folder.path()).start();
    const NAME: &str = "tallystone_queue_undeclared_filter_messages_total";
    assert!(
        server.get("/metrics").body.contains(&format!("{NAME}{{shape=\"_other\"}} 0\n")),
        "it is there from the first"
    );
    ask(&server, "CreateQueue", r#"{"queue": {"name": "orders", "filter_shapes": [{"keys": ["team"]}]}}"#);
    for _ in 0..3 {
        ask(&server, "Enqueue", r#"{"queue": "orders", "message": {"metadata": {"team": "red", "size": "s"}}}"#);
    }
    for filter in [r#"{"zone": "a", "size": "s"}"#, r#"{"team": "blue"}"#, r#"{"team": "red"}"#] {
        ask(&server, "Dequeue", &format!(r#"{{"queue": "orders", "filter": {filter}}}"#));
    }
    let metrics = server.get("/metrics").body;
    let told: Vec<_> = metrics.lines().filter(|line| line.starts_with(NAME)).collect();
    let expected = [format!("{NAME}{{shape=\"size,zone\"}} 3"), format!("{NAME}{{shape=\"_other\"}} 0")];
    assert_eq!(told, expected);
}
