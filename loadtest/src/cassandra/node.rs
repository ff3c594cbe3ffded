//! The node asked by the driver alone: rows like those of the event log, native counter columns, groups of rows.
//!
//! The table is made by the statement that makes the server's, the rows have the sizes of its rows, and the session has
//! its consistency, timeout and way to retry. So what is compared is the work above the driver.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::frame::types::Consistency;
use scylla::policies::retry::FallthroughRetryPolicy;
use scylla::statement::batch::{Batch, BatchType};
use scylla::statement::prepared::PreparedStatement;
use uuid::Uuid;

use crate::client::counter_name;
use crate::load::{Call, Dice};

/// The statements on the tables of a slice, as the server has them.
const SLICES: &str = include_str!("../../../cql/statements/slices.cql");
/// What the names of our tables and of their ids are filled with.
const SLICE: &str = "1_0";
/// As the server's default.
const TIMEOUT: Duration = Duration::from_secs(2);
/// Making or dropping a table or keyspace.
const DEFINE_WITHIN: Duration = Duration::from_secs(60);
/// As the namespaces of the load have it.
const SECONDS_PER_BUCKET: i64 = 600;
/// The value cell of an add of 1: kind and delta.
const VALUE: [u8; 4] = [8, 1, 16, 2];

/// A session with a node, in a keyspace of its own.
pub struct Node {
    session: Session,
    insert: PreparedStatement,
    count: PreparedStatement,
}

/// A row of the event log, in the order of the columns of `insert_event`.
type Row = (i64, String, i64, i32, i64, Vec<u8>, Vec<u8>, i64);

impl Node {
    /// Connects, and makes the keyspace with its two tables.
    pub async fn open(servers: &[String], keyspace: &str) -> Result<Self> {
        let profile = ExecutionProfile::builder()
            .consistency(Consistency::LocalQuorum)
            .request_timeout(Some(TIMEOUT))
            .retry_policy(Arc::new(FallthroughRetryPolicy::new()))
            .build();
        let session = SessionBuilder::new()
            .known_nodes(servers)
            .default_execution_profile_handle(profile.into_handle())
            .fetch_full_schema_metadata(false)
            .build()
            .await
            .with_context(|| format!("no Cassandra node answers at {}", servers.join(",")))?;
        let filled = |name: &str| statement(name).replace("{keyspace}", keyspace).replace("{slice}", SLICE);
        for text in [
            format!(
                "CREATE KEYSPACE {keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
            ),
            filled("create_events").replace("{events_id}", &Uuid::now_v7().to_string()),
            format!(
                "CREATE TABLE {keyspace}.counts (ns bigint, counter text, value counter, PRIMARY KEY ((ns, counter)))"
            ),
        ] {
            define(&session, text).await?;
        }
        let insert = session.prepare(filled("insert_event")).await?;
        let count = format!("UPDATE {keyspace}.counts SET value = value + 1 WHERE ns = ? AND counter = ?");
        let count = session.prepare(count).await?;
        Ok(Self { session, insert, count })
    }

    /// Drops a keyspace, if it is there.
    pub async fn drop_keyspace(&self, keyspace: &str) -> Result<()> {
        define(&self.session, format!("DROP KEYSPACE IF EXISTS {keyspace}")).await
    }

    /// The tables of a keyspace that hold events.
    pub async fn event_tables(&self, keyspace: &str) -> Result<Vec<String>> {
        let asked = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = ?";
        let answer = self.session.query_unpaged(asked, (keyspace,)).await?.into_rows_result()?;
        let names = answer.rows::<(String,)>()?.map(|row| row.map(|(name,)| name)).collect::<Result<Vec<_>, _>>()?;
        Ok(names.into_iter().filter(|name| name.starts_with("events_")).collect())
    }

    /// How many rows each partition of a table holds.
    pub async fn partition_rows(&self, keyspace: &str, table: &str) -> Result<Vec<u64>> {
        let asked = format!("SELECT DISTINCT ns, counter, time_bucket, event_bucket FROM {keyspace}.{table}");
        let answer = self.session.query_unpaged(asked, ()).await?.into_rows_result()?;
        let partitions = answer.rows::<(i64, String, i64, i32)>()?.collect::<Result<Vec<_>, _>>()?;
        let count = self
            .session
            .prepare(format!(
                "SELECT COUNT(*) FROM {keyspace}.{table} WHERE ns = ? AND counter = ? AND time_bucket = ? AND event_bucket = ?"
            ))
            .await;
        let mut count = count?;
        // Counting reads the whole partition.
        count.set_request_timeout(Some(DEFINE_WITHIN));
        let mut rows = Vec::with_capacity(partitions.len());
        for partition in partitions {
            let answer = self.session.execute_unpaged(&count, partition).await?.into_rows_result()?;
            let (counted,) = answer.single_row::<(i64,)>()?;
            rows.push(u64::try_from(counted)?);
        }
        Ok(rows)
    }

    /// The largest partition of a table in whole MiB, as the node measures it once the table is on disk; none where a node
    /// does not tell.
    pub async fn largest_partition_mib(&self, keyspace: &str, table: &str) -> Result<Option<u64>> {
        const LOOKS: u32 = 120;
        let flushed = format!("ALTER TABLE {keyspace}.{table} WITH memtable_flush_period_in_ms = 1000");
        define(&self.session, flushed).await?;
        let asked = "SELECT mebibytes FROM system_views.max_partition_size WHERE keyspace_name = ? AND table_name = ?";
        for _ in 0..LOOKS {
            let Ok(answer) = self.session.query_unpaged(asked, (keyspace, table)).await else { return Ok(None) };
            let measured = answer.into_rows_result()?.maybe_first_row::<(i64,)>()?;
            if let Some((mebibytes,)) = measured.filter(|(mebibytes,)| *mebibytes > 0) {
                return Ok(Some(u64::try_from(mebibytes)?));
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        Ok(None)
    }
}

async fn define(session: &Session, text: String) -> Result<()> {
    let mut statement = scylla::statement::Statement::new(text);
    statement.set_request_timeout(Some(DEFINE_WITHIN));
    session.query_unpaged(statement, ()).await?;
    Ok(())
}

/// A statement of the server's by its name, without its comments.
fn statement(name: &str) -> String {
    let header = format!("-- name: {name}\n");
    let from = SLICES.find(&header).expect("the server has the statement") + header.len();
    let text = SLICES[from..].split("-- name:").next().unwrap_or_default();
    let lines = text.lines().filter(|line| !line.starts_with("--"));
    lines.collect::<Vec<_>>().join(" ").trim_end_matches([' ', ';']).to_owned()
}

/// A row of a counter that was never written.
fn row(counter: u64) -> Row {
    let id = Uuid::now_v7();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let micros = i64::try_from(now.as_millis()).unwrap_or(i64::MAX / 1_000) * 1_000;
    let bucket = micros - micros % (SECONDS_PER_BUCKET * 1_000_000);
    let tagged = [&[1], id.as_bytes().as_slice()].concat();
    (1, counter_name(counter), bucket, 0, micros, tagged, VALUE.to_vec(), micros)
}

/// What the node is asked to do.
#[derive(Clone, Copy)]
pub enum What {
    /// Insert one row of the event log.
    Insert,
    /// Add 1 to a native counter column.
    Count,
    /// Insert so many rows of one partition in one unlogged batch.
    Group(usize),
}

/// One request at a time over the driver.
pub struct Raw {
    node: Arc<Node>,
    what: What,
    counters: u64,
    dice: Dice,
}

impl Raw {
    /// Some workers over the session of a node.
    pub fn workers(node: &Arc<Node>, what: What, counters: u64, count: usize) -> Vec<Self> {
        let worker = |number| Self { node: Arc::clone(node), what, counters, dice: Dice::new(number as u64 + 1) };
        (0..count).map(worker).collect()
    }

    async fn group(&self, counter: u64, rows: usize) -> Result<(), String> {
        let mut batch = Batch::new(BatchType::Unlogged);
        let bucket = row(counter).2;
        let in_bucket = |(ns, name, _, event_bucket, time, id, value, at): Row| {
            (ns, name, bucket, event_bucket, time, id, value, at)
        };
        let values: Vec<Row> = (0..rows).map(|_| in_bucket(row(counter))).collect();
        (0..rows).for_each(|_| batch.append_statement(self.node.insert.clone()));
        self.node.session.batch(&batch, &values).await.map(drop).map_err(|error| error.to_string())
    }
}

impl Call for Raw {
    async fn call(&mut self) -> Result<u64, String> {
        let counter = self.dice.below(self.counters);
        let session = &self.node.session;
        match self.what {
            What::Insert => {
                let done = session.execute_unpaged(&self.node.insert, row(counter)).await;
                done.map(|_| 1).map_err(|error| error.to_string())
            }
            What::Count => {
                let done = session.execute_unpaged(&self.node.count, (1_i64, counter_name(counter))).await;
                done.map(|_| 1).map_err(|error| error.to_string())
            }
            What::Group(rows) => self.group(counter, rows).await.map(|()| rows as u64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statements_are_the_servers() {
        assert!(statement("create_events").starts_with("CREATE TABLE IF NOT EXISTS {keyspace}.events_{slice} ("));
        assert!(statement("insert_event").ends_with("USING TIMESTAMP ?"));
        assert!(!statement("create_events").contains("--"));
    }

    #[test]
    fn a_row_lies_in_the_bucket_of_its_time() {
        let (_, name, bucket, _, time, id, ..) = row(7);
        assert_eq!((name.as_str(), id.len()), ("load/0000007", 17));
        assert!((0..600_000_000).contains(&(time - bucket)));
    }
}
