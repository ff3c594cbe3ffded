//! The keys of an issuer behind a URL.
//!
//! A party that changes this document makes tokens for any user. So it comes over https, by certificates of the system
//! or of a file; without TLS only from this machine. Redirects are not followed.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use rustls::{ClientConfig, RootCertStore};

use crate::store_tls::with_tls_advice;
use crate::tls_file;
use tallystone_domain::limits::ISSUER_KEYS_BYTES_MAX;
use tallystone_ports::{KeyDocument, KeyDocumentError, text_with_causes};

/// A URL with a JSON Web Key Set.
pub struct KeyUrl {
    url: Uri,
    client: Client<HttpsConnector<HttpConnector>, Empty<Bytes>>,
}

/// The reason for which a URL cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyUrlError {
    /// It is not a URL that is read here.
    #[error("must be an https URL, as in https://sso.example.com/jwks.json; http is read from a loopback address only")]
    Url,
    /// The certificates of authorities cannot be read.
    #[error("cannot read the certificates of authorities: {0}")]
    Authorities(String),
}

impl KeyUrl {
    /// Whether a text is a URL that is read here.
    pub fn parse(url: &str) -> Result<Uri, KeyUrlError> {
        let url: Uri = url.parse().map_err(|_| KeyUrlError::Url)?;
        let host = url.host().ok_or(KeyUrlError::Url)?;
        let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
        let is_here = host == "localhost" || address.is_ok_and(|address| address.is_loopback());
        match url.scheme_str() {
            Some("https") => Ok(url),
            Some("http") if is_here => Ok(url),
            _ => Err(KeyUrlError::Url), // another scheme, or http across a network
        }
    }

    /// Reads from a URL. The server behind it is known by the certificates of authorities in a file, or by those of the
    /// system.
    pub fn new(url: &str, authorities: Option<&Path>) -> Result<Self, KeyUrlError> {
        let url = Self::parse(url)?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let config = config.map_err(|error| KeyUrlError::Authorities(error.to_string()))?;
        let config = match authorities {
            Some(file) => config.with_root_certificates(read_authorities(file)?),
            None if url.scheme_str() == Some("https") => {
                config.with_native_roots().map_err(|error| KeyUrlError::Authorities(error.to_string()))?
            }
            None => config.with_root_certificates(RootCertStore::empty()),
        };
        let connector = HttpsConnectorBuilder::new().with_tls_config(config.with_no_client_auth());
        let connector = connector.https_or_http().enable_http1().build();
        // The next request comes after minutes.
        let client = Client::builder(TokioExecutor::new()).pool_max_idle_per_host(0).build(connector);
        Ok(Self { url, client })
    }
}

/// The authorities in a file.
fn read_authorities(file: &Path) -> Result<RootCertStore, KeyUrlError> {
    let bytes =
        tls_file::read(file).map_err(|error| KeyUrlError::Authorities(format!("{}: {error}", file.display())))?;
    tallystone_pem::authorities(&bytes).map_err(|what| KeyUrlError::Authorities(format!("{} {what}", file.display())))
}

#[async_trait]
impl KeyDocument for KeyUrl {
    async fn read(&self) -> Result<Vec<u8>, KeyDocumentError> {
        let failed = |what: String| KeyDocumentError(format!("cannot read {}: {what}", self.url));
        let request = Request::get(self.url.clone()).header(header::ACCEPT, "application/json");
        let request = request.body(Empty::new()).map_err(|error| failed(error.to_string()))?;
        let response = self
            .client
            .request(request)
            .await
            .map_err(|error| failed(with_tls_advice(text_with_causes(&error), "jwks_ca_file")))?;
        if response.status() != StatusCode::OK {
            return Err(failed(format!("it answers {}", response.status())));
        }
        let body = Limited::new(response.into_body(), ISSUER_KEYS_BYTES_MAX).collect().await;
        Ok(body.map_err(|error| failed(error.to_string()))?.to_bytes().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_come_over_tls_or_from_this_machine() {
        for url in [
            "https://sso.example.com/jwks.json",
            "https://10.0.0.1:8443/",
            "http://127.0.0.1:8080/k",
            "http://[::1]/k",
            "http://localhost/k",
        ] {
            assert!(KeyUrl::parse(url).is_ok(), "{url}");
        }
        for url in [
            "",
            "jwks.json",
            "/jwks.json",
            "http://sso.example.com/k",
            "http://10.0.0.1/k",
            "file:///k",
            "ftp://localhost/k",
        ] {
            assert!(KeyUrl::parse(url).is_err(), "{url}");
        }
    }
}
