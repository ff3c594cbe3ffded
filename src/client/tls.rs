//! TLS of a client: whose certificates it trusts, and which one it shows.

use std::fmt;

use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::CONNECT_TIMEOUT;
use tallystone_pem as pem;

/// The TLS settings of a client for `https://`. By default the client trusts the authorities that the machine trusts,
/// and shows no certificate. `Debug` does not show the key.
#[derive(Clone, Default)]
pub struct ClientTls {
    authorities: Option<Certificate>,
    identity: Option<Identity>,
}

/// Certificates or a key that cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct ClientTlsError(String);

impl ClientTls {
    /// Trusts these authorities, and none of the machine's: certificates in PEM form. Fails if there is none.
    pub fn trusting(self, authorities: impl AsRef<[u8]>) -> Result<Self, ClientTlsError> {
        let unusable = |what| ClientTlsError(format!("the file {what}"));
        pem::authorities(authorities.as_ref()).map_err(unusable)?;
        Ok(Self { authorities: Some(Certificate::from_pem(authorities)), ..self })
    }

    /// Shows a certificate, with its chain and private key, all in PEM form. Fails if either is not, if the key is
    /// encrypted or that of another certificate, and if the certificate of the key is not the first of the chain.
    pub fn showing(self, certificate: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Result<Self, ClientTlsError> {
        let unusable = |error: pem::PairError| ClientTlsError(error.to_string());
        pem::pair(certificate.as_ref(), key.as_ref(), "the certificate").map_err(unusable)?;
        Ok(Self { identity: Some(Identity::from_pem(certificate, key)), ..self })
    }

    /// Whether anything is set.
    pub fn is_default(&self) -> bool {
        self.authorities.is_none() && self.identity.is_none()
    }

    /// The settings of one connection.
    pub(super) fn config(&self) -> ClientTlsConfig {
        let config = ClientTlsConfig::new().timeout(CONNECT_TIMEOUT);
        let config = match &self.authorities {
            Some(authorities) => config.ca_certificate(authorities.clone()),
            None => config.with_enabled_roots(),
        };
        match &self.identity {
            Some(identity) => config.identity(identity.clone()),
            None => config,
        }
    }
}

impl fmt::Debug for ClientTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { authorities, identity } = self;
        let (authorities, identity) = (authorities.is_some(), identity.is_some());
        f.debug_struct("ClientTls").field("authorities", &authorities).field("identity", &identity).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_no_certificate_or_no_key_or_another_key_is_refused() {
        let made = || rcgen::generate_simple_self_signed(["counts.example".to_owned()]).expect("a certificate");
        let (own, other) = (made(), made());
        let (certificate, key) = (own.cert.pem(), own.signing_key.serialize_pem());
        let plain = ClientTls::default();
        assert!(plain.is_default());
        assert!(plain.clone().trusting(&certificate).is_ok_and(|tls| !tls.is_default()));
        let both = plain.clone().showing(&certificate, &key).expect("both are there");
        assert!(!both.is_default());
        assert_eq!(format!("{both:?}"), "ClientTls { authorities: false, identity: true }");
        for text in ["", "text", &key, "-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----\n"] {
            assert!(plain.clone().trusting(text).is_err(), "{text}");
            assert!(plain.clone().showing(text, &key).is_err(), "{text}");
        }
        let foreign = plain.clone().showing(&certificate, other.signing_key.serialize_pem());
        let told = foreign.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(told.starts_with("the private key is not the key of the certificate"), "{told}");
        assert!(plain.showing(&certificate, &certificate).is_err());
    }
}
