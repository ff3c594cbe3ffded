//! The settings of a `[clusters.NAME]` of kind "redis": Redis or Valkey, which keeps queues.

use std::time::Duration;

use crate::config::{ClusterConfig, ClusterKind, Config, QueueEngine, RedisTopology};
use tallystone_adapters::store_password::StorePassword;
use tallystone_adapters::store_tls::StoreTls;
use tallystone_domain::limits::{REDIS_REPLICAS_MAX, REDIS_SERVERS_MAX};
use tallystone_redis::client::{Deployment, Login};

/// The cluster that `[queues]` names, if it is one of Redis.
pub fn queue_cluster(config: &Config) -> Option<(&str, &ClusterConfig)> {
    let name = config.queues.cluster.as_str();
    let cluster = config.clusters.get(name).filter(|cluster| cluster.kind == ClusterKind::Redis)?;
    (config.queues.engine == QueueEngine::Redis).then_some((name, cluster))
}

/// How the servers of a cluster are reached: where they are, the log-in, TLS, and the time limit of a call.
type RedisReach = (Deployment, Option<Login>, Option<StoreTls>, Duration);

/// How the servers of the cluster are reached. Reads passwords and certificates from their files.
pub fn client_options(cluster: &ClusterConfig) -> Result<RedisReach, String> {
    let servers = cluster.servers.replicas().concat();
    let deployment = match cluster.topology {
        RedisTopology::Single => Deployment::Single { address: servers.concat() },
        RedisTopology::Sentinel => Deployment::Sentinel {
            sentinels: servers,
            primary: cluster.primary.clone(),
            login: login(&cluster.sentinel_user, cluster.sentinel_password()?),
        },
        RedisTopology::Cluster => Deployment::Cluster { seeds: servers },
    };
    let timeout = Duration::from_millis(cluster.request_timeout_ms);
    Ok((deployment, login(&cluster.user, cluster.password()?), cluster.store_tls()?, timeout))
}

/// A password without a user is that of the default user.
fn login(user: &str, password: StorePassword) -> Option<Login> {
    let user = (!user.is_empty()).then(|| user.to_owned());
    (user.is_some() || !password.is_empty()).then_some(Login { user, password })
}

/// The setting of a cluster of Redis that cannot be used, and what to write instead.
pub(super) fn invalid_setting(cluster: &ClusterConfig) -> Option<(&'static str, String)> {
    let groups = cluster.servers.replicas();
    let count = groups.iter().map(Vec::len).sum::<usize>();
    if groups.len() != 1 || count > REDIS_SERVERS_MAX {
        let what = format!(
            "must name 1 to {REDIS_SERVERS_MAX} servers, as in 127.0.0.1:6379; replicas separated by | are only for \
             memcached"
        );
        return Some(("servers", what));
    }
    let is_sentinel = cluster.topology == RedisTopology::Sentinel;
    if cluster.topology == RedisTopology::Single && count != 1 {
        let what = "must name one server; for more set topology to \"sentinel\" or \"cluster\"";
        return Some(("servers", what.to_owned()));
    }
    if is_sentinel && cluster.primary.is_empty() {
        let what = "must be the name of the primary in the settings of the Sentinels, as in mymaster";
        return Some(("primary", what.to_owned()));
    }
    let of_sentinels = [
        ("primary", !cluster.primary.is_empty()),
        ("sentinel_user", !cluster.sentinel_user.is_empty()),
        ("sentinel_password", !cluster.sentinel_password.is_empty()),
        ("sentinel_password_file", !cluster.sentinel_password_file.as_os_str().is_empty()),
    ];
    if let Some((setting, _)) = of_sentinels.into_iter().find(|(_, is_set)| *is_set && !is_sentinel) {
        let what = "applies only to topology = \"sentinel\"; remove it, or set the topology";
        return Some((setting, what.to_owned()));
    }
    if !(100..=60_000).contains(&cluster.request_timeout_ms) {
        return Some(("request_timeout_ms", "must be 100 to 60000".to_owned()));
    }
    if cluster.replicas > REDIS_REPLICAS_MAX {
        return Some(("replicas", format!("must be 0 to {REDIS_REPLICAS_MAX}")));
    }
    let twice = "and its file are both set; remove one of them";
    if !cluster.password.is_empty() && !cluster.password_file.as_os_str().is_empty() {
        return Some(("password", twice.to_owned()));
    }
    if !cluster.sentinel_password.is_empty() && !cluster.sentinel_password_file.as_os_str().is_empty() {
        return Some(("sentinel_password", twice.to_owned()));
    }
    None
}

/// The fault of the cluster that `[queues]` names, if any.
pub(super) fn invalid_queue_cluster(config: &Config) -> Option<String> {
    let name = &config.queues.cluster;
    match (config.queues.engine, queue_cluster(config)) {
        (QueueEngine::Redis, Some(_)) => None,
        (QueueEngine::Redis, None) if name.is_empty() => Some(
            "is not set, and queues.engine is \"redis\"; name a [clusters.NAME] with kind = \"redis\" and its servers"
                .to_owned(),
        ),
        (QueueEngine::Redis, None) => Some(format!(
            "is {name:?}, but there is no [clusters.{name}] with kind = \"redis\"; add it with its servers, or use a \
             listed cluster"
        )),
        (QueueEngine::Embedded | QueueEngine::Memory | QueueEngine::None, _) => {
            (!name.is_empty()).then(|| "applies only to queues.engine = \"redis\"; leave it empty".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::loaded;

    const GOOD: [(&str, &str); 4] = [
        ("queues.engine", "redis"),
        ("queues.cluster", "main"),
        ("clusters.main.kind", "redis"),
        ("clusters.main.servers", "127.0.0.1:6379"),
    ];

    #[test]
    fn a_cluster_of_redis_that_cannot_be_used_is_refused_with_what_to_write() {
        for (pair, words) in [
            (("clusters.main.servers", ""), "clusters.main.servers must name 1 to 64 servers"),
            (("clusters.main.servers", "a:1|b:2"), "clusters.main.servers must name 1 to 64 servers"),
            (("clusters.main.servers", "a:1,b:2"), "must name one server; for more set topology"),
            (("clusters.main.topology", "sentinel"), "clusters.main.primary must be the name of the primary"),
            (("clusters.main.primary", "mymaster"), "applies only to topology = \"sentinel\""),
            (("clusters.main.topology", "ring"), "clusters.main.topology cannot be used"),
            (("clusters.main.request_timeout_ms", "99"), "clusters.main.request_timeout_ms must be 100 to 60000"),
            (("queues.cluster", "other"), "is \"other\", but there is no [clusters.other] with kind = \"redis\""),
            (("queues.cluster", ""), "queues.cluster is not set, and queues.engine is \"redis\""),
            (("queues.engine", "embedded"), "queues.cluster applies only to queues.engine = \"redis\""),
            (("best_effort.cluster", "main"), "which is not a memcached cluster"),
        ] {
            let error = loaded(&[&GOOD[..], &[pair]].concat()).expect_err(words);
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn servers_are_found_as_the_topology_says() {
        let options = |pairs: &[(&str, &str)]| {
            let config = loaded(&[&GOOD[..], pairs].concat()).expect("valid settings");
            let (_, cluster) = queue_cluster(&config).expect("it names a cluster of Redis");
            client_options(cluster).expect("there are no files")
        };
        let (deployment, login, _, timeout) = options(&[("clusters.main.password", "secret")]);
        assert!(matches!(deployment, Deployment::Single { address } if address == "127.0.0.1:6379"));
        let login = login.map(|login| (login.user, login.password.current().to_string()));
        assert_eq!(login, Some((None, "secret".to_owned())));
        assert_eq!(timeout, Duration::from_secs(2));
        let two = ("clusters.main.servers", "a:1,b:2");
        let (deployment, ..) = options(&[two, ("clusters.main.topology", "cluster")]);
        assert!(matches!(deployment, Deployment::Cluster { seeds } if seeds == ["a:1", "b:2"]));
        let sentinel = [two, ("clusters.main.topology", "sentinel"), ("clusters.main.primary", "mymaster")];
        let (deployment, login, ..) = options(&sentinel);
        assert!(matches!(deployment, Deployment::Sentinel { primary, login: None, .. } if primary == "mymaster"));
        assert!(login.is_none());
    }
}
