//! Opening the queues of a deployment: what keeps it from being opened is named, with what to do about it.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::thread;

use tallystone::adapters::redis::{self, OpenError, RedisQueueOptions, RedisStoreOptions, RedisStores};
use tallystone::adapters::system::SystemEntropy;
use tallystone::ports::StoreCheck;

use super::*;
use crate::servers::redis::{RedisCluster, ReplicaPair, SentinelGroup};

pub fn stores(deployment: Deployment) -> RedisStoreOptions {
    let queues =
        RedisQueueOptions { epoch: 1, clock_slack: Duration::from_secs(2), outbox_entries: 100, durability: None };
    RedisStoreOptions { deployment, login: None, tls: None, timeout: Duration::from_secs(2), queues, asked: ASKED }
}

pub async fn opened(options: RedisStoreOptions) -> Result<RedisStores, OpenError> {
    redis::open(options, Arc::new(SystemClock), Arc::new(SystemEntropy)).await
}

async fn refusal(options: RedisStoreOptions) -> OpenError {
    opened(options).await.err().expect("it is refused")
}

async fn check_works(options: RedisStoreOptions) {
    let stores = opened(options).await.unwrap_or_else(|error| panic!("{error}: {error:?}"));
    assert_eq!(stores.queues.catalog.revision().await.expect("a revision"), Some(0));
    assert_eq!(stores.handle.check().await, StoreCheck::Answered);
    stores.handle.close().await;
    assert_eq!(stores.handle.check().await, StoreCheck::NoAnswer, "it is closed");
}

/// Listens and answers each line with this.
fn stranger(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    thread::spawn(move || {
        for caller in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut answers = caller.try_clone().expect("a second handle");
                for _line in BufReader::new(caller).lines().map_while(Result::ok) {
                    if answers.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn queues_open_on_a_single_server_behind_sentinels_and_on_a_cluster() {
    for build in Build::ALL {
        println!("on {}", build.name());
        if let Some(server) = or_skip(RedisServer::start(build)) {
            check_works(stores(single(&server))).await;
        }
        if let Some(group) = or_skip(SentinelGroup::start(build)) {
            let (sentinels, primary) = (group.sentinels(), SentinelGroup::NAME.to_owned());
            check_works(stores(Deployment::Sentinel { sentinels, primary, login: None })).await;
        }
        if let Some(cluster) = or_skip(RedisCluster::start(build)) {
            check_works(stores(Deployment::Cluster { seeds: cluster.addresses() })).await;
        }
    }
}

#[tokio::test]
async fn where_nothing_listens_the_address_is_named() {
    let address = crate::servers::free_port().and_then(|free| free.local_addr()).expect("a free port").to_string();
    let told = refusal(stores(Deployment::Single { address: address.clone() })).await;
    assert!(matches!(told, OpenError::Unreachable { .. }), "{told:?}");
    let told = told.to_string();
    assert!(told.contains(&format!("no Redis answers at {address}")) && told.contains("start Redis"), "{told}");
}

#[tokio::test]
async fn what_is_no_redis_is_called_so() {
    for answer in ["HTTP/1.1 400 Bad Request\r\n\r\n", "SSH-2.0-OpenSSH_9.2\r\n", "ERROR\r\n"] {
        let address = stranger(answer);
        let told = refusal(stores(Deployment::Single { address: address.clone() })).await;
        assert!(matches!(&told, OpenError::NotRedis { at, .. } if *at == address), "{answer:?}: {told:?}");
    }
}

#[tokio::test]
async fn a_server_that_is_too_old_is_called_so() {
    // Redis 5 does not know the command with which a connection begins.
    let address = stranger("-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n");
    let told = refusal(stores(Deployment::Single { address })).await;
    assert!(matches!(told, OpenError::TooOld { .. }), "{told:?}");
    assert!(told.to_string().contains("Redis 7.0 or later"), "{told}");
}

#[tokio::test]
async fn a_wrong_or_missing_password_is_called_so() {
    let settings = RedisSettings { password: Some("secret".to_owned()), ..RedisSettings::default() };
    on_each_build(&settings, async |server| {
        let with = |password: Option<&str>| {
            let login = password.map(|password| Login { user: None, password: password.into() });
            RedisStoreOptions { login, ..stores(single(&server)) }
        };
        for wrong in [None, Some("wrong")] {
            let told = refusal(with(wrong)).await;
            assert!(matches!(told, OpenError::Login { .. }), "{told:?}");
            assert!(!told.to_string().contains("secret") && told.to_string().contains("password"), "{told}");
        }
        check_works(with(Some("secret"))).await;
    })
    .await;
}

#[tokio::test]
async fn a_replica_is_called_so() {
    for build in Build::ALL {
        let Some(pair) = or_skip(ReplicaPair::start(build, &RedisSettings::default())) else { continue };
        println!("on {}", build.name());
        let told = refusal(stores(single(&pair.replica))).await;
        assert!(matches!(told, OpenError::Replica { .. }), "{told:?}");
    }
}

#[tokio::test]
async fn a_single_server_that_was_called_a_cluster_is_told() {
    on_each_build(&RedisSettings::default(), async |server| {
        let told = refusal(stores(Deployment::Cluster { seeds: vec![server.address().to_string()] })).await;
        assert!(matches!(told, OpenError::NoCluster { .. }), "{told:?}");
    })
    .await;
}

#[tokio::test]
async fn a_user_who_may_not_load_functions_is_told() {
    let rules = ["user worker on >pw ~* &* +@all -function"];
    on_each_build(&RedisSettings::of(&rules), async |server| {
        let login = Some(Login { user: Some("worker".to_owned()), password: "pw".into() });
        let options = || RedisStoreOptions { login: login.clone(), ..stores(single(&server)) };
        let told = refusal(options()).await;
        assert!(matches!(told, OpenError::Library { .. }), "{told:?}");
        assert!(told.to_string().contains("FUNCTION LOAD"), "{told}");
        check_works(stores(single(&server))).await;
        check_works(options()).await;
    })
    .await;
}

#[tokio::test]
async fn a_server_that_stops_answering_is_seen_by_its_handle() {
    on_each_build(&RedisSettings::default(), async |mut server| {
        let stores = opened(stores(single(&server))).await.expect("it opens");
        server.pause();
        assert_eq!(stores.handle.check().await, StoreCheck::NoAnswer);
        server.resume();
        eventually("it answers", async || stores.handle.check().await == StoreCheck::Answered).await;
        server.kill();
        eventually("it is gone", async || stores.handle.check().await == StoreCheck::NoAnswer).await;
        server.restart().expect("it starts");
        eventually("it is back", async || stores.handle.check().await == StoreCheck::Answered).await;
        assert!(stores.handle.description().contains(&server.address().to_string()));
    })
    .await;
}
