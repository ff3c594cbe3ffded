//! The laws of the record of admin actions.

use std::sync::Arc;

use tallystone_adapters::files::AdminLogFiles;
use tallystone_adapters::memory::AdminLogTable;
use tallystone_domain::Timestamp;
use tallystone_ports::{AdminAction, AdminLog};

fn act(number: u64) -> AdminAction {
    let text = |what: &str| format!("{what} \"{number}\"\n ü");
    AdminAction {
        number,
        time: Timestamp::from_micros(1_700_000_000_000_000 + number as i64),
        actor: text("actor"),
        action: "PurgeQueue".to_owned(),
        target: text("queue"),
        part: text("part"),
        reason: text("reason"),
        outcome: "OK".to_owned(),
        request: number * 7,
    }
}

async fn numbers(log: &dyn AdminLog, below: Option<u64>, limit: usize) -> Vec<u64> {
    log.newest(below, limit).await.expect("the log can be read").into_iter().map(|act| act.number).collect()
}

async fn keeps_what_was_answered(log: &dyn AdminLog) {
    assert_eq!(log.newest(None, 5).await.expect("an empty log can be read"), []);
    for number in 1..=9 {
        log.append(&act(number)).await.expect("the log takes it");
        assert_eq!(log.newest(None, 1).await.expect("the log can be read"), [act(number)]);
    }
    assert_eq!(numbers(log, None, 3).await, [9, 8, 7]);
    assert_eq!(numbers(log, Some(4), 9).await, [3, 2, 1]);
    assert_eq!(numbers(log, Some(1), 9).await, [0; 0]);
}

#[tokio::test]
async fn admin_log_law_1_what_was_answered_is_listed_also_after_a_restart() {
    keeps_what_was_answered(&AdminLogTable::default()).await;
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = folder.path().join("audit");
    keeps_what_was_answered(&AdminLogFiles::new(&path)).await;
    // A crash cut the next line off.
    let file = path.join("actions.jsonl");
    let torn = [std::fs::read(&file).expect("the file is there"), b"{\"number\":10,\"ti".to_vec()].concat();
    std::fs::write(&file, torn).expect("the file can be written");
    let again: Arc<dyn AdminLog> = Arc::new(AdminLogFiles::new(&path));
    assert_eq!(numbers(&*again, None, 2).await, [9, 8]);
    again.append(&act(10)).await.expect("the log takes it");
    assert_eq!(numbers(&*again, None, 3).await, [10, 9, 8]);
}

#[tokio::test]
async fn admin_log_law_2_no_act_is_left_out_between_two_when_the_oldest_give_way() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let log = AdminLogFiles::new(folder.path()).with_file_bytes(1_000);
    for number in 1..=100 {
        log.append(&act(number)).await.expect("the log takes it");
    }
    let kept = numbers(&log, None, 1_000).await;
    assert!((10..60).contains(&kept.len()), "{kept:?}");
    let newest: Vec<u64> = (101 - kept.len() as u64..=100).rev().collect();
    assert_eq!(kept, newest);
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder is there").count(), 5);
}
