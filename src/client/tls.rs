//! TLS of a client: whose certificates it trusts, and which one it shows.

use std::fmt;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use crate::CONNECT_TIMEOUT;

/// What a client needs for `https://`. By default it trusts the authorities that the machine trusts, and shows no certificate.
/// `Debug` does not show the key.
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
        check_certificates(authorities.as_ref())?;
        Ok(Self { authorities: Some(Certificate::from_pem(authorities)), ..self })
    }

    /// Shows a certificate, with its chain and private key, all in PEM form. Fails if either is not.
    pub fn showing(self, certificate: impl AsRef<[u8]>, key: impl AsRef<[u8]>) -> Result<Self, ClientTlsError> {
        check_certificates(certificate.as_ref())?;
        PrivateKeyDer::from_pem_slice(key.as_ref())
            .map_err(|error| ClientTlsError(format!("there is no private key in PEM form: {error}")))?;
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

fn check_certificates(pem: &[u8]) -> Result<(), ClientTlsError> {
    let mut count = 0_usize;
    for certificate in CertificateDer::pem_slice_iter(pem) {
        certificate.map_err(|error| ClientTlsError(format!("the certificates are not in PEM form: {error}")))?;
        count += 1;
    }
    match count {
        0 => Err(ClientTlsError("there is no certificate in PEM form".to_owned())),
        1.. => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_no_certificate_or_no_key_is_refused() {
        let certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let key = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        let plain = ClientTls::default();
        assert!(plain.is_default());
        assert!(plain.clone().trusting(certificate).is_ok_and(|tls| !tls.is_default()));
        let both = plain.clone().showing(certificate, key).expect("both are there");
        assert!(!both.is_default());
        assert_eq!(format!("{both:?}"), "ClientTls { authorities: false, identity: true }");
        for text in ["", "text", key, "-----BEGIN CERTIFICATE-----\n*\n-----END CERTIFICATE-----\n"] {
            assert!(plain.clone().trusting(text).is_err(), "{text}");
            assert!(plain.clone().showing(text, key).is_err(), "{text}");
        }
        assert!(plain.showing(certificate, certificate).is_err());
    }
}
