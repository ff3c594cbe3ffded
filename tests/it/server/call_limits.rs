//! The settings of the limit of calls in progress, as the metrics of a server show them.

use super::keys::start;
use crate::support::harness::Server;

fn shown(server: &Server) -> String {
    let page = server.get("/metrics").body;
    let rows = page.lines().filter(|row| row.starts_with("tallystone_call"));
    rows.filter(|row| ["limit", "target", "progress"].iter().any(|word| row.contains(word)))
        .map(|row| format!("{row}\n"))
        .collect()
}

#[test]
fn a_calm_server_has_no_limit_of_calls_and_the_settings_may_say_that_it_never_has_one() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let server = start(folder.path(), &["auth.mode=off"]);
    let page = shown(&server);
    for row in ["tallystone_call_limit 0.0", "tallystone_call_target_seconds 0.25"] {
        assert!(page.lines().any(|shown| shown == row), "no {row} in {page}");
    }
    for class in ["settle", "work", "enqueue", "read", "list"] {
        for metric in ["calls_in_progress{class=\"CLASS\"} 0", "call_limit_refusals_total{class=\"CLASS\"} 0"] {
            let row = format!("tallystone_{}", metric.replace("CLASS", class));
            assert!(page.lines().any(|shown| shown.starts_with(&row)), "no {row} in {page}");
        }
    }
    assert!(server.stop().success());
    let server = start(folder.path(), &["auth.mode=off", "limits.call_time_ms=0"]);
    assert!(shown(&server).contains("tallystone_call_target_seconds 0.0\n"), "{}", shown(&server));
}
