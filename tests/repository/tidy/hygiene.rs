//! What must not be left behind: unfinished code, silent tests, places of one machine.

use std::fs;

use super::source::{Source, collect, relative, sources};
use super::{Except, expect_none, mentions_except, mentions_where};
use crate::pages::root;

#[test]
fn nothing_unwraps() {
    let found = mentions_where(|source, mention| !source.in_test(mention) && mention.text == ".unwrap");
    expect_none("answer the error, or expect(\"why it cannot fail\")", found);
}

#[test]
fn nothing_is_left_to_do() {
    let found = mentions_where(|_, mention| ["todo!", "unimplemented!", "dbg!"].contains(&mention.text.as_str()));
    expect_none("finish it or leave it out", found);
}

#[test]
fn no_test_is_switched_off() {
    expect_none("mend the test or delete it", mentions_where(|_, mention| mention.text == "#[ignore]"));
}

#[test]
fn nothing_prints_past_a_reader_that_has_gone() {
    const EXCEPT: &[Except] = &[Except("loadtest/", "a tool that holds nothing and may end")];
    let prints = ["println!", "print!", "eprintln!", "eprint!"];
    let found =
        mentions_except(EXCEPT, |source, mention| !source.in_test(mention) && prints.contains(&mention.text.as_str()));
    expect_none(
        "these panic when nobody reads: app::notices for people, cli::output for data, else log through tracing",
        found,
    );
}

#[test]
fn no_file_knows_a_machine() {
    // Put together here, so that this file does not find itself.
    let places: Vec<String> = ["home", "root", "Users", "tmp", "work", "mnt"].map(|name| format!("/{name}/")).into();
    let mut files = Vec::new();
    for folder in ["src", "tests", "loadtest", "docs", "proto", ".ci"] {
        collect(&root().join(folder), "", &mut files);
    }
    let at_root =
        ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "Cargo.toml", "buf.yaml", "Dockerfile"];
    files.extend(at_root.map(|name| root().join(name)));
    let mut found = Vec::new();
    for file in files {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        for (index, line) in text.lines().enumerate() {
            if places.iter().any(|place| begins_a_path(line, place)) {
                found.push(format!("{}:{}: {}", relative(&file), index + 1, line.trim()));
            }
        }
    }
    expect_none("name a place by what it is for: a temporary directory, the data directory, the target folder", found);
}

/// Whether the line holds the place as the beginning of a path, not as a folder inside one.
fn begins_a_path(line: &str, place: &str) -> bool {
    line.match_indices(place).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        before.is_none_or(|character| !(character.is_alphanumeric() || "._-}/".contains(character)))
    })
}

/// The product's sources whose comments are judged. Help texts of the command line are as wide as a terminal makes them, and
/// the comments of limits are the rows of a page.
fn commented() -> impl Iterator<Item = &'static Source> {
    const EXCEPT: [&str; 2] = ["src/app/cli/", "src/domain/limits"];
    let is_of_limits = |path: &str| path.starts_with("src/adapters/") && path.ends_with("/limits.rs");
    let is_except = move |path: &str| EXCEPT.iter().any(|place| path.starts_with(place)) || is_of_limits(path);
    sources().iter().filter(move |source| source.path.starts_with("src/") && !is_except(&source.path))
}

#[test]
fn a_comment_is_no_wider_than_the_code() {
    const COLUMNS: usize = 120;
    let is_wide = |line: &str| line.trim_start().starts_with("//") && line.chars().count() > COLUMNS;
    let wide = commented().flat_map(|source| {
        let lines = source.lines.iter().enumerate().filter(|(_, line)| is_wide(line));
        lines.map(|(at, _)| format!("{}:{}", source.path, at + 1))
    });
    expect_none("wrap it", wide.collect());
}

#[test]
fn a_doc_comment_begins_with_a_noun_or_a_verb_and_not_with_a_clause() {
    const CLAUSES: [&str; 7] = ["What ", "Who ", "Whoever ", "Those ", "Why ", "Where ", "That "];
    let is_clause = |text: &str| CLAUSES.iter().any(|clause| text.starts_with(clause));
    let mut found = Vec::new();
    for source in commented() {
        let mut before = "";
        for (at, line) in source.lines.iter().enumerate() {
            let line = line.trim_start();
            for marker in ["///", "//!"] {
                let begins = line.strip_prefix(marker).filter(|_| !before.starts_with(marker));
                if begins.is_some_and(|text| is_clause(text.trim_start())) {
                    found.push(format!("{}:{}", source.path, at + 1));
                }
            }
            before = line;
        }
    }
    expect_none("say what the thing is, or what it does: \"the reason of a failed call\"", found);
}

#[test]
fn a_name_of_a_request_is_made_only_where_the_rights_of_the_call_open_it() {
    /// Where requests, page tokens and documents are decoded.
    const DECODERS: [&str; 12] = [
        "src/api/documents/mod.rs",
        "src/api/documents/native.rs",
        "src/api/grpc/counters.rs",
        "src/api/grpc/decode.rs",
        "src/api/grpc/experiments/convert.rs",
        "src/api/grpc/namespace_convert.rs",
        "src/api/grpc/namespaces.rs",
        "src/api/grpc/queues/cursors.rs",
        "src/api/grpc/queues/decode.rs",
        "src/api/grpc/queues/settings.rs",
        "src/api/grpc/rollup_signals.rs",
        "src/api/grpc/rules.rs",
    ];
    let names = ["QueueName::new(", "NamespaceName::new(", "CounterName::new("];
    let mut found = Vec::new();
    let mut needed = [false; DECODERS.len()];
    // The console reaches no use case: it makes the calls of any caller, which decode its names again.
    let decodes = |path: &str| path.starts_with("src/api/") && !path.starts_with("src/api/http/console/");
    for source in sources().iter().filter(|source| decodes(&source.path) && !source.is_test_file()) {
        let is_test = |line: usize| source.test_lines.iter().any(|(first, last)| (*first..=*last).contains(&line));
        let lines = source.lines.iter().enumerate().filter(|(at, _)| !is_test(at + 1));
        for (at, _) in lines.filter(|(_, line)| names.iter().any(|name| line.contains(name))) {
            match DECODERS.iter().position(|path| source.path == *path) {
                Some(decoder) => needed[decoder] = true,
                None => found.push(format!("{}:{}", source.path, at + 1)),
            }
        }
    }
    let idle = DECODERS.iter().zip(needed).filter(|(_, needed)| !needed);
    found.extend(idle.map(|(path, _)| format!("{path} makes no name")));
    expect_none("decode it as `Asked`, so that only the rights of the call open it", found);
}
