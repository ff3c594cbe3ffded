//! What a call of memcached is told of its effect when its attempts end differently.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use memcache::exp::{Error, Op};
use tallystone_adapters::memcached::wire::{BatchResponse, Network, ServerConnection, Tcp};
use tallystone_adapters::memcached::{Cluster, Options};
use tallystone_adapters::system::SystemClock;
use tallystone_domain::fleet::ProtocolRules;
use tallystone_ports::{EffectOutcome, FastCounts as _};

use crate::backends::{Backend, not_run};
use crate::given::counter;
use crate::servers::Memcached;

/// A real server behind a way that loses commands as it is told to.
#[derive(Clone, Default)]
struct Lossy {
    next: Arc<Mutex<VecDeque<Loss>>>,
}

#[derive(Clone, Copy)]
enum Loss {
    /// The command is done and its answer lost.
    Answer,
    /// No connection.
    Refused,
}

struct LossyWire {
    real: Arc<dyn ServerConnection>,
    way: Lossy,
}

#[async_trait]
impl Network for Lossy {
    async fn find(&self, address: &str, timeout: Duration) -> Result<Arc<dyn ServerConnection>, Error> {
        Ok(Arc::new(LossyWire { real: Tcp.find(address, timeout).await?, way: self.clone() }))
    }
}

#[async_trait]
impl ServerConnection for LossyWire {
    async fn send(&self, commands: Vec<Op>) -> BatchResponse {
        let loss = self.way.next.lock().expect("nobody panics with it").pop_front();
        match loss {
            None => self.real.send(commands).await,
            Some(Loss::Refused) => Err(io::Error::from(io::ErrorKind::ConnectionRefused).into()),
            Some(Loss::Answer) => {
                self.real.send(commands).await?;
                let source = Box::new(io::Error::from(io::ErrorKind::ConnectionReset).into());
                Err(Error::Ambiguous { key: "lost".into(), source })
            }
        }
    }
}

#[tokio::test]
async fn what_one_of_its_attempts_may_have_done_a_call_may_have_done() {
    let server = match Memcached::start() {
        Ok(server) => server,
        Err(why) => return not_run(Backend::Memcached, &why),
    };
    let options = Options {
        replicas: vec![vec![server.address().to_string()]],
        key_prefix: "doubt".to_owned(),
        timeout: Duration::from_secs(10),
        dedupe_seconds: 0,
    };
    let way = Lossy::default();
    let opened =
        Cluster::open_on(Arc::new(way.clone()), options, Arc::new(SystemClock), ProtocolRules::default()).await;
    let (cluster, absent) = opened.expect("it answers");
    assert!(absent.is_empty());
    for (losses, outcome) in [
        (vec![Loss::Refused, Loss::Refused], EffectOutcome::NotApplied),
        (vec![Loss::Answer, Loss::Refused], EffectOutcome::Unknown),
    ] {
        let lost = losses.len();
        way.next.lock().expect("nobody panics with it").extend(losses);
        let cleared = cluster.clear(&counter("views")).await.expect_err("no attempt is answered");
        assert_eq!(cleared.outcome, outcome, "{lost} attempts: {cleared:?}");
        way.next.lock().expect("nobody panics with it").clear();
    }
}
