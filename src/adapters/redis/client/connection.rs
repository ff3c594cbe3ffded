//! One connection, by the client library: the only file that names it.
//!
//! It speaks RESP3 and carries the commands of many callers at once, those of each in their order. Once commands were
//! given to the library, the outcome of those without an answer is unknown.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, Pipeline, ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo,
    RedisError, Value,
};
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::client::command::RedisCommand;
use crate::client::deadline::Deadline;
use crate::client::failure::{CallFailure, FailureCause, judge};
use crate::client::info::field;
use crate::client::reply::RedisReply;
use crate::limits::{REDIS_CALLS_AT_ONCE_MAX, REDIS_CONNECT_WITHIN};
use tallystone_adapters::store_password::StorePassword;
use tallystone_adapters::store_tls::{StoreTls, with_tls_advice};
use tallystone_coalesce::DetachedTasks;
use tallystone_ports::Clock;

/// A user and its password.
#[derive(Clone)]
pub struct Login {
    /// The name; none for the default user.
    pub user: Option<String>,
    /// The password.
    pub password: StorePassword,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// The kind of a node, which decides what a new connection checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NodeKind {
    /// A server that nobody watches: it has to be a primary.
    Alone,
    /// One that Sentinels watch: it has to be a primary too, and another one is found if it is none.
    Watched,
    /// A node of a cluster: it sends callers of others' slots away by itself.
    Member,
    /// A Sentinel.
    Sentinel,
    /// Any of them: whoever asks it knows what it may be.
    Unchecked,
}

/// How to reach a node.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    pub(super) address: Arc<str>,
    pub(super) login: Option<Login>,
    /// None: in clear text.
    pub(super) tls: Option<StoreTls>,
    pub(super) kind: NodeKind,
}

/// The server that answered: a node, the life of its process, and the history of its data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServedBy {
    address: Arc<str>,
    run_id: Arc<str>,
    replication_id: Arc<str>,
}

impl ServedBy {
    /// HOST:PORT of the node.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Names the life of its process.
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Names the history of its data: a replica that becomes a primary begins another one.
    pub fn replication_id(&self) -> &str {
        &self.replication_id
    }
}

/// A message that a server sends without being asked.
pub(super) enum Push {
    /// Something was published.
    News { channel: String, payload: Bytes },
    /// A subscription holds.
    Entered { channel: String },
    /// A subscription has ended.
    Left { channel: String },
    /// The connection has ended.
    Ended,
}

/// Takes what a server sends without being asked. Must not block.
pub(super) type PushReceiver = Arc<dyn Fn(Push) + Send + Sync>;

/// A connection. Dropping it and its calls in flight closes it.
pub(super) struct RedisConnection {
    connection: MultiplexedConnection,
    served_by: ServedBy,
    clock: Arc<dyn Clock>,
    is_broken: Arc<AtomicBool>,
    in_flight: AtomicUsize,
    /// Since when calls wait without any answer, in microseconds of `Clock::elapsed`; 0 after an answer.
    silent_since_micros: AtomicU64,
    /// Reads and writes the stream.
    _driver: DetachedTasks,
}

impl RedisConnection {
    /// Connects, logs in, and checks that the node is what it should be, within `REDIS_CONNECT_WITHIN`.
    pub(super) async fn connect(
        endpoint: &Endpoint,
        receiver: Option<PushReceiver>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, CallFailure> {
        let is_broken: Arc<AtomicBool> = Arc::default();
        let connecting = Self::open(endpoint, receiver, Arc::clone(&is_broken));
        let deadline = Deadline::after(REDIS_CONNECT_WITHIN, clock);
        let late = || unreachable(endpoint, "no connection in time");
        let (connection, driver) = deadline.meet(connecting).await.ok_or_else(late)??;
        let served_by =
            ServedBy { address: Arc::clone(&endpoint.address), run_id: Arc::from(""), replication_id: Arc::from("") };
        let (clock, in_flight, silent_since_micros) = (Arc::clone(clock), AtomicUsize::new(0), AtomicU64::new(0));
        let mut connection =
            Self { connection, served_by, clock, is_broken, in_flight, silent_since_micros, _driver: driver };
        if matches!(endpoint.kind, NodeKind::Alone | NodeKind::Watched | NodeKind::Member) {
            deadline.meet(connection.identify(endpoint)).await.ok_or_else(late)??;
        }
        Ok(connection)
    }

    async fn open(
        endpoint: &Endpoint,
        receiver: Option<PushReceiver>,
        is_broken: Arc<AtomicBool>,
    ) -> Result<(MultiplexedConnection, DetachedTasks), CallFailure> {
        let (host, port) = endpoint.address.rsplit_once(':').unwrap_or((&endpoint.address, ""));
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port: u16 = port.parse().map_err(|_| unreachable(endpoint, "the address is not HOST:PORT"))?;
        // Users need no permission to name their library.
        let mut settings = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        if let Some(login) = &endpoint.login {
            settings = settings.set_password(&*login.password.current());
            if let Some(user) = &login.user {
                settings = settings.set_username(user);
            }
        }
        let failed = |error: std::io::Error| unreachable(endpoint, &with_tls_advice(error.to_string(), "tls_ca_file"));
        let stream = TcpStream::connect((host, port)).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let config = config(receiver, is_broken);
        let Some(tls) = &endpoint.tls else { return start(endpoint, &settings, stream, config).await };
        let name = ServerName::try_from(host.to_owned()).map_err(|error| unreachable(endpoint, &error.to_string()))?;
        let stream = TlsConnector::from(Arc::clone(tls.config())).connect(name, stream).await.map_err(failed)?;
        start(endpoint, &settings, stream, config).await
    }

    /// Learns which process answers. A server alone has to be a primary: reads of a replica may be old.
    async fn identify(&mut self, endpoint: &Endpoint) -> Result<(), CallFailure> {
        let info = RedisCommand::new("INFO").arg("server").arg("replication");
        let answer = self.send(&[info]).await?.pop().ok_or_else(|| unreachable(endpoint, "no answer to INFO"))?;
        let info = answer.map_err(|text| judge(&endpoint.address, &text).0)?.into_text()?;
        let text =
            |name| field(&info, name).map(Arc::from).ok_or_else(|| unreachable(endpoint, "its INFO is incomplete"));
        let is_primary = field(&info, "role") == Some("master");
        match endpoint.kind {
            NodeKind::Alone if !is_primary => return Err(CallFailure::of_lone_replica(&endpoint.address)),
            NodeKind::Watched if !is_primary => {
                let text = format!("Redis at {} is a replica", endpoint.address);
                return Err(CallFailure::new(FailureCause::Moving, text));
            }
            NodeKind::Alone | NodeKind::Watched | NodeKind::Member | NodeKind::Sentinel | NodeKind::Unchecked => {}
        }
        (self.served_by.run_id, self.served_by.replication_id) = (text("run_id")?, text("master_replid")?);
        Ok(())
    }

    pub(super) fn served_by(&self) -> &ServedBy {
        &self.served_by
    }

    /// Sends commands. Answers the reply to each, or the error that the server answered. A failure has an unknown
    /// outcome: each command may have been done.
    pub(super) async fn send(&self, commands: &[RedisCommand]) -> Result<Vec<Result<RedisReply, String>>, CallFailure> {
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in commands {
            let mut packed = Cmd::with_capacity(command.words().len(), command.size());
            for word in command.words() {
                packed.arg(&word[..]);
            }
            pipeline.add_command(packed);
        }
        let _in_flight = InFlight::begin(self);
        let answered = self.connection.clone().send_packed_commands(&pipeline, 0, commands.len()).await;
        self.silent_since_micros.store(0, Ordering::Relaxed);
        let values = answered.map_err(|error| {
            let text = format!("Redis at {}: {}", self.served_by.address, words(&error));
            CallFailure::new(FailureCause::NoAnswer, text)
        })?;
        if values.len() != commands.len() {
            let text = format!("Redis at {}: {} answers", self.served_by.address, values.len());
            return Err(CallFailure::new(FailureCause::Protocol, text));
        }
        Ok(values.into_iter().map(reply).collect())
    }

    /// Whether the connection has ended.
    pub(super) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::Relaxed)
    }

    /// The calls that wait for an answer.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// How long calls have waited without any answer, those included that do not wait any more.
    pub(super) fn silent_for(&self, now: Duration) -> Duration {
        match self.silent_since_micros.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            since => now.saturating_sub(Duration::from_micros(since)),
        }
    }
}

/// How the library handles a connection.
fn config(receiver: Option<PushReceiver>, is_broken: Arc<AtomicBool>) -> AsyncConnectionConfig {
    // Each call has a deadline of ours around it, also while it waits for its turn.
    let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    config.set_pipeline_buffer_size(REDIS_CALLS_AT_ONCE_MAX).set_push_sender(move |info: PushInfo| {
        if info.kind == PushKind::Disconnection {
            is_broken.store(true, Ordering::Relaxed);
        }
        if let (Some(receiver), Some(push)) = (&receiver, push(info)) {
            receiver(push);
        }
        Ok::<(), ()>(())
    })
}

/// Logs in over a stream, and begins to carry commands.
async fn start(
    endpoint: &Endpoint,
    settings: &RedisConnectionInfo,
    stream: impl Unpin + AsyncRead + AsyncWrite + Send + 'static,
    config: AsyncConnectionConfig,
) -> Result<(MultiplexedConnection, DetachedTasks), CallFailure> {
    let made = MultiplexedConnection::new_with_config(settings, stream, config).await;
    let (connection, driver) = made.map_err(|error| failure(endpoint, &error))?;
    let tasks = DetachedTasks::default();
    tasks.spawn(driver);
    Ok((connection, tasks))
}

/// Counts a call in flight, however it ends.
struct InFlight<'w>(&'w RedisConnection);

impl<'w> InFlight<'w> {
    fn begin(connection: &'w RedisConnection) -> Self {
        connection.in_flight.fetch_add(1, Ordering::Relaxed);
        let (since, now) = (&connection.silent_since_micros, micros(connection.clock.elapsed()));
        // An earlier call that still waits stays the first one.
        let _ = since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        Self(connection)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Turns a value of the library into a reply of this client. Answers the text of an error of the server as the error.
fn reply(value: Value) -> Result<RedisReply, String> {
    Ok(match value {
        Value::Nil => RedisReply::Nil,
        Value::Int(number) => RedisReply::Int(number),
        Value::BulkString(bytes) => RedisReply::Bytes(Bytes::from(bytes)),
        Value::SimpleString(text) => RedisReply::Status(text),
        Value::VerbatimString { text, .. } => RedisReply::Bytes(Bytes::from(text)),
        Value::Okay => RedisReply::Status("OK".to_owned()),
        Value::Array(parts) | Value::Set(parts) => RedisReply::List(parts.into_iter().map(nested).collect()),
        Value::Map(pairs) => {
            RedisReply::Map(pairs.into_iter().map(|(key, value)| (nested(key), nested(value))).collect())
        }
        Value::Attribute { data, .. } => return reply(*data),
        Value::Double(number) => RedisReply::Double(number),
        Value::Boolean(truth) => RedisReply::Bool(truth),
        Value::ServerError(error) => {
            let detail = error.details().map(|detail| format!(" {detail}")).unwrap_or_default();
            return Err(format!("{}{detail}", error.code()));
        }
        // The confirmation of a subscription, or a kind of value that no command of ours is answered with.
        _ => RedisReply::Nil,
    })
}

/// The bound of lists in lists is the server's.
fn nested(value: Value) -> RedisReply {
    reply(value).unwrap_or_else(|text| RedisReply::Refused {
        code: text.split(' ').next().unwrap_or_default().to_owned(),
        text,
    })
}

/// Turns a push of the library into one of this client; none for other kinds.
fn push(info: PushInfo) -> Option<Push> {
    let mut words = info.data.into_iter().map(|value| match value {
        Value::BulkString(bytes) => Bytes::from(bytes),
        Value::SimpleString(text) => Bytes::from(text),
        _ => Bytes::new(), // the number of channels, which nobody needs
    });
    let mut next = || words.next().unwrap_or_default();
    let mut channel = || String::from_utf8_lossy(&next()).into_owned();
    match info.kind {
        PushKind::Message | PushKind::SMessage => Some(Push::News { channel: channel(), payload: next() }),
        PushKind::Subscribe | PushKind::SSubscribe => Some(Push::Entered { channel: channel() }),
        PushKind::Unsubscribe | PushKind::SUnsubscribe => Some(Push::Left { channel: channel() }),
        PushKind::Disconnection => Some(Push::Ended),
        _ => None, // nothing else is asked for
    }
}

fn unreachable(endpoint: &Endpoint, why: &str) -> CallFailure {
    CallFailure::new(FailureCause::Unreachable, format!("Redis at {}: {why}", endpoint.address))
}

/// The failure of an attempt to connect: nothing was asked of the server yet.
fn failure(endpoint: &Endpoint, error: &RedisError) -> CallFailure {
    let text = words(error);
    let cause = match error.code() {
        Some("NOAUTH" | "WRONGPASS") => FailureCause::Unauthenticated,
        Some("NOPERM") => FailureCause::Denied,
        Some("LOADING") => FailureCause::Moving,
        _ if error.kind() == ErrorKind::Parse => FailureCause::NotRedis,
        _ if error.kind() == ErrorKind::AuthenticationFailed => FailureCause::Unauthenticated,
        _ if text.contains("WRONGPASS") || text.contains("NOAUTH") => FailureCause::Unauthenticated,
        _ => FailureCause::Unreachable, // whatever else keeps a connection from being made
    };
    CallFailure::new(cause, format!("Redis at {}: {text}", endpoint.address))
}

fn words(error: &RedisError) -> String {
    error.to_string()
}
