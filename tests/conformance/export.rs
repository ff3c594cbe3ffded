//! The laws of `ExportSink`, on the files that hold exports.

use std::path::Path;

use tallystone_adapters::files::Exports;
use tallystone_domain::counter::{Change, EventId, EventKey, NamespaceName, Provenance};
use tallystone_ports::{ExportSink, SliceRow};

use crate::given::{at, counter, event, foreign, namespace_name};

fn rows(tokens: &[&str]) -> Vec<(String, SliceRow)> {
    let row = |token: &&str| {
        ("shop".to_owned(), SliceRow { counter: counter("views"), event: event(1, token, Change::Add(1)) })
    };
    tokens.iter().map(row).collect()
}

async fn export(sink: &Exports, dataset: &NamespaceName, start_millis: i64, tokens: &[&str]) {
    sink.begin(dataset, at(start_millis)).await.expect("it begins");
    for page in tokens.chunks(2) {
        sink.write(dataset, at(start_millis), rows(page)).await.expect("it writes");
    }
    sink.finish(dataset, at(start_millis)).await.expect("it finishes");
}

/// The tokens of an export, each line read as JSON.
fn tokens(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path).expect("a finished export");
    assert!(text.is_empty() || text.ends_with('\n'), "the last line is whole");
    let line = |line: &str| serde_json::from_str::<serde_json::Value>(line).expect("a line of JSON");
    text.lines().map(|text| line(text)["token"].as_str().expect("a token").to_owned()).collect()
}

#[tokio::test]
async fn export_sink_law_1_begin_discards_what_an_unfinished_export_left_behind() {
    let home = tempfile::tempdir().expect("a directory");
    let dataset = namespace_name("events");
    let sink = Exports::new(home.path());
    sink.begin(&dataset, at(0)).await.expect("it begins");
    sink.write(&dataset, at(0), rows(&["left", "behind"])).await.expect("it writes");
    // The process ends here; the next one begins anew.
    let sink = Exports::new(home.path());
    assert!(!sink.file(&dataset, at(0)).exists());
    export(&sink, &dataset, 0, &["a", "b", "c"]).await;
    assert_eq!(tokens(&sink.file(&dataset, at(0))), ["a", "b", "c"]);
}

#[tokio::test]
async fn export_sink_law_2_what_is_finished_is_complete_and_never_replaced() {
    let home = tempfile::tempdir().expect("a directory");
    let directory = home.path().join("made/on/demand");
    let dataset = namespace_name("events");
    let sink = Exports::new(&directory);
    let file = sink.file(&dataset, at(0));
    sink.begin(&dataset, at(0)).await.expect("it begins");
    sink.write(&dataset, at(0), rows(&["a"])).await.expect("it writes");
    assert!(!file.exists(), "it is not finished");
    sink.finish(&dataset, at(0)).await.expect("it finishes");
    // Another store has a dataset of the same name, with as many rows, then with more.
    let other = Exports::new(&directory);
    export(&other, &dataset, 0, &["b"]).await;
    export(&other, &dataset, 0, &["a", "b", "c"]).await;
    // A process that ended before it was told exports the same again.
    for tokens in [&["a"][..], &["b"], &["a", "b", "c"]] {
        export(&sink, &dataset, 0, tokens).await;
    }
    let second = directory.join("events.20261120T000000Z.2.jsonl");
    let third = directory.join("events.20261120T000000Z.3.jsonl");
    assert_eq!([tokens(&file), tokens(&second)], [["a"], ["b"]]);
    assert_eq!(tokens(&third), ["a", "b", "c"]);
    assert_eq!(std::fs::read_dir(&directory).expect("the directory").count(), 3, "the same is written once");
}

#[tokio::test]
async fn export_sink_law_2_an_empty_slice_has_an_empty_export() {
    let home = tempfile::tempdir().expect("a directory");
    let sink = Exports::new(home.path());
    export(&sink, &namespace_name("events"), 0, &[]).await;
    assert_eq!(tokens(&sink.file(&namespace_name("events"), at(0))), [""; 0]);
}

#[tokio::test]
async fn export_sink_law_2_nothing_is_finished_that_was_not_begun() {
    let home = tempfile::tempdir().expect("a directory");
    let sink = Exports::new(home.path());
    let dataset = namespace_name("events");
    assert!(sink.write(&dataset, at(0), rows(&["a"])).await.is_err());
    assert!(sink.finish(&dataset, at(0)).await.is_err());
    assert!(!sink.file(&dataset, at(0)).exists());
}

#[tokio::test]
async fn export_sink_names_of_datasets_never_leave_the_directory_or_meet() {
    let home = tempfile::tempdir().expect("a directory");
    let directory = home.path().join("exports");
    let sink = Exports::new(&directory);
    let names = ["a/../../b", "a", "a.b", "a/b", "a%2Fb", "A", "a:b", "a=b~@+-"];
    for name in names {
        export(&sink, &namespace_name(name), 0, &[name]).await;
    }
    for name in names {
        let path = sink.file(&namespace_name(name), at(0));
        assert_eq!(path.parent(), Some(directory.as_path()));
        assert_eq!(tokens(&path), [name]);
    }
    let files = std::fs::read_dir(&directory).expect("the directory").count();
    assert_eq!(files, names.len(), "no part is left");
    assert_eq!(std::fs::read_dir(home.path()).expect("the home").count(), 1, "nothing lies outside");
}

#[tokio::test]
async fn export_sink_lines_have_the_fields_of_the_protocols_events() {
    let home = tempfile::tempdir().expect("a directory");
    let sink = Exports::new(home.path());
    let dataset = namespace_name("events");
    let mut total = event(5, "x", Change::Total(i64::MIN));
    total.key = EventKey { time: at(5), id: EventId::total("web-1", 2, 3) };
    total.provenance = Provenance::new("say \"hi\"\n\u{1F600}").expect("short");
    let mut uuid = event(0, "x", Change::Add(i64::MAX));
    uuid.key.id = EventId::Uuid(*b"\x01\x92\xf5\xa0\x1c\x2b\x7d\xef\x8a\xbc\x01\x23\x45\x67\x89\xab");
    let events = [uuid, event(1_500, "t", Change::Clear), event(2, "v", Change::Void), total];
    let rows = events.map(|event| ("shop".to_owned(), SliceRow { counter: foreign("a/b"), event }));
    sink.begin(&dataset, at(0)).await.expect("it begins");
    sink.write(&dataset, at(0), rows.into()).await.expect("it writes");
    sink.finish(&dataset, at(0)).await.expect("it finishes");
    let text = std::fs::read_to_string(sink.file(&dataset, at(0))).expect("a finished export");
    let head = r#"{"namespace":"shop","counterName":"a/b","eventTime":"2026-11-20T00:00:0"#;
    let tails = [
        r#"0Z","token":"0192f5a0-1c2b-7def-8abc-0123456789ab","kind":"EVENT_KIND_ADD","delta":"9223372036854775807","provenance":"test"}"#,
        r#"1.500Z","token":"t","kind":"EVENT_KIND_CLEAR","delta":"0","provenance":"test"}"#,
        r#"0.002Z","token":"v","kind":"EVENT_KIND_VOID","delta":"0","provenance":"test"}"#,
        r#"0.005Z","token":"web-1/2/3","kind":"EVENT_KIND_TOTAL","delta":"-9223372036854775808","provenance":"say \"hi\"\n😀"}"#,
    ];
    let expected: String = tails.map(|tail| format!("{head}{tail}\n")).concat();
    assert_eq!(text, expected);
}
