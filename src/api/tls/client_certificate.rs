//! The content of the certificate of a client. The certificate was verified during the handshake, so it is of an
//! authority that the server trusts.

use rustls::pki_types::CertificateDer;

use crate::tls::CertificateFields;
use tallystone_domain::Timestamp;
use tallystone_domain::access::PrincipalName;

/// The certificate of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientCertificate {
    /// The principal: the first URI among the alternative names of the subject, else the first DNS name. None if that
    /// is no name of a principal.
    pub name: Option<PrincipalName>,
    /// The first moment at which it is not valid any more.
    pub expires: Timestamp,
}

impl ClientCertificate {
    /// Reads a certificate; none if it cannot be read.
    pub fn read(certificate: &CertificateDer<'_>) -> Option<Self> {
        let CertificateFields { expires, names, public_key: _ } = CertificateFields::read(certificate).ok()?;
        let name = names.uri.or(names.dns).and_then(|name| PrincipalName::new(&name).ok());
        Some(Self { name, expires })
    }
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, SanType, date_time_ymd};

    use super::*;

    fn uri(text: &str) -> SanType {
        SanType::URI(text.try_into().expect("ASCII"))
    }

    fn dns(text: &str) -> SanType {
        SanType::DnsName(text.try_into().expect("ASCII"))
    }

    fn name(names: Vec<SanType>) -> Option<String> {
        let mut params = CertificateParams::default();
        params.subject_alt_names = names;
        params.not_after = date_time_ymd(2001, 9, 9);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let read = ClientCertificate::read(certificate.der()).expect("it can be read");
        assert_eq!(read.expires, Timestamp::from_secs(999_993_601));
        read.name.map(|name| name.to_string())
    }

    #[test]
    fn the_first_uri_is_the_principal_else_the_first_dns_name() {
        assert_eq!(name(vec![dns("orders"), dns("other")]).as_deref(), Some("orders"));
        let both = vec![dns("orders"), uri("spiffe://eu/orders"), uri("spiffe://eu/other")];
        assert_eq!(name(both).as_deref(), Some("spiffe://eu/orders"));
        for nobody in [vec![], vec![dns("*.example.com")], vec![SanType::IpAddress([127, 0, 0, 1].into())]] {
            assert_eq!(name(nobody), None);
        }
        // Nothing takes the place of a name that no principal can have.
        assert_eq!(name(vec![uri("urn:orders?x"), dns("orders")]), None);
    }

    #[test]
    fn what_is_no_certificate_cannot_be_read() {
        assert_eq!(ClientCertificate::read(&CertificateDer::from(&b"text"[..])), None);
    }
}
