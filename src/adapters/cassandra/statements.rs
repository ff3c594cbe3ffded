//! The named statements of `cql/statements`, compiled in. User text never becomes part of a statement.
//!
//! A file is a list of `-- name: NAME`, comment lines, and one statement that ends with a semicolon. Table names
//! include their keyspace, whose name the settings have validated.

use std::collections::HashMap;

use futures_util::future::try_join_all;

use crate::limits::PREPARED_AT_ONCE_MAX;
use crate::request_failure::RequestFailure;
use crate::store::{PreparedCql, WideStore};

const COUNTERS: &str = include_str!("../../../cql/statements/counters.cql");
const HISTORY: &str = include_str!("../../../cql/statements/history.cql");
const SLICES: &str = include_str!("../../../cql/statements/slices.cql");

/// Prepared statements by name.
pub struct Statements(HashMap<&'static str, PreparedCql>);

impl Statements {
    /// Prepares the statements on the tables of the schema.
    pub async fn of_schema(store: &dyn WideStore, keyspace: &str) -> Result<Self, RequestFailure> {
        let texts = [COUNTERS, HISTORY].into_iter().flat_map(parse_statements);
        let texts = texts.map(|(name, text)| (name, text.replace("{keyspace}", keyspace)));
        Self::prepared(store, texts.collect()).await
    }

    /// Prepares the statements on the tables of one slice, which must exist.
    pub async fn of_slice(store: &dyn WideStore, substitute: impl Fn(&str) -> String) -> Result<Self, RequestFailure> {
        let used = parse_statements(SLICES).into_iter().filter(|(name, _)| !is_ddl(name));
        Self::prepared(store, used.map(|(name, text)| (name, substitute(&text))).collect()).await
    }

    /// Prepares several statements concurrently, so that the delays of a slow node do not add up.
    async fn prepared(store: &dyn WideStore, texts: Vec<(&'static str, String)>) -> Result<Self, RequestFailure> {
        let mut prepared = HashMap::new();
        for texts in texts.chunks(PREPARED_AT_ONCE_MAX) {
            let ready = try_join_all(texts.iter().map(|(_, text)| store.prepare(text))).await?;
            prepared.extend(texts.iter().map(|(name, _)| *name).zip(ready));
        }
        Ok(Self(prepared))
    }

    /// Returns a statement.
    ///
    /// # Panics
    /// Panics if no statement has this name.
    pub fn get(&self, name: &str) -> &PreparedCql {
        self.0.get(name).unwrap_or_else(|| panic!("cql/statements has no statement {name}"))
    }
}

/// Whether tables are created or dropped.
#[derive(Clone, Copy)]
pub enum DdlKind {
    Create,
    Drop,
}

impl DdlKind {
    /// The prefix of the statement names of this kind.
    fn prefix(self) -> &'static str {
        match self {
            Self::Create => "create_",
            Self::Drop => "drop_",
        }
    }
}

/// Returns the statements that create or drop the tables of a slice, with placeholders substituted.
pub fn slice_ddl(kind: DdlKind, substitute: impl Fn(&str) -> String) -> Vec<String> {
    let of_kind = parse_statements(SLICES).into_iter().filter(|(name, _)| name.starts_with(kind.prefix()));
    of_kind.map(|(_, text)| substitute(&text)).collect()
}

fn is_ddl(name: &str) -> bool {
    name.starts_with("create_") || name.starts_with("drop_")
}

/// The statements of a file with their names, without comments.
fn parse_statements(file: &'static str) -> Vec<(&'static str, String)> {
    let mut found: Vec<(&'static str, String)> = Vec::new();
    for line in file.lines() {
        if let Some(name) = line.strip_prefix("-- name: ") {
            found.push((name.trim(), String::new()));
        } else if !line.starts_with("--")
            && let Some((_, text)) = found.last_mut()
        {
            text.push_str(line.trim());
            text.push(' ');
        }
    }
    for (_, text) in &mut found {
        let end = text.trim_end().trim_end_matches(';').len();
        text.truncate(end);
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_statement_has_a_name_of_its_own_and_is_one() {
        let all = [COUNTERS, HISTORY, SLICES].map(parse_statements).concat();
        let names: BTreeSet<_> = all.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), all.len());
        for (name, text) in &all {
            assert!(!text.is_empty() && !text.contains(';') && !text.contains("--"), "{name}: {text}");
            assert_eq!(text.matches(" {keyspace}.").count(), 1, "{name} names one table, with its keyspace: {text}");
        }
    }

    #[test]
    fn every_table_of_a_slice_that_is_made_is_dropped() {
        let tables = |kind: DdlKind| {
            let of_kind = slice_ddl(kind, |text| text.replace("{slice}", "1_0"));
            let table = |text: &String| {
                let words = text.split_whitespace().find(|word| word.contains("_1_0")).expect("it has a table");
                words.to_owned()
            };
            of_kind.iter().map(table).collect::<BTreeSet<_>>()
        };
        assert_eq!(tables(DdlKind::Create).len(), 3);
        assert_eq!(tables(DdlKind::Create), tables(DdlKind::Drop));
    }
}
