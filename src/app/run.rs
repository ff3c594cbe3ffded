//! The life of a server: bind, build, serve, drain, close.
//!
//! It binds and answers the health checks before it opens the store, which may take a while after a kill, and is ready
//! only when the store answers. On SIGTERM or ctrl-c it is no longer ready, takes no new calls, finishes those in flight,
//! drains the rollups (limit, rolls, watermarks, in this order) and closes the store, all within one deadline.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::adapters::system::{SystemClock, SystemEntropy};
use crate::api;
use crate::api::http::{Gateway, Phase};
use crate::app::backend::Backend;
use crate::app::config::{Config, StorageKind};
use crate::app::metrics::EngineCollector;
use crate::domain::counter::NamespaceName;
use crate::engine::namespaces::{Author, Defaults, NamespaceDraft, Namespaces};
use crate::engine::{Engine, Parts};
use crate::ports::Clock;

/// What kind of server it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Preset {
    /// For development: quick rollups, a namespace `default`.
    Dev,
    /// As configured.
    Server,
}

/// How soon `dev` rolls counters up.
const DEV_COALESCE_MS: u32 = 1_000;
/// How old an event may be when it arrives at `dev`.
const DEV_ACCEPT_LIMIT: Duration = Duration::from_secs(1);

/// Runs a server until it is told to stop.
pub fn until_stopped(config: Config, preset: Preset) -> anyhow::Result<()> {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    if config.server.worker_threads > 0 {
        runtime.worker_threads(config.server.worker_threads);
    }
    runtime.enable_all().build().context("cannot start the runtime")?.block_on(serve(config, preset))
}

async fn serve(config: Config, preset: Preset) -> anyhow::Result<()> {
    let listener = TcpListener::bind(config.server.listen)
        .await
        .with_context(|| format!("cannot listen on {}; is another server running there?", config.server.listen))?;
    let address = listener.local_addr().context("cannot read the bound address")?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let stop = CancellationToken::new();
    let gateway = Arc::new(Gateway::new(Registry::default(), Arc::clone(&clock), stop.clone()));
    gateway.set_phase(Phase::Starting).await;
    // The health checks answer from here on; calls are told that the store is not open yet.
    let serving =
        tokio::spawn(api::serve::serve(listener, Arc::clone(&gateway), stop.clone(), config.drain_deadline() / 2));
    let backend = open_backend(&config, &clock).await?;
    let engine = Arc::new(start_engine(preset, &backend, Arc::clone(&clock)).await?);
    gateway.measure(Box::new(EngineCollector::new(Arc::clone(&engine))));
    gateway.open(&engine);
    gateway.set_phase(Phase::Ready).await;
    announce(&config, preset, address);
    let why = tokio::select! {
        why = stop_signal() => why?,
        fault = backend.failed() => format!("the store failed: {fault}"),
    };
    tracing::info!(why, "stopping");
    let stopped = clock.elapsed();
    gateway.set_phase(Phase::Draining).await;
    stop.cancel();
    let ended = serving.await.context("serving panicked")?;
    // What the connections left of the time goes to the rollups.
    let left = config.drain_deadline().saturating_sub(clock.elapsed().saturating_sub(stopped));
    let drained = engine.drain(left).await;
    let fault = backend.fault();
    println!("stopped: {why}; {} of {} connections cut off; {}", ended.cut_off, ended.open, summary(&engine));
    drop((gateway, engine));
    backend.close();
    if let Some(fault) = fault {
        anyhow::bail!("the store failed: {fault}");
    }
    anyhow::ensure!(drained, "not everything ended within server.drain_deadline_ms; the next start makes up for it");
    Ok(())
}

/// Opens the store off the runtime: recovery may read a lot.
async fn open_backend(config: &Config, clock: &Arc<dyn Clock>) -> anyhow::Result<Backend> {
    let (config, clock) = (config.clone(), Arc::clone(clock));
    tokio::task::spawn_blocking(move || Backend::open(&config, clock)).await.context("opening the store panicked")?
}

async fn start_engine(preset: Preset, backend: &Backend, clock: Arc<dyn Clock>) -> anyhow::Result<Engine> {
    let mut defaults = Defaults::default();
    if preset == Preset::Dev {
        defaults.rollup.coalesce_ms = DEV_COALESCE_MS;
        defaults.dataset_settings.accept_limit = DEV_ACCEPT_LIMIT;
    }
    let namespaces = Namespaces::open_with(Arc::clone(&backend.stores.catalog), Arc::clone(&clock), defaults)
        .await
        .context("cannot read the catalog")?;
    if preset == Preset::Dev {
        let name = NamespaceName::new("default").expect("a literal name is valid");
        let author = Author { actor: "tallystone dev".to_owned(), reason: "the namespace to begin with".to_owned() };
        namespaces.ensure(NamespaceDraft::of(name), author).await.context("cannot make namespace default")?;
    }
    let parts = Parts {
        stores: backend.stores.clone(),
        clock,
        entropy: Arc::new(SystemEntropy),
        export: backend.export.clone(),
        namespaces,
    };
    Engine::start(parts).await.context("cannot start the engine")
}

/// Says where the server is and what to try first.
fn announce(config: &Config, preset: Preset, address: SocketAddr) {
    println!("tallystone {} listens on http://{address}", env!("CARGO_PKG_VERSION"));
    match config.storage.kind {
        StorageKind::Embedded => println!("data:  {}", config.storage.data_dir.display()),
        StorageKind::Memory => println!("data:  in memory only; it is gone when the process ends"),
    }
    if preset == Preset::Dev {
        println!(
            "try:   curl -s http://{address}/tallystone.counter.v1.CounterService/AddCount \\\n         \
             -H 'content-type: application/json' \\\n         \
             -d '{{\"namespace\": \"default\", \"counter_name\": \"views\", \"delta\": 1}}'"
        );
        let server = if address.port() == 7450 { String::new() } else { format!(" --server {address}") };
        println!("then:  tallystone counter get views --fresh{server}");
    }
}

async fn stop_signal() -> anyhow::Result<String> {
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    tokio::select! {
        _ = terminate.recv() => Ok("SIGTERM".to_owned()),
        pressed = tokio::signal::ctrl_c() => {
            pressed.context("cannot listen for ctrl-c")?;
            Ok("ctrl-c".to_owned())
        }
    }
}

/// What the server did, in a line.
fn summary(engine: &Engine) -> String {
    let stats = engine.stats();
    format!(
        "{} writes applied, {} repeats recognised, {} rollups written, {} counters left to the next start",
        stats.writes_applied.get(),
        stats.writes_repeated.get(),
        stats.rolls_written.get(),
        engine.waiting()
    )
}
