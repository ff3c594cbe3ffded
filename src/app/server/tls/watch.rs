//! Looks at the files of the certificate every few seconds and on SIGHUP, and serves what replaces them.
//!
//! Contents are compared, not times: files may be links that are turned to others. Files that cannot be used change
//! nothing, and are counted and logged once for each change.

use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::Signal;
use tokio_util::sync::CancellationToken;

use crate::server::tls::files::{FileContents, FilesFingerprint, ServedCertificate, TlsFileError, TlsFiles, describe};
use tallystone_api::tls::{TlsMetrics, TlsPort};
use tallystone_domain::limits::TLS_FILES_LOOKED_EVERY;
use tallystone_ports::Clock;

/// A pair that does not fit may be half replaced: it is read once more after this time before it is judged.
const REPLACED_WITHIN: Duration = Duration::from_secs(1);

/// Keeps the certificate of a port up to date.
pub struct CertificateWatch {
    files: TlsFiles,
    /// The files that were judged last, whether they are served or not.
    judged: FilesFingerprint,
    port: Arc<TlsPort>,
    metrics: TlsMetrics,
    hangups: Signal,
    clock: Arc<dyn Clock>,
}

/// The result of judging files: a certificate that can be served, or what is wrong.
type JudgedFiles = Result<ServedCertificate, String>;

impl CertificateWatch {
    pub(super) fn new(
        files: TlsFiles,
        served: &Result<FileContents, TlsFileError>,
        (port, metrics): (Arc<TlsPort>, TlsMetrics),
        hangups: Signal,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { files, judged: FilesFingerprint::of(served), port, metrics, hangups, clock }
    }

    /// Looks until the stop.
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = self.hangups.recv() => tracing::info!("SIGHUP: looking at the TLS files"),
                () = self.clock.sleep(TLS_FILES_LOOKED_EVERY) => {}
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.look() => {}
            }
        }
    }

    async fn look(&mut self) {
        let Some((fingerprint, judgement)) = self.changed().await else { return };
        let (fingerprint, judgement) = match judgement {
            Ok(_) => (fingerprint, judgement),
            Err(_) => {
                self.clock.sleep(REPLACED_WITHIN).await;
                let Some(again) = self.changed().await else { return };
                again
            }
        };
        self.judged = fingerprint;
        match judgement {
            Ok(served) => self.serve(served),
            Err(why) => {
                self.metrics.reload_failures.inc();
                self.metrics.files_usable.set(0);
                tracing::warn!(
                    why,
                    "the TLS files were changed and cannot be used; the certificate of before is served"
                );
            }
        }
    }

    fn serve(&self, served: ServedCertificate) {
        self.files.warn_of_flaws(&served);
        self.port.replace(served.server);
        self.metrics.reloads.inc();
        self.metrics.files_usable.set(1);
        self.metrics.certificate_expiry.set(served.expires.micros() / 1_000_000);
        let expires = jiff::Timestamp::from_microsecond(served.expires.micros()).map(|time| time.to_string());
        tracing::info!(expires = expires.unwrap_or_default(), "new connections get the new certificate");
    }

    /// The fingerprint of the files and their judgement, if they were not judged yet.
    async fn changed(&self) -> Option<(FilesFingerprint, JudgedFiles)> {
        let (files, judged, now) = (self.files.clone(), self.judged.clone(), self.clock.now());
        let look = move || {
            let read = files.read();
            let fingerprint = FilesFingerprint::of(&read);
            let judge = |contents| {
                let served = files.judge(&contents)?;
                Ok((served.expires > now).then_some(served))
            };
            (fingerprint != judged).then(|| {
                let judgement = match read.and_then(judge) {
                    Ok(Some(served)) => Ok(served),
                    Ok(None) => Err("the certificate in tls.cert_file has expired".to_owned()),
                    Err(error) => Err(describe(&error)),
                };
                (fingerprint, judgement)
            })
        };
        // The files may be on a slow disk. A panic has been logged, and the next look is another try.
        tokio::task::spawn_blocking(look).await.ok().flatten()
    }
}
