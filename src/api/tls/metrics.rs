//! The numbers of TLS: handshakes, and the files of the certificate. A server without TLS shows zeros.

use std::fmt::{self, Write as _};

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::metric_units::register;

/// How a handshake ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum HandshakeOutcome {
    /// With a session.
    Done,
    /// The two sides did not agree, or the client went away.
    Failed,
    /// The client took too long.
    TimedOut,
    /// The client spoke HTTP without TLS.
    PlainText,
}

impl EncodeLabelValue for HandshakeOutcome {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), fmt::Error> {
        encoder.write_str(match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::TimedOut => "timed_out",
            Self::PlainText => "plain_text",
        })
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, EncodeLabelSet)]
struct HandshakeLabels {
    outcome: HandshakeOutcome,
}

/// The numbers of TLS. Cheap to clone.
#[derive(Clone, Debug)]
pub struct TlsMetrics {
    handshakes: Family<HandshakeLabels, Counter>,
    /// Changes of the files that were taken.
    pub reloads: Counter,
    /// Changes of the files that were refused.
    pub reload_failures: Counter,
    /// 1 while the files hold what is served, or there are none; 0 after a change that was refused.
    pub files_usable: Gauge,
    /// The end of the certificate's validity, in seconds since 1970.
    pub certificate_expiry: Gauge,
}

impl TlsMetrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self {
            handshakes: Family::default(),
            reloads: Counter::default(),
            reload_failures: Counter::default(),
            files_usable: Gauge::default(),
            certificate_expiry: Gauge::default(),
        };
        metrics.files_usable.set(1);
        register(registry, "tallystone_tls_handshakes", "TLS handshakes by their outcome", metrics.handshakes.clone());
        register(
            registry,
            "tallystone_tls_reloads",
            "Changes of the TLS files after which the new certificate was served",
            metrics.reloads.clone(),
        );
        register(
            registry,
            "tallystone_tls_reload_failures",
            "Changes of the TLS files that could not be used; the certificate of before is still served",
            metrics.reload_failures.clone(),
        );
        register(
            registry,
            "tallystone_tls_files_usable",
            "Whether the TLS files hold what is served; 0 after a change that could not be used",
            metrics.files_usable.clone(),
        );
        register(
            registry,
            "tallystone_tls_certificate_expiry_timestamp_seconds",
            "When the served certificate expires, in seconds since 1970; 0 without TLS",
            metrics.certificate_expiry.clone(),
        );
        let outcomes =
            [HandshakeOutcome::Done, HandshakeOutcome::Failed, HandshakeOutcome::TimedOut, HandshakeOutcome::PlainText];
        for outcome in outcomes {
            drop(metrics.handshakes.get_or_create(&HandshakeLabels { outcome }));
        }
        metrics
    }

    /// Counts a handshake.
    pub(super) fn handshake(&self, outcome: HandshakeOutcome) {
        self.handshakes.get_or_create(&HandshakeLabels { outcome }).inc();
    }
}
