//! The servers of a client: one is preferred until it fails, then the next one.
//!
//! All servers of a service are equivalent. All clones share the preference, so a failure that one call has met saves
//! the others the same wait.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tonic::transport::Channel;

use crate::credential::{Connection, Credential};

/// The servers, with the preferred one.
#[derive(Clone)]
pub(super) struct Endpoints {
    channels: Arc<[Channel]>,
    preferred: Arc<AtomicUsize>,
    credential: Credential,
}

impl Endpoints {
    /// At least one server.
    pub fn new(channels: Vec<Channel>) -> Self {
        assert!(!channels.is_empty(), "a client has a server to ask");
        Self { channels: channels.into(), preferred: Arc::default(), credential: Credential::default() }
    }

    /// Shows this with every call.
    pub fn with_credential(self, credential: Credential) -> Self {
        Self { credential, ..self }
    }

    pub fn len(&self) -> usize {
        self.channels.len()
    }

    /// The index of the preferred server.
    pub fn preferred(&self) -> usize {
        self.preferred.load(Ordering::Relaxed) % self.channels.len()
    }

    /// The server after one.
    pub fn after(&self, at: usize) -> usize {
        (at + 1) % self.channels.len()
    }

    pub fn channel(&self, at: usize) -> Connection {
        Connection::new(self.channels[at].clone(), self.credential.clone())
    }

    /// Prefers the next server, unless another call has already done so.
    pub fn switch_from(&self, at: usize) {
        // The preference may have moved meanwhile; the present server has not failed.
        let _ = self.preferred.compare_exchange(at, self.after(at), Ordering::Relaxed, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tonic::transport::Endpoint;

    #[tokio::test]
    async fn a_server_is_left_once_and_the_round_is_closed() {
        let channel = || Endpoint::from_static("http://127.0.0.1:1").connect_lazy();
        let endpoints = Endpoints::new(vec![channel(), channel(), channel()]);
        assert_eq!((endpoints.len(), endpoints.preferred()), (3, 0));
        endpoints.switch_from(0);
        endpoints.clone().switch_from(0);
        assert_eq!(endpoints.preferred(), 1, "the second call found out nothing new");
        endpoints.switch_from(1);
        endpoints.switch_from(2);
        assert_eq!(endpoints.preferred(), 0);
    }
}
