//! One type name stands for one thing.

use std::collections::BTreeMap;

use super::expect_none;
use super::source::{Source, sources};

/// Type names that several files define, with the files and the reason.
const REPEATED: &[(&str, &str, &str)] = &[
    ("Catalog", "src/adapters/", "an adapter's implementation of the port of that name"),
    ("QueueCatalog", "src/adapters/", "an adapter's implementation of the port of that name"),
    ("Options", "src/adapters/", "every adapter opens with its options"),
    ("OpenError", "src/adapters/", "every adapter says why it does not open"),
    ("Health", "src/adapters/", "every adapter says how it is"),
];

/// The types at the top level of a file, test code apart.
fn types(source: &Source) -> impl Iterator<Item = &str> {
    let is_test = |line: usize| source.test_lines.iter().any(|(first, last)| (*first..=*last).contains(&line));
    let lines = source.lines.iter().enumerate().filter(move |(at, _)| !is_test(at + 1));
    lines.filter_map(|(_, line)| {
        let rest = match line.strip_prefix("pub") {
            Some(rest) if rest.starts_with('(') => rest.split_once(") ")?.1,
            Some(rest) => rest.strip_prefix(' ')?,
            None => line,
        };
        let kinds = ["struct ", "enum ", "trait ", "union ", "type "];
        let name = kinds.iter().find_map(|kind| rest.strip_prefix(kind))?;
        name.split(|character: char| !character.is_alphanumeric() && character != '_').next()
    })
}

#[test]
fn a_type_name_stands_for_one_thing() {
    let mut places: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for source in sources().iter().filter(|source| source.path.starts_with("src/") && !source.is_test_file()) {
        for name in types(source) {
            places.entry(name).or_default().push(&source.path);
        }
    }
    assert!(places.len() > 500, "the types are where this test looks for them");
    let mut found = Vec::new();
    let mut needed = vec![false; REPEATED.len()];
    for (name, files) in places.iter().filter(|(_, files)| files.len() > 1) {
        let exception = REPEATED.iter().position(|(repeated, ..)| repeated == name);
        let beyond = |folder: &str| files.iter().filter(|file| !file.starts_with(folder)).count();
        match exception {
            // The port itself stands beside its adapters.
            Some(at) if beyond(REPEATED[at].1) <= 1 => needed[at] = true,
            Some(_) | None => found.push(format!("{name}: {}", files.join(", "))),
        }
    }
    let idle = REPEATED.iter().zip(needed).filter(|(_, needed)| !needed);
    found.extend(idle.map(|((name, ..), _)| format!("the exception for {name} is not needed any more")));
    expect_none("qualify the name by its subject, so that a reader finds one type under it", found);
}
