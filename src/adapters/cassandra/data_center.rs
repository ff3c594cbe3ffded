//! The one data centre whose servers may write a keyspace.
//!
//! All reads and writes use a quorum of one data centre. A quorum of another data centre may lack events that were just
//! acknowledged. A server there would publish limits, give verdicts and roll counters up without them. The first server
//! of a keyspace fixes its data centre; servers in others refuse to start.
//!
//! The replicas of all data centres decide this row. It has a partition of its own because the catalog's partition is
//! decided within one data centre, and the two consistency levels do not see each other's decisions.

use scylla::client::session::Session;
use scylla::statement::{Consistency, SerialConsistency, Statement};

use crate::connect::{OpenError, Options, data_centers};
use crate::limits::CASSANDRA_ATTEMPTS_MAX;
use crate::request_failure::RequestFailure;
use crate::request_runner::retry_with_pauses;
use crate::schema::rows;
use tallystone_ports::Clock;

const ROW: &str = "part = 1 AND kind = 5 AND name = '' AND id = 0 AND version = 0";

/// Refuses a server outside the keyspace's data centre; the first server fixes that data centre.
pub async fn ensure_write_data_center(
    session: &Session,
    options: &Options,
    clock: &dyn Clock,
) -> Result<(), OpenError> {
    let keyspace = &options.keyspace;
    // If the nodes name no data centre, there is only one. If there are several and none was named, the start already
    // failed.
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

/// Records the data centre if none is recorded; returns the recorded one.
async fn claim_data_center(session: &Session, keyspace: &str, here: &str) -> Result<String, RequestFailure> {
    let values = "(part, kind, name, id, version, value) VALUES (1, 5, '', 0, 0, ?)";
    let mut statement = Statement::new(format!("INSERT INTO {keyspace}.catalog {values} IF NOT EXISTS"));
    statement.set_serial_consistency(Some(SerialConsistency::Serial));
    session.query_unpaged(statement, (here.as_bytes(),)).await?;
    // A serial read sees the decision, whichever server was first and even if its answer was lost.
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
