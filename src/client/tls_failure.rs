//! The reason why there is no TLS session with a server. A failure that is classified here happens before any call is
//! sent, or instead of it.

use std::error::Error;
use std::fmt;
use std::io;

use rustls::{AlertDescription, CertificateError};
use tonic::{ConnectError, Status};

/// The reason why there is no TLS session with a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TlsFailure {
    /// No authority that the client trusts has signed the server's certificate, or the server leaves out the
    /// certificates in between. The TLS library does not say which.
    NotTrusted,
    /// The server's certificate is for other names.
    WrongName(String),
    /// The server's certificate has expired, or is not valid yet.
    OutOfDate(String),
    /// The server's certificate is not valid for another reason.
    BadCertificate(String),
    /// The process that listens there does not speak TLS.
    NoTls,
    /// The server wants a certificate of the client.
    CertificateRequired,
    /// The server does not take the client's certificate.
    CertificateRefused(String),
}

impl TlsFailure {
    /// The TLS failure that a status reports, if that is why it failed.
    pub(super) fn of(status: &Status) -> Option<Self> {
        let mut connecting = false;
        let mut cause: Option<&(dyn Error + 'static)> = status.source();
        while let Some(error) = cause {
            connecting |= error.is::<ConnectError>();
            if let Some(error) = tls_error(error) {
                return Self::of_error(error, connecting);
            }
            if let Some(alert) = error.downcast_ref::<io::Error>().and_then(alert_in_text) {
                return Self::of_error(&rustls::Error::AlertReceived(alert), connecting);
            }
            cause = error.source();
        }
        None
    }

    fn of_error(error: &rustls::Error, connecting: bool) -> Option<Self> {
        use rustls::Error::{AlertReceived, InvalidCertificate, InvalidMessage};
        Some(match error {
            InvalidCertificate(CertificateError::UnknownIssuer) => Self::NotTrusted,
            InvalidCertificate(CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. }) => {
                Self::WrongName(error.to_string())
            }
            InvalidCertificate(
                CertificateError::Expired
                | CertificateError::ExpiredContext { .. }
                | CertificateError::NotValidYet
                | CertificateError::NotValidYetContext { .. },
            ) => Self::OutOfDate(error.to_string()),
            InvalidCertificate(_) => Self::BadCertificate(error.to_string()),
            AlertReceived(AlertDescription::CertificateRequired) => Self::CertificateRequired,
            // A server of TLS 1.2 has no other word for a missing certificate.
            AlertReceived(AlertDescription::HandshakeFailure) if connecting => Self::CertificateRequired,
            AlertReceived(alert) if REFUSALS.contains(alert) => Self::CertificateRefused(error.to_string()),
            InvalidMessage(_) if connecting => Self::NoTls,
            _ => return None, // anything else may end a session in the middle of a call
        })
    }
}

/// The error of the TLS library, if it is one. An I/O error hides what it holds from `source`.
fn tls_error<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    if let Some(error) = error.downcast_ref::<rustls::Error>() {
        return Some(error);
    }
    error.downcast_ref::<io::Error>()?.get_ref()?.downcast_ref()
}

/// The alerts by which a server refuses the certificate of a client.
const REFUSALS: [AlertDescription; 7] = [
    AlertDescription::BadCertificate,
    AlertDescription::UnsupportedCertificate,
    AlertDescription::CertificateRevoked,
    AlertDescription::CertificateExpired,
    AlertDescription::CertificateUnknown,
    AlertDescription::UnknownCA,
    AlertDescription::AccessDenied,
];

/// The alert that an I/O error tells of in words: the library of HTTP/2 keeps no more of an error that ends its
/// connection.
fn alert_in_text(error: &io::Error) -> Option<AlertDescription> {
    let text = error.to_string();
    REFUSALS
        .into_iter()
        .chain([AlertDescription::CertificateRequired])
        .find(|alert| rustls::Error::AlertReceived(*alert).to_string() == text)
}

impl fmt::Display for TlsFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotTrusted => f.write_str(
                "its certificate is not trusted: no known authority has signed it, or the server does not send the certificates \
                 between its own and that authority",
            ),
            Self::WrongName(why) => write!(f, "its certificate is for another name: {why}"),
            Self::OutOfDate(why) => write!(f, "its certificate is out of date: {why}"),
            Self::BadCertificate(why) => write!(f, "its certificate is not valid: {why}"),
            Self::NoTls => f.write_str("it does not speak TLS"),
            Self::CertificateRequired => f.write_str("it wants a certificate of the client"),
            Self::CertificateRefused(why) => write!(f, "it does not take the certificate of the client: {why}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(error: rustls::Error) -> Status {
        Status::from_error(Box::new(io::Error::new(io::ErrorKind::InvalidData, error)))
    }

    #[test]
    fn a_certificate_is_judged_wherever_the_error_came_up() {
        let of = |error| TlsFailure::of(&status(error));
        let unknown = rustls::Error::InvalidCertificate(CertificateError::UnknownIssuer);
        assert_eq!(of(unknown), Some(TlsFailure::NotTrusted));
        let required = rustls::Error::AlertReceived(AlertDescription::CertificateRequired);
        assert_eq!(of(required.clone()), Some(TlsFailure::CertificateRequired));
        let words = io::Error::new(io::ErrorKind::InvalidData, required.to_string());
        assert_eq!(TlsFailure::of(&Status::from_error(Box::new(words))), Some(TlsFailure::CertificateRequired));
        // In the middle of a call: it may have been applied.
        assert_eq!(of(rustls::Error::DecryptError), None);
        assert_eq!(of(rustls::Error::AlertReceived(AlertDescription::HandshakeFailure)), None);
        assert_eq!(TlsFailure::of(&Status::unavailable("gone")), None);
    }
}
