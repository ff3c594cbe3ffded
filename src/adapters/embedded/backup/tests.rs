//! Tests of the contents of backups, and of backups and directories that are refused.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use super::*;
use crate::tests::{add, all, append, counter, make_slice, open_small, small};
use crate::{OpenError, open};
use tallystone_adapters::manual::ManualClock;
use tallystone_domain::Timestamp;
use tallystone_domain::counter::DatasetId;
use tallystone_domain::rollup::SliceStatus;

const DATASET: DatasetId = DatasetId(1);
const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

async fn begin(store: &crate::Embedded) -> Box<dyn BackupPieces> {
    store.backups(Arc::new(ManualClock::at(NOW))).begin().await.expect("a store that is open")
}

async fn write(mut pieces: Box<dyn BackupPieces>, path: &Path) {
    let mut bytes = Vec::new();
    while let Some(piece) = pieces.next().await.expect("readable") {
        bytes.extend_from_slice(&piece);
    }
    fs::write(path, bytes).expect("writable");
}

#[tokio::test]
async fn a_backup_is_the_state_of_its_commit_whatever_is_written_and_dropped_meanwhile() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, stores) = open_small(&dir.path().join("data"));
    make_slice(&stores, 0, 100).await;
    make_slice(&stores, 100, 200).await;
    append(&stores, vec![add("a", 10, "t1", 1), add("a", 110, "t2", 2)]).await;
    let commit = store.health().commit_number;
    let pieces = begin(&store).await;
    append(&stores, vec![add("a", 11, "t3", 4)]).await;
    for status in [SliceStatus::Closed, SliceStatus::Dropped] {
        stores.slices.set_status(DATASET, Timestamp::from_secs(0), status).await.expect("taken");
    }
    let path = dir.path().join("backup");
    write(pieces, &path).await;
    store.close();

    let summary = check(&path).expect("whole");
    assert_eq!((summary.header.commit, summary.header.time), (commit, NOW));
    let data = dir.path().join("restored");
    assert_eq!(restore(&path, &small(&data), NOW).expect("restored"), summary);
    let (restored, stores) = open_small(&data);
    let events = stores.log.scan(DATASET, &counter("a"), all()).await.expect("readable");
    let tokens: Vec<_> = events.iter().map(|event| event.key.time).collect();
    assert_eq!(tokens, [Timestamp::from_secs(10), Timestamp::from_secs(110)], "t1 and t2, and not t3");
    append(&stores, vec![add("a", 12, "t4", 8)]).await;
    restored.close();
    drop(open(small(&data)).expect("it opens again after more commits"));
}

#[tokio::test]
async fn a_cut_flipped_or_longer_backup_is_refused_and_nothing_is_made_of_it() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, stores) = open_small(&dir.path().join("data"));
    make_slice(&stores, 0, 100).await;
    append(&stores, vec![add("a", 10, "t1", 1)]).await;
    let path = dir.path().join("backup");
    write(begin(&store).await, &path).await;
    store.close();
    let whole = fs::read(&path).expect("readable");
    for at in 0..whole.len() {
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        for bytes in [&flipped[..], &whole[..at]] {
            fs::write(&path, bytes).expect("writable");
            assert!(check(&path).is_err(), "byte {at} of {}", whole.len());
        }
    }
    let data = dir.path().join("restored");
    assert!(matches!(restore(&path, &small(&data), NOW), Err(RestoreError::Backup { .. })));
    assert!(!data.exists(), "nothing was made");
    fs::write(&path, [&whole[..], b"x"].concat()).expect("writable");
    assert!(check(&path).is_err(), "longer");
}

#[tokio::test]
async fn a_restore_takes_an_empty_directory_only_and_a_half_one_does_not_open() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let data = dir.path().join("data");
    let (store, _stores) = open_small(&data);
    let path = dir.path().join("backup");
    write(begin(&store).await, &path).await;
    store.close();
    assert!(matches!(restore(&path, &small(&data), NOW), Err(RestoreError::NotEmpty(_))));
    let restored = dir.path().join("restored");
    restore(&path, &small(&restored), NOW).expect("restored");
    fs::write(restored.join("restoring"), "").expect("writable");
    assert!(matches!(open(small(&restored)), Err(OpenError::HalfRestored(_))));
}

#[tokio::test]
async fn a_directory_of_a_newer_format_is_refused_in_words_and_left_as_it_is() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (store, _stores) = open_small(dir.path());
    store.close();
    let list = dir.path().join("keyspaces");
    let text = fs::read_to_string(&list).expect("readable").replacen("keyspaces 1", "keyspaces 2", 1);
    fs::write(&list, &text).expect("writable");
    let Err(refused) = open(small(dir.path())) else { panic!("it opened") };
    assert!(matches!(refused, OpenError::Newer { found: 2, known: 1, .. }), "{refused}");
    let words = refused.to_string();
    assert!(
        words.contains("format 2") && words.contains(env!("CARGO_PKG_VERSION")) && words.contains("use the release")
    );
    assert_eq!(fs::read_to_string(&list).expect("readable"), text);
}
