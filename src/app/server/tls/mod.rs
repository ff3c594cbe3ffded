//! The certificate of the listening port: read at the start, looked at while the server runs.

mod files;
pub mod local_authority;
mod watch;

use std::sync::Arc;

use prometheus_client::registry::Registry;
use tokio::signal::unix::{SignalKind, signal};

use crate::config::TlsConfig;
use crate::server::keyspace::UnusableSetting;
use tallystone_api::tls::{TlsMetrics, TlsPort};
use tallystone_ports::Clock;

pub use files::{TlsFileError, check};
use files::{TlsFiles, check_peers, describe};
pub use watch::CertificateWatch;

/// Reads the certificate that the settings name, and answers the port that shows it, with the watch that keeps it up to
/// date. None: the port speaks no TLS. From here on SIGHUP makes a server with TLS look at its files.
pub fn open(
    config: &TlsConfig,
    registry: &mut Registry,
    clock: &Arc<dyn Clock>,
) -> anyhow::Result<Option<(Arc<TlsPort>, CertificateWatch)>> {
    let metrics = TlsMetrics::register(registry);
    let unusable = |error: &TlsFileError| UnusableSetting(describe(error));
    check_peers(config).map_err(|error| unusable(&error))?;
    if !config.is_on() {
        return Ok(None);
    }
    let hangups = signal(SignalKind::hangup())?;
    let files = TlsFiles::of(config);
    let read = files.read();
    let served = files.judge(read.as_ref().map_err(unusable)?).map_err(|error| unusable(&error))?;
    if served.expires <= clock.now() {
        tracing::warn!("the certificate in tls.cert_file has expired; clients will refuse it");
    }
    files.warn_of_flaws(&served);
    metrics.certificate_expiry.set(served.expires.micros() / 1_000_000);
    let port = Arc::new(TlsPort::new(served.server, metrics.clone()));
    let watch = CertificateWatch::new(files, &read, (Arc::clone(&port), metrics), hangups, Arc::clone(clock));
    Ok(Some((port, watch)))
}
