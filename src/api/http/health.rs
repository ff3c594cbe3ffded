//! The health of services, for `/readyz` and the gRPC health service.
//!
//! A service is served while the server runs and the store of what the service keeps answers. The whole server, which
//! is `/readyz` and the empty name of gRPC health, is ready while all its services are served. It is advice for load
//! balancers: calls are tried in any case. `docs/decisions` has the rules and the reasons.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::Mutex;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::http::methods::{COUNTERS, EXPERIMENTS, NAMESPACES, QUEUES, RULES};

/// The empty name stands for the whole server.
const WHOLE_SERVER: &str = "";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ServerPhase {
    /// The port is open, the stores are not.
    Starting,
    /// Calls are accepted.
    Ready,
    /// No new work is accepted.
    Draining,
}

/// The outages of a running server: sentences that name the missing store and the time.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct ServiceOutages {
    /// The reasons why counters and namespaces are not served; empty while they are.
    pub counters: Vec<String>,
    /// The reasons why queues are not served; empty while they are.
    pub queues: Vec<String>,
    /// Outages that stop no service as a whole.
    pub degraded: Vec<String>,
}

pub struct ServerHealth {
    current: RwLock<(ServerPhase, Arc<ServiceOutages>)>,
    published: Mutex<PublishedStatuses>,
}

/// The statuses published to watchers.
struct PublishedStatuses {
    reporter: HealthReporter,
    statuses: BTreeMap<&'static str, ServingStatus>,
}

impl ServerHealth {
    /// The health of a starting server. The reporter publishes it over gRPC.
    pub fn new(reporter: HealthReporter) -> Self {
        let told = Mutex::new(PublishedStatuses { reporter, statuses: BTreeMap::new() });
        Self { current: RwLock::new((ServerPhase::Starting, Arc::default())), published: told }
    }

    /// Sets and publishes the phase.
    pub async fn set_phase(&self, phase: ServerPhase) {
        self.current.write().0 = phase;
        self.publish().await;
    }

    /// Sets and publishes the outages.
    pub async fn set_outages(&self, standing: ServiceOutages) {
        self.current.write().1 = Arc::new(standing);
        self.publish().await;
    }

    /// Publishes changed statuses to watchers.
    async fn publish(&self) {
        let mut told = self.published.lock().await;
        // Read under the lock, so that the later of two updates wins.
        let (phase, standing) = self.current.read().clone();
        let runs = phase == ServerPhase::Ready;
        let (counters, queues) = (runs && standing.counters.is_empty(), runs && standing.queues.is_empty());
        let all = counters && queues;
        let services = [
            (WHOLE_SERVER, all),
            (COUNTERS, counters),
            (EXPERIMENTS, counters),
            (NAMESPACES, counters),
            (QUEUES, queues),
            (RULES, all),
        ];
        for (service, is_served) in services {
            let status = if is_served { ServingStatus::Serving } else { ServingStatus::NotServing };
            if told.statuses.insert(service, status) != Some(status) {
                told.reporter.set_service_status(service, status).await;
            }
        }
    }

    /// The reason why queues are not served; none while they are.
    pub fn queues_away(&self) -> Option<String> {
        let (phase, standing) = self.current.read().clone();
        match phase {
            ServerPhase::Starting => Some("the store is not open yet".to_owned()),
            ServerPhase::Draining => Some("the server is stopping".to_owned()),
            ServerPhase::Ready => (!standing.queues.is_empty()).then(|| standing.queues.join("; ")),
        }
    }

    /// Returns the text of `/readyz`: an error while the server is not ready. Never blocks.
    pub fn readiness(&self) -> Result<String, String> {
        let (phase, standing) = self.current.read().clone();
        match phase {
            ServerPhase::Starting => Err("starting: the store is not open yet\n".to_owned()),
            ServerPhase::Draining => Err("stopping\n".to_owned()),
            ServerPhase::Ready => standing.text(),
        }
    }
}

impl ServiceOutages {
    /// Whether all services are served.
    pub fn is_ready(&self) -> bool {
        self.unserved().next().is_none()
    }

    pub fn unserved(&self) -> impl Iterator<Item = (&'static str, &[String])> {
        let services = [("counters", self.counters.as_slice()), ("queues", &self.queues)];
        services.into_iter().filter(|(_, why)| !why.is_empty())
    }

    fn text(&self) -> Result<String, String> {
        let beside = self.degraded.iter().map(|away| format!("{away}\n"));
        if self.is_ready() {
            return Ok(["ready\n".to_owned()].into_iter().chain(beside).collect());
        }
        let lines =
            self.unserved().map(|(what, why)| format!("not ready: {what} are not served: {}\n", why.join("; ")));
        Err(lines.chain(beside).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn away() -> Vec<String> {
        vec!["the store is away".to_owned()]
    }

    #[tokio::test]
    async fn the_server_is_ready_while_all_its_services_are_served() {
        let (reporter, _server) = tonic_health::server::health_reporter();
        let health = ServerHealth::new(reporter);
        health.set_phase(ServerPhase::Ready).await;
        assert_eq!(health.readiness(), Ok("ready\n".to_owned()));
        health.set_outages(ServiceOutages { queues: away(), ..ServiceOutages::default() }).await;
        assert_eq!(health.readiness(), Err("not ready: queues are not served: the store is away\n".to_owned()));
        let told = health.published.lock().await.statuses.clone();
        assert_eq!((told[WHOLE_SERVER], told[QUEUES]), (ServingStatus::NotServing, ServingStatus::NotServing));
        assert_eq!((told[COUNTERS], told[NAMESPACES]), (ServingStatus::Serving, ServingStatus::Serving));
        health
            .set_outages(ServiceOutages { degraded: vec!["another is away".to_owned()], ..ServiceOutages::default() })
            .await;
        assert_eq!(health.readiness(), Ok("ready\nanother is away\n".to_owned()));
        health.set_phase(ServerPhase::Draining).await;
        assert_eq!(health.readiness(), Err("stopping\n".to_owned()));
        assert!(health.published.lock().await.statuses.values().all(|status| *status == ServingStatus::NotServing));
    }

    #[tokio::test]
    async fn what_stands_as_it_stood_is_not_told_again() {
        let (reporter, _server) = tonic_health::server::health_reporter();
        let health = ServerHealth::new(reporter);
        let told = async || health.published.lock().await.statuses.clone();
        health.set_phase(ServerPhase::Ready).await;
        let before = told().await;
        health.set_outages(ServiceOutages { degraded: away(), ..ServiceOutages::default() }).await;
        assert_eq!(told().await, before);
    }
}
