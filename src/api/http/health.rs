//! What is served, as `/readyz` and the gRPC health service tell it.
//!
//! A service is served while the server runs and the store of what the service keeps answers. The whole server, which is
//! `/readyz` and the empty name of gRPC health, is ready while all its services are served. It is advice to those who
//! spread calls: calls are tried all the same. `docs/decisions` has the rules and why.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use tokio::sync::Mutex;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::api::http::gateway::{COUNTERS, NAMESPACES, QUEUES};

/// The empty name stands for the whole server.
const WHOLE: &str = "";

/// Where the server is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// The port is open, the stores are not.
    Starting,
    /// Calls are taken.
    Ready,
    /// No new work is wanted.
    Draining,
}

/// What a running server does not serve, and why: sentences that name what is away and since when.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Standing {
    /// Why counters and namespaces are not served; empty while they are.
    pub counters: Vec<String>,
    /// Why queues are not served; empty while they are.
    pub queues: Vec<String>,
    /// What is away and takes no service as a whole with it.
    pub beside: Vec<String>,
}

/// The health of the server.
pub struct Health {
    now: RwLock<(Phase, Arc<Standing>)>,
    told: Mutex<Told>,
}

/// What those who watch have been told.
struct Told {
    reporter: HealthReporter,
    statuses: BTreeMap<&'static str, ServingStatus>,
}

impl Health {
    /// That of a server which is starting; the reporter tells it over gRPC.
    pub fn new(reporter: HealthReporter) -> Self {
        let told = Mutex::new(Told { reporter, statuses: BTreeMap::new() });
        Self { now: RwLock::new((Phase::Starting, Arc::default())), told }
    }

    /// Takes in where the server is in its life, and tells it.
    pub async fn set_phase(&self, phase: Phase) {
        self.now.write().0 = phase;
        self.tell().await;
    }

    /// Takes in what is not served, and tells it.
    pub async fn set_standing(&self, standing: Standing) {
        self.now.write().1 = Arc::new(standing);
        self.tell().await;
    }

    /// Tells those who watch what has changed for them.
    async fn tell(&self) {
        let mut told = self.told.lock().await;
        // Read under the lock, so that of two tellers the later one has the last word.
        let (phase, standing) = self.now.read().clone();
        let runs = phase == Phase::Ready;
        let (counters, queues) = (runs && standing.counters.is_empty(), runs && standing.queues.is_empty());
        for (service, is_served) in
            [(WHOLE, counters && queues), (COUNTERS, counters), (NAMESPACES, counters), (QUEUES, queues)]
        {
            let status = if is_served { ServingStatus::Serving } else { ServingStatus::NotServing };
            if told.statuses.insert(service, status) != Some(status) {
                told.reporter.set_service_status(service, status).await;
            }
        }
    }

    /// The text of `/readyz`: an error while the server is not ready. Never waits.
    pub fn readiness(&self) -> Result<String, String> {
        let (phase, standing) = self.now.read().clone();
        match phase {
            Phase::Starting => Err("starting: the store is not open yet\n".to_owned()),
            Phase::Draining => Err("stopping\n".to_owned()),
            Phase::Ready => standing.text(),
        }
    }
}

impl Standing {
    /// Whether all services are served.
    pub fn is_ready(&self) -> bool {
        self.unserved().next().is_none()
    }

    /// What is not served, and why.
    pub fn unserved(&self) -> impl Iterator<Item = (&'static str, &[String])> {
        let services = [("counters", self.counters.as_slice()), ("queues", &self.queues)];
        services.into_iter().filter(|(_, why)| !why.is_empty())
    }

    fn text(&self) -> Result<String, String> {
        let beside = self.beside.iter().map(|away| format!("{away}\n"));
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
        let health = Health::new(reporter);
        health.set_phase(Phase::Ready).await;
        assert_eq!(health.readiness(), Ok("ready\n".to_owned()));
        health.set_standing(Standing { queues: away(), ..Standing::default() }).await;
        assert_eq!(health.readiness(), Err("not ready: queues are not served: the store is away\n".to_owned()));
        let told = health.told.lock().await.statuses.clone();
        assert_eq!((told[WHOLE], told[QUEUES]), (ServingStatus::NotServing, ServingStatus::NotServing));
        assert_eq!((told[COUNTERS], told[NAMESPACES]), (ServingStatus::Serving, ServingStatus::Serving));
        health.set_standing(Standing { beside: vec!["another is away".to_owned()], ..Standing::default() }).await;
        assert_eq!(health.readiness(), Ok("ready\nanother is away\n".to_owned()));
        health.set_phase(Phase::Draining).await;
        assert_eq!(health.readiness(), Err("stopping\n".to_owned()));
        assert!(health.told.lock().await.statuses.values().all(|status| *status == ServingStatus::NotServing));
    }

    #[tokio::test]
    async fn what_stands_as_it_stood_is_not_told_again() {
        let (reporter, _server) = tonic_health::server::health_reporter();
        let health = Health::new(reporter);
        let told = async || health.told.lock().await.statuses.clone();
        health.set_phase(Phase::Ready).await;
        let before = told().await;
        health.set_standing(Standing { beside: away(), ..Standing::default() }).await;
        assert_eq!(told().await, before);
    }
}
