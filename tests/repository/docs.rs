//! What documents say of each other and of the tests: links lead somewhere, and tests that are named exist. The pages that are made
//! from the code are in `tests/it/repository`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::pages::{anchor, collect, root, table};

#[test]
fn links_between_documents_lead_somewhere() {
    let at_root = ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"];
    let mut pages: Vec<PathBuf> = at_root.map(|name| root().join(name)).into();
    collect(&root().join("docs"), "md", &mut pages);
    assert!(pages.len() > 8, "the documents are where this test looks for them");
    let mut found = Vec::new();
    for page in pages {
        let text = fs::read_to_string(&page).expect("a page is text");
        for target in links(&text).filter(|target| !target.contains("://")) {
            let (file, heading) = target.split_once('#').unwrap_or((target, ""));
            let file = if file.is_empty() { page.clone() } else { page.parent().expect("a folder").join(file) };
            let known = file.exists() && (heading.is_empty() || headings(&file).contains(heading));
            if !known {
                found.push(format!("{}: {target}", page.strip_prefix(root()).expect("in the repository").display()));
            }
        }
    }
    assert!(found.is_empty(), "mend the link or write the page\n{}", found.join("\n"));
}

#[test]
fn the_code_map_names_every_module() {
    let page = fs::read_to_string(root().join("docs/architecture.md")).expect("the page is there");
    let map = page.split("```").nth(1).expect("the page has a map");
    let words: BTreeSet<&str> = map.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
    let mut modules = Vec::new();
    for layer in fs::read_dir(root().join("src")).expect("the sources are there") {
        let layer = layer.expect("the folder can be read").path();
        if layer.is_dir() {
            modules.extend(
                fs::read_dir(&layer).expect("a layer is a folder").map(|entry| entry.expect("readable").path()),
            );
        }
    }
    assert!(modules.len() > 50, "the modules are where this test looks for them: {}", modules.len());
    modules.retain(|path| {
        let stem = path.file_stem().and_then(|stem| stem.to_str()).expect("a module has a name");
        let is_client = path.parent().is_some_and(|layer| layer.ends_with("client"));
        !["Cargo", "lib"].contains(&stem) && !is_client && !words.contains(stem) // the client is one idea
    });
    assert!(modules.is_empty(), "say what lives in them, in docs/architecture.md: {modules:?}");
}

#[test]
fn the_guarantees_name_tests_that_exist() {
    let named = tests_of(&table("docs/guarantees.md", "| promise | tests |"));
    assert!(!named.is_empty(), "the page names tests in its last column");
    expect_tests(&named);
}

#[test]
fn what_stands_for_verbs_of_other_queues_is_tried() {
    for heading in ["| verb | call | what differs | test |", "| there | here | what differs | test |"] {
        let rows = table("docs/queues-mapping.md", heading);
        let untried: Vec<&String> = rows.iter().filter(|row| tests_of(std::slice::from_ref(row)).is_empty()).collect();
        assert!(rows.len() > 7 && untried.is_empty(), "no test tries {untried:?}");
        expect_tests(&tests_of(&rows));
    }
}

#[test]
fn the_conformance_list_has_every_item_and_every_law_of_it() {
    let rows = table("docs/queues-conformance.md", "| item | behaviour | here | tests |");
    let numbers: Vec<usize> = rows
        .iter()
        .map(|row| {
            row.split('|').nth(1).and_then(|cell| cell.trim().parse().ok()).expect("a row begins with its number")
        })
        .collect();
    assert_eq!(numbers, (1..=75).collect::<Vec<usize>>());
    for row in &rows {
        let later = row.contains("**later**");
        assert_eq!(tests_of(std::slice::from_ref(row)).is_empty(), later, "a test, or what brings the item: {row}");
    }
    let named = tests_of(&rows);
    expect_tests(&named);
    let code = tests_sources();
    let laws =
        code.split("fn item").skip(1).filter_map(|rest| rest.split('(').next()).map(|rest| format!("item{rest}"));
    let is_law = |law: &String| {
        let number = law.trim_start_matches("items").trim_start_matches("item").strip_prefix('_');
        number.is_some_and(|number| number.starts_with(|c: char| c.is_ascii_digit()))
    };
    let laws: Vec<String> = laws.filter(is_law).collect();
    assert!(laws.len() > 70, "the laws are found: {}", laws.len());
    let unnamed: Vec<&String> = laws.iter().filter(|law| !named.contains(law)).collect();
    assert!(unnamed.is_empty(), "name them in docs/queues-conformance.md: {unnamed:?}");
}

/// The tests that rows name in their last column.
fn tests_of(rows: &[String]) -> Vec<String> {
    let cells = rows.iter().filter_map(|row| row.rsplit('|').nth(1));
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).map(str::to_owned).collect()
}

fn tests_sources() -> String {
    let mut sources = Vec::new();
    for folder in ["src", "tests", "loadtest"] {
        collect(&root().join(folder), "rs", &mut sources);
    }
    sources.iter().map(|path| fs::read_to_string(path).expect("a source is text")).collect()
}

fn expect_tests(named: &[String]) {
    let code = tests_sources();
    let missing: Vec<&String> = named.iter().filter(|name| !code.contains(&format!("fn {name}("))).collect();
    assert!(missing.is_empty(), "no such tests: {missing:?}");
}

/// The targets of `[text](target)`, code apart.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let mut in_code = false;
    text.lines()
        .filter(move |line| {
            in_code ^= line.trim_start().starts_with("```");
            !in_code
        })
        .flat_map(|line| line.split("](").skip(1))
        .filter_map(|rest| rest.split(')').next())
}

fn headings(page: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(page).expect("a page is text");
    text.lines().filter(|line| line.starts_with('#')).map(|line| anchor(line.trim_start_matches('#').trim())).collect()
}
