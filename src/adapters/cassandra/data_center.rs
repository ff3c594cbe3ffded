//! The one data centre that a keyspace is written in.
//!
//! Everything is written and read at a quorum of one data centre. A server in another one would read quorums that lack what
//! was acknowledged a moment ago, and so publish limits, give verdicts and roll counters up without it. The first server of a
//! keyspace settles which data centre it is; those of others do not start.
//!
//! Its row is decided among the replicas of all data centres. It has a partition of its own, because the catalog's is
//! decided within one data centre, and two ways to decide do not see each other.

use scylla::client::session::Session;
use scylla::statement::{Consistency, SerialConsistency, Statement};

use crate::adapters::cassandra::connect::{OpenError, Options, data_centers};
use crate::adapters::cassandra::request_failure::RequestFailure;
use crate::adapters::cassandra::request_runner::retry_with_pauses;
use crate::adapters::cassandra::schema::rows;
use crate::domain::limits::CASSANDRA_ATTEMPTS_MAX;
use crate::ports::Clock;

const ROW: &str = "part = 1 AND kind = 5 AND name = '' AND id = 0 AND version = 0";

/// Refuses a server whose data centre is not the one that the keyspace is written in; the first one settles it.
pub async fn ensure_write_data_center(
    session: &Session,
    options: &Options,
    clock: &dyn Clock,
) -> Result<(), OpenError> {
    let keyspace = &options.keyspace;
    // A cluster whose nodes name no data centre has no second one, and one with several was refused if none was named.
    let named = options.data_center.clone().or_else(|| data_centers(session).pop_first());
    let Some(here) = named else { return Ok(()) };
    let looked = retry_with_pauses(clock, CASSANDRA_ATTEMPTS_MAX, || {
        read_data_center(session, keyspace, Consistency::LocalQuorum)
    })
    .await;
    let there = match looked.map_err(|fault| OpenError::of(fault, keyspace))? {
        Some(there) => there,
        None => {
            let claimed =
                retry_with_pauses(clock, CASSANDRA_ATTEMPTS_MAX, || claim_data_center(session, keyspace, &here)).await;
            claimed.map_err(|fault| OpenError::of_condition(fault, keyspace))?
        }
    };
    if there == here {
        return Ok(());
    }
    Err(OpenError::WrittenElsewhere { keyspace: keyspace.clone(), there, here })
}

/// Settles the data centre if nobody has; answers which it is.
async fn claim_data_center(session: &Session, keyspace: &str, here: &str) -> Result<String, RequestFailure> {
    let values = "(part, kind, name, id, version, value) VALUES (1, 5, '', 0, 0, ?)";
    let mut statement = Statement::new(format!("INSERT INTO {keyspace}.catalog {values} IF NOT EXISTS"));
    statement.set_serial_consistency(Some(SerialConsistency::Serial));
    session.query_unpaged(statement, (here.as_bytes(),)).await?;
    // Whoever came first, and whether or not an answer was lost on the way: this sees what was decided.
    let decided = read_data_center(session, keyspace, Consistency::Serial).await?;
    decided.ok_or_else(|| RequestFailure::corrupt("the data centre of the keyspace was settled and is not there"))
}

async fn read_data_center(
    session: &Session,
    keyspace: &str,
    consistency: Consistency,
) -> Result<Option<String>, RequestFailure> {
    let mut statement = Statement::new(format!("SELECT value FROM {keyspace}.catalog WHERE {ROW}"));
    statement.set_consistency(consistency);
    let found = rows::<(Vec<u8>,)>(session.query_unpaged(statement, ()).await?)?;
    found.into_iter().next().map(|(name,)| String::from_utf8(name).map_err(RequestFailure::corrupt)).transpose()
}
