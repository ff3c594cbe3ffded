//! Opens the queues of a deployment: connects, checks what answers, loads the library. Each error says how to fix its
//! cause.

use std::sync::Arc;
use std::time::Duration;

use super::catalog::RedisCatalog;
use super::client::{
    CallFailure, ClientOptions, Deployment, FailureCause, FunctionLibrary, Login, NodeFacts, Product, RedisClient,
    Role, write_advice,
};
use super::client_wire::ClientWire;
use super::functions::{CALLER_BYTES, RedisQueueOptions, RedisQueues};
use super::handle::RedisHandle;
use super::library::QueueLibrary;
use super::limits::REDIS_VERSION_MIN;
use super::membership::{RedisMembership, SeenMembers};
use super::operations::RedisOperations;
use super::rights::{RightsCheck, lacking_unopened};
use super::server_report::AskedOfServers;
use super::server_watch::ServerWatch;
use super::sessions::RedisSessions;
use super::shard_events::RedisNews;
use tallystone_adapters::store_tls::{StoreTls, is_about_tls};
use tallystone_domain::limits::STORE_SESSIONS_MAX;
use tallystone_ports::{Clock, Entropy, QueueStores, SharedQueues, StoreError, StoreErrorKind, StoreHandle};

/// A failure to load the library says so.
const OF_LIBRARY: &str = "the library of functions";
const LOAD_AS_ANOTHER: &str = "grant the user FUNCTION LOAD, or load them as another user";

/// The place of the queues, and how they are kept.
#[derive(Clone, Debug)]
pub struct RedisStoreOptions {
    /// The deployment, with the addresses of its nodes.
    pub deployment: Deployment,
    /// The user of the nodes, if they require one.
    pub login: Option<Login>,
    /// The TLS of connections; none: they are in clear text.
    pub tls: Option<StoreTls>,
    /// How long a call may take.
    pub timeout: Duration,
    /// How the queues are kept.
    pub queues: RedisQueueOptions,
    /// The requirements on the servers.
    pub asked: AskedOfServers,
}

/// The opened queues of a deployment.
pub struct RedisStores {
    /// The stores, shared by all servers of the deployment.
    pub queues: QueueStores,
    /// The opened deployment.
    pub handle: Arc<dyn StoreHandle>,
    /// The connections.
    pub client: Arc<RedisClient>,
}

/// The reason for which the queues of a deployment cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Nothing answers.
    #[error("no Redis answers at {at}: {why}; start Redis there, or correct the address")]
    Unreachable {
        /// The configured addresses.
        at: String,
        /// The cause.
        why: String,
    },
    /// There is no TLS session.
    #[error("no TLS session with Redis at {at}: {why}")]
    Tls {
        /// The configured addresses.
        at: String,
        /// The cause, and what to do.
        why: String,
    },
    /// It answers, and takes no writes.
    #[error("Redis at {at} takes no writes: {why}; {advice}")]
    NoWrites {
        /// The configured addresses.
        at: String,
        /// The answer of the server.
        why: String,
        /// The remedy.
        advice: &'static str,
    },
    /// It lacks a command, because it is renamed or forbidden.
    #[error("Redis at {at} lacks a command: {why}; queues need all commands under their own names")]
    NoCommand {
        /// The configured addresses.
        at: String,
        /// The answer of the server.
        why: String,
    },
    /// User or password are wrong, or missing.
    #[error("Redis at {at} refuses the login: {why}; correct user and password")]
    Login {
        /// The configured addresses.
        at: String,
        /// The answer of the server.
        why: String,
    },
    /// Another program listens there.
    #[error("what listens at {at} is neither Redis nor Valkey: {why}; correct the address")]
    NotRedis {
        /// The configured addresses.
        at: String,
        /// The cause.
        why: String,
    },
    /// The server is older than functions, or than the ones used here.
    #[error("Redis at {address} has version {version}; queues need Redis {REDIS_VERSION_MIN}.0 or later, or Valkey")]
    TooOld {
        /// The server.
        address: String,
        /// Its version.
        version: String,
    },
    /// The server follows a primary.
    #[error("Redis at {at} is a read-only replica; use the address of its primary, or those of its Sentinels")]
    Replica {
        /// The server.
        at: String,
    },
    /// A single server was configured as a cluster.
    #[error("Redis at {at} is no cluster; configure it as a single server")]
    NoCluster {
        /// The configured addresses.
        at: String,
    },
    /// The user may not do what queues need.
    #[error(
        "Redis at {at} denies the user of this server what queues need: {why}; grant the user the commands and keys in \
         docs/redis-keys.md"
    )]
    Denied {
        /// The configured addresses.
        at: String,
        /// The answer of the server.
        why: String,
    },
    /// The user lacks rights without which a change of a queue would end half way.
    #[error("Redis at {at}: {why}")]
    Rights {
        /// The server.
        at: String,
        /// The missing rights, and the remedy.
        why: String,
    },
    /// The library of functions cannot be loaded.
    #[error("the functions of queues cannot be loaded into Redis at {at}: {why}; {advice}")]
    Library {
        /// The configured addresses.
        at: String,
        /// The answer of the server.
        why: String,
        /// The remedy.
        advice: &'static str,
    },
    /// A first call of the queues failed.
    #[error("Redis at {at} answers, but cannot keep queues")]
    Store {
        /// The configured addresses.
        at: String,
        /// The cause.
        source: StoreError,
    },
}

/// Opens the queues of a deployment.
pub async fn open(
    options: RedisStoreOptions,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
) -> Result<RedisStores, OpenError> {
    let at = addresses(&options.deployment);
    let QueueLibrary { name, code, .. } = QueueLibrary::assemble();
    let client = ClientOptions {
        deployment: options.deployment,
        login: options.login,
        tls: options.tls,
        timeout: options.timeout,
        library: FunctionLibrary { name, code },
    };
    let client = connect(client, options.asked.replicas, &at, &clock).await?;
    let checked = check(&client, &at).await;
    let wire = ClientWire::replicated(Arc::clone(&client), options.asked.replicas, options.timeout);
    let store = RedisQueues::new(Arc::new(wire), Arc::clone(&clock), options.queues);
    let (stores, handle) = parts(&store, &client, entropy.as_ref(), at.clone(), options.asked.replicas);
    let works = match checked {
        Ok(()) => match check_rights(handle.rights(), &at).await {
            Ok(()) => probe(&stores, &store).await.map_err(|error| failed_probe(at.clone(), error)),
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    };
    if let Err(error) = works {
        handle.close().await;
        return Err(error);
    }
    let watch = ServerWatch::start(Arc::clone(&client), store, options.asked, clock).await;
    Ok(RedisStores { queues: stores, handle: Arc::new(handle.with_watch(watch)), client })
}

/// Opens a client. A user who lacks a right for that is told of all that it lacks.
async fn connect(
    options: ClientOptions,
    replicas: u32,
    at: &str,
    clock: &Arc<dyn Clock>,
) -> Result<Arc<RedisClient>, OpenError> {
    let failure = match RedisClient::open(options.clone(), Arc::clone(clock)).await {
        Ok(client) => return Ok(client),
        Err(failure) => failure,
    };
    if failure.cause == FailureCause::Denied {
        let function = QueueLibrary::assemble().function("may");
        if let Some(why) = lacking_unopened(&options, function, replicas, clock).await {
            return Err(OpenError::Rights { at: at.to_owned(), why });
        }
    }
    Err(refusal(at, failure))
}

impl RedisStores {
    /// The queues behind an open client, which must have the library of `QueueLibrary`. `at` names the deployment.
    pub fn on(
        client: Arc<RedisClient>,
        (clock, entropy): (Arc<dyn Clock>, Arc<dyn Entropy>),
        options: RedisQueueOptions,
        at: String,
    ) -> Self {
        let wire = Arc::new(ClientWire::new(Arc::clone(&client)));
        let store = RedisQueues::new(wire, clock, options);
        let (queues, handle) = parts(&store, &client, entropy.as_ref(), at, 0);
        Self { queues, handle: Arc::new(handle), client }
    }
}

/// The stores over the shards, and the handle that closes what they need. So many replicas have to have each change.
fn parts(
    store: &Arc<RedisQueues>,
    client: &Arc<RedisClient>,
    entropy: &dyn Entropy,
    at: String,
    replicas: u32,
) -> (QueueStores, RedisHandle) {
    let sessions = Arc::new(RedisSessions::new(Arc::clone(store), STORE_SESSIONS_MAX));
    let members: Arc<SeenMembers> = Arc::default();
    let membership = Arc::new(RedisMembership::new(Arc::clone(store), Arc::clone(&members)));
    let operations = Arc::new(RedisOperations::new(Arc::clone(store)));
    let catalog = Arc::new(RedisCatalog::new(Arc::clone(store)));
    let mut own = [0; CALLER_BYTES];
    entropy.fill(&mut own);
    let news = RedisNews::start(store, client, members, own);
    let shared = Some(SharedQueues { membership, operations, sessions });
    let queues = QueueStores { shared, ..QueueStores::of(Arc::clone(store), catalog) };
    let rights = RightsCheck::new(Arc::clone(client), store.library.function("may"), replicas);
    (queues, RedisHandle::new((Arc::clone(client), Arc::clone(store)), rights, news, at))
}

/// Refuses a user with whom a function would fail half way.
async fn check_rights(rights: &RightsCheck, at: &str) -> Result<(), OpenError> {
    for looked in rights.look().await {
        let looked = looked.map_err(|failure| match failure.cause {
            FailureCause::Denied if !failure.text.contains(OF_LIBRARY) => {
                OpenError::Rights { at: at.to_owned(), why: rights.refusal_of(&failure) }
            }
            FailureCause::Denied => {
                OpenError::Library { at: at.to_owned(), why: rights.refusal_of(&failure), advice: LOAD_AS_ANOTHER }
            }
            _ => failed_probe(at.to_owned(), failure.store_error("ask for rights")), // none of its rights
        })?;
        if let Some(why) = looked.unknown_needed() {
            return Err(OpenError::NoCommand { at: looked.address, why });
        }
        if let Some(why) = looked.refusal() {
            return Err(OpenError::Rights { at: looked.address, why });
        }
    }
    Ok(())
}

/// Calls a function and reads a key, which shows what the user of this server may do.
async fn probe(stores: &QueueStores, store: &RedisQueues) -> Result<(), StoreError> {
    stores.catalog.revision().await?;
    store.learn_epoch().await?;
    match &stores.shared {
        Some(shared) => shared.operations.running().await.map(drop),
        None => Ok(()),
    }
}

/// The error for first calls that failed.
fn failed_probe(at: String, error: StoreError) -> OpenError {
    let why = error.source.as_ref().map_or_else(|| error.to_string(), ToString::to_string);
    let is_denied = error.kind == StoreErrorKind::Forbidden;
    if let Some(advice) = write_advice(&why) {
        return OpenError::NoWrites { at, why, advice };
    }
    if why.contains(OF_LIBRARY) {
        let advice = if is_denied { LOAD_AS_ANOTHER } else { "the log of Redis says more" };
        return OpenError::Library { at, why, advice };
    }
    if is_denied { OpenError::Denied { at, why } } else { OpenError::Store { at, source: error } }
}

/// The configured addresses, for texts.
fn addresses(deployment: &Deployment) -> String {
    match deployment {
        Deployment::Single { address } => address.clone(),
        Deployment::Sentinel { sentinels, primary, .. } => format!("{primary} of Sentinels {}", sentinels.join(", ")),
        Deployment::Cluster { seeds } => seeds.join(", "),
    }
}

/// The error for a connection that could not be made.
fn refusal(at: &str, failure: CallFailure) -> OpenError {
    let CallFailure { cause, text, .. } = failure;
    let (why, at) = (cause_alone(&text, at), at.to_owned());
    if let Some(advice) = write_advice(&why) {
        return OpenError::NoWrites { at, why, advice };
    }
    match cause {
        FailureCause::Unauthenticated => OpenError::Login { at, why },
        FailureCause::Denied => OpenError::Denied { at, why },
        FailureCause::Moving if why.contains("is a replica") => OpenError::Replica { at },
        FailureCause::NotRedis => OpenError::NotRedis { at, why },
        _ if why.contains("cluster support disabled") => OpenError::NoCluster { at },
        // Releases without RESP3 do not know how it is asked for.
        _ if why.contains("RESP3NotSupported") || (why.contains("unknown command") && why.contains("HELLO")) => {
            OpenError::TooOld { address: at, version: "5 or older".to_owned() }
        }
        _ if why.contains("unknown command") => OpenError::NoCommand { at, why },
        _ if is_about_tls(&why) => OpenError::Tls { at, why },
        _ => OpenError::Unreachable { at, why }, // every other cause is one of a node that may come back
    }
}

/// The cause of a failure of a call, without the address and the pauses that the text around it names.
fn cause_alone(text: &str, at: &str) -> String {
    let text = text.split("; next attempt in ").next().unwrap_or(text);
    text.strip_prefix(&format!("Redis at {at}: ")).unwrap_or(text).to_owned()
}

/// Checks every primary.
async fn check(client: &RedisClient, at: &str) -> Result<(), OpenError> {
    for node in client.health().await {
        let facts = node.reading.map_err(|failure| refusal(at, failure))?;
        let NodeFacts { product, version, role, .. } = facts;
        let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
        if product == Product::Redis && major.is_none_or(|major| major < REDIS_VERSION_MIN) {
            return Err(OpenError::TooOld { address: node.address, version });
        }
        if role == Role::Replica {
            return Err(OpenError::Replica { at: node.address });
        }
    }
    Ok(())
}
