//! TLS to the servers of a store: whom to trust, and what to show.

use std::fmt;
use std::sync::Arc;

use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

/// What a client of a store needs. Cheap to clone. `Debug` does not show it.
#[derive(Clone)]
pub struct StoreTls {
    pem: Arc<StorePem>,
    config: Arc<ClientConfig>,
}

/// The same in PEM form.
#[derive(Default)]
pub struct StorePem {
    /// The authorities of the certificates of the servers; none: those that the machine trusts.
    pub authorities: Option<Vec<u8>>,
    /// The certificate to show with its chain, and its private key.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// What cannot be used of it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StoreTlsError(String);

impl StoreTls {
    /// Fails if a certificate or the key cannot be used.
    pub fn new(pem: StorePem) -> Result<Self, StoreTlsError> {
        // The client of Redis asks for the provider of the process. If there is another one by now, it is as good.
        let _ = aws_lc_rs::default_provider().install_default();
        let config = Arc::new(pem.client_config()?);
        Ok(Self { pem: Arc::new(pem), config })
    }

    pub fn pem(&self) -> &StorePem {
        &self.pem
    }

    /// The settings of connections.
    pub fn config(&self) -> &Arc<ClientConfig> {
        &self.config
    }
}

impl StorePem {
    fn client_config(&self) -> Result<ClientConfig, StoreTlsError> {
        let unusable = |what: &str, error: &dyn fmt::Display| StoreTlsError(format!("{what} cannot be used: {error}"));
        let mut roots = RootCertStore::empty();
        match &self.authorities {
            Some(pem) => {
                for certificate in certificates(pem, "the authorities")? {
                    roots.add(certificate).map_err(|error| unusable("an authority", &error))?;
                }
            }
            None => {
                // Some of a machine's may be of kinds that are not known here.
                let _ = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        if roots.is_empty() {
            return Err(StoreTlsError("no authority is trusted: this machine has none; name a file".to_owned()));
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable("TLS", &error))?
            .with_root_certificates(roots);
        let Some((certificate, key)) = &self.identity else { return Ok(builder.with_no_client_auth()) };
        let chain = certificates(certificate, "the certificate")?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| unusable("the private key", &error))?;
        builder.with_client_auth_cert(chain, key).map_err(|error| unusable("the certificate", &error))
    }
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, StoreTlsError> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(StoreTlsError(format!("{what}: there is no certificate in PEM form"))),
        Err(error) => Err(StoreTlsError(format!("{what}: not in PEM form: {error}"))),
    }
}

impl fmt::Debug for StoreTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StorePem { authorities, identity } = &*self.pem;
        let (authorities, identity) = (authorities.is_some(), identity.is_some());
        f.debug_struct("StoreTls").field("authorities", &authorities).field("identity", &identity).finish()
    }
}
