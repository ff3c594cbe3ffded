//! The lifecycle of a server: bind, open, serve, drain, close.
//!
//! The server binds its port and answers health checks before it opens its stores, because recovery after a crash can
//! be slow. It becomes ready when the stores answer. SIGTERM or ctrl-c starts the shutdown, even during startup. The
//! server then accepts no new calls, finishes calls in flight, drains the rollups (limit, rolls, watermarks, in this
//! order), closes the stores and prints a summary. One deadline bounds the whole shutdown.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use futures_util::future::OptionFuture;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::config::{AuthMode, Config, ListenAddress};
use crate::notices::print_line;
use crate::server::admin_log;
use crate::server::backend::Backend;
use crate::server::first_entries::{ensure_queue_namespace, ensure_timed_tasks};
use crate::server::first_key;
use crate::server::issuers;
use crate::server::keyspace::UnusableSetting;
use crate::server::metrics::{MetricCollector, ProcessMetrics};
use crate::server::otlp::MetricExport;
use crate::server::preset::Preset;
use crate::server::readiness::Readiness;
use crate::server::resources;
use crate::server::startup_text;
use crate::server::status::ServerStatus;
use crate::server::tls::{self, CertificateWatch};
use crate::units::counted;
use tallystone_adapters::codec::queues::register::ProtobufRegisters;
use tallystone_adapters::rollup_rpc::TLS_SCHEME;
use tallystone_adapters::system::{SystemClock, SystemEntropy};
use tallystone_api::grpc::saturating_i64;
use tallystone_api::http::{AllowedHosts, Authentication, Gateway, ServerPhase};
use tallystone_api::serve::{ConnectionDrainSummary, Listener};
use tallystone_cassandra::StartupDeadline;
use tallystone_domain::Reason;
use tallystone_domain::access::QuotaLimits;
use tallystone_domain::counter::NamespaceName;
use tallystone_domain::fleet::ProtocolRules;
use tallystone_engine::audit::Audit;
use tallystone_engine::catalog::Author;
use tallystone_engine::loops::StartupProgress;
use tallystone_engine::namespaces::{NamespaceCatalog, NamespaceDefaults, NamespaceError};
use tallystone_engine::{Engine, EngineParts, MemberProfile};
use tallystone_ports::Clock;

/// How long the runtime waits at exit for tasks that are still running.
const RUNTIME_SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(100);
/// The coalescing time of `dev`.
const DEV_COALESCE_MS: u32 = 1_000;
const DEV_ACCEPT_LIMIT: Duration = Duration::from_secs(1);

/// Runs a server until it receives a stop signal or its store fails.
pub fn run_until_stopped(config: Config, preset: Preset) -> anyhow::Result<()> {
    disable_huge_pages();
    resources::keep_files_private();
    resources::raise_descriptors();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    if config.server.worker_threads > 0 {
        builder.worker_threads(config.server.worker_threads);
    }
    let runtime = builder.enable_all().build().context("cannot start the runtime")?;
    let outcome = runtime.block_on(async {
        // Installed before the port is open, so that an early stop signal also causes an orderly shutdown.
        let mut signals = StopSignals::listen()?;
        serve(config, preset, signals.next()).await
    });
    // Unfinished work, such as a store that is still being opened, must not delay the exit.
    runtime.shutdown_timeout(RUNTIME_SHUTDOWN_TIMEOUT);
    outcome
}

/// Disables transparent huge pages: the kernel zeroes a huge page on first access, which stalls calls for 5 ms on a
/// virtual machine.
#[cfg(target_os = "linux")]
fn disable_huge_pages() {
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "cannot disable huge pages; the system default applies");
    }
}

#[cfg(not(target_os = "linux"))]
fn disable_huge_pages() {}

/// Serves until `stop_signal` returns the name of a signal, or the store fails.
async fn serve(config: Config, preset: Preset, stop_signal: impl Future<Output = &'static str>) -> anyhow::Result<()> {
    let issuers = issuers::of(&config)?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let mut registry = Registry::default();
    // Read first: a server that cannot show its certificate takes no connections.
    let (port, certificate) = tls::open(&config.tls, &mut registry, &clock)?.unzip();
    let (listener, address) = listen(&config).await?;
    let stop = CancellationToken::new();
    let gateway = Gateway::new(registry, Arc::clone(&clock), config.limits.of_calls(), stop.clone());
    let gateway = Arc::new(with_settings(gateway, &config, preset));
    gateway.set_phase(ServerPhase::Starting).await;
    // Health checks are answered from here on; calls get an error until the stores are open.
    let deadline = config.drain_deadline();
    let bounds = resources::bounds(&config);
    let port = Listener { tcp: listener, tls: port };
    let serving = tallystone_api::serve::serve(port, Arc::clone(&gateway), stop.clone(), deadline / 2, bounds);
    let (advertised, name) = names_of(&config, address);
    let export = MetricExport::of(&config.metrics, &name, &gateway, &clock)?;
    let serving = tokio::spawn(with_watches(serving, certificate, export, stop.clone()));
    // `opening` is boxed because the future is large and needed only once.
    let mut stop_signal = pin!(stop_signal);
    let mut opening = Box::pin(open(&config, preset, (advertised, name, bounds.connections), Arc::clone(&clock)));
    let (why, stopped, opened) = tokio::select! {
        biased;
        why = stop_signal.as_mut() => {
            tracing::info!(why, "stopping before the store is open");
            gateway.set_phase(ServerPhase::Draining).await;
            stop.cancel();
            let stopped = clock.elapsed();
            // A partially opened store cannot be closed, so finish opening it first.
            (why.to_owned(), stopped, tokio::time::timeout(deadline, opening).await.ok().transpose()?)
        }
        opened = opening.as_mut() => {
            let (mut backend, engine) = opened?;
            let readiness = Readiness::new(backend.handles.iter().cloned(), Arc::clone(&engine), Arc::clone(&clock));
            register_collectors(&gateway, &mut backend, &engine, &readiness);
            gateway.open_audit(Audit::new(admin_log::open(&config), Arc::clone(&clock)));
            issuers::open(issuers, &engine, &gateway);
            gateway.open(&engine);
            gateway.open_backups(backend.backups.clone());
            gateway.open_status(Arc::new(ServerStatus::new(&engine, &readiness, &backend, Arc::clone(&clock))));
            gateway.set_phase(ServerPhase::Ready).await;
            tracing::info!("ready");
            startup_text::print(&config, preset, address);
            let why = tokio::select! {
                why = stop_signal => why.to_owned(),
                fault = backend.failed() => format!("the store failed: {fault}"),
                never = readiness.run(&gateway) => match never {},
            };
            tracing::info!(why, "stopping");
            gateway.set_phase(ServerPhase::Draining).await;
            if let Some(queues) = engine.queues() {
                queues.stop_leasing();
            }
            stop.cancel();
            (why, clock.elapsed(), Some((backend, engine)))
        }
    };
    let ended = serving.await.context("serving panicked")?;
    drop(gateway);
    let Some((backend, engine)) = opened else {
        print_line(&format!("stopped: {why}; the store was not open yet"));
        anyhow::bail!("the store did not open within server.drain_deadline_ms; the next start tries again");
    };
    // The rollups get the time that draining the connections did not use.
    let left = deadline.saturating_sub(clock.elapsed().saturating_sub(stopped));
    close(&why, ended, left, backend, engine).await
}

/// Binds the port, unless a development server would be open to others.
async fn listen(config: &Config) -> anyhow::Result<(TcpListener, SocketAddr)> {
    let listener = bind(&config.server.listen).await?;
    let address = listener.local_addr().context("cannot read the bound address")?;
    refuse_open_dev(config, address)?;
    tracing::info!(%address, version = env!("CARGO_PKG_VERSION"), "listening");
    Ok((listener, address))
}

/// The address that is reported to other servers, which says whether it is reached by TLS, and the name of this server
/// among them.
fn names_of(config: &Config, address: SocketAddr) -> (Option<String>, String) {
    let advertised = config.server.advertise.of(address);
    let name = advertised.clone().unwrap_or_else(|| resources::name_of(address));
    let scheme = if config.tls.is_on() { TLS_SCHEME } else { "" };
    (advertised.map(|address| format!("{scheme}{address}")), name)
}

fn with_settings(gateway: Gateway, config: &Config, preset: Preset) -> Gateway {
    gateway.register_collector(MetricCollector::of(ProcessMetrics));
    gateway.register_collector(MetricCollector::of(Arc::clone(gateway.limiter())));
    let gateway = gateway.with_hosts(hosts(config, preset)).with_authentication(authentication(config));
    gateway.with_console(config.console.settings(&config.server))
}

/// Serves, and meanwhile keeps the certificate up to date and sends the metrics, if there is a certificate, or a
/// collector.
async fn with_watches(
    serving: impl Future<Output = ConnectionDrainSummary>,
    certificate: Option<CertificateWatch>,
    export: Option<MetricExport>,
    stop: CancellationToken,
) -> ConnectionDrainSummary {
    let watching = OptionFuture::from(certificate.map(|certificate| certificate.run(stop.clone())));
    let exporting = OptionFuture::from(export.map(|export| export.run(stop)));
    tokio::join!(serving, watching, exporting).0
}

/// Refuses a development server that others could reach without a key, unless somebody wrote that they may.
fn refuse_open_dev(config: &Config, address: SocketAddr) -> anyhow::Result<()> {
    if !config.auth.loopback_only || address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    let what = format!(
        "tallystone dev needs no key, so it listens on a loopback address only, not on {address}; to let everyone who reaches \
         it read and change everything, add --set auth.mode=off"
    );
    Err(UnusableSetting(what).into())
}

fn authentication(config: &Config) -> Authentication {
    match config.auth.mode {
        AuthMode::Keys => Authentication::Keys,
        AuthMode::Off => Authentication::Off,
    }
}

/// The host names that a browser may use. This check is the only protection of a development server against requests
/// from other web sites.
fn hosts(config: &Config, preset: Preset) -> AllowedHosts {
    match preset {
        Preset::Dev => AllowedHosts::only(config.server.names().map(str::to_owned)),
        Preset::Server => AllowedHosts::default(),
    }
}

/// Drains the engine, closes the stores, and then prints the summary. A closed stdout is ignored.
async fn close(
    why: &str,
    ended: ConnectionDrainSummary,
    left: Duration,
    backend: Backend,
    engine: Arc<Engine>,
) -> anyhow::Result<()> {
    let drained = match backend.fault() {
        None => engine.drain(left).await,
        // A failed store cannot publish a limit, so the last rolls cannot run.
        Some(_) => {
            engine.abandon().await;
            false
        }
    };
    let fault = backend.fault();
    let done = RunSummary::of(&engine);
    drop(engine);
    backend.close().await;
    tracing::info!(
        why,
        connections_cut_off = ended.cut_off,
        writes_applied = done.writes_applied,
        writes_repeated = done.writes_repeated,
        rollups_written = done.rollups_written,
        messages_enqueued = done.messages_enqueued,
        messages_completed = done.messages_completed,
        counters_left = done.counters_left,
        "stopped"
    );
    print_line(&format!("stopped: {why}; {} of {} connections cut off; {done}", ended.cut_off, ended.open));
    if let Some(fault) = fault {
        anyhow::bail!("the store failed: {fault}");
    }
    anyhow::ensure!(drained, "some work did not end within server.drain_deadline_ms; the next start completes it");
    Ok(())
}

/// Binds the listening address, which may contain a host name.
async fn bind(listen: &ListenAddress) -> anyhow::Result<TcpListener> {
    let found = tokio::net::lookup_host(listen.as_str()).await;
    let found = found.with_context(|| format!("cannot listen on {listen}: its host is unknown"))?;
    let mut addresses: Vec<SocketAddr> = found.collect();
    // A name may resolve to both address families; prefer IPv4, the default of the clients.
    addresses.sort_by_key(SocketAddr::is_ipv6);
    TcpListener::bind(&addresses[..]).await.map_err(|error| {
        let guess = match error.kind() {
            io::ErrorKind::AddrInUse => "; another process uses this port: stop it, or set another port",
            io::ErrorKind::AddrNotAvailable => "; set server.listen to an address of this machine, or to 0.0.0.0:PORT",
            io::ErrorKind::PermissionDenied => "; set a port above 1023",
            _ => "", // the source error is sufficient
        };
        anyhow::Error::new(error).context(format!("cannot listen on {listen}{guess}"))
    })
}

/// Opens the stores and starts the engine. `advertised` is the address at which other servers reach this one, if any;
/// `name` identifies this server in the records that it writes; `connections` is how many it takes.
async fn open(
    config: &Config,
    preset: Preset,
    (advertised, name, connections): (Option<String>, String, usize),
    clock: Arc<dyn Clock>,
) -> anyhow::Result<(Backend, Arc<Engine>)> {
    let startup_deadline = Arc::new(StartupDeadline::start(Arc::clone(&clock)));
    let backend = Backend::open(config, preset, &clock, &startup_deadline).await?;
    let backend = first_key::require(config, backend, clock.now()).await?;
    let extended = Arc::clone(&startup_deadline);
    let progress = Arc::new(move || extended.extend());
    let profile = profile(config, &backend, advertised, name);
    let quotas = config.quotas.limits(connections);
    let starting = start_engine(config, preset, (profile, progress, quotas), &backend, clock);
    let engine = backend.finish_startup(&startup_deadline, Box::pin(starting)).await?;
    Ok((backend, Arc::new(engine)))
}

/// Registers the metric collectors of the engine, the readiness checks and the stores.
fn register_collectors(gateway: &Gateway, backend: &mut Backend, engine: &Arc<Engine>, readiness: &Arc<Readiness>) {
    gateway.register_collector(MetricCollector::of(Arc::clone(engine)));
    gateway.register_collector(MetricCollector::of(Arc::clone(readiness)));
    for collector in backend.take_collectors() {
        gateway.register_collector(collector);
    }
}

/// The profile of this server in its fleet.
fn profile(config: &Config, backend: &Backend, advertised: Option<String>, name: String) -> MemberProfile {
    let roles = config.server.roles.0;
    if backend.is_shared() && roles.roller && advertised.is_none() {
        tracing::warn!(
            "other servers cannot send rollup signals to this server: set server.advertise to its HOST:PORT; until \
             then some rollups are about ten seconds later"
        );
    }
    MemberProfile { roles, address: advertised.unwrap_or_default(), name, secret: backend.secret() }
}

async fn start_engine(
    config: &Config,
    preset: Preset,
    (profile, progress, quotas): (MemberProfile, StartupProgress, QuotaLimits),
    backend: &Backend,
    clock: Arc<dyn Clock>,
) -> anyhow::Result<Engine> {
    let mut defaults = NamespaceDefaults {
        clusters: config.cluster_names(preset.unlisted_cluster_policy()),
        ..NamespaceDefaults::default()
    };
    if let Ok(cluster) = NamespaceName::new(&config.cache.cluster) {
        defaults.cache_cluster = cluster;
    }
    if preset == Preset::Dev {
        defaults.rollup.coalesce_ms = DEV_COALESCE_MS;
    }
    if preset == Preset::Dev && !backend.is_shared() {
        // A remote store needs the longer default accept limit.
        defaults.dataset_settings.accept_limit = DEV_ACCEPT_LIMIT;
    }
    let namespaces = NamespaceCatalog::open_with(Arc::clone(&backend.stores.catalog), Arc::clone(&clock), defaults)
        .await
        .context("cannot read the catalog")?;
    ensure_named_namespaces(config, preset, &namespaces).await?;
    if backend.queue_stores.is_some() {
        ensure_queue_namespace(&namespaces).await;
    }
    let parts = EngineParts {
        stores: backend.stores.clone(),
        queue_stores: backend.queue_stores.clone(),
        history: backend.history.clone(),
        history_registers: Arc::new(ProtobufRegisters),
        clock,
        entropy: Arc::new(SystemEntropy),
        export: backend.export.clone(),
        namespaces,
        profile,
        signals: backend.signals(),
        seal_delay: Some(Duration::from_secs(config.storage.seal_delay_seconds)).filter(|delay| !delay.is_zero()),
        rules: ProtocolRules::default(),
        progress,
        bridge: config.bridge.reports(backend.stores.fleet.is_some()),
        quotas,
    };
    let engine = Engine::start(parts).await.context("cannot start the engine")?;
    if let Some(queues) = engine.queues() {
        ensure_timed_tasks(&queues).await;
    }
    Ok(engine)
}

/// Makes the namespaces that the start names, where they are absent, and that of a development server.
async fn ensure_named_namespaces(config: &Config, preset: Preset, namespaces: &NamespaceCatalog) -> anyhow::Result<()> {
    let (command, of_preset) = match preset {
        Preset::Dev => ("tallystone dev", Some(NamespaceName::new("default").expect("a literal name is valid"))),
        Preset::Server => ("tallystone server start", None),
    };
    for name in of_preset.iter().chain(&config.server.namespaces) {
        let author = Author { actor: command.to_owned(), reason: "a namespace that the start names".to_owned() };
        namespaces.ensure_named(name.clone(), author).await.map_err(|error| {
            let advice = match error.reason() {
                Reason::StorageFull => "; free space on the disk of the data, or lower storage.reserve_bytes",
                _ => "", // the error itself is sufficient
            };
            cause(error).context(format!("cannot create namespace {name}{advice}"))
        })?;
    }
    Ok(())
}

/// Unwraps a catalog error into the store error or the rejection that caused it.
fn cause(error: NamespaceError) -> anyhow::Error {
    match error {
        NamespaceError::Reject(reject) => reject.into(),
        NamespaceError::Quota(refusal) => refusal.into(),
        NamespaceError::Store(error) => error.into(),
    }
}

/// The signals that stop a server. After `listen`, their default action (terminating the process) is disabled.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn listen() -> anyhow::Result<Self> {
        let listen = |kind| signal(kind).context("cannot listen for signals");
        Ok(Self { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "ctrl-c",
        }
    }
}

/// The summary of a server run.
struct RunSummary {
    writes_applied: u64,
    writes_repeated: u64,
    rollups_written: u64,
    messages_enqueued: u64,
    messages_completed: u64,
    counters_left: usize,
}

impl RunSummary {
    fn of(engine: &Engine) -> Self {
        let stats = engine.stats();
        Self {
            // Those of callers: the reports of queues are writes too.
            writes_applied: stats.writes_applied.get().saturating_sub(stats.bridge.totals_reported.get()),
            writes_repeated: stats.writes_repeated.get(),
            rollups_written: stats.rolls_written.get(),
            messages_enqueued: stats.messages_enqueued.get(),
            messages_completed: stats.messages_completed.get(),
            counters_left: engine.waiting(),
        }
    }
}

impl fmt::Display for RunSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |count: u64, one: &str, many: &str| counted(saturating_i64(count), one, many);
        write!(
            f,
            "{}, {}, {}, {}, {} completed, {} left to the next start",
            text(self.writes_applied, "write applied", "writes applied"),
            text(self.writes_repeated, "repeat deduplicated", "repeats deduplicated"),
            text(self.rollups_written, "rollup written", "rollups written"),
            text(self.messages_enqueued, "message enqueued", "messages enqueued"),
            self.messages_completed,
            text(self.counters_left as u64, "counter", "counters")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ConfigSources, load};

    fn in_memory() -> Config {
        let flags = [
            ("server.listen", "localhost:0"),
            ("auth.mode", "off"),
            ("counters.engine", "memory"),
            ("queues.engine", "memory"),
        ];
        let flags = flags.map(|(key, value)| (key.to_owned(), "--set", value.to_owned()));
        load(&ConfigSources { flags: flags.into(), ..ConfigSources::default() }).expect("valid settings").config
    }

    #[tokio::test]
    async fn a_stop_before_the_store_is_open_is_orderly() {
        serve(in_memory(), Preset::Dev, std::future::ready("SIGTERM")).await.expect("an orderly stop");
    }
}
