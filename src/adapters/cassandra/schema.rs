//! The numbered schema under `cql/schema`, compiled in: which migrations are applied or missing, and how they are
//! applied.
//!
//! A file is never edited after its release; the stored digest detects an edit. Table ids are derived from table names.
//! So two servers that migrate at once create one table each, and an interrupted migration can be applied again.

use scylla::client::session::Session;
use scylla::errors::{DbError, ExecutionError, RequestAttemptError};
use scylla::response::query_result::QueryResult;
use scylla::statement::Statement;
use uuid::Builder;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use crate::limits::{CASSANDRA_DEFINE_ATTEMPTS_MAX, CASSANDRA_DEFINE_WITHIN};
use crate::request_failure::RequestFailure;
use crate::request_runner;
use tallystone_ports::Clock;

/// One numbered migration of the schema.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Migration {
    /// The number, counted from 1 without gaps.
    pub number: i32,
    pub name: &'static str,
    text: &'static str,
}

/// The migrations of this binary, in order.
pub const MIGRATIONS: &[Migration] =
    &[Migration { number: 1, name: "tables", text: include_str!("../../../cql/schema/0001_tables.cql") }];

const MIGRATIONS_TABLE: &str = "CREATE TABLE IF NOT EXISTS {keyspace}.schema_migrations (slot int, number int, name \
                                text, digest bigint, PRIMARY KEY ((slot), number)) WITH id = '{schema_migrations_id}'";

/// The schema of a keyspace compared with this binary.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SchemaState {
    /// The keyspace does not exist.
    NoKeyspace,
    /// These migrations are missing; all of them in a fresh keyspace.
    Behind(Vec<Migration>),
    /// All migrations are applied.
    Current,
    /// A newer binary has applied migrations that this one does not know, up to this number.
    Ahead(i32),
    /// The migration of this number was applied with another text than this binary has.
    Differs(i32),
}

/// The replication settings of a keyspace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replication(Vec<(String, u32)>);

impl Replication {
    /// Creates the settings from copies by data centre, at least one.
    pub fn new(by_data_center: Vec<(String, u32)>) -> Self {
        Self(by_data_center)
    }

    fn options(&self) -> String {
        let of_dc = self.0.iter().map(|(dc, copies)| format!(", '{}': {copies}", dc.replace('\'', "''")));
        format!("{{'class': 'NetworkTopologyStrategy'{}}}", of_dc.collect::<String>())
    }
}

impl Migration {
    /// Returns the statements of the migration for a keyspace, in order.
    pub fn statements(&self, keyspace: &str) -> Vec<String> {
        let lines = self.text.lines().filter(|line| !line.trim_start().starts_with("--"));
        let text = lines.collect::<Vec<_>>().join("\n");
        let statements = text.split(';').map(str::trim).filter(|statement| !statement.is_empty());
        statements.map(|statement| qualified(statement, keyspace)).collect()
    }

    fn digest(&self) -> i64 {
        xxh3_64(self.text.as_bytes()).cast_signed()
    }
}

/// Returns the statement that creates a keyspace.
pub fn create_keyspace(keyspace: &str, replication: &Replication) -> String {
    let options = replication.options();
    format!("CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {options} AND durable_writes = true")
}

/// Inserts the keyspace before the table's name, and fills in the ids of tables.
fn qualified(statement: &str, keyspace: &str) -> String {
    let mut text =
        statement.replacen("CREATE TABLE IF NOT EXISTS ", &format!("CREATE TABLE IF NOT EXISTS {keyspace}."), 1);
    while let Some((before, rest)) = text.split_once("'{") {
        let Some((table, after)) = rest.split_once("_id}'") else { break };
        text = format!("{before}'{}'{after}", table_id(&format!("{keyspace}.{table}")));
    }
    text
}

/// The tables that the migrations make. Slices have more.
pub fn tables() -> Vec<&'static str> {
    let made = |migration: &'static Migration| migration.text.split("CREATE TABLE IF NOT EXISTS ").skip(1);
    let name = |text: &'static str| text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next();
    MIGRATIONS.iter().flat_map(made).filter_map(name).collect()
}

/// The tables that a keyspace has; none if there is no such keyspace.
pub async fn tables_of(session: &Session, keyspace: &str) -> Result<Vec<String>, RequestFailure> {
    // The driver prepares a statement with values anew for each call.
    let list = format!("SELECT table_name FROM system_schema.tables WHERE keyspace_name = '{keyspace}'");
    let listed = rows::<(String,)>(session.query_unpaged(list, ()).await?)?;
    Ok(listed.into_iter().map(|(table,)| table).collect())
}

/// Returns a table's id: a function of its name, so that two concurrent creations make one table.
pub fn table_id(name: &str) -> String {
    Builder::from_custom_bytes(xxh3_128(name.as_bytes()).to_be_bytes()).into_uuid().to_string()
}

/// Compares the schema of a keyspace with this binary's.
pub async fn state(session: &Session, keyspace: &str, clock: &dyn Clock) -> Result<SchemaState, RequestFailure> {
    repeated(clock, || read_state(session, keyspace)).await
}

async fn read_state(session: &Session, keyspace: &str) -> Result<SchemaState, RequestFailure> {
    let known = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?";
    if rows::<(String,)>(session.query_unpaged(known, (keyspace,)).await?)?.is_empty() {
        return Ok(SchemaState::NoKeyspace);
    }
    let tables = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ? AND table_name = ?";
    if rows::<(String,)>(session.query_unpaged(tables, (keyspace, "schema_migrations")).await?)?.is_empty() {
        return Ok(SchemaState::Behind(MIGRATIONS.to_vec()));
    }
    let applied = format!("SELECT number, digest FROM {keyspace}.schema_migrations WHERE slot = 0");
    match session.query_unpaged(applied, ()).await {
        Ok(answered) => Ok(compare(&rows::<(i32, i64)>(answered)?)),
        Err(ExecutionError::LastAttemptError(RequestAttemptError::DbError(error, text)))
            if is_partially_created(&error, &text) =>
        {
            Ok(SchemaState::Behind(MIGRATIONS.to_vec()))
        }
        Err(error) => Err(error.into()),
    }
}

/// While a keyspace or a table is being created, its description becomes readable before its rows do. Cassandra then
/// calls the table invalid, or reports an unknown keyspace.
fn is_partially_created(error: &DbError, text: &str) -> bool {
    matches!(error, DbError::Invalid) || (matches!(error, DbError::ServerError) && text.contains("Unknown keyspace"))
}

fn compare(applied: &[(i32, i64)]) -> SchemaState {
    let digest_of = |number| applied.iter().find(|(applied, _)| *applied == number).map(|(_, digest)| *digest);
    let differs =
        |migration: &&Migration| digest_of(migration.number).is_some_and(|digest| digest != migration.digest());
    if let Some(migration) = MIGRATIONS.iter().find(differs) {
        return SchemaState::Differs(migration.number);
    }
    let newest = applied.iter().map(|(number, _)| *number).max().unwrap_or(0);
    if newest > MIGRATIONS.last().map_or(0, |last| last.number) {
        return SchemaState::Ahead(newest);
    }
    let missing: Vec<Migration> =
        MIGRATIONS.iter().filter(|migration| digest_of(migration.number).is_none()).copied().collect();
    if missing.is_empty() { SchemaState::Current } else { SchemaState::Behind(missing) }
}

/// Checks the permission to create tables: tries to create an existing table, which changes nothing.
pub async fn may_make_tables(session: &Session, keyspace: &str) -> Result<(), RequestFailure> {
    define(session, qualified_table(keyspace)).await
}

/// Creates the keyspace if it is missing.
pub async fn make_keyspace(
    session: &Session,
    keyspace: &str,
    replication: &Replication,
    clock: &dyn Clock,
) -> Result<(), RequestFailure> {
    repeated(clock, || define(session, create_keyspace(keyspace, replication))).await
}

/// Applies migrations in order, and calls `made` after each statement. Each may be applied again.
pub async fn apply(
    session: &Session,
    keyspace: &str,
    migrations: &[Migration],
    clock: &dyn Clock,
    made: &(dyn Fn() + Sync),
) -> Result<(), RequestFailure> {
    repeated(clock, || define(session, qualified_table(keyspace))).await?;
    made();
    for migration in migrations {
        for statement in migration.statements(keyspace) {
            repeated(clock, || define(session, statement.clone())).await?;
            made();
        }
        repeated(clock, || record(session, keyspace, migration)).await?;
    }
    Ok(())
}

async fn record(session: &Session, keyspace: &str, migration: &Migration) -> Result<(), RequestFailure> {
    let done = format!("INSERT INTO {keyspace}.schema_migrations (slot, number, name, digest) VALUES (0, ?, ?, ?)");
    session.query_unpaged(done, (migration.number, migration.name, migration.digest())).await?;
    Ok(())
}

/// On a busy node, connections break or schema agreement times out during a schema change, so it is retried.
async fn repeated<T, F>(clock: &dyn Clock, attempt: impl FnMut() -> F) -> Result<T, RequestFailure>
where
    F: Future<Output = Result<T, RequestFailure>>,
{
    request_runner::retry_with_pauses(clock, CASSANDRA_DEFINE_ATTEMPTS_MAX, attempt).await
}

fn qualified_table(keyspace: &str) -> String {
    let id = table_id(&format!("{keyspace}.schema_migrations"));
    MIGRATIONS_TABLE.replace("{keyspace}", keyspace).replace("{schema_migrations_id}", &id)
}

/// Reads all rows of an answer into memory.
pub(super) fn rows<R>(answered: QueryResult) -> Result<Vec<R>, RequestFailure>
where
    R: for<'frame> scylla::deserialize::row::DeserializeRow<'frame, 'frame>,
{
    let result = answered.into_rows_result().map_err(RequestFailure::corrupt)?;
    let rows = result.rows::<R>().map_err(RequestFailure::corrupt)?;
    rows.collect::<Result<_, _>>().map_err(RequestFailure::corrupt)
}

/// Changes the schema, with a longer timeout than for data requests.
pub async fn define(session: &Session, text: String) -> Result<(), RequestFailure> {
    let mut statement = Statement::new(text);
    statement.set_request_timeout(Some(CASSANDRA_DEFINE_WITHIN));
    session.query_unpaged(statement, ()).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn migrations_are_numbered_without_gaps_and_make_what_they_say() {
        for (number, migration) in (1..).zip(MIGRATIONS) {
            assert_eq!(migration.number, number);
            let statements = migration.statements("shop");
            assert!(!statements.is_empty());
            for statement in statements {
                assert!(statement.starts_with("CREATE TABLE IF NOT EXISTS shop."), "{statement}");
                assert!(!statement.contains("_id}"), "{statement}");
            }
        }
    }

    #[test]
    fn a_schema_is_compared_by_numbers_and_digests() {
        let all: Vec<(i32, i64)> = MIGRATIONS.iter().map(|one| (one.number, one.digest())).collect();
        assert_eq!(compare(&all), SchemaState::Current);
        assert_eq!(compare(&[]), SchemaState::Behind(MIGRATIONS.to_vec()));
        assert_eq!(compare(&[(1, 0)]), SchemaState::Differs(1));
        assert_eq!(compare(&[(1, 0), (4, 0)]), SchemaState::Differs(1), "a keyspace of a build before 0.1.0");
        assert_eq!(compare(&[all, vec![(99, 0)]].concat()), SchemaState::Ahead(99));
    }

    #[test]
    fn a_keyspace_is_replicated_by_data_centre() {
        let replication = Replication::new(vec![("eu".to_owned(), 3), ("us".to_owned(), 2)]);
        let text = create_keyspace("shop", &replication);
        assert!(text.contains("{'class': 'NetworkTopologyStrategy', 'eu': 3, 'us': 2}"), "{text}");
    }
}
