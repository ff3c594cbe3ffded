//! Certificates and private keys in PEM form: the one place that reads them from files and judges what they hold.
//!
//! What is wrong is told as the end of a sentence that begins with the name of the file.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use tallystone_domain::limits::TLS_FILE_BYTES_MAX;

/// A file, unless it is larger than one of these is.
pub fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(file)?.take(TLS_FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > TLS_FILE_BYTES_MAX {
        return Err(io::Error::other(format!("it has more than {TLS_FILE_BYTES_MAX} bytes")));
    }
    Ok(bytes)
}

/// The certificates, at least one.
pub fn certificates(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_slice_iter(bytes).collect::<Result<Vec<_>, pem::Error>>();
    let found = found.map_err(|error| format!("is not in PEM form: {error}"))?;
    if found.is_empty() {
        return Err("has no certificate in PEM form".to_owned());
    }
    Ok(found)
}

/// The authorities, at least one.
pub fn authorities(bytes: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(bytes)? {
        roots.add(certificate).map_err(|error| format!("has a certificate that cannot be used: {error}"))?;
    }
    Ok(roots)
}

/// The private key.
pub fn private_key(bytes: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(bytes).map_err(|error| format!("has no private key in PEM form: {error}"))
}

/// A certificate with its chain and its private key; fails if the key is another one's.
pub fn pair(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<CertifiedKey, rustls::Error> {
    let pair = CertifiedKey::from_der(chain, key, &Arc::new(aws_lc_rs::default_provider()))?;
    pair.keys_match()?;
    Ok(pair)
}
