//! Lengths, names and the comments at the head of files.

use super::source::sources;
use super::{Except, expect_none, mentions_except};

const FUNCTION_LINES_MAX: usize = 70;
const FILE_LINES_MAX: usize = 500;
const TEST_FILE_LINES_MAX: usize = 800;
const MODULE_COMMENT_LINES_MAX: usize = 20;

#[test]
fn a_function_fits_a_screen() {
    let mut found = Vec::new();
    for source in sources() {
        for function in source.functions.iter().filter(|function| function.length > FUNCTION_LINES_MAX) {
            found.push(format!("{}:{}: {} has {} lines", source.path, function.line, function.name, function.length));
        }
    }
    expect_none("decide in the parent, compute in the leaves: at most 70 lines", found);
}

#[test]
fn a_file_holds_one_idea() {
    let mut found = Vec::new();
    for source in sources() {
        let (lines, most) = if source.is_test_file() {
            (source.lines.len(), TEST_FILE_LINES_MAX)
        } else {
            (source.product_lines(), FILE_LINES_MAX)
        };
        if lines > most {
            found.push(format!("{}: {lines} lines, at most {most}", source.path));
        }
    }
    expect_none("split the file by verb", found);
}

#[test]
fn every_file_says_what_lives_in_it() {
    let mut found = Vec::new();
    for source in sources() {
        let comment = source.lines.iter().take_while(|line| line.starts_with("//!")).count();
        match comment {
            0 => found.push(format!("{}:1: no module comment", source.path)),
            lines if lines > MODULE_COMMENT_LINES_MAX => {
                found.push(format!("{}:1: {lines} lines of module comment; move the rest to docs", source.path));
            }
            _ => {}
        }
    }
    expect_none("begin with //!: what lives here, what does not, the one invariant to know", found);
}

#[test]
fn no_module_is_a_junk_drawer() {
    const BANNED: &[&str] = &["util", "utils", "common", "helper", "helpers", "manager", "misc", "shared", "base"];
    let mut found = Vec::new();
    for source in sources() {
        let mut pieces = source.path.split('/').map(|piece| piece.strip_suffix(".rs").unwrap_or(piece));
        if pieces.any(|piece| BANNED.contains(&piece) || BANNED.iter().any(|b| piece.ends_with(&format!("_{b}")))) {
            found.push(source.path.clone());
        }
    }
    expect_none("if it has no home, its concept has no name yet", found);
}

#[test]
fn a_wildcard_arm_says_why_the_future_is_safe() {
    let mut found = Vec::new();
    for source in sources() {
        for &line in &source.wildcards {
            let beside = &source.lines[line - 1];
            let above = line.checked_sub(2).map_or("", |index| source.lines[index].trim_start());
            if !beside.contains("//") && !above.starts_with("//") {
                found.push(format!("{}:{line}: {}", source.path, beside.trim()));
            }
        }
    }
    expect_none("name the variants, or say in a comment why a new one may fall in here", found);
}

#[test]
fn tests_are_named_for_laws() {
    let mut found = Vec::new();
    for source in sources() {
        for function in source.functions.iter().filter(|function| function.name.starts_with("test_")) {
            found.push(format!("{}:{}: {}", source.path, function.line, function.name));
        }
    }
    expect_none("name the law: stale_lease_is_refused", found);
}

#[test]
fn every_bound_stands_in_one_file() {
    const EXCEPT: &[Except] = &[
        Except("src/domain/limits.rs", "it is the file"),
        Except("src/domain/limits/queues.rs", "its part for queues"),
        Except("src/domain/limits/history.rs", "its part for the history of messages"),
        Except("src/domain/limits/rules.rs", "its part for counter rules"),
        Except("src/domain/limits/access.rs", "its part for API keys"),
        Except("src/domain/limits/console.rs", "its part for the activity of queues, the audit and the console"),
        Except("src/adapters/embedded/limits.rs", "the bounds of the embedded store"),
        Except("src/adapters/cassandra/limits.rs", "the bounds of Cassandra"),
        Except("src/adapters/memcached/limits.rs", "the bounds of memcached"),
        Except("src/adapters/redis/limits.rs", "the bounds of Redis"),
        Except("src/client/", "a library for applications, built without the domain"),
        Except("src/api/time.rs", "what the wire's type of a duration can say"),
        Except("src/api/http/json_values.rs", "what a JSON number can say exactly"),
        Except("src/adapters/embedded/disk/verify/journal.rs", "what the store library ever writes"),
        Except("loadtest/", "a tool of its own, built without the domain"),
    ];
    let found = mentions_except(EXCEPT, |source, mention| {
        let declares = source.lines[mention.line - 1].contains(&format!("const {}:", mention.text));
        mention.text.ends_with("_MAX") && declares && !source.in_test(mention)
    });
    expect_none(
        "name the bound in domain/limits.rs or limits.rs of its adapter, so that docs/limits.md shows it",
        found,
    );
}
