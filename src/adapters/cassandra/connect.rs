//! Opens a session and checks the cluster before anything is written; each error says how to fix its cause.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use scylla::authentication::{AuthError, AuthenticatorProvider, AuthenticatorSession, PlainTextAuthenticator};
use scylla::client::execution_profile::ExecutionProfile;
use scylla::client::session::Session;
use scylla::client::session_builder::SessionBuilder;
use scylla::errors::NewSessionError;
use scylla::frame::types::{Consistency, SerialConsistency};
use scylla::policies::load_balancing::DefaultPolicy;
use scylla::policies::retry::FallthroughRetryPolicy;

use crate::limits::CASSANDRA_DEFINE_WITHIN;
use crate::request_failure::RequestFailure;
use crate::schema::{self, Migration, SchemaState};
use crate::startup_deadline::StartupDeadline;
use tallystone_adapters::store_password::StorePassword;
use tallystone_adapters::store_tls::{StoreTls, is_about_tls, with_tls_advice};
use tallystone_ports::{Clock, StoreError, StoreErrorKind};

/// The address of a cluster and the settings of its connections.
#[derive(Clone, Debug)]
pub struct Options {
    /// Contact points, HOST:PORT; the driver discovers the other nodes.
    pub servers: Vec<String>,
    pub keyspace: String,
    /// The data centre that this server writes in; none: the only one of the cluster.
    pub data_center: Option<String>,
    /// User and password, if the cluster requires them.
    pub credentials: Option<Credentials>,
    /// The TLS of connections; none: they are in clear text.
    pub tls: Option<StoreTls>,
    /// The timeout of one request.
    pub timeout: Duration,
}

/// User and password.
#[derive(Clone)]
pub struct Credentials {
    pub user: String,
    /// Read again for each new connection, if a file holds it.
    pub password: StorePassword,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

/// A reason why a cluster cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// No node answers.
    #[error(
        "no Cassandra node answers at {servers}: {why}; check that the cluster is running and that servers has the \
         addresses of its CQL port"
    )]
    Unreachable {
        /// The contact points.
        servers: String,
        /// The cause.
        why: String,
    },
    /// There is no TLS session.
    #[error("no TLS session with a Cassandra node at {servers}: {why}")]
    Tls {
        /// The contact points.
        servers: String,
        /// The cause, and what to do.
        why: String,
    },
    /// User or password are wrong, or missing.
    #[error(
        "the Cassandra cluster at {servers} rejects the credentials: {why}; correct user and password of the cluster"
    )]
    Credentials {
        /// The contact points.
        servers: String,
        /// The answer of the cluster.
        why: String,
    },
    /// The data centre does not exist.
    #[error("data centre {wanted} does not exist; the cluster has {known}: correct data_center of the cluster")]
    DataCenter {
        /// The configured data centre.
        wanted: String,
        /// The data centres of the cluster.
        known: String,
    },
    /// The cluster has several data centres and none was configured.
    #[error("the cluster has several data centres ({known}); set data_center to the one that this server uses")]
    DataCenterUnnamed {
        /// The data centres of the cluster.
        known: String,
    },
    /// The keyspace is written in another data centre.
    #[error(
        "keyspace {keyspace} is written in data centre {there}, but this server is in {here}: set servers and \
         data_center of the cluster to {there}, or move the keyspace to {here} (see \
         \"One data centre writes\" in docs/operating.md)"
    )]
    WrittenElsewhere {
        keyspace: String,
        /// The data centre of the keyspace's writers.
        there: String,
        /// The data centre of this server.
        here: String,
    },
    /// The keyspace belongs to another catalog, or to another cluster name.
    #[error(
        "keyspace {keyspace} {what}: counters of two catalogs in one keyspace would remove each other; correct servers and \
         keyspace of the cluster, or counters.cluster"
    )]
    Owned {
        keyspace: String,
        /// The use that the keyspace already has.
        what: String,
    },
    /// The keyspace or its schema is missing, or of another release.
    #[error("{what}; {advice}")]
    Schema {
        /// The state of the schema.
        what: String,
        /// The remedy.
        advice: &'static str,
    },
    /// The nodes do not agree on the schema.
    #[error("the nodes of the cluster do not agree on its schema ({why}); wait, or repair the cluster")]
    Disagreement {
        /// The driver's message.
        why: String,
    },
    /// The user lacks a permission.
    #[error(
        "the user of the cluster lacks permissions on keyspace {keyspace}: {why}; grant SELECT, MODIFY, CREATE and \
         DROP on keyspace {keyspace}"
    )]
    Forbidden {
        keyspace: String,
        /// The cluster's message.
        why: String,
    },
    /// Conditional writes fail.
    #[error(
        "keyspace {keyspace} does not support conditional writes; use a store release that supports them (on \
         ScyllaDB, create the keyspace without tablets if the release has no lightweight transactions on tablets)"
    )]
    NotWritable {
        keyspace: String,
        /// The cause.
        source: StoreError,
    },
    /// The keyspaces were opened, and then a request of startup got no answer.
    #[error(
        "the server cannot start serving keyspace {keyspaces}: {why}; a quorum of the replicas of each keyspace, in \
         the data centre of this server, must answer within request_timeout_ms of its cluster"
    )]
    Silent {
        /// The keyspaces that were opened.
        keyspaces: String,
        /// The unanswered request, if it is known.
        why: String,
    },
    /// A request failed.
    #[error(
        "keyspace {keyspace} is not available; a quorum of its replicas in the data centre of this server must answer \
         within request_timeout_ms of the cluster"
    )]
    Store {
        keyspace: String,
        /// The cause.
        source: StoreError,
    },
}

impl OpenError {
    /// Converts the failure of a request during startup.
    pub fn of(fault: RequestFailure, keyspace: &str) -> Self {
        Self::of_store(fault.during("look at the cluster"), keyspace)
    }

    /// Converts the failure of a store call during startup.
    pub fn of_store(source: StoreError, keyspace: &str) -> Self {
        let keyspace = keyspace.to_owned();
        match source.kind {
            StoreErrorKind::Forbidden => {
                let why = source.source.map_or_else(|| source.op.to_owned(), |cause| cause.to_string());
                Self::Forbidden { keyspace, why }
            }
            StoreErrorKind::Unavailable
            | StoreErrorKind::Full
            | StoreErrorKind::Busy
            | StoreErrorKind::Corrupt
            | StoreErrorKind::Lost
            | StoreErrorKind::Conflict
            | StoreErrorKind::Demoted
            | StoreErrorKind::Closed => Self::Store { keyspace, source },
        }
    }

    /// Converts the failure of the first conditional write, which is either refused permanently or fails for now.
    pub fn of_condition(fault: RequestFailure, keyspace: &str) -> Self {
        let is_invalid = !fault.is_retryable && fault.kind != StoreErrorKind::Forbidden;
        let source = fault.during("begin catalog");
        if is_invalid {
            Self::NotWritable { keyspace: keyspace.to_owned(), source }
        } else {
            Self::of_store(source, keyspace)
        }
    }
}

/// Opens a session within the startup deadline, and checks the data centre.
pub async fn connect(options: &Options, startup_deadline: &StartupDeadline) -> Result<Session, OpenError> {
    let servers = options.servers.join(",");
    let Some(built) = startup_deadline.run(Box::pin(session_of(options, Consistency::LocalQuorum))).await else {
        return Err(OpenError::Unreachable { servers, why: "no answer in time".to_owned() });
    };
    let session = built.map_err(|error| refusal(servers, &error))?;
    check_data_center(&session, options)?;
    Ok(session)
}

async fn session_of(options: &Options, consistency: Consistency) -> Result<Session, NewSessionError> {
    let mut balancing = DefaultPolicy::builder().token_aware(true);
    if let Some(data_center) = &options.data_center {
        balancing = balancing.prefer_datacenter(data_center.clone());
    }
    let profile = ExecutionProfile::builder()
        .consistency(consistency)
        .serial_consistency(Some(SerialConsistency::LocalSerial))
        .request_timeout(Some(options.timeout))
        .retry_policy(Arc::new(FallthroughRetryPolicy::new()))
        .load_balancing_policy(balancing.build())
        .build();
    let mut builder = SessionBuilder::new()
        .known_nodes(&options.servers)
        .connection_timeout(options.timeout)
        .default_execution_profile_handle(profile.into_handle())
        .keyspaces_to_fetch([&options.keyspace])
        .fetch_full_schema_metadata(false)
        .refresh_metadata_on_auto_schema_agreement(false)
        .schema_agreement_interval(Duration::from_millis(20))
        .schema_agreement_timeout(CASSANDRA_DEFINE_WITHIN);
    if let Some(credentials) = &options.credentials {
        builder = builder.authenticator_provider(Arc::new(CurrentCredentials(credentials.clone())));
    }
    builder.tls_context(options.tls.as_ref().map(|tls| Arc::clone(tls.config()))).build().await
}

/// Shows user and password at each new connection as they are then.
struct CurrentCredentials(Credentials);

#[async_trait]
impl AuthenticatorProvider for CurrentCredentials {
    async fn start_authentication_session(
        &self,
        authenticator: &str,
    ) -> Result<(Option<Vec<u8>>, Box<dyn AuthenticatorSession>), AuthError> {
        let Credentials { user, password } = &self.0;
        let shown = PlainTextAuthenticator::new(user.clone(), password.current().to_string());
        shown.start_authentication_session(authenticator).await
    }
}

/// Distinguishes wrong credentials from an unreachable cluster; the driver reports both as texts of its layers.
fn refusal(servers: String, error: &NewSessionError) -> OpenError {
    let why = with_tls_advice(error.to_string(), "tls_ca_file");
    let is_about_credentials = ["uthentication", "redentials", "username"].iter().any(|word| why.contains(word));
    match is_about_credentials {
        true => OpenError::Credentials { servers, why },
        false if is_about_tls(&why) => OpenError::Tls { servers, why },
        false => OpenError::Unreachable { servers, why },
    }
}

/// Returns the data centres of a cluster.
pub fn data_centers(session: &Session) -> BTreeSet<String> {
    session.get_cluster_state().get_nodes_info().iter().filter_map(|node| node.datacenter.clone()).collect()
}

fn check_data_center(session: &Session, options: &Options) -> Result<(), OpenError> {
    let known = data_centers(session);
    let listed = || known.iter().cloned().collect::<Vec<_>>().join(", ");
    match &options.data_center {
        Some(wanted) if !known.contains(wanted) => {
            Err(OpenError::DataCenter { wanted: wanted.clone(), known: listed() })
        }
        None if known.len() > 1 => Err(OpenError::DataCenterUnnamed { known: listed() }),
        Some(_) | None => Ok(()),
    }
}

/// Checks three things: the nodes agree on the schema, it matches this binary, and tables of slices can be created.
pub async fn check_schema(
    session: &Session,
    keyspace: &str,
    clock: &dyn Clock,
    startup_deadline: &StartupDeadline,
) -> Result<(), OpenError> {
    let of = |fault| OpenError::of(fault, keyspace);
    let looking = async {
        let agreed = session.await_schema_agreement().await;
        agreed.map_err(|error| OpenError::Disagreement { why: error.to_string() })?;
        schema::state(session, keyspace, clock).await.map_err(of)
    };
    let (what, advice) = match within_deadline(startup_deadline, keyspace, Box::pin(looking)).await? {
        SchemaState::Current => {
            let making = async { schema::may_make_tables(session, keyspace).await.map_err(of) };
            return within_deadline(startup_deadline, keyspace, making).await;
        }
        SchemaState::NoKeyspace => (
            format!("keyspace {keyspace} does not exist"),
            "create it with `tallystone migrate apply` (add --cluster NAME unless it belongs to counters.cluster)",
        ),
        SchemaState::Behind(missing) => (
            format!("the schema of keyspace {keyspace} lacks migrations of this release: {}", names(&missing)),
            "apply them with `tallystone migrate apply` (add --cluster NAME unless the keyspace belongs to \
             counters.cluster)",
        ),
        SchemaState::Ahead(number) => (
            format!("the schema of keyspace {keyspace} is newer than this release: it has migration {number}"),
            "start a newer release",
        ),
        SchemaState::Differs(number) => (
            format!("migration {number} of keyspace {keyspace} was applied with different text than this release has"),
            "start the release that applied it, or use another keyspace for this release; builds before 0.1.0 had other tables",
        ),
    };
    Err(OpenError::Schema { what, advice })
}

fn names(migrations: &[Migration]) -> String {
    let names = migrations.iter().map(|migration| format!("{} ({})", migration.number, migration.name));
    names.collect::<Vec<_>>().join(", ")
}

/// Runs a step of startup on a keyspace within the deadline. If the deadline passes, the error is that nodes do not
/// answer.
pub async fn within_deadline<T>(
    startup_deadline: &StartupDeadline,
    keyspace: &str,
    step: impl Future<Output = Result<T, OpenError>>,
) -> Result<T, OpenError> {
    let ended = startup_deadline.run(step).await;
    ended.unwrap_or_else(|| Err(OpenError::of(RequestFailure::not_sent("no answer in time"), keyspace)))
}

/// Warns of cluster settings that weaken the guarantees. Settings that the cluster does not reveal cause no warning.
pub async fn warn_of_settings(session: &Session) {
    let asked = "SELECT name, value FROM system_views.settings WHERE name IN ('commitlog_sync', 'auto_snapshot')";
    let Ok(answered) = session.query_unpaged(asked, ()).await else { return };
    let Ok(rows) = answered.into_rows_result() else { return };
    let Ok(rows) = rows.rows::<(String, Option<String>)>() else { return };
    for (name, value) in rows.flatten() {
        match (name.as_str(), value.as_deref()) {
            ("commitlog_sync", Some("periodic")) => tracing::warn!(
                "Cassandra syncs its commit log periodically: if all replicas of a row lose power or are killed at \
                 once, recently acknowledged events are lost; set commitlog_sync to batch or group to prevent that"
            ),
            ("auto_snapshot", Some("true")) => tracing::warn!(
                "Cassandra keeps a snapshot of every dropped table, so dropped slices stay on disk; set auto_snapshot \
                 to false, or clear snapshots regularly"
            ),
            _ => {} // nothing to say
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;
    use crate::limits::CASSANDRA_START_WITHIN;
    use tallystone_adapters::manual::ManualClock;
    use tallystone_domain::Timestamp;

    #[tokio::test]
    async fn a_step_of_the_start_that_gets_no_answer_says_that_the_keyspace_cannot_be_used() {
        let clock = Arc::new(ManualClock::at(Timestamp::from_secs(0)));
        let patience = StartupDeadline::start(Arc::clone(&clock) as Arc<dyn Clock>);
        clock.advance(CASSANDRA_START_WITHIN);
        let ended = within_deadline(&patience, "views", pending::<Result<(), OpenError>>()).await;
        let refusal = ended.expect_err("nobody answers");
        assert!(matches!(refusal, OpenError::Store { .. }), "{refusal:?}");
        assert!(refusal.to_string().contains("keyspace views is not available"), "{refusal}");
    }

    #[tokio::test]
    async fn a_step_of_the_start_that_ends_in_time_says_what_it_says() {
        let patience = StartupDeadline::start(Arc::new(ManualClock::at(Timestamp::from_secs(0))));
        assert_eq!(within_deadline(&patience, "views", ready(Ok(7))).await.expect("it works"), 7);
        let unnamed = || OpenError::DataCenterUnnamed { known: "a, b".to_owned() };
        let refusal =
            within_deadline(&patience, "views", ready(Err::<(), _>(unnamed()))).await.expect_err("it is refused");
        assert_eq!(refusal.to_string(), unnamed().to_string());
    }
}
