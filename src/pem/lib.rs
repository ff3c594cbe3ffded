//! Certificates and private keys in PEM form: the one place that judges what they hold, for servers and for clients.
//!
//! A fault is reported as the end of a sentence that begins with the name of the file.

use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::{self, PemObject as _};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;
use webpki::EndEntityCert;

/// The fault that keeps a certificate and a private key from being used together.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PairError {
    /// The file of the certificate is at fault.
    #[error("the certificate {0}")]
    Certificate(String),
    /// The file of the private key is at fault.
    #[error("the private key {0}")]
    Key(String),
}

/// The certificates, at least one.
pub fn certificates(bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_slice_iter(bytes).collect::<Result<Vec<_>, pem::Error>>();
    let found = found.map_err(|error| format!("is not in PEM form: {error}"))?;
    match found.is_empty() {
        true if holds(bytes, "PRIVATE KEY-----") => {
            Err("has no certificate in PEM form, but a private key; are the two files swapped?".to_owned())
        }
        true => Err(format!("has no certificate in PEM form{}", form_of(bytes))),
        false => Ok(found),
    }
}

/// The authorities, at least one.
pub fn authorities(bytes: &[u8]) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(bytes)? {
        roots.add(certificate).map_err(|error| format!("has a certificate that cannot be used: {error}"))?;
    }
    Ok(roots)
}

/// A certificate with its chain and its private key, in the order in which they are shown: its own first, then the one
/// that signed it, and so on. `name` names the certificate in what is reported about the key.
pub fn pair(certificate: &[u8], key: &[u8], name: &str) -> Result<CertifiedKey, PairError> {
    let chain = certificates(certificate).map_err(PairError::Certificate)?;
    let unusable = |error| PairError::Key(format!("has a private key that cannot be used: {error}"));
    let key = private_key(key).map_err(PairError::Key)?;
    let key = aws_lc_rs::default_provider().key_provider.load_private_key(key).map_err(unusable)?;
    let unreadable = |error| PairError::Certificate(format!("has a certificate that cannot be read: {error}"));
    ParsedCertificate::try_from(&chain[0]).map_err(unreadable)?;
    let Some(of_key) = key.public_key() else {
        return Err(PairError::Key(
            "has a private key of a kind that cannot be used; make an ECDSA or RSA key".to_owned(),
        ));
    };
    let is_of_key = |certificate: &CertificateDer<'static>| {
        ParsedCertificate::try_from(certificate).is_ok_and(|parsed| parsed.subject_public_key_info() == of_key)
    };
    match chain.iter().position(is_of_key) {
        Some(0) => Ok(CertifiedKey::new(chain, key)),
        Some(before) => Err(PairError::Certificate(format!(
            "has its certificates in the wrong order: the one of the private key is number {} in it; put it first, then the \
             one that signed it, and so on",
            before + 1
        ))),
        None => Err(PairError::Key(format!(
            "is not the key of {name}: it belongs to another certificate; name the two files that were made together"
        ))),
    }
}

/// The gap in a chain, if a certificate in it was not signed by the next one: a client that knows only the last
/// authority cannot trust it. A missing end of a chain cannot be seen in it.
pub fn gap(chain: &[CertificateDer<'static>]) -> Option<String> {
    let read = |at: usize| EndEntityCert::try_from(&chain[at]).ok();
    let is_gap = |at: &usize| match (read(at - 1), read(*at)) {
        (Some(one), Some(next)) => one.issuer() != next.subject(),
        _ => false, // what cannot be read is not judged here
    };
    let before = (1..chain.len()).find(is_gap)?;
    Some(format!(
        "has certificates that do not follow each other: number {before} in it was not signed by number {}; clients that know \
         only the root will refuse it; put after each certificate the one that signed it",
        before + 1
    ))
}

fn private_key(bytes: &[u8]) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(bytes).map_err(|error| match error {
        _ if holds(bytes, "ENCRYPTED") => {
            "has a private key that is encrypted, and a password cannot be given; decrypt it \
                                           with `openssl pkey -in FILE -out NEW`, and let nobody else read it"
                .to_owned()
        }
        pem::Error::NoItemsFound if holds(bytes, "BEGIN CERTIFICATE-----") => {
            "has no private key in PEM form, but a certificate; are the two files swapped?".to_owned()
        }
        pem::Error::NoItemsFound => format!("has no private key in PEM form{}", form_of(bytes)),
        error => format!("has no private key in PEM form: {error}"),
    })
}

/// The form that a file without anything in PEM form may have.
fn form_of(bytes: &[u8]) -> &'static str {
    // DER and PKCS #12 begin with the tag of a sequence.
    match bytes.first() {
        Some(0x30) => "; it looks like DER or PKCS #12: convert it with openssl",
        _ => "", // no form that is known
    }
}

fn holds(bytes: &[u8], word: &str) -> bool {
    bytes.windows(word.len()).any(|part| part == word.as_bytes())
}

#[cfg(test)]
mod laws;
