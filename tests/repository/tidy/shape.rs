//! Lengths, names and the comments at the head of files.

use std::collections::BTreeMap;

use super::source::sources;
use super::{Except, expect_none, mentions_except};

const FUNCTION_LINES_MAX: usize = 70;
const METHODS_MAX: usize = 60;
/// A function that is further to the right stands in a method.
const METHOD_INDENT: usize = 4;
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

/// The methods of each type by its name, without those of traits and of tests. Names of types are unique over all crates.
fn methods_by_type() -> BTreeMap<String, usize> {
    let mut methods = BTreeMap::new();
    for source in sources().iter().filter(|source| source.path.starts_with("src/")) {
        let mut of_type = None;
        for (number, line) in source.lines.iter().enumerate() {
            let is_test = source.test_lines.iter().any(|(first, last)| (*first..=*last).contains(&(number + 1)));
            if line.starts_with("impl") {
                of_type = type_of_impl(line).filter(|_| !is_test);
            } else if line == "}" {
                of_type = None;
            } else if let Some(of_type) = &of_type
                && source.functions.iter().any(|function| function.line == number + 1)
                && line.find(|letter| letter != ' ') == Some(METHOD_INDENT)
            {
                *methods.entry(of_type.clone()).or_insert(0) += 1;
            }
        }
    }
    methods
}

/// The type of an `impl` that is not that of a trait.
fn type_of_impl(line: &str) -> Option<String> {
    let mut depth = 0;
    let after_generics = line.strip_prefix("impl")?.trim_start_matches(|letter| {
        depth += i32::from(letter == '<') - i32::from(letter == '>');
        depth > 0 || letter == '>'
    });
    let name: String = after_generics.trim_start().chars().take_while(|letter| letter.is_alphanumeric()).collect();
    (!line.contains(" for ") && !name.is_empty()).then_some(name)
}

#[test]
fn a_type_has_few_methods() {
    const EXCEPT: &[Except] = &[
        Except("Shard", "the queue core: one command, one method"),
        Except("ClientContext", "the command line: to be taken apart"),
        Except("RedisQueues", "goes with the next layout on Redis"),
        Except("Counting", "the use cases of counters: to be taken apart"),
        Except("Committer", "the thread that commits: to be taken apart"),
    ];
    let methods = methods_by_type();
    assert!(methods.len() > 500, "the methods are where this test looks for them");
    let many = |name: &str| methods.get(name).copied().unwrap_or_default() > METHODS_MAX;
    let is_known = |name: &str| EXCEPT.iter().any(|Except(known, _)| *known == name);
    let found = methods.iter().filter(|(name, _)| many(name) && !is_known(name));
    let found = found.map(|(name, count)| format!("{name}: {count} methods, at most {METHODS_MAX}"));
    expect_none("give each part of the type a type of its own", found.collect());
    let needless = EXCEPT.iter().filter(|Except(name, _)| !many(name)).map(|Except(name, _)| (*name).to_owned());
    expect_none("few methods by now: remove it from the exceptions", needless.collect());
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
